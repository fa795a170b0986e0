//! Draws: any number of tokens from any rows.

use gumball_engine::{DeviceSlice, Error, Kind, Operators, PerRowMut, PoolSlots, Result, Rows, Status};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::columns::{Value, int_type};
use super::input::{Input, answer, check_apart, rows_in, words_out, write_tokens};
use super::params::{DrawKeys, Filters, KeyArguments};
use super::run::run;
use crate::arguments::argument;
use crate::arrays::{Dtype, Matrix};
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::{lists, values};

/// Reads the array that receives `count` tokens.
pub fn tokens_out<'py>(
    input: &mut Input<'_, 'py>,
    out: &Bound<'py, PyAny>,
    count: usize,
) -> PyResult<Matrix> {
    column_out(input, out, count, &[Dtype::I32, Dtype::I64], "int32 or int64")
}

/// Reads the array that receives `count` numbers, of one of the given types.
pub fn column_out<'py>(
    input: &mut Input<'_, 'py>,
    out: &Bound<'py, PyAny>,
    count: usize,
    dtypes: &[Dtype],
    wanted: &str,
) -> PyResult<Matrix> {
    let matrix = input.written(out, "out")?;
    if !dtypes.contains(&matrix.dtype) {
        return Err(matrix.dtype.wrong("out", wanted));
    }
    check_apart(&matrix, &input.matrix, input.name)?;
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range("out's stride", matrix.stride, matrix.width));
    }
    let length = matrix.rows * matrix.width;
    if length != count {
        return Err(to_py_err(Error::length("out", length, format!("one per output, {count}"))));
    }
    Ok(matrix)
}

/// Draws a token for each row, after temperature and filters; -1 for a row without a token.
///
/// kind: "logits", or "probabilities" for rows that hold those and need not sum to 1. indices: the row that
/// each output reads; a row may occur any number of times: [outputs]. Without, the outputs are [rows]. dtype:
/// "int32" or "int64". filters: as of probabilities; one per row, not per output.
///
/// seed: in 0..2^64. position: in 0..2^32, the number of tokens before the drawn one. Both are a number, or
/// one per output. draw: the draw index, in 0..2^32; None takes each output's own index, so that outputs with
/// equal seed and position draw independently. A Pool whose sequence has this seed, position and draw index
/// draws the same token.
///
/// A seed without a position is a ValueError: a loop would draw every token by the same random words. Write
/// sample(logits, seed=7, position=step). Without a seed each call draws by fresh entropy, which the capture
/// of a CUDA graph refuses. A number is the same in every replay; arrays on the GPU are read again by each.
///
/// offsets: position holds numbers of 64 bits. The low word of each is the position; the high word, with its
/// sign, times 0x9E3779B97F4A7C15 is added to the seed, modulo 2^64, so that no two offsets of a seed share
/// random numbers. zero_for_none: a row without a token gives 0, and not -1; its status says EMPTY either
/// way.
///
/// With return_statuses, each output has the status of the row that it reads.
#[pyfunction]
#[pyo3(
    signature = (rows, indices=None, *, kind="logits", seed=None, position=None, draw=None, offsets=false, zero_for_none=false,
        dtype="int32", out=None, return_statuses=false, stream=None, **filters),
    text_signature = "(rows, indices=None, *, kind='logits', seed=None, position=None, draw=None, offsets=False, zero_for_none=False, \
                      dtype='int32', out=None, return_statuses=False, stream=None, **filters)"
)]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub fn sample<'py>(
    rows: &Bound<'py, PyAny>,
    indices: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] kind: &str,
    seed: Option<&Bound<'py, PyAny>>,
    position: Option<&Bound<'py, PyAny>>,
    draw: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] offsets: bool,
    #[pyo3(from_py_with = argument)] zero_for_none: bool,
    #[pyo3(from_py_with = argument)] dtype: &str,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, "rows", stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, "sample", filters)?;
    let row_indices = indices.map(|indices| Value::indices(&mut input, indices)).transpose()?;
    let count = match &row_indices {
        None => input.matrix.rows,
        Some(Value::All(_)) => 1,
        Some(Value::List(indices)) => indices.len(),
        Some(Value::Device(column)) => column.rows(),
    };
    let keys = KeyArguments { seed, position, draw, offsets, zero_for_none };
    let keys = DrawKeys::read(&mut input, &keys)?;
    let to = Drawn { out: out.cloned(), count, dtype, return_statuses };
    to.draw(&mut input, kind, |operators, rows, tokens, statuses| {
        let row_indices = row_indices.as_ref().map(Value::per_row);
        operators.sample(rows, row_indices, &filters.row_params(), &keys.draws(), tokens, statuses)
    })
}

/// Draws a token for each row, by numbers that lie in pools with an element for each of many requests,
/// without gathering them.
///
/// slots: for each request the element that it reads; it has rows_per_slot neighbouring rows, of which each
/// is one position on. seed: the pool of seeds, in 0..2^64 or int64; all pools are as long as this one.
/// position, which is needed, draw, temperature, top_k, top_p, min_p: pools, or a number for all. high_draws:
/// position holds 64-bit numbers, whose low word is the position and whose high word the draw index. On a GPU
/// pools and slots are arrays there, which kernels read, or lists, which are copied. The other arguments are
/// those of sample, and tokens are drawn as there.
///
/// Raises ValueError for a slot of the host that no pool has, and for pools of different lengths. In a GPU's
/// memory a slot such as -1 has no token: -1.
#[pyfunction]
#[pyo3(
    signature = (rows, slots, *, seed, position=None, draw=None, rows_per_slot=None, high_draws=false, zero_for_none=false,
        kind="logits", dtype="int32", out=None, return_statuses=false, stream=None, **filters),
    text_signature = "(rows, slots, *, seed, position=None, draw=None, rows_per_slot=1, high_draws=False, zero_for_none=False, \
                      kind='logits', dtype='int32', out=None, return_statuses=False, stream=None, **filters)"
)]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub fn sample_from_pools<'py>(
    rows: &Bound<'py, PyAny>,
    slots: &Bound<'py, PyAny>,
    seed: &Bound<'py, PyAny>,
    position: Option<&Bound<'py, PyAny>>,
    draw: Option<&Bound<'py, PyAny>>,
    rows_per_slot: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] high_draws: bool,
    #[pyo3(from_py_with = argument)] zero_for_none: bool,
    #[pyo3(from_py_with = argument)] kind: &str,
    #[pyo3(from_py_with = argument)] dtype: &str,
    out: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, "rows", stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, "sample_from_pools", filters)?;
    let slots: Value<u32> = Value::read(&mut input, slots, "slots")?;
    let rows_per_slot = rows_per_slot.map_or(Ok(1), |rows| lists::extract_int(rows, "rows_per_slot"))?;
    let keys = KeyArguments { seed: Some(seed), position, draw, offsets: false, zero_for_none };
    let (keys, high_draws) = DrawKeys::pooled(&mut input, &keys, high_draws)?;
    let size =
        keys.seeds().ok_or_else(|| InvalidValueError::new_err("seed must be a pool: a list or an array"))?;
    let count = input.matrix.rows;
    let to = Drawn { out: out.cloned(), count, dtype, return_statuses };
    to.draw(&mut input, kind, |operators, rows, tokens, statuses| {
        let pools = PoolSlots { slots: slots.per_row(), size, rows_per_slot, high_draws };
        operators.sample_from_pools(rows, &pools, &filters.row_params(), &keys.draws(), tokens, statuses)
    })
}

/// Refuses a type that is none of tokens.
pub fn check_dtype(dtype: &str) -> PyResult<()> {
    match dtype {
        "int32" | "int64" => Ok(()),
        _ => Err(out_of_range("dtype", dtype, "int32 or int64")),
    }
}

/// The target of a call's draws: `out`, or a new array of `dtype`, with `count` tokens.
struct Drawn<'a, 'py> {
    out: Option<Bound<'py, PyAny>>,
    count: usize,
    dtype: &'a str,
    return_statuses: bool,
}

impl<'py> Drawn<'_, 'py> {
    /// Runs `draw` over the rows; returns the tokens, or a pair of them and of the statuses.
    fn draw<'a>(
        self,
        input: &mut Input<'a, 'py>,
        kind: Kind,
        draw: impl FnOnce(&Operators, Rows<'_>, PerRowMut<'_, i32>, Option<PerRowMut<'_, Status>>) -> Result<()>
        + Send,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Self { out, count, dtype, return_statuses } = self;
        check_dtype(dtype)?;
        let out = out.map_or_else(|| input.empty(&[count], dtype), Ok)?;
        let to = tokens_out(input, &out, count)?;
        let (statuses, to_statuses) = input.words(return_statuses, &[count])?;
        let (from, on_device) = (input.matrix, input.is_on_device());
        run(input, |operators| {
            // SAFETY: `input` keeps the arrays alive during the call; on a device their owners reuse memory
            // in stream order. The package's documentation forbids other writes until the work is done.
            let rows = unsafe { rows_in(&from, on_device, kind) }?;
            // SAFETY: the statuses were allocated above with one word per output, of which any is a status.
            let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
            let write = |tokens: PerRowMut<'_, i32>| draw(operators, rows, tokens, statuses);
            // SAFETY: `tokens_out` checked that `out` has `count` integers without gaps, is writable and lies
            // apart from the rows; no other code uses it until the work is done.
            unsafe { write_outputs(&to, on_device, count, write) }
        })?;
        answer(out, [statuses])
    }
}

/// Runs `draw` with the tokens to write.
///
/// # Safety
/// The matrix holds `count` int32 or int64 without gaps, on a device if `on_device`, otherwise on the host.
/// No other code uses them meanwhile, on a device until the enqueued work is done.
unsafe fn write_outputs(
    to: &Matrix,
    on_device: bool,
    count: usize,
    draw: impl FnOnce(PerRowMut<'_, i32>) -> Result<()>,
) -> Result<()> {
    if on_device {
        // SAFETY: the caller ensures that `count` integers of this type lie on the device.
        let tokens = unsafe { DeviceSlice::new(to.address as u64, int_type(to.dtype), count) }?;
        return draw(PerRowMut::Device(tokens));
    }
    // SAFETY: the caller ensures that the integers lie on the host and that no other code uses them.
    unsafe { write_tokens(to, |tokens| draw(PerRowMut::Host(tokens))) }
}
