//! Steps and verifications over the ranks of a group.

use gumball_engine::{Batch, Outputs as EngineOutputs, Outputs as Verified, Slot};
use pyo3::prelude::*;

use super::home::either;
use super::{DistPlan, DistPool};
use crate::arrays::{self, Array, Location, Matrix};
use crate::errors::out_of_range;
use crate::lists::integers;
use crate::options::{self, Keywords};
use crate::outputs::Outputs;
use crate::pool::{DraftLists, DraftProbs, verify_mode};
use crate::verification::Verification;

impl DistPool {
    /// Reads the logits of this rank, which lie on the host or where the pool is.
    fn read_logits<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
    ) -> PyResult<(Matrix, Array<'py>)> {
        let array = arrays::read(logits, "logits", self.on(py)?)?;
        let matrix = array.matrix("logits")?;
        matrix.check_float()?;
        if matrix.location != Location::Host && matrix.location != self.location {
            let allowed = match self.location {
                Location::Host => "on cpu, where the pool is".to_owned(),
                location => format!("on {location}, where the pool is, or on cpu"),
            };
            return Err(out_of_range("logits", format!("on {}", matrix.location), allowed));
        }
        Ok((matrix, array))
    }
}

/// Checks that the drafter's probabilities lie on the host and have the `wanted` number of rows and of ids.
fn check_probs(probs: &Matrix, wanted: (usize, usize)) -> PyResult<()> {
    if probs.location != Location::Host {
        let found = format!("on {}", probs.location);
        return Err(out_of_range("draft_probs", found, "on cpu, as the drafts are"));
    }
    if (probs.rows, probs.width) != wanted {
        let found = format!("{} rows of {}", probs.rows, probs.width);
        let allowed = format!("{} rows of {}", wanted.0, wanted.1);
        return Err(out_of_range("draft_probs", found, &allowed));
    }
    Ok(())
}

#[pymethods]
impl DistPool {
    /// Chooses the next token of each row, appends it to the sequence in the row's slot on all ranks, and returns the Outputs of the whole
    /// batch: those of Pool.step for the whole logits, bit for bit.
    ///
    /// logits: a row for each slot, of the ids of this rank, which may be followed by padding up to width; under "replicated" a row of
    /// the whole vocabulary for each of plan.requests. On the host, or where the pool is: a pool on a device copies rows of the host up. It waits for the
    /// results; see enqueue for steps without a wait. plan: that of Pool.plan for these slots; None: the one for a
    /// step of decoding. slots, masks, mask_present, forced, hooks, kind: as for Pool.step, of the whole batch and vocabulary, the same on
    /// all ranks.
    ///
    /// Raises the errors of Pool.step, before anything is sent; and a DistError if a rank is late, gone, or at another step.
    #[pyo3(
        signature = (
            logits, slots, *, plan=None, masks=None, mask_present=None, forced=None, hooks=None, kind="logits",
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn step<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        plan: Option<&Bound<'py, DistPlan>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Outputs> {
        let kind = options::kind(kind)?;
        let (matrix, held_logits) = self.read_logits(py, logits)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let keywords = Keywords { masks, mask_present, forced, row_indices: None, hooks };
        let (options, _held_masks) = keywords.read(None)?;
        options.masks_on_host()?;
        let (plan, caller, kept) = (plan.map(|plan| plan.get().plan), self.inner.caller(), self.kept);
        self.with(py, |home| {
            home.order_after(&[held_logits.stream])?;
            // SAFETY: `held_logits` keeps the logits alive; Python's callers do not write them during the call, which waits for the outputs.
            let rows = unsafe { matrix.rows_there(kind) }?;
            let mut out = if kept { EngineOutputs::with_kept() } else { EngineOutputs::new() };
            let step = |batch: &Batch<'_>| either!(home, pool => pool.step(rows, batch, &mut out));
            let of = Batch { plan, ..Batch::of(&slots) };
            // SAFETY: `_held_masks` keeps the masks alive; Python's callers do not write them during the call.
            unsafe { options.with_hooks(&caller, &of, step) }?;
            Ok(Outputs::new(&out, kept))
        })
    }

    /// Verifies the drafts of each request, appends the emitted tokens to the sequences on all ranks, and returns the Verification of the
    /// whole batch: that of Pool.verify for the whole logits, bit for bit.
    ///
    /// logits: as for step, with the rows that Pool.verify takes; a request's rows stay together. A pool on a device copies the drafts up;
    /// see enqueue_verify for drafts that lie there. plan: that of Pool.plan for these slots
    /// and drafts; None: the one for a verification. Under "survey" nothing is verified. Other arguments: as for Pool.verify, the same
    /// on all ranks; draft_probs has whole rows of all requests.
    ///
    /// Raises the errors of Pool.verify, before anything is sent; and a DistError if a rank is late, gone, or at another step.
    #[pyo3(
        signature = (
            logits, slots, drafts, *, plan=None, parents=None, first_child=None, next_sibling=None, draft_probs=None, mode="coupled",
            threshold_single=None, threshold_acc=None, masks=None, mask_present=None, forced=None, hooks=None, kind="logits",
        ),
        text_signature = "($self, logits, slots, drafts, *, plan=None, parents=None, first_child=None, next_sibling=None, \
                          draft_probs=None, mode='coupled', threshold_single=1.0, threshold_acc=1.0, masks=None, \
                          mask_present=None, forced=None, hooks=None, kind='logits')"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        plan: Option<&Bound<'py, DistPlan>>,
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
        hooks: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<Verification> {
        let mode = verify_mode(mode, threshold_single, threshold_acc)?;
        let kind = options::kind(kind)?;
        let (matrix, held_logits) = self.read_logits(py, logits)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let lists = DraftLists::read(drafts, parents)?.with_links(first_child, next_sibling)?;
        let keywords = Keywords { masks, mask_present, forced, row_indices: None, hooks };
        let (options, _held_masks) = keywords.read(None)?;
        options.masks_on_host()?;
        let wanted = (lists.counts.len() + lists.ids.len(), self.vocab());
        let probs = DraftProbs::read(draft_probs, None, |probs| check_probs(probs, wanted))?;
        let drafts = lists.with_probs(probs.there()?);
        let (plan, caller, kept) = (plan.map(|plan| plan.get().plan), self.inner.caller(), self.kept);
        let of = Batch { counts: &lists.counts, mode, plan, ..Batch::of(&slots) };
        let verified = self.with(py, |home| {
            home.order_after(&[held_logits.stream])?;
            // SAFETY: `held_logits` keeps the logits alive; Python's callers do not write them during the call, which waits for the outputs.
            let rows = unsafe { matrix.rows_there(kind) }?;
            let mut out = if kept { Verified::with_kept() } else { Verified::new() };
            let verify =
                |batch: &Batch<'_>| either!(home, pool => pool.verify(rows, batch, &drafts, &mut out));
            // SAFETY: `_held_masks` keeps the masks alive; Python's callers do not write them during the call.
            unsafe { options.with_hooks(&caller, &of, verify) }?;
            Ok(out)
        })?;
        Verification::new(py, verified, kept)
    }
}
