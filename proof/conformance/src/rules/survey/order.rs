//! The order of tokens, and how the bits of a row become logits (N5, N7; The order in docs/semantics.md).

use gumball_spec::{SamplingParams, Status};
use half::{bf16, f16};

use crate::case::{Case, Dtype, Logits};
use crate::rows;
use crate::rules::Check;

rules!(order_rules:
    N7 negative_zero_ties_with_zero,
    N7 nan_counts_as_minus_infinity,
    N7 plus_infinity_counts_as_the_largest_finite_logit,
    N7 minus_infinity_is_never_kept,
    N7 ties_go_to_the_lower_id_across_tiles,
    N5 subnormal_logits_are_told_apart,
    N5 subnormal_differences_are_not_flushed,
    N7 greedy_finds_the_first_maximum_wherever_it_stands,
    N7 half_rows_are_converted_exactly,
    N7 every_bf16_bit_pattern_has_its_place,
    N7 every_f16_bit_pattern_has_its_place,
);

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn neutral() -> SamplingParams {
    SamplingParams::default()
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..neutral() }
}

fn negative_zero_ties_with_zero(check: &Check<'_>) {
    check.keeps(&Case::of(&[-0.0, 0.0, -0.0, 0.0], neutral()), &[0, 1, 2, 3]);
    check.draws(&Case::of(&[-1.0, -0.0, 0.0], greedy()), 1);
    check.draws(&Case::of(&[-1.0, 0.0, -0.0], greedy()), 1);
    for dtype in [Dtype::Bf16, Dtype::F16] {
        check.draws(&Case::new(Logits::new(dtype, &[-1.0, -0.0, 0.0]), greedy()), 1);
    }
}

fn nan_counts_as_minus_infinity(check: &Check<'_>) {
    let negative_nan = f32::from_bits(0xFFC1_2345);
    let signalling = f32::from_bits(0x7F80_0001);
    let case = Case::of(&[NAN, 1.0, negative_nan, 2.0, signalling], neutral());
    check.keeps(&case, &[3, 1]);
    assert_eq!(check.sees(&case).status, Status::NAN);
}

fn plus_infinity_counts_as_the_largest_finite_logit(check: &Check<'_>) {
    let case = Case::of(&[1.0, f32::MAX, INF, f32::MAX], neutral());
    check.keeps(&case, &[1, 2, 3, 0]);
    assert_eq!(check.sees(&case).status, Status::INF);
    check.draws(&Case::of(&[1.0, INF, f32::MAX], greedy()), 1);
    // The largest finite logit of the row's own type is not special.
    let half = Case::new(Logits::f16(&[f16::MAX, f16::INFINITY]), neutral());
    check.keeps(&half, &[1, 0]);
}

fn minus_infinity_is_never_kept(check: &Check<'_>) {
    let case = Case::of(&[-INF, -f32::MAX, -INF, 0.0], neutral());
    check.keeps(&case, &[3, 1]);
    assert_eq!(check.sees(&case).status, Status::default());
}

fn ties_go_to_the_lower_id_across_tiles(check: &Check<'_>) {
    for vocab in [255, 256, 257, 600, 1030] {
        let params = SamplingParams { top_k: vocab / 2, ..neutral() };
        check.keeps_first(&Case::of(&vec![0.25; vocab as usize], params), vocab as u32 / 2);
    }
}

fn subnormal_logits_are_told_apart(check: &Check<'_>) {
    let tiny = f32::from_bits(1);
    check.keeps(&Case::of(&[tiny, 0.0, 2.0 * tiny, -tiny, -2.0 * tiny], neutral()), &[2, 0, 1, 3, 4]);
    check.draws(&Case::of(&[0.0, tiny, -0.0], greedy()), 1);
}

fn subnormal_differences_are_not_flushed(check: &Check<'_>) {
    // y = -2^-149 * 1.44 * 2^100 is a normal number below 0, so it misses min-p's threshold of 0.
    let params = SamplingParams { temperature: f32::from_bits((127 - 100) << 23), min_p: 1.0, ..neutral() };
    check.keeps(&Case::of(&[0.0, -f32::from_bits(1), -0.0], params), &[0, 2]);
}

fn greedy_finds_the_first_maximum_wherever_it_stands(check: &Check<'_>) {
    for vocab in [1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1030] {
        for place in [0, vocab / 3, vocab / 2, vocab - 1] {
            let mut row = rows::bell(vocab, 1.0, vocab as u64);
            row[place] = 50.0;
            row[vocab - 1] = 50.0;
            check.draws(&Case::of(&row, greedy()), place as i32);
        }
    }
}

fn half_rows_are_converted_exactly(check: &Check<'_>) {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let rounded = Logits::new(dtype, &rows::bell(700, 3.0, 11));
        let exact: Vec<f32> = (0..700).map(|id| rounded.row().logit(id)).collect();
        let params = SamplingParams {
            top_p: 0.95,
            logprobs: Some(gumball_spec::LogprobsParams { top_n: 20, ..Default::default() }),
            ..neutral()
        };
        let (narrow, wide) = (Case::new(rounded, params.clone()), Case::of(&exact, params));
        let difference = crate::observed::differences(&check.sees(&wide), &check.sees(&narrow));
        if !difference.is_empty() {
            check.fail(&narrow, format_args!("differs from the same row in f32 in\n{difference}"));
        }
    }
}

/// Holds the order of a row of all bit patterns to the order of its values in f64.
fn every_pattern(check: &Check<'_>, logits: Logits, value: impl Fn(u32) -> f64) {
    let mut ids: Vec<u32> = (0..1 << 16).filter(|id| value(*id) > f64::NEG_INFINITY).collect();
    let clean = |id: &u32| value(*id).min(f64::from(f32::MAX));
    ids.sort_by(|a, b| clean(b).partial_cmp(&clean(a)).expect("no NaN").then(a.cmp(b)));
    let case = Case::new(logits, neutral());
    assert_eq!(check.sees(&case).status, Status(Status::NAN.0 | Status::INF.0));
    if check.kept(&case) != ids {
        check.fail(&case, "puts the bit patterns in another order than their values");
    }
}

fn every_bf16_bit_pattern_has_its_place(check: &Check<'_>) {
    let row: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    // By definition the upper half of an f32.
    every_pattern(check, Logits::bf16(&row), |id| f64::from(f32::from_bits(id << 16)));
}

fn every_f16_bit_pattern_has_its_place(check: &Check<'_>) {
    let row: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    every_pattern(check, Logits::f16(&row), |bits| {
        let (sign, exponent, fraction) = (bits >> 15, bits >> 10 & 31, f64::from(bits & 1023));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction > 0.0 => f64::NAN,
            31 => f64::INFINITY,
            e => (1024.0 + fraction) * 2f64.powi(e as i32 - 25),
        };
        if sign == 1 { -magnitude } else { magnitude }
    });
}
