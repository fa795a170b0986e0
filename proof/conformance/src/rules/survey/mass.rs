//! Masses and the sums taken from them (M1 to M5), seen through cuts, logprobs and temperatures.

use gumball_spec::num::exp2;
use gumball_spec::{DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobsParams, SamplingParams};

use crate::case::{Case, UNIT};
use crate::observed::Observed;
use crate::reference::Reference;
use crate::rows;
use crate::rules::Check;

rules!(mass_rules:
    M3 a_million_equal_tokens_have_a_mass_of_2_to_the_63,
    M3 small_weights_in_a_tile_are_counted,
    M3 a_million_tokens_under_2_to_the_minus_32_are_counted,
    M3 weights_beyond_the_unit_vanish_and_stay_kept,
    M4 the_floor_is_per_tile_and_not_per_token,
    M1 masses_are_relative_to_the_first_of_what_is_left,
    M1 a_filter_after_a_dropped_first_token_starts_from_the_new_first,
    M2 a_chain_renormalises_and_joint_does_not,
    M5 a_million_equal_tokens_have_an_entropy_of_20,
    M5 entropy_follows_the_f64_entropy,
    M5 the_entropy_of_a_certain_row_is_zero,
);

fn neutral() -> SamplingParams {
    SamplingParams { temperature: UNIT, ..Default::default() }
}

fn asking(mode: LogprobMode, params: SamplingParams) -> SamplingParams {
    let ask = LogprobsParams { mode: mode.into(), top_n: 1, ids: vec![0] };
    SamplingParams { logprobs: Some(ask), ..params }
}

/// Returns the logprob of the first id asked for.
fn logprob(check: &Check<'_>, case: &Case) -> f32 {
    told(check.sees(case))
}

fn told(seen: Observed) -> f32 {
    seen.logprobs.expect("asked for").ids[0].logprob
}

fn a_million_equal_tokens_have_a_mass_of_2_to_the_63(check: &Check<'_>) {
    let row = vec![3.25; 1 << 20];
    let half = SamplingParams { top_p: 0.5, ..asking(LogprobMode::Tempered, neutral()) };
    let case = Case::of(&row, half);
    let seen = check.sees(&case);
    check.kept_first(&case, &seen, 1 << 19);
    // 2^63 units of 2^-43: 20 bits.
    assert_eq!(told(seen), (-20.0 * std::f64::consts::LN_2) as f32);
}

fn small_weights_in_a_tile_are_counted(check: &Check<'_>) {
    // 255 tokens of q = 2^4 beside one of 2^28; the factor is 1, so Z = (2^28 + 255 * 2^4) 2^15.
    let mut row = vec![-24.0; 256];
    row[0] = 0.0;
    let p = 0.99999f32;
    let q = |tokens: u128| (1u128 << 28) + 16 * (tokens - 1);
    let target = ((p as f64 * 2f64.powi(32)).ceil() as u128 * (q(256) << 15)).div_ceil(1 << 32);
    let count = (1..=256).find(|n| q(*n) << 15 >= target).expect("all of it is enough");
    assert!((80..120).contains(&count));
    let case = Case::of(&row, SamplingParams { top_p: p, ..asking(LogprobMode::Tempered, neutral()) });
    check.keeps_first(&case, count as u32);
    let expected = -(255.0 * 2f64.powi(-24)).ln_1p();
    assert!((f64::from(logprob(check, &case)) - expected).abs() < 6e-8, "{expected}");
}

fn a_million_tokens_under_2_to_the_minus_32_are_counted(check: &Check<'_>) {
    let mut row = vec![-32.0625; 1 << 20];
    row[..256].fill(f32::NEG_INFINITY);
    row[0] = 0.0;
    let weight = 2f64.powf(-32.0625);
    let rest = ((1 << 20) - 256) as f64 * weight;
    let params = SamplingParams { top_p: 0.9998, ..asking(LogprobMode::Tempered, neutral()) };
    let case = Case::of(&row, params);
    assert!((f64::from(logprob(check, &case)) + rest.ln_1p()).abs() < 1.2e-7);
    let expected = 1.0 + (f64::from(0.9998f32) * (1.0 + rest) - 1.0) / weight;
    let kept = check.kept(&case).len() as f64;
    assert!((kept - expected).abs() < 2000.0, "keeps {kept}, not about {expected}");
}

fn weights_beyond_the_unit_vanish_and_stay_kept(check: &Check<'_>) {
    // In tiles of their own: 2^-43 is one unit, 2^-44 none. Off filters remove neither.
    let mut row = vec![f32::NEG_INFINITY; 1024];
    (row[0], row[300], row[600], row[900]) = (0.0, -43.0, -44.0, -1e30);
    check.keeps(&Case::of(&row, neutral()), &[0, 300, 600, 900]);
    let epsilon = SamplingParams { epsilon_cutoff: f32::from_bits(1), ..neutral() };
    check.keeps(&Case::of(&row, epsilon), &[0, 300, 600]);
    // A mass of 0 is nothing to reach.
    let top_p = SamplingParams { top_p: 1.0 - f32::EPSILON / 2.0, ..neutral() };
    check.keeps(&Case::of(&row, top_p), &[0]);
}

fn the_floor_is_per_tile_and_not_per_token(check: &Check<'_>) {
    // Kept are to be: id 0 with 2^43 units; in tile 1 a maximum at -1/2 and two tokens below it whose masses
    // each lose half a unit or more if floored alone. The rest, whole powers of two, makes Z twice the mass
    // of those four, so that top-p 1/2 must stop at them; floors per token fall one unit short and go on.
    let factor = exp2(-0.5);
    let mantissa = u64::from(factor.to_bits() & 0x7F_FFFF | 0x80_0000);
    let (below, q) = (1..32)
        .map(|i| i as f32 / 64.0)
        .map(|d| (d, (exp2(-d) * 268_435_456.0).round_ties_even() as u64))
        .find(|(_, q)| q * mantissa % 512 >= 256)
        .expect("one of them has a fraction");
    let mass = (1u64 << 43) + ((((1 << 28) + 2 * q) * mantissa) >> 9);
    let by_token = (1u64 << 43) + (((1u64 << 28) * mantissa) >> 9) + 2 * ((q * mantissa) >> 9);
    assert_eq!(mass, by_token + 1);

    let mut row = vec![f32::NEG_INFINITY; 1024];
    (row[0], row[256], row[257], row[258]) = (0.0, -0.5, -0.5 - below, -0.5 - below);
    let mut rest = mass;
    let mut place = [512, 768];
    for j in 1..=43u32 {
        let unit = 1u64 << (43 - j);
        while rest >= unit && (j == 1 || rest < 2 * unit) {
            let place = &mut place[usize::from(j > 28)];
            row[*place] = -(j as f32);
            *place += 1;
            rest -= unit;
        }
    }
    assert_eq!(rest, 0);
    check.keeps(&Case::of(&row, SamplingParams { top_p: 0.5, ..neutral() }), &[0, 256, 257, 258]);
}

fn masses_are_relative_to_the_first_of_what_is_left(check: &Check<'_>) {
    // XTC drops the first token; the rest, 2^100 times less likely, has masses 1, 1/2, 1/4, 1/4.
    let row = [0.0, -100.0, -101.0, -102.0, -102.0];
    let threshold = f32::from_bits((127 - 100) << 23) * 0.75;
    let after = |top_p| SamplingParams {
        xtc_probability: 1.0,
        xtc_threshold: threshold,
        top_p,
        order: FilterOrder::List(vec![Filter::Xtc, Filter::TopP]),
        ..asking(LogprobMode::Processed, neutral())
    };
    check.keeps(&Case::of(&row, after(0.5)), &[1]);
    check.keeps(&Case::of(&row, after(0.75)), &[1, 2]);
    check.keeps(&Case::of(&row, after(0.750_001)), &[1, 2, 3]);
    check.keeps(&Case::of(&row, after(1.0)), &[1, 2, 3, 4]);
}

fn a_filter_after_a_dropped_first_token_starts_from_the_new_first(check: &Check<'_>) {
    // Probabilities 0.4 and twelve of 0.05: the entropy is 3.12 bits, so 4.32 bits are nearer to it than
    // 1.32.
    let mut row = vec![-3.0; 13];
    row[0] = 0.0;
    let typical = SamplingParams { typical_p: 0.5, ..asking(LogprobMode::Processed, neutral()) };
    check.keeps(&Case::of(&row, typical.clone()), &(1..13).collect::<Vec<_>>());
    // All twelve are as likely as the likeliest that is left.
    let min_p = SamplingParams { min_p: 0.5, ..typical.clone() };
    check.keeps(&Case::of(&row, min_p), &(1..13).collect::<Vec<_>>());
    let half = Case::of(&row, SamplingParams { top_p: 0.5, ..typical });
    check.keeps(&half, &(1..7).collect::<Vec<_>>());
    let top = check.sees(&half).logprobs.expect("asked for").top[0];
    assert!((f64::from(top.logprob) + 6f64.ln()).abs() < 3e-7, "{top:?}");
}

fn a_chain_renormalises_and_joint_does_not(check: &Check<'_>) {
    let row = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -5.0];
    let chain = SamplingParams { top_k: 2, top_p: 0.6, ..neutral() };
    // Of 2/3 and 1/3 the first is enough; of 1/2 and 1/4 it is not.
    check.keeps(&Case::of(&row, chain.clone()), &[0]);
    check.keeps(&Case::of(&row, SamplingParams { order: FilterOrder::Joint, ..chain.clone() }), &[0, 1]);
    let other = FilterOrder::List(vec![Filter::TopP, Filter::TopK]);
    check.keeps(&Case::of(&row, SamplingParams { order: other, ..chain }), &[0, 1]);
}

fn dynamic(min: f32, max: f32) -> SamplingParams {
    let dynamic_temperature = Some(DynamicTemperature { min, max, exponent: 1.0 });
    SamplingParams { dynamic_temperature, ..Default::default() }
}

fn a_million_equal_tokens_have_an_entropy_of_20(check: &Check<'_>) {
    // 20 bits of log2(2^20): the ratio is 1, so T is max, exactly.
    let case = Case::of(&vec![-7.0; 1 << 20], dynamic(0.5, 2.0));
    assert_eq!(check.sees(&case).temperature, 2.0);
    for n in 1..10 {
        let case = Case::of(&vec![-7.0; 1 << n], dynamic(0.5, 2.0));
        assert_eq!(check.sees(&case).temperature, 2.0, "2^{n} tokens");
    }
}

fn entropy_follows_the_f64_entropy(check: &Check<'_>) {
    for seed in 0..30 {
        let row = match seed % 3 {
            0 => rows::model_like(700, seed),
            1 => rows::bell(1030, 0.5 + seed as f32 / 4.0, seed),
            _ => rows::grid(300, 2.0, 8, seed),
        };
        let params = dynamic(0.0, 1.0);
        let expected = Reference::new(&row).temperature(&params);
        let seen = f64::from(check.sees(&Case::of(&row, params)).temperature);
        assert!((seen - expected).abs() < 2e-6, "{seed}: {seen} for {expected}");
    }
}

fn the_entropy_of_a_certain_row_is_zero(check: &Check<'_>) {
    assert_eq!(check.sees(&Case::of(&[3.0], dynamic(0.5, 2.0))).temperature, 0.5);
    let certain = [1e4, 0.0, -1e4, f32::NEG_INFINITY];
    assert_eq!(check.sees(&Case::of(&certain, dynamic(0.5, 2.0))).temperature, 0.5);
}
