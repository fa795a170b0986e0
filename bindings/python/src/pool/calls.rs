//! Direct calls: steps, verifications, drafts and scores, which are done on return.

use gumball_engine::unstable::shown;
use gumball_engine::{
    Batch as EngineBatch, Outputs as EngineOutputs, Pool as EnginePool, Proposals, Result, Rows,
    Scored as EngineScored,
};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use super::batch::{Batch, GivenBatch};
use super::lists::{GivenDrafts, GivenInts, Reader};
use super::rows::{GivenRows, HeadInUse, RowsPlace, TakenHeads, engine_rows};
use super::{Inner, Pool};
use crate::arguments::argument;
use crate::arrays::{Array, Location, Matrix};
use crate::errors::{InvalidValueError, draft_names};
use crate::lists::{extract_int, integers};
use crate::outputs::Outputs;
use crate::turns::Caller;
use crate::values::Scored;
use crate::{modules, params};

/// How many hidden states of a score are computed at a time, unless the call says otherwise.
const CHUNK_ROWS: usize = 64;

/// The parts of a call that are needed without the GIL.
struct Call<'a> {
    rows: RowsPlace,
    head: [HeadInUse<'a>; 1],
    batch: &'a Batch,
    /// How many drafts each request has, or each row in front of it.
    counts: &'a [u32],
    masks: Option<Matrix>,
    stream: Option<usize>,
    caller: Caller<'a>,
}

impl Pool {
    /// Makes a call of rows and a batch that were read. The caller keeps rows, the other arrays, and the
    /// masks that are returned, alive during it.
    fn call<'a, 'py>(
        &'a self,
        py: Python<'py>,
        rows: &'a GivenRows<'_>,
        (batch, counts): (&'a Batch, &'a [u32]),
        stream: Option<usize>,
    ) -> PyResult<(Call<'a>, Option<Array<'py>>)> {
        let (masks, held) = self.read_masks(py, batch, stream)?;
        let (head, caller) = ([rows.head(py, &self.device)?], self.caller());
        Ok((Call { rows: rows.place, head, batch, counts, masks, stream, caller }, held))
    }

    /// Works with the pool, the rows and the batch, when it is the call's turn.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: &Call<'_>,
        work: impl FnOnce(&mut EnginePool, Rows<'_>, &EngineBatch<'_>, &mut EngineOutputs) -> Result<R> + Send,
    ) -> PyResult<R> {
        let Call { rows, head, batch, counts, masks, stream, caller } = call;
        self.with(py, *stream, |inner| {
            let device = inner.outside_a_capture()?.device();
            // SAFETY: the caller keeps the rows alive; Python's callers do not write them during the call,
            // which waits for its results.
            let matrix = unsafe { rows.engine(rows.matrix.location != Location::Host) }?;
            let taken = TakenHeads::take(head, device)?;
            let hooks = batch.hooks(caller);
            let hooks: Vec<_> = hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as _)).collect();
            // SAFETY: the caller keeps the masks alive; Python's callers do not write them during the call.
            let batch = unsafe { batch.engine(masks.as_ref(), &hooks) }?;
            let Inner { pool, out } = inner;
            let pool = pool.as_mut().expect("there outside of `close`");
            let rows = engine_rows(matrix, rows.kind, taken.engine(0));
            work(pool, rows, &EngineBatch { counts, ..batch }, out)
        })
    }

    /// Returns a reader of the arrays of a direct call: arrays of a GPU where they lie, all others as lists
    /// of the host.
    fn reader<'py>(&self, stream: Option<usize>) -> Reader<'py> {
        let there = Some(self.location).filter(|location| *location != Location::Host);
        Reader { there, stream, arrays: Vec::new() }
    }
}

/// Returns how many drafts there are of each request: as lists say, or as the batch does.
fn counts<'a>(lists: Option<&'a [u32]>, batch: &'a Batch, name: &str) -> PyResult<&'a [u32]> {
    match lists {
        None => Ok(&batch.counts),
        Some(lists) if batch.counts.is_empty() || lists == batch.counts => Ok(lists),
        Some([]) => Ok(&batch.counts),
        Some(lists) => {
            let text = format!(
                "{name} has lists of {}, but must have the lengths that counts says, {}",
                shown(&format!("{lists:?}")),
                shown(&format!("{:?}", batch.counts))
            );
            Err(InvalidValueError::new_err(text))
        }
    }
}

/// Returns drafts as arrays: ids, and their probabilities if there are some.
pub fn to_arrays<'py>(
    py: Python<'py>,
    drafted: &Proposals,
    siblings: usize,
    vocab: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    modules::load_numpy(py)?;
    let rows = drafted.ids().len() / siblings.max(1);
    let ids = PyArray1::from_slice(py, drafted.ids()).reshape([rows, siblings])?;
    let Some(vocab) = vocab else { return Ok(ids.into_any()) };
    let probs = PyArray1::from_slice(py, drafted.probs()).reshape([rows, vocab])?;
    Ok((ids, probs).into_pyobject(py)?.into_any())
}

#[pymethods]
impl Pool {
    /// Chooses the next token of each row, appends it to the sequence in the row's slot, and returns the
    /// Outputs.
    ///
    /// rows: [rows, vocab] logits, or [vocab] for one row; float32, bfloat16 or float16; rows may be strided.
    /// On the host, or on the pool's device: a pool there copies rows of the host up. Or Probabilities, or
    /// Hidden. Over ranks a row of this rank's ids for each request, which may be followed by padding up to
    /// ranks.width; under "replicated" a row of the whole vocabulary for each of plan.requests. batch: a
    /// Batch, or a list of slots. stream: a CUDA stream's handle.
    ///
    /// Ends what was assigned: assign again before the next enqueue. Raises ValueError or TypeError for
    /// another shape, type or device, and for what the call does not read; ValueError for a slot that is
    /// vacant or occurs twice, for a forced id outside the vocabulary, and for parameters that apply to
    /// logits only if rows hold probabilities; UnavailableError for hooks on a device, and for a head of the
    /// other memory; RuntimeError if a head's weights were written; over ranks a DistError if a rank is late,
    /// gone, or at another step; and the exceptions of hooks. After an error no sequence has changed.
    #[pyo3(signature = (rows, batch, *, stream=None))]
    fn step(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        batch: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Outputs> {
        let stream = self.on(py, stream)?;
        let (rows, batch) = (self.read_rows(rows, stream)?, GivenBatch::read(batch)?);
        let (call, _held) = self.call(py, &rows, (&batch, &batch.counts), stream)?;
        let kept = self.kept;
        self.run(py, &call, |pool, rows, batch, out| {
            pool.step(rows, batch, out)?;
            Ok(Outputs::new(out, kept))
        })
    }

    /// Verifies the drafts of each request, appends the emitted tokens to the sequences, and returns the
    /// Outputs, which tell them by request.
    ///
    /// A request with n drafts, 0 to 64, has n + 1 rows, one after the other: one at the end of its history,
    /// then one after each draft. Without drafts that is a step. Every parameter acts in every row, with the
    /// path to it as output; a row's mask holds after the drafts on the path to it. A stop id that is emitted
    /// is the last token. Rows of padding are not read.
    ///
    /// rows, batch, stream: as for step, with one element of masks, forced, row_indices and hooks for each
    /// row. An auto head computes a part of a row in the modes "coupled" and "greedy", and for requests
    /// without drafts. drafts: Drafts, or their ids alone: a list for each request. Over ranks the rows of a
    /// request stay together, and drafts are of the whole batch.
    ///
    /// Raises UnavailableError on the route "probabilities" for the modes other than "coupled" and "greedy";
    /// ValueError for more than 64 drafts, for a parent that is no draft before in the same request, for
    /// drafts of a request with mirostat or adaptive-p, for probabilities of the drafter in a mode that does
    /// not read them, for a threshold outside 0..=1, and in mode "block" for a tree that is no chain and for
    /// forced tokens beside drafts; and the errors of step. After an error no sequence has changed.
    #[pyo3(signature = (rows, batch, drafts, *, stream=None))]
    fn verify(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        batch: &Bound<'_, PyAny>,
        drafts: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Outputs> {
        let stream = self.on(py, stream)?;
        let (rows, batch, mut reader) =
            (self.read_rows(rows, stream)?, GivenBatch::read(batch)?, self.reader(stream));
        let drafts: GivenDrafts = reader.drafts(drafts)?;
        let counts = counts(drafts.counts.as_deref(), &batch, "drafts")?;
        let (call, _held) = self.call(py, &rows, (&batch, counts), stream)?;
        let kept = self.kept;
        self.run(py, &call, |pool, rows, batch, out| {
            // SAFETY: `reader` keeps the arrays alive; Python's callers do not write them during the call,
            // which waits for its results.
            let drafts = unsafe { drafts.engine() }?;
            pool.verify(rows, batch, &drafts, out).map_err(|error| draft_names(error, Some("drafts")))?;
            Ok(Outputs::new(out, kept))
        })
    }

    /// Draws drafts from the rows of a draft model, and changes no sequence; returns them as [rows, siblings]
    /// int32, -1 where there are no more.
    ///
    /// A row stands after the history of its sequence and a path of drafts. Its drafts are the first tokens
    /// that arrive in the request's race over the row, with all its parameters and with the path as output:
    /// the first is the token that the request would draw there if the row were the target's, the others,
    /// siblings of a tree, are the runners-up. Batch.mode is that which verify will judge the drafts by;
    /// drafts for "block" are drawn by random words of their own, as that mode requires.
    ///
    /// rows, batch, stream: as for step, with one slot for each row; a slot may stand there several times,
    /// and a forced token is the only draft of its row. paths: for each row a list or an integer array of up
    /// to 63 ids; an array [rows, n] if all have n; None: all rows follow the histories. siblings: drafts of
    /// a row, 1 for chains, at most 64. probs: if True, returns a pair with the probabilities that the drafts
    /// are drawn from, [rows, vocab] float32, as rows of Drafts.probs.
    ///
    /// For drafts that nothing waits for, and in graphs, see OnDevice.add_draft_batch. Over ranks, rows are
    /// this rank's part of all rows. Raises UnavailableError on a device for the route "probabilities" and
    /// for Hidden, and on the host on that route for several siblings, for mode "block" and for probs;
    /// ValueError for an id of a path outside the vocabulary, for a path that is too long and for a request
    /// with mirostat or adaptive-p; and the errors of step.
    #[pyo3(
        signature = (rows, batch, paths=None, *, siblings=None, probs=false, stream=None),
        text_signature = "($self, rows, batch, paths=None, *, siblings=1, probs=False, stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn draft<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        batch: &Bound<'py, PyAny>,
        paths: Option<&Bound<'py, PyAny>>,
        siblings: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = argument)] probs: bool,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stream = self.on(py, stream)?;
        let (rows, batch) = (self.read_rows(rows, stream)?, GivenBatch::read(batch)?);
        let siblings = siblings.map_or(Ok(1), |siblings| extract_int::<u32>(siblings, "siblings"))? as usize;
        let mut reader = Reader { there: None, stream, arrays: Vec::new() };
        let (lists, ids) = paths.map(|paths| reader.ints(paths, "paths")).transpose()?.unzip();
        let lists = lists.flatten();
        let counts = counts(lists.as_deref(), &batch, "paths")?;
        let (call, _held) = self.call(py, &rows, (&batch, counts), stream)?;
        let drafted = self.run(py, &call, |pool, rows, batch, _| {
            let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
            let paths = match &ids {
                Some(GivenInts::List(ids)) => &ids[..],
                _ => &[],
            };
            pool.draft(rows, batch, paths, &mut out).map_err(|error| draft_names(error, Some("paths")))?;
            Ok(out)
        })?;
        to_arrays(py, &drafted, siblings, probs.then_some(self.vocab))
    }

    /// Returns the logprobs of given tokens, in the Outputs that steps would return in which these tokens are
    /// forced.
    ///
    /// rows: as for step. params: SamplingParams, whose logprobs say what to report. ids: a Scored, or prompt
    /// and output: row i scores ids[1 + i]. batch: a Batch without slots, for masks, row_indices and hooks.
    /// No slot changes.
    ///
    /// Raises ValueError if a shape differs, or in mode "processed" for mirostat, or for XTC without a seed;
    /// UnavailableError on a device for Hidden; and the errors of step.
    #[pyo3(signature = (rows, params, ids, batch=None, *, stream=None))]
    fn score<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        params: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        batch: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Outputs> {
        let stream = self.on(py, stream)?;
        let rows = self.read_rows(rows, stream)?;
        let batch = batch.map_or(Ok(GivenBatch::Made(Batch::default())), GivenBatch::read)?;
        let (params, mut chunk_rows) = (params::read(params)?, None);
        let number = |given: &Option<Py<PyAny>>, name, default| {
            given.as_ref().map_or(Ok(default), |given| extract_int::<usize>(given.bind(py), name))
        };
        let (ids, prompt_len, start) = if let Ok(scored) = ids.cast::<Scored>() {
            let scored = scored.get();
            let ids: Vec<u32> = integers(scored.ids.bind(py), "ids")?;
            chunk_rows =
                scored.chunk_rows.as_ref().map(|it| extract_int(it.bind(py), "chunk_rows")).transpose()?;
            let prompt_len = number(&scored.prompt_len, "prompt_len", ids.len())?;
            (ids, prompt_len, number(&scored.start, "start", 1)?)
        } else {
            let ids: Vec<u32> = integers(ids, "ids")?;
            let all = ids.len();
            (ids, all, 1)
        };
        if rows.has_head() && self.device == "cpu" {
            chunk_rows = chunk_rows.or(Some(CHUNK_ROWS));
        }
        let (call, _held) = self.call(py, &rows, (&batch, &batch.counts), stream)?;
        self.run(py, &call, |pool, rows, batch, _| {
            let scored = EngineScored { params: &params, ids: &ids, prompt_len, start, chunk_rows };
            let mut out = EngineOutputs::new();
            pool.score(rows, batch, &scored, &mut out)?;
            Ok(Outputs::new(&out, false))
        })
    }
}
