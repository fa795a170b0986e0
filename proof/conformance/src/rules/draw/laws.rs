//! The law of the draws: chi-square against f64 probabilities, and nothing ever outside the cut.
//!
//! Each body fails a right backend with probability 10^-6 over the choice of seeds, which are fixed.

use gumball_spec::{DynamicTemperature, Filter, FilterOrder, SamplingParams};

use crate::case::{Case, UNIT};
use crate::draws::{TWELVE, cutting, one_among_unlikely};
use crate::law::Law;
use crate::rows;
use crate::rules::Check;
use crate::statistics::FALSE_ALARM;

rules!(law_rules:
    D1 plain_draws_follow_their_probabilities,
    D1 draws_over_several_tiles_follow_their_probabilities,
    D1 draws_over_draw_indices_and_seeds_follow_their_probabilities,
    N3 unlikely_tokens_of_one_tile_follow_their_probabilities,
    F1 draws_after_each_filter_follow_their_probabilities,
    F8 draws_with_temperature_last_follow_their_probabilities,
    M2 draws_after_a_mixed_chain_follow_their_probabilities,
    F9 draws_after_joint_filters_follow_their_probabilities,
    F7 draws_at_a_dynamic_temperature_follow_their_probabilities,
);

/// Draws of a small row.
const DRAWS: u32 = 50_000;

/// Holds draws at many positions to the probabilities that f64 gives, XTC's coin at each position included.
fn follows(
    check: &Check<'_>,
    row: &[f32],
    params: SamplingParams,
    draws: u32,
    vary: impl Fn(&mut Case, u32),
) {
    let law = Law::new(row, &params);
    let mut counts = law.counts();
    let mut case = Case::of(row, params);
    let tokens = check.backend.draws(&case, check.backend.patience(draws), &vary).expect("valid");
    for (i, token) in (0..).zip(tokens) {
        vary(&mut case, i);
        counts.add(&case, token);
    }
    if let Some(found) = law.test(&counts).find(|found| found.p_value < FALSE_ALARM) {
        check.fail(&case, format_args!("draws by another law: {found:?}, {counts:?},"));
    }
}

fn by_position(case: &mut Case, i: u32) {
    (case.seed, case.position) = (0xC0FF_EE00_1234, i);
}

fn plain() -> SamplingParams {
    SamplingParams { temperature: 0.9, ..Default::default() }
}

fn plain_draws_follow_their_probabilities(check: &Check<'_>) {
    follows(check, &TWELVE, plain(), 2 * DRAWS, by_position);
    follows(check, &TWELVE, SamplingParams { temperature: 3.0, ..plain() }, DRAWS, by_position);
}

fn draws_over_several_tiles_follow_their_probabilities(check: &Check<'_>) {
    follows(check, &rows::bell(600, 1.5, 1), plain(), 40_000, by_position);
}

fn draws_over_draw_indices_and_seeds_follow_their_probabilities(check: &Check<'_>) {
    follows(check, &TWELVE, plain(), DRAWS, |case, i| (case.seed, case.draw) = (9, i));
    follows(check, &TWELVE, plain(), DRAWS, |case, i| case.seed = u64::from(i));
    follows(check, &TWELVE, plain(), DRAWS, |case, i| case.seed = u64::from(i) << 32);
}

fn unlikely_tokens_of_one_tile_follow_their_probabilities(check: &Check<'_>) {
    // 250 tokens of 2^-9 each beside one of 1: half a per cent alone, a third together.
    follows(
        check,
        &one_among_unlikely(),
        SamplingParams { temperature: UNIT, ..plain() },
        DRAWS,
        by_position,
    );
}

fn draws_after_each_filter_follow_their_probabilities(check: &Check<'_>) {
    for filter in Filter::ALL {
        follows(check, &TWELVE, cutting(filter), DRAWS, by_position);
    }
}

fn draws_with_temperature_last_follow_their_probabilities(check: &Check<'_>) {
    let params = SamplingParams { temperature: 2.5, min_p: 0.2, temperature_last: true, ..plain() };
    follows(check, &TWELVE, params, DRAWS, by_position);
}

/// Parameters with most filters on.
fn mixed() -> SamplingParams {
    SamplingParams {
        top_n_sigma: 2.2,
        top_k: 8,
        typical_p: 0.93,
        top_p: 0.95,
        min_p: 0.06,
        epsilon_cutoff: 0.01,
        xtc_probability: 0.5,
        xtc_threshold: 0.2,
        ..plain()
    }
}

fn draws_after_a_mixed_chain_follow_their_probabilities(check: &Check<'_>) {
    follows(check, &TWELVE, mixed(), DRAWS, by_position);
    let mut list = Filter::ALL.to_vec();
    list.reverse();
    let reversed = SamplingParams { order: FilterOrder::List(list), temperature_last: true, ..mixed() };
    follows(check, &TWELVE, reversed, DRAWS, by_position);
}

fn draws_after_joint_filters_follow_their_probabilities(check: &Check<'_>) {
    follows(check, &TWELVE, SamplingParams { order: FilterOrder::Joint, ..mixed() }, DRAWS, by_position);
}

fn draws_at_a_dynamic_temperature_follow_their_probabilities(check: &Check<'_>) {
    let dynamic_temperature = Some(DynamicTemperature { min: 0.5, max: 2.0, exponent: 1.5 });
    follows(check, &TWELVE, SamplingParams { dynamic_temperature, top_k: 9, ..plain() }, DRAWS, by_position);
}
