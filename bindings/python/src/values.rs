//! Values of calls: rows, drafts, scored ids and pieces of work, which hold what Python hands over until a call reads it.

use gumball_engine::Kind;
use pyo3::prelude::*;

use crate::errors::out_of_range;

/// Reads what rows hold: logits or probabilities.
///
/// # Errors
/// - `ValueError` for another name.
pub fn kind(name: &str) -> PyResult<Kind> {
    match name {
        "logits" => Ok(Kind::Logits),
        "probabilities" => Ok(Kind::Probabilities),
        _ => Err(out_of_range("kind", name, "\"logits\" or \"probabilities\"")),
    }
}

/// Rows that hold probabilities in the place of logits, [rows, vocab]; they need not sum to 1. A sequence may change from one kind to the other.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Probabilities {
    pub rows: Py<PyAny>,
}

#[pymethods]
impl Probabilities {
    #[new]
    fn new(rows: Py<PyAny>) -> Self {
        Self { rows }
    }
}

/// Hidden states in the place of logits: what comes out is that of head.logits(states), bit for bit. A clustered head's logits are -inf here
/// for ids that it does not probe; the Outputs say is_approximate then.
///
/// head: a Head for pools on the host, a DeviceHead for those on its device; of the pool's vocabulary. states: [rows, width], or [width] for
/// one row, float32, bfloat16 or float16; rows may be strided.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Hidden {
    pub head: Py<PyAny>,
    pub states: Py<PyAny>,
}

#[pymethods]
impl Hidden {
    #[new]
    fn new(head: Py<PyAny>, states: Py<PyAny>) -> Self {
        Self { head, states }
    }
}

/// The drafts of all requests, in chains or trees.
///
/// ids: for each request a list or an integer array, or an array [requests, n] if all have n; or the drafts of all requests one after the
/// other, whose numbers Batch.counts has. An id outside the vocabulary, such as -1, is never accepted. parents: for each draft, in the
/// same shape, its parent in the tree of its request: -1 for the end of the history, or the number of a draft before it, from 0; None: each draft
/// follows the one before it, a chain. first_child, next_sibling: the trees as links instead, as SGLang and TokenSpeed hold them: one element for
/// each row of a request, the root's first; each is a row of the request behind this one, or -1. probs: the probabilities that the drafts
/// were drawn from, [requests + drafts, vocab] float32, of which rows without a draft behind them are not read; for "rejection" and "block" alone.
///
/// In the memory of a device ids, parents and links are int32 or int64, in one dimension or in two without gaps. They are not checked there: a
/// request whose parents or links are no tree takes a step, with the status NO_TREE.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Drafts {
    pub ids: Py<PyAny>,
    pub parents: Option<Py<PyAny>>,
    pub first_child: Option<Py<PyAny>>,
    pub next_sibling: Option<Py<PyAny>>,
    pub probs: Option<Py<PyAny>>,
}

#[pymethods]
impl Drafts {
    #[new]
    #[pyo3(signature = (ids, *, parents=None, first_child=None, next_sibling=None, probs=None))]
    fn new(
        ids: Py<PyAny>,
        parents: Option<Py<PyAny>>,
        first_child: Option<Py<PyAny>>,
        next_sibling: Option<Py<PyAny>>,
        probs: Option<Py<PyAny>>,
    ) -> Self {
        Self { ids, parents, first_child, next_sibling, probs }
    }
}

/// A known sequence, some of whose tokens are scored.
///
/// ids: prompt and output; row i scores ids[start + i]. prompt_len: how many ids are prompt; None: all. chunk_rows: for hidden states, how many
/// rows are computed at a time, 4 bytes for each id of each; 12 with a certified head, up to 8 and 12 for each cluster with a clustered one; None: 64.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Scored {
    pub ids: Py<PyAny>,
    pub prompt_len: Option<Py<PyAny>>,
    pub start: Option<Py<PyAny>>,
    pub chunk_rows: Option<Py<PyAny>>,
}

#[pymethods]
impl Scored {
    #[new]
    #[pyo3(
        signature = (ids, *, prompt_len=None, start=None, chunk_rows=None),
        text_signature = "(ids, *, prompt_len=None, start=1, chunk_rows=None)"
    )]
    fn new(
        ids: Py<PyAny>,
        prompt_len: Option<Py<PyAny>>,
        start: Option<Py<PyAny>>,
        chunk_rows: Option<Py<PyAny>>,
    ) -> Self {
        Self { ids, prompt_len, start, chunk_rows }
    }
}

/// A step, as a piece of work: the next token of each assigned row. rows: as for Pool.step. masks: in the memory of the device, one for each row,
/// in the place of assigned ones.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Step {
    pub rows: Py<PyAny>,
    pub masks: Option<Py<PyAny>>,
}

#[pymethods]
impl Step {
    #[new]
    #[pyo3(signature = (rows, *, masks=None))]
    fn new(rows: Py<PyAny>, masks: Option<Py<PyAny>>) -> Self {
        Self { rows, masks }
    }
}

/// A verification of drafts, as a piece of work: each assigned request advances by its emitted tokens. rows: as for Pool.verify. drafts: Drafts, or
/// their ids. masks: as for Step.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Verify {
    pub rows: Py<PyAny>,
    pub drafts: Py<PyAny>,
    pub masks: Option<Py<PyAny>>,
}

#[pymethods]
impl Verify {
    #[new]
    #[pyo3(signature = (rows, drafts, *, masks=None))]
    fn new(rows: Py<PyAny>, drafts: Py<PyAny>, masks: Option<Py<PyAny>>) -> Self {
        Self { rows, drafts, masks }
    }
}

/// Drafts of a DraftBatch, as a piece of work. No sequence changes; the requests are as the device has them when it gets there.
///
/// rows: of the draft model, as for Pool.step, on the device. paths: int32 or int64 [rows, n] on the device, the ids of a row without gaps; of each
/// row the first ids are in front of it, as many as were assigned. Behind a path that has an id outside the vocabulary, such as -1, there are
/// no drafts. masks: as for Step.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Draft {
    pub batch: Py<PyAny>,
    pub rows: Py<PyAny>,
    pub paths: Option<Py<PyAny>>,
    pub masks: Option<Py<PyAny>>,
}

#[pymethods]
impl Draft {
    #[new]
    #[pyo3(signature = (batch, rows, paths=None, *, masks=None))]
    fn new(batch: Py<PyAny>, rows: Py<PyAny>, paths: Option<Py<PyAny>>, masks: Option<Py<PyAny>>) -> Self {
        Self { batch, rows, paths, masks }
    }
}

/// A copy of the drafts of a DraftBatch into an array on the device, as a piece of work: the siblings of a row to columns from column on. So the drafts
/// of several batches come together in chains, which the next batch takes as paths, and Verify as drafts.
///
/// to: int32 or int64 [rows, n], the ids of a row without gaps.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct CopyDrafts {
    pub batch: Py<PyAny>,
    pub to: Py<PyAny>,
    pub column: usize,
}

#[pymethods]
impl CopyDrafts {
    #[new]
    #[pyo3(signature = (batch, to, column=0))]
    fn new(batch: Py<PyAny>, to: Py<PyAny>, column: usize) -> Self {
        Self { batch, to, column }
    }
}

/// Taking the last output tokens of the assigned requests away, as a piece of work: as many of each as a number says. Work behind it reads the
/// shorter requests.
///
/// counts: one for each assigned slot: a list, or int32 or int64 in the memory of the device. A number below 0 or above that of the output tokens
/// takes nothing away, and so does one above 1 with mirostat. Pool.output and state read the sequence back: of a pool with keep_histories always, of
/// others on devices as long as the outputs of each step were fetched.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Shorten {
    pub counts: Py<PyAny>,
}

#[pymethods]
impl Shorten {
    #[new]
    fn new(counts: Py<PyAny>) -> Self {
        Self { counts }
    }
}
