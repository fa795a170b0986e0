//! The radius of a row (L7): rows that move by less keep their token.

use gumball_spec::num::philox4x32_10;
use gumball_spec::{
    DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobModes, LogprobsParams, Mirostat,
    SamplingParams,
};

use crate::case::Case;
use crate::rows;
use crate::rules::Check;

rules!(radius_rules:
    L7 rows_that_move_by_less_keep_their_token,
    L7 a_little_more_takes_the_token_of_plain_and_greedy_rows,
    L7 a_token_near_a_cut_has_the_radius_of_the_cut,
    L7 tokens_that_are_not_kept_count_where_filters_do_not_hold_them,
    L7 min_p_before_top_p_bounds_what_stays_behind_the_token,
    L7 thresholds_of_probabilities_have_the_radius_of_the_cut,
    L7 a_first_token_that_alone_is_kept_stays_until_it_is_overtaken,
    L7 a_forced_token_and_one_alone_have_no_bound,
    L7 where_a_distance_overflows_the_radius_is_0,
    L7 a_known_token_and_what_no_rule_names_have_the_radius_0,
    L7 an_empty_row_has_none,
);

use Filter::{EpsilonCutoff, MinP, PLess, TopA, TopK, TopP};

/// How many kinds of parameters [`known`] has.
const KINDS: u32 = 22;

const INF: f32 = f32::INFINITY;

/// Asks for the radius of rows with these parameters.
#[must_use]
pub fn asking(params: SamplingParams) -> SamplingParams {
    let mode = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Radius) };
    SamplingParams { logprobs: Some(LogprobsParams { mode, ..LogprobsParams::default() }), ..params }
}

/// Parameters of which radii are known, a kind for each number.
#[must_use]
pub fn known(number: u32) -> SamplingParams {
    let plain = || SamplingParams {
        temperature: [1.0, 0.7, 1.6][(number / (KINDS + 1)) as usize % 3],
        ..SamplingParams::default()
    };
    let listed = |list: &[Filter]| FilterOrder::List(list.to_vec());
    asking(match number % KINDS {
        0 => plain(),
        1 => SamplingParams { temperature: 0.0, ..plain() },
        2 => SamplingParams { top_k: 50, ..plain() },
        3 => SamplingParams { top_p: 0.9, ..plain() },
        4 => SamplingParams { min_p: 0.05, ..plain() },
        5 => SamplingParams { top_k: 40, top_p: 0.8, ..plain() },
        6 => SamplingParams { top_k: 3, top_p: 0.95, min_p: 0.02, ..plain() },
        7 => SamplingParams { top_p: 0.7, min_p: 0.1, order: FilterOrder::Joint, ..plain() },
        8 => SamplingParams { top_k: 20, temperature_last: true, min_p: 0.01, ..plain() },
        9 => SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.4, ..plain() },
        10 => SamplingParams {
            repetition_penalty: 0.8,
            logit_bias: vec![(3, 2.5), (900, -4.0)],
            top_k: 30,
            ..plain()
        },
        11 => SamplingParams { temperature: 0.0, repetition_penalty: 1.5, frequency_penalty: 0.3, ..plain() },
        12 => SamplingParams { min_p: 0.04, top_p: 0.9, order: listed(&[MinP, TopP]), ..plain() },
        13 => SamplingParams {
            min_p: 0.02,
            top_k: [4, 30][(number / KINDS) as usize % 2],
            top_p: 0.8,
            order: listed(&[MinP, TopK, TopP]),
            ..plain()
        },
        14 => SamplingParams {
            min_p: 0.1,
            top_k: 12,
            top_p: 0.7,
            temperature_last: true,
            order: listed(&[TopK, MinP, TopP]),
            ..plain()
        },
        15 => SamplingParams { epsilon_cutoff: 0.002, ..plain() },
        16 => SamplingParams { top_a: 0.2, ..plain() },
        17 => SamplingParams { p_less: true, ..plain() },
        18 => SamplingParams { top_k: 30, top_a: 0.05, epsilon_cutoff: 0.001, ..plain() },
        19 => SamplingParams {
            top_p: 0.8,
            top_a: 0.1,
            p_less: (number / KINDS).is_multiple_of(2),
            epsilon_cutoff: 0.001,
            order: FilterOrder::Joint,
            ..plain()
        },
        20 => SamplingParams {
            epsilon_cutoff: 0.001,
            top_p: 0.8,
            order: listed(&[EpsilonCutoff, TopP]),
            ..plain()
        },
        _ => SamplingParams {
            p_less: true,
            top_a: 0.02,
            top_k: 20,
            top_p: 0.9,
            min_p: 0.01,
            temperature_last: true,
            order: listed(&[PLess, TopA, TopK, TopP, MinP]),
            ..plain()
        },
    })
}

/// A row that is like a model's, and a case of it with a history.
#[must_use]
pub fn case(number: u32, vocab: usize) -> (Vec<f32>, Case) {
    let [words, ..] = philox4x32_10(u64::from(number), [0; 4]);
    let row = rows::bell(vocab, [2.0, 3.0, 0.3][(number / KINDS) as usize % 3], u64::from(words));
    let history: Vec<u32> = (0..30).map(|place| (words ^ (place * 77)) % vocab as u32).collect();
    let case = Case::of(&row, known(number)).after(&history[..9], &history[9..]).at(u64::from(number), 30);
    (row, case)
}

/// Ways in which all logits of a row move by a distance: at random, those of the token down and all others
/// up, or those of likely tokens down and of the unlikely up, or the other way round.
#[must_use]
pub fn moved(row: &[f32], token: usize, by: f32, way: u32) -> Vec<f32> {
    let mut sorted = row.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let middle = sorted[[1, 3, 20, 50][way as usize % 4].min(row.len() - 1)];
    let sign = |(id, z): (usize, &f32)| match way % 8 {
        0..3 if id == token => -1.0,
        0 => 1.0,
        1..3 => {
            if philox4x32_10(u64::from(way), [id as u32, 0, 0, 0])[0].is_multiple_of(2) {
                1.0
            } else {
                -1.0
            }
        }
        3..6 => {
            if *z >= middle {
                -1.0
            } else {
                1.0
            }
        }
        _ if id == token => -1.0,
        _ => {
            if *z >= middle {
                1.0
            } else {
                -1.0
            }
        }
    };
    row.iter().enumerate().map(|(id, z)| z + sign((id, z)) * by).collect()
}

fn radius_of(check: &Check<'_>, case: &Case) -> (i32, f32) {
    let seen = check.sees(case);
    (seen.token, seen.logprobs.expect("asked for").second)
}

fn with_row(case: &Case, row: &[f32]) -> Case {
    Case { logits: Case::of(row, case.params.clone()).logits, ..case.clone() }
}

fn rows_that_move_by_less_keep_their_token(check: &Check<'_>) {
    let mut known = 0;
    for number in 0..check.backend.patience(704) {
        let (row, case) = case(number, 1_000);
        let (token, radius) = radius_of(check, &case);
        known += u32::from(radius > 0.0);
        let way = number % 8;
        let moved = moved(&row, token as usize, radius.min(8.0) * 0.9999, way);
        assert_eq!(
            check.sees(&with_row(&case, &moved)).token,
            token,
            "{number} moved by {radius}, way {way}"
        );
    }
    assert!(known * 10 > check.backend.patience(704) * 8, "{known} radii are above 0");
}

fn a_little_more_takes_the_token_of_plain_and_greedy_rows(check: &Check<'_>) {
    for number in (0..check.backend.patience(64)).map(|number| number * KINDS + number % 2) {
        let (row, case) = case(number, 700);
        let (token, radius) = radius_of(check, &case);
        let moved = moved(&row, token as usize, radius * 1.001 + 0.001, 0);
        assert_ne!(check.sees(&with_row(&case, &moved)).token, token, "{number} moved by more than {radius}");
    }
}

fn a_token_near_a_cut_has_the_radius_of_the_cut(check: &Check<'_>) {
    // Whoever wins, and the scores of all others are far below with so low a temperature.
    let params = asking(SamplingParams { temperature: 0.01, top_k: 2, ..SamplingParams::default() });
    let (token, radius) = radius_of(check, &Case::of(&[9.0, 0.0, 0.0, -20.0], params.clone()));
    assert_eq!((token, radius > 4.4 && radius < 4.5), (0, true), "{radius}");
    // The first token that is not kept counts with its edited logit, 3.5.
    let biased = SamplingParams { top_k: 1, logit_bias: vec![(1, -5.0)], ..params.clone() };
    let (token, radius) = radius_of(check, &Case::of(&[9.0, 8.5, 3.0], biased));
    assert_eq!((token, radius > 2.7 && radius < 2.75), (0, true), "{radius}");
    // Top-k keeps one of two that are equal: it leaves as soon as anything moves.
    let params = asking(SamplingParams { top_k: 1, ..params });
    assert_eq!(radius_of(check, &Case::of(&[5.0, 5.0], params)), (0, 0.0));
}

fn tokens_that_are_not_kept_count_where_filters_do_not_hold_them(check: &Check<'_>) {
    let row = rows::bell(600, 2.0, 77);
    let radii = |params: SamplingParams| -> Vec<f32> {
        let of = |seed| Case { seed, ..Case::of(&row, asking(params.clone())) };
        (0..40).map(|seed| radius_of(check, &of(seed)).1).collect()
    };
    // Far behind the cut of top-k or min-p is out of reach. Of seven in ten tokens another one that top-p cut
    // off would win, and is not always held out.
    let zeros = |params| radii(params).iter().filter(|radius| **radius == 0.0).count();
    let by_top_p = zeros(SamplingParams { top_p: 0.3, ..SamplingParams::default() });
    assert!((5..26).contains(&by_top_p), "{by_top_p}");
    assert_eq!(zeros(SamplingParams { min_p: 0.3, ..SamplingParams::default() }), 0);
    assert_eq!(zeros(SamplingParams { top_k: 4, ..SamplingParams::default() }), 0);
}

fn min_p_before_top_p_bounds_what_stays_behind_the_token(check: &Check<'_>) {
    // min-p keeps two tokens, of weights 1 and 1/2, and drops the second one when it is half a bit farther
    // away. So only the first one's weight of 1 is sure to be there, of which 1/2 may come before it: odds of
    // 1 : 1, which may grow to top-p's 0.7 : 0.3. If min-p comes last, it alone bounds the first token, after
    // 1.5 bits.
    let bit = std::f32::consts::LN_2;
    let mut row = [-4.0 * bit; 10];
    row[..2].copy_from_slice(&[0.0, -bit]);
    let of = |order: &[Filter]| -> Vec<(i32, f32)> {
        let order = FilterOrder::List(order.to_vec());
        let params =
            SamplingParams { min_p: 2f32.powf(-1.5), top_p: 0.7, order, ..SamplingParams::default() };
        let of = |seed| Case { seed, ..Case::of(&row, asking(params.clone())) };
        (0..40).map(|seed| radius_of(check, &of(seed))).collect()
    };
    let [before, behind] = [of(&[MinP, TopP]), of(&[TopP, MinP])];
    let largest = |radii: &[(i32, f32)]| {
        radii.iter().filter(|(token, _)| *token == 0).map(|(_, radius)| *radius).fold(0.0, f32::max)
    };
    for (radii, bits) in [(&before, (0.7f32 / 0.3).log2()), (&behind, 1.5)] {
        let found = largest(radii) / bit * 2.0;
        assert!((found - bits).abs() < 1e-3, "{found} {bits}");
    }
    assert!(before.iter().zip(&behind).all(|(one, other)| one.0 == other.0 && one.1 <= other.1));
}

fn thresholds_of_probabilities_have_the_radius_of_the_cut(check: &Check<'_>) {
    // Of the weights 1 and 1/8 both are kept, and 2000 of 1/128 dropped.
    let (bit, mass) = (std::f32::consts::LN_2, 1.0 + 0.125 + 2000.0 / 128.0f32);
    let mut row = [-7.0 * bit; 2002];
    row[..2].copy_from_slice(&[0.0, -3.0 * bit]);
    let plain = SamplingParams::default;
    let squares = 1.0 + 1.0 / 64.0 + 2000.0 / 16384.0f32;
    for (params, bits, ups) in [
        (SamplingParams { epsilon_cutoff: 0.1 / mass, ..plain() }, 0.125f32.log2() - 0.1f32.log2(), 2..2002),
        (SamplingParams { top_a: 1.0, ..plain() }, (mass.log2() - 3.0) / 2.0, 0..1),
        (SamplingParams { p_less: true, ..plain() }, ((mass / squares).log2() - 3.0) / 2.0, 0..1),
    ] {
        let of = |seed| Case { seed, ..Case::of(&row, asking(params.clone())) };
        let drawn =
            (0..check.backend.patience(300).max(100)).map(|seed| (seed, radius_of(check, &of(seed.into()))));
        let of_second = drawn.filter(|(_, (token, _))| *token == 1);
        let (seed, (_, radius)) = of_second.max_by(|a, b| a.1.1.total_cmp(&b.1.1)).expect("a seed");
        let found = radius / bit * 2.0;
        assert!((found - bits).abs() < 2e-3, "{found} {bits}, {params:?}");
        // A little more drops the token.
        let sign = |id: usize| if ups.contains(&id) { 1.0 } else { -1.0 };
        let moved: Vec<f32> = row.iter().enumerate().map(|(id, z)| z + sign(id) * radius * 1.2).collect();
        assert_eq!(check.sees(&with_row(&of(seed.into()), &moved)).token, 0, "{params:?}");
    }
}

fn a_first_token_that_alone_is_kept_stays_until_it_is_overtaken(check: &Check<'_>) {
    // The second token is 3 below; so low a temperature leaves no other's score near.
    let mut row = [-9.0f32; 40];
    row[..2].copy_from_slice(&[4.0, 1.0]);
    let plain = || SamplingParams { temperature: 0.001, temperature_last: true, ..SamplingParams::default() };
    for params in [
        SamplingParams { p_less: true, ..plain() },
        SamplingParams { top_a: 0.9, ..plain() },
        SamplingParams { min_p: 1.0, ..plain() },
        SamplingParams { p_less: true, top_p: 0.5, order: FilterOrder::List(vec![PLess, TopP]), ..plain() },
    ] {
        let (token, radius) = radius_of(check, &Case::of(&row, asking(params.clone())));
        assert_eq!((token, radius > 1.48 && radius < 1.5), (0, true), "{radius}, {params:?}");
    }
}

fn a_forced_token_and_one_alone_have_no_bound(check: &Check<'_>) {
    let row = [1.0, 2.0, -INF, 0.5];
    let plain = || asking(SamplingParams::default());
    let forced = |forced| Case { forced: Some(forced), ..Case::of(&row, plain()) };
    assert_eq!([0, 2].map(|id| radius_of(check, &forced(id)).1), [INF; 2]);
    // What no distance bounds comes before a token that is alone, and after one that is forced.
    let typical = SamplingParams { typical_p: 0.9, ..plain() };
    let of_typical = Case { mask: Some(vec![0b0010]), ..Case::of(&row, typical) };
    let forced = Case { forced: Some(1), ..of_typical.clone() };
    assert_eq!([of_typical, forced].map(|case| radius_of(check, &case)), [(1, 0.0), (1, INF)]);
    for params in [
        SamplingParams { temperature: 0.0, ..plain() },
        plain(),
        SamplingParams { top_k: 2, min_p: 0.1, top_p: 0.9, ..plain() },
        SamplingParams { p_less: true, ..plain() },
    ] {
        let alone = Case { mask: Some(vec![0b0010]), ..Case::of(&row, params.clone()) };
        assert_eq!(radius_of(check, &alone), (1, INF));
        assert!(radius_of(check, &Case::of(&row, params)).1 < 1.0);
    }
}

fn where_a_distance_overflows_the_radius_is_0(check: &Check<'_>) {
    let plain = || asking(SamplingParams::default());
    let greedy = || SamplingParams { temperature: 0.0, ..plain() };
    let huge = SamplingParams { repetition_penalty: 1e-45, ..plain() };
    for (row, history, params) in [
        (vec![1.5, 1.0], &[0][..], huge.clone()),
        (vec![1.5, 1.0, 0.5], &[0, 2], huge),
        (vec![3e38, -3e38], &[], greedy()),
        (vec![5.0, f32::MIN], &[], plain()),
        (vec![f32::MAX, f32::MIN], &[], SamplingParams { top_p: 0.5, min_p: 0.1, ..plain() }),
        ([vec![INF], vec![-1e38; 700]].concat(), &[], SamplingParams { temperature: 0.1, ..plain() }),
    ] {
        assert_eq!(
            radius_of(check, &Case::of(&row, params.clone()).after(history, &[])).1,
            0.0,
            "{params:?}"
        );
    }
    // What a float holds has its bound.
    for params in [greedy(), SamplingParams { top_k: 1, ..plain() }] {
        let far = radius_of(check, &Case::of(&[5.0, -1e38], params)).1;
        assert!(far > 4.99e37 && far < 5e37, "{far}");
    }
}

fn a_known_token_and_what_no_rule_names_have_the_radius_0(check: &Check<'_>) {
    let row = rows::bell(300, 3.0, 5);
    let plain = || asking(SamplingParams::default());
    let dynamic = DynamicTemperature { min: 0.5, max: 1.0, exponent: 1.0 };
    for params in [
        SamplingParams { typical_p: 0.9, ..plain() },
        SamplingParams { top_n_sigma: 1.0, ..plain() },
        SamplingParams { top_k: 40, p_less: true, ..plain() },
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.1, ..plain() },
        SamplingParams { mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }), ..plain() },
        SamplingParams { dynamic_temperature: Some(dynamic), ..plain() },
        SamplingParams { min_p: 0.1, min_keep: 2, ..plain() },
        SamplingParams { frequency_penalty: -0.1, ..plain() },
    ] {
        assert_eq!(radius_of(check, &Case::of(&row, params)).1, 0.0);
    }
    // At temperature 0 filters do not act.
    let greedy = SamplingParams { temperature: 0.0, typical_p: 0.9, min_keep: 2, ..plain() };
    assert!(radius_of(check, &Case::of(&row, greedy)).1 > 0.0);
}

fn an_empty_row_has_none(check: &Check<'_>) {
    let empty = Case::of(&[-INF, f32::NAN], asking(SamplingParams::default()));
    assert_eq!(radius_of(check, &empty), (-1, -INF));
}
