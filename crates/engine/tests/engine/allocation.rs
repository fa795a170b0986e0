//! Memory that has grown is reused: after warm-up neither a step nor a sample allocates.

use allocation_counter::measure;
use gumball_engine::{Batch, Masks, Outputs, Pool, Rows, Sampler};

use crate::cases::{KINDS, VOCAB, back_to, params, pool, row, rows};

#[test]
fn outputs_move_only_for_a_larger_shape() {
    let mut pool = pool(1);
    let slots: Vec<_> = (0..4).map(|seed| pool.admit(params(0, seed), &[]).unwrap()).collect();
    let data = rows(0..4);
    let mut out = Outputs::new();
    let mut addresses = Vec::new();
    for rows in [4, 1, 3, 4] {
        let logits = Rows::logits(&data, rows, VOCAB).unwrap();
        pool.step(logits, &Batch::of(&slots[..rows]), &mut out).unwrap();
        assert_eq!((out.tokens().len(), out.words().len()), (rows, out.layout().words()));
        addresses.push(out.words().as_ptr());
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]));
}

#[test]
fn a_step_allocates_nothing_after_warm_up() {
    const STEPS: u64 = 12;
    let mut pool = crate::cases::keeping(1);
    let slots: Vec<_> = (0..KINDS).map(|kind| pool.admit(params(kind, 3), &[1, 2, 1]).unwrap()).collect();
    let count = slots.len();
    let data: Vec<_> = (0..STEPS).map(|step| rows(vec![step % 3; count])).collect();
    let words = [0xFFFF_FFF7; 28].repeat(count);
    let masks = Masks::new(&words, count, 28, 28).unwrap();
    let options = Batch { masks, ..Batch::default() };
    let mut out = Outputs::new();
    let mut run = |pool: &mut Pool| {
        for data in &data {
            let logits = Rows::logits(data, count, VOCAB).unwrap();
            pool.step(logits, &Batch { slots: &slots, ..options }, &mut out).unwrap();
        }
    };
    run(&mut pool);
    back_to(&mut pool, &slots, 0);
    // The steps once more: all memory has its size by now.
    assert_eq!(measure(|| run(&mut pool)).count_total, 0);
}

#[test]
fn a_sample_allocates_nothing_after_warm_up() {
    let data = [row(0), row(1), row(2)];
    for kind in 0..KINDS {
        let mut sampler = Sampler::new(params(kind, 3), VOCAB).unwrap().with_prompt(&[1, 2, 1]);
        let run = |sampler: &mut Sampler| {
            for i in 0..12 {
                sampler.sample(&data[i % 3]).unwrap();
            }
        };
        run(&mut sampler);
        sampler.shorten(12).unwrap();
        assert_eq!(measure(|| run(&mut sampler)).count_total, 0, "kind {kind}");
    }
}
