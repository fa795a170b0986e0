//! Memory that has grown is reused.

use gumball_engine::{BatchOptions, Logits, Outputs, SamplingParams};

use crate::cases::{VOCAB, pool, rows};

#[test]
fn outputs_are_allocated_only_for_a_larger_shape() {
    let mut pool = pool(1);
    let slots: Vec<_> = (0..4).map(|_| pool.admit(SamplingParams::default(), &[]).unwrap()).collect();
    let data = rows(0..4);
    let mut out = Outputs::new();
    let mut addresses = Vec::new();
    for rows in [4, 1, 3, 4] {
        let logits = Logits::new(&data, rows, VOCAB).unwrap();
        pool.step(logits, &slots[..rows], &BatchOptions::default(), &mut out).unwrap();
        assert_eq!((out.tokens().len(), out.words().len()), (rows, out.layout().words()));
        addresses.push(out.words().as_ptr());
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]));
}
