//! Operators over arrays on the host. `python/gumball/operators.py` gives them their public names and
//! allocates outputs in the caller's array library.

use std::sync::{Mutex, PoisonError};

use gumball_engine::{Chains, Draws, Error, Kind, Operators, PerRow, Result, RowParams, SamplingParams};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyDict, PyTuple};

use crate::arrays::{self, Array, Dtype, Location, Matrix};
use crate::errors::{out_of_range, to_py_err};
use crate::forks;
use crate::hooks::{OUTPUTS, caught};
use crate::lists::{
    Column, LONGEST, collected, extract_int, integers, number_column, seed_column, whole_column,
};
use crate::{options, params};

/// Runs `work` with the process's operators, which keep their buffers from call to call, without the GIL.
fn at<R: Send>(py: Python<'_>, work: impl FnOnce(&Operators) -> Result<R> + Send) -> PyResult<R> {
    /// The operators and the fork count of their process. A child of a fork makes its own, because threads of
    /// its parent may have held the buffers.
    static OPERATORS: Mutex<Option<(u32, &'static Operators)>> = Mutex::new(None);
    let known = |py| {
        let mut kept = OPERATORS.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        match *kept {
            Some((process, operators)) if process == forks::count() => Ok(operators),
            _ => {
                let made: &Operators = Box::leak(Box::new(Operators::new(None, None).map_err(to_py_err)?));
                *kept = Some((forks::count(), made));
                Ok::<_, PyErr>(made)
            }
        }
    };
    let operators = known(py)?;
    py.detach(|| caught(OUTPUTS, || work(operators)))?.map_err(to_py_err)
}

/// Reads rows on the host.
fn rows<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<(Matrix, Array<'py>)> {
    let array = arrays::read(object, name, None)?;
    match array.location {
        Location::Host => {}
        Location::Cuda(_) => return Err(out_of_range(name, format!("on {}", array.location), "on the host")),
        Location::Elsewhere => return Err(out_of_range(name, "on another device", "on the host")),
    }
    Ok((array.matrix(name)?, array))
}

fn floats<'py>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<(Matrix, Array<'py>)> {
    let (matrix, array) = rows(object, name)?;
    match matrix.dtype {
        Dtype::F32 | Dtype::Bf16 | Dtype::F16 => Ok((matrix, array)),
        other => Err(wrong_dtype(name, other, "float32, bfloat16 or float16")),
    }
}

/// Returns the error for another element type.
pub(super) fn wrong_dtype(name: &str, found: Dtype, wanted: &str) -> PyErr {
    PyTypeError::new_err(format!("{name} is of {}, but must be of {wanted}", found.name()))
}

/// Returns an error if the array's owner forbids writing.
pub(super) fn check_writable(array: &Array<'_>, name: &str) -> PyResult<()> {
    if array.readonly {
        return Err(PyValueError::new_err(format!("{name} is read-only, but must be an array to write to")));
    }
    Ok(())
}

/// Returns an error if `out` shares memory with rows that are read.
pub(super) fn check_apart(out: &Matrix, read: &Matrix, name: &str) -> PyResult<()> {
    if out.overlaps(read) {
        let text = format!("out shares memory with {name}, but must be {name} itself or lie apart from it");
        return Err(PyValueError::new_err(text));
    }
    Ok(())
}

/// Temperature and filters of a call: the common parameters, and columns with one value per row.
struct Filters {
    common: SamplingParams,
    temperature: Vec<f32>,
    top_k: Vec<i64>,
    top_p: Vec<f32>,
    min_p: Vec<f32>,
}

impl Filters {
    fn read(keywords: &Bound<'_, PyDict>) -> PyResult<Self> {
        let of = |name: &str| Ok::<_, PyErr>(keywords.get_item(name)?.filter(|value| !value.is_none()));
        let mut common = match of("params")? {
            Some(given) => params::read(&given)?,
            None => SamplingParams::default(),
        };
        let number = |name: &str, field: &mut f32| {
            let Some(given) = of(name)? else { return Ok::<_, PyErr>(Vec::new()) };
            let column = number_column(&given, name)?;
            *field = column.all().copied().unwrap_or(*field);
            Ok(column.rows().to_vec())
        };
        let temperature = number("temperature", &mut common.temperature)?;
        let top_p = number("top_p", &mut common.top_p)?;
        let min_p = number("min_p", &mut common.min_p)?;
        let mut top_k = Vec::new();
        if let Some(given) = of("top_k")? {
            let column = whole_column::<i64>(&given, "top_k")?;
            common.top_k = column.all().copied().unwrap_or(common.top_k);
            top_k = column.rows().to_vec();
        }
        if let Some(given) = of("order")? {
            common.order = params::order(&given)?;
        }
        Ok(Self { common, temperature, top_k, top_p, min_p })
    }

    /// Checks that a given column is not empty, because an empty one would stand for the common value.
    fn check(&self, keywords: &Bound<'_, PyDict>, rows: usize) -> PyResult<()> {
        let lengths = [
            ("temperature", self.temperature.len()),
            ("top_k", self.top_k.len()),
            ("top_p", self.top_p.len()),
            ("min_p", self.min_p.len()),
        ];
        for (name, length) in lengths {
            let listed = keywords.get_item(name)?.is_some_and(|it| it.len().is_ok());
            if listed && length == 0 && rows > 0 {
                return Err(to_py_err(Error::length(name, 0, format!("one per row, {rows}"))));
            }
        }
        Ok(())
    }

    fn params(&self) -> RowParams<'_> {
        let Self { common, temperature, top_k, top_p, min_p } = self;
        RowParams { common, temperature, top_k, top_p, min_p }
    }
}

/// Returns (shape, dtype) of rows on the host; raises for arrays that operators do not take.
#[pyfunction]
#[pyo3(signature = (rows, name))]
pub fn describe<'py>(rows: &Bound<'py, PyAny>, name: &str) -> PyResult<(Bound<'py, PyTuple>, &'static str)> {
    let (matrix, array) = floats(rows, name)?;
    Ok((PyTuple::new(rows.py(), &array.shape[..array.ndim])?, matrix.dtype.name()))
}

/// Writes "probabilities" or "masked" rows to out, or in place if out is None; returns the rows' statuses.
#[pyfunction]
#[pyo3(signature = (what, rows, out, kind, name, **keywords))]
pub fn write_rows(
    py: Python<'_>,
    what: &str,
    rows: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    kind: &str,
    name: &str,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<u32>> {
    let (kind, masked) = (options::kind(kind)?, what == "masked");
    let (input, input_array) = floats(rows, name)?;
    let empty = PyDict::new(py);
    let keywords = keywords.unwrap_or(&empty);
    let filters = Filters::read(keywords)?;
    filters.check(keywords, input.rows)?;
    let target = out.map(|out| floats(out, "out")).transpose()?;
    let same = |to: &Matrix| {
        (to.address, to.dtype, to.rows, to.width, to.stride)
            == (input.address, input.dtype, input.rows, input.width, input.stride)
    };
    let statuses = match target.as_ref().filter(|(to, _)| !same(to)) {
        Some((to, to_array)) => {
            check_writable(to_array, "out")?;
            check_apart(to, &input, name)?;
            at(py, |operators| {
                // SAFETY: `input_array` keeps the rows alive during this call; Python's callers do not write
                // them meanwhile.
                let rows = unsafe { input.logits(&[]) }?.with_kind(kind);
                // SAFETY: `to_array` keeps `out` alive; it is writable and apart from the rows, as checked
                // above. As for every array, Python's callers ensure that no other thread uses it.
                let out = unsafe { to.logits_mut() }?;
                if masked {
                    operators.mask_logits(rows, &filters.params(), out)
                } else {
                    operators.probabilities(rows, &filters.params(), out)
                }
            })
        }
        None => {
            check_writable(&input_array, name)?;
            at(py, |operators| {
                // SAFETY: `input_array` keeps the rows alive and is writable, as checked above; no other
                // thread uses them meanwhile.
                let rows = unsafe { input.logits_mut() }?.with_kind(kind);
                if masked {
                    operators.mask_logits_in_place(rows, &filters.params())
                } else {
                    operators.probabilities_in_place(rows, &filters.params())
                }
            })
        }
    };
    Ok(statuses?.into_iter().map(|status| status.0).collect())
}

/// Reads an integer array that receives `count` outputs.
fn outputs<'py>(object: &Bound<'py, PyAny>, count: usize) -> PyResult<(Matrix, Array<'py>)> {
    let (matrix, array) = rows(object, "out")?;
    if !matches!(matrix.dtype, Dtype::I32 | Dtype::I64) {
        return Err(wrong_dtype("out", matrix.dtype, "int32 or int64"));
    }
    check_writable(&array, "out")?;
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range("out's stride", matrix.stride, matrix.width));
    }
    if matrix.rows * matrix.width != count {
        return Err(to_py_err(Error::length(
            "out",
            matrix.rows * matrix.width,
            format!("one per output, {count}"),
        )));
    }
    Ok((matrix, array))
}

/// Writes tokens, converted to the array's type.
fn write_tokens(out: &Matrix, tokens: &[i32]) {
    if out.dtype == Dtype::I32 {
        // SAFETY: `outputs` checked type, length and writability; the caller keeps the array alive, and
        // nobody else uses it.
        unsafe { out.elements_mut::<i32>() }.copy_from_slice(tokens);
    } else {
        // SAFETY: `outputs` checked type, length and writability; the caller keeps the array alive, and
        // nobody else uses it.
        let wide = unsafe { out.elements_mut::<i64>() };
        wide.iter_mut().zip(tokens).for_each(|(wide, token)| *wide = i64::from(*token));
    }
}

/// Repeats each row's value `n` times, once for each of its outputs.
fn each<T: Copy>(column: Column<T>, n: Option<usize>) -> Column<T> {
    match (column, n) {
        (Column::Rows(values), Some(n)) => {
            Column::Rows(values.into_iter().flat_map(|value| std::iter::repeat_n(value, n)).collect())
        }
        (column, _) => column,
    }
}

/// Returns the row index of each output, with `n` outputs per row.
fn repeated(py: Python<'_>, rows: usize, n: usize) -> PyResult<Vec<u32>> {
    let most = LONGEST / rows.max(1);
    if n > most {
        return Err(out_of_range("n", n, format!("at most {most} for {rows} rows")));
    }
    let lines = (0..rows as u32).flat_map(|row| std::iter::repeat_n(row, n));
    collected(py, lines.map(Ok), "n", LONGEST)
}

fn borrowed<T: Copy>(column: &Column<T>) -> PerRow<'_, T> {
    match column {
        Column::All(value) => PerRow::All(*value),
        Column::Rows(values) => PerRow::Rows(values),
    }
}

/// Draws tokens into out; returns the statuses of the rows.
#[pyfunction]
#[pyo3(signature = (rows, out, kind, name, *, indices, n, seed, position, draw, **keywords))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub fn draw_rows(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    kind: &str,
    name: &str,
    indices: Option<&Bound<'_, PyAny>>,
    n: Option<&Bound<'_, PyAny>>,
    seed: &Bound<'_, PyAny>,
    position: &Bound<'_, PyAny>,
    draw: Option<&Bound<'_, PyAny>>,
    keywords: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<u32>> {
    let kind = options::kind(kind)?;
    let (input, _held) = floats(rows, name)?;
    let empty = PyDict::new(py);
    let keywords = keywords.unwrap_or(&empty);
    let filters = Filters::read(keywords)?;
    filters.check(keywords, input.rows)?;
    let n: Option<usize> = n.map(|n| extract_int(n, "n")).transpose()?;
    let lines: Option<Vec<u32>> = match (indices, n) {
        (Some(_), Some(_)) => {
            return Err(PyValueError::new_err("n conflicts with indices, which name each output"));
        }
        (Some(indices), None) => Some(integers(indices, "indices")?),
        (None, Some(n)) => Some(repeated(py, input.rows, n)?),
        (None, None) => None,
    };
    if let Some(line) = lines.iter().flatten().find(|line| **line as usize >= input.rows) {
        return Err(out_of_range("indices", line, format!("a row in 0..{}", input.rows)));
    }
    let count = lines.as_ref().map_or(input.rows, Vec::len);
    let seeds = each(seed_column(seed, "seed")?, n);
    let positions = each(whole_column(position, "position")?, n);
    let draws = draw.map(|draw| whole_column(draw, "draw")).transpose()?;
    let (to, _to_held) = outputs(out, count)?;
    check_apart(&to, &input, name)?;
    let statuses = at(py, |operators| {
        // SAFETY: `_held` keeps the rows alive during this call; Python's callers do not write them
        // meanwhile.
        let mut rows = unsafe { input.logits(&[]) }?.with_kind(kind);
        if let Some(lines) = &lines {
            rows = rows.select(lines)?;
        }
        let draws = Draws {
            seeds: borrowed(&seeds),
            positions: borrowed(&positions),
            draws: draws.as_ref().map(borrowed),
        };
        let mut tokens = vec![0; count];
        let statuses = match kind {
            Kind::Logits => operators.sample_logits(rows, &filters.params(), &draws, &mut tokens),
            Kind::Probabilities => {
                operators.sample_probabilities(rows, &filters.params(), &draws, &mut tokens)
            }
        }?;
        write_tokens(&to, &tokens);
        Ok(statuses)
    });
    Ok(statuses?.into_iter().map(|status| status.0).collect())
}

/// Verifies chains of drafts. draft_probs: [chains * n, vocab]; target_probs: [chains * (n + 1), vocab].
/// Writes tokens to out. Returns accepted, emitted and statuses of the chains.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, target_probs, out, *, chains, drafts, seed, position, draw))]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub fn verify_chains(
    py: Python<'_>,
    draft_probs: &Bound<'_, PyAny>,
    draft_token_ids: &Bound<'_, PyAny>,
    target_probs: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    chains: usize,
    drafts: usize,
    seed: &Bound<'_, PyAny>,
    position: &Bound<'_, PyAny>,
    draw: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Vec<u32>, Vec<u32>, Vec<u32>)> {
    let packed = |object, name: &str| {
        let (matrix, array) = rows(object, name)?;
        if matrix.dtype != Dtype::F32 {
            return Err(wrong_dtype(name, matrix.dtype, "float32"));
        }
        if matrix.rows > 1 && matrix.stride != matrix.width {
            return Err(out_of_range(&format!("{name}'s stride"), matrix.stride, matrix.width));
        }
        Ok((matrix, array))
    };
    let (q, _q_held) = packed(draft_probs, "draft_probs")?;
    let (p, _p_held) = packed(target_probs, "target_probs")?;
    let ids: Vec<i32> = integers(draft_token_ids, "draft_token_ids")?;
    let (to, _to_held) = outputs(out, chains * (drafts + 1))?;
    let (seeds, positions) = (seed_column(seed, "seed")?, whole_column(position, "position")?);
    let draws = draw.map(|draw| whole_column(draw, "draw")).transpose()?;
    check_apart(&to, &q, "draft_probs")?;
    check_apart(&to, &p, "target_probs")?;
    let counts = at(py, |operators| {
        let batch = Chains {
            chains,
            drafts,
            vocab: p.width,
            // SAFETY: `_q_held` keeps the array of f32 alive during this call; Python's callers do not write
            // it meanwhile.
            draft_probs: unsafe { q.elements() },
            draft_token_ids: &ids,
            // SAFETY: `_p_held` keeps the array of f32 alive during this call; Python's callers do not write
            // it meanwhile.
            target_probs: unsafe { p.elements() },
            seeds: borrowed(&seeds),
            positions: borrowed(&positions),
            draws: draws.as_ref().map(borrowed),
        };
        let mut tokens = vec![0; ids.len() + chains];
        let counts = operators.chain_speculative_sampling(&batch, &mut tokens)?;
        write_tokens(&to, &tokens);
        Ok(counts)
    })?;
    Ok((counts.accepted, counts.emitted, counts.statuses.into_iter().map(|status| status.0).collect()))
}
