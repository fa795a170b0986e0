//! Trees of drafts, chains among them, judged by probabilities.

use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, DraftTreeCounts, DraftTreeRows, DraftTrees, Error, HostDraftTrees,
    IntType, Judgement, Result, Status,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::columns::{Value, int_type};
use super::draws::{check_dtype, tokens_out};
use super::input::{Input, Optional, check_apart, words_out, write_tokens};
use super::params::{DrawKeys, KeyArguments};
use super::run::run;
use crate::arguments::argument;
use crate::arrays::{self, Array, Dtype, Matrix};
use crate::errors::{InvalidValueError, out_of_range, to_py_err};
use crate::modules;
use crate::streams::stream_handle;

/// Reads an array of three dimensions as a matrix. If the rows are not contiguous, their library copies them.
fn joined<'py>(
    object: &Bound<'py, PyAny>,
    name: &str,
    stream: Option<usize>,
    array: Array<'py>,
) -> PyResult<(Bound<'py, PyAny>, Array<'py>)> {
    let shape = [array.outer.map_or(1, |(outer, _)| outer) * array.shape[0], array.shape[1]];
    let array = array.joined();
    if array.ndim == 2 {
        return Ok((object.clone(), array));
    }
    let flat = object.call_method1(intern!(object.py(), "reshape"), (shape,))?;
    let array = arrays::read(&flat, name, stream)?;
    Ok((flat, array))
}

/// Reads an array of counts, one per tree, that the operator adds to.
fn counts<'py>(
    input: &mut Input<'_, 'py>,
    object: &Bound<'py, PyAny>,
    name: &'static str,
    trees: usize,
) -> PyResult<Matrix> {
    let array = input.beside(object, name)?;
    if array.dtype != Dtype::I32 {
        return Err(array.dtype.wrong(name, "int32"));
    }
    if (array.ndim, array.shape[0]) != (1, trees) || trees > 1 && array.strides[0] != 1 {
        let allowed = format!("one per tree, {trees}, side by side");
        return Err(to_py_err(Error::length(name, array.shape[0], allowed)));
    }
    input.written(object, name)
}

/// Returns the first `count` rows of a new array, one for each output.
fn rows_of<'py>(array: &Bound<'py, PyAny>, count: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if modules::torch_of(array)?.is_some() {
        return array.call_method1(intern!(array.py(), "unbind"), (0,))?.extract();
    }
    (0..count).map(|row| array.get_item(row)).collect()
}

/// The arrays of trees, which were checked against their shape.
#[derive(Debug)]
struct Batch {
    /// Trees, drafts, rows of the drafter, and vocabulary.
    shape: [usize; 4],
    draft_probs: Option<Matrix>,
    target_probs: Matrix,
    ids: Value<i32>,
    parents: Option<Value<i32>>,
    tokens: Matrix,
    rows: Option<Matrix>,
}

impl Batch {
    /// Runs `work` with the arrays as the engine takes them.
    ///
    /// # Safety
    /// The arrays lie on a device if `on_device`, otherwise on the host, with the elements that the shape
    /// names. Meanwhile, on a device until the enqueued work is done, no code frees or writes them, nor reads
    /// the tokens and rows.
    unsafe fn with(&self, work: impl FnOnce(DraftTrees<'_>) -> Result<()>) -> Result<()> {
        let Self { draft_probs: q, target_probs: p, ids, parents, tokens, rows, .. } = self;
        let [trees, n, draft_rows, vocab] = self.shape;
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
                    // SAFETY: the caller ensures that the f32 lie on the host and that no code writes them.
                    draft_probs: q.as_ref().map(|q| unsafe { q.elements() }),
                    draft_token_ids: ids,
                    parents: parents.as_deref(),
                    // SAFETY: the caller ensures that the f32 lie on the host and that no code writes them.
                    target_probs: unsafe { p.elements() },
                };
                let with_tokens = |tokens: &mut [i32]| {
                    // SAFETY: the caller ensures that the rows, which are i32, lie on the host and that no
                    // code else uses them.
                    let rows = rows.as_ref().map(|rows| unsafe { rows.elements_mut::<i32>() });
                    work(DraftTrees::Host { trees, tokens, rows })
                };
                // SAFETY: the caller ensures that the tokens lie on the host and that no other code uses
                // them.
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
        let probs = |matrix: &Matrix, rows: usize| {
            let (shape, strides) = ([trees, rows, vocab], [rows * vocab, vocab]);
            // SAFETY: the caller ensures that trees * rows rows of f32 lie on the device, unchanged
            // meanwhile.
            unsafe { DraftTreeRows::new(matrix.address as u64, shape, strides) }
        };
        let draft_probs = q.as_ref().map(|q| probs(q, draft_rows)).transpose()?;
        let target_probs = probs(p, n + 1)?;
        let written = |matrix: &Matrix, dtype: IntType| {
            // SAFETY: the caller ensures that the numbers lie on the device and that no other code uses them.
            unsafe { DeviceIntMatrixMut::new(matrix.address as u64, dtype, trees, n + 1, n + 1) }
        };
        let tokens = written(tokens, int_type(tokens.dtype))?;
        let rows = rows.as_ref().map(|rows| written(rows, IntType::I32)).transpose()?;
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

/// Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the walk
/// ends; returns JudgedDrafts.
///
/// rule: "rejection", sibling after sibling; "block", a chain as a whole, which accepts more; "threshold",
/// which accepts a draft of at least threshold_single, or if a coin times threshold_acc is below its
/// probability and that of the siblings before it. By the first two every emitted token has the distribution
/// of the target's row; thresholds below 1 are biased towards the drafts.
///
/// draft_token_ids: [trees, drafts] integers, at most 64 drafts a tree. An id outside the vocabulary was not
/// drawn: it is never accepted, and fills trees of fewer drafts. parents: [trees, drafts] integers, -1 for
/// the root or the index of a draft before it; None: chains, where each draft follows the one before it. By
/// rejection with draft_probs they are fastest and may have any length. target_probs: [trees, drafts + 1,
/// vocab] float32: the root's row, then the row after each draft. draft_probs: the drafter's probabilities,
/// likewise, of which the last row may be left out, since rows without children are not read, nor any for
/// "threshold"; None if it has no probabilities, or drafts were not drawn from them one after the other
/// without replacement. For "block" drafts must not have been drawn by the random words of their positions.
/// Probabilities are read without a copy if they are contiguous. seed, position (of the first draft) and draw
/// are a number, or one per tree; draw None takes the tree's own index. A seed needs a position, and without
/// both each call draws by fresh entropy: as of sample, whose offsets and zero_for_none these are.
///
/// added: two arrays, [trees] int32 without gaps, beside the rows. The numbers of accepted drafts and of
/// those accepted alone are added to them, and they are the result's accepted and accepted_alone; its
/// statuses is None then. The second is None for trees that have no such number. Raises ValueError for arrays
/// of another shape, and TypeError for another type.
///
/// On a GPU a tree whose parents are wrong accepts no draft, and its status says NO_TREE. Elsewhere it is a
/// ValueError.
#[pyfunction]
#[pyo3(signature = (draft_probs, draft_token_ids, target_probs, parents=None, *, rule="rejection", threshold_single=1.0,
    threshold_acc=1.0, seed=None, position=None, draw=None, offsets=false, zero_for_none=false, added=None, dtype="int32", stream=None),
    text_signature = "(draft_probs, draft_token_ids, target_probs, parents=None, *, rule='rejection', threshold_single=1.0, \
                      threshold_acc=1.0, seed=None, position=None, draw=None, offsets=False, zero_for_none=False, added=None, \
                      dtype='int32', stream=None)"
)]
#[expect(clippy::too_many_arguments, reason = "they are keywords")]
pub fn judge<'py>(
    draft_probs: Option<&Bound<'py, PyAny>>,
    draft_token_ids: &Bound<'py, PyAny>,
    target_probs: &Bound<'py, PyAny>,
    parents: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] rule: &str,
    #[pyo3(from_py_with = argument)] threshold_single: f32,
    #[pyo3(from_py_with = argument)] threshold_acc: f32,
    seed: Option<&Bound<'py, PyAny>>,
    position: Option<&Bound<'py, PyAny>>,
    draw: Option<&Bound<'py, PyAny>>,
    #[pyo3(from_py_with = argument)] offsets: bool,
    #[pyo3(from_py_with = argument)] zero_for_none: bool,
    #[pyo3(from_py_with = argument)] added: Option<(Bound<'py, PyAny>, Optional<'py>)>,
    #[pyo3(from_py_with = argument)] dtype: &str,
    stream: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    static JUDGED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = target_probs.py();
    let judgement = judgement(rule, (threshold_single, threshold_acc))?;
    judgement.check().map_err(to_py_err)?;
    check_dtype(dtype)?;
    let named = stream.map(stream_handle).transpose()?;
    let array = arrays::read(target_probs, "target_probs", named)?;
    let (Some((trees, _)), 3, [width, vocab], true) =
        (array.outer, array.ndim, array.shape, array.shape[0] > 0)
    else {
        let text = format!("target_probs has {} dimensions", array.ndim);
        let text = format!("{text}, but must be [trees, drafts + 1, vocab], with a row at least");
        return Err(InvalidValueError::new_err(text));
    };
    let (n, mut draft_rows) = (width - 1, width);
    let (probs, array) = joined(target_probs, "target_probs", named, array)?;
    let mut input = Input::of(&probs, "target_probs", array, named)?;
    let target = input.matrix;
    target.check_packed("target_probs")?;
    let stream = input.key.map(|key| key.stream);
    let mut drafter = None;
    if let Some(probs) = draft_probs {
        let array = input.beside(probs, "draft_probs")?;
        array.check_shape("draft_probs", &[&[trees, n, vocab], &[trees, width, vocab]])?;
        draft_rows = array.shape[0];
        let (probs, array) = joined(probs, "draft_probs", stream, array)?;
        let matrix = array.matrix("draft_probs")?;
        matrix.check_packed("draft_probs")?;
        input.hold(&probs, array);
        drafter = Some(matrix);
    }
    let ids = Value::flat(&mut input, draft_token_ids, "draft_token_ids", [trees, n])?;
    let parents =
        parents.map(|parents| Value::flat(&mut input, parents, "parents", [trees, n])).transpose()?;
    let keys = KeyArguments { seed, position, draw, offsets, zero_for_none };
    let keys = DrawKeys::read(&mut input, &keys)?;
    let out = input.empty(&[trees, n + 1], dtype)?;
    let tokens = tokens_out(&mut input, &out, trees * (n + 1))?;
    let path = parents.as_ref().map(|_| input.empty(&[trees, n + 1], "int32")).transpose()?;
    let rows = path.as_ref().map(|path| tokens_out(&mut input, path, trees * (n + 1))).transpose()?;
    if let Some(drafter) = &drafter {
        check_apart(&tokens, drafter, "draft_probs")?;
    }
    let adds = added.is_some();
    let (accepted, alone, statuses) = match added {
        Some((accepted, alone)) => (accepted, alone, None),
        None => {
            let has_alone = judgement.is_of_chains(parents.is_some(), drafter.is_some());
            let count = 2 + usize::from(has_alone);
            let mut words =
                rows_of(&input.words(true, &[count, trees])?.0.expect("it is wanted"), count)?.into_iter();
            let mut next = || words.next().expect("as many as were made");
            (next(), has_alone.then(&mut next), Some(next()))
        }
    };
    let column = |input: &mut Input<'_, 'py>, words: &Bound<'py, PyAny>, name| {
        if adds { counts(input, words, name, trees) } else { input.written(words, name) }
    };
    let of_accepted = column(&mut input, &accepted, "accepted")?;
    let of_alone = alone.as_ref().map(|words| column(&mut input, words, "accepted_alone")).transpose()?;
    let bits = statuses.as_ref().map(|words| input.written(words, "statuses")).transpose()?;
    let shape = [trees, n, draft_rows, vocab];
    let batch = Batch { shape, draft_probs: drafter, target_probs: target, ids, parents, tokens, rows };
    let on_device = input.is_on_device();
    run(&input, |operators| {
        // SAFETY: the arrays have one word per tree and are writable; no other code uses them meanwhile.
        let column = |matrix| unsafe { words_out::<u32>(matrix, on_device) };
        // SAFETY: the statuses were allocated above with one word per tree, of which any is a status.
        let statuses = unsafe { words_out::<Status>(bits.as_ref(), on_device) }?;
        let counts = DraftTreeCounts {
            accepted: column(Some(&of_accepted))?,
            accepted_alone: column(of_alone.as_ref())?,
            statuses,
            adds,
        };
        // SAFETY: `input` keeps the arrays alive, whose shapes were checked; on a device their owners reuse
        // memory in stream order. The package's documentation forbids other use until the work is done.
        unsafe { batch.with(|trees| operators.judge(trees, judgement, &keys.draws(), counts)) }
    })?;
    JUDGED.import(py, "gumball.operators", "JudgedDrafts")?.call1((out, path, accepted, alone, statuses))
}
