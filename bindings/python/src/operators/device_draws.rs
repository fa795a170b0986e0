//! Draws from rows that lie on a GPU.

use gumball_engine::{DeviceDraws, DeviceRowParams, Error, SamplingParams};
use gumball_engine::{DeviceIntSlice, DeviceSlice};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::by_stream;
use super::columns::{Given, Value, int_type};
use super::device::{Input, owner_stream};
use super::host::{check_apart, check_writable, wrong_dtype};
use crate::arrays::{Array, Dtype};
use crate::errors::{out_of_range, to_py_err};
use crate::{options, params};

/// Temperature and filters of a call: the common parameters, and the values that differ from row to row.
pub struct Filters<'py> {
    common: SamplingParams,
    temperature: Option<Given<'py, f32>>,
    top_k: Option<Given<'py, i64>>,
    top_p: Option<Given<'py, f32>>,
    min_p: Option<Given<'py, f32>>,
}

/// A view of [`Filters`] without the arrays' owners, so that it can be used without the GIL.
pub struct Values<'a> {
    common: &'a SamplingParams,
    temperature: Option<&'a Value<f32>>,
    top_k: Option<&'a Value<i64>>,
    top_p: Option<&'a Value<f32>>,
    min_p: Option<&'a Value<f32>>,
}

impl<'py> Filters<'py> {
    /// Reads (temperature, top_k, top_p, min_p, order, params).
    pub fn read(input: &Input<'_, 'py>, given: &Bound<'py, PyTuple>) -> PyResult<Self> {
        let [temperature, top_k, top_p, min_p, order, common]: [Bound<'py, PyAny>; 6] = given.extract()?;
        let mut common = if common.is_none() { SamplingParams::default() } else { params::read(&common)? };
        if !order.is_none() {
            common.order = params::order(&order)?;
        }
        let number = |given: &Bound<'py, PyAny>, name: &str, field: &mut f32| {
            if given.is_none() {
                return Ok::<_, PyErr>(None);
            }
            let given = Given::numbers(input, given, name, false)?;
            Ok(apart(given, field))
        };
        let temperature = number(&temperature, "temperature", &mut common.temperature)?;
        let top_p = number(&top_p, "top_p", &mut common.top_p)?;
        let min_p = number(&min_p, "min_p", &mut common.min_p)?;
        let top_k = match top_k.is_none() {
            true => None,
            false => apart(Given::signed(input, &top_k, "top_k")?, &mut common.top_k),
        };
        Ok(Self { common, temperature, top_k, top_p, min_p })
    }

    pub fn values(&self) -> Values<'_> {
        fn of<'a, T>(given: &'a Option<Given<'_, T>>) -> Option<&'a Value<T>> {
            given.as_ref().map(|given| &given.value)
        }
        Values {
            common: &self.common,
            temperature: of(&self.temperature),
            top_k: of(&self.top_k),
            top_p: of(&self.top_p),
            min_p: of(&self.min_p),
        }
    }

    pub fn streams(&self) -> [Option<usize>; 4] {
        fn of<T>(given: Option<&Given<'_, T>>) -> Option<usize> {
            given.and_then(|given| given.stream)
        }
        [
            of(self.temperature.as_ref()),
            of(self.top_k.as_ref()),
            of(self.top_p.as_ref()),
            of(self.min_p.as_ref()),
        ]
    }
}

/// Moves one value for all rows into the common parameters; returns other values.
fn apart<'py, T: Copy>(given: Given<'py, T>, field: &mut T) -> Option<Given<'py, T>> {
    if let Value::All(value) = given.value {
        *field = value;
        return None;
    }
    Some(given)
}

impl Values<'_> {
    /// Returns the parameters as the engine takes them.
    ///
    /// # Safety
    /// Columns of `temperature`, `top_k`, `top_p` and `min_p` lie on the device. Nobody frees or writes them
    /// until the enqueued work is done.
    pub unsafe fn params(&self) -> gumball_engine::Result<DeviceRowParams<'_>> {
        Ok(DeviceRowParams {
            common: self.common,
            // SAFETY: the caller ensures that the column of temperatures lies on the device, unchanged until
            // the work is done.
            temperature: self.temperature.map(|value| unsafe { value.numbers() }).transpose()?,
            // SAFETY: the caller ensures that the column of `top_k` lies on the device, unchanged until the
            // work is done.
            top_k: self.top_k.map(|value| unsafe { value.integers() }).transpose()?,
            // SAFETY: the caller ensures that the column of `top_p` lies on the device, unchanged until the
            // work is done.
            top_p: self.top_p.map(|value| unsafe { value.numbers() }).transpose()?,
            // SAFETY: the caller ensures that the column of `min_p` lies on the device, unchanged until the
            // work is done.
            min_p: self.min_p.map(|value| unsafe { value.numbers() }).transpose()?,
        })
    }
}

/// The keys of a call's draws: seeds, positions and draw indices.
pub struct Which<'py> {
    seed: Given<'py, u64>,
    position: Given<'py, u32>,
    draw: Option<Given<'py, u32>>,
    ways: Ways,
}

/// Options of draws that `compat/flashinfer` needs; [`DeviceDraws`] explains them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ways {
    pub offsets: bool,
    pub zero_for_none: bool,
}

/// A view of [`Which`] without the arrays' owners, so that it can be used without the GIL.
pub struct WhichValues<'a> {
    seed: &'a Value<u64>,
    position: &'a Value<u32>,
    draw: Option<&'a Value<u32>>,
    ways: Ways,
}

impl<'py> Which<'py> {
    pub fn read(
        input: &Input<'_, 'py>,
        seed: &Bound<'py, PyAny>,
        position: &Bound<'py, PyAny>,
        draw: Option<&Bound<'py, PyAny>>,
        ways: Ways,
    ) -> PyResult<Self> {
        Ok(Self {
            ways,
            seed: Given::seeds(input, seed)?,
            position: Given::unsigned(input, position, "position")?,
            draw: draw.map(|draw| Given::unsigned(input, draw, "draw")).transpose()?,
        })
    }

    pub fn values(&self) -> WhichValues<'_> {
        let draw = self.draw.as_ref().map(|draw| &draw.value);
        WhichValues { seed: &self.seed.value, position: &self.position.value, draw, ways: self.ways }
    }

    pub fn streams(&self) -> [Option<usize>; 3] {
        [self.seed.stream, self.position.stream, self.draw.as_ref().and_then(|draw| draw.stream)]
    }
}

impl WhichValues<'_> {
    /// Returns the keys as the engine takes them.
    ///
    /// # Safety
    /// Columns of `seed`, `position` and `draw` lie on the device. Nobody frees or writes them until the
    /// enqueued work is done.
    pub unsafe fn draws(&self) -> gumball_engine::Result<DeviceDraws<'_>> {
        Ok(DeviceDraws {
            // SAFETY: the caller ensures that the column of seeds lies on the device, unchanged until the
            // work is done.
            seeds: unsafe { self.seed.integers() }?,
            // SAFETY: the caller ensures that the column of positions lies on the device, unchanged until the
            // work is done.
            positions: unsafe { self.position.integers() }?,
            // SAFETY: the caller ensures that the column of draw indices lies on the device, unchanged until
            // the work is done.
            draws: self.draw.map(|draw| unsafe { draw.integers() }).transpose()?,
            offsets: self.ways.offsets,
            zero_for_none: self.ways.zero_for_none,
        })
    }
}

/// Reads the array that receives `count` tokens; returns its address and type as well.
pub fn tokens<'py>(
    input: &Input<'_, 'py>,
    out: &Bound<'py, PyAny>,
    count: usize,
) -> PyResult<(u64, Dtype, Array<'py>)> {
    let array = input.beside(out, "out")?;
    let matrix = array.matrix("out")?;
    if !matches!(matrix.dtype, Dtype::I32 | Dtype::I64) {
        return Err(wrong_dtype("out", matrix.dtype, "int32 or int64"));
    }
    check_writable(&array, "out")?;
    check_apart(&matrix, &input.matrix, input.name)?;
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range("out's stride", matrix.stride, matrix.width));
    }
    let length = matrix.rows * matrix.width;
    if length != count {
        return Err(to_py_err(Error::length("out", length, format!("one per output, {count}"))));
    }
    Ok((matrix.address as u64, matrix.dtype, array))
}

/// Returns the number of rows if they lie on a device, otherwise None.
#[pyfunction]
#[pyo3(signature = (rows, name))]
pub fn rows_on_device(rows: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<usize>> {
    Ok(Input::read(rows, name, None)?.map(|input| input.matrix.rows))
}

/// Draws tokens from rows on a device; returns None if they do not lie on one.
///
/// filters: (temperature, top_k, top_p, min_p, order, params). offsets: whether the high words of 64-bit
/// positions in a column change the seeds. zero_for_none: whether an output without a token is 0 instead of
/// -1.
#[pyfunction]
#[pyo3(signature = (rows, out, kind, name, indices, filters, seed, position, draw, dtype, return_statuses, stream, offsets=false,
    zero_for_none=false))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn sample_on_device<'py>(
    rows: &Bound<'py, PyAny>,
    out: Option<&Bound<'py, PyAny>>,
    kind: &str,
    name: &str,
    indices: Option<&Bound<'py, PyAny>>,
    filters: &Bound<'py, PyTuple>,
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    dtype: &str,
    return_statuses: bool,
    stream: Option<&Bound<'py, PyAny>>,
    offsets: bool,
    zero_for_none: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(input) = Input::read(rows, name, stream)? else { return Ok(None) };
    let py = rows.py();
    let kind = options::kind(kind)?;
    let filters = Filters::read(&input, filters)?;
    let which = Which::read(&input, seed, position, draw, Ways { offsets, zero_for_none })?;
    let lines = indices.map(|indices| Given::<u32>::unsigned(&input, indices, "indices")).transpose()?;
    let count = match lines.as_ref().map(|lines| &lines.value) {
        None => input.matrix.rows,
        Some(Value::All(_)) => 1,
        Some(Value::List(lines)) => lines.len(),
        Some(Value::DeviceSlice { rows, .. }) => *rows,
    };
    let made = if out.is_none() { Some(input.empty(&[count], dtype)?) } else { None };
    let object = out.or(made.as_ref()).expect("given, or just made");
    let (address, token_type, out_array) = tokens(&input, object, count)?;
    let statuses = if return_statuses { Some(input.empty_like(object, "int32")?) } else { None };
    let statuses_address = match &statuses {
        Some(statuses) => Some(input.beside(statuses, "statuses")?.address as u64),
        None => None,
    };
    let own =
        [owner_stream(&input.array), owner_stream(&out_array), lines.as_ref().and_then(|lines| lines.stream)];
    let streams: Vec<usize> =
        own.into_iter().chain(filters.streams()).chain(which.streams()).flatten().collect();
    let (from, values, draws) = (input.matrix, filters.values(), which.values());
    let lines = lines.as_ref().map(|lines| &lines.value);
    by_stream::run(py, input.key, &streams, |operators| {
        // SAFETY: `input` keeps the rows' array alive during the call, and its owner reuses memory in stream
        // order. The package's documentation forbids other writes until the work is done.
        let rows = unsafe { from.device_logits() }?.with_kind(kind);
        // SAFETY: `filters` keeps the columns' arrays alive; nobody writes them until the work is done.
        let params = unsafe { values.params() }?;
        // SAFETY: `which` keeps the columns' arrays alive; nobody writes them until the work is done.
        let draws = unsafe { draws.draws() }?;
        // SAFETY: the array of row indices is alive; nobody writes it until the work is done.
        let lines = lines.map(|lines| unsafe { lines.integers() }).transpose()?;
        // SAFETY: `tokens` checked that `out` has `count` elements, is writable and lies apart from the rows;
        // nobody else uses it.
        let tokens = unsafe { DeviceIntSlice::new(address, int_type(token_type), count) }?;
        // SAFETY: `statuses` was allocated above with `out`'s shape of int32, and its owner frees it in
        // stream order.
        let column =
            statuses_address.map(|address| unsafe { DeviceSlice::new(address, count) }).transpose()?;
        operators.sample(&rows, &params, &draws, lines, &tokens, column.as_ref())
    })?;
    match statuses {
        Some(statuses) => Ok(Some(PyTuple::new(py, [object.clone(), statuses])?.into_any())),
        None => Ok(Some(object.clone())),
    }
}
