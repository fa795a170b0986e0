//! Pools on the devices of several ranks: whether they draw what one device draws, and how long their steps
//! take.
//!
//! Ranks are processes of this program, one for each device, or threads of one process. Each runs [`hold()`],
//! [`faults()`] and [`times()`] with the others.

mod cells;
mod faults;
mod hold;
mod hold_batch;
mod hold_drafts;
mod hold_graph;
mod times;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gumball_cuda::CudaInfo;
use gumball_engine::dist::{
    Address, LogitsLayout, PlannerConfig, Sockets, StepKind, Threads, Transport, TransportKind, VocabSplit,
    threads,
};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, PADDING, Place, Pool, PoolConfig, Ranks,
};

use faults::killed;
use hold::hold_batch;

pub use faults::faults;
pub use hold::hold;
pub use times::times;

/// How long devices wait for a rank.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long hosts wait for a rank: the first one compiles kernels for all.
const HOST_PATIENCE: Duration = Duration::from_secs(600);

/// The number of the group that waits for the compiler.
const WARM_GROUP: usize = usize::MAX;

/// The number of the group whose last rank is killed, and of the next one, in which it has come again.
const KILLED_GROUP: usize = 1 << 30;

/// What ranks do.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The number of rows that are held to one device.
    pub rows: u64,
    /// The parts that are timed, as [`times()`] takes them; empty if none are.
    pub timed: &'a str,
    /// Whether this rank was killed, and has come again.
    pub is_second: bool,
}

/// Connects this rank to the others, once for each group that is made. Groups are told apart by their
/// numbers.
pub trait Connect: Sync {
    /// Returns the transport of a group.
    ///
    /// # Errors
    /// A text that says what failed.
    fn connect(&self, group: usize) -> Result<Box<dyn Transport>, String>;

    /// Returns how rows travel between the devices.
    fn devices(&self) -> TransportKind;

    /// Returns whether a rank that is killed leaves the others alive.
    fn is_process(&self) -> bool;

    /// Returns ranks that wait for each other as all of them do here.
    fn ranks(&self, planner: PlannerConfig, transport: Box<dyn Transport>) -> Ranks {
        Ranks { devices: self.devices(), timeout: PATIENCE, ..Ranks::new(planner, transport) }
    }

    /// Returns the layouts that the ranks can take.
    fn layouts(&self) -> Vec<LogitsLayout> {
        let is_served =
            |layout: &LogitsLayout| self.devices() != TransportKind::Nccl || *layout != LogitsLayout::Survey;
        LogitsLayout::ALL.into_iter().filter(is_served).collect()
    }
}

/// A rank that is a process: its sockets lie in a folder.
#[derive(Debug)]
struct Process {
    folder: PathBuf,
    rank: usize,
    world: usize,
    devices: TransportKind,
}

impl Connect for Process {
    fn connect(&self, group: usize) -> Result<Box<dyn Transport>, String> {
        let address = |rank| Address::Unix(self.folder.join(format!("{group}-{rank}")));
        let addresses: Vec<Address> = (0..self.world).map(address).collect();
        let sockets =
            Sockets::connect(self.rank, &addresses, HOST_PATIENCE).map_err(|error| error.to_string())?;
        Ok(Box::new(sockets))
    }

    fn is_process(&self) -> bool {
        true
    }

    fn devices(&self) -> TransportKind {
        self.devices
    }
}

/// The groups of ranks that are threads, and the state of each.
type Groups = Mutex<HashMap<usize, Vec<Option<Threads>>>>;

/// A rank that is a thread.
struct Thread<'a> {
    groups: &'a Groups,
    rank: usize,
    world: usize,
    devices: TransportKind,
}

impl Connect for Thread<'_> {
    fn connect(&self, group: usize) -> Result<Box<dyn Transport>, String> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let ranks = groups
            .entry(group)
            .or_insert_with(|| threads(self.world, HOST_PATIENCE).into_iter().map(Some).collect());
        let rank = ranks[self.rank].take().ok_or("a group is joined once")?;
        Ok(Box::new(rank))
    }

    fn is_process(&self) -> bool {
        false
    }

    fn devices(&self) -> TransportKind {
        self.devices
    }
}

/// Opens the device of a rank. If there are fewer devices than ranks, several ranks share one.
fn device_of(name: &str, rank: usize) -> Result<Device, String> {
    let name = match name {
        "cuda_emulated" => "emulated".to_owned(),
        _ => format!("cuda:{}", rank % CudaInfo::probe().devices.len().max(1)),
    };
    Device::open(&name).map_err(|error| error.to_string())
}

/// Compiles the kernels on rank 0, into the cache from which the other ranks load them afterwards.
fn warm(device: &Device, connect: &dyn Connect) -> Result<(), String> {
    let mut transport = connect.connect(WARM_GROUP)?;
    if transport.rank() == 0 {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            capture_one(device, dtype).map_err(|error| error.to_string())?;
        }
    }
    transport.barrier().map_err(|error| error.to_string())
}

/// Captures a step over one rank, which loads all kernels for a type of rows.
fn capture_one(device: &Device, dtype: Dtype) -> gumball_spec::Result<()> {
    let vocab = 1000;
    let place = Place::device(device.clone(), 1);
    let config = PoolConfig { slots: 1, place, ..PoolConfig::new(vocab) };
    let layouts = LogitsLayout::ALL.to_vec();
    let planner = PlannerConfig { layouts, ..PlannerConfig::new(VocabSplit::even(vocab, 1)?) };
    let alone = threads(1, HOST_PATIENCE).into_iter().map(Box::new).next().expect("a rank");
    let mut pool = Pool::over(config, Ranks { timeout: PATIENCE, ..Ranks::new(planner, alone) })?;
    let row = DeviceBuffer::zeroed(device.runtime(), vocab * dtype.bytes())?;
    let rows = DeviceMatrix::of(&row, dtype, 0, 1, vocab, vocab)?;
    for layout in LogitsLayout::ALL {
        let plan = pool
            .ranks()
            .expect("it has ranks")
            .planner
            .plan_as(layout, &pool.shape(&[PADDING], 0, StepKind::Decode)?);
        pool.assign(&Batch { plan: Some(plan), ..Batch::of(&[PADDING]) })?;
        pool.capture(&[gumball_engine::Work::step(rows)])?;
    }
    Ok(())
}

/// Returns how rows travel between the devices: what `GUMBALL_DIST_TRANSPORT` says, `OneSided` if it is not
/// set.
fn devices() -> Result<TransportKind, String> {
    let variable = |name: &str| std::env::var(name).ok().or(Some("onesided".to_owned()));
    TransportKind::of_environment(variable).map_err(|error| error.to_string())
}

/// Does a rank's work. Rank 0 prints what all have done.
fn work_of(name: &str, rank: usize, connect: &dyn Connect, work: Work<'_>) -> Result<(), String> {
    let device = device_of(name, rank)?;
    let come_again = || {
        let [held, _] = hold_batch(&device, connect, KILLED_GROUP + 1)
            .map_err(|error| format!("rank {rank}: {error}"))?;
        if rank == 0 {
            println!(
                "ranks: {held} rows equal one device, {}, with a rank that was killed and came again",
                connect.devices().name()
            );
        }
        Ok(())
    };
    if work.is_second {
        return come_again();
    }
    let say = |line: String| {
        if rank == 0 {
            println!("{line}");
        }
    };
    warm(&device, connect).map_err(|error| format!("rank {rank}: {error}"))?;
    let [held, trained] =
        hold(&device, connect, work.rows).map_err(|error| format!("rank {rank}: {error}"))?;
    if held > 0 {
        let devices = connect.devices().name();
        say(format!("ranks: {held} rows equal one device, {trained} logprobs are the trainer's, {devices}"));
        let told = faults(&device, connect, &say).map_err(|error| format!("rank {rank}: {error}"))?;
        say(format!("ranks: {told} faults were told, {}", connect.devices().name()));
        if connect.is_process() {
            killed(&device, connect, KILLED_GROUP).map_err(|error| format!("rank {rank}: {error}"))?;
            come_again()?;
        }
    }
    if !work.timed.is_empty() {
        times(&device, connect, work.timed, &say).map_err(|error| format!("rank {rank}: {error}"))?;
    }
    Ok(())
}

/// Runs ranks as threads of this process, on the devices of `cuda` or `cuda_emulated`.
///
/// # Errors
/// The error of the first rank that failed.
pub fn as_threads(name: &str, world: usize, work: Work<'_>) -> Result<(), String> {
    let groups = Groups::default();
    let devices = devices()?;
    let run = |rank| work_of(name, rank, &Thread { groups: &groups, rank, world, devices }, work);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
        let results = ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked".to_owned())?);
        results.collect::<Vec<_>>().into_iter().collect()
    })
}

/// Runs ranks as processes of this program, which [`as_process`] serves, on the devices of `cuda`.
///
/// # Errors
/// A text that says which rank failed; it has said why.
pub fn as_processes(name: &str, world: usize, arguments: &[String]) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("gumball-ranks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = |rank: usize, again: &str| {
        let mut command = Command::new(&program);
        command
            .args(["rank-of", name, &world.to_string(), &rank.to_string()])
            .arg(&folder)
            .args(arguments)
            .arg(again);
        command.spawn().map_err(|error| error.to_string())
    };
    let mut ranks = (0..world).map(|rank| start(rank, "")).collect::<Result<Vec<Child>, String>>()?;
    let mut failed = Vec::new();
    let wait = |ranks: &mut Vec<Child>| {
        let ended = ranks.last_mut().map(Child::wait).transpose().map_err(|error| error.to_string())?;
        Ok::<_, String>(ended.expect("there are ranks"))
    };
    // The last rank kills itself once, to come again.
    if wait(&mut ranks)?.code().is_none() {
        ranks[world - 1] = start(world - 1, "again")?;
    }
    while !ranks.is_empty() {
        if !wait(&mut ranks)?.success() {
            failed.push(ranks.len() - 1);
        }
        ranks.pop();
    }
    let _ = std::fs::remove_dir_all(&folder);
    if failed.is_empty() { Ok(()) } else { Err(format!("ranks {failed:?} failed")) }
}

/// Does the work of one of several processes.
///
/// # Errors
/// A text that says what failed.
pub fn as_process(
    name: &str,
    world: usize,
    rank: usize,
    folder: &Path,
    work: Work<'_>,
) -> Result<(), String> {
    work_of(name, rank, &Process { folder: folder.to_owned(), rank, world, devices: devices()? }, work)
}
