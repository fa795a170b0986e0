//! Values of calls: rows, drafts, scored ids and pieces of work, which hold what Python hands over until a
//! call reads it.

use gumball_engine::Kind;
use pyo3::prelude::*;

use crate::arguments::argument;
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

/// Makes the class of a value: its description, its arguments in Python, and its fields.
macro_rules! value {
    ($(#[$about:meta])* $name:ident $signature:tt $(as $text:literal)? { $($(#[$read:meta])* $field:ident: $of:ty,)* }) => {
        $(#[$about])*
        #[pyclass(frozen, module = "gumball")]
        #[derive(Debug)]
        pub struct $name {
            $(pub $field: $of,)*
        }

        #[pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = $signature $(, text_signature = $text)?)]
            fn new($($(#[$read])* $field: $of),*) -> Self {
                Self { $($field),* }
            }
        }
    };
}

value! {
    /// Rows that hold probabilities in the place of logits, [rows, vocab]; they need not sum to 1. A sequence
    /// may change from one kind to the other.
    Probabilities(rows) {
        rows: Py<PyAny>,
    }
}

value! {
    /// Hidden states in the place of logits: the results equal those from head.logits(states), bit for bit. A
    /// clustered head's logits are -inf here for ids that it does not probe; the Outputs say is_approximate
    /// then.
    ///
    /// head: a Head for pools on the host, a DeviceHead for those on its device; of the pool's vocabulary.
    /// states: [rows, width], or [width] for one row, float32, bfloat16 or float16; rows may be strided.
    Hidden(head, states) {
        head: Py<PyAny>,
        states: Py<PyAny>,
    }
}

value! {
    /// The drafts of all requests, in chains or trees.
    ///
    /// ids: for each request a list or an integer array, or an array [requests, n] if all have n; or the
    /// drafts of all requests one after the other, whose numbers Batch.counts has. An id outside the
    /// vocabulary, such as -1, is never accepted. parents: for each draft, in the same shape, its parent in
    /// the tree of its request: -1 for the end of the history, or the number of a draft before it, from 0;
    /// None: each draft follows the one before it, a chain. first_child, next_sibling: the trees as links
    /// instead, as SGLang and TokenSpeed hold them: one element for each row of a request, the root's first;
    /// each is a row of the request after this one, or -1. probs: the probabilities that the drafts were
    /// drawn from, [requests + drafts, vocab] float32, of which rows without a draft after them are not read;
    /// for "rejection" and "block" alone.
    ///
    /// In the memory of a device ids, parents and links are int32 or int64, in one dimension or in two
    /// without gaps. They are not checked there: a request whose parents or links are no tree takes a step,
    /// with the status NO_TREE.
    Drafts(ids, *, parents=None, first_child=None, next_sibling=None, probs=None) {
        ids: Py<PyAny>,
        parents: Option<Py<PyAny>>,
        first_child: Option<Py<PyAny>>,
        next_sibling: Option<Py<PyAny>>,
        probs: Option<Py<PyAny>>,
    }
}

value! {
    /// A known sequence, some of whose tokens are scored.
    ///
    /// ids: prompt and output; row i scores ids[start + i]. prompt_len: how many ids are prompt; None: all.
    /// chunk_rows: for hidden states, how many rows are computed at a time, 4 bytes for each id of each; 12
    /// with a screen, up to 8 and 12 for each cluster with a clustered one; None: 64.
    Scored(ids, *, prompt_len=None, start=None, chunk_rows=None) as "(ids, *, prompt_len=None, start=1, chunk_rows=None)" {
        ids: Py<PyAny>,
        prompt_len: Option<Py<PyAny>>,
        start: Option<Py<PyAny>>,
        chunk_rows: Option<Py<PyAny>>,
    }
}

value! {
    /// A step, as a piece of work: the next token of each assigned row. rows: as for Pool.step. masks: in the
    /// memory of the device, one for each row, in the place of assigned ones.
    Step(rows, *, masks=None) {
        rows: Py<PyAny>,
        masks: Option<Py<PyAny>>,
    }
}

value! {
    /// A verification of drafts, as a piece of work: each assigned request advances by its emitted tokens.
    /// rows: as for Pool.verify. drafts: Drafts, or their ids. masks: as for Step.
    Verify(rows, drafts, *, masks=None) {
        rows: Py<PyAny>,
        drafts: Py<PyAny>,
        masks: Option<Py<PyAny>>,
    }
}

value! {
    /// Drafts of a DraftBatch, as a piece of work. No sequence changes; the requests are as the device has
    /// them when it gets there.
    ///
    /// rows: of the draft model, as for Pool.step, on the device. paths: int32 or int64 [rows, n] on the
    /// device, the ids of a row without gaps; of each row the first ids are in front of it, as many as were
    /// assigned. Behind a path that has an id outside the vocabulary, such as -1, there are no drafts. masks:
    /// as for Step.
    Draft(batch, rows, paths=None, *, masks=None) {
        batch: Py<PyAny>,
        rows: Py<PyAny>,
        paths: Option<Py<PyAny>>,
        masks: Option<Py<PyAny>>,
    }
}

value! {
    /// A copy of the drafts of a DraftBatch into an array on the device, as a piece of work: the siblings of
    /// a row to columns from column on. So the drafts of several batches come together in chains, which the
    /// next batch takes as paths, and Verify as drafts.
    ///
    /// to: int32 or int64 [rows, n], the ids of a row without gaps.
    CopyDrafts(batch, to, column=0) {
        batch: Py<PyAny>,
        to: Py<PyAny>,
        #[pyo3(from_py_with = argument)]
        column: usize,
    }
}

value! {
    /// Taking the last output tokens of the assigned requests away, as a piece of work: as many of each as a
    /// number says. Work after it reads the shorter requests.
    ///
    /// counts: one for each assigned slot: a list, or int32 or int64 in the memory of the device. A number
    /// below 0 or above the number of output tokens takes nothing away, and so does one above 1 with mirostat
    /// or adaptive-p. Pool.output and state read the sequence back: of a pool with keep_histories always, of
    /// others on devices as long as the outputs of each step were fetched.
    Shorten(counts) {
        counts: Py<PyAny>,
    }
}
