//! Draws: any number of tokens from any rows.

use gumball_engine::{DeviceSlice, Error, Kind, Operators, PerRowMut, PoolSlots, Result, Rows, Status};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::columns::{Value, int_type};
use super::input::{Input, answer, check_apart, rows_in, words_out, write_tokens};
use super::params::{DrawKeys, Filters, KeyArguments};
use super::run::run;
use crate::arrays::{Dtype, Matrix};
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::lists::{self, LONGEST};
use crate::{modules, values};

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

/// Returns the index of the row that each output reads, with `n` outputs per row.
fn repeated_rows(input: &mut Input<'_, '_>, n: usize) -> PyResult<Value<u32>> {
    let (py, rows) = (input.object.py(), input.matrix.rows);
    let most = LONGEST / rows.max(1);
    if n > most {
        return Err(out_of_range("n", n, format!("at most {most} for {rows} rows")));
    }
    if !input.is_on_device() {
        let indices = (0..rows as u32).flat_map(|row| std::iter::repeat_n(row, n));
        return lists::collected(py, indices.map(Ok), "n", LONGEST).map(Value::List);
    }
    let namespace = input.namespace()?;
    let keywords = PyDict::new(py);
    keywords.set_item(intern!(py, "dtype"), namespace.getattr(intern!(py, "int32"))?)?;
    if modules::torch_of(input.object)?.is_some() {
        keywords.set_item(intern!(py, "device"), input.object.getattr(intern!(py, "device"))?)?;
    }
    let outputs = namespace.call_method(intern!(py, "arange"), (rows * n,), Some(&keywords))?;
    Value::read(input, &outputs.floor_div(n.max(1))?, "indices")
}

/// Draws a token for each output; returns out, or (out, statuses).
///
/// out: an array, or None for a new one of dtype. indices: the row that each output reads; n: the number of
/// outputs of each row instead. offsets: whether the high words of 64-bit positions in an array change the
/// seeds. zero_for_none: whether an output without a token is 0 instead of -1. filters: as of `write_rows`.
#[pyfunction]
#[pyo3(signature = (rows, name, out, kind, indices, n, seed, position, draw, dtype, return_statuses, stream,
    offsets=false, zero_for_none=false, **filters))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn sample_rows<'py>(
    rows: &Bound<'py, PyAny>,
    name: &str,
    out: Option<&Bound<'py, PyAny>>,
    kind: &str,
    indices: Option<&Bound<'py, PyAny>>,
    n: Option<&Bound<'py, PyAny>>,
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    dtype: &str,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    offsets: bool,
    zero_for_none: bool,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, name, stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, filters)?;
    let n: Option<usize> = n.map(|n| lists::extract_int(n, "n")).transpose()?;
    let row_indices = match (indices, n) {
        (Some(_), Some(_)) => {
            return Err(InvalidValueError::new_err("n conflicts with indices, which name each output"));
        }
        (Some(indices), None) => Some(Value::indices(&mut input, indices)?),
        (None, Some(n)) => Some(repeated_rows(&mut input, n)?),
        (None, None) => None,
    };
    let count = match &row_indices {
        None => input.matrix.rows,
        Some(Value::All(_)) => 1,
        Some(Value::List(indices)) => indices.len(),
        Some(Value::Device(column)) => column.rows(),
    };
    let keys = KeyArguments { seed, position, draw, offsets, zero_for_none };
    let keys = DrawKeys::read(&mut input, &keys, n)?;
    let shape = n.map_or([count, 0], |n| [input.matrix.rows, n]);
    let shape = &shape[..1 + usize::from(n.is_some())];
    let to = Drawn { out: out.cloned(), shape, count, dtype, return_statuses };
    to.draw(&mut input, kind, |operators, rows, tokens, statuses| {
        let row_indices = row_indices.as_ref().map(Value::per_row);
        operators.sample(rows, row_indices, &filters.row_params(), &keys.draws(), tokens, statuses)
    })
}

/// Draws a token for each row, by numbers that lie in pools; returns out, or (out, statuses).
///
/// slots: the element of each pool that a request reads, which has rows_per_slot rows, each one position on. seed: the pool of seeds,
/// as long as the other pools; position, draw and the filters may be pools, too. high_draws: whether the high words of
/// positions of 64 bits are draw indices. Everything else is as of `sample_rows`.
#[pyfunction]
#[pyo3(signature = (rows, name, out, kind, slots, rows_per_slot, seed, position, draw, high_draws, dtype, return_statuses, stream,
    zero_for_none=false, **filters))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn sample_from_pools<'py>(
    rows: &Bound<'py, PyAny>,
    name: &str,
    out: Option<&Bound<'py, PyAny>>,
    kind: &str,
    slots: &Bound<'py, PyAny>,
    rows_per_slot: &Bound<'py, PyAny>,
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    high_draws: bool,
    dtype: &str,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    zero_for_none: bool,
    filters: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut input = Input::read(rows, name, stream)?;
    let kind = values::kind(kind)?;
    let filters = Filters::read(&mut input, filters)?;
    let slots: Value<u32> = Value::read(&mut input, slots, "slots")?;
    let rows_per_slot = lists::extract_int(rows_per_slot, "rows_per_slot")?;
    let keys = KeyArguments { seed, position, draw, offsets: false, zero_for_none };
    let (keys, high_draws) = DrawKeys::pooled(&mut input, &keys, high_draws)?;
    let size =
        keys.seeds().ok_or_else(|| InvalidValueError::new_err("seed must be a pool: a list or an array"))?;
    let count = input.matrix.rows;
    let to = Drawn { out: out.cloned(), shape: &[count], count, dtype, return_statuses };
    to.draw(&mut input, kind, |operators, rows, tokens, statuses| {
        let pools = PoolSlots { slots: slots.per_row(), size, rows_per_slot, high_draws };
        operators.sample_from_pools(rows, &pools, &filters.row_params(), &keys.draws(), tokens, statuses)
    })
}

/// The target of a call's draws: `out`, or a new array of `shape` and `dtype`, with `count` tokens.
struct Drawn<'a, 'py> {
    out: Option<Bound<'py, PyAny>>,
    shape: &'a [usize],
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
        let Self { out, shape, count, dtype, return_statuses } = self;
        let out = out.map_or_else(|| input.empty(shape, dtype), Ok)?;
        let to = tokens_out(input, &out, count)?;
        let (statuses, to_statuses) = input.words(return_statuses, shape)?;
        let (from, on_device) = (input.matrix, input.is_on_device());
        run(input, |operators| {
            // SAFETY: `input` keeps the arrays alive during the call; on a device their owners reuse memory in
            // stream order. The package's documentation forbids other writes until the work is done.
            let rows = unsafe { rows_in(&from, on_device, kind) }?;
            // SAFETY: the statuses were allocated above with one word per output, of which any is a status.
            let statuses = unsafe { words_out::<Status>(to_statuses.as_ref(), on_device) }?;
            let write = |tokens: PerRowMut<'_, i32>| draw(operators, rows, tokens, statuses);
            // SAFETY: `tokens_out` checked that `out` has `count` integers without gaps, is writable and lies apart
            // from the rows; no other code uses it until the work is done.
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
