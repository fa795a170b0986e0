//! Batches: the slots that the rows of a call belong to, and the fields that belong to a row rather than to a
//! request: grammar bitmasks, forced tokens, the caller's edits.

use std::fmt;
use std::ops::Deref;

use gumball_dist::Plan;
use gumball_spec::edit::Hook;
use gumball_spec::request::check_forced;
use gumball_spec::{Error, Kind, Result};

use crate::device::DraftBatch;
use crate::masks::Masks;
use crate::slot::Slot;
use crate::verify_mode::VerifyMode;

/// The caller's own edits of one row of a batch, as [`Hook`] is for a single row.
///
/// It sees the row after the logit bias, before the bans, and may change it. Rows run at the same time, so
/// it is shared.
pub type RowHook<'a> = &'a (dyn Fn(&mut [f32]) + Sync + 'a);

/// The options of one row of one sequence.
#[derive(Default)]
pub struct StepOptions<'a> {
    /// The kind of the row's numbers; a sequence may change from one kind to the other.
    pub kind: Kind,
    /// The grammar bitmask: bit `id % 32` of word `id / 32` allows an id. Missing words forbid their ids, so
    /// a mask without words forbids every id. Bits beyond the vocabulary mean nothing.
    pub mask: Option<&'a [u32]>,
    /// The token to emit instead of the drawn one: replay, or a thinking budget. An id in the vocabulary.
    pub forced: Option<u32>,
    /// The caller's own edits.
    pub hook: Option<Hook<'a>>,
}

impl fmt::Debug for StepOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepOptions")
            .field("kind", &self.kind)
            .field("mask", &self.mask)
            .field("forced", &self.forced)
            .field("hook", &self.hook.is_some())
            .finish()
    }
}

/// The slots that the rows of a call belong to, and the masks, forced tokens and edits of these rows. An
/// empty list says nothing. A field that a call does not read must be left as `default()` has it: otherwise
/// the call refuses it.
///
/// | call | besides `slots`, `masks`, `forced`, `row_indices`, `hooks` it reads |
/// | --- | --- |
/// | `step` | |
/// | `verify` | `counts`, `mode` |
/// | `draft` | `counts`, `mode` |
/// | `score` | nothing, and neither `slots` nor `forced` |
/// | `assign` | `counts` and `mode`, for verifications and drafts, and `of`; not `hooks` |
///
/// Over ranks `plan`, too.
///
/// ```
/// # use gumball_engine::*;
/// let mut pool = Pool::new(PoolConfig::new(3))?;
/// let slot = pool.admit(SamplingParams::default(), &[])?;
/// let batch = Batch { slots: &[slot], forced: &[Some(2)], ..Batch::default() };
/// let mut out = Outputs::new();
/// pool.step(Rows::logits(&[0.0f32, 9.0, 0.0], 1, 3)?, &batch, &mut out)?;
/// assert_eq!(out.tokens(), [2]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Default)]
pub struct Batch<'a> {
    /// The slot of each request, [`PADDING`](crate::PADDING) for one without a sequence.
    pub slots: &'a [Slot],
    /// How many drafts each request has, in 0..=64; in [`Pool::draft`](crate::Pool::draft) how many stand in
    /// front of each row, in 0..64, and empty if none do.
    pub counts: &'a [u32],
    /// How drafts are judged, or will be.
    pub mode: VerifyMode,
    /// The grammar bitmasks of the rows.
    pub masks: Masks<'a>,
    /// For each row the token to emit instead of the drawn one; empty: none for any row.
    pub forced: &'a [Option<u32>],
    /// For each row that row of the matrix which it reads; several may read one. Empty: each its own. Not for
    /// hidden states.
    pub row_indices: &'a [u32],
    /// For each row the caller's own edits, which run on the host; empty: none for any row.
    pub hooks: &'a [Option<RowHook<'a>>],
    /// Over ranks the layout of the rows; `None`: the pool decides, as its `plan` does.
    pub plan: Option<Plan>,
    /// The batch of drafts that rows are assigned to; `None`: the pool's own rows.
    /// [`Pool::assign`](crate::Pool::assign) alone reads it.
    pub of: Option<DraftBatch>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("slots", &self.slots)
            .field("counts", &self.counts)
            .field("mode", &self.mode)
            .field("masks", &self.masks)
            .field("forced", &self.forced)
            .field("row_indices", &self.row_indices)
            .field("hooks", &self.hooks.iter().filter(|hook| hook.is_some()).count())
            .field("plan", &self.plan)
            .finish()
    }
}

impl<'a> Batch<'a> {
    /// Returns the batch of the requests in `slots`, all other fields being the default.
    #[must_use]
    pub fn of(slots: &'a [Slot]) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Returns whether it is one of the pool's own rows, and not of a batch of drafts.
    pub(crate) fn is_of_pool(&self) -> bool {
        self.of.is_none()
    }

    /// Returns whether it is one of verifications. One without requests suits steps as well, unless it says
    /// how drafts are judged.
    pub(crate) fn verifies(&self) -> bool {
        !self.counts.is_empty() || self.slots.is_empty() && self.mode != VerifyMode::default()
    }

    /// Checks that there is no plan, which one process does not read.
    pub(crate) fn refuse_plan(&self) -> Result<()> {
        refuse(self.plan.is_some(), ("plan", "pool"), "one process has all rows; leave the plan out")
    }

    /// Checks that there is nothing of drafts.
    fn refuse_drafts(&self, call: &'static str) -> Result<()> {
        refuse(!self.counts.is_empty(), ("counts", call), "it has no drafts; verify them instead")?;
        refuse(self.mode != VerifyMode::default(), ("mode", call), "it has no drafts that a mode could judge")
    }

    /// Checks what comes with `rows` rows that are scored.
    pub(crate) fn check_score(&self, rows: usize, vocab: usize) -> Result<Checked<'a>> {
        self.refuse_plan()?;
        refuse(!self.slots.is_empty(), ("slots", "score"), "no sequence is read; leave them out")?;
        refuse(!self.forced.is_empty(), ("forced", "score"), "the scored tokens are the forced ones")?;
        self.refuse_drafts("score")?;
        self.check(rows, vocab)
    }

    /// Checks that there are no hooks, for an assignment.
    pub(crate) fn refuse_hooks(&self) -> Result<()> {
        let reason = "a hook is called by the call that it is handed to, and an assignment outlives it";
        refuse(self.hooks.iter().any(Option::is_some), ("hooks", "assign"), reason)
    }

    /// Returns the batch without masks in the memory of a device, and these.
    pub(crate) fn without_device_masks(&self) -> (Self, Masks<'a>) {
        match self.masks {
            Masks::Device(_) => (Self { masks: Masks::None, ..*self }, self.masks),
            _ => (*self, Masks::None),
        }
    }

    /// Checks the batch of a step, or of another call that has a row for each slot and no drafts.
    pub(crate) fn check_step(&self, call: &'static str, vocab: usize) -> Result<Checked<'a>> {
        self.refuse_drafts(call)?;
        self.check(self.slots.len(), vocab)
    }

    /// Checks the lists of `rows` rows, for a call that reads them on the host.
    pub(crate) fn check(&self, rows: usize, vocab: usize) -> Result<Checked<'a>> {
        let one_per_row = |parameter, length| {
            let ok = length == 0 || length == rows;
            if ok {
                Ok(())
            } else {
                Err(Error::length(parameter, length, format!("one per row, {rows}, or 0")))
            }
        };
        refuse(self.of.is_some(), ("of", "rows"), "only an assignment is for a batch of drafts")?;
        self.masks.check(rows, vocab)?;
        one_per_row("row_indices", self.row_indices.len())?;
        one_per_row("forced", self.forced.len())?;
        one_per_row("hooks", self.hooks.len())?;
        self.forced.iter().try_for_each(|forced| check_forced(*forced, vocab))?;
        Ok(Checked { batch: *self, rows })
    }

    pub(crate) fn forced(&self, row: usize) -> Option<u32> {
        self.forced.get(row).copied().flatten()
    }

    pub(crate) fn hook(&self, row: usize) -> Option<RowHook<'a>> {
        self.hooks.get(row).copied().flatten()
    }
}

/// Refuses what a call does not read, if it is there.
fn refuse(
    is_there: bool,
    (parameter, other): (&'static str, &'static str),
    reason: &'static str,
) -> Result<()> {
    if is_there { Err(Error::Conflict { parameter, other, reason }) } else { Ok(()) }
}

/// A batch whose lists suit its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked<'a> {
    batch: Batch<'a>,
    rows: usize,
}

impl<'a> Deref for Checked<'a> {
    type Target = Batch<'a>;

    fn deref(&self) -> &Batch<'a> {
        &self.batch
    }
}

impl<'a> Checked<'a> {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Copies some of the requests, and the masks, forced tokens and hooks of their rows.
    pub(crate) fn pick(&self, requests: &[usize], rows: &[usize]) -> Picked<'a> {
        let or_none = |length: usize, rows| if length == 0 { &[][..] } else { rows };
        let counts = or_none(self.counts.len(), requests);
        Picked {
            of: *self,
            slots: requests.iter().map(|request| self.slots[*request]).collect(),
            counts: counts.iter().map(|request| self.counts[*request]).collect(),
            rows: rows.to_vec(),
            forced: or_none(self.forced.len(), rows).iter().map(|row| self.forced(*row)).collect(),
            hooks: or_none(self.hooks.len(), rows).iter().map(|row| self.hook(*row)).collect(),
        }
    }
}

/// Some of the requests of a batch, and the masks, forced tokens and hooks of their rows.
pub(crate) struct Picked<'a> {
    of: Checked<'a>,
    slots: Vec<Slot>,
    counts: Vec<u32>,
    rows: Vec<usize>,
    forced: Vec<Option<u32>>,
    hooks: Vec<Option<RowHook<'a>>>,
}

impl Picked<'_> {
    /// Returns it as a batch of these requests alone, whose rows are as they were picked.
    pub(crate) fn batch(&self) -> Checked<'_> {
        let Self { of, slots, counts, rows, forced, hooks } = self;
        let (mode, masks) = (of.mode, of.masks.pick(rows));
        let batch = Batch { slots, counts, mode, masks, forced, hooks, ..Batch::default() };
        Checked { batch, rows: rows.len() }
    }
}
