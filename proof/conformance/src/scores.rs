//! Scores on a CUDA device against the oracle: known tokens, each after the tokens before it.

use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype, KnownTokens, Prepared, Rows, Runtime, Workspace, WorkspaceLimits};
use gumball_spec::{Error, SamplingParams, Widths};

use crate::backend::observed;
use crate::backend::{Backend, Oracle};
use crate::bytes::Bytes;
use crate::case::Case;
use crate::generate;
use crate::observed::differences;
use crate::rows::{self, Words};

/// How many rows a step has capacity for, fewer than most sequences need.
const ROWS: usize = 3;

/// Holds the scores of a random sequence under random parameters; returns whether the kernels take these.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<bool, String> {
    let words = &mut Words(seed);
    let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
    let vocab = [7, 256, 300, 900][words.below(4)];
    let mut params = generate::params(&mut Bytes(&data), vocab);
    let logprobs = params.logprobs.get_or_insert_default();
    let widths = Widths { top_n: logprobs.top_n as usize, ids: logprobs.ids.len() };
    let len = 1 + words.below(14);
    // Few ids, so that they repeat.
    let ids: Vec<u32> = (0..len).map(|_| words.below(vocab.min(5)) as u32).collect();
    let (start, prompt_len) = (words.below(len), words.below(len + 1));
    let count = 1 + words.below(len - start);
    let masks: Vec<Vec<u32>> =
        (0..count).map(|_| (0..words.below(40)).map(|_| words.word() as u32).collect()).collect();
    let masks = if words.below(3) == 0 { &masks[..] } else { &[] };
    let lines: Vec<Vec<f32>> = (0..count).map(|row| rows::model_like(vocab, seed ^ row as u64)).collect();

    let text = |error: &dyn std::fmt::Display| format!("seed {seed}: {error}");
    let prepared = match Prepared::new(&params, vocab) {
        Err(Error::Unavailable { .. }) => return Ok(false),
        prepared => prepared.map_err(|error| text(&error))?,
    };
    let known = KnownTokens { ids: &ids, prompt_len, start, seed, mu: params.initial_mu() };
    let score = || {
        let limits = WorkspaceLimits { vocab, slots: 2, rows: ROWS, widths, kept: true };
        let mut workspace = Workspace::new(Arc::clone(runtime), limits)?;
        let buffer = Buffer::of(runtime, &lines.concat())?;
        let rows = Rows::of(&buffer, Dtype::F32, 0, count, vocab, vocab)?;
        let all: Vec<u32> = (0..count as u32).collect();
        let read = if seed.is_multiple_of(4) { &all[..] } else { &[] };
        let masks: Vec<Option<&[u32]>> = masks.iter().map(|mask| Some(&mask[..])).collect();
        known.score(&mut workspace, 1, &prepared, &rows, read, &masks)
    };
    let scores = score().map_err(|error: Error| text(&error))?;

    for (row, line) in lines.iter().enumerate() {
        let place = start + row;
        let (prompt, output) = ids[..place].split_at(prompt_len.min(place));
        let case = case(line, &params, prompt, output);
        let position = place as u32;
        let case = Case { seed, position, forced: Some(ids[place]), mask: masks.get(row).cloned(), ..case };
        let wanted = Oracle.sample(&case).map_err(|error| text(&error))?;
        let differences = differences(&wanted, &observed(&case, &scores, row));
        if !differences.is_empty() {
            return Err(format!("seed {seed}, row {row}:\n{differences}{case:?}"));
        }
    }
    Ok(true)
}

fn case(line: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Case {
    Case::of(line, params.clone()).after(prompt, output)
}
