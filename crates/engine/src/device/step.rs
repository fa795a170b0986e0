//! A step on a device, its outputs, and the host's record of the enqueued steps.
//!
//! A step with an unchanged batch only launches kernels, and replaying a captured step takes one call.

use gumball_spec::layout::Layout;
use gumball_spec::{Error, Kind, Result};

use super::backend::DeviceBackend;
use super::head::DeviceHead;
use super::on_gpu::OnGpu;
use super::probabilities::refused;
use crate::batch::{Batch, Checked};
use crate::drafts::starts;
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::work::Work;

impl OnGpu {
    /// Takes a step, once the host's rows are copied to the device.
    pub fn step(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        rows.check(batch, self.vocab)?;
        rows.check_slots(batch)?;
        let (batch, masks) = batch.without_device_masks();
        let batch = self.check_step("step", &batch)?;
        self.check_route(rows.kind(), !matches!(masks, Masks::None))?;
        self.refuse_hooks(&batch)?;
        self.run(slots, Work::Step(rows, masks), &batch, out)
    }

    /// Assigns a batch, does work over it, and fetches what comes out.
    pub(super) fn run(
        &mut self,
        slots: &mut Slots,
        work: Work<'_>,
        batch: &Checked<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (Work::Step(of, _) | Work::Verify(of, ..)) = work else {
            unreachable!("{work:?} has no outputs")
        };
        let is_approximate = match of {
            Rows::Hidden(head, _) => head.on_device()?.is_approximate(),
            _ => false,
        };
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the
        // tokens.
        out.reserve(Layout { rows: batch.rows(), widths: self.widths })?;
        self.assign_batch(slots, batch, matches!(work, Work::Verify(..)), (&[], &[]))?;
        if batch.slots.is_empty() {
            self.note(slots, 0, is_approximate);
        } else {
            self.enqueue_all(slots, &[work], None)?;
        }
        self.fetch_last(slots, out)
    }

    /// Checks that the pool's route takes rows of a kind, and bitmasks if there are some.
    pub(super) fn check_route(&self, kind: Kind, has_masks: bool) -> Result<()> {
        match kind {
            _ if !self.has_softmax => Ok(()),
            _ if has_masks => Err(refused("masks")),
            Kind::Logits => Ok(()),
            Kind::Probabilities => {
                let reason = "rows of probabilities need no softmax; step them in a pool of the route race";
                Err(Error::Conflict { parameter: "kind", other: "route", reason })
            }
        }
    }

    /// Makes sure that the histories of the assigned rows can take the tokens of `steps` more steps. Growing
    /// one waits for the device, which happens once in `history_growth` tokens.
    pub(super) fn grow_histories(&mut self, steps: usize) -> Result<()> {
        // A captured step does not run yet, and waiting would invalidate the capture.
        if self.workspace.has_history_left(steps as u64) || self.device.runtime().is_capturing()? {
            return Ok(());
        }
        let tokens = steps.saturating_mul(self.workspace.rows().tokens_per_step() as usize);
        let tokens = self.history_growth.max(tokens.saturating_add(self.workspace.longest_path()));
        let mut slots = self.assigned.of.slots.iter().filter(|slot| **slot != PADDING);
        slots.try_for_each(|slot| self.workspace.extend(*slot, tokens))
    }

    /// Records that the assigned rows have taken `steps` steps, the last of them from rows of probed sets if
    /// it `is_approximate`.
    pub(super) fn note(&mut self, slots: &mut Slots, steps: u64, is_approximate: bool) {
        self.last.observed = steps == 0;
        self.last.is_approximate = is_approximate;
        self.last.of.clone_from(&self.assigned.of);
        self.last.temperatures.clone_from(&self.assigned.temperatures);
        slots.each_ahead(&self.assigned.of.slots, |ahead| ahead.note_steps(steps));
    }

    /// Takes the host's copies of the sequences for equal to the device's.
    pub(super) fn forget_unseen(&mut self, slots: &mut Slots) {
        self.last.observed = true;
        slots.forget_unseen();
    }

    /// Updates the host's copies of the sequences from the last step's outputs, once per step.
    pub(super) fn apply(&mut self, slots: &mut Slots, words: &[u32]) -> Result<()> {
        self.last.apply(slots, &mut self.workspace, words)
    }

    /// Copies the outputs of the last step, with short kept sets in one copy; of a verification the walks as
    /// well.
    pub fn fetch_last(&mut self, slots: &mut Slots, out: &mut Outputs) -> Result<()> {
        let layout = self.outputs_layout();
        let (words, kept) = out.whole(layout)?;
        self.workspace.results().read(words, kept)?;
        let path = self.last.of.verifies.then(|| self.read_path()).transpose()?;
        if !self.last.temperatures.is_empty() {
            let mut statuses = vec![0; layout.rows];
            self.workspace.read_softmax_statuses(&mut statuses)?;
            self.last.add_softmax(slots, (layout, &statuses), path.as_deref(), words);
        }
        self.apply(slots, words)?;
        if let (Some(path), Some(counts)) = (path, self.last.of.counts()) {
            out.note_walks(&starts(counts), path);
        }
        out.mark_approximate(self.last.is_approximate);
        Ok(())
    }

    /// Reads the walks of the last verification: the row that each place of the outputs comes from.
    fn read_path(&self) -> Result<Vec<u32>> {
        let (mut path, mut accepted) = (vec![0; self.last.of.rows()], vec![0; self.last.of.slots.len()]);
        self.workspace.results().read_walks(&mut path, &mut accepted)?;
        Ok(path)
    }

    pub(super) fn outputs_layout(&self) -> Layout {
        self.last.layout(&self.workspace)
    }

    /// Returns a head, once it is checked that it is of the pool's vocabulary.
    pub(super) fn check_head<'h>(&self, head: &'h DeviceHead<'h>) -> Result<&'h DeviceHead<'h>> {
        if head.vocab() != self.vocab {
            let allowed = format!("{} ids, the pool's vocabulary", self.vocab);
            return Err(Error::length("head", head.vocab(), allowed));
        }
        Ok(head)
    }
}
