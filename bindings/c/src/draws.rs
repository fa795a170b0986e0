//! The keys of draws: seeds, positions and draw indices of the program's choice.

use std::mem::offset_of;

use gumball_engine::PerRow;

use crate::columns::{Memory, per_row};
use crate::error::{Failure, Result};
use crate::versioned::VersionedStruct;

/// The row, seed, position and draw index of each output, or of each draft tree. A list has one element per output and lies where
/// the rows do; NULL: the value of the same name, for all outputs.
///
/// An output is the token of a pool whose sequence has its seed, position and draw index.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// sizeof(gumball_draws).
    pub struct_size: usize,
    /// The number of outputs.
    pub outputs: usize,
    /// For each output the index of the matrix row that it is drawn from, any number of times; NULL: output i from row i. Not for
    /// draft trees.
    pub row_indices: *const u32,
    /// The seed of all outputs.
    pub seed: u64,
    /// The seed of each.
    pub seeds: *const u64,
    /// The position of each.
    pub positions: *const u32,
    /// The draw index of each; NULL: the output's own index, so that outputs with equal seed and position draw independently.
    pub draws: *const u32,
    /// The position of all outputs: the number of tokens before them. That of a draft tree is the position of its first draft.
    pub position: u32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for Draws {
    const NAME: &'static str = "gumball_draws";
    const LEAST: usize = offset_of!(Self, position) + size_of::<u32>();
}

impl Draws {
    /// Checks that there is an output for each of `count` trees of drafts, and that none names another row.
    pub(crate) fn check_one_per_tree(&self, count: usize) -> Result<()> {
        if self.outputs != count {
            let allowed = format!("one per tree, {count}");
            return Err(gumball_engine::Error::length("outputs", self.outputs, allowed).into());
        }
        if !self.row_indices.is_null() {
            let given = format!("{:p}", self.row_indices);
            return Err(Failure::out_of_range("row_indices", given, "NULL for draft trees"));
        }
        Ok(())
    }

    /// Returns the keys of the draws as the engine takes them.
    ///
    /// # Safety
    /// `seeds`, `positions` and `draws` are NULL or have `outputs` elements in that memory, which nobody frees
    /// or writes for `'a`; on a device, until the enqueued work is done.
    pub(crate) unsafe fn keys<'a>(&self, memory: Memory) -> Result<gumball_engine::Draws<'a>> {
        // SAFETY: the caller ensures that `seeds` is NULL or has `outputs` seeds.
        let seeds = unsafe { per_row(memory, "seeds", self.seeds, self.outputs) }?;
        // SAFETY: the caller ensures that `positions` is NULL or has `outputs` positions.
        let positions = unsafe { per_row(memory, "positions", self.positions, self.outputs) }?;
        Ok(gumball_engine::Draws {
            seeds: seeds.unwrap_or(PerRow::All(self.seed)),
            positions: positions.unwrap_or(PerRow::All(self.position)),
            // SAFETY: the caller ensures that `draws` is NULL or has `outputs` draw indices.
            draws: unsafe { per_row(memory, "draws", self.draws, self.outputs) }?,
            ..gumball_engine::Draws::new(self.seed, self.position)
        })
    }
}
