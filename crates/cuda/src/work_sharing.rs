//! Help for long rows: blocks beyond those of the rows, which take parts of a row that fits no list (`device/block/work_sharing.cuh`).

use crate::variant::{StepFeatures, Variant};

/// Words before those of the rows, as `device/abi/step.cuh` has it.
const LEFT: usize = 32;

/// How many words of memory it takes.
pub(crate) const fn words(rows: usize) -> usize {
    LEFT + rows
}

/// How a step's rows are helped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Help {
    /// How many blocks there are besides those of the rows.
    pub blocks: u32,
    /// How many parts a row is dealt out in; 0 without help.
    pub parts: u32,
}

/// Parts of a row where there is a block for each of them, and where there are several rows for a block.
const PARTS: [u32; 2] = [32, 16];

impl Help {
    /// Returns the help for so many rows: a pure function of what they need, the shape and the device.
    ///
    /// Rows on lists are long where their filters go by mass alone: top-p before all others. Helpers stay on multiprocessors that
    /// rows leave free, and there are no more than few rows can use: each takes a little of the time of the others.
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
    use crate::variant::Edits;

    #[test]
    fn helpers_have_multiprocessors_of_their_own() {
        let needs = StepFeatures { variant: Variant::Candidates, over: Edits::None, sums: true, long: true };
        for rows in 1..=512 {
            let Help { blocks, parts } = Help::of(132, rows, needs);
            assert!(blocks == 0 || rows + blocks <= 132 && parts >= 16);
        }
        assert_eq!(Help::of(132, 1, needs), Help { blocks: 32, parts: 32 });
        assert_eq!(Help::of(132, 1, StepFeatures { long: false, ..needs }), Help::default());
    }
}
