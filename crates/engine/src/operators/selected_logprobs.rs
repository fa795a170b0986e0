//! Logprobs of selected tokens: of one token of each row, which is there already.
//!
//! Such a token is a forced one, as in [`Pool::score`](crate::Pool::score): a row is carried through the stages, and its logprob is, bit
//! for bit, the `raw` one that a step would report.

use gumball_cpu::{History, Prepared};
use gumball_spec::{Error, LogprobMode, LogprobsParams, NONE, Result, SamplingParams};

#[cfg(feature = "cuda")]
use super::device::OnDevice;
use super::host::{Host, task};
use crate::logits::Logits;
#[cfg(feature = "cuda")]
use gumball_cuda::{self as cuda, KnownTokens, Rows, Workspace, WorkspaceLimits};
#[cfg(feature = "cuda")]
use gumball_spec::layout::Widths;

/// The largest number of rows that one step on a device takes.
#[cfg(feature = "cuda")]
const ROWS: usize = 256;

/// The memory that an operator writes, and the tokens that it writes about.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub tokens: &'a [i32],
    pub logprobs: &'a mut [f32],
    pub ranks: Option<&'a mut [u32]>,
}

impl Selected<'_> {
    /// Checks that there is a token for each row, and room for what is written of it.
    fn check(&self, rows: usize, vocab: usize) -> Result<()> {
        let lengths = [("tokens", self.tokens.len()), ("logprobs", self.logprobs.len())];
        let ranks = self.ranks.as_ref().map(|ranks| ("ranks", ranks.len()));
        for (parameter, length) in lengths.into_iter().chain(ranks) {
            if length != rows {
                return Err(Error::length(parameter, length, format!("one per row, {rows}")));
            }
        }
        let outside =
            |token: &&i32| **token != NONE && usize::try_from(**token).map_or(true, |id| id >= vocab);
        match self.tokens.iter().find(outside) {
            Some(token) => Err(Error::out_of_range("tokens", token, format!("an id in 0..{vocab}, or -1"))),
            None => Ok(()),
        }
    }

    /// Writes each row's logprob and rank: those found, or -inf and 0 where the token is `NONE`.
    fn write(&mut self, found: impl Iterator<Item = (f32, u32)>) {
        for (row, (logprob, rank)) in found.enumerate() {
            let (logprob, rank) =
                if self.tokens[row] == NONE { (f32::NEG_INFINITY, 0) } else { (logprob, rank) };
            self.logprobs[row] = logprob;
            if let Some(ranks) = &mut self.ranks {
                ranks[row] = rank;
            }
        }
    }
}

/// Returns the parameters of a request that draws nothing and asks for the raw logprob of its token.
fn params() -> SamplingParams {
    let logprobs = LogprobsParams { mode: LogprobMode::Raw, ..LogprobsParams::default() };
    SamplingParams { temperature: 0.0, logprobs: Some(logprobs), ..SamplingParams::default() }
}

impl Host {
    /// Writes the logprobs of tokens; see [`Operators::selected_logprobs`](super::Operators::selected_logprobs).
    pub(super) fn selected_logprobs(&self, rows: Logits<'_>, mut selected: Selected<'_>) -> Result<()> {
        selected.check(rows.rows(), rows.vocab())?;
        let (kind, prepared) = (rows.kind(), Prepared::new(params(), rows.vocab())?);
        let (history, tokens) = (History::new(&[]), selected.tokens);
        let found = self.over((0..rows.rows()).collect(), |workspace, row| {
            let Ok(token) = u32::try_from(tokens[row]) else { return Ok((0.0, 0)) };
            let task = gumball_cpu::Task { forced: Some(token), ..task(kind, &prepared, &history) };
            workspace.sample(rows.row(row), &task, None)?;
            let of = workspace.logprobs().expect("the parameters ask for them").token;
            Ok((of.logprob, of.rank))
        })?;
        selected.write(found.into_iter());
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl OnDevice {
    /// Writes the logprobs of tokens to the host's memory, and waits for the device.
    pub(super) fn selected_logprobs(&mut self, rows: &Rows<'_>, mut selected: Selected<'_>) -> Result<()> {
        selected.check(rows.rows(), rows.vocab())?;
        if rows.rows() == 0 {
            return Ok(());
        }
        let limits = WorkspaceLimits {
            vocab: rows.vocab(),
            slots: 1,
            rows: ROWS,
            widths: Widths::default(),
            kept: false,
        };
        let ids: Vec<u32> = selected.tokens.iter().map(|token| u32::try_from(*token).unwrap_or(0)).collect();
        let known = KnownTokens { ids: &ids, ..KnownTokens::default() };
        let request = cuda::Prepared::new(&params(), rows.vocab())?;
        let mut workspace = match self.scorer.take().filter(|scorer| scorer.limits() == limits) {
            Some(workspace) => workspace,
            None => Workspace::new(self.runtime(), limits)?,
        };
        let scores = workspace.score(0, &request, &known, rows, &[], &[]);
        self.scorer = Some(workspace);
        let scores = scores?;
        let (layout, words) = (scores.layout(), scores.words());
        let logprobs = words[layout.logprobs()].iter().map(|bits| f32::from_bits(*bits));
        selected.write(logprobs.zip(words[layout.ranks()].iter().copied()));
        Ok(())
    }
}
