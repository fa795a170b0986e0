//! Chains of drafts whose probabilities lie on a GPU.

use gumball_engine::Error;
use gumball_engine::{ChainRows, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, Verified};
use pyo3::intern;
use pyo3::prelude::*;

use super::by_stream;
use super::columns::{Given, Value, int_type};
use super::device::{Input, owner_stream};
use super::device_draws::{Ways, Which, tokens};
use super::host::{check_writable, wrong_dtype};
use crate::arrays::{self, Array, Dtype, Matrix};
use crate::errors::{out_of_range, to_py_err};
use crate::modules;
use crate::streams::stream_handle;

/// Tokens, numbers of accepted and of emitted drafts, and statuses if they were requested.
type Verdict<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Checks that rows are of float32 and contiguous.
fn check_packed(matrix: &Matrix, name: &str) -> PyResult<()> {
    if matrix.dtype != Dtype::F32 {
        return Err(wrong_dtype(name, matrix.dtype, "float32"));
    }
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range(&format!("{name}'s stride"), matrix.stride, matrix.width));
    }
    Ok(())
}

/// Reads an array of three dimensions as a matrix. If the rows are not contiguous, their library copies them.
fn joined<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    stream: Option<usize>,
    shape: [usize; 2],
) -> PyResult<(Bound<'py, PyAny>, Array<'py>)> {
    let array = arrays::read(object, name, stream)?.joined();
    if array.ndim == 2 {
        return Ok((object.clone(), array));
    }
    let flat = object.call_method1(intern!(object.py(), "reshape"), (shape,))?;
    let array = arrays::read(&flat, name, stream)?;
    Ok((flat, array))
}

/// Reads an array of counts, one per chain, that the operator writes or adds to.
fn counts<'py>(
    input: &Input<'_, 'py>,
    object: &Bound<'py, PyAny>,
    name: &'static str,
    chains: usize,
) -> PyResult<Array<'py>> {
    let array = input.beside(object, name)?;
    check_writable(&array, name)?;
    if array.dtype != Dtype::I32 {
        return Err(wrong_dtype(name, array.dtype, "int32"));
    }
    if (array.ndim, array.shape[0]) != (1, chains) || chains > 1 && array.strides[0] != 1 {
        let allowed = format!("one per chain, {chains}, side by side");
        return Err(to_py_err(Error::length(name, array.shape[0], allowed)));
    }
    Ok(array)
}

/// Returns the three rows of a new array, one for each output.
fn lines<'py>(array: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 3]> {
    if modules::torch_of(array)?.is_some() {
        return array.call_method1(intern!(array.py(), "unbind"), (0,))?.extract();
    }
    Ok([array.get_item(0)?, array.get_item(1)?, array.get_item(2)?])
}

/// Verifies chains of drafts on a device, as `verify_chains` does on the host; returns None if they do not
/// lie on one.
///
/// shape: chains, drafts, vocab, already checked against the arrays. added: (accepted, emitted), int32 arrays
/// [chains] to which the counts are added; no statuses are returned then. Other arguments as for
/// `sample_on_device`. Returns tokens, accepted, emitted, statuses.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, target_probs, shape, seed, position, draw, dtype, stream, added=None, offsets=false,
    zero_for_none=false))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn verify_on_device<'py>(
    draft_probs: &Bound<'py, PyAny>,
    draft_token_ids: &Bound<'py, PyAny>,
    target_probs: &Bound<'py, PyAny>,
    shape: (usize, usize, usize),
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    dtype: &str,
    stream: Option<&Bound<'py, PyAny>>,
    added: Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    offsets: bool,
    zero_for_none: bool,
) -> PyResult<Option<Verdict<'py>>> {
    let (chains, n, vocab) = shape;
    let named = stream.map(stream_handle).transpose()?;
    let (rows, array) = joined(target_probs, "target_probs", named, [chains * (n + 1), vocab])?;
    let Some(input) = Input::of(&rows, "target_probs", array, named)? else { return Ok(None) };
    let p = input.matrix;
    check_packed(&p, "target_probs")?;
    let (_held, drafts) = joined(draft_probs, "draft_probs", Some(input.key.stream), [chains * n, vocab])?;
    input.check_beside(&drafts, "draft_probs")?;
    let q = drafts.matrix("draft_probs")?;
    check_packed(&q, "draft_probs")?;
    let ids = Given::<u32>::integers(&input, draft_token_ids, "draft_token_ids")?;
    let Value::DeviceSlice { address: ids_address, rows: ids_rows, dtype: ids_type } = ids.value else {
        unreachable!("read as a column");
    };
    if (q.rows, p.rows, ids_rows) != (chains * n, chains * (n + 1), chains * n) {
        let allowed = format!("{} for {chains} chains of {n} drafts", chains * n);
        return Err(to_py_err(Error::length("draft_token_ids", ids_rows, allowed)));
    }
    let which = Which::read(&input, seed, position, draw, Ways { offsets, zero_for_none })?;
    let out = input.empty(&[chains, n + 1], dtype)?;
    let (tokens_address, tokens_type, _) = tokens(&input, &out, chains * (n + 1))?;
    let adds = added.is_some();
    let (accepted, emitted, statuses) = match added {
        Some((accepted, emitted)) => (accepted, emitted, None),
        None => {
            let [accepted, emitted, statuses] = lines(&input.empty(&[3, chains], "int32")?)?;
            (accepted, emitted, Some(statuses))
        }
    };
    let count = |object: &Bound<'py, PyAny>, name| counts(&input, object, name, chains);
    let places = [count(&accepted, "accepted")?, count(&emitted, "emitted")?];
    let status = statuses.as_ref().map(|statuses| count(statuses, "statuses")).transpose()?;
    let address = |array: &Array<'_>| array.address as u64;
    let (accepted_at, emitted_at) = (address(&places[0]), address(&places[1]));
    let status_at = status.as_ref().map(address);
    let own = [owner_stream(&input.array), owner_stream(&drafts), ids.stream];
    let counted = places.iter().map(owner_stream);
    let streams: Vec<usize> = own.into_iter().chain(counted).chain(which.streams()).flatten().collect();
    let draws = which.values();
    by_stream::run(target_probs.py(), input.key, &streams, |operators| {
        let strides = |rows: usize| [rows * p.width, p.width];
        // SAFETY: `_held` keeps the drafts' probabilities alive, [chains * n, width] packed; their owner
        // reuses memory in stream order. The package's documentation forbids other writes until the work is
        // done.
        let draft_rows = unsafe { ChainRows::new(q.address as u64, [chains, n, q.width], strides(n)) }?;
        // SAFETY: `input` keeps the target's probabilities alive, [chains * (n + 1), width] packed; nobody
        // writes them meanwhile.
        let target_rows =
            unsafe { ChainRows::new(p.address as u64, [chains, n + 1, p.width], strides(n + 1)) }?;
        // SAFETY: `ids` was read as a column of chains * n integers on the device; nobody writes them
        // meanwhile.
        let ids = unsafe { DeviceIntMatrix::new(ids_address, int_type(ids_type), chains, n, n) }?;
        // SAFETY: `which` keeps the columns of the draws' keys alive; nobody writes them meanwhile.
        let draws = unsafe { draws.draws() }?;
        // SAFETY: `out` was allocated above for chains * (n + 1) tokens, and its owner frees it in stream
        // order.
        let to =
            unsafe { DeviceIntMatrixMut::new(tokens_address, int_type(tokens_type), chains, n + 1, n + 1) }?;
        // SAFETY: `counts` checked that the array has one int32 per chain and is writable; nobody else uses
        // it meanwhile.
        let column = |address: u64| unsafe { DeviceSlice::new(address, chains) };
        let verified = Verified {
            accepted: Some(column(accepted_at)?),
            emitted: Some(column(emitted_at)?),
            statuses: status_at.map(column).transpose()?,
            adds,
            ..Verified::new(to)
        };
        operators.chain_speculative_sampling(draft_rows, ids, target_rows, &draws, &verified)
    })?;
    Ok(Some((out, accepted, emitted, statuses)))
}
