//! A step over ranks: one token for each row, under the layout that was planned.

use gumball_dist::{LogitsLayout, Plan, StepKind, What, WholeRows, bytes_of, whole_rows, words_of};
use gumball_spec::layout::Layout;
use gumball_spec::{NONE, Result};

use super::{DistPool, corrupt};
use crate::batch::Batch;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slot::Slot;

impl DistPool {
    /// Chooses the next token of each row, and appends it to the sequence in the row's slot, on all ranks: what comes out is what
    /// [`Pool::step`](crate::Pool::step) gives for the whole logits, bit for bit.
    ///
    /// # Shapes and units
    /// `batch`: as [`Pool::step`](crate::Pool::step) takes it, for the whole batch and the whole vocabulary, the same
    /// on all ranks; `batch.plan` is that of [`DistPool::plan`] for its slots, which is asked if there is none. `rows`: one row for each slot, of
    /// this rank's ids, which may be followed by padding up to [`VocabSplit::width`](gumball_dist::VocabSplit::width); under `Replicated` a row of
    /// the whole vocabulary for each request of this rank's share, in turn. `out`: the whole batch, on every rank; what it holds after an
    /// error of the group is unspecified.
    ///
    /// # Errors
    /// - Those of [`Pool::step`](crate::Pool::step), [`Error::OutOfRange`](crate::Error::OutOfRange) for a layout that was not configured, and
    ///   [`Error::Conflict`](crate::Error::Conflict) for row indices; nothing was sent then.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) for hidden states.
    /// - Those of [`Group::all_to_all`](gumball_dist::Group::all_to_all): no sequence of this rank was changed, and the group is broken.
    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        let (logits, slots) = (rows.of_rank(batch)?, batch.slots);
        let plan = &self.planned(batch, 0, StepKind::Decode)?;
        let starts: Vec<usize> = (0..=slots.len()).collect();
        self.check_plan(plan, logits, &starts)?;
        let (sequences, host) = self.pool.host_parts();
        host.check_rows(sequences, logits.kind(), batch)?;
        if plan.layout == LogitsLayout::Survey {
            self.check_survey(logits, batch)?;
        }
        self.begin(plan, logits, (batch, slots.len()), (&[], std::iter::empty()));
        match plan.layout {
            LogitsLayout::Gather => {
                let all: Vec<usize> = (0..slots.len()).collect();
                let whole = self.whole_rows(logits, &vec![all; self.group.world()])?;
                let whole = logits_of(&whole, slots.len(), self.pool.vocab(), logits)?;
                let (sequences, host) = self.pool.host_parts();
                host.compute(sequences, whole, batch, out)?;
            }
            LogitsLayout::Swap => {
                let shares: Vec<Vec<usize>> =
                    (0..self.group.world()).map(|rank| plan.shares.of(rank).collect()).collect();
                let whole = self.whole_rows(logits, &shares)?;
                let rows = shares[self.group.rank()].len();
                let whole = logits_of(&whole, rows, self.pool.vocab(), logits)?;
                self.step_share(plan, whole, batch, out)?;
            }
            LogitsLayout::Replicated => self.step_share(plan, logits, batch, out)?,
            LogitsLayout::Survey => self.survey(plan, logits, batch, out)?,
        }
        self.pool.slots.advance(slots, out);
        self.planner.count(plan);
        Ok(())
    }

    /// Exchanges parts for the rows that each rank wants.
    pub(super) fn whole_rows(&mut self, logits: Logits<'_>, wanted: &[Vec<usize>]) -> Result<WholeRows> {
        whole_rows(&mut self.group, self.planner.split(), wanted, logits.data(), |row| logits.row(row))
    }

    /// Computes this rank's share of the rows, and exchanges what comes out.
    fn step_share(
        &mut self,
        plan: &Plan,
        logits: Logits<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let rows: Vec<usize> = plan.shares.of(self.group.rank()).collect();
        let own_slots: Vec<Slot> = rows.iter().map(|row| batch.slots[*row]).collect();
        let picked = batch.pick(&rows);
        self.prepare_share(out);
        let share = Batch { slots: &own_slots, ..picked.batch() };
        let (sequences, host) = self.pool.host_parts();
        host.compute(sequences, logits, &share, &mut self.share)?;
        let mut words = Vec::new();
        (0..rows.len()).for_each(|row| self.share.pack(row, &mut words));
        out.whole(Layout { rows: batch.slots.len(), widths: self.pool.widths })?;
        self.exchange_rows(&words, out, |rank| plan.shares.of(rank).collect())
    }

    /// Exchanges rows of outputs that were packed: those that each rank has.
    pub(super) fn exchange_rows(
        &mut self,
        words: &[u32],
        out: &mut Outputs,
        rows_of: impl Fn(usize) -> Vec<usize>,
    ) -> Result<()> {
        let most_words = out.most_packed(self.pool.vocab());
        let most_bytes = |rank| size_of::<u32>() * most_words * rows_of(rank).len();
        let messages = self.group.all_gather(What::Outputs, &bytes_of(words), most_bytes)?;
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            let mut rest = &words[..];
            for row in rows_of(rank) {
                let unpacked = out.unpack(row, &mut rest);
                if unpacked.is_none() || !self.is_outcome(out, row) {
                    return Err(corrupt(&mut self.group, rank));
                }
            }
            if !rest.is_empty() {
                return Err(corrupt(&mut self.group, rank));
            }
        }
        Ok(())
    }

    /// Returns whether what was received of a row can be taken into a sequence.
    pub(super) fn is_outcome(&self, out: &Outputs, row: usize) -> bool {
        let (token, mu) = (out.tokens()[row], out.mirostat_mu()[row]);
        let is_token = token == NONE || usize::try_from(token).is_ok_and(|id| id < self.pool.vocab());
        is_token && mu < f32::INFINITY
    }
}

/// Returns rows that were put together as a batch of the kind of another.
pub(super) fn logits_of<'a>(
    whole: &'a WholeRows,
    rows: usize,
    vocab: usize,
    like: Logits<'_>,
) -> Result<Logits<'a>> {
    Ok(Logits::new(whole.as_row(), rows, vocab)?.with_kind(like.kind()))
}
