//! Tuning: how many blocks, threads, tiles and bytes of shared memory each kernel's launch takes.
//!
//! There is one pure function per kernel, from the device's limits, the shape and the features of the rows to
//! its launch or its grid. Nothing here enqueues, allocates or queries a device. Results do not depend on
//! what is chosen here, only times do. Unless a constant says otherwise, it was measured on one H200.

mod drafts;
mod exchange;
mod finish;
mod head;
mod operators;
mod softmax;
mod survey;

use crate::driver::runtime::Grid;

pub(crate) use drafts::*;
pub(crate) use exchange::*;
pub(crate) use finish::*;
pub(crate) use head::*;
pub(crate) use operators::*;
pub(crate) use softmax::*;
pub(crate) use survey::*;

/// The threads of a warp.
const WARP: usize = 32;

/// How the blocks of a kernel divide rows: each block takes neighbouring tiles of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileBlocks {
    /// The number of blocks of each row.
    pub blocks_per_row: usize,
    /// The most tiles that a block takes.
    pub tiles_per_block: usize,
    /// The number of threads of a block.
    pub threads: usize,
}

impl TileBlocks {
    /// Divides rows of `tiles` tiles among blocks of `warps` warps that take `tiles_per_warp` tiles each.
    fn new(tiles: usize, warps: usize, tiles_per_warp: usize) -> Self {
        let tiles_per_block = warps * tiles_per_warp;
        Self { blocks_per_row: tiles.div_ceil(tiles_per_block), tiles_per_block, threads: WARP * warps }
    }

    /// Returns the number of warps of a block.
    pub fn warps(&self) -> usize {
        self.threads / WARP
    }

    /// Returns the grid for `rows` rows.
    pub fn grid(&self, rows: usize) -> Grid {
        Grid::new((rows * self.blocks_per_row) as u32, self.threads as u32)
    }
}
