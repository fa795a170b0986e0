//! The variants of a step that the program captures in a graph of its own.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::LazyLock;

use gumball_engine::{StepVariant, Work};

use crate::error::{Code, Result, words};
use crate::ffi::{call, call_or, optional_text, require, text};
use crate::graph::{DeviceRows, device_input};
use crate::pool::Pool;

/// The names of all variants, and which requests each serves, as C reads them.
static WORDS: LazyLock<[[CString; 2]; StepVariant::ALL.len()]> =
    LazyLock::new(|| StepVariant::ALL.map(|variant| [variant.name(), variant.serves()].map(words)));

fn name(variant: StepVariant) -> *const c_char {
    WORDS[variant as usize][0].as_ptr()
}

/// Returns a variant by its name; NULL is `full`.
///
/// # Safety
/// `variant` is NULL or ends with a NUL.
pub(crate) unsafe fn variant(variant: *const c_char) -> Result<StepVariant> {
    // SAFETY: the caller ensures that `variant` is NULL or ends with a NUL.
    let name = unsafe { optional_text("variant", variant) }?;
    Ok(name.map_or(Ok(StepVariant::Full), str::parse)?)
}

/// Returns the name of a variant by its number, from 0: no_filter, min_p, top_k, top_k_top_p, top_p, edits, full. NULL behind the
/// last one. Each serves the requests of those before it, too.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_variant_name(number: usize) -> *const c_char {
    StepVariant::ALL.get(number).map_or(ptr::null(), |variant| name(*variant))
}

/// Returns which requests a variant serves besides those of the variants before it, in words. NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_variant_serves(variant: *const c_char) -> *const c_char {
    call_or(ptr::null(), || {
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant: StepVariant = unsafe { text("variant", variant) }?.parse()?;
        Ok(WORDS[variant as usize][1].as_ptr())
    })
}

/// Returns the name of the smallest variant that serves the rows that are assigned: the one whose graph to replay. NULL after an
/// error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_needed_variant(pool: Option<&mut Pool>) -> *const c_char {
    call_or(ptr::null(), || Ok(name(require("pool", pool)?.on_device()?.on_device()?.needed_variant())))
}

/// Tells how many steps a variant has served in this pool. Steps reserved for replays of the program's graphs count under the
/// variant that was named, all others under the smallest one that serves their rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_variant_steps(
    pool: Option<&mut Pool>,
    variant: *const c_char,
    steps: Option<&mut MaybeUninit<u64>>,
) -> Code {
    call(|| {
        let (pool, steps) = (require("pool", pool)?.on_device()?, require("steps", steps)?);
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant: StepVariant = unsafe { text("variant", variant) }?.parse()?;
        steps.write(pool.on_device()?.variants()[variant as usize].1);
        Ok(())
    })
}

/// Enqueues a step as gumball_pool_enqueue does, with the kernels of a variant; NULL: full.
///
/// In a graph that the program captures, the step then holds only these kernels, and serves later assignments whose requests the
/// variant serves. Call it once before the capture, with padding for instance, so that the kernels are loaded. GUMBALL_OUT_OF_RANGE
/// if a row that is assigned needs more; nothing has changed then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_variant(
    pool: Option<&mut Pool>,
    input: *const DeviceRows,
    variant: *const c_char,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant = unsafe { self::variant(variant) }?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the step is done.
        let (rows, masks) = unsafe { device_input(input) }?;
        Ok(pool.on_device()?.enqueue_variant(&[Work::Step(rows, masks)], variant)?)
    })
}

/// Prepares for replays of the program's own graph that take `steps` steps of this pool in all, for the rows that are assigned.
/// `variant`: the one that the steps were captured under; NULL: full, or captured without one. It waits where histories must grow,
/// which they do once in `history_growth` tokens.
///
/// GUMBALL_OUT_OF_RANGE if a row that is assigned needs more than the variant serves, with the row, its slot and the variants that
/// do; nothing has changed then. Call it again after each assignment: no other call compares the rows with the graph's variant.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_reserve_replays(
    pool: Option<&mut Pool>,
    steps: usize,
    variant: *const c_char,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant = unsafe { self::variant(variant) }?;
        Ok(pool.on_device()?.reserve_replays(steps, variant)?)
    })
}
