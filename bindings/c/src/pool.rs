//! The pool: the requests in flight, on the host or on a device, of one process or over ranks, each in a
//! slot.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use gumball_engine::unstable::DraftBatch;
use gumball_engine::{Place, Slot, Widths};

use crate::device::Device;
use crate::error::{Code, Result, refuse, words};
use crate::ffi::{Caller, call, end, make, require};
use crate::marks;
use crate::params::Params;
use crate::ranks::{Joined, Ranks};
use crate::state::{State, read_state};
use crate::versioned::versioned;

/// The requests in flight. A sequence is admitted to a slot, stepped with others in any grouping, and
/// released. Which slot it has, what stands beside it in a batch, and where the pool computes, changes none
/// of its tokens.
#[derive(Debug)]
pub struct Pool {
    pub(crate) inner: gumball_engine::Pool,
    /// Identifies the pool, so that another pool refuses its graphs.
    pub(crate) id: u64,
    /// The batches of rows of a draft model that a pool on a device has had; the first has the number 1.
    pub(crate) draft_batches: Vec<Option<DraftBatch>>,
    /// How ranks are met; empty without ranks.
    pub(crate) transport: CString,
    pub(crate) warning: Option<CString>,
    /// Why a head must compute a whole row, as C asked for it last.
    reason: CString,
}

/// The settings of a pool. Fields of another place than the pool's stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    pub struct_size: usize,
    /// The number of ids in the vocabulary of all requests, in 1..=2^20.
    pub vocab: usize,
    /// How many sequences can be in flight, in 1..2^31; 0: 256.
    pub slots: usize,
    /// Where the pool computes; NULL: on the host. All memory there is taken at once, except for lists and
    /// histories of requests.
    pub device: *const Device,
    /// The processes that the logits are spread over, of which this is one; NULL: this one has whole rows.
    /// Making the pool waits for all of them.
    pub ranks: *const Ranks,
    /// How many of the most likely tokens the outputs have places for, in 0..=2^20; no request may ask for
    /// more.
    pub top_n: usize,
    /// How many ids named by a request the outputs have places for, in 0..=2^20.
    pub ids: usize,
    /// The way to the tokens: race or probabilities, on the host also oracle; NULL: race. On a device,
    /// probabilities edits nothing: penalties, biases, bans, bitmasks, row_indices and rows of probabilities
    /// are GUMBALL_CONFLICT.
    pub route: *const c_char,
    /// Above 0: outputs have the kept set of every row, which costs a sort of it on the host.
    pub kept: u32,
    /// Of a device, above 0: it keeps the histories of all requests, not only of those with edits, for
    /// programs that do not fetch the outputs of each step.
    pub keep_histories: u32,
    /// Of the host: how many threads take the rows of a step, in 1..=1024: 1 is the caller's; 0: the
    /// machine's threads, which all such pools share.
    pub threads: usize,
    /// Of the host: the SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    pub level: *const c_char,
    /// Of a device: how many rows a step can have, in 1..2^31; 0: 256.
    pub rows: usize,
    /// Of a device: how many tokens a history can grow by before it is moved, which waits for the device, in
    /// 1..2^31; 0: 4096.
    pub history_growth: usize,
    /// Parameters whose watermark requests have that name none; NULL: there is none. A request whose
    /// watermark is false in JSON has none.
    pub watermark: *const Params,
    /// Above 0: such a request is GUMBALL_OUT_OF_RANGE.
    pub enforce_all: u32,
}

versioned!(PoolConfig, "gumball_pool_config", history_growth: usize);

#[doc(hidden)]
impl From<gumball_engine::Pool> for Pool {
    fn from(pool: gumball_engine::Pool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let transport = pool.ranks().map_or(CString::default(), |ranks| words(ranks.transport));
        let warning = pool.ranks().and_then(|ranks| ranks.warning.map(words));
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { inner: pool, id, draft_batches: Vec::new(), transport, warning, reason: CString::default() }
    }
}

impl PoolConfig {
    /// Refuses what the other place reads.
    fn check_fields(&self) -> Result<()> {
        if !self.device.is_null() {
            let of_the_host = [("threads", self.threads > 0), ("level", !self.level.is_null())];
            return refuse(of_the_host, "device", "only a pool on the host reads it; leave it zero");
        }
        let of_a_device = [
            ("keep_histories", self.keep_histories > 0),
            ("rows", self.rows > 0),
            ("history_growth", self.history_growth > 0),
        ];
        refuse(of_a_device, "device", "only a pool on a device reads it; leave it zero")
    }

    fn get(&self, c: Caller<'_>) -> Result<gumball_engine::PoolConfig> {
        let or = |given: usize, otherwise: usize| if given > 0 { given } else { otherwise };
        let mut config = gumball_engine::PoolConfig::new(self.vocab);
        config.widths = Widths { top_n: self.top_n, ids: self.ids };
        config.kept = self.kept > 0;
        let watermark =
            c.handle(self.watermark).map(|params| marks::watermark_of("watermark.watermark", params));
        config.watermark = watermark.transpose()?;
        config.enforce_all = self.enforce_all > 0;
        config.slots = or(self.slots, config.slots);
        if let Some(route) = c.optional_text("route", self.route)? {
            config.route = route.parse()?;
        }
        let level = c.optional_text("level", self.level)?.map(str::parse).transpose()?;
        config.place = match c.handle(self.device) {
            None => Place::Host { threads: (self.threads > 0).then_some(self.threads), level },
            Some(device) => Place::Device {
                device: device.inner.clone(),
                rows: or(self.rows, 256),
                history_growth: or(self.history_growth, 4096),
                keep_histories: self.keep_histories > 0,
            },
        };
        Ok(config)
    }

    fn open(&self, c: Caller<'_>) -> Result<gumball_engine::Pool> {
        self.check_fields()?;
        let config = self.get(c)?;
        if self.ranks.is_null() {
            return Ok(gumball_engine::Pool::new(config)?);
        }
        let ranks = c.read("ranks", self.ranks)?;
        let Joined { planner, transport, devices, communicator, timeout } =
            ranks.join(c, self.vocab, !self.device.is_null())?;
        let ranks = gumball_engine::Ranks { planner, transport, devices, communicator, timeout };
        Ok(gumball_engine::Pool::over(config, ranks)?)
    }
}

/// Makes an empty pool; over ranks when all of them have come.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_new(config: *const PoolConfig) -> Option<Box<Pool>> {
    make(|c| {
        let config = c.read("config", config)?;
        Ok(config.open(c)?.into())
    })
}

/// Ends a pool with its sequences. On a device it waits for the enqueued work; over ranks the next step of
/// the others is GUMBALL_LOST.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_free(pool: Option<Box<Pool>>) {
    end(pool);
}

/// Admits a request and tells its slot. On a device it waits only if the lists and the history that the
/// request's edits read are longer than those of all earlier requests of the slot. Over ranks there must be a
/// seed.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_admit(
    pool: Option<&mut Pool>,
    params: Option<&Params>,
    prompt: *const u32,
    prompt_len: usize,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|c| {
        let (pool, params, slot) =
            (require("pool", pool)?, require("params", params)?, require("slot", slot)?);
        let prompt = c.slice("prompt", prompt, prompt_len)?;
        write_slot(slot, pool.inner.admit(params.inner.clone(), prompt))
    })
}

/// Takes up a sequence where it was left, here or elsewhere, with the state's seed and draw index. With
/// mirostat or adaptive-p, it cannot be shortened to before the state.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_resume(
    pool: Option<&mut Pool>,
    params: Option<&Params>,
    state: *const State,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|c| {
        let (pool, params, slot) =
            (require("pool", pool)?, require("params", params)?, require("slot", slot)?);
        let state = read_state(c, state)?;
        write_slot(slot, pool.inner.resume(params.inner.clone(), state))
    })
}

/// Copies a sequence to a slot of its own, under another draw index. For n sequences of one request: admit
/// it, fork it under 1, 2, .. n - 1, and let all of them read the same row of logits in the first step. On a
/// device the copy goes through the host, which may have to wait.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_fork(
    pool: Option<&mut Pool>,
    of: i32,
    draw: u32,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|_| {
        let (pool, slot) = (require("pool", pool)?, require("slot", slot)?);
        write_slot(slot, pool.inner.fork(of, draw))
    })
}

fn write_slot(slot: &mut MaybeUninit<i32>, placed: gumball_engine::Result<Slot>) -> Result<()> {
    slot.write(placed?);
    Ok(())
}

/// Ends a sequence; its slot is vacant then, and rows that are assigned to it are padding.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_release(pool: Option<&mut Pool>, slot: i32) -> Code {
    call(|_| Ok(require("pool", pool)?.inner.release(slot)?))
}

/// Appends a token that was chosen elsewhere; `mu` stays.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_push(pool: Option<&mut Pool>, slot: i32, id: u32) -> Code {
    call(|_| Ok(require("pool", pool)?.inner.push(slot, id)?))
}

/// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`, which is then as it was
/// before them, `mu` included. No slot stands there twice. On a device the states go through the
/// host, which may have to wait; GUMBALL_WORK_SHORTEN waits for nothing.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_shorten(
    pool: Option<&mut Pool>,
    slots: *const i32,
    counts: *const usize,
    len: usize,
) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let slots = c.slice("slots", slots, len)?;
        let counts = c.slice("counts", counts, len)?;
        Ok(pool.inner.shorten(slots, counts)?)
    })
}

/// Tells the state of a slot. On a device it waits where the host does not know the last tokens yet; some may
/// be lost, unless the config has `keep_histories`.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_state(pool: Option<&mut Pool>, slot: i32, out: *mut State) -> Code {
    call(|c| {
        let state = require("pool", pool)?.inner.sequence(slot)?.state();
        c.write("out", out, State::of(state))
    })
}

/// Cost: wait.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_params(pool: Option<&mut Pool>, slot: i32) -> Option<Box<Params>> {
    make(|_| Ok(Params::of(require("pool", pool)?.inner.sequence(slot)?.params().clone())))
}

/// Tells why an auto head must compute every logit of a request's rows, for any hidden state: `reason`
/// becomes its name, or NULL if there is none. The name is the pool's, until the next call of this function.
///
/// hook: `hooked` is above 0. kept: the pool keeps kept sets, and no filter bounds them. logprobs: of a mode
/// whose members are all tokens. dynamic_temperature, mirostat, joint, route; or the filter that acts first.
/// Other rows take all logits where a hidden state or many rows need them.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_needs_whole_row(
    pool: Option<&mut Pool>,
    slot: i32,
    hooked: u32,
    reason: Option<&mut MaybeUninit<*const c_char>>,
) -> Code {
    call(|_| {
        let (pool, reason) = (require("pool", pool)?, require("reason", reason)?);
        let whole = pool.inner.needs_whole_row(slot, hooked > 0)?;
        pool.reason = words(whole.map_or("", |whole| whole.name()));
        reason.write(if whole.is_some() { pool.reason.as_ptr() } else { ptr::null() });
        Ok(())
    })
}
