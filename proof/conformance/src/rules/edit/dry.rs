//! DRY (E3): the longer the repeat a token would continue, the larger the penalty.

use gumball_spec::{Dry, SamplingParams};

use crate::case::Case;
use crate::rules::Check;

rules!(dry_rules:
    E3 a_repeat_of_the_allowed_length_costs_the_multiplier,
    E3 each_further_token_multiplies_by_the_base,
    E3 the_longest_repeat_counts,
    E3 a_repeat_may_overlap_itself,
    E3 a_repeat_lies_whole_in_the_window,
    E3 no_repeat_reaches_across_a_breaker,
    E3 a_breaker_itself_can_be_penalised,
    E3 the_power_grows_by_rounded_products,
    E3 the_power_stops_growing_after_64_products,
    E3 an_infinite_penalty_leaves_the_smallest_finite_logit,
    E3 a_multiplier_of_zero_is_off,
);

/// Holds what DRY takes from token 1, whose logit is 64, after a history.
fn takes(check: &Check<'_>, dry: Dry, history: &[u32], penalty: f32) {
    let expected = 64.0 - penalty;
    let params = SamplingParams { dry, ..Default::default() };
    for split in [0, history.len() / 2, history.len()] {
        let case = Case::of(&[expected, 64.0, expected], params.clone());
        check.keeps(&case.after(&history[..split], &history[split..]), &[0, 1, 2]);
    }
}

fn dry(multiplier: f32, base: f32, allowed_length: u32) -> Dry {
    Dry { multiplier, base, allowed_length, breakers: vec![], window: 0 }
}

// Ids from 100 on are outside the vocabulary: they are compared and edit nothing (E5).

fn a_repeat_of_the_allowed_length_costs_the_multiplier(check: &Check<'_>) {
    takes(check, dry(0.5, 4.0, 2), &[100, 101, 1, 100, 101], 0.5);
    takes(check, dry(0.5, 4.0, 3), &[100, 101, 1, 100, 101], 0.0);
    takes(check, dry(0.5, 4.0, 1), &[100, 1, 101, 100], 0.5);
    takes(check, dry(0.5, 4.0, 1), &[100, 1, 101, 102], 0.0);
    takes(check, dry(0.5, 4.0, 1), &[], 0.0);
    takes(check, dry(0.5, 4.0, 1), &[1], 0.0);
}

fn each_further_token_multiplies_by_the_base(check: &Check<'_>) {
    takes(check, dry(0.5, 4.0, 2), &[100, 101, 102, 1, 100, 101, 102], 2.0);
    takes(check, dry(0.5, 4.0, 2), &[100, 101, 102, 103, 1, 100, 101, 102, 103], 8.0);
    takes(check, dry(0.5, 1.0, 2), &[100, 101, 102, 103, 1, 100, 101, 102, 103], 0.5);
}

fn the_longest_repeat_counts(check: &Check<'_>) {
    // Token 1 continues a repeat of one, of three and again of one.
    let history = [102, 1, 98, 100, 101, 102, 1, 99, 102, 1, 97, 100, 101, 102];
    takes(check, dry(1.0, 2.0, 1), &history, 4.0);
    // A token pays only for what it would itself continue: 100 follows "1", not token 1.
    takes(check, dry(1.0, 2.0, 1), &[1, 100, 1], 0.0);
}

fn a_repeat_may_overlap_itself(check: &Check<'_>) {
    // 1 1 1: the last two equal the two before the last place, one id shared.
    takes(check, dry(1.0, 2.0, 2), &[1, 1, 1], 1.0);
    takes(check, dry(1.0, 2.0, 2), &[1, 1, 1, 1], 2.0);
    takes(check, dry(1.0, 2.0, 2), &[100, 1, 100, 1, 100], 2.0);
}

fn a_repeat_lies_whole_in_the_window(check: &Check<'_>) {
    let windowed = |window| Dry { window, ..dry(0.5, 4.0, 1) };
    for (window, penalty) in [(0, 2.0), (1, 0.0), (3, 0.0), (4, 0.5), (5, 2.0), (6, 2.0), (u32::MAX, 2.0)] {
        takes(check, windowed(window), &[100, 101, 1, 100, 101], penalty);
        takes(check, windowed(window), &[1, 100, 101, 102, 100, 101, 1, 100, 101], penalty);
    }
    // One that overlaps itself has one place less than the window.
    for (window, penalty) in [(1, 0.0), (2, 0.5), (3, 2.0), (4, 8.0), (5, 8.0)] {
        takes(check, windowed(window), &[1, 1, 1, 1], penalty);
    }
    // Beyond the places where the penalty stops growing, and the threads that look for them.
    let multiplier = f32::from_bits((127 - 64) << 23);
    for (window, penalty) in [(65, 0.25), (66, 0.5), (67, 1.0), (68, 1.0), (511, 1.0), (700, 1.0), (701, 1.0)]
    {
        takes(check, Dry { window, ..dry(multiplier, 2.0, 2) }, &[1; 700], penalty);
    }
    takes(check, Dry { breakers: vec![100], ..windowed(5) }, &[100, 101, 1, 100, 101], 0.5);
}

fn no_repeat_reaches_across_a_breaker(check: &Check<'_>) {
    let broken = |breakers: &[u32]| Dry { breakers: breakers.to_vec(), ..dry(1.0, 2.0, 1) };
    let history = [100, 101, 102, 1, 100, 101, 102];
    takes(check, broken(&[]), &history, 4.0);
    takes(check, broken(&[100]), &history, 2.0);
    takes(check, broken(&[101]), &history, 1.0);
    takes(check, broken(&[102]), &history, 0.0);
    takes(check, broken(&[77]), &history, 4.0);
}

fn a_breaker_itself_can_be_penalised(check: &Check<'_>) {
    takes(check, Dry { breakers: vec![1], ..dry(1.0, 2.0, 2) }, &[100, 101, 1, 100, 101], 1.0);
    // But not across an earlier one of its kind.
    takes(check, Dry { breakers: vec![1], ..dry(1.0, 2.0, 1) }, &[100, 1, 101, 1, 101], 1.0);
}

fn the_power_grows_by_rounded_products(check: &Check<'_>) {
    let history: Vec<u32> = (100..110).chain([1]).chain(100..110).collect();
    let mut power = 1.0f32;
    for _ in 0..8 {
        power = (f64::from(power) * f64::from(1.1f32)) as f32;
    }
    let penalty = (f64::from(0.7f32) * f64::from(power)) as f32;
    takes(check, dry(0.7, 1.1, 2), &history, penalty);
}

fn the_power_stops_growing_after_64_products(check: &Check<'_>) {
    let multiplier = f32::from_bits((127 - 64) << 23);
    // n ids of 1 are a repeat of n - 1.
    for (len, penalty) in [(65, 0.25), (66, 0.5), (67, 1.0), (68, 1.0), (90, 1.0)] {
        takes(check, dry(multiplier, 2.0, 2), &vec![1; len], penalty);
    }
}

fn an_infinite_penalty_leaves_the_smallest_finite_logit(check: &Check<'_>) {
    let params = SamplingParams { dry: dry(1e-30, 65_536.0, 1), ..Default::default() };
    let case = Case::of(&[-f32::MAX, 1.0, -f32::MAX], params).after(&[], &[1; 40]);
    check.keeps(&case, &[0, 1, 2]);
}

fn a_multiplier_of_zero_is_off(check: &Check<'_>) {
    takes(check, dry(0.0, 65_536.0, 1), &[1; 40], 0.0);
}
