//! A step: rows of logits in, tokens out, by kernels alone.
//!
//! A [`Workspace`] holds what requests ask for and where they stand, by slot, and what a step needs besides; its
//! size is settled once. [`Workspace::step`] fixes the kernels of a shape; [`Step::enqueue`] launches them and
//! neither allocates nor waits, so it can be captured in a graph and replayed: positions advance on the device.

use std::marker::PhantomData;
use std::sync::Arc;

use gumball_spec::{Error, MAX_VOCAB, Result, Status, TILE};

use crate::abi::{self, Params, Record, Slot, State};
use crate::machine::{Buffer, Kernel, Machine};
use crate::prepared::Prepared;
use crate::{draw, survey};

/// The type of a row's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// Truncated single precision.
    Bf16,
    /// Half precision.
    F16,
}

impl Dtype {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        }
    }

    /// Returns the size of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }
}

/// Rows of logits in the machine's memory, which lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'b> {
    memory: PhantomData<&'b Buffer>,
    address: u64,
    dtype: Dtype,
    rows: usize,
    vocab: usize,
    stride: usize,
}

impl<'b> Rows<'b> {
    /// Takes `rows` rows of `vocab` elements, `stride` elements apart, at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, `stride` less than it with several rows, or the
    ///   address no multiple of an element's size.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the machine can read, and nobody writes them while a step on them runs.
    pub unsafe fn new(address: u64, dtype: Dtype, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        if rows > 1 && stride < vocab {
            return Err(Error::out_of_range(
                "stride",
                stride,
                format!("at least the width of a row, {vocab}"),
            ));
        }
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", dtype.bytes());
            return Err(Error::out_of_range("logits", format!("{address:#x}"), allowed));
        }
        Ok(Self { memory: PhantomData, address, dtype, rows, vocab, stride })
    }

    /// Takes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - Those of [`Rows::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(
        buffer: &'b Buffer,
        dtype: Dtype,
        start: usize,
        rows: usize,
        vocab: usize,
        stride: usize,
    ) -> Result<Self> {
        let last = rows.saturating_sub(1).checked_mul(stride);
        let end =
            last.and_then(|last| last.checked_add(start)?.checked_add(vocab)?.checked_mul(dtype.bytes()));
        if end.is_none_or(|end| end > buffer.bytes()) {
            let allowed = format!("at least {rows} rows of {vocab} elements, {stride} apart, from {start}");
            return Err(Error::length("logits", buffer.bytes() / dtype.bytes(), allowed));
        }
        let address = buffer.address() + (start * dtype.bytes()) as u64;
        // SAFETY: the rows lie in the buffer, as was just seen, which is borrowed for `'b`: until then nothing
        // enqueues a write, and its end waits for what was enqueued before.
        unsafe { Self::new(address, dtype, rows, vocab, stride) }
    }
}

/// What a step came to, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// The tokens; [`gumball_spec::NONE`] where there is none.
    pub tokens: Vec<i32>,
    /// What each row's data had to say.
    pub statuses: Vec<Status>,
    /// The temperatures in use; 0 if greedy.
    pub temperatures: Vec<f32>,
    /// Mirostat's limits after the rows.
    pub mus: Vec<f32>,
}

/// The words of output a row has.
const OUTPUT_WORDS: usize = 6;

/// Requests by slot, and room for steps.
#[derive(Debug)]
pub struct Workspace {
    machine: Arc<dyn Machine>,
    vocab: usize,
    most_rows: usize,
    slots: usize,
    params: Buffer,
    states: Buffer,
    row_slots: Buffer,
    forced: Buffer,
    records: Buffer,
    odd: Buffer,
    outputs: Buffer,
}

impl Workspace {
    /// Makes room for `slots` requests over a vocabulary, and for steps of at most `most_rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20.
    /// - [`Error::Unavailable`] if the machine has not enough memory.
    pub fn new(machine: Arc<dyn Machine>, vocab: usize, slots: usize, most_rows: usize) -> Result<Self> {
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        let tiles = vocab.div_ceil(TILE);
        let room = |bytes: usize| Buffer::zeroed(&machine, bytes);
        Ok(Self {
            params: room(slots * size_of::<Params>())?,
            states: room(slots * size_of::<State>())?,
            row_slots: room(most_rows * size_of::<Slot>())?,
            forced: room(most_rows * size_of::<i32>())?,
            records: room(most_rows * tiles * size_of::<Record>())?,
            odd: room(most_rows * size_of::<u32>())?,
            outputs: room(most_rows * OUTPUT_WORDS * size_of::<u32>())?,
            machine,
            vocab,
            most_rows,
            slots,
        })
    }

    /// Puts a request into a slot.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot, or the request was prepared for another vocabulary.
    /// - [`Error::Unavailable`] if the machine fails.
    pub fn admit(
        &mut self,
        slot: Slot,
        request: &Prepared,
        seed: u64,
        draw: u32,
        state: State,
    ) -> Result<()> {
        let Some(place) = usize::try_from(slot).ok().filter(|slot| *slot < self.slots) else {
            return Err(Error::out_of_range("slot", slot, format!("in 0..{}", self.slots)));
        };
        if request.vocab() != self.vocab {
            return Err(Error::out_of_range("vocab", request.vocab(), format!("{}, as here", self.vocab)));
        }
        self.params.write(place * size_of::<Params>(), &[request.seeded(seed, draw)])?;
        self.states.write(place * size_of::<State>(), &[state])?;
        Ok(())
    }

    /// Names the slot of each row, -1 for padding, and for each row the token to emit whatever is drawn, -1 for
    /// none.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are more rows than there is room for, or the lists differ in length.
    /// - [`Error::OutOfRange`] for a slot or a token that does not exist.
    /// - [`Error::Unavailable`] if the machine fails.
    pub fn assign(&mut self, slots: &[Slot], forced: &[i32]) -> Result<()> {
        if slots.len() > self.most_rows {
            return Err(Error::length("slots", slots.len(), format!("at most {} rows", self.most_rows)));
        }
        if forced.len() != slots.len() {
            return Err(Error::length("forced", forced.len(), format!("one per row, {}", slots.len())));
        }
        let within =
            |value: i32, end: usize| value == -1 || usize::try_from(value).is_ok_and(|value| value < end);
        if let Some(slot) = slots.iter().find(|slot| !within(**slot, self.slots)) {
            return Err(Error::out_of_range("slots", slot, format!("in -1..{}", self.slots)));
        }
        if let Some(token) = forced.iter().find(|token| !within(**token, self.vocab)) {
            return Err(Error::out_of_range("forced", token, format!("an id in 0..{}", self.vocab)));
        }
        self.row_slots.write(0, slots)?;
        self.forced.write(0, forced)?;
        Ok(())
    }

    /// Fixes the kernels of a step over some rows, the first that were assigned.
    ///
    /// # Errors
    /// - [`Error::Length`] if the rows are not of the vocabulary, or more than there is room for.
    pub fn step<'w>(&'w self, rows: &Rows<'w>) -> Result<Step<'w>> {
        if rows.vocab != self.vocab {
            let allowed = format!("{} elements in a row, the vocabulary", self.vocab);
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        if rows.rows > self.most_rows {
            return Err(Error::length("logits", rows.rows, format!("at most {} rows", self.most_rows)));
        }
        let tuning = survey::tuning(self.machine.multiprocessors(), rows.rows, self.vocab);
        let step = abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            rows: rows.rows as u32,
            vocab: self.vocab as u32,
            tiles: self.vocab.div_ceil(TILE) as u32,
            blocks_per_row: tuning.blocks_per_row(self.vocab),
            slots: self.row_slots.address(),
            forced: self.forced.address(),
            params: self.params.address(),
            states: self.states.address(),
            records: self.records.address(),
            odd: self.odd.address(),
            outputs: self.outputs.address(),
        };
        let (survey, draw) = (tuning.kernel(rows.dtype), draw::kernel(rows.dtype));
        Ok(Step { workspace: self, survey, draw: Some(draw), step })
    }

    /// Waits for the steps enqueued so far and returns what the last one, of `rows` rows, came to.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails, or failed in a step.
    ///
    /// # Panics
    /// If there is no room for so many rows.
    pub fn outputs(&self, rows: usize) -> Result<Outputs> {
        let mut words = vec![0u32; rows * OUTPUT_WORDS];
        self.outputs.read(0, &mut words)?;
        let section = |index: usize| words[index * rows..(index + 1) * rows].iter().copied();
        Ok(Outputs {
            tokens: section(0).map(|word| word as i32).collect(),
            statuses: section(1).map(Status).collect(),
            temperatures: section(4).map(f32::from_bits).collect(),
            mus: section(5).map(f32::from_bits).collect(),
        })
    }

    /// Waits for the steps enqueued so far and returns where the request in a slot stands.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails, or failed in a step.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn state(&self, slot: Slot) -> Result<State> {
        let mut state = [State::default()];
        self.states.read(usize::try_from(slot).expect("a slot") * size_of::<State>(), &mut state)?;
        Ok(state[0])
    }
}

/// A step ready to be enqueued.
#[derive(Debug)]
pub struct Step<'w> {
    workspace: &'w Workspace,
    survey: Kernel,
    draw: Option<Kernel>,
    step: abi::Step,
}

impl Step<'_> {
    /// Returns the survey of the step alone, which yields no tokens: for measurements.
    #[must_use]
    pub fn survey_only(self) -> Self {
        Self { draw: None, ..self }
    }

    /// Enqueues the step on the machine's stream. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails.
    pub fn enqueue(&self) -> Result<()> {
        Ok(self.enqueue_kernels()?)
    }

    pub(crate) fn enqueue_kernels(&self) -> crate::Result<()> {
        if self.step.rows == 0 {
            return Ok(());
        }
        let machine = &*self.workspace.machine;
        // SAFETY: the buffers are the workspace's, which outlives this value, sized for the shape that `step`
        // checked; slots were checked where they were assigned; for the logits whoever made `Rows` vouches.
        unsafe { survey::enqueue(machine, self.survey, &self.step) }?;
        let Some(draw) = self.draw else { return Ok(()) };
        // SAFETY: the same, and the survey was enqueued before.
        unsafe { draw::enqueue(machine, draw, &self.step) }
    }
}
