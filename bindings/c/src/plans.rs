//! Plans of steps over ranks: which layout the logits have, and who has which request.

use std::mem::MaybeUninit;

use gumball_engine::dist::{self, LogitsLayout, Shares, StepKind as Kind, StepShape};
use gumball_engine::{Error, RanksInfo};

use crate::batch::{Batch, read_mode};
use crate::error::{Code, Failure, Result};
use crate::ffi::{StepKindNumber, call, constant, require};
use crate::pool::Pool;
use crate::ranks::{Plan, RowLayout, StepKind};

impl Pool {
    pub(crate) fn planned(&self, given: Option<Plan>) -> Result<Option<dist::Plan>> {
        let Some(given) = given else { return Ok(None) };
        let shares = self.shares(given.requests)?;
        let layouts = [
            (RowLayout::GUMBALL_GATHER, LogitsLayout::Gather),
            (RowLayout::GUMBALL_SWAP, LogitsLayout::Swap),
            (RowLayout::GUMBALL_SURVEY, LogitsLayout::Survey),
            (RowLayout::GUMBALL_REPLICATED, LogitsLayout::Replicated),
        ];
        let layout = constant("layout", given.layout, &layouts)?;
        Ok(Some(dist::Plan { layout, shares, batch: given.batch }))
    }

    fn shares(&self, requests: usize) -> Result<Shares> {
        let Some(RanksInfo { planner, group, .. }) = self.inner.ranks() else {
            let reason = "one process has all rows; leave the plan out";
            return Err(Error::Conflict { parameter: "plan", other: "pool", reason }.into());
        };
        Ok(Shares::new(planner.config().ownership, requests, group.world()))
    }
}

/// Decides the layout of a step over ranks, before its logits exist. All ranks that ask the same get the
/// same; nothing is sent.
///
/// `batch`: the step's, of which only `slots`, `counts` and, for GUMBALL_VERIFY, the mode are read.
/// `captured`: the number of requests, padding included, that the graph of a replay was captured for; 0: the
/// step replays none. `is_data_parallel` above 0: each rank has the hidden states of its own requests only.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_plan(
    pool: Option<&Pool>,
    batch: *const Batch,
    kind: StepKindNumber,
    captured: usize,
    is_data_parallel: u32,
    out: Option<&mut MaybeUninit<Plan>>,
) -> Code {
    call(|c| {
        let (pool, out) = (require("pool", pool)?, require("out", out)?);
        let given = c.read("batch", batch)?;
        let slots = c.slice("slots", given.slots, given.len)?;
        let counts = c.list("counts", given.counts, given.len)?.unwrap_or_default();
        let kinds = [
            (StepKind::GUMBALL_DECODE, Kind::Decode),
            (StepKind::GUMBALL_PREFILL, Kind::Prefill),
            (StepKind::GUMBALL_VERIFY, Kind::Verify),
        ];
        let kind = match constant("kind", kind, &kinds)? {
            Kind::Verify => read_mode(given.mode, given.threshold_single, given.threshold_acc)?.step_kind(),
            kind => kind,
        };
        let drafts = counts.iter().max().map_or(0, |most| *most as usize);
        let shape = pool.inner.shape(slots, drafts, kind)?;
        let (data_parallel, captured) = (is_data_parallel > 0, (captured > 0).then_some(captured));
        let plan = pool.inner.plan(&StepShape { data_parallel, captured, ..shape })?;
        out.write(Plan { layout: plan.layout as i32, requests: slots.len(), batch: plan.batch });
        Ok(())
    })
}

/// Tells which rank owns a request of a plan: samples it under GUMBALL_SWAP, and has its rows under
/// GUMBALL_REPLICATED.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_owner(
    pool: Option<&Pool>,
    plan: *const Plan,
    request: usize,
    rank: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|c| {
        let (pool, rank) = (require("pool", pool)?, require("rank", rank)?);
        let Plan { requests, .. } = c.plain("plan", plan)?;
        if request >= requests {
            let allowed = format!("a request in 0..{requests}");
            return Err(Failure::out_of_range("request", request, &allowed));
        }
        rank.write(pool.shares(requests)?.owner(request));
        Ok(())
    })
}
