//! What the host writes for the rows of a step: slots, forced tokens, row indices and bitmasks, in memory
//! whose addresses stay.

use std::sync::Arc;

use gumball_spec::{Error, Result, TILE};

use crate::abi::{self, FORCED_BY_CALLER, NO_TOKEN, Slot};
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, ROWS};
use crate::pipeline::assignment::{Assignment, WorkspaceLimits};

/// The lists of an assignment, on the device.
#[derive(Debug)]
pub(crate) struct RowLists {
    /// Of each row; or of each request, if there are drafts.
    pub slots: Buffer,
    pub forced: Buffer,
    row_indices: Buffer,
    masks: Buffer,
    mask_present: Buffer,
    mask_words: usize,
    /// How many slots any assignment had.
    most_slots: usize,
}

/// Returns the number of 32-bit words of a row's bitmask in a vocabulary, whole tiles.
pub(crate) fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(TILE) * TILE / 32
}

impl RowLists {
    /// Allocates the lists of `rows` rows.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let alloc = |bytes_per_row: usize| Buffer::sized(runtime, ROWS, &[rows, bytes_per_row]);
        let mask_words = mask_words(vocab);
        Ok(Self {
            masks: alloc(mask_words * size_of::<u32>())?,
            slots: alloc(size_of::<Slot>())?,
            forced: alloc(size_of::<i32>())?,
            row_indices: alloc(size_of::<u32>())?,
            mask_present: alloc(size_of::<u32>())?,
            mask_words,
            most_slots: 0,
        })
    }

    /// Checks the lists of an assignment of `count` rows.
    ///
    /// # Errors
    /// - [`Error::Length`] if a list has another length.
    /// - [`Error::OutOfRange`] for a slot or a token that does not exist.
    pub fn check(limits: WorkspaceLimits, rows: &Assignment<'_>, count: usize) -> Result<()> {
        for (parameter, length) in [
            ("forced", rows.forced.len()),
            ("row_indices", rows.row_indices.len()),
            ("masks", rows.masks.len()),
        ] {
            if length != 0 && length != count {
                return Err(Error::length(parameter, length, format!("one per row, {count}, or 0")));
            }
        }
        let within =
            |value: i32, end: usize| value == -1 || usize::try_from(value).is_ok_and(|value| value < end);
        if let Some(slot) = rows.slots.iter().find(|slot| !within(**slot, limits.slots)) {
            return Err(Error::out_of_range("slots", slot, format!("in -1..{}", limits.slots)));
        }
        if let Some(token) = rows.forced.iter().find(|token| !within(**token, limits.vocab)) {
            return Err(Error::out_of_range("forced", token, format!("an id in 0..{}", limits.vocab)));
        }
        Ok(())
    }

    /// Copies the lists of an assignment of `count` rows up.
    pub fn write(&mut self, rows: &Assignment<'_>, count: usize) -> Result<()> {
        // Rows that only earlier assignments had are padding, for a graph of the host's that still has them.
        let mut slots = rows.slots.to_vec();
        self.most_slots = self.most_slots.max(slots.len());
        slots.resize(self.most_slots, -1);
        self.slots.write(0, &slots)?;
        if rows.forced.is_empty() {
            self.forced.write(0, &vec![-1i32; count])?;
        } else if rows.known {
            self.forced.write(0, rows.forced)?;
        } else {
            let by_caller = |id: &i32| if *id == NO_TOKEN { NO_TOKEN } else { id + FORCED_BY_CALLER };
            self.forced.write(0, &rows.forced.iter().map(by_caller).collect::<Vec<_>>())?;
        }
        self.row_indices.write(0, rows.row_indices)?;
        self.write_masks(rows.masks)
    }

    fn write_masks(&mut self, masks: &[Option<&[u32]>]) -> Result<()> {
        if masks.is_empty() {
            return Ok(());
        }
        let width = self.mask_words;
        let mut words = vec![0u32; masks.len() * width];
        for (row, mask) in masks.iter().enumerate() {
            let mask = mask.unwrap_or_default();
            let common = mask.len().min(width);
            words[row * width..][..common].copy_from_slice(&mask[..common]);
        }
        let present: Vec<u32> = masks.iter().map(|mask| u32::from(mask.is_some())).collect();
        self.masks.write(0, &words)?;
        Ok(self.mask_present.write(0, &present)?)
    }

    /// Makes the slot of an index padding.
    pub fn retire(&mut self, index: usize) -> Result<()> {
        Ok(self.slots.write(index * size_of::<Slot>(), &[-1])?)
    }

    /// Returns a step over these lists, of which the assignment has the last two or not.
    pub fn step(&self, step: abi::Step, (row_indices, masks): (bool, bool)) -> abi::Step {
        let address = |present: bool, buffer: &Buffer| if present { buffer.address() } else { 0 };
        abi::Step {
            mask_words: self.mask_words as u32,
            mask_stride: self.mask_words as u64,
            row_indices: address(row_indices, &self.row_indices),
            slots: self.slots.address(),
            forced: self.forced.address(),
            masks: address(masks, &self.masks),
            mask_present: address(masks, &self.mask_present),
            ..step
        }
    }
}
