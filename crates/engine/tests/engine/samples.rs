//! Several draws from one row, and seeds.

use gumball_engine::{Batch, Outputs, Rows, Sampler, SamplingParams};

use crate::cases::{KINDS, VOCAB, params, pool, row, step};

#[test]
fn n_draws_are_those_of_n_sequences() {
    for kind in 0..KINDS {
        let mut sampler = Sampler::new(params(kind, 21), VOCAB).unwrap().with_prompt(&[2]);
        let tokens = sampler.sample_n(&row(5), 6).unwrap();
        assert_eq!(sampler.position(), 1, "nothing is appended");
        for (draw, token) in tokens.iter().enumerate() {
            let separate = Sampler::new(params(kind, 21), VOCAB).unwrap();
            let mut separate = separate.with_prompt(&[2]).with_draw(draw as u32);
            assert_eq!(separate.sample(&row(5)).unwrap(), *token, "kind {kind}, draw {draw}");
        }
    }
    let tokens = Sampler::new(params(0, 21), VOCAB).unwrap().sample_n(&row(5), 20).unwrap();
    assert!(tokens.iter().any(|token| token.id != tokens[0].id), "draws differ");
}

#[test]
fn forks_of_a_slot_are_the_draws_of_one_request() {
    let mut sampler = Sampler::new(params(2, 21), VOCAB).unwrap().with_prompt(&[2]);
    let expected: Vec<_> =
        sampler.sample_n(&row(5), 4).unwrap().iter().map(|token| token.id.unwrap() as i32).collect();

    let mut pool = pool(2);
    let first = pool.admit(params(2, 21), &[2]).unwrap();
    let mut slots = vec![first];
    slots.extend((1..4).map(|draw| pool.fork(first, draw).unwrap()));
    let data = row(5);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let mut out = Outputs::new();
    pool.step(logits, &Batch { row_indices: &[0; 4], ..Batch::of(&slots) }, &mut out).unwrap();
    assert_eq!(out.tokens(), expected);

    // Then each goes its own way, as a fork of the sampler does.
    let out = step(&mut pool, &[row(6), row(6), row(6), row(6)].concat(), &slots);
    let mut fork = sampler.fork(3).unwrap();
    fork.sample(&row(5)).unwrap();
    assert_eq!(fork.sample(&row(6)).unwrap().id, Some(out.tokens()[3] as u32));
    assert_eq!(pool.sequence(slots[3]).unwrap().draw(), 3);
}

#[test]
fn an_entropy_seed_is_fresh_and_reproduces_the_run() {
    let mut pool = pool(1);
    let slots: Vec<_> = (0..4).map(|_| pool.admit(SamplingParams::default(), &[]).unwrap()).collect();
    let seeds: Vec<_> = slots.iter().map(|slot| pool.sequence(*slot).unwrap().seed()).collect();
    for (i, seed) in seeds.iter().enumerate() {
        assert!(!seeds[..i].contains(seed), "seeds differ: {seeds:?}");
    }
    let data = [row(1), row(1), row(1), row(1)].concat();
    let tokens: Vec<_> = (0..5).map(|_| step(&mut pool, &data, &slots).tokens().to_vec()).collect();
    for (i, seed) in seeds.into_iter().enumerate() {
        let params = SamplingParams { seed: Some(seed), ..Default::default() };
        let mut sampler = Sampler::new(params, VOCAB).unwrap();
        for tokens in &tokens {
            assert_eq!(sampler.sample(&row(1)).unwrap().id, Some(tokens[i] as u32));
        }
    }
}
