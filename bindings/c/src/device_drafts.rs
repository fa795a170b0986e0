//! Drafts in the memory of a pool's device: assigned, verified there, captured, and what came out.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use gumball_engine::{
    Batch, DeviceMatrix, DeviceSlice, Drafts, Dtype, Error, Ids, IntType, Matrix, Tree, VerifyMode as Mode,
    Work,
};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, make, require, slice};
use crate::graph::{DeviceRows, Graph, device_input};
use crate::logits::stride;
use crate::options::{StepOptions, read_options};
use crate::pool::Pool;
use crate::variants::variant;
use crate::verify::Verification;
use crate::versioned::{VersionedStruct, read};

/// The drafts of all requests in the device's memory, those of one request after those of another. They stay there until they are
/// verified; for captured ones, until the graph is replayed no more, and each replay reads those that are there then.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceDrafts {
    /// sizeof(gumball_device_drafts).
    pub struct_size: usize,
    /// The draft tokens; a CUdeviceptr is cast. One that is no id, such as -1, is never accepted.
    pub ids: *const c_void,
    /// For each its parent in the tree of its request, as in gumball_drafts. NULL: each draft follows the one before it. Nobody checks
    /// them: a request whose parents are no tree takes a step, with GUMBALL_STATUS_NO_TREE.
    pub parents: *const c_void,
    /// Their number, the sum of the counts that were assigned.
    pub len: usize,
    /// 32 or 64: the bits of an id and of a parent; 0: 32.
    pub bits: i64,
    /// The probabilities that the drafts were drawn from, float: `vocab` numbers for each row, of which rows without a draft behind them
    /// are not read. NULL if the drafter has none, and in other modes than GUMBALL_REJECTION and GUMBALL_BLOCK.
    pub probs: *const c_void,
    /// The rows of `probs`: requests and drafts together.
    pub probs_rows: usize,
    /// Elements from one row of `probs` to the next; 0: without gaps.
    pub probs_stride: usize,
    /// The trees as links between rows instead of `parents`, as in gumball_drafts: for each row, a request's first row included, its
    /// first child and its next sibling, of as many bits as `ids`. Nobody checks them either. NULL: there are no links.
    pub first_child: *const c_void,
    /// NULL without `first_child`, and only then.
    pub next_sibling: *const c_void,
    /// The number of links in each of these: requests and drafts together.
    pub links: usize,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DeviceDrafts {
    const NAME: &'static str = "gumball_device_drafts";
    const LEAST: usize = offset_of!(Self, bits) + size_of::<i64>();
}

/// Returns the type of integers that a struct's `bits` stand for.
pub(crate) fn int_type(bits: i64) -> Result<IntType> {
    match bits {
        0 | 32 => Ok(IntType::I32),
        64 => Ok(IntType::I64),
        other => Err(Failure::out_of_range("bits", other, "0, 32 or 64")),
    }
}

/// Returns drafts as the engine takes them.
///
/// # Safety
/// `drafts` is NULL or a struct with the size it states. Its arrays stay in the device's memory as long as
/// verifications read them, and nobody writes them while one does. Its rows of probabilities have `vocab` numbers.
pub(crate) unsafe fn device_drafts(drafts: *const DeviceDrafts, vocab: usize) -> Result<Drafts<'static>> {
    // SAFETY: the caller ensures that `drafts` is NULL or points to the bytes that its `struct_size` names.
    let drafts = unsafe { read("drafts", drafts) }?;
    let dtype = int_type(drafts.bits)?;
    if drafts.ids.is_null() && drafts.len > 0 {
        return Err(Failure::null("ids"));
    }
    let column = |array: *const c_void, len: usize| {
        // SAFETY: the caller ensures that the array is one of the device's with `len` numbers of this type.
        unsafe { DeviceSlice::new(array.addr() as u64, dtype, len) }.map(Ids::from)
    };
    let tree = match [drafts.parents, drafts.first_child, drafts.next_sibling].map(|array| !array.is_null()) {
        [false, false, false] => Tree::Chain,
        [true, false, false] => Tree::Parents(column(drafts.parents, drafts.len)?),
        [_, false, true] => return Err(Failure::null("first_child")),
        [_, true, false] => return Err(Failure::null("next_sibling")),
        [true, true, true] => {
            let reason = "a tree is held one way or the other";
            return Err(Error::Conflict { parameter: "parents", other: "first_child", reason }.into());
        }
        [false, true, true] => Tree::Links {
            first_child: column(drafts.first_child, drafts.links)?,
            next_sibling: column(drafts.next_sibling, drafts.links)?,
        },
    };
    let probs = (!drafts.probs.is_null()).then(|| {
        let (address, stride) = (drafts.probs.addr() as u64, stride(drafts.probs_stride, vocab));
        // SAFETY: the caller ensures that the device has as many rows there.
        unsafe { DeviceMatrix::new(address, Dtype::F32, drafts.probs_rows, vocab, stride) }
    });
    Ok(Drafts { ids: column(drafts.ids, drafts.len)?, tree, probs: probs.transpose()?.map(Matrix::from) })
}

/// Says for which slots the next gumball_pool_enqueue_verify verifies drafts, those of captured graphs included, and how many drafts
/// each has, in 0..=64.
///
/// A request with n drafts has n + 1 rows, as for gumball_pool_verify; lists in the options have one element for each. `mode`: a
/// gumball_verify_mode; for GUMBALL_THRESHOLD there is gumball_pool_assign_threshold_drafts. Waits for nothing, and copies nothing if it
/// is what was assigned already. The first mode but GUMBALL_COUPLED and GUMBALL_GREEDY takes memory of the device for the
/// probabilities of the pool's rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_assign_drafts(
    pool: Option<&mut Pool>,
    slots: *const i32,
    counts: *const u32,
    requests: usize,
    mode: i64,
    options: *const StepOptions,
) -> Code {
    call(|| {
        let mode = match mode {
            0 => Mode::Coupled,
            1 => Mode::Greedy,
            2 => Mode::Rejection,
            3 => Mode::Block,
            other => {
                let allowed = "GUMBALL_COUPLED, GUMBALL_GREEDY, GUMBALL_REJECTION or GUMBALL_BLOCK; \
                               gumball_pool_assign_threshold_drafts has GUMBALL_THRESHOLD";
                return Err(Failure::out_of_range("mode", other, allowed));
            }
        };
        // SAFETY: the C caller ensures what `assign` requires.
        unsafe { assign(pool, slots, counts, requests, mode, options) }
    })
}

/// Does what gumball_pool_assign_drafts does, for drafts that are judged by GUMBALL_THRESHOLD, with its two thresholds as in
/// gumball_drafts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_assign_threshold_drafts(
    pool: Option<&mut Pool>,
    slots: *const i32,
    counts: *const u32,
    requests: usize,
    threshold_single: f32,
    threshold_acc: f32,
    options: *const StepOptions,
) -> Code {
    call(|| {
        let mode = Mode::Threshold { single: threshold_single, acc: threshold_acc };
        // SAFETY: the C caller ensures what `assign` requires.
        unsafe { assign(pool, slots, counts, requests, mode, options) }
    })
}

/// Assigns drafts in a mode.
///
/// # Safety
/// `slots` and `counts` are NULL or have an element per request. `options` is NULL or a struct of its stated size, whose
/// lists have one element per row.
unsafe fn assign(
    pool: Option<&mut Pool>,
    slots: *const i32,
    counts: *const u32,
    requests: usize,
    mode: Mode,
    options: *const StepOptions,
) -> Result<()> {
    let pool = require("pool", pool)?.on_device()?;
    // SAFETY: the caller ensures that `slots` is NULL or has one slot per request.
    let slots = unsafe { slice("slots", slots, requests) }?;
    // SAFETY: the caller ensures that `counts` is NULL or has one number per request.
    let counts = unsafe { slice("counts", counts, requests) }?;
    let rows = requests + counts.iter().map(|count| *count as usize).sum::<usize>();
    // SAFETY: the caller ensures that `options` is NULL or a struct of its stated size, whose lists have one
    // element per row.
    let options = unsafe { read_options(options, rows) }?;
    Ok(pool.assign(&options.assigned(Batch { counts, mode, ..Batch::of(slots) })?)?)
}

/// Enqueues the verification of drafts for the requests that gumball_pool_assign_drafts was given. It only launches kernels, and
/// returns before the device is done.
///
/// The device advances each request by its emitted tokens, so a step or another verification may follow at once. `variant`, and a
/// graph that the program captures: as for gumball_pool_enqueue_variant.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_verify(
    pool: Option<&mut Pool>,
    input: *const DeviceRows,
    drafts: *const DeviceDrafts,
    variant: *const c_char,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant = unsafe { self::variant(variant) }?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the verification is done.
        let (rows, masks) = unsafe { device_input(input) }?;
        // SAFETY: the C caller ensures that `drafts` has the size it states and that its device memory stays
        // until the verification is done.
        let drafts = unsafe { device_drafts(drafts, pool.vocab()) }?;
        Ok(pool.on_device()?.enqueue_variant(&[Work::Verify(rows, masks, drafts)], variant)?)
    })
}

/// Captures the verification of drafts, to be replayed by gumball_pool_replay. Nothing runs yet. NULL after an error.
///
/// A replay verifies for what is assigned then: the numbers of requests and of rows, the mode, and whether there are row_indices
/// and masks, must stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_capture_verify(
    pool: Option<&mut Pool>,
    input: *const DeviceRows,
    drafts: *const DeviceDrafts,
) -> Option<Box<Graph>> {
    make(|| {
        let pool = require("pool", pool)?;
        let (id, pool) = (pool.id, pool.on_device()?);
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory
        // outlives the graph's replays.
        let (rows, masks) = unsafe { device_input(input) }?;
        // SAFETY: the C caller ensures that `drafts` has the size it states and that its device memory
        // outlives the graph's replays.
        let drafts = unsafe { device_drafts(drafts, pool.vocab()) }?;
        Ok(Graph { pool: id, inner: pool.capture(&[Work::Verify(rows, masks, drafts)])? })
    })
}

/// Waits for what was enqueued so far and copies what came out of the last verification.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_fetch_verification(
    pool: Option<&mut Pool>,
    verification: Option<&mut Verification>,
) -> Code {
    call(|| {
        let (pool, verification) = (require("pool", pool)?, require("verification", verification)?);
        pool.on_device()?.fetch(&mut verification.outputs.inner)?;
        Ok(())
    })
}

/// Takes the last output tokens of the requests that were assigned last away again, as many of each as a number in the device's memory
/// says, and returns before the device is done. A following step or verification reads the shorter requests.
///
/// `counts`: `len` numbers of `bits` bits (32 or 64), one for each assigned slot; a CUdeviceptr is cast. One below 0 or above the
/// number of output tokens takes nothing away, and so does one above 1 with mirostat. A graph that the program captures takes it up, and
/// reads the numbers that are there when it is replayed. gumball_pool_state then reads the sequence back: of a pool with keep_histories
/// always, of others as long as the outputs of each step were fetched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_shorten(
    pool: Option<&mut Pool>,
    counts: *const c_void,
    len: usize,
    bits: i64,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        if counts.is_null() && len > 0 {
            return Err(Failure::null("counts"));
        }
        let dtype = match bits {
            32 => IntType::I32,
            64 => IntType::I64,
            other => return Err(Failure::out_of_range("bits", other, "32 or 64")),
        };
        // SAFETY: the C caller ensures that as many numbers lie there until the device is done.
        let counts = unsafe { DeviceSlice::new(counts.addr() as u64, dtype, len) }?;
        Ok(pool.enqueue(&[Work::Shorten(counts.into())])?)
    })
}

/// Returns where in the device's memory the last verification says which row each row of the outputs comes from: a uint32_t for
/// each row, UINT32_MAX where no token was emitted. Behind these is how many drafts were accepted: a uint32_t for each request.
/// All of it lies behind the outputs, and moves with their number of rows. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_walks_address(pool: Option<&mut Pool>) -> *const c_void {
    call_or(std::ptr::null(), || {
        let [address, _] = require("pool", pool)?.on_device()?.on_device()?.walks_addresses();
        // The address is one of the device's, so the pointer has no provenance on the host.
        Ok(std::ptr::without_provenance(address as usize))
    })
}
