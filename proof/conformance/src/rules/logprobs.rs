//! Logprobs (L1 to L3): modes, ranks, lists, and their error against f64.

use gumball_spec::logprobs::TokenLogprob;
use gumball_spec::{DynamicTemperature, LogprobMode, LogprobModes, LogprobsParams, NONE, SamplingParams};

use crate::case::{Case, UNIT};
use crate::reference::Reference;
use crate::rows;
use crate::rules::Check;

rules!(logprob_rules:
    L1 raw_speaks_of_the_row_as_it_came,
    L1 edited_speaks_of_the_row_after_its_edits,
    L1 tempered_divides_by_the_temperature,
    L1 processed_speaks_of_the_kept_set,
    L1 greedy_rows_are_certain_of_the_winner,
    L1 a_forced_token_outside_the_mode_has_no_rank,
    L1 a_forced_token_is_the_only_member_of_processed,
    L1 an_empty_row_has_raw_logprobs_and_no_others,
    L1 a_second_mode_tells_of_the_token_what_it_tells_alone,
    L2 ranks_follow_the_order_of_the_mode,
    L2 a_token_alone_has_the_rank_that_it_has_among_others,
    L2 the_top_list_ends_in_absent_entries,
    L2 the_top_list_may_be_as_long_as_the_row,
    L2 a_member_may_have_a_logprob_of_minus_infinity,
    L2 requested_ids_come_in_their_order,
    L3 whole_bits_give_the_nearest_logprob,
    L3 the_error_is_below_a_millionth,
    L3 the_error_stays_small_in_hostile_rows,
    L3 exponentials_sum_to_one,
);

const INF: f32 = f32::INFINITY;

fn asking(mode: LogprobMode, top_n: u32, ids: &[u32]) -> SamplingParams {
    let ask = LogprobsParams { mode: mode.into(), top_n, ids: ids.to_vec() };
    SamplingParams { logprobs: Some(ask), ..Default::default() }
}

/// Holds entries to ids, ranks and f64 logprobs.
fn holds(seen: &[TokenLogprob], expected: &[(i32, u32, f64)]) {
    assert_eq!(seen.len(), expected.len());
    for (seen, (id, rank, logprob)) in seen.iter().zip(expected) {
        assert_eq!((seen.id, seen.rank), (*id, *rank), "{seen:?}");
        let near = (f64::from(seen.logprob) - logprob).abs() < 4e-7;
        assert!(near || f64::from(seen.logprob) == *logprob, "{seen:?}, not {logprob}");
    }
}

const ABSENT: (i32, u32, f64) = (NONE, 0, f64::NEG_INFINITY);
const NO: f64 = f64::NEG_INFINITY;

/// Logits of 1/2, 1/4, 1/8, 1/8 at T = 1, and the rest when the first is banned.
fn dyadic() -> [f32; 4] {
    let ln2 = std::f32::consts::LN_2;
    [0.0, -ln2, -2.0 * ln2, -2.0 * ln2]
}

fn ln(p: f64) -> f64 {
    p.ln()
}

fn raw_speaks_of_the_row_as_it_came(check: &Check<'_>) {
    let params = SamplingParams {
        temperature: 0.3,
        top_k: 1,
        banned_ids: vec![0],
        logit_bias: vec![(2, 50.0)],
        ..asking(LogprobMode::Raw, 5, &[3, 0])
    };
    let case = Case { mask: Some(vec![0b0110]), ..Case::of(&dyadic(), params) };
    let seen = check.sees(&case).logprobs.expect("asked for");
    holds(&[seen.token], &[(2, 3, ln(0.125))]);
    holds(&seen.top, &[(0, 1, ln(0.5)), (1, 2, ln(0.25)), (2, 3, ln(0.125)), (3, 4, ln(0.125)), ABSENT]);
    holds(&seen.ids, &[(3, 4, ln(0.125)), (0, 1, ln(0.5))]);
    // Only the input's own -inf and NaN are at -inf; +inf is the largest finite logit.
    let row = [-INF, f32::NAN, INF, 0.0, INF];
    let seen = check.sees(&Case::of(&row, asking(LogprobMode::Raw, 0, &[0, 1, 2, 3, 4])));
    let ids = seen.logprobs.expect("asked for").ids;
    holds(&ids[..3], &[(0, 0, NO), (1, 0, NO), (2, 1, ln(0.5))]);
    assert_eq!((ids[3].rank, ids[3].logprob), (3, -f32::MAX));
    holds(&ids[4..], &[(4, 2, ln(0.5))]);
}

fn edited_speaks_of_the_row_after_its_edits(check: &Check<'_>) {
    let params = SamplingParams {
        temperature: 0.3,
        top_k: 1,
        banned_ids: vec![0],
        logit_bias: vec![(2, std::f32::consts::LN_2)],
        ..asking(LogprobMode::Edited, 4, &[0, 1])
    };
    let seen = check.sees(&Case::of(&dyadic(), params)).logprobs.expect("asked for");
    // Left are 2/8, 2/8, 1/8.
    holds(&seen.top, &[(1, 1, ln(0.4)), (2, 2, ln(0.4)), (3, 3, ln(0.2)), ABSENT]);
    holds(&seen.ids, &[(0, 0, NO), (1, 1, ln(0.4))]);
}

fn tempered_divides_by_the_temperature(check: &Check<'_>) {
    let params = SamplingParams { temperature: 0.5, top_k: 1, ..asking(LogprobMode::Tempered, 2, &[3]) };
    let seen = check.sees(&Case::of(&dyadic(), params)).logprobs.expect("asked for");
    // Squares: 16, 4, 1, 1 of 22.
    holds(&seen.top, &[(0, 1, ln(16.0 / 22.0)), (1, 2, ln(4.0 / 22.0))]);
    holds(&seen.ids, &[(3, 4, ln(1.0 / 22.0))]);
}

fn processed_speaks_of_the_kept_set(check: &Check<'_>) {
    let params = SamplingParams { temperature: 0.5, top_k: 2, ..asking(LogprobMode::Processed, 3, &[1, 2]) };
    let seen = check.sees(&Case::of(&dyadic(), params)).logprobs.expect("asked for");
    holds(&seen.top, &[(0, 1, ln(0.8)), (1, 2, ln(0.2)), ABSENT]);
    holds(&seen.ids, &[(1, 2, ln(0.2)), (2, 0, NO)]);
    // After a dropped first token ranks start again at 1.
    let xtc = SamplingParams {
        temperature: UNIT,
        xtc_probability: 1.0,
        xtc_threshold: 0.2,
        ..asking(LogprobMode::Processed, 3, &[0, 1])
    };
    let case = Case::of(&[0.0, -1.0, -2.0, -2.0], xtc);
    let seen = check.sees(&case).logprobs.expect("asked for");
    holds(&seen.top, &[(1, 1, ln(0.5)), (2, 2, ln(0.25)), (3, 3, ln(0.25))]);
    holds(&seen.ids, &[(0, 0, NO), (1, 1, ln(0.5))]);
}

fn greedy_rows_are_certain_of_the_winner(check: &Check<'_>) {
    for mode in [LogprobMode::Tempered, LogprobMode::Processed] {
        let params = SamplingParams { temperature: 0.0, ..asking(mode, 2, &[0, 1, 2]) };
        let seen = check.sees(&Case::of(&[1.0, 3.0, 3.0], params)).logprobs.expect("asked for");
        holds(&[seen.token], &[(1, 1, 0.0)]);
        holds(&seen.top, &[(1, 1, 0.0), ABSENT]);
        holds(&seen.ids, &[(0, 0, NO), (1, 1, 0.0), (2, 0, NO)]);
    }
    // Raw and edited are at T = 1 for any T.
    for mode in [LogprobMode::Raw, LogprobMode::Edited] {
        let params = SamplingParams { temperature: 0.0, ..asking(mode, 4, &[]) };
        let seen = check.sees(&Case::of(&dyadic(), params)).logprobs.expect("asked for");
        holds(&seen.top, &[(0, 1, ln(0.5)), (1, 2, ln(0.25)), (2, 3, ln(0.125)), (3, 4, ln(0.125))]);
    }
}

fn a_forced_token_outside_the_mode_has_no_rank(check: &Check<'_>) {
    let forced = |mode, params: SamplingParams| {
        let logprobs = asking(mode, 0, &[]).logprobs;
        let case = Case::of(&dyadic(), SamplingParams { logprobs, ..params });
        check.sees(&Case { forced: Some(3), ..case }).logprobs.expect("asked for").token
    };
    let cut = SamplingParams { top_k: 2, ..Default::default() };
    holds(&[forced(LogprobMode::Tempered, cut)], &[(3, 4, ln(0.125))]);
    let banned = SamplingParams { banned_ids: vec![3], ..Default::default() };
    holds(&[forced(LogprobMode::Edited, banned.clone())], &[(3, 0, NO)]);
    holds(&[forced(LogprobMode::Raw, banned)], &[(3, 4, ln(0.125))]);
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    holds(&[forced(LogprobMode::Tempered, greedy)], &[(3, 0, NO)]);
}

fn a_forced_token_is_the_only_member_of_processed(check: &Check<'_>) {
    let ask = asking(LogprobMode::Processed, 2, &[0, 3]);
    for params in [
        SamplingParams { top_k: 2, ..ask.clone() },
        SamplingParams { temperature: 0.0, ..ask.clone() },
        SamplingParams { banned_ids: vec![3], ..ask.clone() },
        SamplingParams { allowed_ids: Some(vec![]), ..ask.clone() },
        ask,
    ] {
        let modes = params.logprobs.clone().expect("asked for");
        let mode = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Processed) };
        let second = LogprobsParams { mode, ..modes };
        let case = Case { forced: Some(3), ..Case::of(&dyadic(), params.clone()) };
        let seen = check.sees(&case).logprobs.expect("asked for");
        holds(&[seen.token], &[(3, 1, 0.0)]);
        holds(&seen.top, &[(3, 1, 0.0), ABSENT]);
        holds(&seen.ids, &[(0, 0, NO), (3, 1, 0.0)]);
        let params = SamplingParams { logprobs: Some(second), ..params };
        let seen = check.sees(&Case { forced: Some(3), ..Case::of(&dyadic(), params) });
        assert_eq!(seen.logprobs.expect("asked for").second, 0.0);
    }
}

fn an_empty_row_has_raw_logprobs_and_no_others(check: &Check<'_>) {
    for mode in LogprobMode::OF_LOGPROBS {
        for temperature in [0.0, 1.0] {
            let ask = SamplingParams { temperature, ..asking(mode, 1, &[1]) };
            let params = SamplingParams { allowed_ids: Some(vec![]), ..ask };
            let seen = check.sees(&Case::of(&dyadic(), params)).logprobs.expect("asked for");
            holds(&[seen.token], &[ABSENT]);
            let raw = mode == LogprobMode::Raw;
            holds(&seen.top, &[if raw { (0, 1, ln(0.5)) } else { ABSENT }]);
            holds(&seen.ids, &[if raw { (1, 2, ln(0.25)) } else { (1, 0, NO) }]);
        }
    }
    let row = [-INF, f32::NAN];
    let seen = check.sees(&Case::of(&row, asking(LogprobMode::Raw, 1, &[1]))).logprobs.expect("asked for");
    holds(&seen.top, &[ABSENT]);
    holds(&seen.ids, &[(1, 0, NO)]);
}

fn a_second_mode_tells_of_the_token_what_it_tells_alone(check: &Check<'_>) {
    let base = SamplingParams {
        temperature: 0.7,
        banned_ids: vec![0],
        logit_bias: vec![(2, 1.5)],
        ..Default::default()
    };
    let dynamic_temperature = Some(DynamicTemperature { min: 0.3, max: 1.7, exponent: 0.8 });
    let requests = [
        base.clone(),
        SamplingParams { top_p: 0.9, ..base.clone() },
        SamplingParams { top_p: 0.9, banned_ids: vec![], logit_bias: vec![], ..base.clone() },
        SamplingParams { top_k: 30, min_p: 0.02, ..base.clone() },
        SamplingParams { typical_p: 0.8, xtc_probability: 1.0, xtc_threshold: 0.01, ..base.clone() },
        SamplingParams { dynamic_temperature, ..base.clone() },
        SamplingParams { temperature: 0.0, ..base.clone() },
        SamplingParams { allowed_ids: Some(vec![]), ..base },
    ];
    let row = rows::model_like(900, 3);
    let pairs = LogprobMode::OF_LOGPROBS
        .into_iter()
        .flat_map(|first| LogprobMode::OF_LOGPROBS.map(|second| (first, second)));
    for (first, second) in pairs.filter(|(first, second)| first != second) {
        for (params, forced) in requests.iter().flat_map(|params| [(params, None), (params, Some(0))]) {
            let tells = |mode: LogprobModes, top_n, ids| {
                let logprobs = Some(LogprobsParams { mode, top_n, ids });
                let case = Case { forced, ..Case::of(&row, SamplingParams { logprobs, ..params.clone() }) };
                check.sees(&case).logprobs.expect("asked for")
            };
            let both = tells(LogprobModes { first, second: Some(second) }, 3, vec![7, 0]);
            let alone = tells(first.into(), 3, vec![7, 0]);
            assert_eq!((both.token, &both.top, &both.ids), (alone.token, &alone.top, &alone.ids));
            assert_eq!(
                both.second,
                tells(second.into(), 0, vec![]).token.logprob,
                "{first},{second} {params:?}"
            );
            assert_eq!(alone.second, -INF);
        }
    }
}

fn ranks_follow_the_order_of_the_mode(check: &Check<'_>) {
    let row = rows::grid(700, 0.5, 9, 5);
    let order = Reference::new(&row).order;
    let ids: Vec<u32> = (0..700).collect();
    for mode in [LogprobMode::Raw, LogprobMode::Tempered] {
        let seen = check.sees(&Case::of(&row, asking(mode, 700, &ids))).logprobs.expect("asked for");
        for (place, id) in order.iter().enumerate() {
            assert_eq!((seen.top[place].id, seen.top[place].rank), (*id as i32, place as u32 + 1));
            assert_eq!(seen.ids[*id], seen.top[place]);
        }
    }
}

fn a_token_alone_has_the_rank_that_it_has_among_others(check: &Check<'_>) {
    // Peaks that stand out of their tiles, some of them equal, two in one tile; and tokens that others of
    // their tile precede.
    let mut row = rows::bell(1_100, 1.0, 3);
    let peaks = [77, 5, 300, 301, 600, 900, 950];
    peaks.iter().for_each(|id| row[*id] = 30.0);
    row[77] = 31.0;
    row[950] = 25.0;
    row[1_099] = -INF;
    let mut edited = row.clone();
    (edited[77], edited[301], edited[950]) = (-INF, -INF, 27.0);
    for (mode, row_of) in
        [(LogprobMode::Raw, &row), (LogprobMode::Edited, &edited), (LogprobMode::Tempered, &edited)]
    {
        let order = Reference::new(row_of).order;
        let params = SamplingParams {
            banned_ids: vec![77],
            logit_bias: vec![(950, 2.0)],
            temperature: 0.7,
            ..asking(mode, 0, &[])
        };
        let mut mask = vec![!0; 35];
        mask[301 / 32] &= !(1 << (301 % 32));
        for id in peaks.into_iter().chain((0..1_100).step_by(157)) {
            let case = Case { mask: Some(mask.clone()), ..Case::of(&row, params.clone()) };
            let seen = check.sees(&Case { forced: Some(id as u32), ..case }).logprobs.expect("asked for");
            let rank = order.iter().position(|other| *other == id).map_or(0, |place| place as u32 + 1);
            assert_eq!(seen.token.rank, rank, "{mode:?} of {id}");
        }
    }
}

fn the_top_list_ends_in_absent_entries(check: &Check<'_>) {
    for (top_n, members) in [(0, 3), (2, 3), (3, 3), (5, 3), (300, 3)] {
        let row = [1.0, -INF, 2.0, f32::NAN, 0.0];
        let seen = check.sees(&Case::of(&row, asking(LogprobMode::Raw, top_n, &[])));
        let top = seen.logprobs.expect("asked for").top;
        assert_eq!(top.len(), top_n as usize);
        for (place, entry) in top.iter().enumerate() {
            let expected = [2, 0, 4].get(place).copied().unwrap_or(NONE);
            assert_eq!((entry.id, entry.rank > 0), (expected, place < members));
            assert_eq!(entry.logprob == -INF, place >= members);
        }
    }
}

fn the_top_list_may_be_as_long_as_the_row(check: &Check<'_>) {
    // Rows of ties, of few large tiles and of one level, where no maximum bounds the list.
    let vocab = 5_000;
    let mut few = rows::bell(vocab, 0.1, 3);
    few[300..700].iter_mut().for_each(|z| *z += 10.0);
    let spread: Vec<f32> = (0..vocab as u32).map(|id| (id.wrapping_mul(0x9E37_79B9) as i32) as f32).collect();
    for row in [rows::grid(vocab, 0.5, 9, 5), few, vec![1.0; vocab], spread] {
        for (top_n, mode, temperature) in [
            (1, LogprobMode::Raw, 1.0),
            (20, LogprobMode::Edited, 0.0),
            (64, LogprobMode::Tempered, 0.7),
            (600, LogprobMode::Raw, 1.0),
            (1_025, LogprobMode::Processed, 2.0),
            (5_000, LogprobMode::Raw, 1.0),
        ] {
            let params = SamplingParams { temperature, ..asking(mode, top_n, &[]) };
            let top = check.sees(&Case::of(&row, params)).logprobs.expect("asked for").top;
            assert!(top.iter().enumerate().all(|(place, entry)| entry.rank == place as u32 + 1));
        }
    }
}

fn a_member_may_have_a_logprob_of_minus_infinity(check: &Check<'_>) {
    // 2 MAX / 0.5 is beyond f32; the difference itself is not, in f64.
    let params = SamplingParams { temperature: 0.5, ..asking(LogprobMode::Tempered, 3, &[0]) };
    let seen = check.sees(&Case::of(&[-f32::MAX, f32::MAX], params)).logprobs.expect("asked for");
    holds(&seen.top, &[(1, 1, 0.0), (0, 2, NO), ABSENT]);
    holds(&seen.ids, &[(0, 2, NO)]);
    let params = SamplingParams { temperature: 4.0, ..asking(LogprobMode::Tempered, 0, &[0]) };
    let seen = check.sees(&Case::of(&[-f32::MAX, f32::MAX], params)).logprobs.expect("asked for");
    assert_eq!((seen.ids[0].logprob, seen.ids[0].rank), (-f32::MAX / 2.0, 2));
}

fn requested_ids_come_in_their_order(check: &Check<'_>) {
    let ids = [3, 0, 3, 2, 1];
    let seen = check.sees(&Case::of(&dyadic(), asking(LogprobMode::Raw, 0, &ids)));
    let seen: Vec<i32> = seen.logprobs.expect("asked for").ids.iter().map(|entry| entry.id).collect();
    assert_eq!(seen, ids.map(|id| id as i32));
}

fn whole_bits_give_the_nearest_logprob(check: &Check<'_>) {
    // Z is 2^44 exactly, so ln Z is ln 2 exactly, and the rest is two f64 operations and one rounding.
    let params = SamplingParams { temperature: UNIT, ..asking(LogprobMode::Tempered, 4, &[]) };
    let row = [0.0, -1.0, -2.0, -2.0];
    let seen = check.sees(&Case::of(&row, params)).logprobs.expect("asked for");
    for (entry, z) in seen.top.iter().zip(row) {
        let expected = (f64::from(z) / f64::from(UNIT) - std::f64::consts::LN_2) as f32;
        assert_eq!(entry.logprob.to_bits(), expected.to_bits(), "{entry:?}");
    }
}

/// Returns the largest error of the logprobs above -16 of a row.
fn error(check: &Check<'_>, row: &[f32], temperature: f32) -> f64 {
    let ids: Vec<u32> = (0..row.len() as u32).collect();
    let params = SamplingParams { temperature, ..asking(LogprobMode::Tempered, 0, &ids) };
    let seen = check.sees(&Case::of(row, params)).logprobs.expect("asked for");
    let reference = Reference::new(row);
    let all = 0..reference.order.len();
    let p = reference.probabilities(all.clone(), temperature.into());
    let first = reference.logprob(all, 0, temperature.into());
    reference
        .order
        .iter()
        .enumerate()
        .map(|(place, id)| (f64::from(seen.ids[*id].logprob), (p[place] / p[0]).ln() + first))
        .filter(|(_, exact)| *exact > -16.0)
        .map(|(seen, exact)| (seen - exact).abs())
        .fold(0.0, f64::max)
}

fn the_error_is_below_a_millionth(check: &Check<'_>) {
    for seed in 0..u64::from(check.backend.patience(24).max(4)) {
        let vocab = [3, 256, 700, 1030][seed as usize % 4];
        for row in [rows::model_like(vocab, seed), rows::bell(vocab, 1.0, seed)] {
            let error = error(check, &row, [0.5, 1.0, 2.0][seed as usize % 3]);
            // Half an ulp below 16 is 4.8e-7, and 4e-7 is the worst of ln(mass) in random rows.
            assert!(error < 9e-7, "{error:e}");
        }
    }
}

fn the_error_stays_small_in_hostile_rows(check: &Check<'_>) {
    // Each token is one q rounded down or up by almost half, the tile's maximum too small to hide it.
    for seed in 0..u64::from(check.backend.patience(8)) {
        let mut row = rows::bell(1024, 0.02, seed);
        row.iter_mut().for_each(|z| *z -= 12.0 + seed as f32);
        row[0] = 0.0;
        let error = error(check, &row, 1.0);
        assert!(error < 1.9e-6, "{error:e}");
    }
}

fn exponentials_sum_to_one(check: &Check<'_>) {
    for (seed, params) in [
        (1, SamplingParams { top_k: 40, ..Default::default() }),
        (2, SamplingParams { top_p: 0.7, ..Default::default() }),
        (3, SamplingParams { typical_p: 0.6, temperature: 1.7, ..Default::default() }),
        (4, SamplingParams::default()),
    ] {
        let logprobs = asking(LogprobMode::Processed, 900, &[]).logprobs;
        let case = Case::of(&rows::model_like(900, seed), SamplingParams { logprobs, ..params });
        let top = check.sees(&case).logprobs.expect("asked for").top;
        let sum: f64 = top.iter().map(|entry| f64::from(entry.logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1.5e-6, "{sum}");
    }
}
