//! Chains of drafts whose probabilities lie on a GPU.

use gumball_engine::Error;
use gumball_engine::cuda::{ChainRows, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, Verified};
use pyo3::intern;
use pyo3::prelude::*;

use super::columns::{Given, Value, int_type};
use super::device::{Input, owner_stream};
use super::device_draws::{Ways, Which, tokens};
use super::host::{check_writable, wrong_dtype};
use super::rooms;
use crate::arrays::{self, Array, Dtype, Matrix};
use crate::errors::{out_of_range, raised};
use crate::modules;
use crate::streams::stream_handle;

/// Tokens, how many drafts were accepted and emitted, and statuses where they are made.
type Verdict<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Checks rows of float32 that follow each other.
fn check_packed(matrix: &Matrix, name: &str) -> PyResult<()> {
    if matrix.dtype != Dtype::F32 {
        return Err(wrong_dtype(name, matrix.dtype, "float32"));
    }
    if matrix.rows > 1 && matrix.stride != matrix.width {
        return Err(out_of_range(&format!("{name}'s stride"), matrix.stride, matrix.width));
    }
    Ok(())
}

/// Reads rows of rows one after the other: where they lie if they follow each other, else copied by whose they are.
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

/// Reads where the counts of chains are, which are added to.
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
        return Err(raised(Error::length(name, array.shape[0], allowed)));
    }
    Ok(array)
}

/// Returns each line of an array that was just made.
fn lines<'py>(array: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 3]> {
    if modules::torch_of(array)?.is_some() {
        return array.call_method1(intern!(array.py(), "unbind"), (0,))?.extract();
    }
    Ok([array.get_item(0)?, array.get_item(1)?, array.get_item(2)?])
}

/// Verifies chains of drafts that lie on a device, as `verify_chains` does; `None` if they do not. shape: chains, drafts, vocab, which
/// were held to the arrays'. added: (accepted, emitted), [chains] int32 each, which are added to; then no statuses are made. The rest is as
/// for `sample_on_device`. Returns tokens, accepted, emitted, statuses.
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
    let (_held, drafts) = joined(draft_probs, "draft_probs", Some(input.site.stream), [chains * n, vocab])?;
    input.check_beside(&drafts, "draft_probs")?;
    let q = drafts.matrix("draft_probs")?;
    check_packed(&q, "draft_probs")?;
    let ids = Given::<u32>::integers(&input, draft_token_ids, "draft_token_ids")?;
    let Value::DeviceSlice { address: ids_address, rows: ids_rows, dtype: ids_type } = ids.value else {
        unreachable!("read as a column");
    };
    if (q.rows, p.rows, ids_rows) != (chains * n, chains * (n + 1), chains * n) {
        let allowed = format!("{} for {chains} chains of {n} drafts", chains * n);
        return Err(raised(Error::length("draft_token_ids", ids_rows, allowed)));
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
    rooms::at(target_probs.py(), input.site, &streams, |operators| {
        let strides = |rows: usize| [rows * p.width, p.width];
        // SAFETY: the owners of the arrays reuse memory in the order of the stream; that nobody else writes it until the work
        // is done is the caller's part, as the package says.
        let draft_rows = unsafe { ChainRows::new(q.address as u64, [chains, n, q.width], strides(n)) }?;
        // SAFETY: the same.
        let target_rows =
            unsafe { ChainRows::new(p.address as u64, [chains, n + 1, p.width], strides(n + 1)) }?;
        // SAFETY: the same.
        let ids = unsafe { DeviceIntMatrix::new(ids_address, int_type(ids_type), chains, n, n) }?;
        // SAFETY: the same.
        let draws = unsafe { draws.draws() }?;
        // SAFETY: they were just allocated, and are freed in the order of the stream.
        let to =
            unsafe { DeviceIntMatrixMut::new(tokens_address, int_type(tokens_type), chains, n + 1, n + 1) }?;
        // SAFETY: they have a word a chain, as was seen, and were just allocated or are the caller's to be written.
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
