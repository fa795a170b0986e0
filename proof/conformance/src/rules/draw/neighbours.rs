//! Nothing in a row may disturb another row, and where a row lies does not matter (E7, N7; Rows in
//! docs/semantics.md).

use gumball_spec::{FilterOrder, LogprobsParams, SamplingParams};

use crate::case::{Case, Dtype, Logits};
use crate::generate;
use crate::observed::differences;
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(neighbour_rules:
    E7 neighbours_of_a_bad_row_are_untouched,
    N9 a_row_draws_the_same_in_any_batch,
    N7 a_row_draws_the_same_wherever_it_starts,
    D2 a_row_draws_the_same_twice,
);

/// Returns parameters that reach into every stage of any row of more than 40 ids.
fn busy(seed: u64) -> SamplingParams {
    SamplingParams {
        // Ids of a generated request are in its own vocabulary.
        logit_bias: vec![],
        allowed_ids: None,
        banned_ids: vec![],
        xtc_exempt_ids: vec![],
        no_repeat_ngram_exempt_ids: vec![],
        mirostat: None,
        adaptive_target: -1.0,
        order: FilterOrder::Default,
        top_k: 40,
        logprobs: Some(LogprobsParams { top_n: 3, ..Default::default() }),
        ..generate::case(&bytes(seed)).params
    }
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut words = Words(seed);
    (0..64).flat_map(|_| words.word().to_le_bytes()).collect()
}

/// Holds a batch to its rows taken alone.
fn alike(check: &Check<'_>, cases: &[Case]) {
    let together = check.backend.sample_batch(cases);
    assert_eq!(together.len(), cases.len());
    for (case, seen) in cases.iter().zip(together) {
        match (check.attempt(case), seen) {
            (Ok(alone), Ok(seen)) => {
                let difference = differences(&alone, &seen);
                if !difference.is_empty() {
                    check.fail(case, format_args!("differs in a batch in\n{difference}"));
                }
            }
            (Err(alone), Err(seen)) if alone == seen => {}
            (alone, seen) => check.fail(case, format_args!("answers {alone:?} alone, {seen:?} in a batch,")),
        }
    }
}

fn neighbours_of_a_bad_row_are_untouched(check: &Check<'_>) {
    let good = |seed: u64| {
        let params = SamplingParams { top_p: 0.9, temperature: 0.8, ..Default::default() };
        Case::of(&rows::model_like(600, seed), params).at(seed, 9)
    };
    let bad = |z: f32| Case { mask: Some(vec![]), ..Case::of(&vec![z; 600], SamplingParams::default()) };
    let refused = Case::of(&[0.0; 600], SamplingParams { temperature: -1.0, ..Default::default() });
    let batch = [
        good(1),
        bad(f32::NAN),
        good(2),
        Case::of(&[f32::NAN; 1030], SamplingParams { typical_p: 0.5, ..Default::default() }),
        good(3),
        refused,
        good(4),
        bad(f32::INFINITY),
        good(5),
    ];
    alike(check, &batch);
}

fn a_row_draws_the_same_in_any_batch(check: &Check<'_>) {
    let mut cases: Vec<Case> = (0..60).map(|seed| generate::case(&bytes(seed))).collect();
    alike(check, &cases);
    cases.reverse();
    alike(check, &cases);
    alike(check, &[]);
}

fn a_row_draws_the_same_wherever_it_starts(check: &Check<'_>) {
    for dtype in Dtype::ALL {
        for (seed, vocab) in [(1, 1usize), (2, 17), (3, 256), (4, 257), (5, 1030)] {
            let logits = Logits::new(dtype, &rows::model_like(vocab, seed));
            for variant in 0..4 {
                let plain = SamplingParams { temperature: 0.0, ..Default::default() };
                let params = if variant == 0 || vocab <= 40 { plain } else { busy(seed * 8 + variant) };
                let case = Case::new(logits.clone(), params).at(seed, 2);
                let aligned = check.sees(&case);
                for start in [1, 2, 3, 5, 7, 8, 15, 16, 31, 33] {
                    let placed = Case { logits: logits.placed(start), ..case.clone() };
                    let difference = differences(&aligned, &check.sees(&placed));
                    if !difference.is_empty() {
                        check.fail(&placed, format_args!("draws otherwise at {start}:\n{difference}"));
                    }
                }
            }
        }
    }
}

fn a_row_draws_the_same_twice(check: &Check<'_>) {
    for seed in 100..140 {
        let case = generate::case(&bytes(seed));
        let first = check.sees(&case);
        // Another row in between, through the same buffers.
        check.sees(&generate::case(&bytes(seed + 1000)));
        let difference = differences(&first, &check.sees(&case));
        if !difference.is_empty() {
            check.fail(&case, format_args!("draws otherwise the second time:\n{difference}"));
        }
    }
}
