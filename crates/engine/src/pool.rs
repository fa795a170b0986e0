//! The pool: the requests in flight, each in a slot that keeps its history and position.
//!
//! What does not depend on where rows are computed is here, in `calls.rs` and in `enqueue.rs`. A [`Backend`]
//! does the rest.

use gumball_cpu::Level;
use gumball_dist::{Plan, StepKind, StepShape};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, Result, SamplingParams};

use crate::backend::{Backend, RanksInfo};
use crate::batch::Batch;
use crate::config::{DefaultMark, Place, PoolConfig, Ranks};
use crate::host::Host;
use crate::ranks::HostRanks;
use crate::route::Route;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::Slots;
use crate::state::State;

/// The requests in flight.
///
/// A sequence is admitted to a slot, stepped with others in any grouping, and released. Which slot it has,
/// what stands beside it in a batch, and where rows are computed, changes none of its tokens.
///
/// On a device [`enqueue`](Pool::enqueue) and [`replay`](Pool::replay) return before it has finished;
/// [`fetch`](Pool::fetch), the direct calls, and all that returns or changes a state, wait for it.
#[derive(Debug)]
pub struct Pool {
    pub(crate) vocab: usize,
    pub(crate) widths: Widths,
    pub(crate) route: Route,
    pub(crate) kept: bool,
    mark: DefaultMark,
    pub(crate) slots: Slots,
    pub(crate) backend: Box<dyn Backend>,
    /// Whether a batch is assigned to the rows of work: a direct call ends that.
    pub(crate) is_assigned: bool,
    /// Whether what came out last came out of a direct call.
    pub(crate) was_direct: bool,
}

impl Pool {
    /// Makes an empty pool.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary, number of slots, threads or rows, width or history growth
    ///   outside its range, a level that this machine lacks, or a watermark without a key.
    /// - [`Error::Unavailable`] if the threads cannot be started, the system or the device refuses the
    ///   memory, or the device does not take the route.
    pub fn new(config: PoolConfig) -> Result<Self> {
        Self::made(config, None)
    }

    /// Makes an empty pool on each rank of a transport, once all ranks have come.
    ///
    /// All ranks hold all sequences and make the same calls in the same turn, and each has a part of the
    /// logits. The outputs are the same everywhere, and equal the outputs that one process with the whole
    /// logits would have got. Devices must reach each other's memory: GPUs of one host with peer access, of
    /// one process or of several. There the host takes part when a group is made, and not in its steps.
    ///
    /// A caller's mistake is found before anything is sent; as all ranks make the same calls, all find it.
    /// After any other error of a step the group is broken: no sequence was changed on this rank by that step
    /// on the host, but other ranks may have completed it. A device says so in the next [`Pool::fetch`]: the
    /// host's copies stay as they were at the last one then, and the states on the devices are not to be
    /// used. A device waits for at most `timeout`, but each wait of a turn has a clock of its own; that a
    /// rank is gone is seen by its connection, at once. To go on, make new pools of a new group, and
    /// [resume](Pool::resume) from the states of one rank.
    ///
    /// # Shapes and units
    /// A batch is the whole one, the same on all ranks, and so are drafts and counts;
    /// [`Batch::plan`](crate::Batch::plan) is the plan of [`Pool::plan`] for its slots, which is called if
    /// there is none. Rows are this rank's part: one for each slot, or for each request and draft, of the ids
    /// that the split gives it, which may be followed by padding up to
    /// [`VocabSplit::width`](gumball_dist::VocabSplit::width); under `Replicated` whole rows, the rows of
    /// this rank's share of the requests, in turn. Outputs are of the whole batch, on every rank; their
    /// content after an error of the group is unspecified.
    ///
    /// Rows to be drafted from or scored are this rank's part of all rows, as under `Gather`: each rank draws
    /// all drafts, and scores a share of the known tokens, on devices all of them.
    ///
    /// Hidden states come with a head of this rank's ids, which may be followed by padding, too; under
    /// `Replicated` with one of the vocabulary.
    ///
    /// Calls refuse a layout that was not configured, row indices, and clustered heads but on devices under
    /// `Replicated`; `Survey` for drafts that are judged by probabilities, and on the host for hooks and
    /// probabilities; on devices hooks, `Survey` in a pool that tells kept sets, and, if the requests of
    /// ranks are no neighbours in the batch, [`Work::Shorten`](crate::Work::Shorten), masks in the device's
    /// memory and heads of a part. In a pool on devices that tells kept sets each [`Pool::fetch`] waits for
    /// all ranks. A graph takes the layout, the mode and the numbers of requests and of rows of each rank of
    /// its capture.
    ///
    /// # Errors
    /// - The errors of [`Pool::new`], [`Planner::new`](gumball_dist::Planner::new) and
    ///   [`Group::join`](gumball_dist::Group::join): ranks must agree on the pool's vocabulary, slots, rows,
    ///   widths, watermark, route and timeout, and on all of `planner`.
    /// - [`Error::Length`] if the split is not of the pool's vocabulary.
    /// - On devices [`Error::OutOfRange`] for more than 16 ranks, [`Error::Conflict`] for the route
    ///   `probabilities`, and if `Survey` is forced in a pool that tells kept sets, and
    ///   [`RanksError::Unavailable`](crate::RanksError::Unavailable) on all ranks if a device cannot reach
    ///   another's memory.
    pub fn over(config: PoolConfig, ranks: Ranks) -> Result<Self> {
        Self::made(config, Some(ranks))
    }

    fn made(config: PoolConfig, ranks: Option<Ranks>) -> Result<Self> {
        let PoolConfig { vocab, widths, kept, ref route, .. } = config;
        if let Some(ranks) = &ranks {
            ranks.check(!matches!(config.place, Place::Host { .. }))?;
        }
        if let Some(Ranks { planner, .. }) = &ranks
            && planner.split.vocab() != vocab
        {
            let allowed = format!("{vocab} ids, the vocabulary of the pool");
            return Err(Error::length("split", planner.split.vocab(), allowed));
        }
        SamplingParams::default().validate(vocab)?;
        let mark = DefaultMark::new(&config)?;
        let slots = Slots::new(config.slots)?;
        let backend: Box<dyn Backend> = match &config.place {
            Place::Host { threads, level } => {
                let host = Host::new(&config, *threads, *level)?;
                match ranks {
                    None => Box::new(host),
                    Some(ranks) => Box::new(HostRanks::new(host, &config, ranks)?),
                }
            }
            Place::Device { device, .. } => device.backend(&config, ranks)?,
        };
        let (is_assigned, was_direct, route) = (false, false, route.clone());
        Ok(Self { vocab, widths, route, kept, mark, slots, backend, is_assigned, was_direct })
    }

    /// Admits a request and returns its slot. A device is waited for only if the lists and the history that
    /// the request's edits read are longer than the lists of all earlier requests of the slot. Captured
    /// graphs stay valid.
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate`].
    /// - [`Error::OutOfRange`] if all slots are taken, or more logprobs are asked for than the pool has
    ///   places for, and for [`Mark::Off`](crate::Mark::Off) in a pool that enforces its mark.
    /// - [`Error::Unavailable`] if no seed is given and the system has no entropy; on a device for an option
    ///   that no kernel implements, or if it has not enough memory.
    /// - [`Error::Conflict`] for a parameter that the route `probabilities` does not know, or does not take
    ///   on a device.
    /// - Over ranks [`Error::OutOfRange`] if there is no seed: ranks that each took one would draw different
    ///   tokens.
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        if self.ranks().is_some() && params.seed.is_none() {
            return Err(Error::out_of_range("seed", "absent", "given, so that all ranks have the same"));
        }
        self.place(Sequence::new(self.mark.marked(params)?, self.vocab, prompt)?)
    }

    /// Takes up a sequence where it was left, here or in another pool, and returns its slot.
    ///
    /// The seed is the state's. With mirostat or adaptive-p, the sequence cannot be shortened to before the
    /// state.
    ///
    /// # Errors
    /// - The errors of [`Pool::admit`].
    /// - [`Error::OutOfRange`] if the state's `mu` is NaN or +inf.
    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.place(Sequence::resume(self.mark.marked(params)?, self.vocab, state)?)
    }

    /// Copies a sequence to a slot of its own, under another draw index, and returns that slot.
    ///
    /// Seed, history and position are the same; the draw index makes the draws independent. For n sequences
    /// of one request: admit it, fork it under 1, 2, .. n - 1, and let all of them read the same row in the
    /// first step.
    ///
    /// # Errors
    /// - The errors of [`Pool::sequence`].
    /// - [`Error::OutOfRange`] if all slots are taken.
    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        let fork = self.sequence(slot)?.fork(draw);
        self.place(fork)
    }

    /// Ends a sequence; its slot is vacant then, and a row that is assigned to it becomes padding.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant already.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        self.slots.release(slot, &mut *self.backend)
    }

    /// Appends a token that was chosen elsewhere; `mu` stays.
    ///
    /// # Errors
    /// The errors of [`Pool::sequence`].
    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.sequence(slot)?;
        self.slots.push(slot, id, &mut *self.backend)
    }

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, for a caller who stops
    /// after a token that more were emitted after. The sequence is then as it was when the remaining tokens
    /// had been emitted, `mu` included.
    ///
    /// States of a device go through the host; [`Work::Shorten`](crate::Work::Shorten) waits for nothing.
    /// With mirostat or adaptive-p, steps whose outputs were not fetched one by one cannot be undone, because
    /// the host does not know their `mu`.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each slot.
    /// - [`Error::OutOfRange`] for a vacant slot, one that stands there twice, or more tokens than its output
    ///   has; with mirostat or adaptive-p, than its output has since `mu` is known. No sequence was changed
    ///   then.
    /// - The errors of [`Pool::sequence`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.slots.check_counts(slots, counts)?;
        slots.iter().try_for_each(|slot| self.sequence(*slot).map(drop))?;
        self.slots.shorten(slots, counts, &mut *self.backend)
    }

    /// Calls the backend. The error of a lost device tells what the sequences had asked for, too.
    pub(crate) fn at_backend<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Backend, &mut Slots) -> Result<T>,
    ) -> Result<T> {
        call(&mut *self.backend, &mut self.slots).map_err(|error| self.slots.told(error))
    }

    /// Returns the state of a slot: seed, position, history, `mu`. Waits for a device if the host
    /// does not know the last tokens yet.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    /// - [`Error::Unavailable`] if the device fails, or if tokens are lost: when several steps ran without a
    ///   fetch of their outputs and the device keeps no history of the request.
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.slots.sequence(slot)?;
        self.at_backend(|backend, slots| backend.sync(slots, slot))?;
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

    /// Returns how many sequences can be in flight at once.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Returns the number of ids in the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the SIMD level in use; `None` on a device.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        self.backend.host().map(|host| host.workers.level())
    }

    /// Returns the ranks that the pool is spread over; `None` in one process.
    #[must_use]
    pub fn ranks(&self) -> Option<RanksInfo<'_>> {
        self.backend.ranks()
    }

    /// Returns the shape of a step of these slots, for [`Pool::plan`]: what their requests need, without a
    /// graph. `drafts`: the most drafts of a request; [`VerifyMode::step_kind`](crate::VerifyMode::step_kind)
    /// is the kind of their verification.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vacant slot.
    pub fn shape(&self, slots: &[Slot], drafts: usize, kind: StepKind) -> Result<StepShape> {
        self.slots.shape(&Batch::of(slots), drafts, kind, self.backend.host().is_none())
    }

    /// Decides the layout of a step over ranks, before its logits exist: as
    /// [`Planner::plan`](gumball_dist::Planner::plan) does.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] in one process.
    /// - The errors of [`Planner::plan`](gumball_dist::Planner::plan).
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        let Some(ranks) = self.ranks() else {
            let reason = "one process has all rows; make the pool over ranks".to_owned();
            return Err(Error::Unavailable { resource: "layouts of rows over ranks", reason });
        };
        ranks.planner.plan(shape)
    }

    fn place(&mut self, sequence: Sequence) -> Result<Slot> {
        check_widths(self.widths, sequence.params())?;
        self.slots.place(sequence, &mut *self.backend)
    }
}

/// Checks that a pool's outputs are wide enough for a request's logprobs.
fn check_widths(widths: Widths, params: &SamplingParams) -> Result<()> {
    if let Some(logprobs) = &params.logprobs {
        let Widths { top_n, ids } = widths;
        if logprobs.top_n as usize > top_n {
            let allowed = format!("in 0..={top_n}, the pool's top_n");
            return Err(Error::out_of_range("logprobs.top_n", logprobs.top_n, allowed));
        }
        if logprobs.ids.len() > ids {
            let allowed = format!("at most {ids} ids, the pool's ids");
            return Err(Error::length("logprobs.ids", logprobs.ids.len(), allowed));
        }
    }
    Ok(())
}
