//! Routes beside each other, and rows of probabilities.

use gumball_engine::{
    Batch, Error, Kind, LogprobMode, LogprobModes, LogprobsParams, Outputs, Pool, PoolConfig, Route, Row,
    Rows, Sampler, SamplingParams, State,
};

use gumball_spec::{Request, oracle};

use crate::cases::{VOCAB, params, pools, row};

fn softmax(row: &[f32]) -> Vec<f32> {
    let params = SamplingParams::default();
    oracle::sample(Row::F32(row), &Request::new(&params, &[], 0), None).unwrap().probabilities()
}

/// The row of probabilities differs from the logits by roundings alone, which change a token or a cut now and
/// then only.
#[test]
fn the_probability_route_draws_what_the_race_does() {
    let (mut draws, mut same) = (0, 0);
    for kind in [1, 2, 3, 4, 5, 7] {
        let mut params = params(kind, 11);
        params.logprobs = None;
        let sampler = || Sampler::new(params.clone(), VOCAB).unwrap().with_prompt(&[3, 7, 3]);
        let (mut race, mut other) = (sampler(), sampler().with_route(Route::Probabilities).unwrap());
        for step in 0..200 {
            let token = race.sample(&row(step)).unwrap();
            let drawn = other.sample(&row(step)).unwrap();
            (draws, same) = (draws + 1, same + usize::from(token.id == drawn.id));
            assert_eq!((token.status, token.temperature), (drawn.status, drawn.temperature));
            if token.id != drawn.id {
                other.shorten(1).unwrap();
                other.push(token.id.unwrap());
            }
        }
    }
    assert!(same * 100 >= draws * 99, "{same} of {draws}");
}

/// Of many draws from one row a few in a million may differ, where two tokens' scores are a rounding apart.
#[test]
fn routes_draw_alike_over_many_draws() {
    const SLOTS: usize = 64;
    let params = |slot: usize| SamplingParams {
        seed: Some(slot as u64),
        top_p: [1.0, 0.9][slot % 2],
        min_p: [0.0, 0.02][slot / 2 % 2],
        ..Default::default()
    };
    let [race, other] = [Route::Race, Route::Probabilities].map(|route| {
        let config = PoolConfig { slots: SLOTS, route, ..PoolConfig::new(VOCAB) };
        let mut pool = Pool::new(config).unwrap();
        let slots: Vec<_> = (0..SLOTS).map(|slot| pool.admit(params(slot), &[]).unwrap()).collect();
        let (mut out, mut drawn) = (Outputs::new(), Vec::new());
        for step in 0..2_000 {
            let row = row(step % 20).repeat(SLOTS);
            pool.step(Rows::logits(&row, SLOTS, VOCAB).unwrap(), &Batch::of(&slots), &mut out).unwrap();
            drawn.extend_from_slice(out.tokens());
        }
        drawn
    });
    let differing = race.iter().zip(&other).filter(|(one, other)| one != other).count();
    assert!(differing <= 2, "{differing} of {}", race.len());
}

#[test]
fn what_the_probability_route_does_not_know_is_refused_before_a_step() {
    let logprobs =
        |first, second| Some(LogprobsParams { mode: LogprobModes { first, second }, ..Default::default() });
    let base = SamplingParams::default;
    for (refused, params) in [
        ("top_n_sigma", SamplingParams { top_n_sigma: 1.0, ..base() }),
        ("p_less", SamplingParams { p_less: true, ..base() }),
        ("temperature_last", SamplingParams { temperature_last: true, temperature: 0.5, ..base() }),
        ("logprobs.mode", SamplingParams { logprobs: logprobs(LogprobMode::Raw, None), ..base() }),
        ("logprobs.mode", SamplingParams { logprobs: logprobs(LogprobMode::Edited, None), ..base() }),
        (
            "logprobs.mode",
            SamplingParams { logprobs: logprobs(LogprobMode::Tempered, Some(LogprobMode::Radius)), ..base() },
        ),
    ] {
        let names_it = |error| matches!(error, Error::Conflict { parameter, other: "route", .. } if parameter == refused);
        let sampler =
            Sampler::new(params.clone(), VOCAB).map(|sampler| sampler.with_route(Route::Probabilities));
        let config = PoolConfig { route: Route::Probabilities, ..PoolConfig::new(VOCAB) };
        let mut pool = Pool::new(config).unwrap();
        let seen = [
            sampler.and_then(|sampler| sampler).map(drop),
            pool.admit(params.clone(), &[1]).map(drop),
            pool.resume(params, State::new(&[1, 2], &[], 3)).map(drop),
        ];
        assert!(seen.into_iter().all(|seen| seen.is_err_and(names_it)), "{refused}");
        assert!(pool.is_empty());
        assert!(pool.admit(base(), &[1]).is_ok());
    }
}

#[test]
fn a_sequence_goes_from_logits_to_probabilities_and_back() {
    let params = SamplingParams { top_p: 0.95, seed: Some(3), ..Default::default() };
    let mut pool = Pool::new(PoolConfig { slots: 2, ..PoolConfig::new(VOCAB) }).unwrap();
    let slot = pool.admit(params.clone(), &[1, 2]).unwrap();
    let (mut out, mut outputs) = (Outputs::new(), Vec::new());
    for step in 0..40 {
        let (z, options) = (row(step), Batch::default());
        let p = softmax(&z);
        let rows = if step % 2 == 0 { Rows::logits(&z, 1, VOCAB) } else { Rows::probabilities(&p, 1, VOCAB) };
        pool.step(rows.unwrap(), &Batch { slots: &[slot], ..options }, &mut out).unwrap();
        let kind = if step % 2 == 0 { Kind::Logits } else { Kind::Probabilities };
        let mut request = Request::new(&params, &[1, 2], 3);
        (request.output, request.kind, request.position) = (&outputs, kind, 2 + step as u32);
        let row = if step % 2 == 0 { Row::F32(&z) } else { Row::F32(&p) };
        let want = oracle::sample(row, &request, None).unwrap();
        assert_eq!(out.tokens(), [want.token], "step {step}");
        outputs.push(want.token as u32);
    }
    assert_eq!(pool.sequence(slot).unwrap().history().output(), outputs);
}

#[test]
fn a_step_that_probabilities_cannot_take_changes_nothing() {
    let p: Vec<f32> = [softmax(&row(1)), softmax(&row(2))].concat();
    let rows = Rows::probabilities(&p, 2, VOCAB).unwrap();
    let hook = |_: &mut [f32]| {};
    let penalised = SamplingParams { repetition_penalty: 1.2, ..Default::default() };
    for mut pool in pools() {
        let slots =
            [SamplingParams::default(), penalised.clone()].map(|params| pool.admit(params, &[]).unwrap());
        let mut out = Outputs::new();
        let error = pool.step(rows, &Batch::of(&slots), &mut out).unwrap_err();
        let text = "repetition_penalty cannot be combined with probabilities: it speaks of logits; hand over logits, or switch it off";
        assert_eq!(error.to_string(), text);
        if pool.level().is_some() {
            let batch = Batch { row_indices: &[0], hooks: &[Some(&hook)], ..Batch::of(&slots[..1]) };
            let error = pool.step(rows, &batch, &mut out).unwrap_err();
            assert!(error.to_string().starts_with("hook cannot be combined with probabilities"), "{error}");
        }
        assert_eq!(pool.sequence(slots[0]).unwrap().position(), 0);
    }
}
