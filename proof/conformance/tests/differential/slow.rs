//! What takes minutes: long vocabularies against the oracle. `cargo test -p gumball-conformance --test
//! differential -- --ignored`

use std::time::Instant;

use gumball_conformance::fuzz::large_sample_matches_oracle;
use gumball_conformance::rows::{Words, bell};
use gumball_conformance::stream::{self, Counted, Extent};
use gumball_engine::{Draws, LogitsMut, Operators, RowParams, Rows, SamplingParams};

#[test]
#[ignore = "takes minutes"]
fn long_vocabularies_match_the_oracle() {
    for seed in 0..1000 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..400).map(|_| words.word() as u8).collect();
        large_sample_matches_oracle(&data);
    }
}

/// Five million outputs of one row, or of the first of 99 and 989, have its probabilities.
#[test]
#[ignore = "takes minutes"]
fn five_million_draws_of_one_row_have_its_direction() {
    const DRAWS: usize = 5_000_000;
    let operators = Operators::new(None, None).unwrap();
    for (rows, vocab) in [(1, 111), (989, 111), (99, 32_000), (1, 128_256)] {
        let logits: Vec<f32> = (0..rows).flat_map(|row| bell(vocab, 1.0, row as u64)).collect();
        let mut probabilities = vec![0.0; rows * vocab];
        let out = LogitsMut::new(&mut probabilities, rows, vocab).unwrap();
        operators.softmax((Rows::logits(&logits, rows, vocab).unwrap(), out), 1.0.into(), None).unwrap();
        for (what, params) in [
            ("plain", SamplingParams::default()),
            ("top_k", SamplingParams { top_k: vocab as i64 / 4, ..Default::default() }),
            ("top_p", SamplingParams { top_p: 0.5, ..Default::default() }),
        ] {
            let indices: Vec<u32> = (0..DRAWS).map(|i| (i % rows) as u32).collect();
            let matrix = Rows::probabilities(&probabilities, rows, vocab).unwrap();
            let params = RowParams::new(&params);
            let mut kept = vec![0.0; rows * vocab];
            let out = LogitsMut::new(&mut kept, rows, vocab).unwrap();
            operators.probabilities((matrix, out), &params, None).unwrap();
            let mut tokens = vec![0; DRAWS];
            let start = Instant::now();
            let (indices, draws) = (Some((&indices).into()), Draws::new(7, 1));
            operators.sample(matrix, indices, &params, &draws, (&mut tokens).into(), None).unwrap();
            let seconds = start.elapsed().as_secs_f64();

            let mut counts = vec![0.0f64; vocab];
            tokens.iter().step_by(rows).for_each(|token| counts[*token as usize] += 1.0);
            let p: Vec<f64> = kept[..vocab].iter().map(|p| f64::from(*p)).collect();
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let cosine = dot(&counts, &p) / (dot(&counts, &counts) * dot(&p, &p)).sqrt();
            println!("{rows} x {vocab}, {what}: {seconds:.1} s, cosine {cosine:.5}");
            assert!(counts.iter().zip(&p).all(|(count, p)| *p > 0.0 || *count == 0.0), "outside the cut");
            // Draws of one row scatter around their expectation: with n of them over a vocabulary as flat as
            // this one, the cosine is about 1 / sqrt(1 + vocab / n).
            let of_a_row = (DRAWS / rows) as f64;
            let expected = 1.0 / (1.0 + vocab as f64 / of_a_row).sqrt();
            assert!(cosine > expected - 0.002, "{cosine}, expected about {expected}");
            assert!(rows > 1 || cosine > 0.98, "{cosine}");
        }
    }
}

/// A million tokens of requests with any parameters, in batches that change, some with drafts of any drafter
/// and some without, equal the tokens of decoding step by step.
#[test]
#[ignore = "takes minutes"]
fn a_million_tokens_with_drafts_are_those_without() {
    let extent = Extent { requests: 64, steps: 300, tokens: 1_000_000, trained: false, ranks: 1 };
    let Counted { tokens, accepted, .. } = stream::hold(None, extent).unwrap_or_else(|text| panic!("{text}"));
    println!("{tokens} tokens, of which {accepted} were drafts");
    assert!(accepted > tokens / 4);
}
