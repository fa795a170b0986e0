//! How many threads finish a row, and how many blocks help.

use super::WARP;
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::requests::step_features::{StepFeatures, Variant};

/// How many blocks and threads finish rows, and how a row's search is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// A block per row, then the helper blocks, which have no row.
    pub grid: Grid,
    /// The number of chunks into which a row's search is divided; 0 without helper blocks.
    pub chunks: usize,
}

/// The most threads of a block from two rows per multiprocessor on, where blocks wait for each other.
const MAX_THREADS_OF_MANY_ROWS: usize = 256;

/// The chunks of a row's search if there is a helper block for each chunk of every row, and if there are
/// fewer blocks. Chunks of a few tiles each are slower: 32 rows of equal logits take 190 us for 115.
const CHUNKS: [usize; 2] = [32, 16];

/// Returns the launch that finishes rows: `finish_*`, `find_cut` and `verify_finish`.
///
/// While rows are no more than multiprocessors, variants up to `CandidatesLogprob` get one thread per
/// tile, because they are bound by latency: at least 256 and at most twice `threads_per_row`.
/// `CandidatesLogprob` gets one more warp, which draws while the others compute logprobs. The candidate
/// kernels take one block per multiprocessor there, because two on one take longer. From two rows per
/// multiprocessor on, blocks have 256 threads. In all other cases a block has `threads_per_row` threads.
pub(crate) fn finish(limits: &DeviceLimits, rows: usize, tiles: usize, needs: StepFeatures) -> Finish {
    let DeviceLimits { multiprocessors, threads_per_row, .. } = *limits;
    let many_threads = threads_per_row.min(MAX_THREADS_OF_MANY_ROWS);
    let threads = if rows >= 2 * multiprocessors {
        many_threads
    } else if needs.variant <= Variant::CandidatesLogprob && rows <= multiprocessors {
        let drawing = if needs.variant == Variant::CandidatesLogprob { WARP } else { 0 };
        (tiles.next_multiple_of(WARP) + drawing).clamp(many_threads, 2 * threads_per_row)
    } else {
        threads_per_row
    };
    let candidates = matches!(needs.variant, Variant::Candidates | Variant::CandidatesLogprob);
    let (helpers, chunks) = helpers(limits, rows, needs);
    let grid = Grid::new((rows + helpers) as u32, threads as u32)
        .one_block_per_sm(candidates && rows <= multiprocessors)
        .co_resident(helpers != 0);
    Finish { grid, chunks }
}

/// Returns the number of helper blocks, and the number of chunks of a row's search.
///
/// Candidate lists are long if top-p acts before all other filters, because no number of tokens bounds a
/// nucleus. Helpers run on multiprocessors that rows leave free. There are at most 32 per row, because each
/// helper slows the other blocks a little. If there would be less than one per row, there are none.
fn helpers(limits: &DeviceLimits, rows: usize, needs: StepFeatures) -> (usize, usize) {
    let wanted = CHUNKS[0] * rows;
    let helpers = limits.multiprocessors.saturating_sub(rows).min(wanted);
    if needs.variant != Variant::Candidates || !needs.long_nucleus || helpers < rows {
        return (0, 0);
    }
    (helpers, CHUNKS[usize::from(helpers < wanted)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceLimits = DeviceLimits::H200;
    const NUCLEUS: StepFeatures =
        StepFeatures { sums: true, long_nucleus: true, variant: Variant::Candidates, ..StepFeatures::NONE };

    fn threads(rows: usize, tiles: usize, variant: Variant) -> u32 {
        finish(&H200, rows, tiles, StepFeatures { variant, ..StepFeatures::NONE }).grid.threads
    }

    #[test]
    fn a_row_has_a_thread_per_tile_while_rows_are_no_more_than_multiprocessors() {
        let tiles = [1, 256, 257, 594, 1024, 1025, 4096];
        for rows in [1, 132] {
            let simple = tiles.map(|tiles| threads(rows, tiles, Variant::Simple));
            assert_eq!(simple, [256, 256, 288, 608, 1024, 1024, 1024]);
            let logprob = tiles.map(|tiles| threads(rows, tiles, Variant::CandidatesLogprob));
            assert_eq!(logprob, [256, 288, 320, 640, 1024, 1024, 1024]);
            assert_eq!(threads(rows, 594, Variant::General), 512);
        }
        for variant in Variant::ALL {
            assert_eq!([133, 263, 264, 600].map(|rows| threads(rows, 594, variant)), [512, 512, 256, 256]);
        }
    }

    #[test]
    fn candidate_kernels_have_multiprocessors_of_their_own_while_there_are_enough() {
        for variant in Variant::ALL {
            let candidates = matches!(variant, Variant::Candidates | Variant::CandidatesLogprob);
            let needs = StepFeatures { variant, ..StepFeatures::NONE };
            let exclusive = |rows| finish(&H200, rows, 594, needs).grid.one_block_per_sm;
            assert_eq!([1, 132, 133].map(exclusive), [candidates, candidates, false]);
        }
    }

    #[test]
    fn helpers_run_on_multiprocessors_that_rows_leave_free() {
        let helpers = |rows| {
            let Finish { grid, chunks } = finish(&H200, rows, 594, NUCLEUS);
            assert_eq!(grid.co_resident, chunks != 0);
            (grid.blocks as usize - rows, chunks)
        };
        assert_eq!(
            [1, 4, 5, 66, 67, 512].map(helpers),
            [(32, 32), (128, 32), (127, 16), (66, 16), (0, 0), (0, 0)]
        );
        let short = finish(&H200, 1, 594, StepFeatures { long_nucleus: false, ..NUCLEUS });
        assert_eq!((short.grid.blocks, short.chunks), (1, 0));
    }
}
