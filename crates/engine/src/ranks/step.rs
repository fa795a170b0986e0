//! A step over ranks: one token for each row, under the layout that was planned.

use gumball_dist::{LogitsLayout, Plan, StepKind, What, WholeRows, bytes_of, whole_rows, words_of};
use gumball_spec::layout::Layout;
use gumball_spec::{HostMatrix, NONE, Result};

use super::alike::For;
use super::{HostRanks, corrupt};
use crate::batch::{Batch, Checked};
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slots::Slots;

impl HostRanks {
    /// Checks a step, whose rows are this rank's part, and takes it if there are outputs for it.
    pub(super) fn step(
        &mut self,
        sequences: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        let (logits, slots) = (rows.of_rank(batch)?, batch.slots);
        let plan = &self.common.planned(sequences, batch, 0, StepKind::Decode, false)?;
        let starts: Vec<usize> = (0..=slots.len()).collect();
        self.check_plan(plan, logits, &starts)?;
        let batch = &self.host.check_rows(sequences, logits.kind(), batch)?;
        if plan.layout == LogitsLayout::Survey {
            self.check_survey(sequences, logits, batch)?;
        }
        let Some(out) = out else { return Ok(()) };
        self.begin(sequences, plan, logits, batch, For::Step);
        match plan.layout {
            LogitsLayout::Gather => {
                let all: Vec<usize> = (0..slots.len()).collect();
                let whole = self.whole_rows(logits, &vec![all; self.common.group.world()])?;
                let rows = logits_of(&whole, slots.len(), self.host.vocab, logits)?;
                self.host.compute(sequences, rows, batch, out)?;
                self.whole = whole;
            }
            LogitsLayout::Swap => {
                let shares: Vec<Vec<usize>> =
                    (0..self.common.group.world()).map(|rank| plan.shares.of(rank).collect()).collect();
                let whole = self.whole_rows(logits, &shares)?;
                let rows = shares[self.common.group.rank()].len();
                let rows = logits_of(&whole, rows, self.host.vocab, logits)?;
                self.step_share(sequences, plan, rows, batch, out)?;
                self.whole = whole;
            }
            LogitsLayout::Replicated => self.step_share(sequences, plan, logits, batch, out)?,
            LogitsLayout::Survey => self.survey(sequences, plan, logits, batch, out)?,
        }
        sequences.advance(slots, out);
        self.common.planner.count(plan);
        Ok(())
    }

    /// Exchanges parts for the rows that each rank wants, in memory that belongs back to `whole` afterwards.
    pub(super) fn whole_rows(&mut self, logits: Logits<'_>, wanted: &[Vec<usize>]) -> Result<WholeRows> {
        let mut whole = std::mem::take(&mut self.whole);
        let (group, split) = (&mut self.common.group, self.common.planner.split());
        whole_rows(group, split, wanted, logits.data(), |row| logits.row(row), &mut whole)?;
        Ok(whole)
    }

    /// Computes this rank's share of the rows, and exchanges what comes out.
    fn step_share(
        &mut self,
        sequences: &Slots,
        plan: &Plan,
        logits: Logits<'_>,
        batch: &Checked<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let rows: Vec<usize> = plan.shares.of(self.common.group.rank()).collect();
        let share = batch.pick(&rows, &rows);
        self.host.compute(sequences, logits, &share.batch(), &mut self.share)?;
        let mut words = Vec::new();
        (0..rows.len()).for_each(|row| self.share.pack(row, &mut words));
        out.whole(Layout { rows: batch.slots.len(), widths: self.host.widths })?;
        self.exchange_rows(&words, out, |rank| plan.shares.of(rank).collect())
    }

    /// Exchanges packed rows of outputs: each rank sends its own.
    pub(super) fn exchange_rows(
        &mut self,
        words: &[u32],
        out: &mut Outputs,
        rows_of: impl Fn(usize) -> Vec<usize>,
    ) -> Result<()> {
        let most_words = out.most_packed(self.host.vocab);
        let most_bytes = |rank| size_of::<u32>() * most_words * rows_of(rank).len();
        let messages = self.common.group.all_gather(What::Outputs, &bytes_of(words), most_bytes)?;
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            let mut rest = &words[..];
            for row in rows_of(rank) {
                let unpacked = out.unpack(row, &mut rest);
                if unpacked.is_none() || !self.is_outcome(out, row) {
                    return Err(corrupt(&mut self.common.group, rank));
                }
            }
            if !rest.is_empty() {
                return Err(corrupt(&mut self.common.group, rank));
            }
        }
        Ok(())
    }

    /// Returns whether what was received of a row can be taken into a sequence.
    pub(super) fn is_outcome(&self, out: &Outputs, row: usize) -> bool {
        let (token, mu) = (out.tokens()[row], out.mirostat_mu()[row]);
        let is_id = |id: &u32| (*id as usize) < self.host.vocab;
        let is_token = |token: &i32| *token == NONE || is_id(&(*token as u32));
        let mut tokens = std::iter::once(&token).chain(out.top_ids(row));
        tokens.all(is_token) && out.kept(row).iter().all(is_id) && mu < f32::INFINITY
    }
}

/// Returns rows that were put together as a batch of the kind of another.
pub(super) fn logits_of<'a>(
    whole: &'a WholeRows,
    rows: usize,
    vocab: usize,
    like: Logits<'_>,
) -> Result<Logits<'a>> {
    Ok(Logits::of(HostMatrix::of_vocab(whole.as_row(), rows, vocab, vocab)?, like.kind()))
}
