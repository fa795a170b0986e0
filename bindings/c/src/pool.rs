//! The pool: the requests in flight, on the host or on a device, each in a slot.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};
use std::sync::atomic::{AtomicU64, Ordering};

use gumball_engine::{DraftBatch, Error, Place, Sequence, Slot, Widths};

use crate::device::Device;
use crate::error::{Code, Result};
use crate::ffi::{call, call_or, end, make, optional_text, require, slice};
use crate::params::Params;
use crate::state::{State, read_state};
use crate::versioned::{VersionedStruct, read, write};

/// The requests in flight.
///
/// A sequence is admitted to a slot, stepped with others in any grouping, and released. Which slot it has, and what stands
/// beside it in a batch, changes none of its tokens.
#[derive(Debug)]
pub struct Pool {
    pub(crate) home: Home,
    /// Identifies the pool, so that another pool refuses its graphs.
    pub(crate) id: u64,
    /// The batches of rows of a draft model that a pool on a device has, by their numbers.
    pub(crate) draft_batches: Vec<Option<DraftBatch>>,
}

#[derive(Debug)]
pub(crate) enum Home {
    Host(Box<gumball_engine::Pool>),
    Device(Box<gumball_engine::Pool>),
}

/// What a pool on the host is made for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// sizeof(gumball_pool_config).
    pub struct_size: usize,
    /// The number of ids in the vocabulary of all requests, in 1..=2^20.
    pub vocab: usize,
    /// How many sequences can be in flight, in 1..2^31; 0: 256.
    pub slots: usize,
    /// How many threads take the rows of a step, in 1..=1024: 1 is the caller's; 0: those of the machine, which all such pools
    /// share.
    pub threads: usize,
    /// How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for more.
    pub top_n: usize,
    /// How many ids named by a request the outputs have places for, in 0..=2^20.
    pub ids: usize,
    /// The way to the tokens: race, oracle, probabilities, or one that was registered; NULL: race.
    pub route: *const c_char,
    /// The SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    pub level: *const c_char,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for PoolConfig {
    const NAME: &'static str = "gumball_pool_config";
    const LEAST: usize = offset_of!(Self, level) + size_of::<*const c_char>();
}

/// What a pool on a device is made for. All its memory is taken at once, but for lists and histories of requests.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DevicePoolConfig {
    /// sizeof(gumball_device_pool_config).
    pub struct_size: usize,
    /// The number of ids in the vocabulary of all requests, in 1..=2^20.
    pub vocab: usize,
    /// How many sequences can be in flight, in 1..2^31; 0: 256.
    pub slots: usize,
    /// How many rows a step can have, in 1..2^31; 0: 256.
    pub rows: usize,
    /// How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for more.
    pub top_n: usize,
    /// How many ids named by a request the outputs have places for, in 0..=2^20.
    pub ids: usize,
    /// How many tokens a history on the device can grow by before it is moved, which waits for the device, in 1..2^31; 0: 4096.
    pub history_growth: usize,
    /// Above 0: steps report the kept sets.
    pub keep_ids: u32,
    /// Above 0: the device keeps the histories of all requests, and not only those that edits read. For programs that replay
    /// steps without fetching the outputs of each, and still want to know their sequences.
    pub keep_histories: u32,
    /// The way to the tokens: race, or probabilities, whose softmax edits nothing, so that penalties, biases, bans, bitmasks,
    /// row_indices and rows of probabilities are GUMBALL_CONFLICT; NULL: race.
    pub route: *const c_char,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DevicePoolConfig {
    const NAME: &'static str = "gumball_device_pool_config";
    const LEAST: usize = offset_of!(Self, keep_histories) + size_of::<u32>();
}

#[doc(hidden)]
impl From<gumball_engine::Pool> for Pool {
    fn from(pool: gumball_engine::Pool) -> Self {
        Self::of(Home::Host(Box::new(pool)))
    }
}

impl Pool {
    fn of(home: Home) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { home, id: NEXT.fetch_add(1, Ordering::Relaxed), draft_batches: Vec::new() }
    }

    /// Returns the device pool; an error if this pool is on the host.
    pub(crate) fn on_device(&mut self) -> Result<&mut gumball_engine::Pool> {
        match &mut self.home {
            Home::Device(pool) => Ok(pool),
            Home::Host(_) => {
                let reason = "the pool is on the host; gumball_pool_new_on_device makes one there".to_owned();
                Err(Error::Unavailable { resource: "device of this pool", reason }.into())
            }
        }
    }
}

/// Evaluates an expression with the host pool or the device pool, whose methods have the same names.
macro_rules! either {
    ($pool:expr, $inner:ident => $body:expr) => {
        match &mut $pool.home {
            crate::pool::Home::Host($inner) => $body,
            crate::pool::Home::Device($inner) => $body,
        }
    };
}
pub(crate) use either;

/// Makes an empty pool on the host. NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_new(config: *const PoolConfig) -> Option<Box<Pool>> {
    make(|| {
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let given = unsafe { read("config", config) }?;
        let mut config = gumball_engine::PoolConfig::new(given.vocab);
        config.widths = Widths { top_n: given.top_n, ids: given.ids };
        if given.slots > 0 {
            config.slots = given.slots;
        }
        // SAFETY: the C caller ensures that `route` is NULL or ends with a NUL.
        if let Some(route) = unsafe { optional_text("route", given.route) }? {
            config.route = route.parse()?;
        }
        // SAFETY: the C caller ensures that `level` is NULL or ends with a NUL.
        let level = unsafe { optional_text("level", given.level) }?.map(str::parse).transpose()?;
        config.place = Place::Host { threads: (given.threads > 0).then_some(given.threads), level };
        Ok(gumball_engine::Pool::new(config)?.into())
    })
}

/// Makes an empty pool on a device; its tokens are those of a pool on the host. NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_new_on_device(
    device: Option<&Device>,
    config: *const DevicePoolConfig,
) -> Option<Box<Pool>> {
    make(|| {
        let device = require("device", device)?.inner.clone();
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let given = unsafe { read("config", config) }?;
        let mut config = gumball_engine::PoolConfig::new(given.vocab);
        config.widths = Widths { top_n: given.top_n, ids: given.ids };
        config.kept = given.keep_ids != 0;
        // SAFETY: the C caller ensures that `route` is NULL or ends with a NUL.
        if let Some(route) = unsafe { optional_text("route", given.route) }? {
            config.route = route.parse()?;
        }
        let or = |given: usize, default: usize| if given > 0 { given } else { default };
        config.slots = or(given.slots, config.slots);
        config.place = Place::Device {
            device,
            rows: or(given.rows, 256),
            history_growth: or(given.history_growth, 4096),
            keep_histories: given.keep_histories != 0,
        };
        Ok(Pool::of(Home::Device(Box::new(gumball_engine::Pool::new(config)?))))
    })
}

/// Ends a pool with its sequences. On a device it waits for what was enqueued. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_free(pool: Option<Box<Pool>>) {
    end(pool);
}

/// Admits a request and tells its slot. The pool keeps a copy of the parameters. On a device it waits for nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_admit(
    pool: Option<&mut Pool>,
    params: Option<&Params>,
    prompt: *const u32,
    prompt_len: usize,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|| {
        let (pool, params, slot) =
            (require("pool", pool)?, require("params", params)?, require("slot", slot)?);
        // SAFETY: the C caller ensures that `prompt` has `prompt_len` ids.
        let prompt = unsafe { slice("prompt", prompt, prompt_len) }?;
        write_slot(slot, either!(pool, inner => inner.admit(params.inner.clone(), prompt)))
    })
}

/// Takes up a sequence where it was left, here or in any other pool or sampler, and tells its slot. Seed and draw index are
/// the state's. With mirostat, the sequence cannot be truncated behind the state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_resume(
    pool: Option<&mut Pool>,
    params: Option<&Params>,
    state: *const State,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|| {
        let (pool, params, slot) =
            (require("pool", pool)?, require("params", params)?, require("slot", slot)?);
        // SAFETY: the C caller ensures that `state` is NULL or a struct of its stated size, whose lists have
        // the lengths it names.
        let state = unsafe { read_state(state) }?;
        write_slot(slot, either!(pool, inner => inner.resume(params.inner.clone(), state)))
    })
}

/// Copies a sequence to a slot of its own, under another draw index, and tells that slot.
///
/// For n sequences of one request: admit it, fork it under 1, 2, .. n - 1, and let all of them read the same row of logits
/// in the first step. On a device the copy goes through the host, which may have to wait.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_fork(
    pool: Option<&mut Pool>,
    of: i32,
    draw: u32,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|| {
        let (pool, slot) = (require("pool", pool)?, require("slot", slot)?);
        write_slot(slot, either!(pool, inner => inner.fork(of, draw)))
    })
}

fn write_slot(slot: &mut MaybeUninit<i32>, placed: gumball_engine::Result<Slot>) -> Result<()> {
    slot.write(placed?);
    Ok(())
}

/// Ends a sequence; its slot is vacant then. On a device, rows that are assigned to it are padding.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_release(pool: Option<&mut Pool>, slot: i32) -> Code {
    call(|| Ok(either!(require("pool", pool)?, inner => inner.release(slot))?))
}

/// Takes a sequence back to its state after `output_len` output tokens, mirostat's limit included.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_truncate(pool: Option<&mut Pool>, slot: i32, output_len: usize) -> Code {
    call(|| {
        either!(require("pool", pool)?, inner => {
            let behind = inner.sequence(slot)?.tokens_behind(output_len)?;
            Ok(inner.shorten(&[slot], &[behind])?)
        })
    })
}

/// Appends a token that was chosen elsewhere; mirostat's limit stays.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_push(pool: Option<&mut Pool>, slot: i32, id: u32) -> Code {
    call(|| Ok(either!(require("pool", pool)?, inner => inner.push(slot, id))?))
}

/// Tells the state of a slot: history, seed in use, position, draw index, mirostat's limit. On a device it waits where the
/// host does not know the last tokens yet, and tokens may be lost, as gumball_device_pool_config's `keep_histories` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_state(pool: Option<&mut Pool>, slot: i32, out: *mut State) -> Code {
    call(|| {
        let state = sequence(require("pool", pool)?, slot)?.state();
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, State::of(state)) }
    })
}

fn sequence(pool: &mut Pool, slot: i32) -> Result<&Sequence> {
    Ok(either!(pool, inner => inner.sequence(slot))?)
}

/// Returns a copy of the parameters of a slot, to be freed. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_params(pool: Option<&mut Pool>, slot: i32) -> Option<Box<Params>> {
    make(|| Ok(Params::of(sequence(require("pool", pool)?, slot)?.params().clone())))
}

/// Returns how many sequences are in flight; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_len(pool: Option<&Pool>) -> usize {
    count(pool, gumball_engine::Pool::len)
}

/// Returns how many can be; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_capacity(pool: Option<&Pool>) -> usize {
    count(pool, gumball_engine::Pool::capacity)
}

/// Returns the number of ids in the vocabulary; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_vocab(pool: Option<&Pool>) -> usize {
    count(pool, gumball_engine::Pool::vocab)
}

fn count(pool: Option<&Pool>, of: impl FnOnce(&gumball_engine::Pool) -> usize) -> usize {
    call_or(0, || {
        let (Home::Host(pool) | Home::Device(pool)) = &require("pool", pool)?.home;
        Ok(of(pool))
    })
}
