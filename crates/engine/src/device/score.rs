//! Scores on a device: the logprobs of given tokens.

use std::ops::Range;

use gumball_cuda::{KnownTokens, Prepared, Rows as DeviceMatrix, Workspace, WorkspaceLimits};
use gumball_spec::layout::{Layout, Widths};
use gumball_spec::{Error, Result};

use super::draft::HIDDEN;
use super::on_gpu::OnGpu;
use crate::batch::{Batch, Checked};
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::{Scored, conflict, prepare};

/// The largest number of rows that one step scores.
const ROWS: usize = 256;

/// What computes scores that were checked.
pub(super) struct Scorer<'s> {
    pub workspace: Workspace,
    known: KnownTokens<'s>,
    request: Prepared,
    pub batch: Checked<'s>,
}

impl Scorer<'_> {
    /// Scores a part of the tokens, from rows that lie there; the part's rows, if rows have no indices.
    pub fn score(&mut self, part: Range<usize>, rows: &DeviceMatrix<'_>, out: &mut Outputs) -> Result<()> {
        let (batch, count) = (&self.batch, self.batch.rows());
        let WorkspaceLimits { widths, .. } = self.workspace.limits();
        let known = KnownTokens { start: self.known.start + part.start, ..self.known };
        let masks = batch.masks.rows(count);
        let masks = if masks.is_empty() { &masks[..] } else { &masks[part.clone()] };
        let scores = known.score(&mut self.workspace, 0, &self.request, rows, batch.row_indices, masks)?;
        let mut found = Outputs::new();
        found.collect_kept(out.collects_kept());
        let (words, kept) = found.whole(Layout { rows: part.len(), widths })?;
        words.copy_from_slice(scores.words());
        for (row, ids) in kept.iter_mut().enumerate() {
            ids.extend_from_slice(scores.kept(row).expect("the workspace keeps them"));
        }
        if part.len() == count {
            return out.copy_from(&found);
        }
        for (row, to) in part.enumerate() {
            let mut words = Vec::new();
            found.pack(row, &mut words);
            out.unpack(to, &mut &words[..]).expect("as it was packed");
        }
        Ok(())
    }
}

impl OnGpu {
    /// Scores known tokens. If an edit reads the history, the rows are scored one at a time.
    pub fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        rows.check(batch, self.vocab)?;
        let Some(mut scorer) = self.scorer_of(rows, batch, scored, out)? else { return Ok(()) };
        let there = self.uploads.rows(self.device.runtime(), rows)?.matrix().on_device("logits")?;
        let there = there.with_kind(rows.kind());
        let scores = scorer.score(0..scorer.batch.rows(), &there, out);
        self.scorer = Some(scorer.workspace);
        scores
    }

    /// Checks scores, and returns what computes them; `None` if there are none.
    pub(super) fn scorer_of<'s>(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'s>,
        scored: &Scored<'s>,
        out: &mut Outputs,
    ) -> Result<Option<Scorer<'s>>> {
        let vocab = self.vocab;
        scored.params.check_kind(rows.kind())?;
        if self.has_softmax {
            return Err(conflict(
                "score",
                "route",
                "the device scores rows of logits; take a pool of the route race",
            ));
        }
        rows.refuse_hidden("scores of hidden states on a device", HIDDEN)?;
        scored.refuse_chunks()?;
        let count = rows.count(batch);
        let batch = batch.check_score(count, vocab)?;
        self.refuse_hooks(&batch)?;
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
        known.check(count, vocab)?;

        let widths = Widths::of(params.logprobs.as_ref());
        let layout = Layout { rows: count, widths };
        out.reserve(layout)?;
        let limits = WorkspaceLimits { vocab, slots: 1, rows: ROWS, widths, kept: out.collects_kept() };
        out.whole(layout)?;
        if count == 0 {
            return Ok(None);
        }
        let workspace = match self.scorer.take().filter(|scorer| scorer.limits() == limits) {
            Some(workspace) => workspace,
            None => Workspace::new(self.device.runtime().clone(), limits)?,
        };
        Ok(Some(Scorer { workspace, known, request, batch }))
    }

    /// Returns an error if a row has a hook.
    pub(super) fn refuse_hooks(&self, batch: &Batch<'_>) -> Result<()> {
        match batch.hooks.iter().position(Option::is_some) {
            None => Ok(()),
            Some(row) => {
                let reason =
                    format!("row {row} has one, which runs on the host; step it in a pool of the host");
                Err(Error::Unavailable { resource: "hooks on a device", reason })
            }
        }
    }
}
