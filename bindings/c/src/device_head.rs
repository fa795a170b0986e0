//! LM heads in a device's memory, and steps and verifications from hidden states there.

use std::ffi::c_void;
use std::sync::Arc;

use gumball_engine::{Device as EngineDevice, DeviceMatrix, Error, HeadCounts as Counts, Rows, Work};

use crate::device::Device;
use crate::device_drafts::{DeviceDrafts, device_drafts};
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, end, make, require};
use crate::graph::{DeviceRows, device_input};
use crate::head::{GivenShape, Head, HeadConfig, own_names, read_shape};
use crate::hidden::HeadCounts;
use crate::logits::dtype;
use crate::pool::Pool;
use crate::versioned::{read, write};

/// The rows of a step, unless somebody says otherwise: those of a pool.
const ROWS: usize = 256;

/// An LM head in a device's memory, for the pools that were made with the same gumball_device. One thread at a time uses it, whichever pools it serves.
///
/// What it computes are the tokens and logprobs of the head of the same kind on the host, bit for bit, but for a fast head, whose logits are the device's own: the same
/// in any batch, perhaps others on another device.
#[derive(Debug)]
pub struct DeviceHead {
    pub(crate) inner: gumball_engine::DeviceHead<'static>,
    device: EngineDevice,
}

impl DeviceHead {
    /// Refuses the head for a pool that was made with another device, on whose stream nothing would wait for the head's other steps.
    pub(crate) fn check(&self, pool: &gumball_engine::Pool) -> Result<()> {
        if pool.device().is_some_and(|device| Arc::ptr_eq(self.device.runtime(), device.runtime())) {
            return Ok(());
        }
        let allowed = "one that was made with the gumball_device of the pool";
        Err(Failure::out_of_range("head", "made with another gumball_device", allowed))
    }
}

fn rows_of(rows: usize) -> usize {
    if rows == 0 { ROWS } else { rows }
}

/// Returns weights in the device's memory as the engine takes them.
///
/// # Safety
/// `weights` is NULL or the device address of `vocab` rows of `width` weights. The program keeps them there as long as the head that reads them.
unsafe fn weights_there(
    weights: *const c_void,
    given: i32,
    (vocab, width): (usize, usize),
) -> Result<DeviceMatrix<'static>> {
    if weights.is_null() {
        return Err(Failure::null("weights"));
    }
    // SAFETY: the caller ensures that the weights lie there.
    let rows = unsafe { DeviceMatrix::new(weights.addr() as u64, dtype(given)?, vocab, width, width) };
    Ok(rows.map_err(|error| error.with_parameter(|name| if name == "logits" { "weights" } else { name }))?)
}

/// Makes an exact head, or a fast one, over weights that lie in a device's memory. NULL after an error.
///
/// `config`: `weights` is their address there; a CUdeviceptr is cast. Each step reads them, so they stay as long as the head, and may be written between steps. `kind` is
/// GUMBALL_HEAD_EXACT; `level`, `file` and `most_rows` are left zero. `bias` is memory of the host and is copied. `rows`: how many hidden states a step may have, in 1..2^31; 0: 256.
/// The head has memory for their logits, 4 bytes for each id of each. `fast`: above 0 the tensor cores compute the logits; not of weights in GUMBALL_F32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_device_head_new(
    device: Option<&Device>,
    config: *const HeadConfig,
    rows: usize,
    fast: u32,
) -> Option<Box<DeviceHead>> {
    make(|| {
        let device = require("device", device)?.inner.clone();
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let given = unsafe { read("config", config) }?;
        if given.kind != 0 {
            let allowed = "GUMBALL_HEAD_EXACT; gumball_device_head_of copies heads of other kinds";
            return Err(Failure::out_of_range("kind", given.kind, allowed));
        }
        let host_only = [
            ("level", !given.level.is_null()),
            ("file", !given.file.is_null()),
            ("most_rows", given.most_rows > 0),
        ];
        if let Some((parameter, _)) = host_only.into_iter().find(|(_, is_set)| *is_set) {
            let reason = "it is for heads on the host; leave it zero";
            return Err(Error::Conflict { parameter, other: "device", reason }.into());
        }
        // SAFETY: the C caller ensures that `bias` is NULL or has a float for each id.
        let GivenShape { bias, scaling, shape } = unsafe { read_shape(&given) }?;
        // SAFETY: the C caller ensures that `weights` is the address of that many weights, which stay there as long as the head.
        let weights = unsafe { weights_there(given.weights, given.dtype, shape) }?;
        let head = gumball_engine::DeviceHead::over(&device, weights, bias, scaling, rows_of(rows));
        let head = head.map_err(own_names)?;
        let inner = if fast > 0 { head.fast().map_err(own_names)? } else { head };
        Ok(DeviceHead { inner, device })
    })
}

/// Copies a head of the host to a device: of the same kind, with the same results. Returns when it is there; the head of the host may end then. NULL after an error.
///
/// `rows`: as for gumball_device_head_new. `weights`: the address in the device's memory of the same weights, of the same type and in the order of ids, which are
/// then read there as long as the head lives, and only what the host's head has derived from them is copied. Of a certified or clustered head nobody may write them
/// meanwhile. NULL: all of the head is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_device_head_of(
    device: Option<&Device>,
    head: Option<&Head>,
    rows: usize,
    weights: *const c_void,
) -> Option<Box<DeviceHead>> {
    make(|| {
        let (device, head) = (require("device", device)?.inner.clone(), require("head", head)?);
        let rows = rows_of(rows);
        let inner = if weights.is_null() {
            gumball_engine::DeviceHead::new(&device, head.get(), rows)?
        } else {
            let (given, shape) = (head.dtype() as i32, (head.get().vocab(), head.get().width()));
            // SAFETY: the C caller ensures that `weights` is the address of the head's weights, which stay there as long as the head.
            let there = unsafe { weights_there(weights, given, shape) }?;
            gumball_engine::DeviceHead::over_weights_of(&device, head.get(), there, rows)?
        };
        // Waits for what was copied.
        inner.counts()?;
        Ok(DeviceHead { inner, device })
    })
}

/// Ends a head, when its steps are done. Graphs that have it must not be replayed any more. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_device_head_free(head: Option<Box<DeviceHead>>) {
    end(head);
}

/// Waits for the device, and writes what a head there has done since it was made, for all pools. `weight_reads`, `screen_reads` and `centroid_reads` are 0: a device does not count
/// them. Set the `struct_size` of `counts` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_device_head_counts(
    head: Option<&DeviceHead>,
    counts: *mut HeadCounts,
) -> Code {
    call(|| {
        let seen: Counts = require("head", head)?.inner.counts()?;
        // SAFETY: the C caller ensures that `counts` is NULL or points to the bytes that its `struct_size` names,
        // which nobody else uses.
        unsafe { write("counts", counts, HeadCounts::of(&seen)) }
    })
}

/// As gumball_pool_enqueue, from hidden states in the device's memory, for the rows that gumball_pool_assign was given.
///
/// `head`: one of the pool's vocabulary and gumball_device. `input`: hidden states where that says logits, and the head's width for `vocab`; the options of the assignment have no
/// `row_indices`. A graph of the program that captures the step reads the head, which must then outlive its replays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_hidden(
    pool: Option<&mut Pool>,
    head: Option<&DeviceHead>,
    input: *const DeviceRows,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?.on_device()?, require("head", head)?);
        head.check(pool)?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the step is done.
        let (rows, masks) = unsafe { device_input(input) }?;
        let rows = Rows::hidden(&head.inner, rows.matrix());
        Ok(pool.enqueue(&[Work::Step(rows, masks)]).map_err(own_names)?)
    })
}

/// As gumball_pool_enqueue_verify, from hidden states in the device's memory, for the requests that gumball_pool_assign_drafts was given.
///
/// `head` and `input`: as for gumball_pool_enqueue_hidden, with a hidden state for each request and each draft.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_verify_hidden(
    pool: Option<&mut Pool>,
    head: Option<&DeviceHead>,
    input: *const DeviceRows,
    drafts: *const DeviceDrafts,
) -> Code {
    call(|| {
        let (pool, head) = (require("pool", pool)?.on_device()?, require("head", head)?);
        head.check(pool)?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the verification is done.
        let (rows, masks) = unsafe { device_input(input) }?;
        // SAFETY: the C caller ensures that `drafts` has the size it states and that its device memory stays
        // until the verification is done.
        let drafts = unsafe { device_drafts(drafts, pool.vocab()) }?;
        let rows = Rows::hidden(&head.inner, rows.matrix());
        Ok(pool.enqueue(&[Work::Verify(rows, masks, drafts)]).map_err(own_names)?)
    })
}
