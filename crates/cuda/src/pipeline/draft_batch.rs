//! Batches of rows of a draft model, from which the requests in the slots draw drafts (rule S8).
//!
//! A batch has memory of its own for what is assigned to its rows and for what is drawn from them, so that one graph may hold
//! several batches, a verification and steps. Each row stands behind a path of drafts: `begin_drafts` makes its request from the one in
//! the slot, as that one is when the kernel runs. Nothing of a request changes.
//!
//! One draft a row is the token of an ordinary step, so the kernels of a step draw it. Several siblings, and drafts of blocks, which
//! have random words of their own, are drawn by `draft_race`.

use std::sync::Arc;

use gumball_spec::layout::{Layout, Widths};
use gumball_spec::verify::draft::check_path;
use gumball_spec::{Error, Result};

use crate::abi::Slot;
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, ROWS};
use crate::pipeline::assignment::{Assignment, Shape, WorkspaceLimits};
use crate::pipeline::draft_rows::{DraftRows, DraftRule};
use crate::pipeline::judged_rows::JudgedRows;
use crate::pipeline::row_lists::RowLists;
use crate::requests::request_table::RequestTable;
use crate::requests::step_variant::StepVariant;

/// The capacity of a batch of rows of a draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBatchLimits {
    /// The most rows; at most those of a step of the workspace.
    pub rows: usize,
    /// How many drafts are drawn from each row, siblings of a tree; 1 for chains, at most 64.
    pub siblings: usize,
    /// Whether the probabilities that drafts are drawn from are written as well: 4 bytes for each id of each row.
    pub probs: bool,
}

/// A batch.
#[derive(Debug)]
pub(crate) struct DraftBatch {
    pub limits: DraftBatchLimits,
    pub lists: RowLists,
    pub rows: DraftRows,
    /// What a step writes besides the drafts; nobody reads it.
    pub outputs: Buffer,
    /// `[rows, siblings]` of i32.
    pub drafts: Buffer,
    /// The probabilities that drafts are drawn from.
    pub probs: Option<JudgedRows>,
    pub slots: Vec<Slot>,
    pub rule: DraftRule,
    pub shape: Shape,
    pub row_indices_end: usize,
    pub forced: Vec<i32>,
    pub row_indices: Vec<u32>,
    pub longest_path: usize,
    /// The smallest variant that the host program captured the batch with, if it did.
    pub captured: Option<StepVariant>,
}

impl DraftBatch {
    /// Allocates the memory of a batch.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn new(runtime: &Arc<dyn Runtime>, limits: DraftBatchLimits, vocab: usize) -> Result<Self> {
        let DraftBatchLimits { rows, siblings, probs } = limits;
        let outputs = Layout { rows: 1, widths: Widths::default() }.words() * size_of::<u32>();
        Ok(Self {
            limits,
            drafts: Buffer::sized(runtime, ROWS, &[rows, siblings, size_of::<i32>()])?,
            lists: RowLists::new(runtime, rows, vocab)?,
            rows: DraftRows::new(runtime, rows)?,
            outputs: Buffer::sized(runtime, ROWS, &[rows, outputs])?,
            probs: probs.then(|| JudgedRows::new(runtime, rows, vocab)).transpose()?,
            slots: Vec::new(),
            rule: DraftRule::Coupled,
            shape: Shape::default(),
            row_indices_end: 0,
            forced: Vec::new(),
            row_indices: Vec::new(),
            longest_path: 0,
            captured: None,
        })
    }

    /// Returns the most drafts on the path to a row.
    pub fn longest_path(&self) -> usize {
        self.longest_path
    }

    /// Returns whether a row is assigned to a slot.
    pub fn has(&self, slot: Slot) -> bool {
        self.slots.contains(&slot)
    }

    /// Gives rows other memory for what they copy of the lists of their requests, which have changed.
    pub fn place_lists(&mut self, table: &RequestTable) -> Result<()> {
        self.rows.place_lists(table, &self.slots)
    }

    /// Makes the rows of a slot padding, as its request leaves.
    pub fn retire(&mut self, slot: Slot) -> Result<()> {
        for row in 0..self.slots.len() {
            if self.slots[row] == slot {
                self.lists.retire(row)?;
                self.slots[row] = -1;
            }
        }
        Ok(())
    }

    /// Checks what is assigned to the rows, and copies it up unless it is there already.
    ///
    /// # Errors
    /// Those of [`Workspace::assign_draft_batch`](crate::Workspace::assign_draft_batch).
    pub fn assign(
        &mut self,
        table: &RequestTable,
        limits: WorkspaceLimits,
        rows: &Assignment<'_>,
        rule: DraftRule,
        counts: &[u32],
    ) -> Result<()> {
        let count = rows.slots.len();
        if count > self.limits.rows {
            return Err(Error::length("slots", count, format!("at most {} rows", self.limits.rows)));
        }
        if counts.len() != count {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {count}")));
        }
        counts.iter().try_for_each(|count| check_path(*count as usize))?;
        let is_known = self.slots == rows.slots && self.rows.counts() == counts && self.rule == rule;
        let has_masks = self.shape.masks || !rows.masks.is_empty();
        // Bitmasks are not compared: they are copied up each time.
        if is_known && !has_masks && self.forced == rows.forced && self.row_indices == rows.row_indices {
            return Ok(());
        }
        // After a failed copy nothing is assigned.
        self.slots.clear();
        self.shape = Shape::default();
        self.longest_path = 0;
        self.lists.write(limits, rows, count)?;
        self.rows.assign_paths(table, rows.slots, counts, rule)?;
        let (row_indices, masks) = (!rows.row_indices.is_empty(), !rows.masks.is_empty());
        self.shape = Shape { rows: count, row_indices, masks, drafts: None };
        self.row_indices_end = rows.row_indices.iter().max().map_or(0, |row| *row as usize + 1);
        self.longest_path = counts.iter().copied().max().unwrap_or(0) as usize;
        (self.forced, self.row_indices) = (rows.forced.to_vec(), rows.row_indices.to_vec());
        self.slots.extend(rows.slots);
        self.rule = rule;
        Ok(())
    }

    /// Whether rows are drawn from at temperature 0 whatever their requests say.
    pub fn is_greedy(&self) -> bool {
        self.rule.is_greedy()
    }

    /// Whether the kernels of a step draw the drafts.
    pub fn takes_steps(&self) -> bool {
        self.limits.siblings == 1 && !self.rule.is_block()
    }
}
