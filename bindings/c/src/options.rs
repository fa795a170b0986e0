//! Options of a step: bitmasks, forced tokens, hooks, and the indices of the rows that are read.

use std::ffi::c_void;
use std::mem::offset_of;

use gumball_engine::{Batch, Error, HostMasks, Kind, Masks, NONE, RowHook};

use crate::error::{Failure, Result};
use crate::ffi::slice;
use crate::logits::{kind, stride};
use crate::versioned::{VersionedStruct, read_or_default};

/// The program's own edits of a row: sees it after the logit bias and before the bans, as `vocab` floats, and may change
/// it. `row` is the row's place in the step, `user` what the options say.
///
/// A pool calls it from its threads, for several rows at the same time. It must return, without longjmp or
/// exception, and leaves the handle alone that calls it.
pub type Hook = Option<unsafe extern "C" fn(user: *mut c_void, row: usize, logits: *mut f32, vocab: usize)>;

/// What comes with the rows of a step. Lists have one element a row; NULL stands for a list that says nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    /// sizeof(gumball_step_options).
    pub struct_size: usize,
    /// Grammar bitmasks, one per row: bit `id % 32` of word `id / 32` allows an id. Ids beyond a bitmask are forbidden. NULL: no row
    /// has one.
    pub masks: *const u32,
    /// The number of words in a bitmask. Where `masks` is given, bitmasks of 0 words forbid every id.
    pub mask_width: usize,
    /// How many words after the start of a bitmask the next one begins; 0: mask_width.
    pub mask_stride: usize,
    /// For each row whether its mask counts; NULL: all do.
    pub mask_present: *const u8,
    /// For each row the token to emit whatever is drawn, or -1.
    pub forced: *const i32,
    /// For each row the index of the matrix row that it reads; NULL: row i reads matrix row i.
    pub row_indices: *const u32,
    /// The program's own edits; not on a device.
    pub hook: Hook,
    /// Handed to the hook.
    pub hook_user: *mut c_void,
    /// For each row whether the hook is called; NULL: for all.
    pub hook_rows: *const u8,
    /// What the row of gumball_sampler_sample holds: GUMBALL_LOGITS or GUMBALL_PROBABILITIES. A sequence may change from one to
    /// the other. The logits of a pool's step say so themselves; here it is 0 then, or the same.
    pub kind: i64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, raw pointers and an optional
// function pointer, whose NULL is `None`.
unsafe impl VersionedStruct for StepOptions {
    const NAME: &'static str = "gumball_step_options";
    const LEAST: usize = offset_of!(Self, hook_rows) + size_of::<*const u8>();
}

/// The options of a step, checked.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    rows: usize,
    /// The words of all bitmasks; `None` if no row has one.
    words: Option<&'a [u32]>,
    width: usize,
    stride: usize,
    present: Option<Vec<bool>>,
    pub forced: Vec<Option<u32>>,
    /// The row_indices that rows read, if they are named.
    pub row_indices: Option<&'a [u32]>,
    hooks: Vec<Option<Call>>,
    /// What a sampler's row holds.
    pub kind: Kind,
}

/// A hook and the arguments of its call.
#[derive(Clone, Copy, Debug)]
struct Call {
    hook: unsafe extern "C" fn(*mut c_void, usize, *mut f32, usize),
    user: *mut c_void,
    row: usize,
}

// SAFETY: the header says that a hook may be called on any thread, so the C caller ensures that `user` may be
// used there.
unsafe impl Send for Call {}
// SAFETY: the header says that a hook may be called on several threads at once, so `user` may be shared among
// them.
unsafe impl Sync for Call {}

impl Call {
    fn call(&self, row: &mut [f32]) {
        // SAFETY: the C caller ensures that `hook` is a function of this type that takes `user`. `row` has
        // the passed length, and nobody else uses it during the call.
        unsafe { (self.hook)(self.user, self.row, row.as_mut_ptr(), row.len()) }
    }
}

/// Reads and checks the options of a step with `rows` rows.
///
/// # Safety
/// `given` is NULL or a struct with the size it states. Each of its lists is NULL or has one element per row,
/// which nobody writes for `'a`.
pub(crate) unsafe fn read_options<'a>(given: *const StepOptions, rows: usize) -> Result<Options<'a>> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read_or_default("options", given) }?;
    // SAFETY: the caller ensures that `masks` is NULL or has the words of `rows` bitmasks, which nobody
    // writes for `'a`.
    let (words, width, stride) = unsafe { mask_lines(&given, rows) }?;
    // SAFETY: the caller ensures that `mask_present` is NULL or has one byte per row.
    let present = unsafe { list("mask_present", given.mask_present, rows) }?;
    // SAFETY: the caller ensures that `forced` is NULL or has one id per row.
    let forced = unsafe { list("forced", given.forced, rows) }?.unwrap_or_default();
    // SAFETY: the caller ensures that `hook_rows` is NULL or has one byte per row.
    let on = unsafe { list("hook_rows", given.hook_rows, rows) }?;
    let calls = |hook| {
        let call = move |row| Call { hook, user: given.hook_user, row };
        (0..rows).map(|row| on.is_none_or(|on| on[row] != 0).then(|| call(row))).collect()
    };
    Ok(Options {
        rows,
        words,
        width,
        stride,
        present: present.map(|present| present.iter().map(|there| *there != 0).collect()),
        forced: forced.iter().map(|forced| code(*forced)).collect::<Result<_>>()?,
        // SAFETY: the caller ensures that `row_indices` is NULL or has one index per row, which nobody writes
        // for `'a`.
        row_indices: unsafe { list("row_indices", given.row_indices, rows) }?,
        hooks: given.hook.map_or_else(Vec::new, calls),
        kind: kind(given.kind)?,
    })
}

/// Returns the words of all bitmasks, if there are any, with the number of words in one and their stride.
///
/// # Safety
/// `masks` is NULL or has the words of `rows` bitmasks with this width and stride, which nobody writes for
/// `'a`.
unsafe fn mask_lines<'a>(given: &StepOptions, rows: usize) -> Result<(Option<&'a [u32]>, usize, usize)> {
    let (width, stride) = (given.mask_width, stride(given.mask_stride, given.mask_width));
    if given.masks.is_null() {
        return Ok((None, 0, 0));
    }
    if width == 0 || rows == 0 {
        return Ok((Some(&[]), width, stride));
    }
    let end = (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(width));
    let (true, Some(end)) = (rows == 1 || stride >= width, end) else {
        let allowed = format!("at least {width}, the words of a row, inside memory");
        return Err(Failure::out_of_range("mask_stride", stride, &allowed));
    };
    // SAFETY: the caller ensures that `masks` has the words of `rows` bitmasks, which end after `end` words.
    Ok((Some(unsafe { slice("masks", given.masks, end) }?), width, stride))
}

/// Returns a list, or `None` for NULL.
///
/// # Safety
/// `first` is NULL or points to `rows` elements, which nobody writes for `'a`.
pub(crate) unsafe fn list<'a, T>(
    parameter: &'static str,
    first: *const T,
    rows: usize,
) -> Result<Option<&'a [T]>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: `first` is not NULL, and the caller ensures that it points to `rows` elements, which nobody
    // writes for `'a`.
    unsafe { slice(parameter, first, rows) }.map(Some)
}

fn code(forced: i32) -> Result<Option<u32>> {
    match u32::try_from(forced) {
        Ok(id) => Ok(Some(id)),
        Err(_) if forced == NONE => Ok(None),
        Err(_) => Err(Failure::out_of_range("forced", forced, "an id in the vocabulary, or -1 for none")),
    }
}

impl Options<'_> {
    /// Returns the bitmasks.
    fn masks(&self) -> Result<Masks<'_>> {
        let Some(words) = self.words else { return Ok(Masks::None) };
        let masks = HostMasks::new(words, self.rows, self.width, self.stride)?;
        Ok(match &self.present {
            Some(present) => masks.with_present(present)?.into(),
            None => masks.into(),
        })
    }

    /// Returns an error if the options name probabilities and the logits' struct names logits.
    pub fn check_kind(&self, rows: Kind) -> Result<()> {
        if self.kind == Kind::Probabilities && rows == Kind::Logits {
            let reason = "the rows are said to be logits where they are described; say it there";
            return Err(Error::Conflict { parameter: "kind", other: "logits", reason }.into());
        }
        Ok(())
    }

    /// Returns the bitmask of the first row, if it counts.
    pub fn first_mask(&self) -> Option<&[u32]> {
        let there = self.present.as_ref().is_none_or(|present| present[0]);
        self.words.filter(|_| there).map(|words| &words[..self.width])
    }

    /// Calls `step` with these options, as a batch of the engine's without slots.
    pub fn with<T>(&self, step: impl FnOnce(&Batch<'_>) -> Result<T>) -> Result<T> {
        let edits: Vec<_> =
            self.hooks.iter().map(|call| call.map(|call| move |row: &mut [f32]| call.call(row))).collect();
        let hooks: Vec<Option<RowHook<'_>>> =
            edits.iter().map(|edit| edit.as_ref().map(|edit| edit as RowHook<'_>)).collect();
        step(&Batch { hooks: &hooks, ..self.of_rows(Batch::default())? })
    }

    /// Returns a batch with what comes with its rows, without hooks.
    fn of_rows<'a>(&'a self, batch: Batch<'a>) -> Result<Batch<'a>> {
        let row_indices = self.row_indices.unwrap_or_default();
        Ok(Batch { masks: self.masks()?, forced: &self.forced, row_indices, ..batch })
    }

    /// Returns a batch to be assigned on a device, with what comes with its rows.
    pub fn assigned<'a>(&'a self, batch: Batch<'a>) -> Result<Batch<'a>> {
        if self.hooks.iter().any(Option::is_some) {
            let reason = "a hook runs on the host; use a pool of the host".to_owned();
            return Err(Error::Unavailable { resource: "hooks on a device", reason }.into());
        }
        if self.kind == Kind::Probabilities {
            let reason = "gumball_device_input says what its rows hold";
            return Err(Error::Conflict { parameter: "kind", other: "assignments", reason }.into());
        }
        self.of_rows(batch)
    }
}
