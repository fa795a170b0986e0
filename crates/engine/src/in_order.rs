//! The batch that is assigned to the rows of a pool on the host, and the outputs of the work for them, in
//! memory that is kept from one to the next.

use gumball_spec::Result;
use gumball_spec::layout::{Layout, Widths};

use crate::batch::{Batch, Checked};
use crate::masks::{HostMasks, Masks};
use crate::outputs::Outputs;
use crate::slot::{PADDING, Slot};
use crate::verify_mode::VerifyMode;

/// A batch without the caller's edits.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    slots: Vec<Slot>,
    /// How many drafts each request has; empty for a step.
    counts: Vec<u32>,
    mode: VerifyMode,
    forced: Vec<Option<u32>>,
    row_indices: Vec<u32>,
    /// The number of words of each mask, and of each row the words and whether they count; `None` if no row
    /// has a mask.
    mask_width: Option<usize>,
    words: Vec<u32>,
    present: Vec<bool>,
}

impl Assigned {
    /// Copies a batch.
    pub fn set(&mut self, batch: &Checked<'_>) {
        batch.slots.clone_into(&mut self.slots);
        batch.counts.clone_into(&mut self.counts);
        self.mode = batch.mode;
        batch.forced.clone_into(&mut self.forced);
        batch.row_indices.clone_into(&mut self.row_indices);
        self.mask_width = batch.masks.width();
        self.words.clear();
        self.present.clear();
        let Some(width) = self.mask_width else { return };
        for row in 0..batch.rows() {
            let mask = batch.masks.row(row);
            self.present.push(mask.is_some());
            self.words.extend_from_slice(mask.unwrap_or(&[]));
            self.words.resize(self.present.len() * width, 0);
        }
    }

    /// Returns the batch.
    pub fn batch(&self) -> Batch<'_> {
        let masks = self.mask_width.map_or(Masks::None, |width| {
            let masks = HostMasks::new(&self.words, self.present.len(), width, width);
            masks.and_then(|masks| masks.with_present(&self.present)).expect("copied from masks").into()
        });
        let Self { slots, counts, mode, forced, row_indices, .. } = self;
        Batch { slots, counts, mode: *mode, masks, forced, row_indices, ..Batch::default() }
    }

    /// Turns the rows of a slot into padding when its sequence ends.
    pub fn forget(&mut self, slot: Slot) {
        self.slots.iter_mut().filter(|assigned| **assigned == slot).for_each(|assigned| *assigned = PADDING);
    }
}

/// The batch that was assigned to the rows of a pool on the host, and the outputs of the work for them.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    pub assigned: Assigned,
    pub outputs: Outputs,
}

impl InOrder {
    /// Makes it for outputs of a shape without rows.
    pub fn new(kept: bool, widths: Widths) -> Result<Self> {
        let mut outputs = Outputs::new();
        outputs.collect_kept(kept);
        outputs.whole(Layout { rows: 0, widths })?;
        Ok(Self { outputs, assigned: Assigned::default() })
    }
}
