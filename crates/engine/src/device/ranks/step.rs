//! A step over the devices of ranks: one token for each row, under the layout that was planned.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use gumball_cuda::{ExchangeFailure, ExchangeLayout, RankRows};
use gumball_dist::{LogitsLayout, Plan, Planner, StepDigest, StepKind, StepPart};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, NONE, Result};

use super::{GpuRanks, Spread, State, exchanged, is_lost};
use crate::batch::Batch;
use crate::drafts::starts;
use crate::outputs::Outputs;
use crate::ranks::alike::{For, Shape};
use crate::ranks::refuse_survey;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::work::Work;

impl GpuRanks {
    /// Assigns a batch to the rows of verifications, or of steps.
    pub(super) fn assign_batch(
        &mut self,
        call: &'static str,
        sequences: &mut Slots,
        batch: &Batch<'_>,
        verifies: bool,
    ) -> Result<()> {
        let most = batch.counts.iter().max().map_or(0, |most| *most as usize);
        let has_drafts = verifies || !batch.counts.is_empty();
        let kind = if has_drafts { batch.mode.step_kind() } else { StepKind::Decode };
        let plan = self.common.planned(sequences, batch, most, kind, true)?;
        let batch = Batch { plan: None, ..*batch };
        self.check_assignment(&plan, &batch)?;
        let batch = &if verifies {
            refuse_survey(&plan, batch.mode)?;
            self.gpu.check_verification(&batch)?
        } else {
            self.gpu.check_step(call, &batch)?
        };
        // The requests of a rank are neighbours there.
        let order: Vec<usize> =
            (0..self.common.group.world()).flat_map(|rank| plan.shares.of(rank)).collect();
        let is_own = plan.layout == LogitsLayout::Gather || order.is_sorted();
        let order = if is_own { Vec::new() } else { order };
        let starts = if verifies { starts(batch.counts) } else { (0..=batch.rows()).collect() };
        let batch_rows: Vec<usize> =
            order.iter().flat_map(|request| starts[*request]..starts[request + 1]).collect();
        self.gpu.assign_batch(sequences, batch, verifies, (&order, &batch_rows))?;
        let work = if verifies { For::Verify(batch.mode) } else { For::Step };
        let shape = Shape { layout: plan.layout, rows: None, work };
        let of = Arc::clone(&self.gpu.assigned.of);
        let digest = self.common.alike.begin(sequences, shape, batch, of);
        self.note_assignment(&plan, &starts, (batch_rows, digest))
    }

    /// Checks what every assignment must have.
    fn check_assignment(&self, plan: &Plan, batch: &Batch<'_>) -> Result<()> {
        self.common.planner.check(plan.layout)?;
        if plan.shares.requests() != batch.slots.len() {
            let allowed = format!("{}, as many as were planned for", plan.shares.requests());
            return Err(Error::length("slots", batch.slots.len(), allowed));
        }
        if !batch.row_indices.is_empty() {
            let reason = "each row of a step over ranks has logits of its own";
            return Err(Error::Conflict { parameter: "row_indices", other: "ranks", reason });
        }
        Ok(())
    }

    /// Notes an assignment that the pool has taken, and writes its order of rows and its digest to the
    /// windows. `starts`: the first rows of its requests, and the end. `batch_rows`: for each assigned row
    /// its number in the batch; empty if the two orders are the same.
    fn note_assignment(
        &mut self,
        plan: &Plan,
        starts: &[usize],
        (batch_rows, digest): (Vec<usize>, StepDigest),
    ) -> Result<()> {
        let batch_rows: Vec<u32> = batch_rows.into_iter().map(|row| row as u32).collect();
        if batch_rows != self.spread.batch_rows {
            self.windows.set_batch_rows(&batch_rows)?;
            self.spread.batch_rows = batch_rows;
        }
        self.spread.digest = digest;
        self.set_digest(self.spread.digest())?;
        let rows = |request: usize| starts[request + 1] - starts[request];
        let (mut first_rows, mut first_requests) = (vec![0], vec![0]);
        for rank in 0..self.common.group.world() {
            let share = || plan.shares.of(rank);
            first_rows.push(first_rows[rank] + share().map(rows).sum::<usize>());
            first_requests.push(first_requests[rank] + share().count());
        }
        self.spread.plan = Some(*plan);
        (self.spread.first_rows, self.spread.first_requests) = (first_rows, first_requests);
        Ok(())
    }

    /// Sets the digest that the next step's exchanges compare.
    pub(super) fn set_digest(&mut self, digest: StepDigest) -> Result<()> {
        self.windows.set_digest(digest.whole())?;
        self.turn.digest = digest;
        Ok(())
    }

    /// Copies the results of the last step: the whole batch, on every rank.
    pub(super) fn fetch_last(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        let layout = self.gpu.outputs_layout();
        out.mark_approximate(self.gpu.last.is_approximate);
        let (whole, kept) = out.whole(layout)?;
        let Some(starts) = self.gpu.last.of.counts().map(starts) else {
            return self.read(slots, layout, (whole, kept));
        };
        let (requests, results) = (self.gpu.last.of.slots.len(), layout.words());
        let mut words = vec![0; results + layout.rows + requests];
        self.read(slots, layout, (&mut words, kept))?;
        whole.copy_from_slice(&words[..results]);
        out.note_walks(&starts, words[results..][..layout.rows].to_vec());
        Ok(())
    }

    /// Reads the last step's results, of a verification its walks if `words` have room for them, and kept
    /// sets if there are some; updates the host's sequences.
    pub(super) fn read(
        &mut self,
        slots: &mut Slots,
        layout: Layout,
        (words, kept): (&mut [u32], &mut [Vec<u32>]),
    ) -> Result<()> {
        let Some(failure) = self.read_results(words)? else {
            if !kept.is_empty()
                && let Err(error) = self.read_kept(kept)
            {
                self.state = State::Broken(error.clone());
                self.gpu.forget_unseen(slots);
                return Err(error);
            }
            return self.gpu.apply(slots, words);
        };
        let is_given_up = matches!(failure, (ExchangeFailure::GivenUp { .. }, _));
        let is_whole = kept.is_empty() || self.turn.keepers.is_empty();
        if let State::Going(gone) = &self.state
            && is_lost(gone)
            && is_given_up
            && is_whole
            && self.is_drawn(layout, words)
        {
            // The rank went after it had sent what this step needs; the next one is an error.
            self.state = State::Broken(gone.clone());
            if !kept.is_empty() {
                self.read_kept(kept)?;
            }
            return self.gpu.apply(slots, words);
        }
        Err(self.broken_by(slots, failure))
    }

    /// Waits for the device, and returns the error of an exchange that failed.
    pub(super) fn wait(&mut self, slots: &mut Slots) -> Result<()> {
        match self.read_results(&mut [])? {
            None => Ok(()),
            Some(failure) => Err(self.broken_by(slots, failure)),
        }
    }

    /// Breaks the group because of an exchange that failed, and returns the error.
    fn broken_by(&mut self, slots: &mut Slots, failure: (ExchangeFailure, Duration)) -> Error {
        let error = self.failed(slots, failure);
        self.state = State::Broken(error.clone());
        // The device's copies may be a step ahead: the host's are those to go on from.
        self.gpu.forget_unseen(slots);
        error
    }

    /// Returns whether the step was completed: after a failure its results are the same as for padding.
    fn is_drawn(&self, layout: Layout, words: &[u32]) -> bool {
        let (tokens, statuses) = (&words[layout.tokens()], &words[layout.statuses()]);
        self.gpu.last.of.places().all(|(slot, Range { start, .. })| {
            // A row that was drawn without a token has a status.
            slot == PADDING || tokens[start] as i32 != NONE || statuses[start] != 0
        })
    }
}

/// Returns how rows are spread that all ranks have whole after the exchange; `nobodys`: where the rows of
/// each rank would begin, all 0.
pub(super) fn gathered_rows<'a>(nobodys: &'a [usize], planner: &'a Planner) -> RankRows<'a> {
    let first_ids = planner.split().borders();
    RankRows { layout: ExchangeLayout::Gather, first_rows: nobodys, first_requests: nobodys, first_ids }
}

impl Spread {
    /// Checks that work is of a kind that ranks take.
    pub(super) fn check_work(&self, work: &Work<'_>) -> Result<()> {
        if matches!(work, Work::Shorten(_)) && !self.batch_rows.is_empty() {
            let reason = "the requests were assigned in another order than the batch's; own them in blocks";
            return Err(Error::Conflict { parameter: "ownership", other: "counts", reason });
        }
        Ok(())
    }

    /// Returns how the rows of work are spread over the ranks. All ranks draw all drafts.
    pub(super) fn of<'a>(&'a self, work: &Work<'_>, planner: &'a Planner) -> Result<RankRows<'a>> {
        match work {
            Work::Draft(..) => Ok(gathered_rows(&self.nobodys, planner)),
            _ => self.own_spread(planner),
        }
    }

    /// Returns how the pool's own rows are spread over the ranks.
    pub(super) fn own_spread<'a>(&'a self, planner: &'a Planner) -> Result<RankRows<'a>> {
        let Self { plan, first_rows, first_requests, .. } = self;
        let Some(plan) = plan else {
            let reason = "assign rows under a layout first";
            return Err(Error::Conflict { parameter: "assignment", other: "step", reason });
        };
        let layout = exchanged(&plan.layout);
        Ok(RankRows { layout, first_rows, first_requests, first_ids: planner.split().borders() })
    }

    /// Returns the digest of the assignments of the pool's own rows and of batches of drafts.
    pub(super) fn digest(&self) -> StepDigest {
        let mut digest = self.digest;
        digest.extend(StepPart::Drafts, self.drafted.iter().map(|(_, word)| *word));
        digest
    }
}
