//! Operators on whole matrices, without requests: softmax, renormalised probabilities, masked rows.

use std::ffi::c_char;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_engine::{DeviceOperators, PerRow, RowParams as Columns, SamplingParams};

use crate::device::Device;
use crate::device_operators;
use crate::error::{Code, Result};
use crate::ffi::{call, end, fill, make, optional_out_slice, optional_text, require};
use crate::logits::Logits;
use crate::matrix::{Place, RowsOut, read_place};
use crate::options::list;
use crate::params::Params;
use crate::versioned::{VersionedStruct, read_or_default};

/// Operators over rows of logits or probabilities: for engines that hold probabilities or must return them, and bring seeds
/// and positions themselves. What a row comes to is what it would in a pool.
///
/// They keep buffers from call to call, and nothing else; several threads may use them at the same time.
///
/// Those of a device take rows, lists, and room for what comes out, that lie in the device's memory, and structs on the host. A call
/// is launches on the device's stream and returns before they are done; it may be captured in a graph.
/// What lies there is never looked at: a value in a list that is outside its range counts as the nearest that is allowed.
#[derive(Debug)]
pub struct Operators {
    at: At,
}

/// The host or the device on which operators work.
#[derive(Debug)]
enum At {
    Host(gumball_engine::Operators),
    Device(Box<Mutex<DeviceOperators>>),
}

impl Operators {
    /// Returns the host's operators.
    ///
    /// # Panics
    /// If these are a device's.
    pub(crate) fn host(&self) -> &gumball_engine::Operators {
        match &self.at {
            At::Host(operators) => operators,
            At::Device(_) => unreachable!("device() was asked before"),
        }
    }

    /// Returns the device's operators, locked, so that calls from several threads take turns; `None` on the
    /// host.
    pub(crate) fn device(&self) -> Option<MutexGuard<'_, DeviceOperators>> {
        match &self.at {
            At::Host(_) => None,
            At::Device(operators) => Some(operators.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// What operators are made for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OperatorsConfig {
    /// sizeof(gumball_operators_config).
    pub struct_size: usize,
    /// How many threads take the rows, in 1..=1024: 1 is the caller's; 0: those of the machine, which are shared.
    pub threads: usize,
    /// The SIMD level, by its name; NULL: the machine's best. What comes out is the same.
    pub level: *const c_char,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for OperatorsConfig {
    const NAME: &'static str = "gumball_operators_config";
    const LEAST: usize = offset_of!(Self, level) + size_of::<*const c_char>();
}

/// What the rows of a batch go by. Lists have one element a row of the matrix; NULL: the parameters' value, for all.
#[repr(C)]
#[derive(Debug)]
pub struct RowParams {
    /// sizeof(gumball_row_params).
    pub struct_size: usize,
    /// What all rows have in common; NULL: neutral parameters. What speaks of a history finds it empty; seed and logprobs are
    /// not read.
    pub params: *const Params,
    /// The temperature of each row.
    pub temperature: *const f32,
    /// The top_k of each row.
    pub top_k: *const i64,
    /// The top_p of each row.
    pub top_p: *const f32,
    /// The min_p of each row.
    pub min_p: *const f32,
}

impl Clone for RowParams {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for RowParams {}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only a number and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for RowParams {
    const NAME: &'static str = "gumball_row_params";
    const LEAST: usize = offset_of!(Self, min_p) + size_of::<*const f32>();
}

/// Makes operators of the host. `config`: NULL is the default. NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_new(config: *const OperatorsConfig) -> Option<Box<Operators>> {
    make(|| {
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let config = unsafe { read_or_default("config", config) }?;
        // SAFETY: the C caller ensures that `level` is NULL or ends with a NUL.
        let level = unsafe { optional_text("level", config.level) }?;
        let level = level.map(str::parse).transpose()?;
        let threads = (config.threads > 0).then_some(config.threads);
        Ok(Operators { at: At::Host(gumball_engine::Operators::new(level, threads)?) })
    })
}

/// Makes operators of a device, in the order of its stream. NULL after an error.
///
/// Bans and biases are GUMBALL_UNAVAILABLE there. Graphs captured with the same operators share memory, and are not to be
/// replayed side by side.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_operators_new_on_device(device: Option<&Device>) -> Option<Box<Operators>> {
    make(|| {
        let device = require("device", device)?.inner.clone();
        Ok(Operators { at: At::Device(Box::new(Mutex::new(DeviceOperators::new(device)))) })
    })
}

/// Ends operators. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_operators_free(operators: Option<Box<Operators>>) {
    end(operators);
}

/// Writes the softmax of each row at its temperature.
///
/// The maximum is subtracted before the temperature divides, so that logits of +-1e6 at 0.01 stay finite; equal logits have equal
/// probabilities. At temperature 0 the first of the largest logits has 1. A row without a logit above -inf is all 0.
///
/// `temperature`: of all rows, 0 or in (0, 2^100]; `temperatures`: of each row, or NULL. `out`: as many rows, of any type, in memory
/// of their own; or the same rows, which are changed in place then. `statuses`: R of bits of gumball_status, or NULL. On a device
/// `out` is float or of the logits' type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_softmax(
    operators: Option<&Operators>,
    logits: *const Logits,
    temperature: f32,
    temperatures: *const f32,
    out: *const RowsOut,
    statuses: *mut u32,
) -> Code {
    call(|| {
        let operators = require("operators", operators)?;
        if let Some(mut device) = operators.device() {
            // SAFETY: the C caller ensures that `logits` and `out` have the sizes they state. Their rows,
            // `temperatures` and `statuses` lie on the device until the launched work is done.
            return unsafe {
                device_operators::softmax(&mut device, logits, temperature, temperatures, out, statuses)
            };
        }
        let inner = operators.host();
        // SAFETY: the C caller ensures that `logits` and `out` are NULL or structs of their stated sizes,
        // whose rows are there; nobody else uses those of `out`.
        let place = unsafe { read_place(logits, out) }?;
        // SAFETY: the C caller ensures that `temperatures` is NULL or has one f32 per row.
        let each = match unsafe { list("temperatures", temperatures, place.rows()) }? {
            Some(column) => PerRow::Rows(column),
            None => PerRow::All(temperature),
        };
        // SAFETY: the C caller ensures that `statuses` is NULL or has memory for one status per row.
        let statuses = unsafe { optional_out_slice("statuses", statuses, place.rows()) }?;
        let told = match place {
            Place::Apart(logits, out) => inner.softmax(logits, each, out)?,
            Place::Same(rows) => inner.softmax_in_place(rows, each)?,
        };
        fill(statuses, told.iter().map(|status| status.0));
        Ok(())
    })
}

/// Writes the distribution that each row's token is drawn from: of logits the softmax after temperature, bans and filters, of
/// probabilities what is kept of them, renormalised to a sum of 1.
///
/// The filters are those of the parameters: top_k, top_p, min_p, each alone, one after the other, joint, and all others. XTC acts
/// as in draw 0 of seed 0 at position 0. `out` and `statuses`: as for gumball_operators_softmax.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_probabilities(
    operators: Option<&Operators>,
    rows: *const Logits,
    params: *const RowParams,
    out: *const RowsOut,
    statuses: *mut u32,
) -> Code {
    // SAFETY: the C caller ensures that `rows`, `params` and `out` are NULL or structs of their stated sizes,
    // whose rows and lists are there. `statuses` is NULL or has memory for one status per row.
    call(|| unsafe { write(operators, rows, params, out, statuses, false) })
}

/// Writes each row with only the tokens that its filters and bans keep: other logits are -inf, other probabilities 0. Rows of
/// only -inf stay as they are. What is kept is what counts: -0.0 as +0.0, +inf as FLT_MAX.
///
/// `out` and `statuses`: as for gumball_operators_softmax.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_mask_logits(
    operators: Option<&Operators>,
    rows: *const Logits,
    params: *const RowParams,
    out: *const RowsOut,
    statuses: *mut u32,
) -> Code {
    // SAFETY: the C caller ensures that `rows`, `params` and `out` are NULL or structs of their stated sizes,
    // whose rows and lists are there. `statuses` is NULL or has memory for one status per row.
    call(|| unsafe { write(operators, rows, params, out, statuses, true) })
}

/// Writes rows of probabilities, or masked rows, on the host or on the operators' device.
///
/// # Safety
/// `rows`, `params` and `out` are NULL or structs of their stated sizes. Their rows are there, on the
/// operators' device or on the host, and their lists and `statuses` are NULL or have one element per row.
/// Nobody else uses what is written.
unsafe fn write(
    operators: Option<&Operators>,
    rows: *const Logits,
    params: *const RowParams,
    out: *const RowsOut,
    statuses: *mut u32,
    masked: bool,
) -> Result<()> {
    let operators = require("operators", operators)?;
    if let Some(mut device) = operators.device() {
        // SAFETY: the caller ensures that `rows`, `params` and `out` have the sizes they state. Their rows
        // and lists and `statuses` lie on the device until the launched work is done.
        return unsafe { device_operators::write(&mut device, rows, params, out, statuses, masked) };
    }
    let inner = operators.host();
    // SAFETY: the caller ensures that `rows` and `out` are NULL or structs of their stated sizes, whose rows
    // are there; nobody else uses those of `out`.
    let place = unsafe { read_place(rows, out) }?;
    let neutral = SamplingParams::default();
    // SAFETY: the caller ensures that `params` is NULL or a struct of its stated size, whose lists have one
    // element per row.
    let columns = unsafe { read_columns(params, place.rows(), &neutral) }?;
    // SAFETY: the caller ensures that `statuses` is NULL or has memory for one status per row.
    let statuses = unsafe { optional_out_slice("statuses", statuses, place.rows()) }?;
    let told = match (masked, place) {
        (true, Place::Same(rows)) => inner.mask_logits_in_place(rows, &columns),
        (true, Place::Apart(rows, out)) => inner.mask_logits(rows, &columns, out),
        (false, Place::Same(rows)) => inner.probabilities_in_place(rows, &columns),
        (false, Place::Apart(rows, out)) => inner.probabilities(rows, &columns, out),
    }?;
    fill(statuses, told.iter().map(|status| status.0));
    Ok(())
}

/// Returns the parameters of rows as the engine takes them.
///
/// # Safety
/// `given` is NULL or a struct with the size it states. Its handle `params` is NULL or alive, and each list
/// is NULL or has one element per row. Nobody writes them for `'a`.
pub(crate) unsafe fn read_columns<'a>(
    given: *const RowParams,
    rows: usize,
    neutral: &'a SamplingParams,
) -> Result<Columns<'a>> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read_or_default("params", given) }?;
    // SAFETY: the caller ensures that `params` is NULL or a live handle that nobody changes for `'a`.
    let common = unsafe { given.params.as_ref() }.map_or(neutral, |params| &params.inner);
    Ok(Columns {
        common,
        // SAFETY: the caller ensures that `temperature` is NULL or has one f32 per row.
        temperature: unsafe { list("temperature", given.temperature, rows) }?.unwrap_or_default(),
        // SAFETY: the caller ensures that `top_k` is NULL or has one i64 per row.
        top_k: unsafe { list("top_k", given.top_k, rows) }?.unwrap_or_default(),
        // SAFETY: the caller ensures that `top_p` is NULL or has one f32 per row.
        top_p: unsafe { list("top_p", given.top_p, rows) }?.unwrap_or_default(),
        // SAFETY: the caller ensures that `min_p` is NULL or has one f32 per row.
        min_p: unsafe { list("min_p", given.min_p, rows) }?.unwrap_or_default(),
    })
}
