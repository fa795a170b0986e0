//! Graphs of several kinds of work: drafts, verifications, steps and what moves between them, replayed with one call.

use std::ffi::c_void;
use std::mem::offset_of;

use gumball_engine::{DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, Error, IntType, Rows, Work};

use crate::device_drafts::{DeviceDrafts, device_drafts, int_type};
use crate::device_head::DeviceHead;
use crate::draft_batches::batch_of;
use crate::error::{Code, Failure, Result};
use crate::ffi::{call, make, require, slice};
use crate::graph::{DeviceRows, Graph, device_input};
use crate::head::own_names;
use crate::logits::stride;
use crate::pool::Pool;
use crate::versioned::{VersionedStruct, read};

/// Lines of integers in the device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DeviceInts {
    /// sizeof(gumball_device_ints).
    pub struct_size: usize,
    /// The first number of the first line; a CUdeviceptr is cast.
    pub data: *const c_void,
    /// The number of lines.
    pub rows: usize,
    /// The number of integers in a line; 0: 1.
    pub width: usize,
    /// How many integers after a line the next one begins; 0: width.
    pub stride: usize,
    /// 32 or 64: the bits of a number; 0: 32.
    pub bits: i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and a raw pointer, valid for all
// bytes.
unsafe impl VersionedStruct for DeviceInts {
    const NAME: &'static str = "gumball_device_ints";
    const LEAST: usize = offset_of!(Self, bits) + size_of::<i64>();
}

/// What a graph does at one point.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum GraphWorkKind {
    /// A step of the rows that are assigned, as gumball_pool_enqueue: `input`. With `head` as gumball_pool_enqueue_hidden.
    GUMBALL_WORK_STEP = 0,
    /// A verification of the drafts that are assigned, as gumball_pool_enqueue_verify: `input` and `drafts`. With `head` as
    /// gumball_pool_enqueue_verify_hidden.
    GUMBALL_WORK_VERIFY = 1,
    /// Drafts of a batch, as gumball_pool_enqueue_draft: `batch`, `input`, and `ints` for the paths, or NULL.
    GUMBALL_WORK_DRAFT = 2,
    /// A copy of a batch's drafts, as gumball_pool_enqueue_copy_drafts: `batch`, `ints` for where they go, and `column`.
    GUMBALL_WORK_COPY_DRAFTS = 3,
    /// Taking emitted tokens away, as gumball_pool_enqueue_shorten: `ints`, a line of one number for each assigned slot.
    GUMBALL_WORK_SHORTEN = 4,
}

/// A piece of work of a graph. Fields that its kind does not name stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GraphWork {
    /// sizeof(gumball_graph_work).
    pub struct_size: usize,
    /// A gumball_graph_work_kind.
    pub kind: i64,
    /// Rows in the device's memory, as long as the graph is replayed.
    pub input: *const DeviceRows,
    /// Drafts in the device's memory, as long as the graph is replayed.
    pub drafts: *const DeviceDrafts,
    /// A head that lives as long as the graph.
    pub head: *const DeviceHead,
    /// The number of a batch of drafts.
    pub batch: i64,
    /// Integers in the device's memory, as long as the graph is replayed.
    pub ints: *const DeviceInts,
    /// The column of `ints` that a row's first draft goes to.
    pub column: usize,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for GraphWork {
    const NAME: &'static str = "gumball_graph_work";
    const LEAST: usize = offset_of!(Self, column) + size_of::<usize>();
}

/// Integers of C, checked.
struct Ints {
    address: u64,
    dtype: IntType,
    rows: usize,
    width: usize,
    stride: usize,
}

impl Ints {
    /// Reads a description of integers.
    ///
    /// # Safety
    /// `ints` is NULL or points to the bytes that its `struct_size` names.
    unsafe fn read(parameter: &str, ints: *const DeviceInts) -> Result<Self> {
        // SAFETY: the caller ensures that `ints` is NULL or points to the bytes that its `struct_size` names.
        let given = unsafe { read(parameter, ints) }?;
        if given.data.is_null() && given.rows > 0 {
            return Err(Failure::null("data"));
        }
        let dtype = int_type(given.bits)?;
        let width = stride(given.width, 1);
        let (address, stride) = (given.data.addr() as u64, stride(given.stride, width));
        Ok(Self { address, dtype, rows: given.rows, width, stride })
    }

    /// # Safety
    /// The lines stay in the device's memory as long as the device reads them.
    unsafe fn lines(&self) -> Result<DeviceIntMatrix<'static>> {
        let Self { address, dtype, rows, width, stride } = *self;
        // SAFETY: the caller ensures what `new` requires.
        Ok(unsafe { DeviceIntMatrix::new(address, dtype, rows, width, stride) }?)
    }

    /// # Safety
    /// The lines stay in the device's memory as long as the device writes them, and nobody else uses them then.
    unsafe fn written(&self) -> Result<DeviceIntMatrixMut<'static>> {
        let Self { address, dtype, rows, width, stride } = *self;
        // SAFETY: the caller ensures what `new` requires.
        Ok(unsafe { DeviceIntMatrixMut::new(address, dtype, rows, width, stride) }?)
    }

    /// # Safety
    /// The numbers stay in the device's memory as long as the device reads them.
    unsafe fn column(&self) -> Result<DeviceSlice<'static>> {
        for (name, value) in [("width", self.width), ("stride", self.stride)] {
            if value != 1 {
                return Err(Failure::out_of_range(name, value, "0 or 1: one number for each assigned slot"));
            }
        }
        // SAFETY: the caller ensures what `new` requires.
        Ok(unsafe { DeviceSlice::new(self.address, self.dtype, self.rows) }?)
    }
}

/// Refuses fields that a kind of work does not read.
fn check_fields(work: &GraphWork) -> Result<()> {
    let kind = match work.kind {
        0 => &["input", "head"][..],
        1 => &["input", "head", "drafts"],
        2 => &["input", "batch", "ints"],
        3 => &["batch", "ints", "column"],
        4 => &["ints"],
        other => return Err(Failure::out_of_range("kind", other, "a gumball_graph_work_kind, 0 to 4")),
    };
    let given = [
        ("input", !work.input.is_null()),
        ("drafts", !work.drafts.is_null()),
        ("head", !work.head.is_null()),
        ("batch", work.batch != 0),
        ("ints", !work.ints.is_null()),
        ("column", work.column != 0),
    ];
    match given.into_iter().find(|(name, is_set)| *is_set && !kind.contains(name)) {
        None => Ok(()),
        Some((parameter, _)) => {
            let reason = "this kind of work does not read it; leave it zero";
            Err(Error::Conflict { parameter, other: "kind", reason }.into())
        }
    }
}

/// Reads a piece of work.
///
/// # Safety
/// `work` is NULL or a struct of its stated size, whose structs have their stated sizes and whose `head` is NULL or lives as long as the graph. All arrays stay in the device's
/// memory as long as it is replayed.
unsafe fn read_work(pool: &mut Pool, work: *const GraphWork) -> Result<Work<'static>> {
    // SAFETY: the caller ensures that `work` is NULL or points to the bytes that its `struct_size` names.
    let work = unsafe { read("work", work) }?;
    check_fields(&work)?;
    // SAFETY: the caller ensures that `head` is NULL or lives as long as the graph.
    let head = unsafe { work.head.as_ref::<'static>() };
    if let Some(head) = head {
        head.check(pool.on_device()?)?;
    }
    let input = || {
        // SAFETY: the caller ensures that the rows have their stated size and stay there.
        let (rows, masks) = unsafe { device_input(work.input) }?;
        Ok::<_, Failure>(match head {
            None => (rows, masks),
            Some(head) => (Rows::hidden(&head.inner, rows.matrix()), masks),
        })
    };
    // SAFETY: the caller ensures that the integers have their stated size.
    let ints = || unsafe { Ints::read("ints", work.ints) };
    Ok(match work.kind {
        0 => {
            let (rows, masks) = input()?;
            Work::Step(rows, masks)
        }
        1 => {
            let (vocab, (rows, masks)) = (pool.on_device()?.vocab(), input()?);
            // SAFETY: the caller ensures that the drafts have their stated size and stay there.
            Work::Verify(rows, masks, unsafe { device_drafts(work.drafts, vocab) }?)
        }
        2 => {
            let (_, batch) = batch_of(Some(pool), work.batch)?;
            // SAFETY: the caller ensures that the paths stay there.
            let lines = |ints: Ints| unsafe { ints.lines() };
            let paths = (!work.ints.is_null()).then(|| ints().and_then(lines)).transpose()?;
            let (rows, masks) = input()?;
            Work::Draft(batch, rows, masks, paths)
        }
        3 => {
            let (_, batch) = batch_of(Some(pool), work.batch)?;
            // SAFETY: the caller ensures that the lines stay there, and that nobody else uses them while a replay writes them.
            Work::CopyDrafts(batch, unsafe { ints()?.written() }?, work.column)
        }
        // SAFETY: the caller ensures that the numbers stay there.
        _ => Work::Shorten(unsafe { ints()?.column() }?.into()),
    })
}

/// Captures work of several kinds, to be replayed in this order by gumball_pool_replay: drafts of batches, a verification of them, steps, and what moves between these;
/// `work` points to pointers to `count` pieces. Nothing runs yet. NULL after an error.
///
/// Each piece reads what those before it have written, and requests as these have left them, so a replay drafts, verifies and advances without the host. What
/// gumball_pool_assign, _assign_drafts and _assign_draft said last counts, at the time of a replay: the numbers of requests and rows, the modes, and whether there are row_indices and masks,
/// must stay. gumball_pool_assign and _assign_drafts replace each other, so a graph has steps or verifications, not both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_capture_work(
    pool: Option<&mut Pool>,
    work: *const *const GraphWork,
    count: usize,
) -> Option<Box<Graph>> {
    make(|| {
        let pool = require("pool", pool)?;
        // SAFETY: the C caller ensures that `work` has `count` pointers.
        let work = unsafe { slice("work", work, count) }?;
        // SAFETY: the C caller ensures that each piece has the size it states, and that what it points to lives as long as the graph is replayed.
        let read = |piece: &*const GraphWork| unsafe { read_work(pool, *piece) };
        let pieces = work.iter().map(read).collect::<Result<Vec<_>>>()?;
        Ok(Graph { pool: pool.id, inner: pool.on_device()?.capture(&pieces).map_err(own_names)? })
    })
}

/// Copies the drafts of the assigned rows of a batch into lines in the device's memory: those of row r into line r, from `column` on. It only launches a kernel, and
/// returns before the device is done; a graph that the program captures takes it up.
///
/// So the drafts of a chain come together: each batch's are a column of the next one's paths, and all of them are what a verification reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_enqueue_copy_drafts(
    pool: Option<&mut Pool>,
    batch: i64,
    to: *const DeviceInts,
    column: usize,
) -> Code {
    call(|| {
        let (pool, batch) = batch_of(pool, batch)?;
        // SAFETY: the C caller ensures that `to` is NULL or points to the bytes that its `struct_size` names.
        let to = unsafe { Ints::read("to", to) }?;
        // SAFETY: the C caller ensures that the lines stay there until the device is done, and that nobody else uses them.
        let to = unsafe { to.written() }?;
        Ok(pool.enqueue(&[Work::CopyDrafts(batch, to, column)])?)
    })
}
