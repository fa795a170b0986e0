//! A score is the logprob that a step would have reported of a known token.

use gumball_engine::{Batch, Error, LogprobMode, LogprobsParams, Outputs, Rows, SamplingParams, Scored};

use crate::cases::{VOCAB, params, pool, row, rows};

#[test]
fn ids_of_the_prompt_count_as_prompt() {
    // Presence counts output alone: inside the prompt nothing is penalised yet.
    let logprobs = Some(LogprobsParams { mode: LogprobMode::Edited.into(), ..Default::default() });
    let plain = SamplingParams { logprobs, ..Default::default() };
    let penalised = SamplingParams { presence_penalty: 2.0, ..plain.clone() };
    let ids = [5, 6, 5, 6, 5, 6];
    let data = rows(0..5);
    let mut pool = pool(1);
    let mut score = |params, prompt_len| {
        let mut out = Outputs::new();
        let scored = Scored { params, ids: &ids, prompt_len, start: 1, chunk_rows: None };
        let logits = Rows::logits(&data, 5, VOCAB).unwrap();
        pool.score(logits, &Batch::default(), &scored, &mut out).unwrap();
        out.logprobs().to_vec()
    };
    let none = score(&plain, 6);
    assert_eq!(score(&penalised, 6), none);
    let late = score(&penalised, 4);
    assert_eq!(late[..4], none[..4]);
    assert!(late[4] != none[4], "id 5 is output from place 4 on");
}

#[test]
fn without_logprobs_in_the_parameters_the_raw_one_is_reported() {
    let params = SamplingParams { temperature: 0.3, ..Default::default() };
    let data = row(0);
    let mut out = Outputs::new();
    let scored = Scored { params: &params, ids: &[1, 42], prompt_len: 2, start: 1, chunk_rows: None };
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    pool(1).score(logits, &Batch::default(), &scored, &mut out).unwrap();
    let mass: f64 = data.iter().map(|z| f64::from(*z).exp()).sum();
    let expected = f64::from(data[42]) - mass.ln();
    assert!((f64::from(out.logprobs()[0]) - expected).abs() < 1e-5);
    let rank =
        1 + data.iter().enumerate().filter(|(id, z)| **z > data[42] || **z == data[42] && *id < 42).count();
    assert_eq!(out.ranks()[0] as usize, rank);
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let mut pool = pool(1);
    let data = rows(0..2);
    let logits = Rows::logits(&data, 2, VOCAB).unwrap();
    let mut refused = |params: &SamplingParams, ids: &[u32], prompt_len, start, options: Batch<'_>| {
        let scored = Scored { params, ids, prompt_len, start, chunk_rows: None };
        pool.score(logits, &options, &scored, &mut Outputs::new()).unwrap_err()
    };
    let plain = SamplingParams::default();
    let none = Batch::default();
    let error = refused(&plain, &[1, 2, 3], 0, 2, none).to_string();
    assert_eq!(error, "ids has length 3, but must have an id for each of 2 rows from 2 on");
    let error = refused(&plain, &[1, 2, 900], 0, 1, none).to_string();
    assert_eq!(error, "ids is 900, but must be an id in 0..900");
    assert!(refused(&plain, &[1, 2, 3], 4, 1, none).to_string().starts_with("prompt_len is 4"));
    assert!(matches!(refused(&plain, &[1, 2, 3], 0, usize::MAX, none), Error::Length { .. }));
    let forced = Batch { forced: &[None, Some(1)], ..none };
    assert!(matches!(refused(&plain, &[1, 2, 3], 0, 1, forced), Error::Conflict { .. }));

    let processed = Some(LogprobsParams { mode: LogprobMode::Processed.into(), ..Default::default() });
    for kind in [4, 5] {
        let params = SamplingParams { logprobs: processed.clone(), seed: None, ..params(kind, 1) };
        assert!(matches!(refused(&params, &[1, 2, 3], 0, 1, none), Error::Conflict { other: "score", .. }));
    }
}
