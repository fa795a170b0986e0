//! min-p on rows of probabilities: `p_i >= RN(min_p * p_first)`, compared as numbers (P1a).
//!
//! Products are worked out by hand; numbers are given by their bits where a unit in the last place decides.

use gumball_cpu::Output::Masked;
use gumball_spec::num::log2;
use gumball_spec::{Filter, FilterOrder, SamplingParams, Status};

use crate::case::{Case, Dtype, Logits};
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(probability_min_p_rules:
    P1a a_probability_at_the_rounded_product_stays_and_the_next_below_goes,
    P1a a_probability_below_the_product_goes_though_its_logarithm_would_pass,
    P1a on_logits_min_p_still_compares_y,
    P1a products_of_subnormal_probabilities_are_rounded_to_even,
    P1a where_the_product_is_0_every_token_stays_and_no_zero_does,
    P1a min_p_of_1_keeps_all_ties_of_the_first,
    P1a the_product_is_of_numbers_as_they_count,
    P1a in_a_chain_the_product_is_of_what_the_former_filter_left,
    P1a in_joint_the_product_is_of_the_rows_first_token,
    P1a what_stays_passes_the_check_of_flashinfers_tests,
    P1a a_set_too_long_for_a_list_is_cut_at_the_same_number,
);

fn plain() -> SamplingParams {
    SamplingParams::default()
}

fn min_p(min_p: f32) -> SamplingParams {
    SamplingParams { min_p, ..plain() }
}

fn chain(filters: &[Filter], params: SamplingParams) -> SamplingParams {
    SamplingParams { order: FilterOrder::List(filters.to_vec()), ..params }
}

/// Returns the number that lies `units` units in the last place above `p`.
fn moved(p: f32, units: i32) -> f32 {
    f32::from_bits(p.to_bits().wrapping_add_signed(units))
}

/// Holds a cut to lie between a product and the number below it, whatever finds it: min-p alone, on a list
/// after top-k or top-p, after a filter that keeps all, and joint.
fn cuts_at(check: &Check<'_>, share: f32, first: f32, product: f32) {
    // In tiles of their own.
    let mut row = vec![0.0; 700];
    (row[600], row[5], row[300]) = (first, product, moved(product, -1));
    let all = SamplingParams { top_k: 600, top_p: 0.999_999_9, ..min_p(share) };
    for params in [
        min_p(share),
        SamplingParams { top_k: 10, ..min_p(share) },
        SamplingParams { top_k: 600, ..min_p(share) },
        all.clone(),
        SamplingParams { order: FilterOrder::Joint, ..all },
        SamplingParams { typical_p: 0.999_999_9, ..min_p(share) },
        chain(&[Filter::MinP, Filter::TopK], SamplingParams { top_k: 3, ..min_p(share) }),
    ] {
        check.keeps(&Case::of_probabilities(&row, params), &[600, 5]);
    }
}

fn a_probability_at_the_rounded_product_stays_and_the_next_below_goes(check: &Check<'_>) {
    // 13421773 * 2^-27 times 10066330 * 2^-25 lies 1.5e-8 above the float it is rounded to,
    cuts_at(check, 0.1, 0.3, f32::from_bits(0x3CF5_C290));
    // 10737418 * 2^-29 times 11744051 * 2^-24 below it.
    cuts_at(check, 0.02, 0.7, f32::from_bits(0x3C65_6041));
    // 0.6 is 10066330 * 2^-24, so 1.25 of it is 12582912.5 * 2^-24: halfway, and the even one is 0.75.
    cuts_at(check, 0.6, 1.25, 0.75);
}

fn a_probability_below_the_product_goes_though_its_logarithm_would_pass(check: &Check<'_>) {
    let (share, first) = (0.02f32, 0.000_42f32);
    let (product, below) = (f32::from_bits(0x370C_EDB9), f32::from_bits(0x370C_EDB3));
    assert_eq!(share * first, product);
    assert!(log2(below) - log2(first) >= log2(share), "6.5e-7 below it, by which the logarithms are rounded");
    cuts_at(check, share, first, product);
    check.keeps(&Case::of_probabilities(&[below, first, product, 0.0], min_p(share)), &[1, 2]);
}

fn on_logits_min_p_still_compares_y(check: &Check<'_>) {
    // Here y is the difference of the logits. Differences a quarter and half of a unit below -2 are rounded
    // to -2, and L(0.25) is -2.
    let row = [3.0, 1.0, moved(1.0, -1), moved(1.0, -2), moved(1.0, -3)];
    check.keeps(&Case::unit(&row, min_p(0.25)), &[0, 1, 2, 3]);
    // These numbers as probabilities: 11184811 * 2^-25 times 3 is 2^-25 above 1 and is rounded to 1.
    check.keeps(&Case::of_probabilities(&row, min_p(1.0 / 3.0)), &[0, 1]);
}

fn products_of_subnormal_probabilities_are_rounded_to_even(check: &Check<'_>) {
    let row: Vec<f32> = [1, 8, 2, 4, 1, 3, 0].iter().map(|units| f32::from_bits(*units)).collect();
    let kept: [(f32, &[u32]); 6] = [
        // 2, 2.4, 1.5 and 2.5 units are 2; 3.5 are 4; one is one.
        (0.25, &[1, 3, 5, 2]),
        (0.3, &[1, 3, 5, 2]),
        (0.1875, &[1, 3, 5, 2]),
        (0.3125, &[1, 3, 5, 2]),
        (0.4375, &[1, 3]),
        (0.125, &[1, 3, 5, 2, 0, 4]),
    ];
    for (share, ids) in kept {
        check.keeps(&Case::of_probabilities(&row, min_p(share)), ids);
    }
    // 2^-126, the least number that is not subnormal, times 0.5.
    let row = [f32::from_bits(0x0040_0000), f32::MIN_POSITIVE, f32::from_bits(0x003F_FFFF)];
    check.keeps(&Case::of_probabilities(&row, min_p(0.5)), &[1, 0]);
}

fn where_the_product_is_0_every_token_stays_and_no_zero_does(check: &Check<'_>) {
    let row: Vec<f32> = [1, 8, 0, 4].iter().map(|units| f32::from_bits(*units)).collect();
    // Half a unit is rounded to the even 0.
    for share in [0.0625, 1e-3, f32::from_bits(1)] {
        for params in [min_p(share), SamplingParams { top_k: 3, ..min_p(share) }] {
            check.keeps(&Case::of_probabilities(&row, params), &[1, 3, 0]);
        }
    }
    let row = [0.5, -0.0, f32::from_bits(1), f32::NAN, -0.5, 0.0];
    check.keeps(&Case::of_probabilities(&row, min_p(f32::from_bits(1))), &[0, 2]);
}

fn min_p_of_1_keeps_all_ties_of_the_first(check: &Check<'_>) {
    let mut row = vec![moved(0.01, -1); 900];
    (row[3], row[299], row[300], row[850]) = (0.01, 0.01, 0.01, 0.01);
    check.keeps(&Case::of_probabilities(&row, min_p(1.0)), &[3, 299, 300, 850]);
    let two = SamplingParams { top_k: 2, ..min_p(1.0) };
    check.keeps(&Case::of_probabilities(&row, two), &[3, 299]);
    check.keeps(&Case::of_probabilities(&row, min_p(moved(1.0, -2))), &{
        // 10737418 less 1.28 units in the last place is rounded to one unit less: all stay, ties by id.
        let others = (0..900).filter(|id| ![3, 299, 300, 850].contains(id));
        [3, 299, 300, 850].into_iter().chain(others).collect::<Vec<u32>>()
    });
}

fn the_product_is_of_numbers_as_they_count(check: &Check<'_>) {
    let half = f32::MAX / 2.0;
    let row = [f32::INFINITY, half, moved(half, -1), f32::NAN, f32::NEG_INFINITY, -0.0, f32::MAX];
    let case = Case::of_probabilities(&row, min_p(0.5));
    check.keeps(&case, &[0, 6, 1]);
    assert_eq!(check.sees(&case).status, Status(Status::INF.0 | Status::NAN.0));
    // A banned first token is not the first.
    let params = SamplingParams { banned_ids: vec![0], ..min_p(0.5) };
    check.keeps(&Case::of_probabilities(&[0.8, 0.2, 0.1, 0.09], params), &[1, 2]);
    check.keeps(
        &Case { mask: Some(vec![0b1100]), ..Case::of_probabilities(&[0.8, 0.2, 0.1, 0.09], min_p(0.5)) },
        &[2, 3],
    );
}

/// A row of which typical-p 0.6 keeps the forty and the twenty tokens between the first and the last ones:
/// 102 in all, so 0.3, 0.5, 0.15 and 0.05, of surprise 1.7, 6.4, 7.1 and 7.7 about an entropy of 5.1 bits.
fn typical_row() -> Vec<f32> {
    let mut row = vec![32.0];
    row.extend([1.25; 40]);
    row.extend([0.75; 20]);
    row.extend([0.5; 10]);
    row
}

fn in_a_chain_the_product_is_of_what_the_former_filter_left(check: &Check<'_>) {
    let row = typical_row();
    let typical =
        |share| chain(&[Filter::TypicalP, Filter::MinP], SamplingParams { typical_p: 0.6, ..min_p(share) });
    let ids = |ids: std::ops::Range<u32>| ids.collect::<Vec<u32>>();
    // Relative to 1.25, not to 32: 0.6 of it is rounded to 0.75, and the next float above 0.6 is not.
    check.keeps(&Case::of_probabilities(&row, typical(0.6)), &ids(1..61));
    check.keeps(&Case::of_probabilities(&row, typical(moved(0.6, 1))), &ids(1..41));
    check.keeps(&Case::of_probabilities(&row, typical(1.0)), &ids(1..41));
    // XTC leaves the last of the tokens of 0.01 or more, which is the last of the forty, and all after it.
    let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.01, ..min_p(0.6) };
    let xtc = chain(&[Filter::Xtc, Filter::MinP], xtc);
    check.keeps(&Case::of_probabilities(&row, xtc.clone()), &ids(40..61));
    check.keeps(&Case::of_probabilities(&row, SamplingParams { min_p: moved(0.6, 1), ..xtc }), &[40]);
    // What top-p leaves begins with the row's first token: 0.125 of 8 is 1, and one unit more is not.
    let row = [1.0, 8.0, 2.0, 1.0, 4.0, moved(1.0, -1)];
    let top_p = |share| SamplingParams { top_p: 0.93, ..min_p(share) };
    check.keeps(&Case::of_probabilities(&row, top_p(0.125)), &[1, 4, 2, 0, 3]);
    check.keeps(&Case::of_probabilities(&row, top_p(moved(0.125, 1))), &[1, 4, 2]);
}

fn in_joint_the_product_is_of_the_rows_first_token(check: &Check<'_>) {
    let joint = |share| SamplingParams { typical_p: 0.6, order: FilterOrder::Joint, ..min_p(share) };
    let ids = |ids: std::ops::Range<u32>| ids.collect::<Vec<u32>>();
    let row = typical_row();
    // 32 times 3 * 2^-7 is 0.75 to the bit.
    check.keeps(&Case::of_probabilities(&row, joint(0.023_437_5)), &ids(1..61));
    check.keeps(&Case::of_probabilities(&row, joint(moved(0.023_437_5, 1))), &ids(1..41));
    // They have nothing in common, so the first token stays.
    check.keeps(&Case::of_probabilities(&row, joint(0.1)), &[0]);
    let row = [1.0, 8.0, 2.0, 1.0, 4.0, 0.5];
    let prefixes =
        |share| SamplingParams { top_k: 5, top_p: 0.99, order: FilterOrder::Joint, ..min_p(share) };
    check.keeps(&Case::of_probabilities(&row, prefixes(0.125)), &[1, 4, 2, 0, 3]);
    check.keeps(&Case::of_probabilities(&row, prefixes(moved(0.125, 1))), &[1, 4, 2]);
}

/// Random rows in every type, among them many numbers around the product.
fn what_stays_passes_the_check_of_flashinfers_tests(check: &Check<'_>) {
    for seed in 0..check.backend.patience(120).max(24).into() {
        let mut words = Words(seed + 77);
        let vocab = [3, 40, 256, 257, 700, 1500][words.below(6)];
        let share = [0.05, 0.1, 0.02, 0.3, words.fraction(), 1e-3 * words.fraction()][words.below(6)];
        let unit = [1.0, 1e-3, 1e-30, 1e-42][words.below(4)];
        let mut row: Vec<f32> = rows::model_like(vocab, seed).iter().map(|z| z.exp2() * unit).collect();
        let most = row.iter().copied().fold(0.0, f32::max);
        for _ in 0..vocab / 4 {
            row[words.below(vocab)] = moved((share * most).max(1e-44), words.below(31) as i32 - 15).min(most);
        }
        let logits = Logits::new(Dtype::ALL[words.below(3)], &row);
        let params = [
            min_p(share),
            SamplingParams { top_k: 100, ..min_p(share) },
            SamplingParams { top_k: 100, order: FilterOrder::Joint, ..min_p(share) },
        ];
        let params = params[words.below(3)].clone();
        let case = Case { logits, ..Case::of_probabilities(&row, params) }.at(seed, 3);
        let p: Vec<f32> = (0..vocab).map(|id| case.logits.row().logit(id)).collect();
        let most = p.iter().copied().fold(0.0, f32::max);
        // FlashInfer's own: `mask = (probs >= p * probs.max())`, all of them in f32.
        let passes = |id: usize| p[id] >= share * most && p[id] > 0.0;
        let mut expected: Vec<u32> = (0..vocab).filter(|id| passes(*id)).map(|id| id as u32).collect();
        expected.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]).then(a.cmp(b)));
        if case.params.top_k > 0 {
            expected.truncate(100);
        }
        check.keeps(&case, &expected);
    }
}

fn a_set_too_long_for_a_list_is_cut_at_the_same_number(check: &Check<'_>) {
    // 3000 tokens at the product and as many just below it.
    let (first, product) = (0.3, f32::from_bits(0x3CF5_C290));
    let mut row: Vec<f32> =
        (0..6000).map(|id| if id % 2 == 0 { product } else { moved(product, -1) }).collect();
    row[4001] = first;
    let expected: Vec<u32> = [4001].into_iter().chain((0..6000).filter(|id| id % 2 == 0)).collect();
    for params in [min_p(0.1), SamplingParams { top_p: 0.99, order: FilterOrder::Joint, ..min_p(0.1) }] {
        let case = Case::of_probabilities(&row, params);
        check.keeps(&case, &expected);
        let masked = check.writes(&case, Masked);
        assert_eq!(masked.iter().filter(|p| **p > 0.0).count(), 3001);
    }
}
