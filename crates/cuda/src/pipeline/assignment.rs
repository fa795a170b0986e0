//! Assignments: the requests, forced tokens, row indices and bitmasks of the rows of a step; and which of
//! these lists there are.

use gumball_spec::layout::Widths;
use gumball_spec::shape::check_vocab;
use gumball_spec::{Error, Result, TILE};

use crate::abi::Slot;
use crate::pipeline::draft_rows::{DraftCounts, DraftRule};

/// The capacity of a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkspaceLimits {
    /// The number of ids in the vocabulary; in 1..=2^20.
    pub vocab: usize,
    /// The number of slots, which is how many requests can be in flight; in 0..2^31.
    pub slots: usize,
    /// The most rows that a step can have; in 0..2^31.
    pub rows: usize,
    /// The most logprobs that a row can report, of the likeliest tokens and of given ids; both in 0..=2^20.
    pub widths: Widths,
    /// Whether steps record the kept sets.
    pub kept: bool,
}

impl WorkspaceLimits {
    /// Checks that each size is in its range.
    pub(crate) fn check(&self) -> Result<()> {
        check_vocab(self.vocab)?;
        for (parameter, size) in [("slots", self.slots), ("rows", self.rows)] {
            if i32::try_from(size).is_err() {
                return Err(Error::out_of_range(parameter, size, "in 0..2^31"));
            }
        }
        // A survey may have a block per tile, and a grid has at most 2^31 - 1 blocks.
        let max_rows = i32::MAX as usize / self.vocab.div_ceil(TILE);
        if self.rows > max_rows {
            let allowed = format!("at most {max_rows} with a vocabulary of {}", self.vocab);
            return Err(Error::out_of_range("rows", self.rows, allowed));
        }
        self.widths.check()
    }
}

/// Names a batch of rows of a draft model in the workspace that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBatchId {
    pub(crate) workspace: u64,
    pub(crate) index: usize,
}

/// The assignment of a step's rows to requests, with forced tokens, row indices and bitmasks. An empty list
/// means that no row has a value of that kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Assignment<'a> {
    /// The batch of drafts whose rows they are; `None` for the rows of steps.
    pub of: Option<DraftBatchId>,
    /// The slot of each row, or of each request if drafts are verified; -1 is padding. In the rows of steps
    /// no slot occurs twice.
    pub slots: &'a [Slot],
    /// The token to emit in each row instead of a drawn one; -1 for none.
    pub forced: &'a [i32],
    /// Whether the forced tokens are known ones, which the caller does not force (L2).
    pub known: bool,
    /// The index of the row of logits that each row reads; if empty, row i reads row i.
    pub row_indices: &'a [u32],
    /// The grammar bitmask of each row: bit `id % 32` of word `id / 32` allows an id.
    pub masks: &'a [Option<&'a [u32]>],
    /// How many drafts each slot's request has. A request with n drafts has n + 1 consecutive rows: the row
    /// at the end of its history, and the row after each draft. The other lists have an element for each row.
    /// A batch of drafts needs this field: how many drafts stand in front of each row, 0 to 63, and the rule
    /// that will judge the drawn drafts.
    pub drafts: Option<DraftCounts<'a>>,
}

/// The properties of an assignment that a step is fixed for: its number of rows, and which lists it has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    pub rows: usize,
    pub row_indices: bool,
    pub masks: bool,
    pub drafts: Option<DraftShape>,
}

/// The properties of assigned drafts that a step is fixed for: the number of requests, and the rule that
/// judges the drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DraftShape {
    pub requests: usize,
    pub rule: DraftRule,
}
