//! A step on a device: assignment of its rows, launches, and outputs.
//!
//! The host copies an assignment up only when it changes. A step with unchanged slots and options therefore
//! only launches kernels, and replaying a captured step takes one call.

use gumball_cuda::{Assignment, DraftCounts, DraftRule, Rows, Step, StepInput, StepVariant};
use gumball_spec::layout::Layout;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::{Error, Kind, Result};

use super::ahead::Shortened;
use super::assigned::{Assigned, AssignedDrafts, code};
use super::head::DeviceHead;
use super::input::{DeviceInput, DeviceOptions, copy_up};
use super::pool::DevicePool;
use super::pool_route::{PoolRoute, refused};
use crate::batch::Batch;
use crate::drafts::starts;
use crate::matrix::Matrix;
use crate::outputs::Outputs;
use crate::slot::{PADDING, Slot};

/// Checks that rows hold logits, for a route that makes probabilities of them.
fn check_logits(kind: Kind) -> Result<()> {
    if kind == Kind::Logits {
        return Ok(());
    }
    let reason = "rows of probabilities need no softmax; step them in a pool of the route race";
    Err(Error::Conflict { parameter: "kind", other: "route", reason })
}

impl DevicePool {
    /// Chooses the next token of each row of the host's memory, and appends it to the sequence in the row's slot.
    ///
    /// The results equal those of [`Pool::step`](crate::Pool::step), but for a fast head's. The call copies the rows to the device
    /// and the outputs back.
    ///
    /// # Errors
    /// - Those of [`Pool::step`](crate::Pool::step), of [`DevicePool::enqueue`], [`DevicePool::enqueue_hidden`] and [`DevicePool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host, and for a head of the host.
    pub fn step(&mut self, rows: crate::Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        let source = rows.read(batch, self.config.vocab)?;
        source.check_slots(batch.slots)?;
        let head = source.device_head()?;
        batch.refuse_plan()?;
        batch.refuse_drafts("step")?;
        batch.check(source.rows(), self.config.vocab)?;
        if self.config.route == PoolRoute::Probabilities {
            check_logits(rows.kind())?;
        }
        self.refuse_hooks(batch, source.rows())?;
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the
        // tokens.
        self.check_kept(out)?;
        out.reserve(Layout { rows: source.rows(), widths: self.config.widths })?;
        self.assign(batch.slots, &DeviceOptions::of(batch))?;
        if batch.slots.is_empty() {
            self.note(0, head.is_some_and(DeviceHead::is_approximate));
        } else {
            self.with_copied(rows.matrix(), |pool, copied| match head {
                None => pool.enqueue_assigned(copied.with_kind(rows.kind())),
                Some(head) => pool.enqueue_hidden_assigned(head, copied),
            })?;
        }
        self.fetch(out)
    }

    /// Copies a matrix of the host to the device, and does work with where it lies there.
    pub(super) fn with_copied<T>(
        &mut self,
        matrix: Matrix<'_>,
        work: impl FnOnce(&mut Self, Rows<'_>) -> Result<T>,
    ) -> Result<T> {
        let (data, stride) = matrix.to_last();
        let (buffer, dtype) = copy_up(self.device.runtime(), &mut self.upload, data)?;
        let rows = Rows::of(&buffer, dtype, 0, matrix.rows(), matrix.width(), stride);
        let done = rows.and_then(|rows| work(self, rows));
        self.upload = Some(buffer);
        done
    }

    /// Enqueues a step: the next token of each row, appended to the sequence in the row's slot.
    ///
    /// Returns before the device has finished. The call allocates nothing on the device and copies the
    /// assignment up only if it changed. Once in [`history_growth`](super::DevicePoolConfig::history_growth)
    /// tokens of a sequence it moves histories and waits.
    ///
    /// # Shapes and units
    /// `input`: rows of the pool's vocabulary in the device's memory, logits unless [`Rows::with_kind`] says
    /// otherwise; each step may read other memory. `slots`: R slots, or [`PADDING`] for a row without a
    /// sequence; no other value twice. `options`: each list that is not empty has R elements. Without
    /// `row_indices` the logits have R rows.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape differs, or the step has more rows than the pool allows.
    /// - [`Error::OutOfRange`] for a vacant slot, a slot that occurs twice, a forced token outside the
    ///   vocabulary, or a row index beyond the logits.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if the rows hold probabilities.
    /// - [`Error::Conflict`] on the route `probabilities` for bitmasks, row indices, or rows that hold
    ///   probabilities already.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// After an error no sequence has changed.
    pub fn enqueue<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign(slots, options)?;
        self.enqueue_assigned(input)
    }

    /// Assigns slots and options to the rows of the next steps, those of captured graphs included.
    ///
    /// The call does not wait for the device. It copies nothing if the assignment is unchanged. While the
    /// host program captures a graph on the stream, only an unchanged assignment is allowed.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue`] that concern slots and options.
    pub fn assign(&mut self, slots: &[Slot], options: &DeviceOptions<'_>) -> Result<()> {
        if slots.len() > self.config.rows {
            let allowed = format!("at most {}, the pool's rows", self.config.rows);
            return Err(Error::length("slots", slots.len(), allowed));
        }
        self.assign_rows(slots, slots.len(), options, None)
    }

    /// Assigns slots and options to `rows` rows: one of each slot, or with drafts one more than the slot has drafts.
    pub(super) fn assign_rows(
        &mut self,
        slots: &[Slot],
        rows: usize,
        options: &DeviceOptions<'_>,
        drafts: Option<DraftCounts<'_>>,
    ) -> Result<()> {
        options.on_host().check(rows, self.config.vocab)?;
        if !options.row_indices.is_empty() && options.row_indices.len() != rows {
            let allowed = format!("one per row, {rows}, or 0");
            return Err(Error::length("row_indices", options.row_indices.len(), allowed));
        }
        if self.config.route == PoolRoute::Probabilities {
            let given =
                [("masks", !options.masks.is_none()), ("row_indices", !options.row_indices.is_empty())];
            if let Some((parameter, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                return Err(refused(parameter));
            }
        }
        if self.assigned.is(slots, options, drafts) {
            return Ok(());
        }
        self.slots.check(slots)?;
        for (slot, count) in slots.iter().zip(drafts.map_or(&[][..], |drafts| drafts.counts)) {
            if *slot != PADDING {
                check_drafts(self.slots.admitted(*slot).params(), *count as usize)?;
            }
        }

        let assigned = Assigned {
            known: true,
            slots: slots.to_vec(),
            drafts: drafts.map(AssignedDrafts::of),
            forced: options.forced.iter().copied().map(code).collect(),
            lines: options.row_indices.to_vec(),
            masks: !options.masks.is_none(),
            temperatures: self
                .temperatures(slots, drafts.is_some_and(|drafts| drafts.rule == DraftRule::Greedy)),
        };
        let masks: Vec<Option<&[u32]>> = match assigned.masks {
            true => (0..rows).map(|row| options.masks.row(row)).collect(),
            false => Vec::new(),
        };
        let (forced, lines) = (&assigned.forced, &assigned.lines);
        // If the copy fails, nothing is assigned on the device, and the next `assign` writes all lists again.
        self.assigned.known = false;
        let of = None;
        self.workspace.assign(&Assignment {
            of,
            slots,
            forced,
            row_indices: lines,
            masks: &masks,
            drafts,
        })?;
        if self.config.route == PoolRoute::Probabilities {
            let temperatures = assigned.temperatures.iter().enumerate().flat_map(|(index, temperature)| {
                let rows = drafts.map_or(1, |drafts| drafts.counts[index] as usize + 1);
                std::iter::repeat_n(temperature.unwrap_or(1.0), rows)
            });
            self.workspace.assign_temperatures(&temperatures.collect::<Vec<_>>())?;
        }
        self.assigned = assigned;
        Ok(())
    }

    /// Returns the temperature of the softmax of each slot's rows, `None` for padding; an empty list if steps make none.
    fn temperatures(&self, slots: &[Slot], greedy: bool) -> Vec<Option<f32>> {
        if self.config.route == PoolRoute::Race {
            return Vec::new();
        }
        let temperature = |slot: &Slot| {
            let admitted = self.slots.sequence(*slot).ok();
            admitted.map(|sequence| if greedy { 0.0 } else { sequence.params().temperature })
        };
        slots.iter().map(temperature).collect()
    }

    /// Checks that the pool's route takes the rows and bitmasks of an input.
    pub(super) fn check_input(&self, input: &StepInput<'_, '_>) -> Result<()> {
        match self.config.route {
            PoolRoute::Race => Ok(()),
            PoolRoute::Probabilities if input.masks.is_some() => Err(refused("masks")),
            PoolRoute::Probabilities => check_logits(input.rows.kind()),
        }
    }

    /// Enqueues a step for the rows that were assigned last; it only launches kernels.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the step becomes part of
    /// it, as one of [`StepVariant::Full`]; see [`DevicePool::enqueue_variant`].
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue`] that concern the input.
    pub fn enqueue_assigned<'b>(&mut self, input: impl Into<DeviceInput<'b>>) -> Result<()> {
        self.enqueue_with(input.into(), None)
    }

    /// Enqueues a step for the rows that were assigned last, with the kernels of a named variant.
    ///
    /// The host program may capture the step in a graph of its own on the device's stream. The step does not
    /// run then, and the graph serves later assignments that the variant serves. Call the method once before
    /// the capture, with padding for instance, so that the kernels are loaded, and
    /// [`DevicePool::reserve_replays`] before replays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do.
    /// - Those of [`DevicePool::enqueue`] that concern the input.
    pub fn enqueue_variant<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        variant: StepVariant,
    ) -> Result<()> {
        self.enqueue_with(input.into(), Some(variant))
    }

    fn enqueue_with(&mut self, input: DeviceInput<'_>, variant: Option<StepVariant>) -> Result<()> {
        self.enqueue_step(&input.of_step(), variant)?;
        Ok(())
    }

    /// Enqueues a step. Returns whether it runs: one that the host program captures in a graph of its own does not.
    pub(super) fn enqueue_step(
        &mut self,
        input: &StepInput<'_, '_>,
        variant: Option<StepVariant>,
    ) -> Result<bool> {
        self.check_input(input)?;
        variant.map_or(Ok(()), |variant| self.workspace.rows().check_variant(variant))?;
        self.grow_histories(1)?;
        let step = self.workspace.fix(input)?;
        let step = variant.into_iter().fold(step, Step::with_variant);
        let runs = self.workspace.enqueue(&step)?;
        if runs {
            self.note(1, step.is_approximate());
        } else {
            self.captured_approximate |= step.is_approximate();
        }
        Ok(runs)
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
        self.last.counts = self.assigned.drafts.as_ref().map(|drafts| drafts.counts.clone());
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

    /// Returns how many rows are assigned, and how many requests if they have drafts; 0 if they have none.
    #[must_use]
    pub fn assigned_shape(&self) -> (usize, usize) {
        let requests = self.assigned.slots.len();
        match &self.assigned.drafts {
            None => (requests, 0),
            Some(drafts) => {
                (requests + drafts.counts.iter().map(|count| *count as usize).sum::<usize>(), requests)
            }
        }
    }

    /// Returns the layout of the last step's outputs.
    #[must_use]
    pub fn outputs_layout(&self) -> Layout {
        self.last.layout(&self.workspace)
    }
}
