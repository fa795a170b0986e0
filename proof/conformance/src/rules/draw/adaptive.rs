//! Adaptive-p (D3): against llama.cpp's formula in f64, and worked out by hand.

use gumball_spec::adaptive::Adaptive;
use gumball_spec::{Error, Filter, LogprobMode, LogprobsParams, Mirostat, SamplingParams};

use crate::case::{Case, UNIT};
use crate::generate::with_filter;
use crate::reference;
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(adaptive_rules:
    D3 adaptive_p_races_as_llama_cpp_weighs,
    D3 adaptive_p_races_after_filters_that_drop_the_first_tokens,
    D3 the_mean_follows_what_is_drawn,
    D3 a_mean_outside_its_range_counts_as_its_end,
    D3 a_token_of_probability_0_is_never_drawn,
    D3 a_target_below_0_changes_nothing,
    D3 greedy_empty_and_forced_rows_leave_the_mean,
    D3 several_draws_have_the_mean_of_their_row,
    D3 mirostat_and_processed_logprobs_are_refused,
);

fn at(adaptive_target: f32) -> SamplingParams {
    SamplingParams { adaptive_target, ..Default::default() }
}

/// The law of the race over some probabilities as llama.cpp has it, and its logits.
struct Law {
    p: Vec<f64>,
    logits: Vec<f64>,
}

impl Law {
    /// The state: a sum of the probabilities of drawn tokens and of their weights, both falling by a factor
    /// at each token.
    fn new(z: &[f64], t: f64, target: f64, [sum, weight]: [f64; 2]) -> Self {
        let p = softmax(&z.iter().map(|z| z / t).collect::<Vec<f64>>());
        let goal = (2.0 * target - sum / weight).clamp(0.0, 1.0);
        let logit = |p: &f64| {
            let distance = ((p - goal) / 0.3).abs();
            5.0 - 10.0 * distance * distance / (1.0 + distance)
        };
        Self { logits: p.iter().map(logit).collect(), p }
    }
}

fn softmax(z: &[f64]) -> Vec<f64> {
    let most = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = z.iter().map(|z| (z - most).exp()).sum();
    z.iter().map(|z| (z - most).exp() / sum).collect()
}

/// Holds the tokens and means of a request of some steps to the law; returns how many races are too close.
fn races(check: &Check<'_>, params: &SamplingParams, seed: u64) -> usize {
    let [target, decay] = [params.adaptive_target, params.adaptive_decay].map(f64::from);
    let (mut state, mut mu) = ([target / (1.0 - decay), 1.0 / (1.0 - decay)], params.initial_mu());
    let mut close = 0;
    for position in 0..6 {
        let row = match (seed + position) % 3 {
            0 => rows::model_like(700, seed),
            1 => rows::bell(257, 2.0, seed + position),
            _ => rows::grid(40, 0.5, 12, seed + position),
        };
        let case = Case { mu, ..Case::of(&row, params.clone()) }.at(seed, position as u32);
        let seen = check.sees(&case);
        let kept: Vec<usize> = check.kept(&case).iter().map(|id| *id as usize).collect();
        let z: Vec<f64> = kept.iter().map(|id| row[*id].into()).collect();
        let law = Law::new(&z, params.temperature.into(), target, state);
        // Ours, of the same probabilities.
        let ours = Adaptive { goal: Adaptive::new(params, mu, || 1).expect("on").goal, sum: 1.0 };
        let exponents: Vec<f64> =
            law.p.iter().map(|p| f64::from(ours.exponent(*p as f32)) * std::f64::consts::LN_2).collect();
        let pairs = softmax(&exponents).into_iter().zip(softmax(&law.logits));
        let distance: f64 = pairs.map(|(ours, theirs)| (ours - theirs).abs() / 2.0).sum();
        assert!(distance < 2e-5, "the laws differ by {distance} in total variation");
        let mut logits = vec![0.0; row.len()];
        kept.iter().zip(&law.logits).for_each(|(id, logit)| logits[*id] = *logit);
        match reference::race(&logits, &kept, 1.0, case.seed, case.position, case.draw) {
            Some(winner) => assert_eq!(seen.token, winner as i32, "{case:?}"),
            None => close += 1,
        }
        let drawn = kept.iter().position(|id| *id as i32 == seen.token).expect("kept");
        state = [law.p[drawn] + decay * state[0], 1.0 + decay * state[1]];
        mu = seen.mu;
        let mean = state[0] / state[1];
        assert!((f64::from(mu) - mean).abs() < 1e-5, "{mu} for {mean}");
    }
    close
}

fn adaptive_p_races_as_llama_cpp_weighs(check: &Check<'_>) {
    let mut close = 0;
    for seed in 0..40 {
        let mut words = Words(seed);
        let params = SamplingParams {
            temperature: 0.4 + 1.2 * words.fraction(),
            min_p: [0.0, 0.02][words.below(2)],
            top_k: [0, 60][words.below(2)],
            adaptive_decay: [0.9, 0.0, 0.5, 0.99][words.below(4)],
            ..at([0.3, 0.6, 0.0, 1.0, words.fraction()][words.below(5)])
        };
        close += races(check, &params, seed);
    }
    assert!(close <= 4, "{close} of 240 races are within 2e-5");
}

fn adaptive_p_races_after_filters_that_drop_the_first_tokens(check: &Check<'_>) {
    let mut close = 0;
    for filter in [Filter::Xtc, Filter::TypicalP] {
        for seed in 0..12 {
            let params = with_filter(at(0.2), filter, &mut Words(seed));
            close += races(check, &SamplingParams { temperature: 0.8, ..params }, seed);
        }
    }
    assert!(close <= 3, "{close} of 144 races are within 2e-5");
}

/// Probabilities of 1/2, 1/4, 1/8, 1/8 at [`UNIT`].
const ROW: [f32; 4] = [0.0, -1.0, -2.0, -2.0];

fn of(params: SamplingParams) -> Case {
    Case::of(&ROW, SamplingParams { temperature: UNIT, ..params })
}

fn the_mean_follows_what_is_drawn(check: &Check<'_>) {
    let params = SamplingParams { adaptive_decay: 0.5, ..at(0.25) };
    assert_eq!(params.initial_mu(), 0.25);
    let mut drawn = [false; 4];
    for position in 0..60 {
        let seen = check.sees(&Case { mu: 0.5, ..of(params.clone()) }.at(5, position));
        let expected = [0.5, 0.375, 0.3125, 0.3125][seen.token as usize];
        assert!((seen.mu - expected).abs() < 1e-6, "{} for {expected}", seen.mu);
        drawn[seen.token as usize] = true;
    }
    // The goal is 0, to which 1/8 is nearest.
    assert!(drawn[2] && drawn[3]);
    let tokens = check.backend.draws(&Case { mu: 0.0, ..of(params) }, 4000, &|case, i| case.position = i);
    let first = tokens.expect("valid").iter().filter(|token| **token == 0).count();
    // The goal is 1/2, so the weights are 1, exp(-10 (5/6)^2 / (11/6)) = 0.02264, and twice
    // exp(-10 (5/4)^2 / (9/4)) = 0.000965. Of 4000 draws 3904 are expected, with a deviation of 9.7; six
    // deviations are a false alarm in 10^8.
    assert!((3846..3963).contains(&first), "{first}");
}

fn a_mean_outside_its_range_counts_as_its_end(check: &Check<'_>) {
    for (mu, end) in [(-3.0, 0.0), (f32::NEG_INFINITY, 0.0), (7.0, 1.0), (f32::MAX, 1.0)] {
        for position in 0..8 {
            let params = SamplingParams { adaptive_decay: 0.0, ..at(0.4) };
            let [own, at_end] =
                [mu, end].map(|mu| check.sees(&Case { mu, ..of(params.clone()) }.at(3, position)));
            assert_eq!((own.token, own.mu), (at_end.token, at_end.mu));
        }
    }
}

fn a_token_of_probability_0_is_never_drawn(check: &Check<'_>) {
    // 510 tokens in two tiles have a probability of 2^-200, which is 0, and the others 1/2.
    let mut row = vec![-200.0; 512];
    (row[3], row[400]) = (0.0, 0.0);
    let params = SamplingParams { temperature: UNIT, ..at(0.0) };
    let case = Case { mu: 0.0, ..Case::of(&row, params) };
    let tokens = check.backend.draws(&case, 40, &|case, i| case.position = i).expect("valid");
    assert!(tokens.iter().all(|token| [3, 400].contains(token)), "{tokens:?}");
    check.sees(&case);
}

fn a_target_below_0_changes_nothing(check: &Check<'_>) {
    let row = rows::model_like(300, 1);
    for position in 0..10 {
        let case = |params: SamplingParams| Case { mu: 0.7, ..Case::of(&row, params) }.at(9, position);
        let off = check.sees(&case(SamplingParams { adaptive_decay: 0.3, ..at(-0.5) }));
        let difference = crate::observed::differences(&off, &check.sees(&case(at(-1.0))));
        assert!(difference.is_empty(), "{difference}");
        assert_eq!(off.mu, 0.7);
    }
}

fn greedy_empty_and_forced_rows_leave_the_mean(check: &Check<'_>) {
    let mu = 0.625;
    let greedy = check.sees(&Case { mu, ..Case::of(&ROW, SamplingParams { temperature: 0.0, ..at(0.2) }) });
    assert_eq!((greedy.token, greedy.mu), (0, mu));
    assert_eq!(check.sees(&Case { mu, ..Case::of(&[f32::NEG_INFINITY; 3], at(0.2)) }).mu, mu);
    let forced = check.sees(&Case { mu, forced: Some(2), ..of(at(0.2)) });
    assert_eq!((forced.token, forced.mu), (2, mu));
}

fn several_draws_have_the_mean_of_their_row(check: &Check<'_>) {
    let row = rows::model_like(900, 4);
    let case = Case { mu: 0.1, ..Case::of(&row, SamplingParams { min_p: 0.01, ..at(0.3) }) };
    let tokens = check.backend.draws(&case, 30, &|case, i| case.draw = i).expect("valid");
    for (draw, token) in (0..).zip(tokens) {
        check.draws(&Case { draw, ..case.clone() }, token);
    }
}

fn mirostat_and_processed_logprobs_are_refused(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 3.0, eta: 0.1, mu: None });
    let logprobs = Some(LogprobsParams { mode: LogprobMode::Processed.into(), ..Default::default() });
    for (params, by) in [
        (SamplingParams { mirostat, ..at(0.3) }, "mirostat"),
        (SamplingParams { logprobs, ..at(0.3) }, "logprobs.mode"),
    ] {
        let refused = check.backend.sample(&of(params)).expect_err(by);
        let is_named = |error: &Error| matches!(error, Error::Conflict { parameter: "adaptive_target", other, .. } if *other == by);
        assert!(is_named(&refused), "{refused}");
    }
}
