//! Assignments: which requests the rows of the next work are of, and the masks and other lists of these rows.
//!
//! The host copies an assignment up only when it changes. Work with an unchanged batch therefore only
//! launches kernels.

use std::borrow::Cow;

use gumball_cuda::{Assignment, DraftCounts, DraftRule};
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::verify::draft::check_path;
use gumball_spec::{Error, Result};

use super::assigned::{Assigned, AssignedDrafts, code};
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use super::probabilities::refused;
use crate::batch::Batch;
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

/// Returns whether a batch is one of verifications. One without requests suits steps as well, unless it says
/// how drafts are judged.
pub(super) fn verifies(batch: &Batch<'_>) -> bool {
    !batch.counts.is_empty() || batch.slots.is_empty() && batch.mode != VerifyMode::default()
}

impl OnGpu {
    /// Assigns a batch to the pool's own rows, for verifications or for steps.
    pub(super) fn assign_batch(
        &mut self,
        slots: &mut Slots,
        batch: &Batch<'_>,
        verifies: bool,
    ) -> Result<()> {
        if verifies {
            let rows = self.check_draft_counts(batch)?;
            let drafts = DraftCounts { counts: batch.counts, rule: rule(batch.mode), batch_requests: &[] };
            return self.assign_rows(slots, batch, rows, Some(drafts));
        }
        batch.refuse_drafts("assign")?;
        self.check_rows(batch.slots)?;
        self.assign_rows(slots, batch, batch.slots.len(), None)
    }

    /// Checks that the pool has a row for each slot.
    fn check_rows(&self, slots: &[Slot]) -> Result<()> {
        if slots.len() > self.rows {
            let allowed = format!("at most {}, the pool's rows", self.rows);
            return Err(Error::length("slots", slots.len(), allowed));
        }
        Ok(())
    }

    /// Assigns a batch to the rows of a batch of drafts.
    pub(super) fn assign_draft(&mut self, slots: &Slots, of: DraftBatch, batch: &Batch<'_>) -> Result<()> {
        let counts = match batch.counts {
            [] => Cow::Owned(vec![0; batch.slots.len()]),
            counts => Cow::Borrowed(counts),
        };
        self.check_draft(slots, batch, &counts)?;
        let forced: Vec<i32> = batch.forced.iter().copied().map(code).collect();
        self.workspace.assign(&Assignment {
            of: Some(of.id),
            slots: batch.slots,
            forced: &forced,
            row_indices: batch.row_indices,
            masks: &batch.masks.rows(batch.slots.len()),
            drafts: Some(DraftCounts { counts: &counts, rule: rule(batch.mode), batch_requests: &[] }),
        })
    }

    /// Checks the rows of a draft model, in front of which `counts` drafts stand.
    pub(super) fn check_draft(&self, sequences: &Slots, batch: &Batch<'_>, counts: &[u32]) -> Result<()> {
        let slots = batch.slots;
        self.check_draft_route()?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        self.check_rows(slots)?;
        batch.check(slots.len(), self.vocab)?;
        counts.iter().try_for_each(|count| check_path(*count as usize))?;
        let mut admitted = slots.iter().filter(|slot| **slot != PADDING);
        admitted.try_for_each(|slot| check_drafts(sequences.sequence(*slot)?.params(), 1))
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
        let requests = self.assigned.slots.len();
        match self.assigned.counts() {
            None => AssignedShape { rows: requests, requests: 0 },
            Some(counts) => {
                let drafts: usize = counts.iter().map(|count| *count as usize).sum();
                AssignedShape { rows: requests + drafts, requests }
            }
        }
    }

    /// Assigns a batch to `rows` rows: one of each slot, or with drafts one more than the slot has drafts.
    pub(super) fn assign_rows(
        &mut self,
        sequences: &mut Slots,
        batch: &Batch<'_>,
        rows: usize,
        drafts: Option<DraftCounts<'_>>,
    ) -> Result<()> {
        batch.check(rows, self.vocab)?;
        let has_masks = !matches!(batch.masks, Masks::None);
        if self.has_softmax {
            let given = [("masks", has_masks), ("row_indices", !batch.row_indices.is_empty())];
            if let Some((parameter, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                return Err(refused(parameter));
            }
        }
        if self.assigned.is(batch, drafts) {
            return Ok(());
        }
        let slots = batch.slots;
        sequences.check(slots)?;
        for (slot, count) in slots.iter().zip(drafts.map_or(&[][..], |drafts| drafts.counts)) {
            if *slot != PADDING {
                check_drafts(sequences.admitted(*slot).params(), *count as usize)?;
            }
        }

        let assigned = Assigned {
            known: true,
            slots: slots.to_vec(),
            drafts: drafts.map(AssignedDrafts::of),
            forced: batch.forced.iter().copied().map(code).collect(),
            lines: batch.row_indices.to_vec(),
            masks: has_masks,
            temperatures: self.temperatures(
                sequences,
                slots,
                drafts.is_some_and(|drafts| drafts.rule == DraftRule::Greedy),
            ),
        };
        let masks = batch.masks.rows(rows);
        // If the copy fails, nothing is assigned on the device, and the next `assign` writes all lists again.
        self.assigned.known = false;
        self.workspace.assign(&Assignment {
            of: None,
            slots,
            forced: &assigned.forced,
            row_indices: &assigned.lines,
            masks: &masks,
            drafts,
        })?;
        if self.has_softmax {
            let temperatures = assigned.temperatures.iter().enumerate().flat_map(|(index, temperature)| {
                let rows = drafts.map_or(1, |drafts| drafts.counts[index] as usize + 1);
                std::iter::repeat_n(temperature.unwrap_or(1.0), rows)
            });
            self.workspace.assign_temperatures(&temperatures.collect::<Vec<_>>())?;
        }
        self.assigned = assigned;
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

    /// Checks the numbers of drafts, the mode, and the forced tokens that it does not take; returns the
    /// number of rows.
    pub(super) fn check_draft_counts(&self, batch: &Batch<'_>) -> Result<usize> {
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
        Ok(rows)
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
