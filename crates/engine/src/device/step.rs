//! A step on a device: what its rows go by, the launches, and what they came to.
//!
//! What the rows go by is copied up only when it changes. So a step of the same slots is launches and nothing else, and
//! a captured one is a single call.

use gumball_cuda::{Assignment, Graph, Rows};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, NONE, Result};

use super::input::{DeviceInput, DeviceOptions, copy_up};
use super::pool::DevicePool;
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Slot, check_slots, check_vocab};

/// What the rows go by, as it lies on the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Assigned {
    /// Whether the lists are those of the device; after a failure nobody knows.
    known: bool,
    pub slots: Vec<Slot>,
    forced: Vec<i32>,
    lines: Vec<u32>,
    masks: bool,
}

impl Assigned {
    /// Returns whether these lists lie there already. Masks are not compared, but copied up each time.
    fn is(&self, slots: &[Slot], options: &DeviceOptions<'_>) -> bool {
        let forced = |(known, given): (&i32, &Option<u32>)| *known == code(*given);
        self.known
            && self.slots == slots
            && self.lines == options.row_indices
            && !self.masks
            && options.masks.is_none()
            && self.forced.len() == options.forced.len()
            && self.forced.iter().zip(options.forced).all(forced)
    }
}

/// Returns a forced token as the device has it.
fn code(forced: Option<u32>) -> i32 {
    forced.map_or(NONE, |id| id as i32)
}

/// The step that was enqueued last.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    /// The slot of each row; padding where the sequence is gone.
    slots: Vec<Slot>,
    /// Whether the host has seen what it came to.
    observed: bool,
}

impl Last {
    /// Strikes out a slot whose sequence goes.
    pub fn forget(&mut self, slot: Slot) {
        self.slots.iter_mut().filter(|known| **known == slot).for_each(|known| *known = PADDING);
    }
}

impl DevicePool {
    /// Chooses the next token of each row of the host's logits, and appends it to the sequence in the row's slot.
    ///
    /// The call of [`Pool::step`](crate::Pool::step), with the same outcome: the logits are copied up, the outputs down.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue`] and [`DevicePool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which runs on the host alone.
    pub fn step(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        check_vocab(self.config.vocab, logits.vocab())?;
        if slots.len() != logits.rows() {
            return Err(Error::length("slots", slots.len(), format!("one per row, {}", logits.rows())));
        }
        options.check(logits.rows(), self.config.vocab)?;
        self.refuse_hooks(options, slots.len())?;
        // Nothing may be missing to tell what the step came to, once the sequences moved on.
        self.check_kept(out)?;
        out.reserve(Layout { rows: slots.len(), widths: self.config.widths })?;
        let (data, lines, stride, select) = logits.matrix();
        let on_device = DeviceOptions {
            masks: options.masks,
            forced: options.forced,
            row_indices: select.unwrap_or_default(),
        };
        self.assign(slots, &on_device)?;
        if slots.is_empty() {
            self.note(0);
        } else {
            let (buffer, dtype) = copy_up(self.device.machine(), &mut self.upload, data)?;
            let rows = Rows::of(&buffer, dtype, 0, lines, logits.vocab(), stride);
            let enqueued = rows.and_then(|rows| self.enqueue_assigned(rows.with_kind(logits.kind())));
            self.upload = Some(buffer);
            enqueued?;
        }
        self.fetch(out)
    }

    /// Enqueues a step: the next token of each row, appended to the sequence in the row's slot.
    ///
    /// Returns before the device is done. Allocates nothing there; what the rows go by is copied up if it changed. Once in
    /// as many tokens as the pool has room for, it moves histories, and waits.
    ///
    /// # Shapes and units
    /// `input`: rows of the pool's vocabulary in the device's memory, logits unless
    /// [`Rows::with_kind`] says otherwise; from step to step they may change. `slots`: R slots, [`PADDING`] for a row without a
    /// sequence, no other twice. `options`: R of each kind that is given; without `lines` the logits have R rows.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so, or there are more rows than the pool has room for.
    /// - [`Error::OutOfRange`] for a vacant slot, a slot that stands there twice, a forced token outside the
    ///   vocabulary, or a line that is not there.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if the rows hold probabilities.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// No sequence was changed then.
    pub fn enqueue<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign(slots, options)?;
        self.enqueue_assigned(input)
    }

    /// Says what the rows of the next steps go by, those of captured graphs included.
    ///
    /// Waits for nothing, and copies nothing if it is what they go by already. A graph of the host program's own must not
    /// be under capture on the stream, unless nothing changed.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue`] that concern slots and options.
    pub fn assign(&mut self, slots: &[Slot], options: &DeviceOptions<'_>) -> Result<()> {
        if slots.len() > self.config.rows {
            let allowed = format!("at most {}, the pool's rows", self.config.rows);
            return Err(Error::length("slots", slots.len(), allowed));
        }
        options.on_host().check(slots.len(), self.config.vocab)?;
        if !options.row_indices.is_empty() && options.row_indices.len() != slots.len() {
            let allowed = format!("one per row, {}, or 0", slots.len());
            return Err(Error::length("row_indices", options.row_indices.len(), allowed));
        }
        if self.assigned.is(slots, options) {
            return Ok(());
        }
        self.checks += 1;
        let host_sequences = &self.host_sequences;
        let admitted = |slot: Slot| {
            usize::try_from(slot).ok().and_then(|slot| host_sequences.get(slot)).is_some_and(Option::is_some)
        };
        check_slots(slots, admitted, &mut self.seen, self.checks)?;

        let assigned = Assigned {
            known: true,
            slots: slots.to_vec(),
            forced: options.forced.iter().copied().map(code).collect(),
            lines: options.row_indices.to_vec(),
            masks: !options.masks.is_none(),
        };
        let masks: Vec<Option<&[u32]>> = match assigned.masks {
            true => (0..slots.len()).map(|row| options.masks.row(row)).collect(),
            false => Vec::new(),
        };
        let (forced, lines) = (&assigned.forced, &assigned.lines);
        // If the device fails, the rows stay whose they were, and are written anew when they are assigned again.
        self.assigned.known = false;
        self.workspace.assign(&Assignment { slots, forced, row_indices: lines, masks: &masks })?;
        self.assigned = assigned;
        Ok(())
    }

    /// Enqueues a step whose rows go by what was assigned last: launches and nothing else.
    ///
    /// It may lie in a graph that the host program captures on the device's stream. Then it does not run yet, and
    /// [`DevicePool::reserve_replays`] is to be called before replays.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue`] that concern the input.
    pub fn enqueue_assigned<'b>(&mut self, input: impl Into<DeviceInput<'b>>) -> Result<()> {
        let DeviceInput { logits, masks } = input.into();
        self.grow_histories(1)?;
        let step = self.workspace.step_masked(&logits, masks.as_ref())?;
        if self.workspace.enqueue(&step)? {
            self.note(1);
        }
        Ok(())
    }

    /// Says that the host program is about to replay a graph of its own with steps of this pool, so many in all, for what is
    /// assigned now.
    ///
    /// Waits for the device where histories need more room, once in as many tokens as the pool has room for.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn reserve_replays(&mut self, steps: usize) -> Result<()> {
        self.grow_histories(steps)?;
        self.workspace.reserve_replays(steps as u64)?;
        self.note(steps as u64);
        Ok(())
    }

    /// Captures a step for each input, to be replayed in this order. Nothing runs yet.
    ///
    /// Rows go by what is assigned at the time of a replay: requests can be admitted, released and assigned in between, as
    /// long as their number stays, and whether there are lines and masks.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_assigned`].
    pub fn capture<'b>(&self, inputs: &[DeviceInput<'b>]) -> Result<Graph<'b>> {
        let step = |input: &DeviceInput<'b>| self.workspace.step_masked(&input.logits, input.masks.as_ref());
        self.workspace.capture(&inputs.iter().map(step).collect::<Result<Vec<_>>>()?)
    }

    /// Enqueues the steps of a graph: one call, whatever their number.
    ///
    /// # Errors
    /// - [`Error::Length`], [`Error::Conflict`] or [`Error::OutOfRange`] if what is assigned has another shape than when
    ///   it was captured, or names a line that is not there.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If it was captured by another pool.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        self.grow_histories(graph.steps())?;
        self.workspace.replay(graph)?;
        self.note(graph.steps() as u64);
        Ok(())
    }

    /// Sees to it that the histories of the assigned rows have room for so many more tokens. That waits for the device, and
    /// is needed once in as many tokens as the pool has room for.
    fn grow_histories(&mut self, steps: usize) -> Result<()> {
        // What is captured does not run yet, and to wait would end the capture.
        if self.workspace.has_history_left(steps as u64) || self.device.machine().is_capturing()? {
            return Ok(());
        }
        let room = self.config.history_growth.max(steps);
        let mut slots = self.assigned.slots.iter().filter(|slot| **slot != PADDING);
        slots.try_for_each(|slot| self.workspace.extend(*slot, room))
    }

    /// Takes note that the assigned rows take steps.
    fn note(&mut self, steps: u64) {
        self.last.observed = steps == 0;
        self.last.slots.clone_from(&self.assigned.slots);
        for slot in self.assigned.slots.iter().filter(|slot| **slot != PADDING) {
            let steps_unseen = &mut self.steps_unseen[*slot as usize];
            *steps_unseen = steps_unseen.saturating_add(steps);
        }
    }

    /// Waits for the steps enqueued so far and copies what the last one came to into `out`, at once.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if `out` collects kept sets and the pool keeps none.
    /// - [`Error::Unavailable`] if the device fails, or failed in a step, or the system refuses the memory of the outputs.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        let layout = self.outputs_layout();
        self.check_kept(out)?;
        let (words, kept) = out.whole(layout)?;
        self.workspace.read_outputs(words)?;
        if !kept.is_empty() {
            self.workspace.read_kept(kept)?;
        }
        self.apply(layout, words);
        Ok(())
    }

    /// Checks that the pool keeps what outputs collect.
    fn check_kept(&self, out: &Outputs) -> Result<()> {
        if !out.collects_kept() || self.config.kept {
            return Ok(());
        }
        let reason = "the pool was made to keep none; set DevicePoolConfig::kept";
        Err(Error::Conflict { parameter: "Outputs::with_kept", other: "the pool", reason })
    }

    /// Returns where the outputs of the last step lie in the device's memory; the address stays.
    ///
    /// The tokens come first, so a model can read them there without the host.
    #[must_use]
    pub fn outputs_address(&self) -> u64 {
        self.workspace.outputs_address()
    }

    /// Returns how the outputs of the last step lie there.
    #[must_use]
    pub fn outputs_layout(&self) -> Layout {
        Layout { rows: self.last.slots.len(), widths: self.config.widths }
    }

    /// Learns what the last step came to, if the host has not seen it yet.
    pub(super) fn observe_last_step(&mut self) -> Result<()> {
        if !self.last.observed {
            let layout = Layout { rows: self.last.slots.len(), widths: self.config.widths };
            let mut words = vec![0; layout.mirostat_mu().end];
            self.workspace.read_outputs(&mut words)?;
            self.apply(layout, &words);
        }
        Ok(())
    }

    /// Lets the host's sequences follow the last step, once.
    fn apply(&mut self, layout: Layout, words: &[u32]) {
        if std::mem::replace(&mut self.last.observed, true) {
            return;
        }
        for (row, slot) in self.last.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            let (token, mu) = (words[layout.tokens()][row], words[layout.mirostat_mu()][row]);
            // Where more than the last step is missing, its token alone is of no use.
            let steps_unseen = &mut self.steps_unseen[*slot as usize];
            if *steps_unseen == 1 {
                *steps_unseen = 0;
                let host_sequence =
                    self.host_sequences[*slot as usize].as_mut().expect("struck out when it goes");
                host_sequence.apply(token as i32, f32::from_bits(mu));
            }
        }
    }
}
