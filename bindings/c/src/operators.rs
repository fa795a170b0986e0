//! Operators on whole matrices, without requests: softmax, renormalised probabilities, masked rows, draws,
//! and how far a row is from another token.

use std::ffi::c_char;

use gumball_engine::{Error, PerRow, SamplingParams};

use crate::columns::Arrays;
use crate::device::Device;
use crate::draws::{Draws, Halves, RowParams, read_row_params};
use crate::error::{Code, Result, refuse};
use crate::ffi::{Caller, call, end, make, require};
use crate::matrix::{Matrix, Memory};
use crate::rows::Rows;

/// Operators over rows of logits or probabilities, for engines that hold probabilities or must return them,
/// and choose seeds and positions themselves. The result of a row is the one that it has in a pool.
///
/// Of operators of a device, the rows, lists and output arrays of a call lie in the device's memory, and its
/// structs on the host. A call launches kernels on the device's stream and returns before they are done. It
/// may be captured in a graph after a first call, which allocates memory. The values of lists are not checked
/// there: a value outside its range counts as the nearest value inside.
#[derive(Debug)]
pub struct Operators {
    pub(crate) inner: gumball_engine::Operators,
}

impl Operators {
    pub(crate) fn arrays<'a>(&self, c: Caller<'a>) -> Arrays<'a> {
        let memory = if self.inner.is_on_device() { Memory::GUMBALL_DEVICE } else { Memory::GUMBALL_HOST };
        Arrays { c, memory }
    }
}

/// Makes operators. `device`: where they work, in the order of its stream; NULL: on the host. Bans and biases
/// are GUMBALL_UNAVAILABLE on a device. Graphs captured with the same operators share memory and must not be
/// replayed at the same time. `threads` and `level`: as in gumball_pool_config, of the host.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_new(
    device: Option<&Device>,
    threads: usize,
    level: *const c_char,
) -> Option<Box<Operators>> {
    make(|c| {
        let level = c.optional_text("level", level)?.map(str::parse).transpose()?;
        let threads = (threads > 0).then_some(threads);
        let inner = match device {
            None => gumball_engine::Operators::new(level, threads)?,
            Some(device) => {
                let of_the_host = [("threads", threads.is_some()), ("level", level.is_some())];
                refuse(of_the_host, "device", "only operators of the host read it; leave it zero")?;
                gumball_engine::Operators::on_device(device.inner.clone())
            }
        };
        Ok(Operators { inner })
    })
}

/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_operators_free(operators: Option<Box<Operators>>) {
    end(operators);
}

/// Writes the softmax of each row at its temperature: at 0 the first of the largest logits has 1. A row
/// without a logit above -inf is all 0.
///
/// `temperature`: of all rows, 0 or in (0, 2^100]; `temperatures`: of each row, or NULL. `out`: as many rows,
/// of any type (on a device float, or the logits'), in memory of their own; or the rows that are read, which
/// are then changed in place. `statuses`: NULL, or a word for each row, for bits of gumball_status.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_softmax(
    operators: Option<&Operators>,
    logits: *const Rows,
    temperature: f32,
    temperatures: *const f32,
    out: *const Matrix,
    statuses: *mut u32,
) -> Code {
    call(|c| {
        let operators = require("operators", operators)?;
        let arrays = operators.arrays(c);
        let (rows, count) = arrays.rows_in_out(logits, out)?;
        let temperatures = arrays.per_row("temperatures", temperatures, count)?;
        let mut statuses = arrays.out("statuses", statuses.cast(), count)?;
        let temperature = temperatures.unwrap_or(PerRow::All(temperature));
        operators.inner.softmax(rows, temperature, statuses.column())?;
        statuses.finish();
        Ok(())
    })
}

/// Writes the distribution that each row's token is drawn from: of logits the softmax after temperature, bans
/// and filters, of probabilities the kept ones, renormalised to a sum of 1. XTC acts as in draw 0 of seed 0
/// at position 0. `out` and `statuses`: as for gumball_operators_softmax.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_probabilities(
    operators: Option<&Operators>,
    rows: *const Rows,
    params: *const RowParams,
    out: *const Matrix,
    statuses: *mut u32,
) -> Code {
    call(|c| write(c, operators, rows, params, out, statuses, false))
}

/// Writes each row with only the tokens that its filters and bans keep: other logits become -inf, other
/// probabilities 0. Rows of only -inf stay as they are. -0.0 is written as +0.0, and +inf as FLT_MAX. `out`
/// and `statuses`: as for gumball_operators_softmax.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_mask_logits(
    operators: Option<&Operators>,
    rows: *const Rows,
    params: *const RowParams,
    out: *const Matrix,
    statuses: *mut u32,
) -> Code {
    call(|c| write(c, operators, rows, params, out, statuses, true))
}

/// Writes rows of probabilities, or masked rows.
fn write(
    c: Caller<'_>,
    operators: Option<&Operators>,
    rows: *const Rows,
    params: *const RowParams,
    out: *const Matrix,
    statuses: *mut u32,
    masked: bool,
) -> Result<()> {
    let operators = require("operators", operators)?;
    let (arrays, neutral) = (operators.arrays(c), SamplingParams::default());
    let (rows, count) = arrays.rows_in_out(rows, out)?;
    let params = read_row_params(arrays, params, count, &neutral)?;
    let mut statuses = arrays.out("statuses", statuses.cast(), count)?;
    match masked {
        true => operators.inner.mask_logits(rows, &params, statuses.column())?,
        false => operators.inner.probabilities(rows, &params, statuses.column())?,
    }
    statuses.finish();
    Ok(())
}

/// Draws a token for each output from a row of logits or of probabilities, after its filters and bans.
///
/// `rows`: L rows. `params`: lists of L, or with `slots` in `draws` of its `size`, or NULL. `tokens`: memory
/// for one token per output; -1 where a row has no token. `statuses`: NULL, or a word for each output. On a
/// device an entry of `row_indices` that is not a row yields -1 and GUMBALL_STATUS_EMPTY.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_sample(
    operators: Option<&Operators>,
    rows: *const Rows,
    params: *const RowParams,
    draws: *const Draws,
    tokens: *mut i32,
    statuses: *mut u32,
) -> Code {
    call(|c| {
        let operators = require("operators", operators)?;
        let (arrays, neutral) = (operators.arrays(c), SamplingParams::default());
        let (rows, count) = arrays.rows(rows)?;
        let draws = c.read("draws", draws)?;
        let (n, from_pools) = (draws.outputs, draws.reads_pools()?);
        if from_pools && !draws.row_indices.is_null() {
            let reason = "slots say what each row reads";
            return Err(Error::Conflict { parameter: "row_indices", other: "slots", reason }.into());
        }
        let row_indices = arrays.per_row("row_indices", draws.row_indices, n)?;
        if row_indices.is_none() && n != count {
            let allowed = format!("one per row, {count}, or any number with row_indices");
            return Err(Error::length("outputs", n, allowed).into());
        }
        let size = if from_pools { draws.size } else { count };
        let params = read_row_params(arrays, params, size, &neutral)?;
        let keyed = Draws { outputs: if from_pools { size } else { n }, ..draws };
        let keys = keyed.keys(arrays)?;
        let mut tokens = arrays.required("tokens", tokens, n)?;
        let mut statuses = arrays.out("statuses", statuses.cast(), n)?;
        let written = tokens.column().expect("it is required");
        if from_pools {
            let mut halves = Halves::default();
            let (keys, high_draws) = draws.offset(arrays, keys, &mut halves)?;
            let rows_per_slot = draws.rows_per_slot.max(1);
            let slots = arrays.per_row("slots", draws.slots, count / rows_per_slot)?;
            let slots = require("slots", slots)?;
            let pools = gumball_engine::PoolSlots { slots, size, rows_per_slot, high_draws };
            operators.inner.sample_from_pools(rows, &pools, &params, &keys, written, statuses.column())?;
        } else {
            operators.inner.sample(rows, row_indices, &params, &keys, written, statuses.column())?;
        }
        tokens.finish();
        statuses.finish();
        Ok(())
    })
}

/// Writes the radius of each row: how far all its logits may move, each by its own amount up or down, while
/// gumball_operators_sample draws the same token by these parameters and draws. It is -inf of a row without a
/// token, +inf if no other token can be drawn, and otherwise in units of a logit.
///
/// `rows`: R rows of logits. `params`: lists of R, or NULL. `draws`: R outputs, without `row_indices` and
/// `slots`. `radii`: memory for R numbers. Parameters of which no radius is known, as typical-p, are
/// GUMBALL_CONFLICT; a list counts as switched on.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_operators_radii(
    operators: Option<&Operators>,
    rows: *const Rows,
    params: *const RowParams,
    draws: *const Draws,
    radii: *mut f32,
) -> Code {
    call(|c| {
        let operators = require("operators", operators)?;
        let (arrays, neutral) = (operators.arrays(c), SamplingParams::default());
        let (rows, count) = arrays.rows(rows)?;
        let draws = c.read("draws", draws)?;
        draws.check_one_per("radii")?;
        if draws.outputs != count {
            return Err(Error::length("outputs", draws.outputs, format!("one per row, {count}")).into());
        }
        let params = read_row_params(arrays, params, count, &neutral)?;
        let keys = draws.keys(arrays)?;
        let mut radii = arrays.required("radii", radii, count)?;
        operators.inner.radii(rows, &params, &keys, radii.column().expect("it is required"))?;
        radii.finish();
        Ok(())
    })
}
