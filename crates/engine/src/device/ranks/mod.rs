//! A pool on the device of every rank of a group, for logits of which each rank has a part.
//!
//! Devices write into each other's memory: the host takes part when a group is made, and not in its steps. So steps are enqueued,
//! captured and replayed like those of a [`Pool`] on a device.

mod step;
mod verify;
mod watch;

use std::time::Duration;

use gumball_cuda::{MemoryHandle, Windows};
use gumball_dist::{
    Group, LogitsLayout, Needs, Plan, Planner, PlannerConfig, StepDigest, StepKind, StepShape, Transport,
    What,
};
use gumball_spec::error::quoted;
use gumball_spec::{Error, RanksError, Result, SamplingParams};

use super::probabilities::refused;
use crate::config::{Place, PoolConfig};
use crate::pool::Pool;
use crate::ranks::alike::{Requests, digest_of};
use crate::route::Route;
use crate::sequence::Sequence;
use crate::slot::{PADDING, Slot};
use crate::state::State;
use crate::verify_mode::VerifyMode;

/// A pool whose logits are spread over the devices of several ranks: each rank has one, and all make the same calls in the same turn.
///
/// It is a [`DistPool`](crate::DistPool) whose rows, requests and results lie on devices, and draws the same tokens. The devices must
/// reach each other's memory: GPUs of one host with peer access, of one process or of several.
///
/// A rank that is late or gone is an error of the next [`fetch`](DeviceDistPool::fetch) on all others. A device waits for at most `timeout`, but each wait
/// of a turn has a clock of its own: one that is slow may be waited for several times. That a rank is gone is seen by its connection, at once. The group is broken
/// then: of steps that were enqueued behind no results come but padding, and the host's copies of the sequences stay as they were at the last fetch. The states
/// on the devices are not to be used: requests whose rows a rank sampled may have advanced there, and under `Replicated` a new assignment
/// advances them again. To go on, make new pools of a new group, and [resume](DeviceDistPool::resume) from the states of one rank.
#[derive(Debug)]
pub struct DeviceDistPool {
    // Dropped in this order: the windows are the last that peers use.
    pool: Pool,
    planner: Planner,
    group: Group,
    windows: Windows,
    timeout: Duration,
    requests: Requests,
    assigned: Assigned,
    /// That of the last step.
    digest: StepDigest,
    broken: Option<Error>,
    /// Why the waits of the device were ended, if they were.
    gone: Option<Error>,
}

/// The assignment of the next steps, in the order of the batch.
#[derive(Debug, Default)]
struct Assigned {
    slots: Vec<Slot>,
    /// How many drafts each request has, and how they are judged; `None` for a step.
    drafts: Option<(Vec<u32>, VerifyMode)>,
    plan: Option<Plan>,
    /// That of a step without drafts of the host.
    digest: StepDigest,
    /// The first of the assigned rows that each rank owns, and the number of rows.
    first_rows: Vec<usize>,
    /// The first of the assigned requests of each rank, and the number of requests.
    first_requests: Vec<usize>,
    /// The row of the batch that each assigned row is; empty if they have one order.
    batch_rows: Vec<u32>,
}

/// The most bytes of why a device of a rank cannot reach the memory of another.
const MOST_REASON: usize = 400;

impl DeviceDistPool {
    /// Makes an empty pool on each rank of a transport, once all ranks have come. The transport serves to make the group, and to end it.
    ///
    /// A step waits for a rank for `timeout` at most. Ranks whose first steps compile kernels need a while.
    ///
    /// # Errors
    /// - Those of [`Pool::new`], [`Planner::new`] and [`Group::join`]; ranks must agree on the pool's vocabulary, slots, rows and widths.
    /// - [`Error::Length`] if the split is not of the pool's vocabulary, [`Error::OutOfRange`] for more than 8 ranks.
    /// - [`Error::Conflict`] for the route `probabilities`, which is not spread over devices.
    /// - [`RanksError::Unavailable`] on all ranks if a device cannot reach another's memory.
    pub fn new(
        config: PoolConfig,
        planner: PlannerConfig,
        transport: Box<dyn Transport>,
        timeout: Duration,
    ) -> Result<Self> {
        if planner.split.vocab() != config.vocab {
            let allowed = format!("{} ids, the vocabulary of the pool", config.vocab);
            return Err(Error::length("split", planner.split.vocab(), allowed));
        }
        if config.route == Route::Probabilities {
            return Err(refused("ranks"));
        }
        let Place::Device { rows, .. } = config.place else {
            return Err(Error::Unavailable {
                resource: "device",
                reason: "the place is the host".to_owned(),
            });
        };
        let parameters = [
            ("slots", config.slots.to_string()),
            ("rows", rows.to_string()),
            ("widths", format!("{:?}", config.widths)),
            ("timeout", format!("{timeout:?}")),
        ];
        let (rank, world) = (transport.rank(), transport.world());
        let mut pool = Pool::new(config)?;
        let planner = Planner::new(planner)?;
        let surveys = planner.config().layouts.contains(&LogitsLayout::Survey);
        let windows = Windows::new(&pool.gpu_parts().1.workspace, rank, world, surveys)?;
        let group = Group::join(transport, planner.config(), &parameters)?;
        let mut pool = Self {
            pool,
            planner,
            group,
            windows,
            timeout,
            requests: Requests::default(),
            assigned: Assigned::default(),
            digest: StepDigest::default(),
            broken: None,
            gone: None,
        };
        pool.map_windows()?;
        Ok(pool)
    }

    /// Hands out this rank's window and maps those of the others, on all ranks or on none.
    fn map_windows(&mut self) -> Result<()> {
        let own = self.windows.handle();
        let own_bytes = own.as_ref().map_or(&[][..], |handle| bytemuck::bytes_of(handle));
        let messages = self.group.all_gather(What::Windows, own_bytes, |_| size_of::<MemoryHandle>())?;
        let handle = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned::<MemoryHandle>(bytes).ok();
        let handles: Option<Vec<MemoryHandle>> = messages.iter().map(handle).collect();
        let mapped = match (own, handles) {
            (Err(error), _) => Err(error),
            // Another rank has no handle, and says why in the next exchange.
            (_, None) => Ok(()),
            // The ranks agreed on the limits of their workspaces, and `drop` waits for all before it frees a window.
            (_, Some(handles)) => self.windows.map(&handles, self.timeout),
        };
        let said = mapped.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let said = &said.as_bytes()[..said.len().min(MOST_REASON)];
        let reasons = self.group.all_gather(What::Windows, said, |_| MOST_REASON)?;
        match reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            None => Ok(()),
            Some((rank, reason)) => Err(RanksError::Unavailable {
                what: "access between devices".to_owned(),
                reason: format!("rank {rank}: {}", quoted(reason, MOST_REASON)),
            }
            .into()),
        }
    }

    /// Returns this rank's copy of the pool, which all ranks have alike.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns what decides the layouts of steps, and counts them.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Returns the ranks.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Admits a request, as [`Pool::admit`] does. It must have a seed: ranks that each took one would draw different tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no seed.
    /// - Those of [`Pool::admit`].
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        if params.seed.is_none() {
            let allowed = "given, so that all ranks have the same";
            return Err(Error::out_of_range("seed", "absent", allowed));
        }
        let digest = digest_of(&params);
        let slot = self.pool.admit(params, prompt)?;
        self.requests.place(slot, digest, prompt);
        Ok(slot)
    }

    /// Takes up a sequence, as [`Pool::resume`] does.
    ///
    /// # Errors
    /// Those of [`Pool::resume`].
    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        let digest = digest_of(&params);
        let slot = self.pool.resume(params, state)?;
        self.requests.place(slot, digest, self.pool.sequence(slot)?.history().ids());
        Ok(slot)
    }

    /// Copies a sequence, as [`Pool::fork`] does.
    ///
    /// # Errors
    /// Those of [`Pool::fork`] and [`DeviceDistPool::fetch`].
    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        self.observe_last_step()?;
        let fork = self.pool.fork(slot, draw)?;
        self.requests.copy(slot, fork);
        Ok(fork)
    }

    /// Ends a sequence.
    ///
    /// # Errors
    /// Those of [`Pool::release`].
    pub fn release(&mut self, slot: Slot) -> Result<()> {
        let assigned = self.assigned.slots.iter_mut().filter(|assigned| **assigned == slot);
        assigned.for_each(|assigned| *assigned = PADDING);
        self.pool.release(slot)
    }

    /// Appends a token that was chosen elsewhere, as [`Pool::push`] does.
    ///
    /// # Errors
    /// Those of [`Pool::push`] and [`DeviceDistPool::fetch`].
    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.observe_last_step()?;
        self.pool.push(slot, id)?;
        self.requests.note(slot, id.into());
        Ok(())
    }

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, as [`Pool::shorten`] does. All
    /// ranks make the call.
    ///
    /// # Errors
    /// Those of [`Pool::shorten`] and [`DeviceDistPool::fetch`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.check_broken()?;
        self.observe_last_step()?;
        self.pool.shorten(slots, counts)?;
        slots.iter().zip(counts).for_each(|(slot, count)| self.requests.note(*slot, !(*count as u64) >> 1));
        Ok(())
    }

    /// Returns the state of a slot. Waits for the device if the host does not know the last tokens yet.
    ///
    /// # Errors
    /// Those of [`Pool::sequence`] and [`DeviceDistPool::fetch`]. After a failed exchange the state is that of the last fetch.
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.observe_last_step()?;
        self.pool.sequence(slot)
    }

    /// Returns the shape of a step of these slots, for [`DeviceDistPool::plan`]: what their requests need, without a graph. `drafts`: the most
    /// drafts of a request.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vacant slot.
    pub fn shape(&self, slots: &[Slot], drafts: usize, kind: StepKind) -> Result<StepShape> {
        let mut needs = Needs::default();
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            let params = self.pool.slots.sequence(*slot)?.params();
            needs = needs.max(Needs::of(params, self.pool.vocab()));
        }
        let (data_parallel, captured) = (false, None);
        Ok(StepShape { requests: slots.len(), drafts, kind, needs, data_parallel, captured })
    }

    /// Decides the layout of a step, before its logits exist: as [`Planner::plan`] does.
    ///
    /// # Errors
    /// Those of [`Planner::plan`].
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        self.planner.plan(shape)
    }
}

/// Returns whether an error says that a rank has ended.
fn is_lost(error: &Error) -> bool {
    matches!(error.of_ranks(), Some(RanksError::Lost { .. }))
}

impl Drop for DeviceDistPool {
    fn drop(&mut self) {
        // Waits for the last step; its results are not needed any more.
        let _ = self.read_results(&mut []);
        self.windows.unmap();
        // A window may be freed once no rank writes it any more: all have come here, or have ended. An exchange ends at the first rank
        // that is lost, and says nothing of those behind it.
        self.group.begin(StepDigest::default());
        match self.group.all_gather(What::Windows, &[], |_| 0) {
            Ok(_) => {}
            Err(error) if is_lost(&error) && self.group.world() == 2 => {}
            Err(_) => self.windows.abandon(),
        }
    }
}
