//! The batch that is assigned to the rows of a pool on the host, and the outputs of the work for them, in
//! memory that is kept from one to the next.

use gumball_spec::Result;
use gumball_spec::layout::{Layout, Widths};

use crate::assignment::Assignment;
use crate::batch::{Batch, Checked};
use crate::masks::{HostMasks, Masks};
use crate::outputs::Outputs;

/// The batch that was assigned to the rows of a pool on the host, and the outputs of the work for them.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    pub assigned: Assigned,
    pub outputs: Outputs,
}

/// A batch without the caller's edits.
#[derive(Debug, Default)]
pub(crate) struct Assigned {
    pub of: Assignment,
    /// The number of words of each mask, and of each row the words and whether they count; `None` if no row
    /// has a mask.
    mask_width: Option<usize>,
    words: Vec<u32>,
    present: Vec<bool>,
}

impl Assigned {
    /// Copies a batch.
    pub fn set(&mut self, batch: &Checked<'_>, verifies: bool) {
        self.of.set(batch, verifies);
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
        Batch { masks, ..self.of.batch() }
    }
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
