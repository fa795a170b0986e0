//! A step on a device, its outputs, and what is known of the steps that were enqueued.
//!
//! A step with an unchanged batch only launches kernels, and replaying a captured step takes one call.

use gumball_cuda::StepVariant;
use gumball_spec::layout::Layout;
use gumball_spec::{Error, Kind, Result};

use super::ahead::Shortened;
use super::pool::DevicePool;
use super::pool_route::{PoolRoute, refused};
use crate::batch::Batch;
use crate::drafts::starts;
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::work::Work;

impl DevicePool {
    /// Chooses the next token of each row, and appends it to the sequence in the row's slot.
    ///
    /// The results equal those of [`Pool::step`](crate::Pool::step), but for a fast head's. The call copies rows of the host to the device,
    /// reads those of the device where they lie, and copies the outputs back.
    ///
    /// # Errors
    /// - Those of [`Pool::step`](crate::Pool::step), of [`DevicePool::assign`], [`DevicePool::enqueue`] and [`DevicePool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host, and for a head of the host.
    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        rows.check(batch, self.config.vocab)?;
        rows.check_slots(batch)?;
        batch.refuse_plan()?;
        batch.refuse_drafts("step")?;
        let (batch, masks) = batch.without_device_masks();
        batch.check(batch.slots.len(), self.config.vocab)?;
        self.check_route(rows.kind(), !matches!(masks, Masks::None))?;
        self.refuse_hooks(&batch)?;
        self.run(Work::Step(rows, masks), &batch, batch.slots.len(), out)
    }

    /// Assigns a batch of `rows` rows, does work over it that was checked, and fetches what comes out.
    pub(super) fn run(
        &mut self,
        work: Work<'_>,
        batch: &Batch<'_>,
        rows: usize,
        out: &mut Outputs,
    ) -> Result<()> {
        let (Work::Step(of, _) | Work::Verify(of, ..)) = work else {
            unreachable!("{work:?} has no outputs")
        };
        let is_approximate = match of {
            Rows::Hidden(head, _) => head.on_device()?.is_approximate(),
            _ => false,
        };
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the tokens.
        self.check_kept(out)?;
        out.reserve(Layout { rows, widths: self.config.widths })?;
        self.assign_batch(batch, matches!(work, Work::Verify(..)))?;
        if batch.slots.is_empty() {
            self.note(0, is_approximate);
        } else {
            self.enqueue(&[work])?;
        }
        self.fetch(out)
    }

    /// Checks that the pool's route takes rows of a kind, and bitmasks if there are some.
    pub(super) fn check_route(&self, kind: Kind, has_masks: bool) -> Result<()> {
        match self.config.route {
            PoolRoute::Race => Ok(()),
            PoolRoute::Probabilities if has_masks => Err(refused("masks")),
            PoolRoute::Probabilities if kind == Kind::Logits => Ok(()),
            PoolRoute::Probabilities => {
                let reason = "rows of probabilities need no softmax; step them in a pool of the route race";
                Err(Error::Conflict { parameter: "kind", other: "route", reason })
            }
        }
    }

    /// Returns the variants of a step in ascending order, each with the number of steps that it has served in
    /// this pool. Each one serves the requests of those before it, too.
    ///
    /// Steps reserved for replays of the host program's graphs count under the variant that was named, all
    /// others under the smallest one that serves their rows.
    #[must_use]
    pub fn variants(&self) -> [(StepVariant, u64); StepVariant::ALL.len()] {
        StepVariant::ALL.map(|variant| (variant, self.workspace.requests().steps_served(variant)))
    }

    /// Returns the smallest variant that serves the assigned rows: the one whose graph the host program should
    /// replay.
    #[must_use]
    pub fn needed_variant(&self) -> StepVariant {
        self.workspace.rows().needed_variant()
    }

    /// Prepares for replays of the host program's own graph that take `steps` steps of this pool in all, with
    /// the current assignment. The steps were captured under `variant`, or without one, which is
    /// [`StepVariant::Full`].
    ///
    /// Call it again after each assignment: no other call compares the rows with the graph's variant. Once the host program has captured a
    /// step of a clustered head, [`Outputs::is_approximate`] says so of all replays, since which graph is replayed is not known here.
    /// Waits for the device if histories need more memory, which happens once in
    /// [`history_growth`](super::DevicePoolConfig::history_growth) tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do. Nothing has changed then.
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn reserve_replays(&mut self, steps: usize, variant: StepVariant) -> Result<()> {
        self.workspace.rows().check_variant(variant)?;
        self.grow_histories(steps)?;
        self.workspace.reserve_replays(steps as u64, variant)?;
        self.note(steps as u64, self.captured_approximate);
        if self.captured_shorten {
            // The graph may take tokens away, and the host does not see when.
            self.slots.each_ahead(&self.assigned.slots, |ahead| ahead.shortened = Shortened::Lost);
        }
        Ok(())
    }

    /// Makes sure that the histories of the assigned rows can take the tokens of `steps` more steps. Growing one
    /// waits for the device, which happens once in `history_growth` tokens.
    pub(super) fn grow_histories(&mut self, steps: usize) -> Result<()> {
        // A captured step does not run yet, and waiting would invalidate the capture.
        if self.workspace.has_history_left(steps as u64) || self.device.runtime().is_capturing()? {
            return Ok(());
        }
        let tokens = steps.saturating_mul(self.workspace.rows().tokens_per_step() as usize);
        let tokens = self.config.history_growth.max(tokens.saturating_add(self.workspace.longest_path()));
        let mut slots = self.assigned.slots.iter().filter(|slot| **slot != PADDING);
        slots.try_for_each(|slot| self.workspace.extend(*slot, tokens))
    }

    /// Records that the assigned rows have taken `steps` steps, the last of them from rows of probed sets if it `is_approximate`.
    pub(super) fn note(&mut self, steps: u64, is_approximate: bool) {
        self.last.observed = steps == 0;
        self.last.is_approximate = is_approximate;
        self.last.slots.clone_from(&self.assigned.slots);
        self.last.counts = self.assigned.counts().cloned();
        self.last.temperatures.clone_from(&self.assigned.temperatures);
        self.slots.each_ahead(&self.assigned.slots, |ahead| ahead.note_steps(steps));
    }

    /// Records that the outputs of the last step come in another order than its rows were assigned in.
    pub(super) fn note_order(&mut self, slots: &[Slot], counts: Option<&Vec<u32>>) {
        slots.clone_into(&mut self.last.slots);
        self.last.counts = counts.cloned();
    }

    /// Takes the host's copies of the sequences for what the device has.
    pub(super) fn forget_unseen(&mut self) {
        self.last.observed = true;
        self.slots.forget_unseen();
    }

    /// Updates the host's copies of the sequences from the last step's outputs, once per step.
    pub(super) fn apply(&mut self, words: &[u32]) -> Result<()> {
        self.last.apply(&mut self.slots, &mut self.workspace, words)
    }

    /// Waits for the enqueued steps and copies the outputs of the last one into `out`, in one copy; of a verification the walks as well.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if `out` collects kept sets and the pool keeps none.
    /// - [`Error::Unavailable`] if the device fails or a step failed, or if the system refuses the memory of
    ///   the outputs.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        let layout = self.outputs_layout();
        self.check_kept(out)?;
        let (words, kept) = out.whole(layout)?;
        self.workspace.results().read(words)?;
        let path = self.last.counts.is_some().then(|| self.read_path()).transpose()?;
        if !self.last.temperatures.is_empty() {
            let mut statuses = vec![0; layout.rows];
            self.workspace.read_softmax_statuses(&mut statuses)?;
            self.last.add_softmax(layout, &statuses, path.as_deref(), words);
        }
        if !kept.is_empty() {
            self.workspace.results().read_kept(kept)?;
        }
        self.apply(words)?;
        if let (Some(path), Some(counts)) = (path, &self.last.counts) {
            out.note_walks(&starts(counts), path);
        }
        out.mark_approximate(self.last.is_approximate);
        Ok(())
    }

    /// Reads the walks of the last verification: the row that each place of the outputs comes from.
    fn read_path(&self) -> Result<Vec<u32>> {
        let (mut path, mut accepted) = (vec![0; self.last.rows()], vec![0; self.last.slots.len()]);
        self.workspace.results().read_walks(&mut path, &mut accepted)?;
        Ok(path)
    }

    /// Returns an error if `out` collects kept sets and the pool does not report them.
    pub(super) fn check_kept(&self, out: &Outputs) -> Result<()> {
        if !out.collects_kept() || self.config.kept {
            return Ok(());
        }
        let reason = "the pool was made to keep none; set DevicePoolConfig::kept";
        Err(Error::Conflict { parameter: "Outputs::with_kept", other: "the pool", reason })
    }

    /// Returns the address of the last step's outputs in the device's memory; it never changes.
    ///
    /// The tokens come first, so a model can read them there without the host. On the route `probabilities` statuses and
    /// temperatures there are those of the draw alone; [`DevicePool::fetch`] adds those of the softmax.
    #[must_use]
    pub fn outputs_address(&self) -> u64 {
        self.workspace.results().address()
    }

    /// Returns the layout of the last step's outputs.
    #[must_use]
    pub fn outputs_layout(&self) -> Layout {
        self.last.layout(&self.workspace)
    }
}
