//! Filters together: their order, joint filters, temperature last, mirostat alone (F6, F8, F9; Filters in
//! docs/semantics.md).

use gumball_spec::{Filter, FilterOrder, LogprobMode, LogprobsParams, Mirostat, SamplingParams};

use crate::case::{Case, UNIT};
use crate::rules::Check;

rules!(chain_rules:
    M2 filters_act_in_the_order_they_are_listed,
    F9 joint_intersects_what_each_keeps_of_the_whole_row,
    F9 an_empty_joint_intersection_keeps_the_first_token,
    F9 joint_xtc_drops_from_the_whole_row,
    F9 joint_top_k_ends_a_long_nucleus_and_top_p_a_short_one,
    F9 joint_filters_keep_all_of_a_row_of_few_tokens,
    F1 filters_that_are_off_remove_nothing,
    F11 min_keep_adds_the_tokens_that_follow_to_every_filter,
    F11 min_keep_counts_from_the_first_token_that_a_filter_keeps,
    F11 min_keep_is_for_each_filter_of_a_chain_and_for_joint_ones,
    F11 min_keep_of_many_tokens_ends_among_equal_ones_by_id,
    F8 temperature_last_filters_at_one_and_draws_at_t,
    F6 mirostat_keeps_surprises_up_to_mu,
    F6 mirostat_keeps_at_least_the_first_token,
    F6 mu_moves_by_the_surprise_within_the_kept_set,
    F6 mu_starts_at_twice_tau,
    F6 greedy_and_empty_rows_leave_mu,
    F6 a_forced_token_leaves_mu,
    F6 mirostat_does_not_see_temperature_last,
);

const DYADIC: [f32; 4] = [0.0, -1.0, -2.0, -2.0];

fn unit() -> SamplingParams {
    SamplingParams { temperature: UNIT, ..Default::default() }
}

fn min_keep_adds_the_tokens_that_follow_to_every_filter(check: &Check<'_>) {
    let filters = [
        (SamplingParams { top_k: 1, ..unit() }, 1),
        (SamplingParams { top_p: 0.1, ..unit() }, 1),
        (SamplingParams { min_p: 1.0, ..unit() }, 1),
        (SamplingParams { top_a: 1.0, ..unit() }, 2),
        (SamplingParams { p_less: true, ..unit() }, 1),
        (SamplingParams { epsilon_cutoff: 0.4, ..unit() }, 1),
        (SamplingParams { eta_cutoff: 0.9, ..unit() }, 1),
        (SamplingParams { top_n_sigma: 0.1, ..unit() }, 1),
    ];
    for (params, alone) in filters {
        for min_keep in [1, 2, 3, 4, 5, u32::MAX] {
            let params = SamplingParams { min_keep, ..params.clone() };
            check.keeps_first(&Case::of(&DYADIC, params), min_keep.min(4).max(alone));
        }
    }
    // More than that stays, and without filters nothing goes.
    check.keeps_first(&Case::of(&DYADIC, SamplingParams { top_k: 3, min_keep: 2, ..unit() }), 3);
    check.keeps_first(&Case::of(&DYADIC, SamplingParams { min_keep: 2, ..unit() }), 4);
    check.keeps_first(&Case::of(&DYADIC, SamplingParams { min_keep: 2, temperature: 0.0, ..unit() }), 1);
}

fn min_keep_counts_from_the_first_token_that_a_filter_keeps(check: &Check<'_>) {
    let typical = SamplingParams { typical_p: 0.2, ..unit() };
    for (min_keep, kept) in [(1, &[1][..]), (2, &[1, 2]), (3, &[1, 2, 3]), (4, &[1, 2, 3])] {
        check.keeps(&Case::of(&DYADIC, SamplingParams { min_keep, ..typical.clone() }), kept);
    }
    let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.1, ..unit() };
    for min_keep in [1, 4] {
        check.keeps(&Case::of(&DYADIC, SamplingParams { min_keep, ..xtc.clone() }), &[3]);
    }
}

fn min_keep_is_for_each_filter_of_a_chain_and_for_joint_ones(check: &Check<'_>) {
    let row = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -5.0];
    for order in [FilterOrder::Default, FilterOrder::Joint] {
        let params = SamplingParams { top_k: 5, top_p: 0.1, min_p: 0.9, min_keep: 3, order, ..unit() };
        check.keeps_first(&Case::of(&row, params.clone()), 3);
        check.keeps_first(&Case::of(&row, SamplingParams { min_keep: 6, ..params }), 6);
    }
    // Typical-p drops the first token, and top-p is given what then stays.
    let params = SamplingParams { typical_p: 0.2, top_p: 0.1, min_keep: 2, ..unit() };
    check.keeps(&Case::of(&DYADIC, params), &[1, 2]);
}

fn min_keep_of_many_tokens_ends_among_equal_ones_by_id(check: &Check<'_>) {
    let row: Vec<f32> = (0..3000).map(|id| -((id % 7) as f32)).collect();
    let mut order: Vec<u32> = (0..3000).collect();
    order.sort_by_key(|id| id % 7);
    for (min_keep, top_p, typical_p) in
        [(2, 0.001, 1.0), (500, 0.001, 1.0), (1500, 0.001, 1.0), (900, 1.0, 0.01)]
    {
        let params = SamplingParams { min_keep: min_keep as u32, top_p, typical_p, ..unit() };
        if typical_p == 1.0 {
            check.keeps(&Case::of(&row, params.clone()), &order[..min_keep]);
        }
        check.sees(&Case::of(&row, params));
    }
}

fn filters_act_in_the_order_they_are_listed(check: &Check<'_>) {
    // 1/2 1/4 1/8 1/16 1/32 1/64 1/64.
    let row = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -5.0];
    let params = |order| SamplingParams { top_p: 0.8, top_k: 3, epsilon_cutoff: 0.26, order, ..unit() };
    let list = |filters: &[Filter]| FilterOrder::List(filters.to_vec());
    use Filter::{EpsilonCutoff, TopK, TopP};
    // 4/7 2/7 1/7: two reach 0.8 and have 2/3 and 1/3.
    check.keeps_first(&Case::of(&row, params(FilterOrder::Default)), 2);
    check.keeps_first(&Case::of(&row, params(list(&[TopK, TopP, EpsilonCutoff]))), 2);
    // 4/7 and 2/7 pass 0.26, 1/7 does not; of 2/3 and 1/3 top-p keeps both.
    check.keeps_first(&Case::of(&row, params(list(&[TopK, EpsilonCutoff, TopP]))), 2);
    // Three reach 0.8 of the whole: 4/7 2/7 1/7.
    check.keeps_first(&Case::of(&row, params(list(&[TopP, EpsilonCutoff, TopK]))), 2);
    // Of the whole row only 1/2 passes 0.26.
    check.keeps_first(&Case::of(&row, params(list(&[EpsilonCutoff, TopP, TopK]))), 1);
}

fn joint_intersects_what_each_keeps_of_the_whole_row(check: &Check<'_>) {
    let row = [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -5.0];
    let joint = SamplingParams { order: FilterOrder::Joint, top_k: 3, top_p: 0.9, ..unit() };
    check.keeps_first(&Case::of(&row, joint.clone()), 3);
    check.keeps_first(&Case::of(&row, SamplingParams { min_p: 0.5, ..joint.clone() }), 2);
    check.keeps_first(&Case::of(&row, SamplingParams { top_p: 0.5, ..joint }), 1);
}

fn an_empty_joint_intersection_keeps_the_first_token(check: &Check<'_>) {
    // typical-p keeps the twelve, top-k the one.
    let mut row = vec![-3.0; 13];
    row[7] = 0.0;
    let joint = SamplingParams { order: FilterOrder::Joint, typical_p: 0.5, top_k: 1, ..unit() };
    check.keeps(&Case::of(&row, joint.clone()), &[7]);
    check.keeps(&Case::of(&row, SamplingParams { top_k: 2, ..joint.clone() }), &[0]);
    check.keeps(&Case::of(&row, SamplingParams { order: FilterOrder::Default, ..joint }), &[7]);
}

fn joint_xtc_drops_from_the_whole_row(check: &Check<'_>) {
    let params = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.3, top_k: 2, ..unit() };
    // Of the whole row one token is above 0.3, of the two that are left both (2/3 and 1/3).
    let joint = SamplingParams { order: FilterOrder::Joint, ..params.clone() };
    check.keeps(&Case::of(&DYADIC, joint), &[0, 1]);
    check.keeps(&Case::of(&DYADIC, params.clone()), &[1]);
    let list = FilterOrder::List(vec![Filter::Xtc, Filter::TopK]);
    check.keeps(&Case::of(&DYADIC, SamplingParams { order: list, ..params }), &[0, 1]);
}

fn joint(top_k: i64, top_p: f32) -> SamplingParams {
    SamplingParams { order: FilterOrder::Joint, top_k, top_p, ..unit() }
}

/// The case of a row of logits at which weights are `2^z`, and that of these weights.
fn of_either_kind(row: &[f32], params: &SamplingParams) -> [Case; 2] {
    let weights: Vec<f32> = row.iter().map(|z| z.exp2()).collect();
    let of_weights = SamplingParams { temperature: 1.0, ..params.clone() };
    [Case::of(row, params.clone()), Case::of_probabilities(&weights, of_weights)]
}

fn joint_top_k_ends_a_long_nucleus_and_top_p_a_short_one(check: &Check<'_>) {
    // All alike; 1/2 of the mass in a few and the rest alike; heavy ones at the end, ties at the k-th.
    let flat = vec![0.0; 3000];
    let heavy = |id: usize, high: f32| if id % 300 == 7 { high } else { -8.0 };
    let half: Vec<f32> = (0..2570).map(|id| heavy(id, 0.0)).collect();
    let steep: Vec<f32> = (0..3000).map(|id| if id < 20 { -(id as f32) } else { -40.0 }).collect();
    for (top_k, top_p, count) in
        [(1, 0.9, 1), (50, 0.9, 50), (50, 0.0009, 3), (256, 0.5, 256), (300, 0.5, 300)]
    {
        of_either_kind(&flat, &joint(top_k, top_p)).iter().for_each(|case| check.keeps_first(case, count));
    }
    // 9 weigh 1 each, 2561 others 1/256 each, 10.00390625 together: 9 are 0.4736 of all.
    let order = |count: usize| {
        let (heavy, light): (Vec<usize>, Vec<usize>) = (0..2570).partition(|id| id % 300 == 7);
        heavy.into_iter().chain(light).take(count).map(|id| id as u32).collect::<Vec<u32>>()
    };
    for (top_k, top_p, count) in
        [(50, 0.9, 50), (50, 0.4, 8), (8, 0.9, 8), (9, 0.47, 9), (10, 0.48, 10), (50, 0.475, 16)]
    {
        for case in of_either_kind(&half, &joint(top_k, top_p)) {
            check.keeps(&case, &order(count));
        }
    }
    for (top_k, top_p, min_p, count) in
        [(50, 0.9, 0.0, 4), (3, 0.9, 0.0, 3), (50, 0.99, 0.25, 3), (200, 0.99, 0.0, 7)]
    {
        let params = SamplingParams { min_p, ..joint(top_k, top_p) };
        of_either_kind(&steep, &params).iter().for_each(|case| check.keeps_first(case, count));
    }
}

fn joint_filters_keep_all_of_a_row_of_few_tokens(check: &Check<'_>) {
    for (tokens, apart) in [(10, 1), (10, 290), (1, 1), (40, 37)] {
        let mut row = vec![f32::NEG_INFINITY; 3000];
        (0..tokens).for_each(|place| row[place * apart] = 0.0);
        let ids = |count: usize| (0..count).map(|place| (place * apart) as u32).collect::<Vec<u32>>();
        for (top_p, count) in [(0.95, (tokens * 95).div_ceil(100)), (0.5, tokens.div_ceil(2)), (1.0, tokens)]
        {
            for case in of_either_kind(&row, &joint(50, top_p)) {
                check.keeps(&case, &ids(count));
            }
            let listed = SamplingParams { order: FilterOrder::Default, ..joint(50, top_p) };
            check.keeps(&Case::of(&row, listed), &ids(count));
        }
    }
    // Nothing, and what counts as nothing.
    check.keeps(&Case::of(&[f32::NAN; 500], joint(50, 0.9)), &[]);
    check.keeps(
        &Case::of_probabilities(&[0.0; 500], SamplingParams { temperature: 1.0, ..joint(50, 0.9) }),
        &[],
    );
}

fn filters_that_are_off_remove_nothing(check: &Check<'_>) {
    let row = [0.0, -1e3, -1e30, -f32::MAX];
    for order in [FilterOrder::Default, FilterOrder::Joint, FilterOrder::List(Filter::ALL.to_vec())] {
        check.keeps(&Case::of(&row, SamplingParams { order, ..unit() }), &[0, 1, 2, 3]);
    }
}

fn temperature_last_filters_at_one_and_draws_at_t(check: &Check<'_>) {
    // e^-1 is 0.37 of the first; at T = 4 it is 0.78.
    let params = |min_p, temperature_last| SamplingParams {
        temperature: 4.0,
        min_p,
        temperature_last,
        logprobs: Some(LogprobsParams { mode: LogprobMode::Processed.into(), top_n: 2, ids: vec![] }),
        ..Default::default()
    };
    let row = [0.0, -1.0, -9.0];
    check.keeps_first(&Case::of(&row, params(0.5, true)), 1);
    check.keeps_first(&Case::of(&row, params(0.5, false)), 2);
    let case = Case::of(&row, params(0.3, true));
    check.keeps_first(&case, 2);
    let top = check.sees(&case).logprobs.expect("asked for").top;
    let expected = -(-0.25f64).exp().ln_1p();
    assert!((f64::from(top[0].logprob) - expected).abs() < 2e-7, "{top:?}");
    assert!((f64::from(top[1].logprob) - (expected - 0.25)).abs() < 2e-7, "{top:?}");
}

fn mirostat(tau: f32, eta: f32) -> SamplingParams {
    SamplingParams { mirostat: Some(Mirostat { tau, eta, mu: None }), ..unit() }
}

fn mirostat_keeps_surprises_up_to_mu(check: &Check<'_>) {
    // Surprises of 1, 2, 3, 3 bits.
    for (mu, count) in [(1.0, 1), (1.999, 1), (2.0, 2), (2.999, 2), (3.0, 4), (1e9, 4)] {
        check.keeps_first(&Case { mu, ..Case::of(&DYADIC, mirostat(5.0, 0.1)) }, count);
    }
}

fn mirostat_keeps_at_least_the_first_token(check: &Check<'_>) {
    for mu in [0.999, 0.0, -7.0, -1e30] {
        check.keeps_first(&Case { mu, ..Case::of(&DYADIC, mirostat(5.0, 0.1)) }, 1);
    }
}

fn mu_moves_by_the_surprise_within_the_kept_set(check: &Check<'_>) {
    // Kept are 2/3 and 1/3.
    let mut seen_tokens = [false; 2];
    for position in 0..40 {
        let case = Case { mu: 2.0, ..Case::of(&DYADIC, mirostat(3.0, 0.5)) }.at(1, position);
        let seen = check.sees(&case);
        let p = [2.0 / 3.0, 1.0 / 3.0][seen.token as usize];
        seen_tokens[seen.token as usize] = true;
        let expected = 2.0 - 0.5 * (-f64::log2(p) - 3.0);
        assert!((f64::from(seen.mu) - expected).abs() < 5e-7, "{} for {expected}", seen.mu);
    }
    assert_eq!(seen_tokens, [true; 2]);
}

fn mu_starts_at_twice_tau(check: &Check<'_>) {
    assert_eq!(mirostat(3.3, 0.1).initial_mu(), 6.6);
    // mu = 2: two tokens; a surprise of exactly tau would leave it, eta = 0 does.
    let case = Case::of(&DYADIC, mirostat(1.0, 0.0));
    check.keeps_first(&case, 2);
    assert_eq!(check.sees(&case).mu, 2.0);
    let set = Some(Mirostat { tau: 1.0, eta: 0.0, mu: Some(3.0) });
    check.keeps_first(&Case::of(&DYADIC, SamplingParams { mirostat: set, ..unit() }), 4);
}

fn greedy_and_empty_rows_leave_mu(check: &Check<'_>) {
    let mu = 1.234_567;
    for temperature in [0.0, f32::from_bits(1)] {
        let params = SamplingParams { temperature, ..mirostat(3.0, 0.5) };
        assert_eq!(check.sees(&Case { mu, ..Case::of(&DYADIC, params) }).mu, mu);
    }
    let empty = Case { mu, ..Case::of(&[f32::NEG_INFINITY; 3], mirostat(3.0, 0.5)) };
    assert_eq!(check.sees(&empty).mu, mu);
    assert_eq!(check.sees(&Case { mu, ..Case::of(&DYADIC, unit()) }).mu, mu);
}

fn a_forced_token_leaves_mu(check: &Check<'_>) {
    let case = Case { mu: 2.5, forced: Some(3), ..Case::of(&DYADIC, mirostat(3.0, 0.5)) };
    let seen = check.sees(&case);
    assert_eq!((seen.token, seen.mu), (3, 2.5));
}

fn mirostat_does_not_see_temperature_last(check: &Check<'_>) {
    let row = [0.0, -1.0, -2.0, -3.0];
    for temperature in [0.5, 4.0] {
        for mu in [1.5, 2.0, 3.0] {
            let params = SamplingParams { temperature, ..mirostat(3.0, 0.5) };
            let plain = Case { mu, ..Case::of(&row, params.clone()) };
            let last = Case { mu, ..Case::of(&row, SamplingParams { temperature_last: true, ..params }) };
            let difference = crate::observed::differences(&check.sees(&plain), &check.sees(&last));
            assert!(difference.is_empty(), "{difference}");
        }
    }
}
