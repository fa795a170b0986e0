//! Steps and verifications over the processes of a group, and their layouts.

use std::mem::MaybeUninit;

use gumball_engine::Batch;
use gumball_engine::dist::{Plan, Shares, StepKind, StepShape};

use crate::dist::{DistPool, layout_of};
use crate::dist_config::{DistDecision, DistShape};
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, require, slice};
use crate::logits::{Logits, read_logits};
use crate::options::{StepOptions, read_options};
use crate::outputs::Outputs;
use crate::step::rows_of;
use crate::verify::{Drafts, Verification, own_names, read_drafts};
use crate::versioned::{read, read_or_default, write};

impl DistPool {
    /// Returns the plan that C handed in; for NULL the pool decides.
    ///
    /// # Safety
    /// `given` is NULL or points to the bytes that its `struct_size` names.
    unsafe fn planned(&self, given: *const DistDecision) -> Result<Option<Plan>> {
        if given.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller ensures that `given` points to the bytes that its `struct_size` names.
        let given = unsafe { read("plan", given) }?;
        let (layout, shares) = (layout_of(given.layout)?, self.shares(given.requests));
        Ok(Some(Plan { layout, shares, batch: given.batch }))
    }

    fn shares(&self, requests: usize) -> Shares {
        Shares::new(self.inner.planner().config().ownership, requests, self.inner.group().world())
    }
}

/// Decides the layout of a step of some slots, before its logits exist. All processes that ask the same get the same; nothing is sent.
///
/// `slots`: `requests` slots, -1 for padding. `step`: what the step is for; NULL: one token for each request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_plan(
    pool: Option<&DistPool>,
    slots: *const i32,
    requests: usize,
    step: *const DistShape,
    out: *mut DistDecision,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        // SAFETY: the C caller ensures that `step` is NULL or points to the bytes that its `struct_size` names.
        let step: DistShape = unsafe { read_or_default("step", step) }?;
        let kind = match step.kind {
            0 => StepKind::Decode,
            1 => StepKind::Prefill,
            2 => StepKind::Verify,
            other => {
                let allowed = "GUMBALL_DECODE, GUMBALL_PREFILL or GUMBALL_VERIFY";
                return Err(Failure::out_of_range("kind", other, allowed));
            }
        };
        let captured = (step.captured > 0).then_some(step.captured);
        let data_parallel = step.is_data_parallel > 0;
        let shape = pool.inner.shape(slots, step.drafts, kind)?;
        let plan = pool.inner.plan(&StepShape { data_parallel, captured, ..shape })?;
        let decided =
            DistDecision { struct_size: 0, layout: plan.layout as i64, requests, batch: plan.batch };
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size` names.
        unsafe { write("out", out, decided) }
    })
}

/// Tells which process owns a request of a step: samples it under GUMBALL_SWAP, and has its rows under GUMBALL_REPLICATED.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_dist_owner(
    pool: Option<&DistPool>,
    requests: usize,
    request: usize,
    rank: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|| {
        let (pool, rank) = (require("pool", pool)?, require("rank", rank)?);
        if request >= requests {
            let allowed = format!("a request in 0..{requests}");
            return Err(Failure::out_of_range("request", request, &allowed));
        }
        rank.write(pool.shares(requests).owner(request));
        Ok(())
    })
}

/// Chooses the next token of each row, and appends it to the sequence in the row's slot, on all processes. The outputs are those of the
/// whole batch on each, and what gumball_pool_step gives for whole rows.
///
/// `plan`: that of gumball_dist_plan for these slots; NULL: the one for a step of one token each. `logits`: a row for each slot, of the ids of
/// this process, which may be padded to gumball_dist_width; under GUMBALL_REPLICATED a whole row for each request that it owns, in
/// turn. `slots`, `options`: as for gumball_pool_step, of the whole batch, the same on all processes, and without row_indices.
///
/// Beside the errors of gumball_pool_step, before which nothing is sent: GUMBALL_LOST, GUMBALL_LATE, GUMBALL_DISAGREE, GUMBALL_CORRUPT and
/// GUMBALL_BROKEN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_step(
    pool: Option<&mut DistPool>,
    plan: *const DistDecision,
    logits: *const Logits,
    slots: *const i32,
    rows: usize,
    options: *const StepOptions,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|| {
        let (pool, outputs) = (require("pool", pool)?, require("outputs", outputs)?);
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `slots` has `rows` slots.
        let slots = unsafe { slice("slots", slots, rows) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, rows) }?;
        // SAFETY: the C caller ensures that `plan` is NULL or points to the bytes that its `struct_size` names.
        let plan = unsafe { pool.planned(plan) }?;
        let rows = rows_of(logits, &options)?;
        options.with(|batch| {
            let batch = &Batch { slots, plan, ..*batch };
            Ok(pool.inner.step(rows, batch, &mut outputs.inner)?)
        })
    })
}

/// Verifies the drafts of each request, and appends the emitted tokens to its sequence, on all processes. What comes out is that of the
/// whole batch on each, and what gumball_pool_verify gives for whole rows.
///
/// `plan`: that of gumball_dist_plan; NULL: the one for a verification of these drafts. GUMBALL_SURVEY takes none. `logits`: as for
/// gumball_dist_step, with the rows that gumball_pool_verify takes; a request's rows stay together. `drafts`: of the whole batch; its
/// `probs` has whole rows of all requests. Everything else, and the errors, as for gumball_pool_verify and gumball_dist_step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_verify(
    pool: Option<&mut DistPool>,
    plan: *const DistDecision,
    logits: *const Logits,
    slots: *const i32,
    requests: usize,
    drafts: *const Drafts,
    options: *const StepOptions,
    verification: Option<&mut Verification>,
) -> Code {
    call(|| {
        let (pool, verification) = (require("pool", pool)?, require("verification", verification)?);
        // SAFETY: the C caller ensures that `logits` is NULL or a struct of its stated size, whose rows
        // nobody writes meanwhile.
        let logits = unsafe { read_logits(logits) }?;
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        // SAFETY: the C caller ensures that `drafts` is NULL or a struct of its stated size, whose arrays have the elements
        // that `counts` and the vocabulary name, which nobody writes meanwhile.
        let given = unsafe { read_drafts(drafts, requests, pool.inner.pool().vocab()) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element per row.
        let options = unsafe { read_options(options, given.rows()) }?;
        // SAFETY: the C caller ensures that `plan` is NULL or points to the bytes that its `struct_size` names.
        let plan = unsafe { pool.planned(plan) }?;
        let rows = rows_of(logits, &options)?;
        verification.fill(&options, |batch, out| {
            let batch = &Batch { plan, ..given.batch(slots, batch) };
            let verified = pool.inner.verify(rows, batch, &given.drafts, out);
            Ok(verified.map_err(own_names)?)
        })
    })
}

/// Takes the last `counts[i]` output tokens of the sequence in `slots[i]` away again, as gumball_pool_shorten does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_dist_shorten(
    pool: Option<&mut DistPool>,
    slots: *const i32,
    counts: *const usize,
    requests: usize,
) -> Code {
    call(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `slots` has one slot per request.
        let slots = unsafe { slice("slots", slots, requests) }?;
        // SAFETY: the C caller ensures that `counts` has one number per request.
        let counts = unsafe { slice("counts", counts, requests) }?;
        Ok(pool.inner.shorten(slots, counts)?)
    })
}
