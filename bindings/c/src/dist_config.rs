//! What a group of processes is made with, and what a step of it is decided by.

use std::ffi::c_char;
use std::mem::offset_of;
use std::time::Duration;

use gumball_engine::dist::{
    Address, DEFAULT_TIMEOUT, LogitsLayout, Ownership, PlannerConfig, TransportKind, VocabSplit,
};
use gumball_engine::{Place, PoolConfig, Widths};

use crate::error::{Failure, Result};
use crate::ffi::{optional_text, slice, text};
use crate::versioned::VersionedStruct;

/// How the logits of a step lie on the processes of a group, and what is exchanged (docs/scaling.md).
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum DistLayout {
    /// Each process has its ids of all rows, gets the others, and samples all rows.
    GUMBALL_GATHER = 0,
    /// Each process has its ids of all rows, and exchanges them for whole rows of the requests that it owns, which it samples.
    GUMBALL_SWAP = 1,
    /// Each process keeps its ids of all rows; only what decides is exchanged.
    GUMBALL_SURVEY = 2,
    /// Each process has whole rows of the requests that it owns.
    GUMBALL_REPLICATED = 3,
}

/// What a step of a group is for.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum StepKind {
    /// One token for each request.
    GUMBALL_DECODE = 0,
    /// The first token behind a prompt.
    GUMBALL_PREFILL = 1,
    /// The drafts of each request are verified.
    GUMBALL_VERIFY = 2,
}

/// What a pool over several processes is made with. All of them hand in the same, but for `rank` and `threads`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DistConfig {
    /// sizeof(gumball_dist_config).
    pub struct_size: usize,
    /// The number of ids in the vocabulary of all requests, in 1..=2^20.
    pub vocab: usize,
    /// The number of this process, in 0..world.
    pub rank: usize,
    /// The number of processes, in 1..=1024.
    pub world: usize,
    /// `world` texts: where each process listens for those above it, unix:PATH or tcp:HOST:PORT.
    pub addresses: *const *const c_char,
    /// `world` numbers of ids that each process has, in turn; NULL: evenly.
    pub split: *const usize,
    /// How many sequences can be in flight, in 1..2^31; 0: 256.
    pub slots: usize,
    /// As in gumball_pool_config.
    pub threads: usize,
    /// As in gumball_pool_config.
    pub top_n: usize,
    /// As in gumball_pool_config.
    pub ids: usize,
    /// As in gumball_pool_config.
    pub route: *const c_char,
    /// As in gumball_pool_config.
    pub level: *const c_char,
    /// The layouts that steps may take besides gather, by their names with commas between; NULL: swap,survey.
    pub layouts: *const c_char,
    /// The layout of all steps but prefill; NULL: what GUMBALL_DIST_LAYOUT says, or none.
    pub layout: *const c_char,
    /// auto, unix or tcp; NULL: what GUMBALL_DIST_TRANSPORT says, or auto.
    pub transport: *const c_char,
    /// The least number of requests for which rows are swapped; 0: what GUMBALL_DIST_SWAP_MIN_REQUESTS says, or 16.
    pub swap_min_requests: usize,
    /// The least vocabulary for which rows are surveyed; 0: what GUMBALL_DIST_SURVEY_MIN_VOCAB says, or 8192.
    pub survey_min_vocab: usize,
    /// The least number of rows for which rows are surveyed; 0: what GUMBALL_DIST_SURVEY_MIN_ROWS says, or 1.
    pub survey_min_rows: usize,
    /// How many milliseconds a process is waited for, at start and in each exchange; 0: 30000.
    pub timeout_ms: u64,
    /// Above 0: process `request % world` owns a request; 0: each owns a block of neighbours.
    pub is_modulo: u64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DistConfig {
    const NAME: &'static str = "gumball_dist_config";
    const LEAST: usize = offset_of!(Self, is_modulo) + size_of::<u64>();
}

/// What the layout of a step is decided by, besides the requests in its slots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DistShape {
    /// sizeof(gumball_dist_shape).
    pub struct_size: usize,
    /// The most drafts of a request.
    pub drafts: usize,
    /// The number of requests, padding included, that the graph was captured for, if the step replays one; 0: it replays none.
    pub captured: usize,
    /// A gumball_step_kind.
    pub kind: i64,
    /// Above 0: each process has the hidden states of its own requests only.
    pub is_data_parallel: u64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
unsafe impl VersionedStruct for DistShape {
    const NAME: &'static str = "gumball_dist_shape";
    const LEAST: usize = offset_of!(Self, is_data_parallel) + size_of::<u64>();
}

/// What was decided for a step. gumball_dist_plan writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DistDecision {
    /// sizeof(gumball_dist_decision).
    pub struct_size: usize,
    /// A gumball_dist_layout.
    pub layout: i64,
    /// The number of requests of the step.
    pub requests: usize,
    /// The number of requests that the layout was decided by: of a graph, that which it was captured for.
    pub batch: usize,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
unsafe impl VersionedStruct for DistDecision {
    const NAME: &'static str = "gumball_dist_decision";
    const LEAST: usize = offset_of!(Self, batch) + size_of::<usize>();
}

/// Reads a variable of the environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// A configuration, read.
pub(crate) struct Given {
    pub pool: PoolConfig,
    pub planner: PlannerConfig,
    pub addresses: Vec<Address>,
    pub transport: TransportKind,
    pub timeout: Duration,
}

impl DistConfig {
    /// Reads the texts and lists, and the environment for what is not given.
    ///
    /// # Safety
    /// The pointers are NULL or point to what their fields say.
    pub(crate) unsafe fn given(&self) -> Result<Given> {
        if !(1..=1024).contains(&self.world) {
            return Err(Failure::out_of_range("world", self.world, "in 1..=1024"));
        }
        // SAFETY: the caller ensures that `addresses` is NULL or has `world` pointers.
        let addresses = unsafe { slice("addresses", self.addresses, self.world) }?;
        let address = |address: &*const c_char| {
            // SAFETY: the caller ensures that each is NULL or ends with a NUL.
            let address = unsafe { text("addresses", *address) }?;
            Ok(Address::parse(address)?)
        };
        let addresses = addresses.iter().map(address).collect::<Result<Vec<_>>>()?;
        let split = if self.split.is_null() {
            VocabSplit::even(self.vocab, self.world)?
        } else {
            // SAFETY: the caller ensures that `split` has `world` numbers.
            VocabSplit::of_sizes(unsafe { slice("split", self.split, self.world) }?)?
        };
        let mut planner = PlannerConfig::new(split).with_environment(variable)?;
        // SAFETY: the caller ensures that `layouts` is NULL or ends with a NUL.
        if let Some(names) = unsafe { optional_text("layouts", self.layouts) }? {
            let named = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            let layouts = named.map(LogitsLayout::of_name).collect::<gumball_engine::Result<Vec<_>>>()?;
            planner.layouts = layouts.into_iter().filter(|layout| *layout != LogitsLayout::Gather).collect();
        }
        // SAFETY: the caller ensures that `layout` is NULL or ends with a NUL.
        if let Some(name) = unsafe { optional_text("layout", self.layout) }?.filter(|name| *name != "auto") {
            planner.forced = Some(LogitsLayout::of_name(name)?);
        }
        if self.is_modulo > 0 {
            planner.ownership = Ownership::Modulo;
        }
        let thresholds = &mut planner.thresholds;
        for (place, given) in [
            (&mut thresholds.swap_min_requests, self.swap_min_requests),
            (&mut thresholds.survey_min_vocab, self.survey_min_vocab),
            (&mut thresholds.survey_min_rows, self.survey_min_rows),
        ] {
            if given > 0 {
                *place = given;
            }
        }
        // SAFETY: the caller ensures that `transport` is NULL or ends with a NUL.
        let transport = match unsafe { optional_text("transport", self.transport) }? {
            Some(name) => TransportKind::of_name(name)?,
            None => TransportKind::of_environment(variable)?,
        };
        let timeout = match self.timeout_ms {
            0 => DEFAULT_TIMEOUT,
            given if given <= 86_400_000 => Duration::from_millis(given),
            given => return Err(Failure::out_of_range("timeout_ms", given, "in 0..=86400000")),
        };
        // SAFETY: the caller ensures that the texts are NULL or end with a NUL.
        let pool = unsafe { self.pool() }?;
        Ok(Given { pool, planner, addresses, transport, timeout })
    }

    /// # Safety
    /// `route` and `level` are NULL or end with a NUL.
    unsafe fn pool(&self) -> Result<PoolConfig> {
        let mut config = PoolConfig::new(self.vocab);
        config.widths = Widths { top_n: self.top_n, ids: self.ids };
        if self.slots > 0 {
            config.slots = self.slots;
        }
        // SAFETY: the caller ensures that `route` is NULL or ends with a NUL.
        if let Some(route) = unsafe { optional_text("route", self.route) }? {
            config.route = route.parse()?;
        }
        // SAFETY: the caller ensures that `level` is NULL or ends with a NUL.
        let level = unsafe { optional_text("level", self.level) }?.map(str::parse).transpose()?;
        config.place = Place::Host { threads: (self.threads > 0).then_some(self.threads), level };
        Ok(config)
    }
}
