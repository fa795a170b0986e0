//! Chains of drafts, accepted or resampled from the residual.

use gumball_engine::{DeviceIntMatrix, DeviceIntMatrixMut, DraftChainRows};
use gumball_engine::{DraftChainCounts, DraftChains, Error, HostDraftChains, PerRowMut, Result, Status};
use pyo3::intern;
use pyo3::prelude::*;

use super::columns::{Value, int_type};
use super::input::{Input, check_apart, words_out, write_tokens, wrong_dtype};
use super::params::{DrawKeys, KeyArguments};
use super::run::run;
use super::sample::tokens_out;
use crate::arrays::{self, Array, Dtype, Matrix};
use crate::errors::to_py_err;
use crate::modules;
use crate::streams::stream_handle;

/// Tokens, numbers of accepted and of emitted drafts, and statuses if they were requested.
type Verified<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// Reads an array of three dimensions as a matrix. If the rows are not contiguous, their library copies them.
pub fn joined<'py>(
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

/// Reads an array of counts, one per chain, that the operator adds to.
fn counts<'py>(
    input: &mut Input<'_, 'py>,
    object: &Bound<'py, PyAny>,
    name: &'static str,
    chains: usize,
) -> PyResult<Matrix> {
    let array = input.beside(object, name)?;
    if array.dtype != Dtype::I32 {
        return Err(wrong_dtype(name, array.dtype, "int32"));
    }
    if (array.ndim, array.shape[0]) != (1, chains) || chains > 1 && array.strides[0] != 1 {
        let allowed = format!("one per chain, {chains}, side by side");
        return Err(to_py_err(Error::length(name, array.shape[0], allowed)));
    }
    input.written(object, name)
}

/// Returns the three rows of a new array, one for each output.
fn three_rows<'py>(array: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 3]> {
    if modules::torch_of(array)?.is_some() {
        return array.call_method1(intern!(array.py(), "unbind"), (0,))?.extract();
    }
    Ok([array.get_item(0)?, array.get_item(1)?, array.get_item(2)?])
}

/// The arrays of chains, which were checked against their shape.
#[derive(Debug)]
struct Batch {
    shape: [usize; 3],
    draft_probs: Matrix,
    target_probs: Matrix,
    ids: Value<i32>,
    tokens: Matrix,
}

impl Batch {
    /// Runs `work` with the arrays as the engine takes them.
    ///
    /// # Safety
    /// The arrays lie on a device if `on_device`, otherwise on the host, with the elements that the shape
    /// names. Meanwhile, on a device until the enqueued work is done, nobody frees or writes them, nor reads
    /// the tokens.
    unsafe fn with(&self, work: impl FnOnce(DraftChains<'_>) -> Result<()>) -> Result<()> {
        let Self { shape: [chains, n, vocab], draft_probs: q, target_probs: p, ids, tokens } = self;
        let (chains, n, vocab) = (*chains, *n, *vocab);
        let draft_token_ids = match ids {
            Value::Device(ids) => DeviceIntMatrix::of_column("draft_token_ids", *ids, chains, n)?,
            Value::List(ids) => {
                let chains = HostDraftChains {
                    chains,
                    drafts: n,
                    vocab,
                    // SAFETY: the caller ensures that the f32 lie on the host and that nobody writes them.
                    draft_probs: unsafe { q.elements() },
                    draft_token_ids: ids,
                    // SAFETY: the caller ensures that the f32 lie on the host and that nobody writes them.
                    target_probs: unsafe { p.elements() },
                };
                // SAFETY: the caller ensures that the tokens lie on the host and that nobody else uses them.
                return unsafe { write_tokens(tokens, |tokens| work(DraftChains::Host { chains, tokens })) };
            }
            Value::All(_) => unreachable!("the ids are an array"),
        };
        let strides = |rows: usize| [rows * vocab, vocab];
        // SAFETY: the caller ensures that chains * n rows of f32 lie on the device, unchanged meanwhile.
        let draft_probs = unsafe { DraftChainRows::new(q.address as u64, [chains, n, vocab], strides(n)) }?;
        // SAFETY: the caller ensures that chains * (n + 1) rows of f32 lie on the device, unchanged meanwhile.
        let target_probs =
            unsafe { DraftChainRows::new(p.address as u64, [chains, n + 1, vocab], strides(n + 1)) }?;
        let (to, dtype) = (tokens.address as u64, int_type(tokens.dtype));
        // SAFETY: the caller ensures that the tokens lie on the device and that nobody else uses them.
        let tokens = unsafe { DeviceIntMatrixMut::new(to, dtype, chains, n + 1, n + 1) }?;
        work(DraftChains::Device { draft_probs, draft_token_ids, target_probs, tokens })
    }
}

/// Verifies chains of drafts; returns tokens, accepted, emitted, statuses.
///
/// shape: chains, drafts, vocab, already checked against the arrays. added: (accepted, emitted), int32 arrays
/// [chains] to which the counts are added; no statuses are returned then. Other arguments as for `sample_rows`.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, target_probs, shape, seed, position, draw, dtype, stream,
    added=None, offsets=false, zero_for_none=false))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn verify_chains<'py>(
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
) -> PyResult<Verified<'py>> {
    let (chains, n, vocab) = shape;
    let named = stream.map(stream_handle).transpose()?;
    let (rows, array) = joined(target_probs, "target_probs", named, [chains * (n + 1), vocab])?;
    let mut input = Input::of(&rows, "target_probs", array, named)?;
    let target = input.matrix;
    target.check_packed("target_probs")?;
    let stream = input.key.map(|key| key.stream);
    let (rows, array) = joined(draft_probs, "draft_probs", stream, [chains * n, vocab])?;
    input.check_beside(&array, "draft_probs")?;
    let draft = array.matrix("draft_probs")?;
    draft.check_packed("draft_probs")?;
    input.hold(&rows, array);
    let ids = Value::flat(&mut input, draft_token_ids, "draft_token_ids")?;
    let keys = KeyArguments { seed, position, draw, offsets, zero_for_none };
    let keys = DrawKeys::read(&mut input, &keys, None)?;
    let out = input.empty(&[chains, n + 1], dtype)?;
    let tokens = tokens_out(&mut input, &out, chains * (n + 1))?;
    check_apart(&tokens, &draft, "draft_probs")?;
    let adds = added.is_some();
    let (accepted, emitted, statuses) = match added {
        Some((accepted, emitted)) => (accepted, emitted, None),
        None => {
            let [accepted, emitted, statuses] = three_rows(&input.words(&[3, chains])?.0)?;
            (accepted, emitted, Some(statuses))
        }
    };
    let columns = match &statuses {
        None => [
            counts(&mut input, &accepted, "accepted", chains)?,
            counts(&mut input, &emitted, "emitted", chains)?,
        ],
        Some(_) => [input.written(&accepted, "accepted")?, input.written(&emitted, "emitted")?],
    };
    let status = statuses.as_ref().map(|statuses| input.written(statuses, "statuses")).transpose()?;
    let batch = Batch { shape: [chains, n, vocab], draft_probs: draft, target_probs: target, ids, tokens };
    let on_device = input.is_on_device();
    run(&input, |operators| {
        // SAFETY: the arrays have one word per chain and are writable; nobody else uses them meanwhile.
        let column = |matrix| unsafe { words_out::<u32>(matrix, on_device) };
        // SAFETY: the statuses were allocated above with one word per chain, of which any is a status.
        let of = |matrix| unsafe { words_out::<Status>(matrix, on_device) };
        let statuses: Option<PerRowMut<'_, Status>> = status.as_ref().map(of).transpose()?;
        let [accepted, emitted] = [column(&columns[0])?, column(&columns[1])?];
        let counts = DraftChainCounts { accepted: Some(accepted), emitted: Some(emitted), statuses, adds };
        // SAFETY: `input` keeps the arrays alive, whose shapes were checked; on a device their owners reuse
        // memory in stream order. The package's documentation forbids other use until the work is done.
        unsafe { batch.with(|chains| operators.chain_speculative_sampling(chains, &keys.draws(), counts)) }
    })?;
    Ok((out, accepted, emitted, statuses))
}
