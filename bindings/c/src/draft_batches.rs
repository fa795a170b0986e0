//! Batches of rows of a draft model on a pool's device: made, ended, and their drafts read.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use gumball_engine::unstable::{DraftBatch, DraftBatchLimits, OnDevice};

use crate::drafts::Proposals;
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, require};
use crate::matrix::{Dtype, IntType, Ints, Matrix, Memory};
use crate::pool::Pool;

pub(crate) fn batch_of(pool: &mut Pool, number: i64) -> Result<(OnDevice<'_>, DraftBatch)> {
    let index = number.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    let known = index.and_then(|index| pool.draft_batches.get(index).copied().flatten());
    let pool = pool.inner.on_device()?;
    match known {
        Some(known) => Ok((pool, known)),
        None => Err(Failure::out_of_range("draft_batch", number, "a batch of drafts that this pool has")),
    }
}

/// Makes a batch of rows of a draft model in a pool on a device, and tells its number, from 1. `rows`: how
/// many it may have, in 1..=the pool's rows. `siblings`: how many drafts are drawn from each, 1 for chains.
/// `probs`: above 0 the probabilities that they are drawn from are written as well.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_add_draft_batch(
    pool: Option<&mut Pool>,
    rows: usize,
    siblings: usize,
    probs: u32,
    draft_batch: Option<&mut MaybeUninit<i64>>,
) -> Code {
    call(|_| {
        let (pool, number) = (require("pool", pool)?, require("draft_batch", draft_batch)?);
        let limits = DraftBatchLimits { rows, siblings, probs: probs > 0 };
        let made = pool.inner.on_device()?.add_draft_batch(limits)?;
        pool.draft_batches.push(Some(made));
        number.write(pool.draft_batches.len() as i64);
        Ok(())
    })
}

/// Frees a batch. Graphs of the program that hold it must not run any more.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_remove_draft_batch(pool: Option<&mut Pool>, draft_batch: i64) -> Code {
    call(|_| {
        let pool = require("pool", pool)?;
        let (mut there, known) = batch_of(pool, draft_batch)?;
        there.remove_draft_batch(known)?;
        pool.draft_batches[draft_batch as usize - 1] = None;
        Ok(())
    })
}

/// Waits for all work that was enqueued before, and copies the last drafts of a batch; `drafts` has the
/// batch's `siblings`, and probabilities only of a batch that writes them.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_fetch_drafts(
    pool: Option<&mut Pool>,
    draft_batch: i64,
    drafts: *const Proposals,
) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let vocab = pool.inner.vocab();
        let (mut there, batch) = batch_of(pool, draft_batch)?;
        let to = c.plain("drafts", drafts)?;
        let rows = there.assigned(Some(batch))?.rows;
        let mut drawn = to.places(c, rows, vocab)?;
        there.fetch_drafts(batch, &mut drawn.inner)?;
        drawn.write();
        Ok(())
    })
}

/// Tells where a batch's drafts lie in the device's memory, a line for each assigned row, and, unless that is
/// NULL, `probs`, of no rows if it writes none.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_drafts(
    pool: Option<&mut Pool>,
    draft_batch: i64,
    ids: Option<&mut MaybeUninit<Ints>>,
    probs: Option<&mut MaybeUninit<Matrix>>,
) -> Code {
    call(|_| {
        let (pool, ids) = (require("pool", pool)?, require("ids", ids)?);
        let width = pool.inner.vocab();
        let (there, batch) = batch_of(pool, draft_batch)?;
        let (rows, limits, memory) =
            (there.assigned(Some(batch))?.rows, batch.limits(), Memory::GUMBALL_DEVICE as i32);
        // Addresses are the device's, so the pointers have no provenance on the host.
        let at = |address: u64| ptr::without_provenance::<c_void>(address as usize);
        let (data, siblings, dtype) =
            (at(there.drafts_address(batch)?), limits.siblings, IntType::GUMBALL_I32 as i32);
        ids.write(Ints { data, rows, width: siblings, stride: siblings, dtype, memory });
        if let Some(probs) = probs {
            let drawn = limits.probs.then(|| there.draft_probs(batch)).transpose()?;
            let (data, rows, stride) =
                drawn.map_or((ptr::null(), 0, width), |drawn| (at(drawn.address()), rows, drawn.stride()));
            probs.write(Matrix { data, rows, width, stride, dtype: Dtype::GUMBALL_F32 as i32, memory });
        }
        Ok(())
    })
}
