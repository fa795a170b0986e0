//! The pool on a device: which requests are in flight, and what the host knows of them.
//!
//! Parameters and states lie on the device and advance there. The host keeps a copy of each sequence and
//! updates it from the outputs that it fetches. If the copy is behind when the caller reads the sequence, the
//! pool reads the state back.

use gumball_cuda::{Buffer, InitialState, Prepared, Workspace, WorkspaceLimits};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, Result, SamplingParams};

use super::Device;
use super::assigned::Assigned;
use super::catch_up::Last;
use super::draft_batch::DraftBatch;
use super::pool_route::{PoolRoute, drawing_params};
use super::uploads::Uploads;
use crate::pool::check_widths;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::state::State;

/// The capacities of a pool on a device. The pool allocates all its memory at once, except the lists and
/// histories of requests.
///
/// ```no_run
/// use gumball_engine::{Device, DevicePool, DevicePoolConfig};
/// let config = DevicePoolConfig { slots: 64, rows: 64, ..DevicePoolConfig::new(151_936) };
/// let pool = DevicePool::new(Device::cuda(0)?, config)?;
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DevicePoolConfig {
    /// The number of ids in the vocabulary of all requests; in 1..=2^20.
    pub vocab: usize,
    /// The number of sequences that can be in flight; in 1..2^31.
    pub slots: usize,
    /// The number of rows that a step can have; in 1..2^31.
    pub rows: usize,
    /// The number of top tokens and of ids whose logprobs a row can report, each in 0..=2^20. A request may
    /// use no more.
    pub widths: Widths,
    /// Whether steps report the kept sets.
    pub kept: bool,
    /// The number of tokens by which a history on the device can grow before the pool moves it, which waits
    /// for the device; in 1..2^31.
    pub history_growth: usize,
    /// Whether the device keeps the histories of all requests, or only those that edits read. Set this to
    /// replay steps without fetching each one's outputs and still read the sequences back.
    pub keep_histories: bool,
    /// The way from logits to tokens.
    pub route: PoolRoute,
}

impl DevicePoolConfig {
    /// Returns the default configuration for a vocabulary: 256 slots, 256 rows, logprobs of the drawn token
    /// only, no kept sets. Histories grow by 4096 tokens, and the device keeps those that edits read.
    #[must_use]
    pub fn new(vocab: usize) -> Self {
        let widths = Widths::default();
        Self {
            vocab,
            slots: 256,
            rows: 256,
            widths,
            kept: false,
            history_growth: 4096,
            keep_histories: false,
            route: PoolRoute::Race,
        }
    }
}

/// The requests in flight on a device.
///
/// It has the methods of a [`Pool`](crate::Pool) and draws the same tokens. `enqueue` and `replay` return
/// before the device has finished. `fetch`, and every method that returns a state, wait for it.
#[derive(Debug)]
pub struct DevicePool {
    pub(super) device: Device,
    pub(super) config: DevicePoolConfig,
    pub(super) workspace: Workspace,
    pub(super) slots: Slots,
    /// Whether a graph of the host program takes tokens away.
    pub(super) captured_shorten: bool,
    /// Whether the host program has captured a step of a clustered head.
    pub(super) captured_approximate: bool,
    pub(super) assigned: Assigned,
    pub(super) last: Last,
    pub(super) uploads: Uploads,
    /// The buffer into which paths of drafts are copied, and the batch of the drafts that the host last waited for.
    pub(super) path_upload: Option<Buffer>,
    pub(super) host_drafts: Option<DraftBatch>,
    /// The workspace of the last scores, kept for the next ones.
    pub(super) scorer: Option<Workspace>,
}

impl DevicePool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary, number of slots or rows, width, or history growth outside
    ///   its range.
    /// - [`Error::Unavailable`] if the device or the host has not enough memory.
    pub fn new(device: Device, config: DevicePoolConfig) -> Result<Self> {
        let DevicePoolConfig { vocab, slots: capacity, rows, widths, kept, .. } = config;
        let slots = Slots::new(capacity)?;
        for (parameter, value) in [("rows", rows), ("history_growth", config.history_growth)] {
            if !(1..=i32::MAX as usize).contains(&value) {
                return Err(Error::out_of_range(parameter, value, "in 1..2^31"));
            }
        }
        let limits = WorkspaceLimits { vocab, slots: capacity, rows, widths, kept };
        let workspace = Workspace::new(device.runtime().clone(), limits)?;
        let workspace = match config.route {
            PoolRoute::Race => workspace,
            PoolRoute::Probabilities => workspace.with_softmax()?,
        };
        Ok(Self {
            workspace,
            device,
            config,
            slots,
            captured_shorten: false,
            captured_approximate: false,
            assigned: Assigned::default(),
            last: Last::default(),
            uploads: Uploads::default(),
            path_upload: None,
            host_drafts: None,
            scorer: None,
        })
    }

    /// Admits a request and returns its slot. The call does not wait for the device; captured graphs stay
    /// valid.
    ///
    /// # Errors
    /// - Those of [`Pool::admit`](crate::Pool::admit).
    /// - [`Error::Unavailable`] for an option that no kernel implements, or if the device has not enough
    ///   memory.
    /// - [`Error::Conflict`] for a parameter that the pool's route does not take.
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        self.place(Sequence::new(params, self.config.vocab, prompt)?)
    }

    /// Continues a sequence from a state of this or any other pool, and returns its slot.
    ///
    /// The seed is the state's. With mirostat, the sequence cannot be shortened to before this state.
    ///
    /// # Errors
    /// - Those of [`DevicePool::admit`].
    /// - [`Error::OutOfRange`] if the state's `mu` is NaN or +inf.
    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.place(Sequence::resume(params, self.config.vocab, state)?)
    }

    /// Copies a sequence to another slot, with another draw index, and returns that slot.
    ///
    /// See [`Pool::fork`](crate::Pool::fork). The copy goes through the host, which may have to wait for the
    /// device.
    ///
    /// # Errors
    /// - Those of [`DevicePool::sequence`].
    /// - [`Error::OutOfRange`] if all slots are taken.
    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        let fork = self.sequence(slot)?.fork(draw);
        self.place(fork)
    }

    /// Ends a sequence. Its slot becomes vacant, and a row that is assigned to it becomes padding.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant already.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        let Self { slots, workspace, assigned, last, .. } = self;
        slots.release(slot, || {
            if let Some(row) = assigned.slots.iter().position(|assigned| *assigned == slot) {
                assigned.retire(row);
            }
            workspace.release(slot)?;
            last.forget(slot);
            Ok(())
        })
    }

    /// Appends a token that the caller chose; mirostat's limit stays.
    ///
    /// The state goes through the host, which may have to wait for the device.
    ///
    /// # Errors
    /// Those of [`DevicePool::sequence`].
    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.sequence(slot)?;
        let Self { slots, workspace, config, .. } = self;
        slots.push(slot, id, Some(&mut |slot, sequence| write(workspace, config, slot, sequence)))
    }

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`. See
    /// [`Pool::shorten`](crate::Pool::shorten).
    ///
    /// The states go through the host, which may have to wait for the device; [`Work::Shorten`](crate::Work::Shorten) waits for nothing. With
    /// mirostat, steps whose outputs were not fetched one by one cannot be undone, because the host does not know their limits.
    ///
    /// # Errors
    /// - Those of [`Pool::shorten`](crate::Pool::shorten) and [`DevicePool::sequence`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.slots.check_counts(slots, counts)?;
        slots.iter().try_for_each(|slot| self.sequence(*slot).map(drop))?;
        let Self { slots: table, workspace, config, .. } = self;
        table.shorten(slots, counts, Some(&mut |slot, sequence| write(workspace, config, slot, sequence)))
    }

    /// Returns the state of a slot: seed, position, history, mirostat's limit.
    ///
    /// Waits for the device if the host does not know the last tokens yet.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    /// - [`Error::Unavailable`] if the device fails, or if tokens are lost. They are lost when several steps
    ///   ran without a fetch of their outputs and the device keeps no history of the request.
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.slots.sequence(slot)?;
        self.last.sync(&mut self.slots, &mut self.workspace, slot)?;
        Ok(self.slots.admitted_mut(slot))
    }

    /// Returns how many sequences are in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether no sequence is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many sequences can be in flight.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of ids in the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.config.vocab
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn place(&mut self, sequence: Sequence) -> Result<Slot> {
        check_widths(self.config.widths, sequence.params())?;
        let Self { slots, workspace, config, .. } = self;
        slots.place(sequence, Some(&mut |slot, sequence| write(workspace, config, slot, sequence)))
    }
}

/// Writes a sequence to its slot on the device.
fn write(
    workspace: &mut Workspace,
    config: &DevicePoolConfig,
    slot: Slot,
    sequence: &Sequence,
) -> Result<()> {
    let prepared = match config.route {
        PoolRoute::Race => Prepared::new(sequence.params(), config.vocab)?,
        PoolRoute::Probabilities => Prepared::new(&drawing_params(sequence.params())?, config.vocab)?,
    };
    let state = sequence.state();
    let start = InitialState {
        seed: state.seed,
        draw: state.draw,
        position: state.position,
        mu: state.mu,
        prompt: state.prompt,
        output: state.output,
        history_growth: config.history_growth,
        keep_history: config.keep_histories,
    };
    workspace.admit(slot, &prepared, &start)
}
