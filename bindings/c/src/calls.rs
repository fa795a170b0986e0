//! Direct calls of a pool: steps, verifications, drafts and scores, done and known to the host on return.

use gumball_engine::{Batch as EngineBatch, Pool as EnginePool, Rows as EngineRows};

use crate::batch::{Batch, GivenBatch, Lists, read_batch};
use crate::drafts::{Drafts, Proposals, read_drafts};
use crate::error::{Code, Failure, Result};
use crate::ffi::{Caller, call, require};
use crate::outputs::Outputs;
use crate::params::Params;
use crate::pool::Pool;
use crate::rows::Rows;
use crate::versioned::versioned;

/// A known sequence, some of whose tokens are to be scored: row i scores `ids[start + i]`, after all ids
/// before it. To score a prompt, `start` is 1; to score an answer, `prompt_len`. Long sequences can be handed
/// in piecewise, `start` moving on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scored {
    pub struct_size: usize,
    /// The parameters. Their `logprobs` say what to report; if absent, the token's raw logprob and rank.
    pub params: *const Params,
    /// Prompt and output.
    pub ids: *const u32,
    pub ids_len: usize,
    /// How many of them are prompt, for the penalties that tell it from output.
    pub prompt_len: usize,
    pub start: usize,
    /// For hidden states: how many rows are computed at a time: 4 bytes for each id of each, 12 with a
    /// screen, up to 8 and 12 for each cluster with a clustered one; 0: all.
    pub chunk_rows: usize,
}

versioned!(Scored, "gumball_scored", chunk_rows: usize);

/// Reads the rows and the batch of a call, and does its work on the pool with them.
fn called<'a>(
    c: Caller<'a>,
    pool: &mut Pool,
    rows: *const Rows,
    batch: *const Batch,
    lists: Lists,
    work: impl FnOnce(&mut EnginePool, EngineRows<'a>, &EngineBatch<'_>, &GivenBatch<'a>) -> Result<()>,
) -> Result<()> {
    let rows = c.plain("rows", rows)?;
    pool.check_head(c, &rows)?;
    let rows = rows.get(c)?;
    let given = read_batch(c, batch, lists)?;
    if given.draft_batch != 0 {
        let allowed = "0: only gumball_pool_assign is for a batch of drafts";
        return Err(Failure::out_of_range("draft_batch", given.draft_batch, allowed));
    }
    let plan = pool.planned(given.plan)?;
    given.with(|batch| work(&mut pool.inner, rows, &EngineBatch { plan, ..*batch }, &given))
}

impl Pool {
    pub(crate) fn check_head(&self, c: Caller<'_>, rows: &Rows) -> Result<()> {
        let head = c.handle(rows.head);
        head.map_or(Ok(()), |head| head.check(self.inner.device()))
    }
}

/// Chooses the next token of each row, and appends it to the sequence in the row's slot.
///
/// `rows`: one for each slot of `batch`, but where that has `row_indices`. Over ranks: of the ids of this
/// rank, which may be padded to `most_ids` of gumball_pool_info; under GUMBALL_REPLICATED whole rows of the
/// requests that it owns, in turn; the batch is the same on all ranks. A row that yields -1 leaves its
/// sequence as it was.
///
/// From hidden states, the outputs are, bit for bit, the outputs from the logits of gumball_head_logits; of a
/// clustered head, with -inf for the ids that it does not probe, which `is_approximate` of
/// gumball_outputs_view says. The same holds for verifications, drafts and scores.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_step(
    pool: Option<&mut Pool>,
    rows: *const Rows,
    batch: *const Batch,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|c| {
        let (pool, out) = (require("pool", pool)?, &mut require("outputs", outputs)?.inner);
        called(c, pool, rows, batch, Lists::Slots, |pool, rows, batch, _| Ok(pool.step(rows, batch, out)?))
    })
}

/// Verifies the drafts of each request, and appends the emitted tokens to its sequence;
/// gumball_outputs_request tells them.
///
/// `rows`: a request with n drafts has n + 1, one after the other: one at the end of its history, then one
/// after each draft. Without drafts that is a step. The drafts and rows of a slot of -1 are not used. A stop
/// id that is emitted is the last token. A request with mirostat or adaptive-p has no drafts. In
/// GUMBALL_BLOCK drafts are chains, and no token is forced beside them. Over ranks GUMBALL_SURVEY takes none,
/// and `probs` has whole rows of all requests.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_verify(
    pool: Option<&mut Pool>,
    rows: *const Rows,
    batch: *const Batch,
    drafts: *const Drafts,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|c| {
        let (pool, out) = (require("pool", pool)?, &mut require("outputs", outputs)?.inner);
        let drafts = read_drafts(c, drafts)?;
        called(c, pool, rows, batch, Lists::Drafted, |pool, rows, batch, _| {
            Ok(pool.verify(rows, batch, &drafts, out)?)
        })
    })
}

/// Draws drafts from rows of a draft model, and changes no sequence. For rows on a device, without a wait,
/// see gumball_pool_add_draft_batch.
///
/// A row follows the history of the sequence in its slot and a path of drafts. Its first draft is the token
/// that the request would draw from it as a row of the target, the others, siblings of a tree, are the
/// runners-up. `batch`: a slot for each row, -1 for padding, also several times; its `counts` say how many
/// drafts are on the path to each row, `paths` the ids of these drafts, row after row. A forced token is the
/// only draft of its row.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_draft(
    pool: Option<&mut Pool>,
    rows: *const Rows,
    batch: *const Batch,
    paths: *const i32,
    drafts: *const Proposals,
) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let to = c.plain("drafts", drafts)?;
        called(c, pool, rows, batch, Lists::Slots, |pool, rows, batch, given| {
            let total = batch.counts.iter().map(|count| *count as usize).sum();
            let paths = c.slice("paths", paths, total)?;
            let mut drawn = to.places(c, given.rows, pool.vocab())?;
            pool.draft(rows, batch, paths, &mut drawn.inner)?;
            drawn.write();
            Ok(())
        })
    })
}

/// Tells the logprobs of known tokens: what steps would in which they are forced. No slot is touched. The
/// outputs have the widths of the request's `logprobs`. `batch`: masks, hooks and row_indices of the rows,
/// whose number is its `len`, or where that is 0 the number of `rows`; or NULL.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_score(
    pool: Option<&mut Pool>,
    rows: *const Rows,
    batch: *const Batch,
    scored: *const Scored,
    outputs: Option<&mut Outputs>,
) -> Code {
    call(|c| {
        let (pool, out) = (require("pool", pool)?, &mut require("outputs", outputs)?.inner);
        let scored = c.read("scored", scored)?;
        let params = require("params", c.handle(scored.params))?;
        let known = gumball_engine::Scored {
            params: &params.inner,
            ids: c.slice("ids", scored.ids, scored.ids_len)?,
            prompt_len: scored.prompt_len,
            start: scored.start,
            chunk_rows: (scored.chunk_rows > 0).then_some(scored.chunk_rows),
        };
        let there = c.plain("rows", rows)?.matrix.rows;
        called(c, pool, rows, batch, Lists::Rows(there), |pool, rows, batch, given| {
            if batch.row_indices.is_empty() && there != given.rows {
                let allowed = format!("the number of rows, {there}");
                return Err(Failure::out_of_range("len", given.rows, &allowed));
            }
            Ok(pool.score(rows, batch, &known, out)?)
        })
    })
}
