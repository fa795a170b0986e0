//! Ranks: the settings of a pool over several processes, each of which has the logits of a part of the
//! vocabulary.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use gumball_engine::ProgramCommunicator;
use gumball_engine::dist::{
    self, Address, DEFAULT_TIMEOUT, LogitsLayout, Ownership, PlannerConfig, Transport, TransportKind,
    VocabSplit,
};

use crate::error::{Failure, Result};
use crate::ffi::{Caller, RowLayoutNumber};
use crate::versioned::versioned;

/// How the logits of a step lie on the ranks, and which data is exchanged (docs/scaling.md).
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// Each rank has its ids of all rows, gets the others, and samples all rows.
    GUMBALL_GATHER = 0,
    /// Each rank has its ids of all rows, and exchanges them for whole rows of the requests that it owns,
    /// which it samples.
    GUMBALL_SWAP = 1,
    /// Each rank keeps its ids of all rows; only what decides is exchanged.
    GUMBALL_SURVEY = 2,
    /// Each rank has whole rows of the requests that it owns.
    GUMBALL_REPLICATED = 3,
}

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    GUMBALL_DECODE = 0,
    GUMBALL_PREFILL = 1,
    GUMBALL_VERIFY = 2,
}

/// The ranks of a pool. All of them hand in the same values, except for `rank`, make the same calls in the
/// same turn, and get the outputs that one process with whole rows would get (docs/scaling.md).
///
/// A caller's mistake is found before anything is sent. After any other error of a step the group is broken:
/// no sequence of this rank was changed by that step, but others may have completed it. To go on, make new
/// pools, and resume from the states of one rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    pub struct_size: usize,
    /// The number of this rank, in 0..world.
    pub rank: usize,
    /// The number of ranks, in 1..=1024; of devices in 1..=16.
    pub world: usize,
    /// `world` texts: where each rank listens for those above it, unix:PATH, on one host.
    pub addresses: *const *const c_char,
    /// `world` numbers of ids that each rank has, in turn; NULL: evenly.
    pub split: *const usize,
    /// The layouts that steps may take, by their names with commas between; gather may besides, unless it is
    /// replicated alone. NULL: swap,survey.
    pub layouts: *const c_char,
    /// The layout of all steps but prefill; NULL: what GUMBALL_DIST_LAYOUT says, or none.
    pub layout: *const c_char,
    /// auto, unix, or of devices onesided or nccl; NULL: what GUMBALL_DIST_TRANSPORT says, or auto.
    pub transport: *const c_char,
    /// The bytes of a logit, 4 or 2, by which layouts are chosen; devices load the kernels of its types at
    /// the start; 0: 4.
    pub logit_bytes: usize,
    /// How many milliseconds a rank is waited for, at start and in each exchange; 0: 30000.
    pub timeout_ms: u64,
    /// Above 0: rank `request % world` owns a request; 0: each owns a block of neighbours.
    pub is_modulo: u64,
    /// The program's ncclComm_t with these ranks, each on the device of its pool, whose rows go by nccl then;
    /// NULL: they make one. Until the pool is made it is not used otherwise; the pool makes one of its own
    /// from it, and leaves it to the program.
    pub communicator: *mut c_void,
}

versioned!(Ranks, "gumball_ranks", communicator: *mut c_void);

/// The layout that gumball_pool_plan decided for a step, and how many requests it is for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub layout: RowLayoutNumber,
    pub requests: usize,
    /// The number of requests that the layout was decided by: of a graph, the number that it was captured
    /// for.
    pub batch: usize,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Ranks of C, read and met.
pub(crate) struct Joined {
    pub planner: PlannerConfig,
    pub transport: Box<dyn Transport>,
    pub devices: TransportKind,
    pub communicator: Option<ProgramCommunicator>,
    pub timeout: Duration,
}

impl Ranks {
    /// Reads the texts and lists, and the environment for what is not given, and waits for the other ranks.
    pub(crate) fn join(&self, c: Caller<'_>, vocab: usize, on_device: bool) -> Result<Joined> {
        if !(1..=1024).contains(&self.world) {
            return Err(Failure::out_of_range("world", self.world, "in 1..=1024"));
        }
        let addresses = c.slice("addresses", self.addresses, self.world)?;
        let address = |address: &*const c_char| {
            let address = c.text("addresses", *address)?;
            Ok(Address::parse(address)?)
        };
        let addresses = addresses.iter().map(address).collect::<Result<Vec<_>>>()?;
        let split = if self.split.is_null() {
            VocabSplit::even(vocab, self.world)?
        } else {
            VocabSplit::of_sizes(c.slice("split", self.split, self.world)?)?
        };
        let mut planner = PlannerConfig::new(split).with_environment(variable)?;
        if let Some(names) = c.optional_text("layouts", self.layouts)? {
            let named = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            planner.layouts = named.map(LogitsLayout::of_name).collect::<gumball_engine::Result<_>>()?;
        }
        if let Some(name) = c.optional_text("layout", self.layout)?.filter(|name| *name != "auto") {
            planner.forced = Some(LogitsLayout::of_name(name)?);
        }
        if self.is_modulo > 0 {
            planner.ownership = Ownership::Modulo;
        }
        if self.logit_bytes > 0 {
            planner.logit_bytes = self.logit_bytes;
        }
        let devices = match c.optional_text("transport", self.transport)? {
            Some(name) => TransportKind::of_name(name)?,
            None => TransportKind::of_environment(variable)?,
        };
        let timeout = match self.timeout_ms {
            0 => DEFAULT_TIMEOUT,
            given if given <= 86_400_000 => Duration::from_millis(given),
            given => return Err(Failure::out_of_range("timeout_ms", given, "in 0..=86400000")),
        };
        let transport = dist::choose(devices, on_device, self.rank, &addresses, timeout)?;
        let communicator = (!self.communicator.is_null()).then(|| {
            // SAFETY: the C caller ensures that it is a live communicator, which is not in use until the pool
            // is made.
            unsafe { ProgramCommunicator::new(self.communicator) }
        });
        Ok(Joined { planner, transport, devices, communicator, timeout })
    }
}
