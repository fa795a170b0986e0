//! Steps of a pool on a device, over logits in its memory: enqueued, captured, replayed, and their outputs.

use std::ffi::c_void;
use std::mem::offset_of;

use gumball_engine::{Batch, DeviceGraph, DeviceMasks, DeviceMatrix, Masks, Rows, Work};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, end, make, require, slice};
use crate::logits::{dtype, kind, stride};
use crate::options::{StepOptions, read_options};
use crate::outputs::{Layout, Outputs};
use crate::pool::Pool;
use crate::versioned::{VersionedStruct, read, write};

/// Steps that were captured, to be replayed with one call.
#[derive(Debug)]
pub struct Graph {
    pub(crate) inner: DeviceGraph<'static>,
    pub(crate) pool: u64,
}

/// What a step reads of the device's memory. It stays there, and as it is, until the step is done; for a captured one, until
/// the graph is replayed no more.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    /// sizeof(gumball_device_input).
    pub struct_size: usize,
    /// The first logit of the first row; a CUdeviceptr is cast.
    pub logits: *const c_void,
    /// The number of rows.
    pub rows: usize,
    /// The number of logits in a row.
    pub vocab: usize,
    /// How many elements after a row the next one begins; 0: vocab.
    pub stride: usize,
    /// Grammar bitmasks of all rows, in place of those that were assigned; NULL: none.
    pub masks: *const c_void,
    /// The number of rows of `masks`.
    pub mask_rows: usize,
    /// The number of words in a row. Where `masks` is given, rows of 0 words forbid every id.
    pub mask_width: usize,
    /// How many words after a row the next one begins; 0: mask_width.
    pub mask_stride: usize,
    /// GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16.
    pub dtype: i32,
    /// GUMBALL_LOGITS or GUMBALL_PROBABILITIES; from step to step it may change. So wide that no padding of the struct as it
    /// was becomes it.
    pub kind: i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for DeviceRows {
    const NAME: &'static str = "gumball_device_input";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Returns the rows of an input, and their masks, as the engine takes them.
///
/// # Safety
/// `input` is NULL or a struct with the size it states. Its rows and masks stay in the device's memory,
/// unchanged, as long as steps read them.
pub(crate) unsafe fn device_input(input: *const DeviceRows) -> Result<(Rows<'static>, Masks<'static>)> {
    // SAFETY: the caller ensures that `input` is NULL or points to the bytes that its `struct_size` names.
    let input = unsafe { read("input", input) }?;
    if input.logits.is_null() {
        return Err(Failure::null("logits"));
    }
    let (address, rows, vocab) = (input.logits.addr() as u64, input.rows, input.vocab);
    let row_stride = stride(input.stride, vocab);
    // SAFETY: the caller ensures that `logits` is the device address of these rows, unchanged as long as
    // steps read them.
    let logits = unsafe { DeviceMatrix::new(address, dtype(input.dtype)?, rows, vocab, row_stride) }?;
    let logits = logits.with_kind(kind(input.kind)?);
    let (address, rows, width) = (input.masks.addr() as u64, input.mask_rows, input.mask_width);
    let row_stride = stride(input.mask_stride, width);
    let masks = match address {
        0 => Masks::None,
        // SAFETY: the caller ensures that `masks` is the device address of these masks, unchanged as long as
        // steps read them.
        _ => unsafe { DeviceMasks::new(address, rows, width, row_stride) }?.into(),
    };
    Ok((logits.into(), masks))
}

/// Says what the rows of the next steps go by, those of captured graphs included: slots as for gumball_pool_step; masks,
/// forced tokens and row_indices from the options. A hook is an error: it runs on the host. So is a `kind`, which an input has.
///
/// Waits for nothing, and copies nothing if it is what they go by already. A graph of the program's own must not be under
/// capture on the stream, unless nothing changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_assign(
    pool: Option<&mut Pool>,
    slots: *const i32,
    rows: usize,
    options: *const StepOptions,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        // SAFETY: the C caller ensures that `slots` has `rows` slots.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        Ok(pool.assign(&options.assigned(Batch::of(slots))?)?)
    })
}

/// Enqueues a step of the rows that were assigned: launches and nothing else. Returns before the device is done.
///
/// It allocates nothing there. It may lie in a graph that the program captures on the device's stream, with kernels that serve every
/// request; gumball_pool_enqueue_variant captures fewer. Then gumball_pool_reserve_replays is to be called before replays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue(pool: Option<&mut Pool>, input: *const DeviceRows) -> Code {
    call(|| {
        let pool = require("pool", pool)?.on_device()?;
        // SAFETY: the C caller ensures that `input` has the size it states and that its device memory stays
        // until the step is done.
        let (rows, masks) = unsafe { device_input(input) }?;
        Ok(pool.enqueue(&[Work::Step(rows, masks)])?)
    })
}

/// Captures a step for each input, to be replayed in this order; `inputs` points to pointers to them. Nothing runs yet. NULL
/// after an error.
///
/// Rows go by what is assigned at the time of a replay: requests can be admitted, released and assigned in between, as long
/// as their number stays, and whether there are row_indices and masks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_capture(
    pool: Option<&mut Pool>,
    inputs: *const *const DeviceRows,
    steps: usize,
) -> Option<Box<Graph>> {
    make(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `inputs` has `steps` pointers.
        let inputs = unsafe { slice("inputs", inputs, steps) }?;
        // SAFETY: the C caller ensures that each input has the size it states and that its device memory
        // outlives the graph's replays.
        let inputs = inputs.iter().map(|input| unsafe { device_input(*input) });
        let work = inputs.map(|input| input.map(|(rows, masks)| Work::Step(rows, masks)));
        let work = work.collect::<Result<Vec<_>>>()?;
        Ok(Graph { pool: pool.id, inner: pool.on_device()?.capture(&work)? })
    })
}

/// Enqueues the steps of a graph that this pool captured: one call, whatever their number. What is assigned has the shape it
/// had then.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_replay(pool: Option<&mut Pool>, graph: Option<&Graph>) -> Code {
    call(|| {
        let (pool, graph) = (require("pool", pool)?, require("graph", graph)?);
        if graph.pool != pool.id {
            return Err(Failure::out_of_range(
                "graph",
                "that of another pool",
                "one that this pool captured",
            ));
        }
        Ok(pool.on_device()?.replay(&graph.inner)?)
    })
}

/// Returns how many steps a replay takes; 0 after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_graph_steps(graph: Option<&Graph>) -> usize {
    call_or(0, || Ok(require("graph", graph)?.inner.steps()))
}

/// Ends a graph, before or after its pool, when its replays are done. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_graph_free(graph: Option<Box<Graph>>) {
    end(graph);
}

/// Waits for the steps enqueued so far and copies what the last one came to into the outputs.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_fetch(pool: Option<&mut Pool>, outputs: Option<&mut Outputs>) -> Code {
    call(|| {
        let (pool, outputs) = (require("pool", pool)?, require("outputs", outputs)?);
        Ok(pool.on_device()?.fetch(&mut outputs.inner)?)
    })
}

/// Returns where the outputs of the last step lie in the device's memory: the same address all the pool's life. The tokens
/// come first, so a model can read them there without the host. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_outputs_address(pool: Option<&mut Pool>) -> *const c_void {
    call_or(std::ptr::null(), || {
        let address = require("pool", pool)?.on_device()?.on_device()?.outputs_address();
        // The address is one of the device's, so the pointer has no provenance on the host.
        Ok(std::ptr::without_provenance(address as usize))
    })
}

/// Tells how the outputs of the last step lie there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_outputs_layout(pool: Option<&mut Pool>, out: *mut Layout) -> Code {
    call(|| {
        let layout = require("pool", pool)?.on_device()?.on_device()?.outputs_layout();
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, Layout::of(layout)) }
    })
}
