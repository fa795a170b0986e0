//! Pools over several processes, whose logits are a part of the vocabulary: how they are made, their requests, and what they say of
//! the group.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;

use gumball_engine::dist::{self, LogitsLayout};

use crate::dist_config::{DistConfig, Given};
use crate::error::{Code, Result, words};
use crate::ffi::{call, call_or, end, make, require, slice};
use crate::params::Params;
use crate::state::{State, read_state};
use crate::versioned::{read, write};

/// A pool on one process of a group, each of which has the logits of a part of the vocabulary. All of them make the same calls in the
/// same turn; what comes out is the same on all, and what one process with whole rows would get (docs/scaling.md).
///
/// A caller's mistake is found before anything is sent. After any other error of a step the group is broken: no sequence of this process
/// was changed by that step, but others may have completed it. To go on, make new pools, and resume from the states of one process.
#[derive(Debug)]
pub struct DistPool {
    pub(crate) inner: gumball_engine::DistPool,
    transport: CString,
}

/// Makes an empty pool, and waits until all processes of the group have come. NULL after an error: beside those of gumball_pool_new,
/// GUMBALL_LATE or GUMBALL_LOST if one does not come or ends, and GUMBALL_DISAGREE if one was made with something else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_new(config: *const DistConfig) -> Option<Box<DistPool>> {
    make(|| {
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let config = unsafe { read("config", config) }?;
        // SAFETY: the C caller ensures that its pointers are NULL or point to what their fields say.
        let Given { pool, planner, addresses, transport, timeout } = unsafe { config.given() }?;
        let transport = dist::choose(transport, config.rank, &addresses, timeout)?;
        let inner = gumball_engine::DistPool::new(pool, planner, transport)?;
        let transport = words(inner.group().transport());
        Ok(DistPool { inner, transport })
    })
}

/// Ends a pool with its sequences. The next step of the other processes is GUMBALL_LOST. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_free(pool: Option<Box<DistPool>>) {
    end(pool);
}

/// Returns the number of this process; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_rank(pool: Option<&DistPool>) -> usize {
    call_or(0, || Ok(require("pool", pool)?.inner.group().rank()))
}

/// Returns the number of processes; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_world(pool: Option<&DistPool>) -> usize {
    call_or(0, || Ok(require("pool", pool)?.inner.group().world()))
}

/// Returns the name of the transport that was taken, unix or tcp; NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_transport(pool: Option<&DistPool>) -> *const c_char {
    call_or(ptr::null(), || Ok(require("pool", pool)?.transport.as_ptr()))
}

/// Tells which ids this process has the logits of: the first one, and the end.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_ids(
    pool: Option<&DistPool>,
    first: Option<&mut MaybeUninit<usize>>,
    end: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|| {
        let (pool, first, end) = (require("pool", pool)?, require("first", first)?, require("end", end)?);
        let ids = pool.inner.planner().split().ids(pool.inner.group().rank());
        first.write(ids.start);
        end.write(ids.end);
        Ok(())
    })
}

/// Returns the most ids of a process, to which rows of logits may be padded; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_width(pool: Option<&DistPool>) -> usize {
    call_or(0, || Ok(require("pool", pool)?.inner.planner().split().width()))
}

/// Returns how many steps a gumball_dist_layout has served; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_served(pool: Option<&DistPool>, layout: i32) -> u64 {
    call_or(0, || {
        let (pool, layout) = (require("pool", pool)?, layout_of(layout.into())?);
        let served = pool.inner.planner().served().iter();
        Ok(served.filter(|((of, _), _)| *of == layout).map(|(_, steps)| steps).sum())
    })
}

/// Tells how many bytes this process has sent to others and received from them, without the 44 in front of each message.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_traffic(
    pool: Option<&DistPool>,
    sent: Option<&mut MaybeUninit<u64>>,
    received: Option<&mut MaybeUninit<u64>>,
) -> Code {
    call(|| {
        let (pool, sent) = (require("pool", pool)?, require("sent", sent)?);
        let received = require("received", received)?;
        let traffic = pool.inner.group().traffic().values();
        sent.write(traffic.clone().map(|counted| counted.sent_bytes).sum());
        received.write(traffic.map(|counted| counted.received_bytes).sum());
        Ok(())
    })
}

/// Returns the layout of a number of C.
pub(crate) fn layout_of(layout: i64) -> Result<LogitsLayout> {
    let found = usize::try_from(layout).ok().and_then(|layout| LogitsLayout::ALL.get(layout));
    found.copied().ok_or_else(|| {
        let allowed = "GUMBALL_GATHER, GUMBALL_SWAP, GUMBALL_SURVEY or GUMBALL_REPLICATED";
        crate::error::Failure::out_of_range("layout", layout, allowed)
    })
}

/// Admits a request and tells its slot, as gumball_pool_admit does. It must have a seed: processes that each took one would draw
/// different tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_admit(
    pool: Option<&mut DistPool>,
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
        slot.write(pool.inner.admit(params.inner.clone(), prompt)?);
        Ok(())
    })
}

/// Takes up a sequence where it was left, in this or any other pool, and tells its slot, as gumball_pool_resume does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_resume(
    pool: Option<&mut DistPool>,
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
        slot.write(pool.inner.resume(params.inner.clone(), state)?);
        Ok(())
    })
}

/// Copies a sequence to a slot of its own, under another draw index, and tells that slot.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_fork(
    pool: Option<&mut DistPool>,
    of: i32,
    draw: u32,
    slot: Option<&mut MaybeUninit<i32>>,
) -> Code {
    call(|| {
        let (pool, slot) = (require("pool", pool)?, require("slot", slot)?);
        slot.write(pool.inner.fork(of, draw)?);
        Ok(())
    })
}

/// Ends a sequence; its slot is vacant then.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_release(pool: Option<&mut DistPool>, slot: i32) -> Code {
    call(|| Ok(require("pool", pool)?.inner.release(slot)?))
}

/// Takes a sequence back to its state after `output_len` output tokens, mirostat's limit included.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_truncate(pool: Option<&mut DistPool>, slot: i32, output_len: usize) -> Code {
    call(|| {
        let inner = &mut require("pool", pool)?.inner;
        let behind = inner.sequence(slot)?.tokens_behind(output_len)?;
        Ok(inner.shorten(&[slot], &[behind])?)
    })
}

/// Appends a token that was chosen elsewhere; mirostat's limit stays.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_push(pool: Option<&mut DistPool>, slot: i32, id: u32) -> Code {
    call(|| Ok(require("pool", pool)?.inner.push(slot, id)?))
}

/// Tells the state of a slot, which is the same on all processes: history, seed in use, position, draw index, mirostat's limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_state(pool: Option<&mut DistPool>, slot: i32, out: *mut State) -> Code {
    call(|| {
        let state = require("pool", pool)?.inner.sequence(slot)?.state();
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, State::of(state)) }
    })
}
