//! Batches of rows of a draft model in the memory of a pool's device: made, assigned, drawn from there, and what was drawn.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use gumball_engine::{Batch, DeviceIntMatrix, DraftBatch, DraftBatchLimits, IntType, Proposals, Work};

use crate::draft_rows::read_mode;
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, out_slice, require, slice};
use crate::graph::{DeviceRows, device_input};
use crate::options::{StepOptions, list, read_options};
use crate::pool::Pool;
use crate::variants::variant;

/// Returns a pool on a device with one of its batches.
pub(crate) fn batch_of(
    pool: Option<&mut Pool>,
    batch: i64,
) -> Result<(&mut gumball_engine::Pool, DraftBatch)> {
    let pool = require("pool", pool)?;
    let known =
        usize::try_from(batch).ok().and_then(|batch| pool.draft_batches.get(batch).copied().flatten());
    let pool = pool.on_device()?;
    match known {
        Some(known) => Ok((pool, known)),
        None => Err(Failure::out_of_range("batch", batch, "a batch of drafts that this pool has")),
    }
}

/// Makes a batch of rows of a draft model in a pool on a device, and tells its number. All its memory is taken here, but for what rows
/// copy of the histories and counts of their requests.
///
/// `rows`: how many it may have, in 1..=the pool's rows. `siblings`: how many drafts are drawn from each, 1 for chains. `probs`: above 0
/// the probabilities that drafts are drawn from are written as well, 4 bytes for each id of each row.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_add_draft_batch(
    pool: Option<&mut Pool>,
    rows: usize,
    siblings: usize,
    probs: u32,
    batch: Option<&mut MaybeUninit<i64>>,
) -> Code {
    call(|| {
        let (pool, batch) = (require("pool", pool)?, require("batch", batch)?);
        let limits = DraftBatchLimits { rows, siblings, probs: probs > 0 };
        let made = Some(pool.on_device()?.on_device()?.add_draft_batch(limits)?);
        let number = match pool.draft_batches.iter().position(Option::is_none) {
            Some(vacant) => vacant,
            None => {
                pool.draft_batches.push(None);
                pool.draft_batches.len() - 1
            }
        };
        pool.draft_batches[number] = made;
        batch.write(number as i64);
        Ok(())
    })
}

/// Frees a batch. Graphs of the program that hold it must not run any more.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_remove_draft_batch(pool: Option<&mut Pool>, batch: i64) -> Code {
    call(|| {
        let pool = require("pool", pool)?;
        let (there, known) = batch_of(Some(&mut *pool), batch)?;
        there.on_device()?.remove_draft_batch(known)?;
        pool.draft_batches[batch as usize] = None;
        Ok(())
    })
}

/// Says for which slots the next gumball_pool_enqueue_draft draws drafts from the rows of a batch, those of captured graphs included.
///
/// `slots`: one for each of `rows` rows, -1 for padding; a slot may stand there several times. `counts`: how many drafts are in front of
/// each row, in 0..64; NULL: none of any. `mode`: a gumball_verify_mode, that which the drafts will be judged by. Lists in the options have
/// one element for each row; a forced token is the only draft of its row. Waits for nothing, and copies nothing if it is what was assigned
/// already. The rows of a slot that is released are padding until they are assigned again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_assign_draft(
    pool: Option<&mut Pool>,
    batch: i64,
    slots: *const i32,
    counts: *const u32,
    rows: usize,
    mode: i64,
    options: *const StepOptions,
) -> Code {
    call(|| {
        let (pool, batch) = batch_of(pool, batch)?;
        let mode = read_mode(mode, 1.0, 1.0)?;
        // SAFETY: the C caller ensures that `slots` is NULL or has one slot per row.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `counts` is NULL or has one number per row.
        let counts = unsafe { list("counts", counts, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists have
        // one element per row.
        let options = unsafe { read_options(options, rows) }?;
        let (counts, of) = (counts.unwrap_or_default(), Some(batch));
        Ok(pool.assign(&options.assigned(Batch { counts, mode, of, ..Batch::of(slots) })?)?)
    })
}

/// Draws drafts from the rows of a draft model, for what is assigned to a batch. It only launches kernels, and returns before the device is
/// done. Nothing of a sequence changes; the requests are as the device has them when it gets there.
///
/// `paths`: for each row a line of ids in the device's memory, `width` of `bits` bits (32 or 64), `stride` ids from one line to the next;
/// those in front of the row are the first ones. NULL if none are in front of any row. Behind a path that has an id outside the
/// vocabulary, such as -1, there are no drafts. `variant`, and a graph that the program captures: as for
/// gumball_pool_enqueue_variant; NULL: kernels that serve every request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_draft(
    pool: Option<&mut Pool>,
    batch: i64,
    input: *const DeviceRows,
    paths: *const c_void,
    width: usize,
    stride: usize,
    bits: i64,
    variant: *const c_char,
) -> Code {
    call(|| {
        let (pool, batch) = batch_of(pool, batch)?;
        // SAFETY: the C caller ensures that `variant` is NULL or ends with a NUL.
        let variant = unsafe { self::variant(variant) }?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the drafts are drawn.
        let (of_rows, masks) = unsafe { device_input(input) }?;
        let dtype = match bits {
            32 => IntType::I32,
            64 => IntType::I64,
            other => return Err(Failure::out_of_range("bits", other, "32 or 64")),
        };
        let rows = pool.on_device()?.assigned(Some(batch))?.rows;
        // SAFETY: the C caller ensures that `paths` is NULL or the device address of a line of ids for each row, which
        // stay there until the drafts are drawn.
        let lines = |address| unsafe { DeviceIntMatrix::new(address, dtype, rows, width, stride) };
        let lines = (!paths.is_null()).then(|| lines(paths.addr() as u64)).transpose()?;
        Ok(pool.on_device()?.enqueue_variant(&[Work::Draft(batch, of_rows, masks, lines)], variant)?)
    })
}

/// Waits for what was enqueued so far and copies the last drafts of a batch.
///
/// `drafts`: for each assigned row as many ids as the batch has siblings, -1 where there are no more. `probs`: NULL, or `vocab` floats for
/// each row: the probabilities that the drafts were drawn from, zeros for padding; only of a batch that writes them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_fetch_drafts(
    pool: Option<&mut Pool>,
    batch: i64,
    drafts: *mut i32,
    probs: *mut f32,
) -> Code {
    call(|| {
        let (pool, batch) = batch_of(pool, batch)?;
        let (rows, siblings) = (pool.on_device()?.assigned(Some(batch))?.rows, batch.limits().siblings);
        // SAFETY: the C caller ensures that `drafts` is NULL or has `siblings` places for each row.
        let drafts = unsafe { out_slice("drafts", drafts, rows.saturating_mul(siblings)) }?;
        let (mut out, places) = match probs.is_null() {
            true => (Proposals::new(siblings), 0),
            false => (Proposals::with_probs(siblings), rows.saturating_mul(pool.vocab())),
        };
        // SAFETY: the C caller ensures that `probs`, if not NULL, has `vocab` places for each row.
        let probs = unsafe { out_slice("probs", probs, places) }?;
        pool.on_device()?.fetch_drafts(batch, &mut out)?;
        drafts.write_copy_of_slice(out.ids());
        probs.write_copy_of_slice(out.probs());
        Ok(())
    })
}

/// Returns where a batch's drafts lie in the device's memory, `siblings` of int32_t for each assigned row. It never changes. NULL after an
/// error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_drafts_address(pool: Option<&mut Pool>, batch: i64) -> *const c_void {
    call_or(std::ptr::null(), || {
        let (pool, batch) = batch_of(pool, batch)?;
        // The address is one of the device's, so the pointer has no provenance on the host.
        Ok(std::ptr::without_provenance(pool.on_device()?.drafts_address(batch)? as usize))
    })
}

/// Returns where the probabilities that a batch's drafts were drawn from lie in the device's memory: `vocab` floats for each assigned row,
/// and writes to `stride` how many elements lie from one row to the next. It never changes. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_draft_probs_address(
    pool: Option<&mut Pool>,
    batch: i64,
    stride: Option<&mut MaybeUninit<usize>>,
) -> *const c_void {
    call_or(std::ptr::null(), || {
        let stride = require("stride", stride)?;
        let (pool, batch) = batch_of(pool, batch)?;
        let rows = pool.on_device()?.draft_probs(batch)?;
        stride.write(rows.stride());
        Ok(std::ptr::without_provenance(rows.address() as usize))
    })
}
