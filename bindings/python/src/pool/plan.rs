//! Plans: the layout of a step, decided before its logits exist, and who samples which requests.

use gumball_engine::Slot;
use gumball_engine::dist::{Plan as EnginePlan, StepKind, StepShape};
use pyo3::prelude::*;

use super::{Pool, no_ranks};
use crate::arguments::argument;
use crate::errors::out_of_range;
use crate::lists::{extract_int, integers};

/// The layout of a step, and the requests that this rank samples. Pool.plan makes it.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Plan {
    pub plan: EnginePlan,
    rank: usize,
}

#[pymethods]
impl Plan {
    /// "gather", "swap", "survey" or "replicated".
    #[getter]
    fn layout(&self) -> &'static str {
        self.plan.layout.name()
    }

    /// The requests that this rank samples, by their numbers in the step, ascending: under "replicated" the
    /// requests whose rows it has. Under "gather" each rank samples all.
    #[getter]
    fn requests(&self) -> Vec<usize> {
        self.plan.shares.of(self.rank).collect()
    }

    /// The number of requests that decided: of a graph, that which it was captured for.
    #[getter]
    fn batch(&self) -> usize {
        self.plan.batch
    }

    fn __repr__(&self) -> String {
        format!("Plan(layout={:?}, requests={:?})", self.layout(), self.requests())
    }
}

/// Reads what a step is for.
fn step_kind(name: &str) -> PyResult<StepKind> {
    match name {
        "prefill" => Ok(StepKind::Prefill),
        "decode" => Ok(StepKind::Decode),
        "verify" => Ok(StepKind::Verify),
        "judge" => Ok(StepKind::Judge),
        _ => {
            let allowed = "\"prefill\", \"decode\", \"verify\" or \"judge\"";
            Err(out_of_range("step", format!("{name:?}"), allowed))
        }
    }
}

#[pymethods]
impl Pool {
    /// Decides the layout of a step of these slots, before its logits exist, and returns a Plan. All ranks
    /// that ask the same get the same; nothing is sent.
    ///
    /// slots: as for step. drafts: the most drafts of a request. step: "prefill", "decode", "verify" for
    /// drafts of the modes coupled and greedy, or "judge" for those of other modes; None: "verify" if there
    /// are drafts. data_parallel: whether each rank has the hidden states of its own requests only. captured:
    /// the number of requests, padding included, that the graph was captured for, if the step replays one.
    ///
    /// Raises UnavailableError for a pool without ranks; ValueError for a vacant slot, for a layout that is
    /// forced and was not configured, and for more requests than captured.
    #[pyo3(
        signature = (slots, *, drafts=None, step=None, data_parallel=false, captured=None),
        text_signature = "($self, slots, *, drafts=0, step=None, data_parallel=False, captured=None)"
    )]
    fn plan(
        &self,
        py: Python<'_>,
        slots: &Bound<'_, PyAny>,
        drafts: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] step: Option<&str>,
        #[pyo3(from_py_with = argument)] data_parallel: bool,
        captured: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Plan> {
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let drafts = drafts.map_or(Ok(0), |drafts| extract_int::<usize>(drafts, "drafts"))?;
        let kind = step_kind(step.unwrap_or(if drafts > 0 { "verify" } else { "decode" }))?;
        let captured = captured.map(|captured| extract_int::<usize>(captured, "captured")).transpose()?;
        self.with(py, None, |inner| {
            let pool = inner.pool()?;
            let rank = pool.ranks().ok_or_else(no_ranks)?.group.rank();
            let shape = StepShape { data_parallel, captured, ..pool.shape(&slots, drafts, kind)? };
            Ok(Plan { plan: pool.plan(&shape)?, rank })
        })
    }
}
