//! Drafts of a pool's requests: how they are drawn, their verification, and tokens that are taken away again.

use gumball_engine::{Batch, Drafts, Kind, Outputs as Verified, Result, VerifyMode};
use pyo3::prelude::*;

use super::backend::Backend;
use super::draft_lists::{DraftLists, DraftProbs};
use super::{Inner, Pool};
use crate::arrays::{self, Array, Location, Matrix};
use crate::errors::{InvalidValueError, draft_names, out_of_range, to_py_err};
use crate::lists::{integers, number};
use crate::options::{self, Keywords, Options};
use crate::turns::Caller;
use crate::verification::Verification;

/// Reads how drafts are judged.
pub fn mode(
    name: &str,
    single: Option<&Bound<'_, PyAny>>,
    acc: Option<&Bound<'_, PyAny>>,
) -> PyResult<VerifyMode> {
    let thresholds = [("threshold_single", single), ("threshold_acc", acc)];
    if name != "threshold"
        && let Some((threshold, _)) = thresholds.iter().find(|(_, value)| value.is_some())
    {
        let text = format!("{threshold} is for mode=\"threshold\", but mode is {name:?}");
        return Err(InvalidValueError::new_err(text));
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

/// Checks that the drafter's probabilities are `rows` rows of a vocabulary, and lie on the host, or beside logits on a device there too.
pub fn check_probs(probs: &Matrix, logits: Location, vocab: usize, rows: usize) -> PyResult<()> {
    if probs.location != Location::Host && probs.location == logits {
        probs.check_f32("draft_probs")?;
    } else if probs.location != Location::Host {
        let allowed = match logits {
            Location::Host => "on cpu, where logits are".to_owned(),
            other => format!("on {other}, where logits are, or on cpu"),
        };
        return Err(out_of_range("draft_probs", format!("on {}", probs.location), &allowed));
    }
    if (probs.rows, probs.width) != (rows, vocab) {
        let found = format!("[{}, {}]", probs.rows, probs.width);
        let allowed = format!("[{rows}, {vocab}]: one row per request and one per draft");
        return Err(out_of_range("draft_probs' shape", found, allowed));
    }
    Ok(())
}

impl Inner {
    /// Makes the pool's stream wait for those on which the owners of arrays write them, if they name one.
    pub(super) fn order_after(&self, streams: &[Option<usize>]) -> Result<()> {
        let Some(gpu) = self.backend.gpu() else { return Ok(()) };
        for stream in streams.iter().flatten() {
            // SAFETY: the array's owner names the live stream of this device on which it writes the array.
            unsafe { gpu.order_after(if *stream == 1 { 0 } else { *stream }) }?;
        }
        Ok(())
    }

    /// Verifies drafts on the host or on the device.
    fn verify(&mut self, work: &Work<'_>, out: &mut Verified) -> Result<()> {
        let Work { logits, kind, of_requests, drafts, options, others, caller } = work;
        self.order_after(others)?;
        let backend = self.outside_a_capture()?;
        // SAFETY: the caller keeps the logits alive; Python's callers do not write them during the call, which waits for the outputs.
        let rows = unsafe { logits.rows_there(*kind) }?;
        let verify = |batch: &Batch<'_>| match backend {
            Backend::Host(host) => host.pool.verify(rows, batch, drafts, out),
            Backend::Device(pool) => pool.verify(rows, batch, drafts, out),
        };
        // SAFETY: the caller keeps the masks alive; Python's callers do not write them during the call.
        unsafe { options.with_hooks(caller, of_requests, verify) }?;
        if let Backend::Device(pool) = &mut self.backend {
            self.has_stepped = false;
            (self.rows, self.requests) = (pool.on_device()?.outputs_layout().rows, of_requests.slots.len());
        }
        Ok(())
    }
}

impl Pool {
    /// Reads logits that lie on the host or on the pool's device.
    pub(super) fn read_logits<'py>(
        &self,
        logits: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<(Matrix, Array<'py>)> {
        let array = arrays::read(logits, "logits", stream)?;
        let matrix = array.matrix("logits")?;
        matrix.check_float()?;
        if matrix.location != Location::Host {
            self.check_location("logits", matrix.location, "")?;
        }
        Ok((matrix, array))
    }

    /// Checks that masks lie on the host, or beside logits on the pool's device there.
    pub(super) fn check_masks(&self, options: &Options, logits: &Matrix) -> PyResult<()> {
        match &options.masks {
            Some(masks) if logits.location != Location::Host && masks.location != Location::Host => {
                self.check_location("masks", masks.location, " or the host")?;
            }
            _ => options.masks_on_host()?,
        }
        options.check_present().map_err(to_py_err)
    }
}

/// The parts of a verification that are needed without the GIL.
struct Work<'a> {
    logits: Matrix,
    kind: Kind,
    /// Slots, numbers of drafts, and how these are judged.
    of_requests: Batch<'a>,
    drafts: Drafts<'a>,
    options: &'a Options,
    /// The streams on which the owners of logits, masks and the drafter's probabilities write them, if they name one.
    others: [Option<usize>; 3],
    caller: Caller<'a>,
}

#[pymethods]
impl Pool {
    /// Verifies the drafts of each request, appends the emitted tokens to the sequences, and returns a
    /// Verification.
    ///
    /// A request with n drafts, 0 to 64, has n + 1 rows of logits, one after the other: that at the end of its
    /// history, then one behind each draft. Without drafts that is a step. Every parameter acts in every row,
    /// with the path to it as output. A stop id that is emitted is the last token. In a pool of the host tokens and
    /// fetch stay those of the last step; on a device they have the outputs of the Verification, until the next step.
    ///
    /// logits: [requests + drafts, vocab], as for step. slots: one per request, -1 for padding,
    /// whose drafts and rows are not read. drafts: for each request a list or an integer array of ids; an array
    /// [requests, n] if all have n. An id outside the vocabulary, such as -1, is never accepted. parents: for each
    /// draft, in the same shape, its parent in the tree of its request: -1 for the end of the history, or the
    /// number of a draft before it, from 0; if omitted, each draft follows the one before it, a chain. first_child,
    /// next_sibling: the tree as links instead, as SGLang and TokenSpeed hold it: for each request a list or an integer array
    /// with one element for each of its rows, the root's first, or arrays [requests, n + 1]; each is a row of the
    /// request behind this one, or -1.
    ///
    /// mode: how drafts are judged. "coupled": a draft is accepted if it is the token that the request would have
    /// drawn, so that the output is that of decoding without drafts. "greedy": the same at temperature 0.
    /// "rejection": by the ratio of the target's and the drafter's probability; emitted tokens have the target's
    /// distribution. "block": chains as a whole, which accepts more and has the same distribution. "threshold":
    /// accepts more than the distribution warrants, drafts of at least the probability threshold_single, and
    /// by a coin times threshold_acc; both in 0..=1, and 1 by default. draft_probs: the probabilities that the
    /// drafts were drawn from, [requests + drafts, vocab] float32, on the host without gaps or beside logits on a device, of
    /// which rows without a draft behind them are not read; for "rejection" and "block" alone, None if the drafter has none.
    ///
    /// masks, mask_present, forced, hooks: as for step, one for each row of logits; a row's mask is that behind the
    /// drafts on the path to it. row_indices: for each of the requests + drafts rows the row of logits that it reads; the rows of
    /// the Verification and of draft_probs are numbered as without it. kind, stream: as for step.
    ///
    /// Raises UnavailableError on the route "probabilities" for the modes other than "coupled" and "greedy", and on a
    /// device for hooks; ValueError for more than 64 drafts, for a parent that is no draft before in the same request, for
    /// drafts of a request with mirostat, for draft_probs in a mode that does not read them, for a threshold outside
    /// 0..=1, and in mode "block" for a tree that is no chain and for forced tokens beside drafts; and the errors of step.
    /// After an error no sequence has changed.
    #[pyo3(
        signature = (
            logits, slots, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, mode="coupled",
            threshold_single=None, threshold_acc=None, masks=None, mask_present=None, forced=None, row_indices=None, hooks=None,
            kind="logits", stream=None,
        ),
        text_signature = "($self, logits, slots, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, \
                          mode='coupled', threshold_single=1.0, threshold_acc=1.0, masks=None, mask_present=None, forced=None, \
                          row_indices=None, hooks=None, kind='logits', stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        mode: &str,
        threshold_single: Option<&Bound<'py, PyAny>>,
        threshold_acc: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
        kind: &str,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Verification> {
        let mode = self::mode(mode, threshold_single, threshold_acc)?;
        let kind = options::kind(kind)?;
        let stream = self.on(py, stream)?;
        let (matrix, array) = self.read_logits(logits, stream)?;
        let slots = integers(slots, "slots")?;
        let lists = DraftLists::read(drafts, parents)?.with_links(first_child, next_sibling)?;
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks };
        let (options, masks) = keywords.read(stream)?;
        let rows = lists.rows(&options.row_indices)?.unwrap_or(matrix.rows);
        self.check_masks(&options, &matrix)?;
        let check = |probs: &Matrix| check_probs(probs, matrix.location, matrix.width, rows);
        let probs = DraftProbs::read(draft_probs, stream, check)?;
        let work = Work {
            logits: matrix,
            kind,
            of_requests: Batch { counts: &lists.counts, mode, ..Batch::of(&slots) },
            drafts: lists.with_probs(probs.there()?),
            options: &options,
            others: [array.stream, masks.as_ref().and_then(|masks| masks.stream), probs.stream()],
            caller: self.caller(),
        };
        let kept = self.kept;
        let verified = self.with(py, stream, |inner| {
            let mut out = if kept { Verified::with_kept() } else { Verified::new() };
            inner.verify(&work, &mut out).map_err(draft_names)?;
            Ok(out)
        })?;
        Verification::new(py, verified, kept)
    }

    /// Takes away the last counts[i] output tokens of the sequence in slots[i], for a caller who stops behind a
    /// token that more were emitted after.
    ///
    /// The sequence is then as it was when the remaining tokens had been emitted. slots, counts: lists or integer
    /// arrays of the same length. On a device the states go through the host, which may have to wait;
    /// enqueue_shorten waits for nothing.
    ///
    /// Raises ValueError for a slot that is vacant or occurs twice, and for more tokens than truncate could take
    /// away. After an error no sequence has changed.
    fn shorten(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, counts: &Bound<'_, PyAny>) -> PyResult<()> {
        let slots: Vec<i32> = integers(slots, "slots")?;
        let counts: Vec<usize> = integers(counts, "counts")?;
        self.with(py, None, |inner| inner.outside_a_capture()?.shorten(&slots, &counts))
    }
}
