//! The filters that keep a prefix: top-k, top-p, min-p, top-a, p-less, epsilon, eta, top-n-sigma, top-H (F1,
//! F2, F5, F12).
//!
//! At the temperature `UNIT` a weight is `2^z`, so the row 0, -1, -2, -2 has the probabilities 1/2, 1/4, 1/8,
//! 1/8, an entropy of 1.75 bits and a mass of twice the first token's, all exactly.

use gumball_spec::{FilterOrder, SamplingParams};

use crate::case::{Case, UNIT};
use crate::rows;
use crate::rules::Check;

rules!(prefix_rules:
    F1 top_p_on_a_tie_at_the_cut_keeps_the_lower_id,
    F1 top_p_stops_where_it_reaches_its_target_exactly,
    F1 top_p_rounds_its_target_up,
    F1 top_p_of_zero_keeps_the_first_token,
    F1 top_p_just_below_one_still_cuts,
    F1 top_p_of_one_removes_nothing,
    F1 top_p_of_heavy_tokens_in_one_tile_keeps_them,
    F1 top_p_of_hundreds_of_equal_tokens_stops_where_it_reaches_its_target,
    F1 winners_that_a_filter_drops_are_drawn_again,
    F1 searches_end_among_values_of_many_scales,
    F1 top_k_keeps_the_first_k,
    F1 top_k_on_a_tie_at_the_cut_keeps_the_lower_id,
    F1 top_k_on_a_tie_of_thousands_keeps_the_lower_ids,
    F1 top_k_off_removes_nothing,
    F2 min_p_keeps_what_reaches_it_exactly,
    F2 min_p_of_one_keeps_the_tied_maxima,
    F2 min_p_may_be_subnormal,
    F2 min_p_ties_stay_together,
    F2 top_a_is_a_multiple_of_the_square_of_the_best_probability,
    F2 top_a_of_a_flat_row_keeps_all,
    F2 p_less_compares_with_the_sum_of_squares,
    F2 p_less_of_equal_logits_keeps_all,
    F2 p_less_sees_what_was_left_and_the_temperature,
    F2 epsilon_is_a_probability,
    F2 eta_is_the_smaller_of_two_thresholds,
    F2 a_threshold_above_all_keeps_the_first_token,
    F5 top_n_sigma_counts_in_population_deviations,
    F5 top_n_sigma_on_its_limit_keeps,
    F5 top_n_sigma_does_not_see_the_temperature,
    F5 top_n_sigma_caps_far_logits,
    F5 top_n_sigma_of_equal_logits_keeps_all,
    F12 top_h_stops_before_it_exceeds_its_share_of_the_entropy,
    F12 top_h_on_a_tie_at_the_cut_keeps_the_lower_id,
    F12 top_h_looks_at_the_first_hundred_tokens,
    F12 top_h_of_one_keeps_what_adds_to_the_entropy,
    F12 top_h_keeps_the_first_token,
    F12 top_h_sees_what_was_left_and_the_temperature,
);

const DYADIC: [f32; 4] = [0.0, -1.0, -2.0, -2.0];

fn unit() -> SamplingParams {
    SamplingParams { temperature: UNIT, ..Default::default() }
}

fn above(x: f32) -> f32 {
    f32::from_bits(x.to_bits() + 1)
}

fn below(x: f32) -> f32 {
    f32::from_bits(x.to_bits() - 1)
}

fn top_p(p: f32) -> SamplingParams {
    SamplingParams { top_p: p, ..unit() }
}

fn top_p_on_a_tie_at_the_cut_keeps_the_lower_id(check: &Check<'_>) {
    check.keeps(&Case::of(&[1.0; 4], top_p(0.5)), &[0, 1]);
    check.keeps(&Case::of(&[1.0; 4], top_p(above(0.5))), &[0, 1, 2]);
    check.keeps(&Case::of(&[-1.0, 0.0, -1.0, -1.0, -1.0, -1.0], top_p(0.5)), &[1, 0, 2]);
    // Ties between tiles too.
    let mut row = vec![f32::NEG_INFINITY; 1024];
    for id in [1000, 3, 700, 255, 256] {
        row[id] = 2.0;
    }
    // The f32 0.6 is above 3/5, the one below it is not.
    check.keeps(&Case::of(&row, top_p(below(0.6))), &[3, 255, 256]);
    check.keeps(&Case::of(&row, top_p(0.6)), &[3, 255, 256, 700]);
}

fn top_p_stops_where_it_reaches_its_target_exactly(check: &Check<'_>) {
    for (p, count) in [(0.5, 1), (0.75, 2), (0.875, 3)] {
        check.keeps_first(&Case::of(&DYADIC, top_p(below(p))), count);
        check.keeps_first(&Case::of(&DYADIC, top_p(p)), count);
        check.keeps_first(&Case::of(&DYADIC, top_p(above(p))), count + 1);
    }
}

fn top_p_rounds_its_target_up(check: &Check<'_>) {
    // Z is 2^44 and one unit: half of it is half a unit more than the first token.
    let mut row = vec![f32::NEG_INFINITY; 512];
    (row[0], row[1]) = (0.0, 0.0);
    check.keeps(&Case::of(&row, top_p(0.5)), &[0]);
    row[300] = -43.0;
    check.keeps(&Case::of(&row, top_p(0.5)), &[0, 1]);
    // 2^-10 and half of 2^-32: the first of 1024 tokens is not quite enough.
    let p = 2f32.powi(-10);
    check.keeps_first(&Case::of(&[0.0; 1024], top_p(p)), 1);
    check.keeps_first(&Case::of(&[0.0; 1024], top_p(above(p))), 2);
}

fn top_p_of_zero_keeps_the_first_token(check: &Check<'_>) {
    for p in [0.0, -0.0, f32::from_bits(1), 1e-9] {
        check.keeps(&Case::of(&[0.0, 1.0, 1.0], top_p(p)), &[1]);
    }
}

fn top_p_just_below_one_still_cuts(check: &Check<'_>) {
    // 1 - 2^-24 of 1 + 2^-30 is less than 1, and of 1 + 2^-20 more.
    check.keeps(&Case::of(&[0.0, -30.0], top_p(below(1.0))), &[0]);
    check.keeps(&Case::of(&[0.0, -20.0], top_p(below(1.0))), &[0, 1]);
}

fn top_p_of_one_removes_nothing(check: &Check<'_>) {
    check.keeps(&Case::of(&[0.0, -300.0, -f32::MAX], top_p(1.0)), &[0, 1, 2]);
}

fn top_p_of_heavy_tokens_in_one_tile_keeps_them(check: &Check<'_>) {
    // Each of them is a quarter of the mass, or less by next to nothing.
    let mut row = vec![-30.0; 2000];
    for id in [300, 301, 302, 1500] {
        row[id] = 2.0;
    }
    for (p, count) in [(0.1, 1), (0.4, 2), (0.7, 3), (0.9, 4)] {
        check.keeps(&Case::of(&row, top_p(p)), &[300, 301, 302, 1500][..count]);
    }
}

fn top_p_of_hundreds_of_equal_tokens_stops_where_it_reaches_its_target(check: &Check<'_>) {
    // Three in each of 200 tiles; all others weigh nothing.
    let mut row = vec![-90.0; 200 * 256];
    let ids: Vec<u32> = (0..200).flat_map(|tile| [7, 90, 200].map(|place| tile * 256 + place)).collect();
    for id in &ids {
        row[*id as usize] = 2.0;
    }
    for (p, count) in [(0.5, 300), (0.625, 375), (0.75, 450)] {
        check.keeps(&Case::of(&row, top_p(below(p))), &ids[..count]);
        check.keeps(&Case::of(&row, top_p(p)), &ids[..count]);
        check.keeps(&Case::of(&row, top_p(above(p))), &ids[..=count]);
    }
}

fn top_k(k: i64) -> SamplingParams {
    SamplingParams { top_k: k, ..Default::default() }
}

/// Kept sets too long for any list: an engine may race the whole row first and drop winners outside the set.
/// A small `top_p` or `top_k` drops several of them in turn.
fn winners_that_a_filter_drops_are_drawn_again(check: &Check<'_>) {
    const VOCAB: usize = 9_000;
    let infinite = |mut row: Vec<f32>| {
        row[77] = f32::INFINITY;
        row[8_000] = f32::NAN;
        row
    };
    let kinds = [
        rows::bell(VOCAB, 1.5, 1),
        rows::bell(VOCAB, 0.001, 2),
        rows::grid(VOCAB, 0.5, 6, 3),
        vec![2.0; VOCAB],
        infinite(rows::bell(VOCAB, 1.0, 4)),
    ];
    let shares = [0.15, 0.3, 0.6, 0.9, 0.999].map(|top_p| SamplingParams { top_p, ..Default::default() });
    let counts = [321, 800, 2_500, 6_000, 8_999].map(top_k);
    for (row, values) in kinds.iter().enumerate() {
        for (i, filter) in shares.iter().chain(&counts).enumerate() {
            for seed in 0..4 {
                let own = filter.clone();
                let params = match (seed, filter.top_k > 0) {
                    (1, false) => SamplingParams { min_p: 0.01, ..own },
                    (3, false) => SamplingParams { min_p: 0.01, top_k: 5_000, ..own },
                    (1, true) => SamplingParams { min_p: 1e-4, ..own },
                    (2, true) => SamplingParams { presence_penalty: 0.5, ..own },
                    (3, true) => SamplingParams { top_n_sigma: 1.5, ..own },
                    _ => own,
                };
                let case = Case::of(values, params).after(&[5, 77, 300, 8_999], &[2, 17]);
                check.sees(&case.at(seed + 10 * row as u64, i as u32));
            }
        }
    }
}

/// Rows on which the searches of devices guess badly, so that they halve what remains.
fn searches_end_among_values_of_many_scales(check: &Check<'_>) {
    for (i, seed) in [3, 46, 51, 331].into_iter().enumerate() {
        let (row, temperature, p) = rows::scattered(25_500, seed);
        let any = || SamplingParams { temperature, ..Default::default() };
        for params in [
            SamplingParams { top_p: p, ..any() },
            SamplingParams { typical_p: p, ..any() },
            SamplingParams { top_k: 10_000, top_p: p, ..any() },
        ] {
            check.sees(&Case::of(&row, params).at(seed, i as u32));
        }
    }
}

fn top_k_keeps_the_first_k(check: &Check<'_>) {
    let row = [0.0, 5.0, -1.0, 3.0, 4.0];
    check.keeps(&Case::of(&row, top_k(1)), &[1]);
    check.keeps(&Case::of(&row, top_k(3)), &[1, 4, 3]);
    check.keeps(&Case::of(&row, top_k(4)), &[1, 4, 3, 0]);
    let short = [f32::NEG_INFINITY, 5.0, f32::NAN, 3.0, f32::NEG_INFINITY];
    check.keeps(&Case::of(&short, top_k(4)), &[1, 3]);
}

fn top_k_on_a_tie_at_the_cut_keeps_the_lower_id(check: &Check<'_>) {
    check.keeps(&Case::of(&[0.0, 5.0, 0.0, 0.0], top_k(3)), &[1, 0, 2]);
    for (vocab, k) in [(257, 256), (256, 255), (1030, 300), (1030, 1029)] {
        let mut row = vec![0.0; vocab];
        row[vocab - 1] = 1.0;
        let expected: Vec<u32> = [vocab as u32 - 1].into_iter().chain(0..k as u32 - 1).collect();
        check.keeps(&Case::of(&row, top_k(k)), &expected);
    }
}

fn top_k_on_a_tie_of_thousands_keeps_the_lower_ids(check: &Check<'_>) {
    const VOCAB: usize = 17_001;
    let all = |above: &[usize], bans: usize| {
        let mut row = vec![0.5; VOCAB];
        above.iter().for_each(|id| row[*id] = 2.0);
        row.iter_mut().step_by(bans).for_each(|z| *z = f32::NEG_INFINITY);
        row
    };
    // One tied token a tile, so that a larger k ends among others; and ties of which half the tiles have
    // none.
    let sparse = (0..VOCAB).map(|id| if id % 256 == 3 { 0.5 } else { 0.001 * (id % 100) as f32 }).collect();
    let halves = (0..VOCAB).map(|id| if id / 256 % 4 == 1 { -1.0 } else { 0.25 }).collect();
    // The least logit is a token's, too.
    let least = vec![-f32::MAX; VOCAB];
    let rows = [all(&[], VOCAB + 1), all(&[8_000, 4_000, 17], 3), sparse, halves, least];
    for row in &rows {
        let mut order: Vec<u32> =
            (0..VOCAB as u32).filter(|id| row[*id as usize] > f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        for k in [1, 30, 36, 50, 256, 257, 1_000, 5_999, 17_000] {
            let case = Case::of(row, top_k(k as i64)).at(k as u64, 7);
            check.keeps(&case, &order[..k.min(order.len())]);
            // Without kept sets, and with top-p after it or beside it.
            for order in [FilterOrder::default(), FilterOrder::Joint] {
                let params = SamplingParams { top_p: 0.9, order, ..top_k(k as i64) };
                check.sees(&Case::of(row, params).at(k as u64, 8));
            }
        }
    }
}

fn top_k_off_removes_nothing(check: &Check<'_>) {
    for k in [0, 3, 4, i64::MAX] {
        check.keeps(&Case::of(&[0.0, -1e30, -f32::MAX], top_k(k)), &[0, 1, 2]);
    }
}

fn min_p(p: f32) -> SamplingParams {
    SamplingParams { min_p: p, ..unit() }
}

fn min_p_keeps_what_reaches_it_exactly(check: &Check<'_>) {
    check.keeps_first(&Case::of(&DYADIC, min_p(0.5)), 2);
    check.keeps_first(&Case::of(&DYADIC, min_p(0.500_001)), 1);
    check.keeps_first(&Case::of(&DYADIC, min_p(0.25)), 4);
    check.keeps_first(&Case::of(&DYADIC, min_p(0.250_001)), 2);
    check.keeps_first(&Case::of(&DYADIC, min_p(1e-9)), 4);
}

fn min_p_of_one_keeps_the_tied_maxima(check: &Check<'_>) {
    check.keeps(&Case::of(&[1.0, 3.0, below(3.0), 3.0], min_p(1.0)), &[1, 3]);
}

fn min_p_may_be_subnormal(check: &Check<'_>) {
    // L(2^-149) is -149.
    let row = [0.0, -149.0, -149.1, -f32::MAX];
    check.keeps(&Case::of(&row, min_p(f32::from_bits(1))), &[0, 1]);
    check.keeps(&Case::of(&row, min_p(f32::from_bits(2))), &[0]);
}

fn min_p_ties_stay_together(check: &Check<'_>) {
    let mut row = vec![-1.0; 600];
    row[599] = 0.0;
    let mut all: Vec<u32> = vec![599];
    all.extend(0..599);
    check.keeps(&Case::of(&row, min_p(0.5)), &all);
    check.keeps(&Case::of(&row, min_p(0.51)), &[599]);
}

fn top_a_is_a_multiple_of_the_square_of_the_best_probability(check: &Check<'_>) {
    // The square of 1/2 is 1/4; the row has 1/2, 1/4, 1/8, 1/8.
    let top_a = |top_a| SamplingParams { top_a, ..unit() };
    check.keeps_first(&Case::of(&DYADIC, top_a(0.5)), 4);
    check.keeps_first(&Case::of(&DYADIC, top_a(0.500_01)), 2);
    check.keeps_first(&Case::of(&DYADIC, top_a(1.0)), 2);
    // Alone, the first token has probability 1: 0.25 of its square is the second one's if that is 2 bits
    // below.
    let two = SamplingParams { top_k: 2, ..top_a(1.0) };
    check.keeps_first(&Case::of(&[0.0, 0.0, -9.0], two.clone()), 2);
    check.keeps_first(&Case::of(&[0.0, -1.0, -9.0], two), 1);
}

fn top_a_of_a_flat_row_keeps_all(check: &Check<'_>) {
    for top_a in [f32::from_bits(1), 0.3, 1.0] {
        check.keeps_first(&Case::of(&[2.0; 300], SamplingParams { top_a, ..unit() }), 300);
    }
}

fn p_less() -> SamplingParams {
    SamplingParams { p_less: true, ..unit() }
}

fn p_less_compares_with_the_sum_of_squares(check: &Check<'_>) {
    // 1/4 + 1/16 + 1/64 + 1/64 is 11/32: more than the second one's 1/4.
    check.keeps_first(&Case::of(&DYADIC, p_less()), 1);
    // Of 0, 0, 0, -1 the sum is 13/49: below the three of 2/7, above the last one's 1/7.
    check.keeps_first(&Case::of(&[0.0, 0.0, 0.0, -1.0], p_less()), 3);
    // Of a gentle slope the oracle says where.
    check.sees(&Case::of(&[0.0, -0.125, -0.25, -0.375, -0.5, -0.625], p_less()));
}

fn p_less_of_equal_logits_keeps_all(check: &Check<'_>) {
    for count in [1, 2, 255, 256, 257, 3000] {
        check.keeps_first(&Case::of(&vec![-3.5; count as usize], p_less()), count);
    }
}

fn p_less_sees_what_was_left_and_the_temperature(check: &Check<'_>) {
    // 2/5, 2/5, 1/5 have squares that sum to 9/25; of the first two alone each is 1/2, as is the sum.
    let row = [0.0, 0.0, -1.0, -9.0, -9.0];
    check.keeps_first(&Case::of(&row, SamplingParams { top_k: 3, ..p_less() }), 2);
    check.keeps_first(&Case::of(&row, SamplingParams { top_k: 2, ..p_less() }), 2);
    // At four times the temperature 0.307, 0.258, 0.217, 0.217: the squares sum to 0.255.
    check.keeps_first(&Case::of(&DYADIC, SamplingParams { temperature: 4.0 * UNIT, ..p_less() }), 2);
}

fn epsilon_is_a_probability(check: &Check<'_>) {
    let epsilon = |epsilon_cutoff| SamplingParams { epsilon_cutoff, ..unit() };
    check.keeps_first(&Case::of(&DYADIC, epsilon(0.125)), 4);
    check.keeps_first(&Case::of(&DYADIC, epsilon(0.125_01)), 2);
    check.keeps_first(&Case::of(&DYADIC, epsilon(0.25)), 2);
    check.keeps_first(&Case::of(&DYADIC, epsilon(0.250_01)), 1);
}

fn eta_is_the_smaller_of_two_thresholds(check: &Check<'_>) {
    // In bits: min(L, L/2 - 1.75) against -1, -2, -3, -3.
    let eta = |eta_cutoff| SamplingParams { eta_cutoff, ..unit() };
    check.keeps_first(&Case::of(&DYADIC, eta(0.5)), 2); // min(-1, -2.25)
    check.keeps_first(&Case::of(&DYADIC, eta(0.25)), 2); // min(-2, -2.75)
    check.keeps_first(&Case::of(&DYADIC, eta(0.125)), 4); // min(-3, -3.25)
    // At entropy 0, sqrt(eta) is above eta, which decides: -4 against -5.
    let certain = [0.0, -5.0, -30.0];
    check.keeps_first(&Case::of(&certain, eta(1.0 / 64.0)), 2);
    check.keeps_first(&Case::of(&certain, eta(1.0 / 16.0)), 1);
}

fn a_threshold_above_all_keeps_the_first_token(check: &Check<'_>) {
    let row = [1.0; 5];
    let cases = [
        SamplingParams { epsilon_cutoff: 1.0, ..unit() },
        SamplingParams { epsilon_cutoff: 0.21, ..unit() },
        SamplingParams { eta_cutoff: 1.0, order: Default::default(), ..unit() },
    ];
    check.keeps(&Case::of(&row, cases[0].clone()), &[0]);
    check.keeps(&Case::of(&row, cases[1].clone()), &[0]);
    // sqrt(1) 2^-H is 1/5, up to the last bit: either the first token or all, as the oracle says.
    check.sees(&Case::of(&row, cases[2].clone()));
}

fn sigma(n: f32) -> SamplingParams {
    SamplingParams { top_n_sigma: n, ..Default::default() }
}

fn top_n_sigma_counts_in_population_deviations(check: &Check<'_>) {
    // The deviation of 4, 2, 2, 0 is sqrt(2), over n and not n - 1.
    let row = [4.0, 2.0, 2.0, 0.0];
    for (n, count) in [(1.0, 1), (1.41, 1), (1.415, 3), (2.82, 3), (2.83, 4)] {
        check.keeps_first(&Case::of(&row, sigma(n)), count);
    }
    // -inf is no token of the row.
    check.keeps(&Case::of(&[4.0, f32::NEG_INFINITY, 2.0, 2.0, f32::NAN, 0.0], sigma(1.415)), &[0, 2, 3]);
}

fn top_n_sigma_on_its_limit_keeps(check: &Check<'_>) {
    // Two tokens 2 apart have a deviation of exactly 1.
    check.keeps(&Case::of(&[2.0, 0.0], sigma(2.0)), &[0, 1]);
    check.keeps(&Case::of(&[2.0, 0.0], sigma(below(2.0))), &[0]);
}

fn top_n_sigma_does_not_see_the_temperature(check: &Check<'_>) {
    for temperature in [0.01, 0.5, 30.0] {
        for (n, count) in [(1.41, 1), (1.415, 3), (2.83, 4)] {
            let params = SamplingParams { temperature, ..sigma(n) };
            check.keeps_first(&Case::of(&[4.0, 2.0, 2.0, 0.0], params), count);
        }
    }
}

fn top_n_sigma_caps_far_logits(check: &Check<'_>) {
    // Anything from 1024 down counts as 1024 less 2^-12: 0, 1, 1024 have a deviation of 482.5.
    let row = [0.0, -1.0, -1e30];
    check.keeps_first(&Case::of(&row, sigma(1.0)), 2);
    check.keeps_first(&Case::of(&row, sigma(2.1)), 2);
    check.keeps_first(&Case::of(&row, sigma(2.2)), 3);
    // 0, 500, 1024: 418.1. Without the cap the far one would take the deviation with it.
    check.keeps_first(&Case::of(&[0.0, -500.0, -1e30], sigma(1.19)), 1);
    check.keeps_first(&Case::of(&[0.0, -500.0, -1e30], sigma(1.2)), 2);
    check.keeps_first(&Case::of(&[f32::MAX, -f32::MAX], sigma(1.99)), 1);
    check.keeps_first(&Case::of(&[f32::MAX, -f32::MAX], sigma(2.0)), 2);
}

fn top_n_sigma_of_equal_logits_keeps_all(check: &Check<'_>) {
    for vocab in [1, 256, 257, 1030] {
        check.keeps_first(&Case::of(&vec![-3.0; vocab], sigma(1e-30)), vocab as u32);
    }
    check.keeps_first(&Case::of(&[0.0, -1.0, -1.0], sigma(1e-30)), 1);
}

fn top_h(top_h: f32) -> SamplingParams {
    SamplingParams { top_h, ..unit() }
}

fn top_h_stops_before_it_exceeds_its_share_of_the_entropy(check: &Check<'_>) {
    // The tokens add 1/2, 1/2, 3/8, 3/8 bits to 7/4.
    let shares = [(0.28, 1), (0.571, 1), (0.572, 2), (0.785, 2), (0.786, 3), (below(1.0), 3), (1.0, 4)];
    for (share, count) in shares {
        check.keeps_first(&Case::of(&DYADIC, top_h(share)), count);
    }
    // Of four equal tokens each adds a quarter, exactly.
    for (share, count) in [(0.5, 2), (0.75, 3), (1.0, 4)] {
        check.keeps_first(&Case::of(&[1.0; 4], top_h(below(share))), count - 1);
        check.keeps_first(&Case::of(&[1.0; 4], top_h(share)), count);
    }
}

fn top_h_on_a_tie_at_the_cut_keeps_the_lower_id(check: &Check<'_>) {
    let mut row = vec![f32::NEG_INFINITY; 1024];
    for id in [1000, 3, 700, 256] {
        row[id] = 2.0;
    }
    check.keeps(&Case::of(&row, top_h(0.5)), &[3, 256]);
    check.keeps(&Case::of(&row, top_h(0.75)), &[3, 256, 700]);
}

fn top_h_looks_at_the_first_hundred_tokens(check: &Check<'_>) {
    for vocab in [100, 101, 255, 257, 3000, 20_000] {
        check.keeps_first(&Case::of(&vec![-3.5; vocab], top_h(1.0)), 100);
        check.keeps_first(&Case::of(&vec![-3.5; vocab], top_h(0.5)), 50);
        check.keeps_first(&Case::of(&vec![-3.5; vocab], top_h(below(0.5))), 49);
    }
    // The first of them, where others lie before in the order of ids, one in a tile and many in one.
    let scattered: Vec<u32> = (0..90).map(|tile| 256 * tile + 7).chain(30_000..30_030).collect();
    let mut row = rows::bell(40_000, 0.01, 5);
    scattered.iter().for_each(|id| row[*id as usize] = 3.0);
    check.keeps(&Case::of(&row, top_h(1.0)), &scattered[..100]);
    check.keeps(&Case::of(&row, top_h(0.25)), &scattered[..25]);
}

fn top_h_of_one_keeps_what_adds_to_the_entropy(check: &Check<'_>) {
    // In units of 2^-50 a token 50 bits below two others adds 51, and one 60 bits below them 61/1024.
    check.keeps_first(&Case::of(&[0.0, 0.0, -50.0, -50.0], top_h(1.0)), 4);
    check.keeps_first(&Case::of(&[0.0, 0.0, -50.0, -60.0, -60.0], top_h(1.0)), 3);
    // What weighs too little to add to the mass still surprises.
    check.keeps_first(&Case::of(&[0.0, -30.0], top_h(1.0)), 2);
    check.keeps_first(&Case::of(&[0.0, -30.0], top_h(below(1.0))), 1);
    check.keeps_first(&Case::of(&[0.0, -200.0, -f32::MAX], top_h(1.0)), 1);
    check.keeps_first(&Case::of(&[f32::MAX, -f32::MAX], top_h(1.0)), 1);
}

fn top_h_keeps_the_first_token(check: &Check<'_>) {
    for share in [f32::from_bits(1), 1e-9, 0.1] {
        check.keeps(&Case::of(&[0.0, 1.0, 1.0], top_h(share)), &[1]);
        check.keeps(&Case::of(&[7.0], top_h(share)), &[0]);
    }
    check.keeps(&Case::of(&[0.0, -1e30, -f32::MAX], top_h(0.0)), &[0, 1, 2]);
}

fn top_h_sees_what_was_left_and_the_temperature(check: &Check<'_>) {
    use gumball_spec::{Filter, FilterOrder};
    let of = |order: &[Filter], share| SamplingParams {
        top_k: 2,
        order: FilterOrder::List(order.to_vec()),
        ..top_h(share)
    };
    // Of two equal tokens each adds a half, of four a quarter.
    check.keeps_first(&Case::of(&[1.0; 4], of(&[Filter::TopK, Filter::TopH], 0.49)), 1);
    check.keeps_first(&Case::of(&[1.0; 4], of(&[Filter::TopH, Filter::TopK], 0.76)), 2);
    check.keeps_first(&Case::of(&[1.0; 4], of(&[Filter::TopK, Filter::TopH], 0.76)), 1);
    // At half the temperature 0.334, 0.447, 0.203 and 0.203 bits of 1.187.
    let cold = |share| SamplingParams { temperature: UNIT / 2.0, ..top_h(share) };
    check.keeps_first(&Case::of(&DYADIC, cold(0.65)), 1);
    check.keeps_first(&Case::of(&DYADIC, cold(0.66)), 2);
}
