//! Work sharing: blocks without a row take chunks of another row's search, if its candidates fit no list
//! (`device/block/work_sharing.cuh`).

use crate::abi::CHUNKS_LEFT;
use crate::requests::variant::{StepFeatures, Variant};

/// Returns the number of 32-bit words that work sharing needs for `rows` rows.
pub(crate) const fn words(rows: usize) -> usize {
    CHUNKS_LEFT + rows
}

/// The helper blocks of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkSharing {
    /// The number of blocks without a row.
    pub blocks: u32,
    /// The number of chunks into which a row's search is divided; 0 without helper blocks.
    pub parts: u32,
}

/// Chunks per row: if there is one helper block per chunk of every row, and if there are fewer blocks.
const PARTS: [u32; 2] = [32, 16];

impl WorkSharing {
    /// Returns the helper blocks of `rows` rows: a pure function of the features they need, the shape and the
    /// device.
    ///
    /// Candidate lists are long if top-p acts before all other filters, because no number of tokens bounds a
    /// nucleus. Helpers run on SMs that rows leave free. There are at most 32 per row, because each helper
    /// slows the other blocks a little. If there would be less than one per row, there are none.
    pub fn of(multiprocessors: u32, rows: u32, needs: StepFeatures) -> Self {
        let free = multiprocessors.saturating_sub(rows);
        let blocks = free.min(PARTS[0] * rows);
        if needs.variant != Variant::Candidates || !needs.long || blocks < rows {
            return Self::default();
        }
        Self { blocks, parts: PARTS[usize::from(blocks < PARTS[0] * rows)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::variant::Edits;

    #[test]
    fn helpers_have_multiprocessors_of_their_own() {
        let needs = StepFeatures { variant: Variant::Candidates, over: Edits::None, sums: true, long: true };
        for rows in 1..=512 {
            let WorkSharing { blocks, parts } = WorkSharing::of(132, rows, needs);
            assert!(blocks == 0 || rows + blocks <= 132 && parts >= 16);
        }
        assert_eq!(WorkSharing::of(132, 1, needs), WorkSharing { blocks: 32, parts: 32 });
        assert_eq!(WorkSharing::of(132, 1, StepFeatures { long: false, ..needs }), WorkSharing::default());
    }
}
