//! Work in order: assigned, enqueued, captured and replayed, recorded into graphs of the program, and what
//! came out.

use std::mem::MaybeUninit;

use gumball_engine::unstable::{DeviceGraph, StepVariant};
use gumball_engine::{Rows as EngineRows, Work as EngineWork};

use crate::batch::{Batch, Lists, read_batch};
use crate::draft_batches::batch_of;
use crate::drafts::{Drafts, read_drafts};
use crate::error::{Code, Failure, Result, refuse};
use crate::ffi::{Caller, VariantNumber, WorkKindNumber, call, end, make, require};
use crate::matrix::{Ints, Masks};
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::rows::Rows;
use crate::versioned::versioned;

#[derive(Debug)]
pub struct Graph {
    inner: DeviceGraph<'static>,
    pool: u64,
}

/// Work that lies in a graph of the program's own.
#[derive(Debug)]
pub struct Recorded {
    inner: gumball_engine::unstable::Recorded,
}

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A step of the rows that are assigned: `rows` and `masks`.
    GUMBALL_WORK_STEP = 0,
    /// A verification of the drafts that are assigned: `rows`, `masks` and `drafts`.
    GUMBALL_WORK_VERIFY = 1,
    /// Drafts of a batch, from its assigned rows: `draft_batch`, `rows`, `masks`, and as `ints` for each row
    /// a line with the ids on the path to it. Nothing of a sequence changes. After a path that has an id
    /// outside the vocabulary, such as -1, there are no drafts.
    GUMBALL_WORK_DRAFT = 2,
    /// A copy of a batch's drafts, the drafts of row r into line r of `ints` from `column` on: `draft_batch`,
    /// `ints`, `column`. It joins a chain's drafts.
    GUMBALL_WORK_COPY_DRAFTS = 3,
    /// Taking the last tokens of the assigned requests away, as many as `ints` says: none where that is
    /// negative or above their number, or 1 with mirostat or adaptive-p.
    GUMBALL_WORK_SHORTEN = 4,
}

/// Which requests a step in a graph of the program serves: without filters, with min-p alone, with top-k
/// first, up to 320, with top-p after that, with top-p first, with edits, bitmasks and the logprob of the
/// emitted token, or all; each variant also serves the requests of the variants before it.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    GUMBALL_NO_FILTER = 0,
    GUMBALL_MIN_P = 1,
    GUMBALL_TOP_K = 2,
    GUMBALL_TOP_K_TOP_P = 3,
    GUMBALL_TOP_P = 4,
    GUMBALL_EDITS = 5,
    GUMBALL_FULL = 6,
}

/// A piece of work, for the assigned rows. Fields that its kind does not name stay zero. Arrays in a device's
/// memory and heads stay until the work is done, and of a graph as long as it is replayed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub struct_size: usize,
    pub rows: Rows,
    /// Bitmasks in the device's memory, in place of the assigned bitmasks.
    pub masks: Masks,
    pub drafts: *const Drafts,
    pub ints: Ints,
    /// The column of `ints` that a row's first draft goes to.
    pub column: usize,
    pub draft_batch: i64,
    pub kind: WorkKindNumber,
}

versioned!(Work, "gumball_work", kind: WorkKindNumber);

impl Work {
    /// Refuses fields that its kind does not read.
    fn check_fields(&self) -> Result<()> {
        let read = match self.kind {
            0 => &["rows", "masks"][..],
            1 => &["rows", "masks", "drafts"],
            2 => &["rows", "masks", "draft_batch", "ints"],
            3 => &["draft_batch", "ints", "column"],
            4 => &["ints"],
            other => return Err(Failure::out_of_range("kind", other, "a gumball_work_kind, 0 to 4")),
        };
        let (matrix, head) = (&self.rows.matrix, self.rows.head);
        let given = [
            ("rows", !matrix.data.is_null() || matrix.rows > 0 || !head.is_null()),
            ("masks", !self.masks.words.is_null()),
            ("drafts", !self.drafts.is_null()),
            ("ints", !self.ints.is_absent()),
            ("column", self.column != 0),
            ("draft_batch", self.draft_batch != 0),
        ];
        let others = given.into_iter().filter(|(name, _)| !read.contains(name));
        refuse(others, "kind", "this kind of work does not read it; leave it zero")
    }

    fn get<'a>(&self, c: Caller<'a>, pool: &mut Pool) -> Result<EngineWork<'a>> {
        self.check_fields()?;
        let rows = |pool: &Pool| -> Result<EngineRows<'a>> {
            pool.check_head(c, &self.rows)?;
            self.rows.get(c)
        };
        let masks = self.masks.get(c)?.there()?;
        Ok(match self.kind {
            0 => EngineWork::Step(rows(pool)?, masks),
            1 => EngineWork::Verify(rows(pool)?, masks, read_drafts(c, self.drafts)?),
            2 => {
                let (_, batch) = batch_of(pool, self.draft_batch)?;
                let paths = (!self.ints.is_absent()).then(|| self.ints.lines(c, "ints"));
                EngineWork::Draft(batch, rows(pool)?, masks, paths.transpose()?)
            }
            3 => {
                let (_, batch) = batch_of(pool, self.draft_batch)?;
                EngineWork::CopyDrafts(batch, self.ints.written(c, "ints")?, self.column)
            }
            _ => EngineWork::Shorten(self.ints.list(c, "ints")?),
        })
    }
}

fn read_work<'a>(
    c: Caller<'a>,
    pool: &mut Pool,
    work: *const Work,
    len: usize,
) -> Result<Vec<EngineWork<'a>>> {
    let pieces = c.read_each("work", work, len)?;
    pieces.iter().map(|piece| piece.get(c, pool)).collect()
}

/// Says whose rows the next work is for, that of captured graphs included: of steps, with `counts` of
/// verifications, and with `draft_batch` of drafts from that batch. Steps and verifications replace each
/// other, and a direct step or verification ends the assignment.
///
/// `batch`: as for gumball_pool_step, gumball_pool_verify and gumball_pool_draft, without hooks. On a device
/// it waits for nothing, and copies nothing if it is the assigned batch already; a graph of the program's own
/// must not be under capture on the stream, unless nothing changed. The first mode but GUMBALL_COUPLED and
/// GUMBALL_GREEDY takes memory of the device for the probabilities of the pool's rows.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_assign(pool: Option<&mut Pool>, batch: *const Batch) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let given = read_batch(c, batch, Lists::Drafted)?;
        let of = match given.draft_batch {
            0 => None,
            number => Some(batch_of(pool, number)?.1),
        };
        let plan = pool.planned(given.plan)?;
        given.with(|batch| Ok(pool.inner.assign(&gumball_engine::Batch { plan, of, ..*batch })?))
    })
}

/// Enqueues `len` pieces of work, an array of structs of one size, in their order. On a device it only
/// launches kernels, and returns before they are done; on the host all is done on return. Each piece reads
/// what those before it have written, and requests as these have left them.
///
/// For a graph that the program captures on the device's stream see gumball_pool_record; here a capture is
/// GUMBALL_CONFLICT.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue(
    pool: Option<&mut Pool>,
    work: *const Work,
    len: usize,
) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let work = read_work(c, pool, work, len)?;
        Ok(pool.inner.enqueue(&work)?)
    })
}

/// Waits for the work that was enqueued so far, and copies the outputs of the last step or verification.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_fetch(pool: Option<&mut Pool>, outputs: Option<&mut Outputs>) -> Code {
    call(|_| {
        let (pool, outputs) = (require("pool", pool)?, require("outputs", outputs)?);
        Ok(pool.inner.fetch(&mut outputs.inner)?)
    })
}

/// Captures work on a device, to be replayed in this order. Nothing runs yet.
///
/// `work`, `len`: as for gumball_pool_enqueue. A replay is for the rows that are assigned at the time:
/// requests can be admitted, released and assigned in between, as long as the numbers of requests and rows,
/// the modes, and whether there are row_indices and masks, stay.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_capture(
    pool: Option<&mut Pool>,
    work: *const Work,
    len: usize,
) -> Option<Box<Graph>> {
    make(|c| {
        let pool = require("pool", pool)?;
        let work = read_work(c, pool, work, len)?;
        Ok(Graph { pool: pool.id, inner: pool.inner.capture(&work)? })
    })
}

/// Enqueues the work of a graph that this pool captured.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_replay(pool: Option<&mut Pool>, graph: Option<&Graph>) -> Code {
    call(|_| {
        let (pool, graph) = (require("pool", pool)?, require("graph", graph)?);
        if graph.pool != pool.id {
            let allowed = "one that this pool captured";
            return Err(Failure::out_of_range("graph", "that of another pool", allowed));
        }
        Ok(pool.inner.replay(&graph.inner)?)
    })
}

/// Ends a graph, before or after its pool, when its replays are done.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_graph_free(graph: Option<Box<Graph>>) {
    end(graph);
}

fn variant(given: VariantNumber) -> Result<StepVariant> {
    let known = usize::try_from(given).ok().and_then(|given| StepVariant::ALL.get(given));
    let allowed = "a gumball_variant, GUMBALL_NO_FILTER to GUMBALL_FULL";
    known.copied().ok_or_else(|| Failure::out_of_range("variant", given, allowed))
}

/// Tells the smallest variant that serves the rows that are assigned: the one whose graph to replay.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_pool_needed_variant(
    pool: Option<&mut Pool>,
    variant: Option<&mut MaybeUninit<VariantNumber>>,
) -> Code {
    call(|_| {
        let (pool, variant) = (require("pool", pool)?, require("variant", variant)?);
        variant.write(pool.inner.on_device()?.needed_variant() as i32);
        Ok(())
    })
}

/// Enqueues work as gumball_pool_enqueue does, with the kernels of a variant, and returns what replays of it
/// must be announced by. NULL after an error.
///
/// While the program captures the device's stream in a graph of its own, the work does not run, but becomes
/// part of that graph, which serves later assignments whose requests the variant serves. Otherwise it runs:
/// call it so once before the capture, with padding for instance, and the kernels are loaded.
/// GUMBALL_OUT_OF_RANGE if a row that is assigned needs more.
///
/// Cost: launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_record(
    pool: Option<&mut Pool>,
    variant: VariantNumber,
    work: *const Work,
    len: usize,
) -> Option<Box<Recorded>> {
    make(|c| {
        let (pool, variant) = (require("pool", pool)?, self::variant(variant)?);
        let work = read_work(c, pool, work, len)?;
        Ok(Recorded { inner: pool.inner.on_device()?.record(&work, variant)? })
    })
}

/// Prepares for a replay of a graph of the program's own, for the rows that are assigned, and must be called
/// before each: the library does not see it run. `recorded`: the work in the graph, `len` handles in the
/// order in which they run; for several replays, that many times. It waits where histories must grow, once in
/// `history_growth` tokens. GUMBALL_OUT_OF_RANGE if an assigned row needs more than a variant serves, with
/// its slot and the variants that do.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_before_replay(
    pool: Option<&mut Pool>,
    recorded: *const Option<&Recorded>,
    len: usize,
) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let given = c.slice("recorded", recorded, len)?.iter();
        let recorded = given.map(|recorded| Ok(&require("recorded", *recorded)?.inner));
        Ok(pool.inner.on_device()?.before_replay(&recorded.collect::<Result<Vec<_>>>()?)?)
    })
}

/// Ends what was recorded, before or after its pool; the program's graph stays as it is.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_recorded_free(recorded: Option<Box<Recorded>>) {
    end(recorded);
}
