//! Drafts of a pool's requests: their verification, and tokens that are taken away again.

use gumball_engine::{BatchOptions, Drafts, Error, Verification as Verified, VerifyMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::Pool;
use super::backend::{Backend, HostPool};
use crate::arrays::{self, Location, Matrix};
use crate::errors::{out_of_range, to_py_err};
use crate::lists::{integer_lists, integers, number};
use crate::options::{self, Keywords};
use crate::verification::Verification;

/// The drafts of all requests, and where in the trees they stand.
struct DraftLists {
    counts: Vec<u32>,
    ids: Vec<i32>,
    parents: Option<Vec<i32>>,
}

impl DraftLists {
    /// Reads a list of drafts for each request and, if given, as many parents.
    fn read(drafts: &Bound<'_, PyAny>, parents: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let drafts = integer_lists::<i32>(drafts, "drafts")?;
        let parents = parents.map(|parents| integer_lists::<i32>(parents, "parents")).transpose()?;
        if let Some(parents) = &parents {
            let lengths = |lists: &[Vec<i32>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
            let (found, wanted) = (lengths(parents), lengths(&drafts));
            if found.len() != wanted.len() {
                let wanted = format!("one list per list of drafts, {}", wanted.len());
                return Err(to_py_err(Error::length("parents", found.len(), wanted)));
            }
            if let Some(request) = (0..found.len()).find(|request| found[*request] != wanted[*request]) {
                let (found, wanted) = (found[request], wanted[request]);
                let text =
                    format!("parents[{request}] has length {found}, but must have one per draft, {wanted}");
                return Err(PyValueError::new_err(text));
            }
        }
        let counts = drafts.iter().map(|drafts| drafts.len() as u32).collect();
        Ok(Self { counts, ids: drafts.concat(), parents: parents.map(|parents| parents.concat()) })
    }
}

/// Reads how drafts are judged.
fn mode(
    name: &str,
    single: Option<&Bound<'_, PyAny>>,
    acc: Option<&Bound<'_, PyAny>>,
) -> PyResult<VerifyMode> {
    let thresholds = [("threshold_single", single), ("threshold_acc", acc)];
    if name != "threshold"
        && let Some((threshold, _)) = thresholds.iter().find(|(_, value)| value.is_some())
    {
        let text = format!("{threshold} is for mode=\"threshold\", but mode is {name:?}");
        return Err(PyValueError::new_err(text));
    }
    match name {
        "coupled" => Ok(VerifyMode::Coupled),
        "greedy" => Ok(VerifyMode::Greedy),
        "rejection" => Ok(VerifyMode::Rejection),
        "block" => Ok(VerifyMode::Block),
        "threshold" => {
            let [single, acc] =
                thresholds.map(|(name, value)| value.map_or(Ok(1.0), |value| number(value, name)));
            Ok(VerifyMode::Threshold { single: single?, acc: acc? })
        }
        _ => {
            let allowed = "\"coupled\", \"greedy\", \"rejection\", \"block\" or \"threshold\"";
            Err(out_of_range("mode", format!("{name:?}"), allowed))
        }
    }
}

/// Checks that the drafter's probabilities are rows of the host like those of logits, without gaps.
fn check_probs(probs: &Matrix, logits: &Matrix) -> PyResult<()> {
    if probs.location != Location::Host {
        return Err(out_of_range("draft_probs", format!("on {}", probs.location), "on cpu"));
    }
    probs.check_packed("draft_probs")?;
    if (probs.rows, probs.width) != (logits.rows, logits.width) {
        let shape = |matrix: &Matrix| format!("[{}, {}]", matrix.rows, matrix.width);
        let allowed = format!("that of logits, {}", shape(logits));
        return Err(out_of_range("draft_probs' shape", shape(probs), allowed));
    }
    Ok(())
}

/// Returns the pool of the host; verification and shortening are refused elsewhere before a lock is taken.
fn host(backend: &mut Backend) -> &mut HostPool {
    let Backend::Host(host) = backend else { unreachable!("pools on a device were refused") };
    host
}

impl Pool {
    /// Refuses a call that pools on a device do not have.
    fn refuse_device(&self, resource: &'static str, instead: &str) -> PyResult<()> {
        if self.device == "cpu" {
            return Ok(());
        }
        let reason = format!("the pool is on {}; {instead}", self.device);
        Err(to_py_err(Error::Unavailable { resource, reason }))
    }
}

#[pymethods]
impl Pool {
    /// Verifies the drafts of each request, appends the emitted tokens to the sequences, and returns a
    /// Verification. On the host only.
    ///
    /// A request with n drafts, 0 to 64, has n + 1 rows of logits, one after the other: that at the end of its
    /// history, then one behind each draft. Without drafts that is a step. Every parameter acts in every row,
    /// with the path to it as output. A stop id that is emitted is the last token. tokens and fetch stay those of
    /// the last step.
    ///
    /// logits: [requests + drafts, vocab], as for step, on the host. slots: one per request, -1 for padding,
    /// whose drafts and rows are not read. drafts: for each request a list or an integer array of ids; an array
    /// [requests, n] if all have n. An id outside the vocabulary, such as -1, is never accepted. parents: for each
    /// draft, in the same shape, its parent in the tree of its request: -1 for the end of the history, or the
    /// number of a draft before it, from 0; if omitted, each draft follows the one before it, a chain.
    ///
    /// mode: how drafts are judged. "coupled": a draft is accepted if it is the token that the request would have
    /// drawn, so that the output is that of decoding without drafts. "greedy": the same at temperature 0.
    /// "rejection": by the ratio of the target's and the drafter's probability; emitted tokens have the target's
    /// distribution. "block": chains as a whole, which accepts more and has the same distribution. "threshold":
    /// accepts more than the distribution warrants, drafts of at least the probability threshold_single, and
    /// by a coin times threshold_acc; both in 0..=1, and 1 by default. draft_probs: the probabilities that the
    /// drafts were drawn from, [requests + drafts, vocab] float32 without gaps, of which rows without a draft
    /// behind them are not read; for "rejection" and "block", None if the drafter has none.
    ///
    /// masks, mask_present, forced, hooks: as for step, one for each row of logits; a row's mask is that behind the
    /// drafts on the path to it. kind: as for step.
    ///
    /// Raises UnavailableError for a pool on a device, which has no kernels for this, and on the route
    /// "probabilities" for the modes other than "coupled" and "greedy"; ValueError for more than 64 drafts, for a
    /// parent that is no draft before in the same request, for drafts of a request with mirostat, for a threshold
    /// outside 0..=1, and in mode "block" for a tree that is no chain and for forced tokens beside drafts; and the
    /// errors of step. After an error no sequence has changed.
    #[pyo3(
        signature = (
            logits, slots, drafts, *, parents=None, draft_probs=None, mode="coupled", threshold_single=None, threshold_acc=None,
            masks=None, mask_present=None, forced=None, hooks=None, kind="logits",
        ),
        text_signature = "($self, logits, slots, drafts, *, parents=None, draft_probs=None, mode='coupled', threshold_single=1.0, \
                          threshold_acc=1.0, masks=None, mask_present=None, forced=None, hooks=None, kind='logits')"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        mode: &str,
        threshold_single: Option<&Bound<'py, PyAny>>,
        threshold_acc: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Verification> {
        let instead = "kernels for it are missing: verify in a pool of the host, or step without drafts";
        self.refuse_device("verification on a device", instead)?;
        let mode = self::mode(mode, threshold_single, threshold_acc)?;
        let kind = options::kind(kind)?;
        let array = arrays::read(logits, "logits", None)?;
        let matrix = array.matrix("logits")?;
        matrix.check_float()?;
        self.check_location("logits", matrix.location, "")?;
        let slots = integers(slots, "slots")?;
        let lists = DraftLists::read(drafts, parents)?;
        let keywords = Keywords { masks, mask_present, forced, hooks, ..Keywords::default() };
        let (options, _masks) = keywords.read(None)?;
        options.masks_on_host()?;
        let probs_array = draft_probs.map(|it| arrays::read(it, "draft_probs", None)).transpose()?;
        let probs = probs_array.as_ref().map(|array| array.matrix("draft_probs")).transpose()?;
        probs.as_ref().map_or(Ok(()), |probs| check_probs(probs, &matrix))?;

        // SAFETY: `array` keeps the logits alive during the call; Python's callers do not write them
        // meanwhile.
        let logits = unsafe { matrix.logits(&[]) }.map_err(to_py_err)?.with_kind(kind);
        // SAFETY: the elements are float32 on the host, as checked. `probs_array` keeps them alive during the
        // call; Python's callers do not write them meanwhile.
        let probs = probs.map(|probs| unsafe { probs.elements::<f32>() });
        // SAFETY: `_masks` keeps the masks alive during the call; Python's callers do not write them
        // meanwhile.
        let batch = unsafe { options.on_host() }.map_err(to_py_err)?;
        let caller = self.caller();
        let hooks = options.hooks(&caller);
        let DraftLists { counts, ids, parents } = &lists;
        let drafts = Drafts { counts, ids, parents: parents.as_deref(), probs };
        let kept = self.kept;
        let verified = self.with(py, None, |inner| {
            let mut out = if kept { Verified::with_kept() } else { Verified::new() };
            let hooks: Vec<_> = hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as _)).collect();
            let options = BatchOptions { hooks: &hooks, ..batch };
            host(&mut inner.backend).pool.verify(logits, &slots, &drafts, mode, &options, &mut out)?;
            Ok(out)
        })?;
        Verification::new(py, verified, kept)
    }

    /// Takes away the last counts[i] output tokens of the sequence in slots[i], for a caller who stops behind a
    /// token that more were emitted after. On the host only.
    ///
    /// The sequence is then as it was when the remaining tokens had been emitted. slots, counts: lists or integer
    /// arrays of the same length.
    ///
    /// Raises UnavailableError for a pool on a device, where truncate does this for one slot; ValueError for a slot
    /// that is vacant or occurs twice, and for more tokens than truncate could take away. After an error no
    /// sequence has changed.
    fn shorten(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, counts: &Bound<'_, PyAny>) -> PyResult<()> {
        self.refuse_device("shorten on a device", "truncate does this for one slot")?;
        let (slots, counts) = (integers(slots, "slots")?, integers(counts, "counts")?);
        self.with(py, None, |inner| host(&mut inner.backend).pool.shorten(&slots, &counts))
    }
}
