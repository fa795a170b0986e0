//! Which way a softmax takes, and on how many blocks.

use gumball_spec::TILE;

use super::{TileBlocks, WARP};
use crate::abi::dtype::Dtype;
use crate::abi::{
    CLUSTER_STATIC_SMEM_BYTES, MAX_CLUSTER_BLOCKS, MAX_ROWS_IN_FLIGHT, MAX_WORKER_WARPS, TWO_PASS_WARPS,
    TileSum,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;

/// How kernels read the rows of a softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Softmax {
    /// Once: each row stays in the shared memory of a cluster.
    SinglePass(Clusters),
    /// Twice: one kernel sums, another one writes. A launch takes `rows` rows, so that the second read
    /// hits the L2 cache.
    TwoPass { rows: usize, blocks: TileBlocks },
}

/// The launch of a softmax by clusters, each of which takes whole rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clusters {
    pub clusters: usize,
    /// The number of blocks of a cluster.
    pub blocks_per_row: usize,
    /// The most tiles that a block takes of a row, an even number.
    pub tiles_per_block: usize,
    /// The number of warps in a block that work on tiles; one more exchanges the blocks' sums.
    pub worker_warps: usize,
    /// The pairs of tiles for which each of these warps has slots in shared memory.
    pub pairs_in_smem: usize,
    /// How many pairs beyond a row's own a warp has weighed when it writes that row.
    pub pairs_ahead: usize,
    /// Dynamic shared memory per block, in bytes.
    pub smem_bytes: usize,
}

/// Up to this number of tiles per multiprocessor, rows are read twice even if they fit a cluster: then all
/// multiprocessors work on each row, which is faster for few rows.
const MAX_TWO_PASS_TILES: usize = 160;

/// The most tiles that one launch reads twice: their logits and probabilities fit the L2 cache.
pub(crate) const MAX_TILES_PER_LAUNCH: usize = 20 << 10;

/// Blocks per multiprocessor before a warp takes several tiles, and the most tiles that a warp takes, for
/// rows read twice. Each block also sums its row's tile sums, which is overhead: so there are as few
/// blocks as keep all multiprocessors busy.
const TWO_PASS_BLOCKS_PER_SM: usize = 4;
const MAX_TWO_PASS_TILES_PER_WARP: usize = 6;

/// The numbers of blocks that a cluster may have.
const CLUSTER_BLOCKS: [usize; 7] = [1, 2, 3, 4, 6, 8, MAX_CLUSTER_BLOCKS];

/// The most pairs of tiles for which a warp of a cluster has slots in shared memory.
const MAX_PAIRS_IN_SMEM: usize = 32;

/// Chooses how kernels read the rows of a softmax. `two_pass` overrides the choice; rows that fit no cluster
/// are read twice in any case.
pub(crate) fn softmax(
    limits: &DeviceLimits,
    rows: usize,
    tiles: usize,
    dtype: Dtype,
    two_pass: Option<bool>,
) -> Softmax {
    let DeviceLimits { multiprocessors, .. } = *limits;
    if !two_pass.unwrap_or(rows * tiles <= MAX_TWO_PASS_TILES * multiprocessors) {
        let fitting =
            CLUSTER_BLOCKS.iter().filter_map(|blocks| clusters(limits, rows, tiles, dtype, *blocks));
        if let Some(best) = fitting.min_by_key(|found| (found.cost(rows), found.blocks_per_row)) {
            return Softmax::SinglePass(best);
        }
    }
    let rows = rows.min((MAX_TILES_PER_LAUNCH / tiles).max(1));
    let per_warp = (rows * tiles).div_ceil(multiprocessors * TWO_PASS_BLOCKS_PER_SM * TWO_PASS_WARPS);
    let per_warp = per_warp.clamp(1, MAX_TWO_PASS_TILES_PER_WARP);
    Softmax::TwoPass { rows, blocks: TileBlocks::new(tiles, TWO_PASS_WARPS, per_warp) }
}

/// Returns the launch with `blocks` blocks per row, or `None` if a row does not fit their shared memory.
fn clusters(
    limits: &DeviceLimits,
    rows: usize,
    tiles: usize,
    dtype: Dtype,
    blocks: usize,
) -> Option<Clusters> {
    let clusters = rows.min(limits.clusters[blocks - 1]);
    let pairs = tiles.div_ceil(2).div_ceil(blocks);
    let per_warp = pairs.div_ceil(MAX_WORKER_WARPS);
    let warps = pairs.div_ceil(per_warp);
    // A slot holds a pair of tiles and an mbarrier. If rows do not begin at multiples of 16 bytes, up to 16
    // bytes before the pair are copied with it.
    let slot_bytes = 2 * TILE * dtype.bytes() + 16 + size_of::<u64>();
    let tiles_per_block = 2 * pairs;
    let sums_bytes = MAX_ROWS_IN_FLIGHT * tiles_per_block * size_of::<TileSum>();
    let free_bytes = limits.shared_memory_per_block.checked_sub(CLUSTER_STATIC_SMEM_BYTES + sums_bytes)?;
    let pairs_in_smem = (free_bytes / slot_bytes / warps).min(6 * per_warp).min(MAX_PAIRS_IN_SMEM);
    if clusters == 0 || pairs_in_smem < per_warp {
        return None;
    }
    Some(Clusters {
        clusters,
        blocks_per_row: blocks,
        tiles_per_block,
        worker_warps: warps,
        pairs_in_smem,
        pairs_ahead: (pairs_in_smem - per_warp).min((MAX_ROWS_IN_FLIGHT - 2) * per_warp),
        smem_bytes: sums_bytes + warps * pairs_in_smem * slot_bytes,
    })
}

impl Clusters {
    /// Returns the grid: in each block, one warp more than those that work on tiles.
    pub fn grid(&self) -> Grid {
        let blocks = self.clusters * self.blocks_per_row;
        Grid::new(blocks as u32, (WARP * (self.worker_warps + 1)) as u32)
            .clustered(self.blocks_per_row as u32, self.smem_bytes as u32)
    }

    /// Returns a relative estimate of a block's time for all rows. If warps cannot weigh a whole row ahead,
    /// they sometimes wait for other blocks.
    fn cost(&self, rows: usize) -> usize {
        let tiles = rows.div_ceil(self.clusters) * self.tiles_per_block;
        let waits = self.pairs_ahead < (self.tiles_per_block / 2).div_ceil(self.worker_warps);
        tiles * if waits { 103 } else { 100 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: DeviceLimits = DeviceLimits::H200;
    /// The tiles of 151936 tokens.
    const TILES: usize = 594;

    fn of(rows: usize, tiles: usize) -> Softmax {
        softmax(&H200, rows, tiles, Dtype::F32, None)
    }

    #[test]
    fn few_rows_are_read_twice_and_many_once() {
        // 132 * 160 = 21120 tiles.
        let twice = |rows, tiles| matches!(of(rows, tiles), Softmax::TwoPass { .. });
        assert!(twice(35, TILES) && !twice(36, TILES));
        assert!(twice(168, 125) && !twice(169, 125));
        let ampere = DeviceLimits { shared_memory_per_block: 0, clusters: [0; 16], ..H200 };
        let Softmax::TwoPass { rows, blocks } = softmax(&ampere, 512, TILES, Dtype::F32, None) else {
            panic!()
        };
        assert_eq!((rows, blocks.tiles_per_block), (MAX_TILES_PER_LAUNCH / TILES, 40));
    }

    #[test]
    fn warps_take_several_tiles_once_all_multiprocessors_are_busy() {
        // 132 * 4 * 8 = 4224 tiles are one per warp.
        let per_warp = |rows| match of(rows, TILES) {
            Softmax::TwoPass { blocks, .. } => blocks.tiles_per_block / TWO_PASS_WARPS,
            Softmax::SinglePass(_) => 0,
        };
        assert_eq!([1, 7, 8, 14, 15, 35].map(per_warp), [1, 1, 2, 2, 3, 5]);
    }

    #[test]
    fn a_cluster_holds_a_row_in_shared_memory_and_its_launch_fits_a_block() {
        for rows in [36, 128, 512, 4096] {
            for tiles in [TILES, 1024, 2048, 4096] {
                for dtype in [Dtype::F32, Dtype::Bf16] {
                    let Softmax::SinglePass(found) = softmax(&H200, rows, tiles, dtype, Some(false)) else {
                        continue;
                    };
                    assert!(found.blocks_per_row * found.tiles_per_block >= tiles);
                    assert!(2 * found.worker_warps * found.pairs_in_smem >= found.tiles_per_block);
                    assert!(found.smem_bytes + CLUSTER_STATIC_SMEM_BYTES <= H200.shared_memory_per_block);
                    assert!(
                        found.worker_warps <= MAX_WORKER_WARPS && found.pairs_in_smem <= MAX_PAIRS_IN_SMEM
                    );
                }
            }
        }
        // Of 4096 tiles a sixteenth is 256 KiB in f32, which no block has, and 128 KiB in bf16.
        let once = |dtype| matches!(softmax(&H200, 512, 4096, dtype, None), Softmax::SinglePass(_));
        assert!(!once(Dtype::F32) && once(Dtype::Bf16));
    }
}
