//! The drafts that are drawn from rows of a draft model, and the probabilities that they are drawn from.

use std::sync::Arc;

use gumball_spec::layout::{Layout, Widths};
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::{Error, Result};

use crate::abi;
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::rows::Rows;
use crate::pipeline::assignment::Assignment;
use crate::pipeline::judged_rows::JudgedRows;

/// The capacity of a batch of rows of a draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBatchLimits {
    /// The most rows; at most those of a step of the workspace.
    pub rows: usize,
    /// How many drafts are drawn from each row, siblings of a tree; 1 for chains, at most 64.
    pub siblings: usize,
    /// Whether the probabilities that drafts are drawn from are written as well: 4 bytes for each id of each
    /// row.
    pub probs: bool,
}

impl DraftBatchLimits {
    /// Checks that a workspace with `max_rows` rows may have such a batch.
    pub(crate) fn check(self, max_rows: usize) -> Result<()> {
        if !(1..=max_rows).contains(&self.rows) {
            return Err(Error::out_of_range("rows", self.rows, format!("in 1..={max_rows}")));
        }
        if !(1..=MAX_DRAFTS).contains(&self.siblings) {
            return Err(Error::out_of_range("siblings", self.siblings, format!("in 1..={MAX_DRAFTS}")));
        }
        Ok(())
    }
}

/// The drafts of a batch, and the host's copy of the lists that are assigned to its rows.
#[derive(Debug)]
pub struct Proposals {
    pub(crate) limits: DraftBatchLimits,
    vocab: usize,
    /// The outputs that a step writes besides the drafts; nobody reads them.
    outputs: Buffer,
    /// `[rows, siblings]` of i32.
    drafts: Buffer,
    /// The rows of probabilities that drafts are drawn from, if these are written.
    pub(crate) probs: Option<JudgedRows>,
    /// The last assignment's number of rows, forced tokens and row indices.
    rows: usize,
    forced: Vec<i32>,
    row_indices: Vec<u32>,
}

impl Proposals {
    /// Allocates the memory of a batch's drafts.
    pub(crate) fn new(runtime: &Arc<dyn Runtime>, limits: DraftBatchLimits, vocab: usize) -> Result<Self> {
        let DraftBatchLimits { rows, siblings, probs } = limits;
        let output_bytes = Layout { rows: 1, widths: Widths::default() }.words() * size_of::<u32>();
        Ok(Self {
            drafts: Buffer::sized(runtime, ROWS, &[rows, siblings, size_of::<i32>()])?,
            outputs: Buffer::sized(runtime, ROWS, &[rows, output_bytes])?,
            probs: probs.then(|| JudgedRows::new(runtime, rows, vocab)).transpose()?,
            rows: 0,
            forced: Vec::new(),
            row_indices: Vec::new(),
            limits,
            vocab,
        })
    }

    /// Notes the lists of an assignment that were copied up.
    pub(crate) fn note(&mut self, rows: &Assignment<'_>) {
        self.rows = rows.slots.len();
        (self.forced, self.row_indices) = (rows.forced.to_vec(), rows.row_indices.to_vec());
    }

    /// Returns whether these lists are those of an assignment.
    pub(crate) fn has_lists_of(&self, rows: &Assignment<'_>) -> bool {
        self.forced == rows.forced && self.row_indices == rows.row_indices
    }

    /// Returns a step that writes these drafts.
    pub(crate) fn step(&self, step: abi::Step) -> abi::Step {
        abi::Step { outputs: self.outputs.address(), tokens: self.address(), ..step }
    }

    /// Returns the address of the drafts in the device's memory, `[rows, siblings]` of i32, which never
    /// changes.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.drafts.address()
    }

    /// Waits for the work enqueued before, and reads the drafts of the first rows, as many as fit `drafts`.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If `drafts` is longer than the batch's.
    pub fn read(&self, drafts: &mut [i32]) -> Result<()> {
        Ok(self.drafts.read(0, drafts)?)
    }

    /// Returns the probabilities that the drafts of the assigned rows were drawn from: rows in the device's
    /// memory, whose address never changes. Rows that are padding are not written.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the batch was made without probabilities.
    pub fn probs(&self) -> Result<Rows<'_>> {
        Ok(self.with_probs()?.rows(self.rows, self.vocab))
    }

    /// Waits for the work enqueued before, and reads a row of these probabilities.
    ///
    /// # Errors
    /// - The errors of [`Proposals::probs`].
    /// - [`Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If the batch has no such row.
    pub fn read_probs(&self, row: usize, probs: &mut [f32]) -> Result<()> {
        self.with_probs()?.read(row, probs)
    }

    fn with_probs(&self) -> Result<&JudgedRows> {
        let without =
            || Error::out_of_range("batch.probs", false, "true: the batch was made without probabilities");
        self.probs.as_ref().ok_or_else(without)
    }
}
