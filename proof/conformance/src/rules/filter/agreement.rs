//! Random rows against the f64 reference, filter by filter and in filter chains (F1 to F9, M1 to M5).
//!
//! The reference abstains where a decision is too close for it; how often is held as well, so that these
//! bodies cannot pass by abstaining.

use gumball_spec::{DynamicTemperature, Filter, FilterOrder, Mirostat, SamplingParams};

use crate::case::Case;
use crate::generate::with_filter;
use crate::reference::{Reference, xtc_acts};
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(agreement_rules:
    F2 each_filter_agrees_with_f64,
    F1 top_p_of_hundreds_of_tokens_agrees_with_f64,
    F6 mirostat_agrees_with_f64,
    F7 dynamic_temperature_agrees_with_f64,
    F8 temperature_last_agrees_with_f64,
    M2 chains_agree_with_f64,
    F9 joint_filters_agree_with_f64,
);

/// Holds many random rows under random parameters to the reference; at most a share of `seldom` may be
/// abstained from.
fn agrees(check: &Check<'_>, seldom: f64, params: impl Fn(&mut Words) -> SamplingParams) {
    const ROWS: u64 = 80;
    let mut abstained = 0;
    for seed in 0..ROWS {
        let mut words = Words(seed);
        let vocab = [2, 5, 40, 255, 257, 700, 1030][words.below(7)];
        let row = match seed % 4 {
            0 | 1 => rows::model_like(vocab, seed),
            2 => rows::bell(vocab, 0.2 + 4.0 * words.fraction(), seed),
            _ => rows::grid(vocab, 0.5, 12, seed),
        };
        let params = params(&mut words);
        let mu = 1.0 + 8.0 * words.fraction();
        let case = Case { mu, ..Case::of(&row, params) }.at(seed, seed as u32);
        let reference = Reference::new(&row);
        let t = reference.temperature(&case.params);
        let seen = check.sees(&case);
        assert!((f64::from(seen.temperature) / t - 1.0).abs() < 1e-5, "{} for {t}", seen.temperature);
        // From here on in the numbers the filters saw.
        let t = f64::from(seen.temperature);
        let acts = xtc_acts(case.params.xtc_probability, case.seed, case.position, case.draw);
        match reference.kept(&case.params, t, mu, acts) {
            Some(kept) => {
                let ids: Vec<u32> = reference.order[kept].iter().map(|id| *id as u32).collect();
                check.keeps(&case, &ids);
            }
            None => abstained += 1,
        }
    }
    assert!(abstained as f64 <= seldom * ROWS as f64, "{abstained} of {ROWS} are too close");
}

fn at(words: &mut Words) -> SamplingParams {
    SamplingParams { temperature: 0.3 + 1.5 * words.fraction(), ..Default::default() }
}

/// Returns a small probability, spread over seven octaves.
fn small(words: &mut Words) -> f32 {
    (0.05 + 0.9 * words.fraction()) / (1 << words.below(7)) as f32
}

fn each_filter_agrees_with_f64(check: &Check<'_>) {
    for filter in Filter::ALL {
        agrees(check, 0.15, |words| with_filter(at(words), filter, words));
    }
}

fn top_p_of_hundreds_of_tokens_agrees_with_f64(check: &Check<'_>) {
    let mut compared = 0;
    for (seed, t) in [(0, 0.45), (1, 0.55), (2, 0.65), (3, 0.75)] {
        let row = rows::bell(140_000, 2.0, seed);
        let reference = Reference::new(&row);
        for p in [0.3, 0.5, 0.7, 0.85] {
            let params = SamplingParams { temperature: t, top_p: p, ..Default::default() };
            let case = Case::of(&row, params).at(seed, seed as u32);
            if let Some(kept) = reference.kept(&case.params, f64::from(t), 0.0, false) {
                let ids: Vec<u32> = reference.order[kept].iter().map(|id| *id as u32).collect();
                check.keeps(&case, &ids);
                compared += 1;
            }
        }
    }
    assert!(compared >= 12, "{compared} of 16 are not too close");
}

fn mirostat_agrees_with_f64(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
    agrees(check, 0.1, |words| SamplingParams { mirostat, ..at(words) });
}

fn dynamic_temperature_agrees_with_f64(check: &Check<'_>) {
    agrees(check, 0.1, |words| {
        let (min, exponent) = (0.2 + words.fraction(), 0.25 + 2.0 * words.fraction());
        let dynamic = DynamicTemperature { min, max: min + words.fraction(), exponent };
        SamplingParams { dynamic_temperature: Some(dynamic), min_p: small(words), ..at(words) }
    });
}

fn temperature_last_agrees_with_f64(check: &Check<'_>) {
    agrees(check, 0.15, |words| SamplingParams {
        temperature_last: true,
        top_p: 0.5 + 0.5 * words.fraction(),
        min_p: small(words) / 8.0,
        ..at(words)
    });
}

/// Returns parameters with about half of the filters on.
fn several(words: &mut Words) -> SamplingParams {
    let mut params = SamplingParams { temperature_last: words.below(3) == 0, ..at(words) };
    for filter in Filter::ALL {
        // A flag cuts as much as it does, so more seldom.
        let seldom = if filter.parameter().range.is_some() { 2 } else { 4 };
        if words.below(seldom) == 0 {
            params = with_filter(params, filter, words);
        }
    }
    params
}

fn chains_agree_with_f64(check: &Check<'_>) {
    agrees(check, 0.4, several);
    agrees(check, 0.4, |words| {
        let mut list = Filter::ALL.to_vec();
        (1..list.len()).for_each(|i| list.swap(i, words.below(i + 1)));
        SamplingParams { order: FilterOrder::List(list), ..several(words) }
    });
}

fn joint_filters_agree_with_f64(check: &Check<'_>) {
    agrees(check, 0.4, |words| SamplingParams { order: FilterOrder::Joint, ..several(words) });
}
