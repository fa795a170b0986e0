//! Drafts in the memory of a group's devices: assigned, verified there without a wait, captured, fetched.

use gumball_engine::{Batch, Outputs as Verified, Slot, Work};
use pyo3::prelude::*;

use super::{DistPlan, DistPool};
use crate::arrays::Array;
use crate::graph::DistGraph;
use crate::lists::integers;
use crate::options::Keywords;
use crate::pool::{DraftArrays, DraftReader, GivenDrafts, verify_mode};
use crate::verification::Verification;

impl DistPool {
    /// Reads the arrays of a verification in the memory of the pool's device.
    fn read_verify<'py>(
        &self,
        py: Python<'py>,
        given: &GivenDrafts<'_, 'py>,
        kind: &str,
    ) -> PyResult<DraftArrays<'py>> {
        self.with(py, |home| home.device().map(drop))?;
        DraftReader { location: self.location, stream: self.on(py)? }.arrays(given, kind)
    }
}

#[pymethods]
impl DistPool {
    /// Assigns slots with their numbers of drafts and a plan to the next verifications on a device, those of captured graphs included. Waits
    /// for nothing.
    ///
    /// slots, counts: one of each for each request of the whole batch, as for Pool.assign_drafts; the same on all ranks, as all arguments. plan: that
    /// of DistPool.plan for these slots and drafts; None: the one for a verification. Other arguments: as for Pool.assign_drafts; masks lie on the host.
    ///
    /// Raises UnavailableError for a pool of the host, and the errors of verify.
    #[pyo3(
        signature = (
            slots, counts, *, plan=None, mode="coupled", threshold_single=None, threshold_acc=None, masks=None, mask_present=None,
            forced=None,
        ),
        text_signature = "($self, slots, counts, *, plan=None, mode='coupled', threshold_single=1.0, threshold_acc=1.0, masks=None, \
                          mask_present=None, forced=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn assign_drafts<'py>(
        &self,
        py: Python<'py>,
        slots: &Bound<'py, PyAny>,
        counts: &Bound<'py, PyAny>,
        plan: Option<&Bound<'py, DistPlan>>,
        mode: &str,
        threshold_single: Option<&Bound<'py, PyAny>>,
        threshold_acc: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let mode = verify_mode(mode, threshold_single, threshold_acc)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let counts: Vec<u32> = integers(counts, "counts")?;
        let keywords = Keywords { masks, mask_present, forced, row_indices: None, hooks: None };
        let (options, _held) = keywords.read(None)?;
        options.masks_on_host()?;
        let plan = plan.map(|plan| plan.get().plan);
        self.with(py, |home| {
            home.device()?;
            let of = Batch { counts: &counts, mode, plan, ..Batch::of(&slots) };
            // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers do not write them meanwhile.
            let batch = unsafe { options.batch(&of) }?;
            home.device()?.assign(&batch)
        })
    }

    /// Enqueues the verification of drafts that lie on the device, for the requests that assign_drafts was given, and returns without
    /// waiting. On a device only.
    ///
    /// Each request is verified by one rank, and all ranks advance it by its emitted tokens, so a step or another verification may follow
    /// at once.
    ///
    /// logits: rows of this rank on the device, one for each request and draft, in the shape that step takes. drafts, parents, first_child,
    /// next_sibling, draft_probs: those of the whole batch, as for Pool.enqueue_verify, with the same values on each rank's device. kind: as for
    /// step. Until the work is done, write or free the arrays only in stream order. A verification in a graph of torch is captured like this, too.
    ///
    /// Raises UnavailableError for a pool of the host; ValueError or TypeError for another shape, type or device, and without drafts
    /// assigned; BrokenError after an exchange that failed.
    #[pyo3(
        signature = (
            logits, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, kind="logits",
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue_verify<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<()> {
        let links = [first_child, next_sibling];
        let given =
            GivenDrafts { rows: ("logits", logits), drafts, parents, links, probs: draft_probs, masks: None };
        let DraftArrays { rows, drafts, others, arrays: _held, .. } = self.read_verify(py, &given, kind)?;
        self.with(py, |home| {
            home.order_after(&others)?;
            home.device()?.enqueue(&[Work::verify(rows, drafts)])
        })
    }

    /// Captures the verification of drafts on the device, to be replayed by replay. Returns a DistGraph. On a device only. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment, and reads the drafts that lie there then. The layout, the mode, and the numbers of requests and
    /// of rows that each rank verifies must stay the same. The graph keeps the arrays alive; their addresses must not change. Arguments: as
    /// for enqueue_verify.
    #[pyo3(
        signature = (
            logits, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, kind="logits",
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn capture_verify<'py>(
        slf: &Bound<'py, Self>,
        logits: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        kind: &str,
    ) -> PyResult<DistGraph> {
        let (py, this) = (slf.py(), slf.get());
        let links = [first_child, next_sibling];
        let given =
            GivenDrafts { rows: ("logits", logits), drafts, parents, links, probs: draft_probs, masks: None };
        let DraftArrays { rows, drafts, arrays, .. } = this.read_verify(py, &given, kind)?;
        let work = Work::verify(rows, drafts);
        let captured = this.with(py, |home| home.device()?.capture(&[work]))?;
        let loans = arrays.into_iter().filter_map(Array::into_loan);
        let held = given.objects().into_iter().chain(loans).collect();
        Ok(DistGraph::new(slf.clone().into_any().unbind(), captured, held))
    }

    /// Waits for the enqueued work, and returns the Verification of the last drafts: the whole batch, on every rank. On a device only. Raises what fetch
    /// raises.
    fn fetch_verification(&self, py: Python<'_>) -> PyResult<Verification> {
        let verified = self.with(py, |home| {
            let mut out = Verified::new();
            home.device()?.fetch(&mut out)?;
            Ok(out)
        })?;
        Verification::new(py, verified, false)
    }
}
