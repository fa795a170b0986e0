//! The pool: the requests in flight, each in a slot that keeps its history and position.

use gumball_cpu::Level;
use gumball_spec::{Error, Result, SamplingParams};

use crate::in_order::InOrder;
use crate::lm_head::HeadBuffers;
use crate::route::Route;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::state::State;
use crate::workers::{Threads, Workers};
use gumball_spec::layout::Widths;

/// What a pool is made for.
///
/// ```
/// use gumball_engine::{Pool, PoolConfig};
/// let pool = Pool::new(PoolConfig { slots: 8, threads: Some(2), ..PoolConfig::new(32_000) })?;
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The number of ids in the vocabulary of all requests; in 1..=2^20.
    pub vocab: usize,
    /// How many sequences can be in flight, in 1..2^31. The pool reserves memory for all of them when it is made; the
    /// operating system provides each slot's memory when the slot is first used.
    pub slots: usize,
    /// How many threads take the rows of a step, in 1..=1024: 1 is the caller's, `None` those that all pools and operators share, one
    /// a core, or the caller's where none can be started.
    pub threads: Option<usize>,
    /// The SIMD level; `None`: the machine's best.
    pub level: Option<Level>,
    /// How many logprobs the outputs have places for, both in 0..=2^20; a request may ask for no more.
    pub widths: Widths,
    /// The route.
    pub route: Route,
    /// Whether the kept sets of work that is enqueued are kept for [`Pool::fetch`]. A direct call tells them where its outputs
    /// [collect](crate::Outputs::with_kept) them.
    pub kept: bool,
}

impl PoolConfig {
    /// Returns the default for a vocabulary: 256 slots, the machine's threads and level, the route
    /// [`Route::Race`], a place for the token's logprob and none besides.
    #[must_use]
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            slots: 256,
            threads: None,
            level: None,
            widths: Widths::default(),
            route: Route::Race,
            kept: false,
        }
    }
}

/// The requests in flight.
///
/// A sequence is admitted to a slot, stepped with others in any grouping, and released. Which slot it has,
/// and what stands beside it in a batch, changes none of its tokens.
#[derive(Debug)]
pub struct Pool {
    pub(crate) vocab: usize,
    pub(crate) widths: Widths,
    pub(crate) workers: Workers,
    pub(crate) slots: Slots,
    pub(crate) head: HeadBuffers,
    pub(crate) in_order: InOrder,
}

impl Pool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary, number of slots or threads, or width outside its range, or
    ///   a level that this machine lacks.
    /// - [`Error::Unavailable`] if the threads cannot be started, or the system refuses the memory of the slots.
    pub fn new(config: PoolConfig) -> Result<Self> {
        SamplingParams::default().validate(config.vocab)?;
        let slots = Slots::new(config.slots)?;
        Threads::check(config.threads)?;
        config.widths.check()?;
        let level = config.level.map_or_else(Level::detect, Level::check)?;
        let workers = Workers::new(config.route, level, config.threads)?;
        let in_order = InOrder::new(config.kept, config.widths)?;
        let (vocab, widths, head) = (config.vocab, config.widths, HeadBuffers::default());
        Ok(Self { vocab, widths, workers, slots, head, in_order })
    }

    /// Admits a request and returns its slot.
    ///
    /// # Errors
    /// - Those of [`SamplingParams::validate`].
    /// - [`Error::OutOfRange`] if all slots are taken, or more logprobs are asked for than the pool has
    ///   places for.
    /// - [`Error::Unavailable`] if no seed is given and the system has no entropy.
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        self.place(Sequence::new(params, self.vocab, prompt)?)
    }

    /// Takes up a sequence where it was left, here or in another pool, and returns its slot.
    ///
    /// The seed is that of the state. With mirostat, the sequence cannot be shortened behind the state.
    ///
    /// # Errors
    /// - Those of [`Pool::admit`].
    /// - [`Error::OutOfRange`] if the state's `mu` is NaN or +inf.
    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.place(Sequence::resume(params, self.vocab, state)?)
    }

    /// Copies a sequence to a slot of its own, under another draw index, and returns that slot.
    ///
    /// Seed, history and position are the same; the draw index makes the draws independent. For n sequences
    /// of one request: admit it, fork it under 1, 2, .. n - 1, and let all of them read the same row in the
    /// first step.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant, or all are taken.
    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        let fork = self.sequence(slot)?.fork(draw);
        self.place(fork)
    }

    /// Ends a sequence; its slot is vacant then, and a row that is assigned to it becomes padding.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it is already.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.slots.release(slot, || Ok(()))?;
        self.in_order.assigned.forget(slot);
        Ok(())
    }

    /// Appends a token that was chosen elsewhere; mirostat's limit stays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.slots.push(slot, id, None)
    }

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, for a caller who stops behind a token that
    /// more were emitted after. The sequence is then as it was when the remaining tokens had been emitted, mirostat's limit included.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each slot.
    /// - [`Error::OutOfRange`] for a vacant slot, one that stands there twice, or more tokens than its output has; with mirostat, than
    ///   its output has since the limit is known. No sequence was changed then.
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.slots.check_counts(slots, counts)?;
        self.slots.shorten(slots, counts, None)
    }

    /// Returns the state of a slot: seed, position, history, mirostat's limit.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn sequence(&self, slot: Slot) -> Result<&Sequence> {
        self.slots.sequence(slot)
    }

    /// Returns how many sequences are in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many can be.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of ids in the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.workers.level()
    }

    /// Returns the route in use.
    #[must_use]
    pub fn route(&self) -> &Route {
        self.workers.route()
    }

    fn place(&mut self, sequence: Sequence) -> Result<Slot> {
        check_widths(self.widths, sequence.params())?;
        self.slots.place(sequence, None)
    }
}

/// Checks that a pool's outputs are wide enough for a request's logprobs.
pub(crate) fn check_widths(widths: Widths, params: &SamplingParams) -> Result<()> {
    if let Some(logprobs) = &params.logprobs {
        let Widths { top_n, ids } = widths;
        if logprobs.top_n as usize > top_n {
            let allowed = format!("in 0..={top_n}, the pool's widths.top_n");
            return Err(Error::out_of_range("logprobs.top_n", logprobs.top_n, allowed));
        }
        if logprobs.ids.len() > ids {
            let allowed = format!("at most {ids} ids, the pool's widths.ids");
            return Err(Error::length("logprobs.ids", logprobs.ids.len(), allowed));
        }
    }
    Ok(())
}
