//! Rows that are spread over the devices of the ranks of a group.
//!
//! Devices write into each other's memory, or send each other messages where they do not reach it: the host
//! takes part when a group is made, and not in its steps. So steps are enqueued, captured and replayed like
//! those of one device.

mod at_devices;
mod drafts;
mod kept;
mod scores;
mod step;
mod watch;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gumball_cuda::{
    Dtype, ExchangeLayout, GROUP_ID_BYTES, GroupId, MAX_SURVEYED_RANKS, Meeting, MemoryHandle,
    ProgramCommunicator, Windows,
};
use gumball_dist::{Costs, LogitsLayout, Plan, Planner, StepDigest, TransportKind, What};
use gumball_spec::error::quoted;
use gumball_spec::{Error, Kind, RanksError, Result};

use self::watch::{Watch, device_wait};
use super::draft_batch::DraftBatch;
use super::on_gpu::OnGpu;
use super::probabilities::refused;
use crate::config::{PoolConfig, Ranks};
use crate::ranks::Common;
use crate::route::Route;

/// A device as the place of rows that are spread over the devices of several ranks.
#[derive(Debug)]
pub(crate) struct GpuRanks {
    // Dropped in this order: the windows are the last that peers use.
    watch: Watch,
    gpu: OnGpu,
    common: Common,
    windows: Windows,
    /// How rows travel: `OneSided` or `Nccl`.
    transport: TransportKind,
    /// Why that is not as it would be elsewhere.
    warning: Option<String>,
    timeout: Duration,
    spread: Spread,
    turn: Turn,
    state: State,
}

/// The step that the devices were given last.
#[derive(Debug, Default)]
struct Turn {
    /// What its exchanges compare.
    digest: StepDigest,
    /// The type and the kind of its rows, unless it was a graph's.
    rows: Option<(Dtype, Kind)>,
    /// For each rank the rows of the batch whose kept sets it has; none if each has all, or the pool does not
    /// tell them.
    keepers: Vec<Vec<usize>>,
}

/// How the group is.
#[derive(Debug)]
enum State {
    Whole,
    /// The waits of the device were ended for this reason, which is the error of a step that is not complete.
    Going(Error),
    /// A step failed, and so does each later call.
    Broken(Error),
}

impl State {
    fn check(&self) -> Result<()> {
        match self {
            Self::Broken(error) => Err(RanksError::Broken(Box::new(error.clone())).into()),
            Self::Whole | Self::Going(_) => Ok(()),
        }
    }

    /// Notes why the waits of the device were ended, if they were; the first reason counts.
    fn note(&mut self, gone: Option<Error>) {
        if let (Self::Whole, Some(error)) = (&*self, gone) {
            *self = Self::Going(error);
        }
    }

    /// Takes the reason why the waits of the device were ended.
    fn take_gone(&mut self) -> Option<Error> {
        match std::mem::replace(self, Self::Whole) {
            Self::Going(error) => Some(error),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// How what is assigned is spread over the ranks.
#[derive(Debug, Default)]
struct Spread {
    plan: Option<Plan>,
    /// That of a step without drafts of the host.
    digest: StepDigest,
    /// The first of the assigned rows that each rank owns, and the number of rows.
    first_rows: Vec<usize>,
    /// The first of the assigned requests of each rank, and the number of requests.
    first_requests: Vec<usize>,
    /// The row of the batch that each assigned row is; empty if they have one order.
    batch_rows: Vec<u32>,
    /// Batches of drafts, each with a digest of the assignment of its rows.
    drafted: Vec<(DraftBatch, u64)>,
    /// As many zeros as there are ranks, and one more: the first rows of ranks that own none.
    nobodys: Vec<usize>,
}

/// Why rows are not surveyed over messages.
const UNSURVEYED: &str = "a survey exchanges words inside kernels, which NCCL does not carry";

/// Why rows are not surveyed whose kept sets are told.
const UNKEPT: &str = "a survey leaves no kept sets; take gather or swap";

/// Why rows are not surveyed by many ranks.
const UNMERGED: &str = "a block merges the lists of at most 8 ranks; take gather or swap";

/// The most bytes of why a device of a rank cannot reach the others.
const MOST_REASON: usize = 400;

impl GpuRanks {
    pub fn new(config: &PoolConfig, ranks: Ranks) -> Result<Self> {
        let Ranks { mut planner, transport, devices, communicator, timeout } = ranks;
        let has_costs = planner.costs.is_some();
        planner.costs.get_or_insert(Costs::NVLINK);
        if config.route == Route::Probabilities {
            return Err(refused("ranks"));
        }
        let (rank, world) = (transport.rank(), transport.world());
        let unsurveyed = match (config.kept, world > MAX_SURVEYED_RANKS) {
            (true, _) => Some(("kept", UNKEPT)),
            (false, true) => Some(("ranks", UNMERGED)),
            (false, false) => None,
        };
        if let Some((other, reason)) = unsurveyed.filter(|_| planner.forced == Some(LogitsLayout::Survey)) {
            return Err(Error::Conflict { parameter: "layout", other, reason });
        }
        let gpu = OnGpu::new(config)?;
        let mut terms = config.terms();
        terms.extend([
            ("rows", gpu.rows.to_string()),
            ("timeout", format!("{timeout:?}")),
            ("devices", devices.name().to_owned()),
            ("communicator", if communicator.is_some() { "one of the program" } else { "none" }.to_owned()),
        ]);
        let mut planner = Planner::new(planner)?;
        let unsurveyed = unsurveyed.filter(|_| planner.check(LogitsLayout::Survey).is_ok());
        if unsurveyed.is_some() {
            planner.leave_out(LogitsLayout::Survey);
        }
        let layouts: Vec<ExchangeLayout> = planner.config().layouts.iter().map(exchanged).collect();
        let windows = Windows::new(&gpu.workspace, rank, world, &layouts)?;
        let common = Common::join(planner, transport, &terms)?;
        let mut ranks = Self {
            watch: Watch::none(),
            gpu,
            common,
            windows,
            transport: TransportKind::OneSided,
            warning: unsurveyed.map(|(_, reason)| format!("no step takes the layout survey: {reason}")),
            timeout,
            spread: Spread { nobodys: vec![0; world + 1], ..Spread::default() },
            turn: Turn::default(),
            state: State::Whole,
        };
        ranks.load()?;
        ranks.connect(devices, communicator)?;
        if ranks.transport == TransportKind::Nccl && !has_costs {
            ranks.common.planner.set_costs(Costs::NCCL);
        }
        Ok(ranks)
    }

    /// Loads the kernels of the pool's rows on all ranks, which wait for each other's compilers.
    fn load(&mut self) -> Result<()> {
        let dtypes: &[Dtype] = match self.common.planner.config().logit_bytes {
            4 => &[Dtype::F32],
            _ => &[Dtype::Bf16, Dtype::F16],
        };
        let runtime = Arc::clone(self.gpu.device.runtime());
        let loaded = self.common.group.work_apart(move || runtime.load_for_pools(dtypes))?;
        match self.first_refusal(&loaded.map_err(Into::into))? {
            Some(reason) => Err(Error::Unavailable { resource: "kernels of ranks", reason }),
            None => Ok(()),
        }
    }

    /// Connects the devices of all ranks, on all ranks in the same way: by stores into each other's windows,
    /// or by messages.
    fn connect(&mut self, kind: TransportKind, communicator: Option<ProgramCommunicator>) -> Result<()> {
        let kind = if communicator.is_some() { TransportKind::Nccl } else { kind };
        let unavailable = |reason| {
            let what = match kind {
                TransportKind::Nccl => "transport nccl",
                _ => "access between devices",
            };
            Err(RanksError::Unavailable { what: what.to_owned(), reason }.into())
        };
        let unmapped = match kind {
            TransportKind::Nccl => None,
            _ => match self.map_windows()? {
                None => {
                    self.watch = self.new_watch();
                    return Ok(());
                }
                Some(reason) if kind == TransportKind::OneSided => return unavailable(reason),
                reason => reason,
            },
        };
        if self.common.planner.config().forced == Some(LogitsLayout::Survey) {
            return unavailable(format!("the layout survey is forced, but {UNSURVEYED}"));
        }
        if let Some(reason) = self.join_messages(communicator)? {
            let unmapped =
                unmapped.map_or(String::new(), |reason| format!("{reason}; and of transport nccl "));
            return unavailable(unmapped + &reason);
        }
        self.transport = TransportKind::Nccl;
        let mut warnings: Vec<String> = self.warning.take().into_iter().collect();
        if let Some(reason) = unmapped {
            warnings.push(format!(
                "rows travel by nccl, because devices do not reach each other's memory: {reason}"
            ));
        }
        if self.common.planner.check(LogitsLayout::Survey).is_ok() {
            self.common.planner.leave_out(LogitsLayout::Survey);
            warnings.push(format!("no step takes the layout survey: {UNSURVEYED}"));
        }
        self.warning = (!warnings.is_empty()).then(|| warnings.join("; "));
        Ok(())
    }

    /// Hands out this rank's window and maps the windows of the others, on all ranks. Returns why a rank
    /// cannot, if one cannot.
    fn map_windows(&mut self) -> Result<Option<String>> {
        let own = self.windows.handle();
        let own_bytes = own.as_ref().map_or(&[][..], |handle| bytemuck::bytes_of(handle));
        let messages =
            self.common.group.all_gather(What::Windows, own_bytes, |_| size_of::<MemoryHandle>())?;
        let handle = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned::<MemoryHandle>(bytes).ok();
        let handles: Option<Vec<MemoryHandle>> = messages.iter().map(handle).collect();
        let mapped = match (own, handles) {
            (Err(error), _) => Err(error),
            // Another rank has no handle, and says why in the next exchange.
            (_, None) => Ok(()),
            // The ranks agreed on the limits of their workspaces, and `drop` waits for all before it frees a
            // window.
            (_, Some(handles)) => self.windows.map(&handles, device_wait(self.timeout)),
        };
        self.first_refusal(&mapped)
    }

    /// Joins a group of ranks that send each other messages. Returns why a rank cannot, if one cannot.
    fn join_messages(&mut self, communicator: Option<ProgramCommunicator>) -> Result<Option<String>> {
        let by = match communicator {
            Some(communicator) => Meeting::Communicator(communicator),
            None => {
                let id = self.windows.new_group();
                if let Some(reason) = self.first_refusal(&id)? {
                    return Ok(Some(reason));
                }
                let ids = self.common.group.all_gather(What::Windows, &id?, |_| GROUP_ID_BYTES)?;
                let id = GroupId::try_from(&ids[0][..]);
                Meeting::Id(id.map_err(|_| self.common.group.corrupt(0, "the id of a group that is none"))?)
            }
        };
        let (lookout, since, wait) = (self.common.group.lookout(), Instant::now(), device_wait(self.timeout));
        let mut gone = None;
        let joined = self.windows.join_group(&by, &mut || {
            // Who has joined waits in the next exchange.
            gone = lookout.watch(Some(What::Windows)).and_then(|()| self.common.group.ask()).err();
            gone.is_none() && since.elapsed() < wait
        });
        if let (Err(_), Some(gone)) = (&joined, gone) {
            return Err(gone);
        }
        self.common.group.hurry(self.timeout.saturating_sub(since.elapsed()));
        let is_late = joined.is_err() && since.elapsed() >= wait;
        match self.first_refusal(&joined)? {
            Some(_) if is_late => {
                let rank = (self.common.group.rank() + 1) % self.common.group.world();
                return Err(RanksError::Late { rank, waited: self.timeout }.into());
            }
            Some(reason) => return Ok(Some(reason)),
            None => {}
        }
        // The first messages, which connect the ranks.
        self.watch = self.new_watch();
        let failure = self.read_results(&mut [])?;
        match self.state.take_gone() {
            Some(gone) => Err(gone),
            None => Ok(failure.map(|(failure, _)| format!("{failure:?}"))),
        }
    }

    /// Begins to look after the ranks, whose devices are connected.
    fn new_watch(&self) -> Watch {
        let is_emulated = self.gpu.device.gpu().is_none();
        Watch::begin(&self.common.group, self.windows.giving_up(), self.timeout, is_emulated)
    }

    /// Tells all ranks whether this one has failed, and returns the rank that has, and why.
    fn first_refusal<T>(&mut self, done: &Result<T>) -> Result<Option<String>> {
        let said = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let said = &said.as_bytes()[..said.len().min(MOST_REASON)];
        let reasons = self.common.group.all_gather(What::Windows, said, |_| MOST_REASON)?;
        let refusal = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty());
        Ok(refusal.map(|(rank, reason)| format!("rank {rank}: {}", quoted(reason, MOST_REASON))))
    }
}

/// Returns a layout as devices know it.
fn exchanged(layout: &LogitsLayout) -> ExchangeLayout {
    match layout {
        LogitsLayout::Gather => ExchangeLayout::Gather,
        LogitsLayout::Swap => ExchangeLayout::Swap,
        LogitsLayout::Survey => ExchangeLayout::Survey,
        LogitsLayout::Replicated => ExchangeLayout::Replicated,
    }
}

/// Returns whether an error says that a rank has ended.
fn is_lost(error: &Error) -> bool {
    matches!(error.of_ranks(), Some(RanksError::Lost { .. }))
}

/// How long the end of a pool waits for the other ranks to end theirs, and as long for messages to end.
/// Afterwards a thread does.
const END: Duration = Duration::from_millis(350);

/// How often that thread looks whether they have.
const LOOK: Duration = Duration::from_millis(50);

impl GpuRanks {
    /// Says to the other ranks that this one writes their windows no more. Returns whether all others have
    /// said so, too, or have ended; `None` if that is not known.
    fn say_farewell(&mut self) -> Option<bool> {
        let (group, since) = (&mut self.common.group, Instant::now());
        group.begin(StepDigest::default());
        group.hurry(END);
        match group.all_gather(What::Windows, &[], |_| 0) {
            Ok(_) => return Some(true),
            Err(error) if is_lost(&error) && group.world() == 2 => return Some(true),
            Err(_) => {}
        }
        // An exchange ends at the first rank that is lost, and says nothing of later ones.
        let lookout = group.lookout();
        loop {
            match lookout.leave() {
                Some(false) if since.elapsed() < END => thread::sleep(LOOK / 10),
                have_left => return have_left,
            }
        }
    }
}

impl Drop for GpuRanks {
    fn drop(&mut self) {
        // Waits for the last step; its results are not needed any more.
        let _ = self.read_results(&mut []);
        self.watch.end();
        self.windows.unmap();
        let have_left = self.say_farewell();
        // A window may be freed once no rank writes it any more. Ranks that are lost to each other wait for
        // no message of the other's.
        let shared = self.windows.take_shared();
        let by_messages = shared.is_of_messages();
        let waits = have_left == Some(false) && !(by_messages && matches!(self.state, State::Broken(_)));
        match have_left {
            None if !by_messages => return shared.keep(),
            Some(true) if !by_messages => return,
            _ if !waits && shared.has_ended(END) => return,
            _ => {}
        }
        let lookout = self.common.group.lookout();
        thread::spawn(move || {
            while waits && lookout.leave() == Some(false) {
                thread::sleep(LOOK);
            }
            while by_messages && !shared.has_ended(LOOK) {}
        });
    }
}
