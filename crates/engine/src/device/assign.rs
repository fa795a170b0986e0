//! Assignments: which requests the rows of the next work are of, and the masks and other lists of these rows.
//!
//! The host copies an assignment up only when it changes. Work with an unchanged batch therefore only
//! launches kernels.

use std::borrow::Cow;

use gumball_cuda::{self as cuda, DraftCounts, DraftRule};
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::coupled::{check_drafts, check_judged};
use gumball_spec::verify::draft::check_path;
use gumball_spec::{Error, Result};

use super::assigned::{Assigned, code};
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use super::probabilities::refused;
use crate::assignment::Assignment;
use crate::batch::{Batch, Checked, Picked};
use crate::draft::check_drawn;
use crate::drafts::starts;
use crate::masks::Masks;
use crate::slot::{PADDING, Slot};
use crate::slots::Slots;
use crate::verify::check_forced_block;
use crate::verify_mode::VerifyMode;

/// How much is assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AssignedShape {
    /// The number of rows.
    pub rows: usize,
    /// The number of requests whose drafts are verified; 0 if the rows are of steps, or of a batch of
    /// drafts.
    pub requests: usize,
}

/// Returns the rule of a mode.
pub(super) fn rule(mode: VerifyMode) -> DraftRule {
    match mode.judgement() {
        Some(judgement) => DraftRule::Judged(judgement),
        None if mode == VerifyMode::Greedy => DraftRule::Greedy,
        None => DraftRule::Coupled,
    }
}

impl OnGpu {
    /// Checks the batch of a step, for which the pool must have the rows.
    pub(super) fn check_step<'a>(&self, call: &'static str, batch: &Batch<'a>) -> Result<Checked<'a>> {
        let checked = batch.check_step(call, self.vocab)?;
        self.check_rows(batch.slots)?;
        Ok(checked)
    }

    /// Checks that the pool has a row for each slot.
    fn check_rows(&self, slots: &[Slot]) -> Result<()> {
        if slots.len() > self.rows {
            let allowed = format!("at most {}, the pool's rows", self.rows);
            return Err(Error::length("slots", slots.len(), allowed));
        }
        Ok(())
    }

    /// Assigns a batch to the rows of a batch of drafts, and returns it.
    pub(super) fn assign_draft<'a>(
        &mut self,
        slots: &Slots,
        of: DraftBatch,
        batch: &Batch<'a>,
    ) -> Result<Checked<'a>> {
        let counts = match batch.counts {
            [] => Cow::Owned(vec![0; batch.slots.len()]),
            counts => Cow::Borrowed(counts),
        };
        let batch = self.check_draft(slots, batch, &counts)?;
        self.assign_checked_draft(of, &batch, &counts)?;
        Ok(batch)
    }

    /// Assigns a batch to the rows of a batch of drafts, in front of which `counts` drafts stand.
    pub(super) fn assign_checked_draft(
        &mut self,
        of: DraftBatch,
        batch: &Checked<'_>,
        counts: &[u32],
    ) -> Result<()> {
        let forced: Vec<i32> = batch.forced.iter().copied().map(code).collect();
        self.workspace.assign(&cuda::Assignment {
            of: Some(of.id),
            slots: batch.slots,
            forced: &forced,
            known: false,
            row_indices: batch.row_indices,
            masks: &batch.masks.rows(batch.rows()),
            drafts: Some(DraftCounts { counts, rule: rule(batch.mode), batch_requests: &[] }),
        })
    }

    /// Checks the rows of a draft model, in front of which `counts` drafts stand.
    pub(super) fn check_draft<'a>(
        &self,
        sequences: &Slots,
        batch: &Batch<'a>,
        counts: &[u32],
    ) -> Result<Checked<'a>> {
        let slots = batch.slots;
        self.check_draft_route()?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        self.check_rows(slots)?;
        let checked = batch.check(slots.len(), self.vocab)?;
        counts.iter().try_for_each(|count| check_path(*count as usize))?;
        let mut admitted = slots.iter().filter(|slot| **slot != PADDING);
        admitted.try_for_each(|slot| check_drawn(sequences.sequence(*slot)?.params(), batch.mode))?;
        Ok(checked)
    }

    pub(super) fn check_draft_route(&self) -> Result<()> {
        if !self.has_softmax {
            return Ok(());
        }
        let reason = "draft in a pool of the route race, or of the host".to_owned();
        Err(Error::Unavailable { resource: "drafts on a device on the route probabilities", reason })
    }

    /// Returns how much is assigned to the pool's own rows.
    pub fn assigned_shape(&self) -> AssignedShape {
        let of = &self.assigned.of;
        AssignedShape { rows: of.rows(), requests: of.counts().map_or(0, <[u32]>::len) }
    }

    /// Assigns a batch to the pool's own rows, for verifications or for steps. `order` and `rows`: the
    /// requests and the rows of the batch in the order in which the device holds them; empty if that is the
    /// batch's order.
    pub(super) fn assign_batch(
        &mut self,
        sequences: &mut Slots,
        batch: &Checked<'_>,
        verifies: bool,
        (order, rows): (&[usize], &[usize]),
    ) -> Result<()> {
        let has_masks = !matches!(batch.masks, Masks::None);
        if self.has_softmax {
            let given = [("masks", has_masks), ("row_indices", !batch.row_indices.is_empty())];
            if let Some((parameter, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                return Err(refused(parameter));
            }
        }
        let batch_requests: Vec<u32> = order.iter().map(|request| *request as u32).collect();
        if self.assigned.known && !has_masks && self.assigned.of.is_of(batch, verifies, &batch_requests) {
            return Ok(());
        }
        sequences.check(batch.slots)?;
        for (slot, count) in batch.slots.iter().zip(batch.counts).filter(|(slot, _)| **slot != PADDING) {
            let params = sequences.admitted(*slot).params();
            check_drafts(params, *count as usize)?;
            if verifies && batch.mode.judgement().is_some() {
                check_judged(params, *count as usize)?;
            }
        }

        let is_greedy = verifies && batch.mode == VerifyMode::Greedy;
        let temperatures = self.temperatures(sequences, batch.slots, is_greedy);
        let picked = (!order.is_empty()).then(|| batch.pick(order, rows));
        let placed = picked.as_ref().map_or(*batch, Picked::batch);
        let forced: Vec<i32> = placed.forced.iter().copied().map(code).collect();
        let (counts, rule) = (placed.counts, rule(batch.mode));
        // If the copy fails, nothing is assigned on the device, and the next `assign` writes all lists again.
        self.assigned.known = false;
        self.workspace.assign(&cuda::Assignment {
            of: None,
            slots: placed.slots,
            forced: &forced,
            known: false,
            row_indices: placed.row_indices,
            masks: &placed.masks.rows(placed.rows()),
            drafts: verifies.then_some(DraftCounts { counts, rule, batch_requests: &batch_requests }),
        })?;
        let of = Assignment::of(batch, verifies, batch_requests);
        if self.has_softmax {
            let temperatures = temperatures.iter().zip(of.places());
            let each = temperatures.flat_map(|(temperature, (_, rows))| {
                std::iter::repeat_n(temperature.unwrap_or(1.0), rows.len())
            });
            self.workspace.assign_temperatures(&each.collect::<Vec<_>>())?;
        }
        self.assigned = Assigned { known: !has_masks, of, temperatures };
        Ok(())
    }

    /// Returns the temperature of the softmax of each slot's rows, `None` for padding; an empty list if steps
    /// make none.
    fn temperatures(&self, sequences: &Slots, slots: &[Slot], greedy: bool) -> Vec<Option<f32>> {
        if !self.has_softmax {
            return Vec::new();
        }
        let temperature = |slot: &Slot| {
            let admitted = sequences.sequence(*slot).ok();
            admitted.map(|sequence| if greedy { 0.0 } else { sequence.params().temperature })
        };
        slots.iter().map(temperature).collect()
    }

    /// Checks the batch of a verification: the numbers of drafts, the mode, and the forced tokens that it
    /// does not take.
    pub(super) fn check_verification<'a>(&self, batch: &Batch<'a>) -> Result<Checked<'a>> {
        let Batch { slots, counts, mode, .. } = *batch;
        self.check_judgement(mode)?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        if let Some(count) = counts.iter().find(|count| **count as usize > MAX_DRAFTS) {
            return Err(Error::out_of_range("counts", count, format!("in 0..={MAX_DRAFTS}")));
        }
        let starts = starts(counts);
        let rows = starts.last().copied().unwrap_or(0);
        if rows > self.rows {
            let allowed = format!("at most {} requests and drafts together, the pool's rows", self.rows);
            return Err(Error::length("counts", rows, allowed));
        }
        if mode == VerifyMode::Block {
            let requests = starts.array_windows().zip(slots).filter(|(_, slot)| **slot != PADDING);
            for ([start, end], _) in requests {
                check_forced_block(*start..*end, |row| batch.forced(row))?;
            }
        }
        batch.check(rows, self.vocab)
    }

    /// Checks a mode that judges drafts by probabilities.
    fn check_judgement(&self, mode: VerifyMode) -> Result<()> {
        let Some(judgement) = mode.judgement() else { return Ok(()) };
        judgement.check()?;
        if self.has_softmax {
            let reason = "verify coupled, or take the route race".to_owned();
            return Err(Error::Unavailable { resource: "probabilities of rows on this route", reason });
        }
        Ok(())
    }
}
