//! The order and the mass of probabilities, odd numbers among them, and the law of their draws (P1).

use gumball_spec::{LogprobMode, LogprobsParams, NONE, SamplingParams, Status};

use crate::case::{Case, Dtype, Logits};
use crate::law::Law;
use crate::rows;
use crate::rules::Check;
use crate::statistics::FALSE_ALARM;

rules!(measure_rules:
    P1 the_order_is_by_probability_then_id,
    P1 zero_and_what_is_below_it_are_never_kept,
    P1 nan_and_negative_probabilities_say_nan_unless_banned,
    P1 an_infinite_probability_counts_as_the_largest_number,
    P1 a_row_without_a_positive_number_is_empty,
    P1 a_row_need_not_sum_to_1,
    P1 top_p_of_probabilities_is_reached_exactly,
    P1 min_p_of_probabilities_is_met_exactly,
    P1 subnormal_probabilities_weigh_what_they_say,
    P1 equal_probabilities_share_the_mass_equally,
    P1 small_probabilities_of_one_tile_add_up,
    P1 greedy_takes_the_first_of_the_likeliest,
    P1 draws_follow_the_probabilities,
    P1 draws_of_subnormal_probabilities_follow_them,
    P1 draws_after_filters_follow_what_is_kept,
    P3 a_logprob_is_the_logarithm_of_the_share,
    P3 logprobs_of_what_is_no_token_are_minus_infinity,
);

fn plain() -> SamplingParams {
    SamplingParams::default()
}

fn of(row: &[f32], params: SamplingParams) -> Case {
    Case::of_probabilities(row, params)
}

fn the_order_is_by_probability_then_id(check: &Check<'_>) {
    check.keeps(&of(&[0.1, 0.4, 0.4, 0.1, 0.0], plain()), &[1, 2, 0, 3]);
    check.keeps(&of(&[0.1, 0.4, 0.4, 0.1, 0.0], SamplingParams { top_k: 3, ..plain() }), &[1, 2, 0]);
    // The smallest subnormal number is a probability.
    check.keeps(&of(&[f32::from_bits(1), 0.0, f32::from_bits(2), 1e30], plain()), &[3, 2, 0]);
}

fn zero_and_what_is_below_it_are_never_kept(check: &Check<'_>) {
    let row = [0.0, -0.5, -0.0, 0.25, f32::NAN, f32::NEG_INFINITY, -f32::NAN];
    for params in [
        plain(),
        SamplingParams { top_k: 5, ..plain() },
        SamplingParams { top_p: 0.999, ..plain() },
        SamplingParams { min_p: 1e-6, ..plain() },
        SamplingParams { typical_p: 0.9, ..plain() },
    ] {
        let case = of(&row, params);
        check.keeps(&case, &[3]);
        check.draws(&case, 3);
    }
}

fn nan_and_negative_probabilities_say_nan_unless_banned(check: &Check<'_>) {
    for odd in [f32::NAN, -1.0, -1e-45, f32::NEG_INFINITY] {
        for dtype in Dtype::ALL {
            let logits = Logits::new(dtype, &[0.5, odd, 0.5]);
            let mut case = Case { logits, ..of(&[0.0; 3], plain()) };
            // A narrower type may have rounded the number to -0.0.
            let number = case.logits.row().logit(1);
            let is_odd = number.is_nan() || number < 0.0;
            let said = if is_odd { Status::NAN } else { Status::default() };
            assert_eq!(check.sees(&case).status, said);
            case.mask = Some(vec![0b101]);
            assert_eq!(check.sees(&case).status, Status::default());
        }
    }
    assert_eq!(check.sees(&of(&[0.5, -0.0, 0.0], plain())).status, Status::default());
}

fn an_infinite_probability_counts_as_the_largest_number(check: &Check<'_>) {
    let case = of(&[1.0, f32::INFINITY, f32::MAX], SamplingParams { top_p: 0.75, ..plain() });
    check.keeps(&case, &[1, 2]);
    assert_eq!(check.sees(&case).status, Status::INF);
    let both = of(&[f32::NAN, f32::INFINITY], plain());
    assert_eq!(check.sees(&both).status, Status(Status::NAN.0 | Status::INF.0));
}

fn a_row_without_a_positive_number_is_empty(check: &Check<'_>) {
    for vocab in [1, 16, 255, 256, 257, 600] {
        let zeros = check.sees(&of(&vec![0.0; vocab], plain()));
        assert_eq!((zeros.token, zeros.status), (NONE, Status::EMPTY));
        let signed = check.sees(&of(&vec![-0.0; vocab], plain()));
        assert_eq!((signed.token, signed.status), (NONE, Status::EMPTY));
        let nothing = check.sees(&of(&vec![-1.0; vocab], plain()));
        assert_eq!((nothing.token, nothing.status), (NONE, Status(Status::EMPTY.0 | Status::NAN.0)));
    }
}

fn a_row_need_not_sum_to_1(check: &Check<'_>) {
    let row: Vec<f32> = rows::grid(700, 0.125, 30, 5);
    let params = SamplingParams { top_k: 300, top_p: 0.6, ..plain() };
    let kept = check.kept(&of(&row, params.clone()));
    for scale in [2f32.powi(-120), 2f32.powi(-20), 2f32.powi(60), 2f32.powi(120)] {
        let scaled: Vec<f32> = row.iter().map(|p| p * scale).collect();
        check.keeps(&of(&scaled, params.clone()), &kept);
    }
}

fn top_p_of_probabilities_is_reached_exactly(check: &Check<'_>) {
    let row = [0.125, 0.25, 0.5, 0.125];
    let kept: [(f32, &[u32]); 5] =
        [(0.5, &[2]), (0.5000001, &[2, 1]), (0.75, &[2, 1]), (0.76, &[2, 1, 0]), (0.0, &[2])];
    for (top_p, ids) in kept {
        check.keeps(&of(&row, SamplingParams { top_p, ..plain() }), ids);
    }
    // In tiles of their own, in an unnormalised row.
    let mut row = vec![0.0; 1000];
    (row[999], row[300], row[5], row[600]) = (8e-30, 4e-30, 2e-30, 2e-30);
    check.keeps(&of(&row, SamplingParams { top_p: 0.75, ..plain() }), &[999, 300]);
}

fn min_p_of_probabilities_is_met_exactly(check: &Check<'_>) {
    let row = [1.0, 8.0, 2.0, 4.0];
    check.keeps(&of(&row, SamplingParams { min_p: 0.25, ..plain() }), &[1, 3, 2]);
    check.keeps(&of(&row, SamplingParams { min_p: 0.2500001, ..plain() }), &[1, 3]);
    check.keeps(&of(&row, SamplingParams { min_p: 1.0, ..plain() }), &[1]);
    check.keeps(&of(&[0.5, 0.5, 0.25], SamplingParams { min_p: 1.0, ..plain() }), &[0, 1]);
}

fn subnormal_probabilities_weigh_what_they_say(check: &Check<'_>) {
    let row: Vec<f32> = [1, 8, 2, 4, 1].iter().map(|units| f32::from_bits(*units)).collect();
    check.keeps(&of(&row, SamplingParams { top_p: 0.5, ..plain() }), &[1]);
    check.keeps(&of(&row, SamplingParams { top_p: 0.75, ..plain() }), &[1, 3]);
    check.keeps(&of(&row, SamplingParams { min_p: 0.25, ..plain() }), &[1, 3, 2]);
    // Beside an ordinary number they are tokens without mass.
    let row = [f32::from_bits(5), 0.5, 0.0];
    check.keeps(&of(&row, plain()), &[1, 0]);
    check.keeps(&of(&row, SamplingParams { top_p: 0.9999999, ..plain() }), &[1]);
}

fn equal_probabilities_share_the_mass_equally(check: &Check<'_>) {
    let row = vec![0.3; 1 << 13];
    check.keeps_first(&of(&row, SamplingParams { top_p: 0.5, ..plain() }), 1 << 12);
    check.keeps_first(&of(&row, SamplingParams { top_k: 5000, top_p: 0.25, ..plain() }), 1250);
}

fn small_probabilities_of_one_tile_add_up(check: &Check<'_>) {
    // 255 tokens at 2^-24 of their tile's largest, which is half of the row's.
    let mut row = vec![0.0; 600];
    row[0] = 1.0;
    row[256] = 0.5;
    row[257..512].fill(0.5 * 2f32.powi(-24));
    let total = 1.5 + 255.0 * 2f64.powi(-25);
    let all = SamplingParams { top_p: (1.0 - 2f64.powi(-25) * 0.5 / total) as f32, ..plain() };
    check.sees(&of(&row, all));
    let without_one = ((total - 100.5 * 2f64.powi(-25)) / total) as f32;
    let kept = check.kept(&of(&row, SamplingParams { top_p: without_one, ..plain() })).len();
    assert!((150..=160).contains(&kept), "{kept}: the target is at 2 + 155 of 255, within a rounding of p");
}

fn greedy_takes_the_first_of_the_likeliest(check: &Check<'_>) {
    let case = of(&[0.1, 0.3, 0.3, -1.0], SamplingParams { temperature: 0.0, top_p: 0.1, ..plain() });
    check.draws(&case, 1);
    check.keeps(&case, &[1]);
}

/// Holds draws to the law of a row.
fn follows(check: &Check<'_>, row: &[f32], params: SamplingParams, draws: u32) {
    let case = of(row, params);
    let law = Law::of(case.kind, row, &case.params);
    let mut counts = law.counts();
    let by_position = |case: &mut Case, i: u32| (case.seed, case.position) = (0xFACE, i);
    let tokens = check.backend.draws(&case, check.backend.patience(draws), &by_position).expect("valid");
    let mut at = case.clone();
    for (i, token) in (0..).zip(tokens) {
        by_position(&mut at, i);
        counts.add(&at, token);
    }
    if let Some(found) = law.test(&counts).find(|found| found.p_value < FALSE_ALARM) {
        check.fail(&case, format_args!("draws by another law: {found:?}, {counts:?},"));
    }
}

fn draws_follow_the_probabilities(check: &Check<'_>) {
    follows(check, &[0.05, 0.3, 0.0, 0.25, -1.0, 0.2, 0.15, 0.05], plain(), 50_000);
    // Several tiles, unnormalised.
    let row: Vec<f32> = (0..600).map(|id| ((id * 7919) % 601) as f32).collect();
    follows(check, &row, plain(), 60_000);
}

fn draws_of_subnormal_probabilities_follow_them(check: &Check<'_>) {
    let row: Vec<f32> = (0..12).map(|i| f32::from_bits(i * i)).collect();
    follows(check, &row, plain(), 40_000);
}

fn draws_after_filters_follow_what_is_kept(check: &Check<'_>) {
    let row: Vec<f32> = (1..=12).map(|i| i as f32 / 78.0).collect();
    follows(check, &row, SamplingParams { top_k: 5, ..plain() }, 30_000);
    follows(check, &row, SamplingParams { top_p: 0.71, ..plain() }, 30_000);
    follows(check, &row, SamplingParams { min_p: 0.45, ..plain() }, 30_000);
    follows(check, &row, SamplingParams { top_k: 9, top_p: 0.63, ..plain() }, 30_000);
}

fn a_logprob_is_the_logarithm_of_the_share(check: &Check<'_>) {
    let row: Vec<f32> = rows::bell(500, 3.0, 8).iter().map(|z| z.exp2() * 1e-3).collect();
    let sum: f64 = row.iter().map(|p| f64::from(*p)).sum();
    for mode in LogprobMode::OF_LOGPROBS {
        let logprobs = Some(LogprobsParams { mode: mode.into(), top_n: 500, ids: vec![3, 499] });
        let seen = check.sees(&of(&row, SamplingParams { logprobs, ..plain() }));
        let logprobs = seen.logprobs.expect("asked for");
        for entry in logprobs.top.iter().chain(&logprobs.ids).chain([&logprobs.token]) {
            let exact = (f64::from(row[entry.id as usize]) / sum).ln();
            let error = (f64::from(entry.logprob) - exact).abs();
            assert!(error <= 1.5e-6, "{error:e} at {entry:?}");
        }
        assert!(logprobs.top.is_sorted_by(|a, b| row[a.id as usize] >= row[b.id as usize]));
    }
}

fn logprobs_of_what_is_no_token_are_minus_infinity(check: &Check<'_>) {
    for mode in LogprobMode::OF_LOGPROBS {
        let logprobs = Some(LogprobsParams { mode: mode.into(), top_n: 4, ids: vec![0, 1, 2, 3] });
        let params = SamplingParams { logprobs, banned_ids: vec![3], ..plain() };
        let logprobs = check.sees(&of(&[0.0, -1.0, 0.75, 0.25], params)).logprobs.expect("asked for");
        let ranks: Vec<u32> = logprobs.ids.iter().map(|entry| entry.rank).collect();
        let raw = mode == LogprobMode::Raw;
        assert_eq!(ranks, [0, 0, 1, if raw { 2 } else { 0 }], "{mode:?}");
        assert!(logprobs.ids[..2].iter().all(|entry| entry.logprob == f32::NEG_INFINITY));
        let wanted = if raw { 0.75f64.ln() } else { 0.0 };
        assert!((f64::from(logprobs.ids[2].logprob) - wanted).abs() < 1e-7);
    }
}
