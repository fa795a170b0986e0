//! Temperature: greedy, extreme and dynamic (N6, F7, F10).

use gumball_spec::params::MIN_TEMPERATURE;
use gumball_spec::{DynamicTemperature, LogprobMode, LogprobsParams, SamplingParams};

use crate::case::Case;
use crate::rows;
use crate::rules::Check;

rules!(temperature_rules:
    F10 greedy_takes_the_first_token_of_the_order,
    F10 greedy_ignores_filters_and_keeps_one_token,
    F10 greedy_follows_edits,
    N6 temperatures_below_2_to_the_minus_100_are_greedy,
    N6 a_difference_that_overflows_weighs_nothing_and_stays_kept,
    N6 large_logits_at_a_low_temperature_stay_exact,
    N6 the_highest_temperature_makes_every_token_alike,
    F7 dynamic_temperature_runs_from_min_to_max,
    F7 dynamic_temperature_raises_to_its_exponent,
    F7 dynamic_temperature_leaves_greedy_rows_greedy,
    F7 dynamic_temperature_can_make_a_row_greedy,
    F7 dynamic_temperature_replaces_the_temperature,
);

fn at(temperature: f32) -> SamplingParams {
    SamplingParams { temperature, ..Default::default() }
}

fn greedy_takes_the_first_token_of_the_order(check: &Check<'_>) {
    for seed in 0..20 {
        let row = rows::grid(900, 0.5, 40, seed);
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = row.iter().position(|z| *z == best).expect("it is there");
        for position in 0..3 {
            check.draws(&Case::of(&row, at(0.0)).at(seed, position), first as i32);
        }
    }
}

fn greedy_ignores_filters_and_keeps_one_token(check: &Check<'_>) {
    let params = SamplingParams {
        typical_p: 0.1,
        xtc_probability: 1.0,
        xtc_threshold: 1e-9,
        min_p: 0.001,
        top_k: 3,
        ..at(0.0)
    };
    let case = Case::of(&[0.0, 1.0, 1.0, 0.5], params);
    check.keeps(&case, &[1]);
    check.draws(&case, 1);
    assert_eq!(check.sees(&case).temperature.to_bits(), 0);
}

fn greedy_follows_edits(check: &Check<'_>) {
    let params = SamplingParams { logit_bias: vec![(3, 9.0)], banned_ids: vec![1], ..at(0.0) };
    check.draws(&Case::of(&[0.0, 20.0, 1.0, 0.5], params), 3);
    let params = SamplingParams { repetition_penalty: 4.0, ..at(0.0) };
    check.draws(&Case::of(&[0.0, 20.0, 6.0, 0.5], params).after(&[1], &[]), 2);
}

fn temperatures_below_2_to_the_minus_100_are_greedy(check: &Check<'_>) {
    let row = [0.0, 1.0, 1.0];
    let below = f32::from_bits(MIN_TEMPERATURE.to_bits() - 1);
    assert_eq!(MIN_TEMPERATURE, 2f32.powi(-100));
    for t in [below, 1e-38, f32::from_bits(1), 0.0, -0.0] {
        let case = Case::of(&row, at(t));
        check.keeps(&case, &[1]);
        assert_eq!(check.sees(&case).temperature.to_bits(), 0, "{t:e}");
    }
    // At the limit itself the race runs: of two equal tokens both can win, and a lesser one never does.
    let mut won = [0; 3];
    for position in 0..64 {
        let case = Case::of(&row, at(MIN_TEMPERATURE)).at(3, position);
        check.keeps(&case, &[1, 2, 0]);
        let seen = check.sees(&case);
        assert_eq!(seen.temperature, MIN_TEMPERATURE);
        won[seen.token as usize] += 1;
    }
    assert!(won[0] == 0 && won[1] > 0 && won[2] > 0, "{won:?}");
}

fn a_difference_that_overflows_weighs_nothing_and_stays_kept(check: &Check<'_>) {
    for t in [0.01, 1.0, 2f32.powi(100)] {
        let case = Case::of(&[-f32::MAX, f32::MAX, -1e38, -f32::MAX], at(t));
        check.keeps(&case, &[1, 2, 0, 3]);
    }
    for position in 0..32 {
        let case = Case::of(&[-f32::MAX, f32::MAX, -1e38], at(0.5)).at(1, position);
        check.draws(&case, 1);
    }
}

fn large_logits_at_a_low_temperature_stay_exact(check: &Check<'_>) {
    // 1e4 and 0.01 less: one apart at T = 0.01, as far as f32 tells 1e4 from 9999.99 (0.0097656).
    let row = [-1e4, 1e4, 9999.99, -1e4];
    let ask = LogprobsParams { mode: LogprobMode::Tempered.into(), top_n: 2, ids: vec![0] };
    let case = Case::of(&row, SamplingParams { logprobs: Some(ask), ..at(0.01) });
    let y = f64::from(9999.99f32 - 1e4) / f64::from(0.01f32);
    let seen = check.sees(&case).logprobs.expect("asked for");
    assert!((f64::from(seen.top[0].logprob) + y.exp().ln_1p()).abs() < 3e-7, "{seen:?}");
    assert!((f64::from(seen.top[1].logprob) - (y - y.exp().ln_1p())).abs() < 3e-7, "{seen:?}");
    assert_eq!(seen.ids[0].rank, 3);
    assert!((f64::from(seen.ids[0].logprob) / -2e4 * f64::from(0.01f32) - 1.0).abs() < 1e-6);
    let min_p = SamplingParams { min_p: 0.3, ..at(0.01) };
    check.keeps(&Case::of(&row, min_p), &[1, 2]);
}

fn the_highest_temperature_makes_every_token_alike(check: &Check<'_>) {
    let row = rows::bell(600, 5.0, 4);
    let ask = LogprobsParams { mode: LogprobMode::Tempered.into(), top_n: 0, ids: vec![0, 599] };
    let params = SamplingParams { logprobs: Some(ask), ..at(2f32.powi(100)) };
    let case = Case::of(&row, params);
    for entry in check.sees(&case).logprobs.expect("asked for").ids {
        assert!((f64::from(entry.logprob) + 600f64.ln()).abs() < 5e-7, "{entry:?}");
    }
    let nucleus = SamplingParams { top_p: 0.5, ..at(2f32.powi(100)) };
    assert_eq!(check.kept(&Case::of(&row, nucleus)).len(), 300);
}

fn dynamic(min: f32, max: f32, exponent: f32) -> SamplingParams {
    let dynamic_temperature = Some(DynamicTemperature { min, max, exponent });
    SamplingParams { dynamic_temperature, ..at(0.7) }
}

fn temperature(check: &Check<'_>, row: &[f32], params: SamplingParams) -> f32 {
    check.sees(&Case::of(row, params)).temperature
}

/// Logits of the probabilities 1/2, 1/4, 1/8, 1/8 at T = 1: 1.75 bits of 2.
fn dyadic() -> [f32; 4] {
    let ln2 = std::f32::consts::LN_2;
    [0.0, -ln2, -2.0 * ln2, -2.0 * ln2]
}

fn dynamic_temperature_runs_from_min_to_max(check: &Check<'_>) {
    assert_eq!(temperature(check, &[1.0; 4], dynamic(0.5, 2.5, 1.0)), 2.5);
    assert_eq!(temperature(check, &[1.0], dynamic(0.5, 2.5, 1.0)), 0.5);
    let t = temperature(check, &dyadic(), dynamic(0.5, 2.5, 1.0));
    assert!((f64::from(t) - (0.5 + 2.0 * 0.875)).abs() < 1e-6, "{t}");
    // Tokens at -inf do not count as possible ones.
    let [a, b, c, d] = dyadic();
    let inf = f32::NEG_INFINITY;
    let t = temperature(check, &[inf, a, b, inf, c, f32::NAN, d], dynamic(0.5, 2.5, 1.0));
    assert!((f64::from(t) - 2.25).abs() < 1e-6, "{t}");
}

fn dynamic_temperature_raises_to_its_exponent(check: &Check<'_>) {
    for exponent in [0.25f32, 0.5, 2.0, 3.0, 10.0] {
        let t = temperature(check, &dyadic(), dynamic(0.5, 2.5, exponent));
        let expected = 0.5 + 2.0 * 0.875f64.powf(exponent.into());
        assert!((f64::from(t) - expected).abs() < 3e-6, "{t} for {expected}");
    }
    assert_eq!(temperature(check, &dyadic(), dynamic(0.5, 2.5, 65_536.0)), 0.5);
    assert_eq!(temperature(check, &[1.0; 4], dynamic(0.5, 2.5, 65_536.0)), 2.5);
}

fn dynamic_temperature_leaves_greedy_rows_greedy(check: &Check<'_>) {
    let params = SamplingParams { temperature: 0.0, ..dynamic(0.5, 2.5, 1.0) };
    assert_eq!(temperature(check, &dyadic(), params.clone()).to_bits(), 0);
    check.keeps(&Case::of(&dyadic(), params), &[0]);
}

fn dynamic_temperature_can_make_a_row_greedy(check: &Check<'_>) {
    let case = Case::of(&[1e4, 0.0, 0.0], dynamic(0.0, 2.5, 1.0));
    assert_eq!(check.sees(&case).temperature.to_bits(), 0);
    check.keeps(&case, &[0]);
}

fn dynamic_temperature_replaces_the_temperature(check: &Check<'_>) {
    let row = rows::bell(300, 1.0, 8);
    let fixed = dynamic(1.25, 1.25, 1.0);
    for t in [0.01, 0.7, 50.0] {
        let replaced = Case::of(&row, SamplingParams { temperature: t, min_p: 0.1, ..fixed.clone() });
        let plain = Case::of(&row, SamplingParams { min_p: 0.1, ..at(1.25) });
        let difference = crate::observed::differences(&check.sees(&plain), &check.sees(&replaced));
        assert!(difference.is_empty(), "{difference}");
    }
}
