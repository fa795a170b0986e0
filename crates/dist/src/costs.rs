//! Which layout takes the least time, by costs that were fitted to a record.
//!
//! A layout costs a number of nanoseconds, and more for each byte that a rank receives and reads. What all
//! layouts have in common is left out, so the sums say which layout is sooner, and not how long it takes.

use crate::layout::{LogitsLayout, Needs, StepKind, StepShape};
use crate::share::VocabSplit;

/// What layouts cost where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// For a megabyte that a rank gets from another one.
    pub link_ns_per_mb: u64,
    /// For a megabyte of whole rows that a rank reads.
    pub read_ns_per_mb: u64,
    /// For a megabyte of parts of rows that a rank surveys.
    pub survey_ns_per_mb: u64,
    /// For all rows to be gathered.
    pub gather_ns: u64,
    /// For rows to be swapped, and the results to be sent.
    pub swap_ns: u64,
    /// For rows with edits or bitmasks to be gathered or swapped, beyond what it takes to survey such rows.
    pub edited_ns: u64,
    /// For rows to be surveyed which a winner or masses decide.
    pub survey_ns: [u64; 2],
    /// For rows to be surveyed which lists decide, by how long these are, in rising order.
    pub lists: [ListCosts; 4],
    /// For a survey to find that it has rows to swap, besides what it takes to swap them.
    pub swapped_ns: u64,
    /// For each rank beyond two, of rows that are swapped; twice that of rows that lists decide, which each
    /// rank merges.
    pub rank_ns: u64,
}

/// The time of a survey of rows which lists up to a length decide. A rank searches its part of the ids for
/// the list, which takes longer in a smaller part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListCosts {
    /// The most tokens of a list that this speaks of.
    pub most: usize,
    pub ns: i64,
    /// Besides, for a largest part of a million ids; of n million 1/n of it.
    pub part_ns: i64,
    /// Besides, as much less as the smallest part has fewer ids than the largest one: the difference of what
    /// both would take.
    pub uneven_ns: i64,
}

impl ListCosts {
    /// What takes as long for lists of any length.
    const fn of(ns: i64) -> [Self; 4] {
        [Self { most: usize::MAX, ns, part_ns: 0, uneven_ns: 0 }; 4]
    }

    /// Returns the nanoseconds, by the numbers of ids of the largest and the smallest part.
    fn total(&self, largest: usize, smallest: usize) -> u128 {
        let of = |ns: i64, ids: usize| i128::from(ns) * 1_000_000 / ids.max(1) as i128;
        let uneven = of(self.uneven_ns, smallest) - of(self.uneven_ns, largest);
        u128::try_from(i128::from(self.ns) + of(self.part_ns, largest) + uneven).unwrap_or(0)
    }
}

/// The bytes that a rank gets from each other about a surveyed row which a winner, a list or masses decide.
const SURVEYED_BYTES: [u128; 3] = [24, 816, 1024];

impl Costs {
    /// GPUs of one host that store into each other's memory over NVLink: two H100s and four, as the records
    /// 2026-11-26-h100-two-gpus, 2026-11-26-h100-two-gpus-edited, 2026-11-26-h100-four-gpus and
    /// 2026-11-27-h100-two-gpus-lists of the bench hold. A device surveys no rows that need masses. Those
    /// with peer access over PCIe take them too, unless the caller has others: they were not measured.
    pub const NVLINK: Self = Self {
        link_ns_per_mb: 2720,
        read_ns_per_mb: 410,
        survey_ns_per_mb: 410,
        gather_ns: 12_700,
        swap_ns: 16_100,
        edited_ns: 1_600,
        survey_ns: [9_000, 16_100],
        lists: [
            ListCosts { most: 16, ns: 11_000, part_ns: 0, uneven_ns: 0 },
            ListCosts { most: 64, ns: 14_400, part_ns: 90, uneven_ns: 0 },
            ListCosts { most: 128, ns: 18_000, part_ns: -80, uneven_ns: 500 },
            ListCosts { most: usize::MAX, ns: 10_000, part_ns: 2_800, uneven_ns: 0 },
        ],
        swapped_ns: 6_000,
        rank_ns: 750,
    };

    /// GPUs that send each other messages of NCCL through host memory, as those do that do not reach each
    /// other's: two H100s, as the record 2026-11-26-h100-two-gpus-nccl-host-memory of the bench holds. Where
    /// all send at once it takes longer. Rows are not surveyed.
    pub const NCCL: Self = Self { link_ns_per_mb: 44_400, gather_ns: 2000, swap_ns: 0, ..Self::NVLINK };

    /// Processes of one host that send each other messages, with rows in host memory, by the record
    /// 2026-11-26-host-two-processes of the bench. A survey of rows that need masses takes longer than to
    /// gather them, however many they are.
    pub const HOST: Self = Self {
        link_ns_per_mb: 300_000,
        read_ns_per_mb: 85_000,
        survey_ns_per_mb: 460_000,
        gather_ns: 0,
        swap_ns: 13_000,
        edited_ns: 0,
        survey_ns: [40_000, 10_000_000],
        lists: ListCosts::of(40_000),
        swapped_ns: 0,
        rank_ns: 0,
    };

    /// The costs over a network that carries a gigabyte a second, and takes 50 microseconds for an exchange.
    /// This was not measured.
    pub const NETWORK: Self = Self {
        link_ns_per_mb: 1_000_000,
        swap_ns: 63_000,
        survey_ns: [58_000, 560_000],
        lists: ListCosts::of(70_000),
        ..Self::HOST
    };

    /// Returns the layout that takes the least time of the configured ones that serve a step; `Gather`
    /// always is. Drafts that are judged are not surveyed, and neither are rows that are needed whole.
    /// `logit_bytes`: the size of one logit.
    pub(crate) fn least(
        &self,
        shape: &StepShape,
        split: &VocabSplit,
        logit_bytes: usize,
        configured: &[LogitsLayout],
    ) -> LogitsLayout {
        let is_surveyed = shape.kind != StepKind::Judge && shape.needs < Needs::Whole;
        let serves = |layout: &LogitsLayout| match layout {
            LogitsLayout::Swap => split.world() > 1 && configured.contains(layout),
            LogitsLayout::Survey => split.world() > 1 && configured.contains(layout) && is_surveyed,
            LogitsLayout::Gather | LogitsLayout::Replicated => false,
        };
        let row = Row::of(split, logit_bytes);
        let others = LogitsLayout::ALL.into_iter().filter(serves);
        let all = [LogitsLayout::Gather].into_iter().chain(others);
        all.min_by_key(|layout| self.ns(*layout, shape, row)).expect("one serves always")
    }

    /// Returns the nanoseconds of a step, up to what all layouts take.
    fn ns(&self, layout: LogitsLayout, shape: &StepShape, row: Row) -> u128 {
        let rows = |requests: usize| requests * (shape.drafts + 1);
        // The rank with the most requests decides.
        let more_ranks = u128::from(self.rank_ns) * row.world.saturating_sub(2) as u128;
        let edited_ns = if shape.edits { u128::from(self.edited_ns) } else { 0 };
        let swap_ns = u128::from(self.swap_ns) + edited_ns + more_ranks;
        let swap = |requests: usize| swap_ns + self.whole(rows(requests.div_ceil(row.world)), row);
        match layout {
            LogitsLayout::Gather => u128::from(self.gather_ns) + edited_ns + self.whole(shape.rows(), row),
            LogitsLayout::Swap => swap(shape.batch()),
            LogitsLayout::Survey => {
                let (swapped, world) = (shape.swapped, row.world as u128);
                let swapped_ns = if swapped > 0 { u128::from(self.swapped_ns) + swap(swapped) } else { 0 };
                let rows = rows(shape.batch().saturating_sub(swapped)) as u128;
                if rows == 0 {
                    return swapped_ns;
                }
                let merge_ns = if shape.needs == Needs::List { 2 * more_ranks } else { 0 };
                let found_ns = match shape.needs {
                    Needs::List => {
                        let of = self.lists.iter().find(|of| shape.listed <= of.most);
                        of.map_or(0, |of| of.total(row.largest, row.smallest))
                    }
                    needs => u128::from(self.survey_ns[usize::from(needs != Needs::Winner)]),
                };
                let read = rows * row.part(row.largest) * u128::from(self.survey_ns_per_mb);
                let sent =
                    SURVEYED_BYTES[shape.needs as usize] * (world - 1) * u128::from(self.link_ns_per_mb);
                found_ns + merge_ns + (read + rows * sent) / MB + swapped_ns
            }
            LogitsLayout::Replicated => unreachable!("it is chosen by where the hidden states are"),
        }
    }

    /// Returns the nanoseconds in which a rank gets the parts of rows that others have, and reads the rows.
    fn whole(&self, rows: usize, row: Row) -> u128 {
        let (link, read) = (u128::from(self.link_ns_per_mb), u128::from(self.read_ns_per_mb));
        // The rank with the smallest part gets the most.
        rows as u128 * (link * row.part(row.ids - row.smallest) + read * row.part(row.ids)) / MB
    }
}

/// A row of logits, and how it is spread over ranks.
#[derive(Clone, Copy)]
struct Row {
    world: usize,
    ids: usize,
    largest: usize,
    smallest: usize,
    logit_bytes: usize,
}

impl Row {
    fn of(split: &VocabSplit, logit_bytes: usize) -> Self {
        let parts = || (0..split.world()).map(|rank| split.ids(rank).len());
        let (largest, smallest) = (parts().max().unwrap_or(0), parts().min().unwrap_or(0));
        Self { world: split.world(), ids: split.vocab(), largest, smallest, logit_bytes }
    }

    /// Returns the bytes of the logits of a number of ids.
    fn part(&self, ids: usize) -> u128 {
        (ids * self.logit_bytes) as u128
    }
}

const MB: u128 = 1_000_000;
