//! Plans of steps over ranks: which layout the logits have, and who has which request.

use std::mem::MaybeUninit;

use gumball_engine::Error;
use gumball_engine::dist::{self, LogitsLayout, Shares, StepKind as Kind, StepShape};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, plain, require, slice};
use crate::pool::Pool;
use crate::ranks::{Plan, PlanShape};
use crate::versioned::read_or_default;

impl Pool {
    /// Returns the plan of a batch.
    pub(crate) fn planned(&self, given: Option<Plan>) -> Result<Option<dist::Plan>> {
        let Some(given) = given else { return Ok(None) };
        if self.home.ranks().is_err() {
            let reason = "one process has all rows; leave the plan out";
            return Err(Error::Conflict { parameter: "plan", other: "pool", reason }.into());
        }
        let layout = usize::try_from(given.layout).ok().and_then(|layout| LogitsLayout::ALL.get(layout));
        let Some(layout) = layout.copied() else {
            let allowed = "GUMBALL_GATHER, GUMBALL_SWAP, GUMBALL_SURVEY or GUMBALL_REPLICATED";
            return Err(Failure::out_of_range("layout", given.layout, allowed));
        };
        Ok(Some(dist::Plan { layout, shares: self.shares(given.requests)?, batch: given.batch }))
    }

    fn shares(&self, requests: usize) -> Result<Shares> {
        let (planner, group) = self.home.ranks()?;
        Ok(Shares::new(planner.config().ownership, requests, group.world()))
    }
}

/// Decides the layout of a step over ranks, before its logits exist. All ranks that ask the same get the same; nothing is sent.
///
/// `slots`: `requests` slots, -1 for padding. `step`: what the step is for; NULL: one token for each request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_plan(
    pool: Option<&Pool>,
    slots: *const i32,
    requests: usize,
    step: *const PlanShape,
    out: Option<&mut MaybeUninit<Plan>>,
) -> Code {
    call(|| {
        let (pool, out) = (require("pool", pool)?, require("out", out)?);
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        // SAFETY: the C caller ensures that `step` is NULL or points to the bytes that its `struct_size` names.
        let step: PlanShape = unsafe { read_or_default("step", step) }?;
        let kind = match step.kind {
            0 => Kind::Decode,
            1 => Kind::Prefill,
            2 => Kind::Verify,
            other => {
                let allowed = "GUMBALL_DECODE, GUMBALL_PREFILL or GUMBALL_VERIFY";
                return Err(Failure::out_of_range("kind", other, allowed));
            }
        };
        let (planner, _) = pool.home.ranks()?;
        let captured = (step.captured > 0).then_some(step.captured);
        let data_parallel = step.is_data_parallel > 0;
        let shape = pool.home.shape(slots, step.drafts, kind)?;
        let plan = planner.plan(&StepShape { data_parallel, captured, ..shape })?;
        out.write(Plan { layout: plan.layout as i32, requests, batch: plan.batch });
        Ok(())
    })
}

/// Tells which rank owns a request of a plan: samples it under GUMBALL_SWAP, and has its rows under GUMBALL_REPLICATED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_owner(
    pool: Option<&Pool>,
    plan: *const Plan,
    request: usize,
    rank: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|| {
        let (pool, rank) = (require("pool", pool)?, require("rank", rank)?);
        // SAFETY: the C caller ensures that `plan` is NULL or points to a plan.
        let Plan { requests, .. } = unsafe { plain("plan", plan) }?;
        if request >= requests {
            let allowed = format!("a request in 0..{requests}");
            return Err(Failure::out_of_range("request", request, &allowed));
        }
        rank.write(pool.shares(requests)?.owner(request));
        Ok(())
    })
}
