//! A step on a device: assignment of its rows, launches, and outputs.
//!
//! The host copies an assignment up only when it changes. A step with unchanged slots and options therefore
//! only launches kernels, and replaying a captured step takes one call.

use std::ops::Range;

use gumball_cuda::{Assignment, DraftCounts, DraftRule, Rows, Step, StepInput, StepVariant};
use gumball_spec::layout::Layout;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::{Error, Kind, NONE, Result};

use super::head::DeviceHead;
use super::input::{DeviceInput, DeviceOptions, copy_up};
use super::pool::DevicePool;
use super::pool_route::{PoolRoute, refused};
use super::sequences::Shortened;
use crate::batch::Batch;
use crate::drafts::starts;
use crate::matrix::Matrix;
use crate::outputs::Outputs;
use crate::slot::{PADDING, Slot, check_slots};

/// The assignment that lies on the device: slots, forced tokens and row indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Assigned {
    /// Whether the device's lists equal these. False after a failed copy, which leaves the device's lists
    /// unknown.
    known: bool,
    /// The slot of each row, or of each request if there are drafts.
    pub slots: Vec<Slot>,
    /// The drafts of the requests; `None` for a step.
    drafts: Option<AssignedDrafts>,
    forced: Vec<i32>,
    lines: Vec<u32>,
    masks: bool,
    /// In a pool of the route `probabilities` the temperature of the softmax of each slot's rows, `None` for padding.
    temperatures: Vec<Option<f32>>,
}

/// How many drafts each request has, the rule that accepts them, and the order in which they are handed over.
#[derive(Clone, Debug)]
struct AssignedDrafts {
    counts: Vec<u32>,
    rule: DraftRule,
    batch_requests: Vec<u32>,
}

impl AssignedDrafts {
    fn of(drafts: DraftCounts<'_>) -> Self {
        let DraftCounts { counts, rule, batch_requests } = drafts;
        Self { counts: counts.to_vec(), rule, batch_requests: batch_requests.to_vec() }
    }

    fn counts(&self) -> DraftCounts<'_> {
        DraftCounts { counts: &self.counts, rule: self.rule, batch_requests: &self.batch_requests }
    }
}

impl Assigned {
    /// Turns the rows of a slot into padding, by the slot's index.
    pub fn retire(&mut self, index: usize) {
        self.slots[index] = PADDING;
        self.temperatures.get_mut(index).into_iter().for_each(|temperature| *temperature = None);
    }

    /// Returns whether the device has these lists already. Masks are not compared: they are copied up each
    /// time.
    fn is(&self, slots: &[Slot], options: &DeviceOptions<'_>, drafts: Option<DraftCounts<'_>>) -> bool {
        let forced = |(known, given): (&i32, &Option<u32>)| *known == code(*given);
        let known = self.drafts.as_ref().map(AssignedDrafts::counts);
        self.known
            && self.slots == slots
            && known == drafts
            && self.lines == options.row_indices
            && !self.masks
            && options.masks.is_none()
            && self.forced.len() == options.forced.len()
            && self.forced.iter().zip(options.forced).all(forced)
    }
}

/// Checks that rows hold logits, for a route that makes probabilities of them.
fn check_logits(kind: Kind) -> Result<()> {
    if kind == Kind::Logits {
        return Ok(());
    }
    let reason = "rows of probabilities need no softmax; step them in a pool of the route race";
    Err(Error::Conflict { parameter: "kind", other: "route", reason })
}

/// Encodes a forced token for the device: its id, or `NONE`.
pub(super) fn code(forced: Option<u32>) -> i32 {
    forced.map_or(NONE, |id| id as i32)
}

/// The step that was enqueued last.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    /// The slot of each row, or of each request if there were drafts; padding if the sequence has ended since.
    pub slots: Vec<Slot>,
    /// How many drafts each request had; `None` for a step.
    pub counts: Option<Vec<u32>>,
    temperatures: Vec<Option<f32>>,
    /// Whether the host has read the step's outputs.
    pub observed: bool,
    /// Whether its rows had the logits of probed sets alone.
    pub is_approximate: bool,
}

impl Last {
    /// Returns the rows of each slot.
    pub fn places(&self) -> impl Iterator<Item = (Slot, Range<usize>)> {
        let mut end = 0;
        self.slots.iter().enumerate().map(move |(index, slot)| {
            let start = end;
            end += self.counts.as_ref().map_or(1, |counts| counts[index] as usize + 1);
            (*slot, start..end)
        })
    }

    fn rows(&self) -> usize {
        self.places().last().map_or(0, |(_, rows)| rows.end)
    }

    /// Adds to the outputs of a draw from probabilities the temperatures and what the softmax found. With drafts `path` has
    /// the row that each place of the outputs comes from.
    fn add_softmax(&self, layout: Layout, statuses: &[u32], path: Option<&[u32]>, words: &mut [u32]) {
        for ((_, places), temperature) in self.places().zip(&self.temperatures) {
            let Some(temperature) = temperature else { continue };
            for place in places {
                let row = path.map_or(place, |path| path[place] as usize);
                let Some(status) = statuses.get(row) else { continue };
                words[layout.statuses()][place] |= status;
                // A greedy row has 0 already.
                let drawn_at = &mut words[layout.temperatures()][place];
                *drawn_at = if *drawn_at == 0 { 0 } else { temperature.to_bits() };
            }
        }
    }

    /// Turns the rows of a slot into padding when its sequence ends.
    pub fn forget(&mut self, slot: Slot) {
        self.slots.iter_mut().filter(|known| **known == slot).for_each(|known| *known = PADDING);
    }
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
        self.check_slots(slots)?;
        for (slot, count) in slots.iter().zip(drafts.map_or(&[][..], |drafts| drafts.counts)) {
            if *slot != PADDING {
                check_drafts(self.host_sequence(*slot)?.sequence.params(), *count as usize)?;
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

    /// Checks slots as [`check_slots`] does.
    pub(super) fn check_slots(&mut self, slots: &[Slot]) -> Result<()> {
        self.checks += 1;
        let host_sequences = &self.host_sequences;
        let admitted = |slot: Slot| {
            usize::try_from(slot).ok().and_then(|slot| host_sequences.get(slot)).is_some_and(Option::is_some)
        };
        check_slots(slots, admitted, &mut self.seen, self.checks)
    }

    /// Returns the temperature of the softmax of each slot's rows, `None` for padding; an empty list if steps make none.
    fn temperatures(&self, slots: &[Slot], greedy: bool) -> Vec<Option<f32>> {
        if self.config.route == PoolRoute::Race {
            return Vec::new();
        }
        let temperature = |slot: &Slot| {
            let admitted = self.host_sequence(*slot).ok();
            admitted.map(|admitted| if greedy { 0.0 } else { admitted.sequence.params().temperature })
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
            let slots = self.assigned.slots.iter().filter(|slot| **slot != PADDING);
            slots.for_each(|slot| self.shortened[*slot as usize] = Shortened::Lost);
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
        for slot in self.assigned.slots.iter().filter(|slot| **slot != PADDING) {
            let steps_unseen = &mut self.steps_unseen[*slot as usize];
            self.shortened[*slot as usize].note_steps(steps, *steps_unseen);
            *steps_unseen = steps_unseen.saturating_add(steps);
        }
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
        self.apply(layout, words)?;
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
        Layout { rows: self.last.rows(), widths: self.config.widths }
    }

    /// Reads the last step's outputs, if the host has not done so yet.
    pub(super) fn observe_last_step(&mut self) -> Result<()> {
        if !self.last.observed {
            let layout = self.outputs_layout();
            let mut words = vec![0; layout.mirostat_mu().end];
            self.workspace.results().read(&mut words)?;
            self.apply(layout, &words)?;
        }
        Ok(())
    }

    /// Updates the host's sequences from the last step's outputs, once per step.
    pub(super) fn apply(&mut self, layout: Layout, words: &[u32]) -> Result<()> {
        if std::mem::replace(&mut self.last.observed, true) {
            return Ok(());
        }
        let mut lengths = Vec::new();
        let places: Vec<(Slot, Range<usize>)> =
            self.last.places().filter(|(slot, _)| *slot != PADDING).collect();
        for (slot, places) in places {
            // If several steps are missing, the tokens of the last one alone cannot complete the sequence.
            if self.steps_unseen[slot as usize] != 1 || self.shortened[slot as usize] == Shortened::Lost {
                continue;
            }
            let tokens = || places.clone().map(|place| words[layout.tokens()][place] as i32);
            self.follow_before_step(slot, tokens().filter(|token| *token != NONE).count())?;
            self.steps_unseen[slot as usize] = 0;
            let host_sequence = self.host_sequences[slot as usize].as_mut().expect("struck out when it goes");
            // Behind the emitted tokens there are none.
            for (token, place) in tokens().zip(places.clone()) {
                host_sequence.apply(token, f32::from_bits(words[layout.mirostat_mu()][place]));
            }
            self.follow_shortened(slot)?;
            lengths.push((slot, self.host_sequence(slot)?.length()));
        }
        if self.last.counts.is_some() {
            self.workspace.note_lengths(lengths);
        }
        Ok(())
    }
}
