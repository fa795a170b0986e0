//! Trees of drafts, judged by probabilities.

use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, DraftChainRows, DraftTreeCounts, DraftTrees, Error, HostDraftTrees,
    IntType, Judgement, PerRowMut, Result, Status,
};
use pyo3::prelude::*;

use super::columns::{Value, int_type};
use super::draft_chains::joined;
use super::input::{Input, check_apart, words_out, write_tokens};
use super::params::{DrawKeys, KeyArguments};
use super::run::run;
use super::sample::tokens_out;
use crate::arrays::Matrix;
use crate::errors::{out_of_range, to_py_err};
use crate::streams::stream_handle;

/// Tokens, rows, numbers of accepted drafts, and statuses.
type Judged<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// The arrays of trees, which were checked against their shape.
#[derive(Debug)]
struct Batch {
    shape: [usize; 3],
    draft_probs: Option<Matrix>,
    target_probs: Matrix,
    ids: Value<i32>,
    parents: Option<Value<i32>>,
    tokens: Matrix,
    rows: Matrix,
}

impl Batch {
    /// Runs `work` with the arrays as the engine takes them.
    ///
    /// # Safety
    /// The arrays lie on a device if `on_device`, otherwise on the host, with the elements that the shape
    /// names. Meanwhile, on a device until the enqueued work is done, nobody frees or writes them, nor reads
    /// the tokens and rows.
    unsafe fn with(&self, work: impl FnOnce(DraftTrees<'_>) -> Result<()>) -> Result<()> {
        let Self { shape: [trees, n, vocab], draft_probs: q, target_probs: p, ids, parents, tokens, rows } =
            self;
        let (trees, n, vocab) = (*trees, *n, *vocab);
        let list = |value: &'_ Value<i32>| -> Result<Vec<i32>> {
            match value {
                Value::List(values) => Ok(values.clone()),
                _ => Err(Error::out_of_range("parents", "on a device", "where draft_token_ids lie")),
            }
        };
        let draft_token_ids = match ids {
            Value::Device(ids) => DeviceIntMatrix::of_column("draft_token_ids", *ids, trees, n)?,
            Value::List(ids) => {
                let parents = parents.as_ref().map(list).transpose()?;
                let trees = HostDraftTrees {
                    trees,
                    drafts: n,
                    vocab,
                    // SAFETY: the caller ensures that the f32 lie on the host and that nobody writes them.
                    draft_probs: q.as_ref().map(|q| unsafe { q.elements() }),
                    draft_token_ids: ids,
                    parents: parents.as_deref(),
                    // SAFETY: the caller ensures that the f32 lie on the host and that nobody writes them.
                    target_probs: unsafe { p.elements() },
                };
                let with_tokens = |tokens: &mut [i32]| {
                    // SAFETY: the caller ensures that the rows, which are i32, lie on the host and that nobody
                    // else uses them.
                    unsafe {
                        write_tokens(rows, |rows| work(DraftTrees::Host { trees, tokens, rows: Some(rows) }))
                    }
                };
                // SAFETY: the caller ensures that the tokens lie on the host and that nobody else uses them.
                return unsafe { write_tokens(tokens, with_tokens) };
            }
            Value::All(_) => unreachable!("the ids are an array"),
        };
        let parents = match parents {
            Some(Value::Device(column)) => Some(DeviceIntMatrix::of_column("parents", *column, trees, n)?),
            Some(_) => {
                return Err(Error::out_of_range("parents", "on the host", "where draft_token_ids lie"));
            }
            None => None,
        };
        let (shape, strides) = ([trees, n + 1, vocab], [(n + 1) * vocab, vocab]);
        // SAFETY: the caller ensures that trees * (n + 1) rows of f32 lie on the device, unchanged meanwhile.
        let probs = |matrix: &Matrix| unsafe { DraftChainRows::new(matrix.address as u64, shape, strides) };
        let (draft_probs, target_probs) = (q.as_ref().map(probs).transpose()?, probs(p)?);
        let written = |matrix: &Matrix, dtype: IntType| {
            // SAFETY: the caller ensures that the numbers lie on the device and that nobody else uses them.
            unsafe { DeviceIntMatrixMut::new(matrix.address as u64, dtype, trees, n + 1, n + 1) }
        };
        let (tokens, rows) = (written(tokens, int_type(tokens.dtype))?, Some(written(rows, IntType::I32)?));
        work(DraftTrees::Device { draft_probs, draft_token_ids, parents, target_probs, tokens, rows })
    }
}

/// Returns the rule of a name.
fn judgement(rule: &str, (single, acc): (f32, f32)) -> PyResult<Judgement> {
    match rule {
        "rejection" => Ok(Judgement::Rejection),
        "block" => Ok(Judgement::Block),
        "threshold" => Ok(Judgement::Threshold { single, acc }),
        _ => Err(out_of_range("rule", format!("{rule:?}"), "\"rejection\", \"block\" or \"threshold\"")),
    }
}

/// Judges trees of drafts; returns tokens, rows, accepted, statuses.
///
/// shape: trees, drafts, vocab, already checked against the arrays. rule: rejection, block or threshold; thresholds: single
/// and acc, for the last. Other arguments as for `verify_chains`.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, parents, target_probs, shape, rule, thresholds, seed, position, draw,
    dtype, stream, zero_for_none=false))]
#[expect(clippy::too_many_arguments, reason = "they are keywords of the package's functions")]
pub fn judge_trees<'py>(
    draft_probs: Option<&Bound<'py, PyAny>>,
    draft_token_ids: &Bound<'py, PyAny>,
    parents: Option<&Bound<'py, PyAny>>,
    target_probs: &Bound<'py, PyAny>,
    shape: (usize, usize, usize),
    rule: &str,
    thresholds: (f32, f32),
    seed: &Bound<'py, PyAny>,
    position: &Bound<'py, PyAny>,
    draw: Option<&Bound<'py, PyAny>>,
    dtype: &str,
    stream: Option<&Bound<'py, PyAny>>,
    zero_for_none: bool,
) -> PyResult<Judged<'py>> {
    let judgement = judgement(rule, thresholds)?;
    judgement.check().map_err(to_py_err)?;
    let (trees, n, vocab) = shape;
    let flat = [trees * (n + 1), vocab];
    let named = stream.map(stream_handle).transpose()?;
    let (probs, array) = joined(target_probs, "target_probs", named, flat)?;
    let mut input = Input::of(&probs, "target_probs", array, named)?;
    let target = input.matrix;
    target.check_packed("target_probs")?;
    let stream = input.key.map(|key| key.stream);
    let mut drafter = None;
    if let Some(probs) = draft_probs {
        let (probs, array) = joined(probs, "draft_probs", stream, flat)?;
        input.check_beside(&array, "draft_probs")?;
        let matrix = array.matrix("draft_probs")?;
        matrix.check_packed("draft_probs")?;
        input.hold(&probs, array);
        drafter = Some(matrix);
    }
    let ids = Value::flat(&mut input, draft_token_ids, "draft_token_ids")?;
    let parents = parents.map(|parents| Value::flat(&mut input, parents, "parents")).transpose()?;
    let keys = KeyArguments { seed, position, draw, offsets: false, zero_for_none };
    let keys = DrawKeys::read(&mut input, &keys, None)?;
    let out = input.empty(&[trees, n + 1], dtype)?;
    let tokens = tokens_out(&mut input, &out, trees * (n + 1))?;
    let path = input.empty(&[trees, n + 1], "int32")?;
    let rows = tokens_out(&mut input, &path, trees * (n + 1))?;
    if let Some(drafter) = &drafter {
        check_apart(&tokens, drafter, "draft_probs")?;
    }
    let ((accepted, counts), (statuses, bits)) = (input.words(&[trees])?, input.words(&[trees])?);
    let batch = Batch {
        shape: [trees, n, vocab],
        draft_probs: drafter,
        target_probs: target,
        ids,
        parents,
        tokens,
        rows,
    };
    let on_device = input.is_on_device();
    run(&input, |operators| {
        // SAFETY: the counts were allocated above with one word per tree; nobody else uses them meanwhile.
        let accepted: PerRowMut<'_, u32> = unsafe { words_out(&counts, on_device) }?;
        // SAFETY: the same of the statuses, of which any word is one.
        let statuses: PerRowMut<'_, Status> = unsafe { words_out(&bits, on_device) }?;
        let counts = DraftTreeCounts { accepted: Some(accepted), statuses: Some(statuses) };
        // SAFETY: `input` keeps the arrays alive, whose shapes were checked; on a device their owners reuse
        // memory in stream order. The package's documentation forbids other use until the work is done.
        unsafe {
            batch.with(|trees| operators.tree_speculative_sampling(trees, judgement, &keys.draws(), counts))
        }
    })?;
    Ok((out, path, accepted, statuses))
}
