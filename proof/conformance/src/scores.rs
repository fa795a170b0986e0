//! Scores on a device against the oracle: known tokens, each after the tokens before it.

use gumball_engine::{Batch, Device, HostMasks, Masks, Outputs, Place, Pool, PoolConfig, Rows, Scored};
use gumball_spec::{Error, Forced, Request, SamplingParams, Widths, oracle};

use crate::backend::read_row;
use crate::bytes::Bytes;
use crate::case::Case;
use crate::generate;
use crate::observed::{Observed, differences};
use crate::rows::{self, Words};

/// More rows than a device scores at once.
const MANY: usize = 300;

/// Holds the scores of a random sequence under random parameters; returns whether such a request is scored.
///
/// # Errors
/// A text that says what differs, or what the pool said.
pub fn hold(device: &Device, seed: u64) -> Result<bool, String> {
    let words = &mut Words(seed);
    let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
    let vocab = [7, 256, 300, 900][words.below(4)];
    let mut params = SamplingParams { seed: Some(seed), ..generate::params(&mut Bytes(&data), vocab) };
    let widths = Widths::of(Some(params.logprobs.get_or_insert_default()));
    let len = if vocab == 7 && words.below(6) == 0 { MANY } else { 1 + words.below(14) };
    // Few ids, so that they repeat.
    let ids: Vec<u32> = (0..len).map(|_| words.below(vocab.min(5)) as u32).collect();
    let (start, prompt_len) = (words.below(len.min(14)), words.below(len + 1));
    let count = if len == MANY { len - start } else { 1 + words.below(len - start) };
    let width = vocab.div_ceil(32);
    let masks: Option<Vec<u32>> =
        (words.below(3) == 0).then(|| (0..count * width).map(|_| words.word() as u32).collect());
    let lines: Vec<Vec<f32>> = (0..count).map(|row| rows::model_like(vocab, seed ^ row as u64)).collect();

    let text = |error: &dyn std::fmt::Display| format!("seed {seed}: {error}");
    let score = || {
        let config = PoolConfig { slots: 1, widths, kept: true, ..PoolConfig::new(vocab) };
        let mut pool = Pool::new(PoolConfig { place: Place::device(device.clone(), 1), ..config })?;
        let all: Vec<u32> = (0..count as u32).collect();
        let masks = match &masks {
            Some(words) => Masks::Host(HostMasks::new(words, count, width, width)?),
            None => Masks::None,
        };
        let row_indices = if seed.is_multiple_of(4) { &all[..] } else { &[] };
        let batch = Batch { row_indices, masks, ..Batch::of(&[]) };
        let scored = Scored { params: &params, ids: &ids, prompt_len, start, chunk_rows: None };
        let (data, mut out) = (lines.concat(), Outputs::new());
        pool.score(Rows::logits(&data, count, vocab)?, &batch, &scored, &mut out)?;
        Ok(out)
    };
    let scores: Outputs = match score() {
        Err(Error::Conflict { other: "score", .. }) => return Ok(false),
        scores => scores.map_err(|error: Error| text(&error))?,
    };

    for (row, line) in lines.iter().enumerate() {
        let place = start + row;
        let (prompt, output) = ids[..place].split_at(prompt_len.min(place));
        let case = case(line, &params, prompt, output);
        let position = place as u32;
        let mask = masks.as_ref().map(|words| words[row * width..][..width].to_vec());
        let case = Case { seed, position, mask, ..case };
        let request = Request { forced: Some(Forced::known(ids[place])), ..case.request() };
        let wanted = oracle::sample(case.logits.row(), &request, None).map_err(|error| text(&error))?;
        let differences = differences(&Observed::of(&wanted), &read_row(&case, &scores, row));
        if !differences.is_empty() {
            return Err(format!("seed {seed}, row {row}:\n{differences}{case:?}"));
        }
    }
    Ok(true)
}

fn case(line: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Case {
    Case::of(line, params.clone()).after(prompt, output)
}
