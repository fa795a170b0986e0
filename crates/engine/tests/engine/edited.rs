//! Columns of rows behind known tokens are edited as whole rows of the definition are, bit for bit (L6).

use gumball_engine::{Dry, Error, SamplingParams, Scope, Scored, edit_columns};
use gumball_spec::{Request, Row, edit};

use crate::cases::{VOCAB, rows};

/// Few ids, so that they repeat; one outside the vocabulary.
fn ids() -> Vec<u32> {
    (0..60).map(|place| [3, 7, 3, 895, 7, 11, 2_000_000][place * place % 7 * 5 % 7]).collect()
}

fn requests() -> Vec<SamplingParams> {
    let plain = SamplingParams::default;
    let biases = vec![(3, 1.25), (500, -0.3), (895, f32::NEG_INFINITY), (7, f32::MAX)];
    let dry = Dry { multiplier: 0.7, base: 1.6, allowed_length: 1, breakers: vec![11], window: 0 };
    let all = SamplingParams {
        repetition_penalty: 1.3,
        repetition_scope: Scope::Output,
        frequency_penalty: 0.31,
        presence_penalty: -0.2,
        dry: dry.clone(),
        logit_bias: biases.clone(),
        ..plain()
    };
    vec![
        plain(),
        SamplingParams { repetition_penalty: 1.3, ..plain() },
        SamplingParams { repetition_penalty: 0.7, repetition_scope: Scope::Prompt, ..plain() },
        SamplingParams { frequency_penalty: 0.31, penalty_scope: Scope::Both, penalty_window: 9, ..plain() },
        SamplingParams { presence_penalty: 0.5, ..plain() },
        SamplingParams { dry: Dry { window: 12, ..dry }, ..plain() },
        SamplingParams { logit_bias: biases, ..plain() },
        SamplingParams { bias_first: true, penalty_window: 20, ..all.clone() },
        // Neither bans nor anything else changes what is edited.
        SamplingParams {
            banned_ids: vec![3],
            bad_words: vec![vec![7]],
            no_repeat_ngram: 2,
            allowed_ids: Some(vec![]),
            no_repeat_ngram_exempt_ids: vec![899],
            stop_ids: vec![3],
            min_tokens: 100,
            temperature: 0.3,
            top_k: 2,
            ..all
        },
    ]
}

#[test]
fn columns_are_edited_as_rows_are() {
    let (ids, columns) = (ids(), [3u32, 7, 11, 500, 895]);
    for (params, prompt_len) in requests().iter().flat_map(|params| [0, 1, 25, 60].map(|len| (params, len))) {
        let start = prompt_len.min(57);
        let count = 61 - start;
        let mut data = rows((0..count as u64).map(|row| row % 11));
        (data[3], data[7], data[11]) = (f32::NEG_INFINITY, f32::NAN, f32::INFINITY);
        let mut values: Vec<f32> =
            data.chunks(VOCAB).flat_map(|row| columns.map(|id| row[id as usize])).collect();
        let (raw, mut slopes) = (values.clone(), vec![0.0; values.len()]);
        let known = Scored { params, ids: &ids, prompt_len, start, chunk_rows: None };
        edit_columns(&known, &columns, &mut values, &mut slopes).unwrap();
        // What is left of the request without bans.
        let mut edits = SamplingParams {
            banned_ids: vec![],
            bad_words: vec![],
            no_repeat_ngram: 0,
            allowed_ids: None,
            min_tokens: 0,
            ..params.clone()
        };
        edits.logit_bias.retain(|(_, bias)| bias.is_finite());
        for (row, line) in data.chunks(VOCAB).enumerate() {
            let (prompt, output) = ids[..start + row].split_at(prompt_len.min(start + row));
            let request = Request { output, ..Request::new(&edits, prompt, 0) };
            let z = edit::edit(Row::F32(line), &request, None).z;
            for (column, id) in columns.iter().enumerate() {
                let place = row * columns.len() + column;
                assert_eq!(
                    values[place].to_bits(),
                    z[*id as usize].to_bits(),
                    "{id} of row {row}: {params:?}"
                );
                let bias = edits.logit_bias.iter().find(|(biased, _)| edits.bias_first && biased == id);
                let before = raw[place] + bias.map_or(0.0, |(_, bias)| *bias);
                let scope = match edits.repetition_scope {
                    Scope::Prompt => 0..prompt.len(),
                    Scope::Output => prompt.len()..start + row,
                    Scope::Both => 0..start + row,
                };
                let window = edits.penalty_window as usize;
                let from = if window == 0 { 0 } else { (start + row).saturating_sub(window) };
                let is_seen = ids[scope.start.max(from)..scope.end.max(scope.start.max(from))].contains(id);
                let r = edits.repetition_penalty;
                let slope = if !is_seen {
                    1.0
                } else if before > 0.0 {
                    1.0 / r
                } else {
                    r
                };
                assert_eq!(slopes[place].to_bits(), slope.to_bits(), "{id} of row {row}: {params:?}");
            }
        }
    }
}

#[test]
fn rows_that_do_not_match_are_refused() {
    let params = SamplingParams::default();
    let refused = |ids: &[u32], columns: &[u32], values: usize, slopes: usize| {
        let known = Scored { params: &params, ids, prompt_len: 1, start: 1, chunk_rows: None };
        match edit_columns(&known, columns, &mut vec![0.0; values], &mut vec![0.0; slopes]) {
            Err(Error::Length { parameter, .. }) => parameter,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&[1, 2, 3], &[], 0, 0), "values");
    assert_eq!(refused(&[1, 2, 3], &[4, 5], 3, 3), "values");
    assert_eq!(refused(&[1, 2, 3], &[4, 5], 4, 2), "slopes");
    assert_eq!(refused(&[1, 2, 3], &[4, 5], 8, 8), "ids");
    let known = Scored { params: &params, ids: &[1, 2, 3], prompt_len: 1, start: 1, chunk_rows: None };
    assert_eq!(edit_columns(&known, &[4, 5], &mut [0.0; 6], &mut [0.0; 6]), Ok(()));
    let far = Scored { start: usize::MAX, ..known };
    let error = edit_columns(&far, &[4], &mut [0.0], &mut [0.0]).unwrap_err();
    assert!(matches!(error, Error::Length { parameter: "ids", .. }), "{error}");
    let wrong = SamplingParams { repetition_penalty: 0.0, ..params.clone() };
    let known = Scored { params: &wrong, ..known };
    let error = edit_columns(&known, &[4], &mut [0.0], &mut [0.0]).unwrap_err().to_string();
    assert!(error.starts_with("repetition_penalty is 0"), "{error}");
}
