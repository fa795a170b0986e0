//! Scores on a device: the logprobs of tokens that are known already.

use gumball_cuda::{KnownTokens, Prepared, Rows, Workspace, WorkspaceLimits};
use gumball_spec::layout::{Layout, Widths};
use gumball_spec::{Error, Result};

use super::input::copy_up;
use super::pool::DevicePool;
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::check_vocab;
use crate::score::{Scored, conflict, prepare};

/// How many rows are scored in one step, at most.
const ROWS: usize = 256;

impl DevicePool {
    /// Returns the logprobs of known tokens, in any mode, with ranks, top tokens and given ids.
    ///
    /// The call of [`Pool::score`](crate::Pool::score), with the same outcome. No slot is touched. It waits for the device
    /// and takes memory there, which the next scores of the same widths use again. Rows are scored one at a time where
    /// the edits read the history.
    ///
    /// # Errors
    /// - Those of [`Pool::score`](crate::Pool::score).
    /// - [`Error::Unavailable`] for an option that the device has no kernel for, if a row has a hook, which runs on the host
    ///   alone, or if the device fails or has not enough memory.
    pub fn score(
        &mut self,
        logits: Logits<'_>,
        scored: Scored<'_>,
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let vocab = self.config.vocab;
        check_vocab(vocab, logits.vocab())?;
        options.check(logits.rows(), vocab)?;
        if !options.forced.is_empty() {
            return Err(conflict("forced", "score", "the scored tokens are the forced ones"));
        }
        scored.params.check_kind(logits.kind(), vocab)?;
        self.refuse_hooks(options, logits.rows())?;
        let prepared = prepare(scored.params, vocab)?;
        let params = prepared.params();
        let request = Prepared::new(params, vocab)?;
        let known = KnownTokens {
            ids: scored.ids,
            prompt_len: scored.prompt_len,
            start: scored.start,
            seed: params.seed.unwrap_or(0),
            mu: params.initial_mu(),
        };
        known.check(logits.rows(), vocab)?;

        let logprobs = params.logprobs.as_ref().expect("set by prepare");
        let widths = Widths { top_n: logprobs.top_n as usize, ids: logprobs.ids.len() };
        let layout = Layout { rows: logits.rows(), widths };
        out.reserve(layout)?;
        let room = WorkspaceLimits { vocab, slots: 1, rows: ROWS, widths, kept: out.collects_kept() };
        if logits.rows() == 0 {
            return out.whole(layout).map(drop);
        }
        let mut workspace = match self.scorer.take().filter(|scorer| scorer.limits() == room) {
            Some(workspace) => workspace,
            None => Workspace::new(self.device.machine().clone(), room)?,
        };
        let (data, lines, stride, select) = logits.matrix();
        let (buffer, dtype) = copy_up(self.device.machine(), &mut self.upload, data)?;
        let masks: Vec<Option<&[u32]>> = match options.masks.is_none() {
            true => Vec::new(),
            false => (0..logits.rows()).map(|row| options.masks.row(row)).collect(),
        };
        let scores = Rows::of(&buffer, dtype, 0, lines, vocab, stride).and_then(|rows| {
            let rows = rows.with_kind(logits.kind());
            workspace.score(0, &request, &known, &rows, select.unwrap_or_default(), &masks)
        });
        self.upload = Some(buffer);
        self.scorer = Some(workspace);
        let scores = scores?;

        let (words, kept) = out.whole(layout)?;
        words.copy_from_slice(scores.words());
        for (row, ids) in kept.iter_mut().enumerate() {
            ids.extend(scores.kept(row, vocab).expect("the workspace keeps them"));
        }
        Ok(())
    }

    /// Refuses hooks.
    pub(super) fn refuse_hooks(&self, options: &BatchOptions<'_>, rows: usize) -> Result<()> {
        match (0..rows).find(|row| options.hook(*row).is_some()) {
            None => Ok(()),
            Some(row) => {
                let reason =
                    format!("row {row} has one, which runs on the host; step it in a pool of the host");
                Err(Error::Unavailable { resource: "hooks on a device", reason })
            }
        }
    }
}
