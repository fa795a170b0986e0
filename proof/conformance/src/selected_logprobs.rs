//! Logprobs of tokens in a CUDA device's memory against the oracle's of forced tokens: ids outside the
//! vocabulary among them.

use std::sync::Arc;

use gumball_cuda::Runtime;
use gumball_engine::{
    ColumnType, DeviceBuffer as Buffer, DeviceMatrix, DeviceSlice, IntType, PerRow, PerRowMut,
};
use gumball_spec::{Error, Forced, LogprobMode, LogprobsParams, NONE, Request, SamplingParams, Status};

use crate::operators::{Asked, integers, line, operators};
use crate::rows::Words;
use crate::softmax::{buffer, laid_out, outcome};

/// The result of a token: the bits of its logprob, its rank, and the row's status.
type Told = (u32, u32, u32);

/// Returns a token: mostly an id, sometimes none, or what is no id.
fn token(words: &mut Words, asked: &Asked) -> i64 {
    let beyond = if asked.wide { [1 << 40, -(1 << 40), 1 << 32] } else { [1 << 20, -7, i64::from(i32::MIN)] };
    match words.below(12) {
        0 => i64::from(NONE),
        1 => asked.vocab as i64,
        2 => -2,
        3 => beyond[words.below(beyond.len())],
        _ => words.below(asked.vocab) as i64,
    }
}

/// Returns what the oracle says of a line's token.
fn wanted(asked: &Asked, row: &[f32], token: i64) -> Result<Told, Error> {
    let nothing = f32::NEG_INFINITY.to_bits();
    if token == i64::from(NONE) {
        return Ok((nothing, 0, 0));
    }
    let Some(id) = u32::try_from(token).ok().filter(|id| (*id as usize) < asked.vocab) else {
        return Ok((nothing, 0, Status::NO_ID.0));
    };
    let logprobs = LogprobsParams { mode: LogprobMode::Raw.into(), ..LogprobsParams::default() };
    let params = SamplingParams { temperature: 0.0, logprobs: Some(logprobs), ..SamplingParams::default() };
    let request =
        Request { kind: asked.kind, forced: Some(Forced::known(id)), ..Request::new(&params, &[], 0) };
    let outcome = outcome(asked.dtype, row, &request)?;
    let of = outcome.logprobs.expect("asked for").token;
    Ok((of.logprob.to_bits(), of.rank, outcome.status.0))
}

/// Returns what a device says of the lines' tokens, one for each or one for all.
fn seen(
    runtime: &Arc<dyn Runtime>,
    asked: &Asked,
    lines: &[Vec<f32>],
    tokens: &[i64],
) -> Result<Vec<Told>, Error> {
    let Asked { vocab, dtype, start, gap, .. } = *asked;
    let matrix = buffer(runtime, dtype, &laid_out(dtype, lines, start, gap))?;
    let rows =
        DeviceMatrix::of(&matrix, dtype, start, lines.len(), vocab, vocab + gap)?.with_kind(asked.kind);
    let ids = integers(runtime, tokens, asked.wide)?;
    let ids = DeviceSlice::of(&ids, if asked.wide { IntType::I64 } else { IntType::I32 });
    let words = vec![7u32; lines.len()];
    let out = [Buffer::of(runtime, &words)?, Buffer::of(runtime, &words)?, Buffer::of(runtime, &words)?];
    let operators = operators(runtime);
    // Twice: the memory after a call meets the next.
    for alone in [true, false] {
        let logprobs = PerRowMut::Device(DeviceSlice::of(&out[0], ColumnType::F32));
        let [ranks, statuses] =
            [&out[1], &out[2]].map(|column| (!alone).then(|| DeviceSlice::of(column, IntType::U32)));
        let (ranks, statuses) = (ranks.map(PerRowMut::Device), statuses.map(PerRowMut::Device));
        operators.selected_logprobs(rows, PerRow::Device(ids), logprobs, ranks, statuses)?;
    }
    let mut read = [words.clone(), words.clone(), words];
    for (column, words) in out.iter().zip(&mut read) {
        column.read(0, words)?;
    }
    Ok((0..lines.len()).map(|row| (read[0][row], read[1][row], read[2][row])).collect())
}

/// Holds the logprobs of tokens of random rows.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<(), String> {
    let words = &mut Words(seed);
    let asked = Asked::new(words);
    let lines: Vec<Vec<f32>> = (0..asked.lines).map(|_| line(words, &asked)).collect();
    let given = if words.below(4) == 0 { 1 } else { lines.len() };
    let tokens: Vec<i64> = (0..given).map(|_| token(words, &asked)).collect();
    let text = |error: Error| format!("seed {seed}: {error}\n{asked:?}");
    let seen = seen(runtime, &asked, &lines, &tokens).map_err(text)?;
    for (row, line) in lines.iter().enumerate() {
        let token = tokens[if given == 1 { 0 } else { row }];
        let wanted = wanted(&asked, line, token).map_err(text)?;
        if seen[row] != wanted {
            let seen = seen[row];
            return Err(format!(
                "seed {seed}: row {row}, token {token}: {seen:x?} instead of {wanted:x?}\n{asked:?}"
            ));
        }
    }
    Ok(())
}
