//! Rows of logits: where they come from and how they lie in memory.
//!
//! They keep the type they came in; nothing is rounded on the way to the engine.

mod chosen;
mod file;
mod generated;
mod json;
mod npy;
mod selection;
mod source;
mod tensors;

use bytemuck::Pod;
use gumball_spec::{MAX_VOCAB, Row};
use half::{bf16, f16};

pub use chosen::Chosen;
pub use file::read;
pub use generated::{Kind, generate};
pub use npy::{Element, Header};
pub use selection::Selection;
pub use source::{Fallback, LogitsArgs, Source};

/// Logits in the type they came in.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Single precision.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// Half precision.
    F16(Vec<f16>),
}

impl Data {
    /// Returns the type's name.
    #[must_use]
    pub fn dtype(&self) -> &'static str {
        match self {
            Data::F32(_) => "f32",
            Data::Bf16(_) => "bf16",
            Data::F16(_) => "f16",
        }
    }

    fn element_bytes(&self) -> usize {
        if matches!(self, Data::F32(_)) { 4 } else { 2 }
    }

    /// Makes room for `more` elements more.
    fn reserve(&mut self, more: usize) -> Result<(), std::collections::TryReserveError> {
        match self {
            Data::F32(data) => data.try_reserve_exact(more),
            Data::Bf16(data) => data.try_reserve_exact(more),
            Data::F16(data) => data.try_reserve_exact(more),
        }
    }

    /// Adds elements that are little-endian bytes, of any alignment.
    fn extend(&mut self, bytes: &[u8]) {
        match self {
            Data::F32(data) => data.extend(elements::<f32>(bytes)),
            Data::Bf16(data) => data.extend(elements::<bf16>(bytes)),
            Data::F16(data) => data.extend(elements::<f16>(bytes)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Data::F32(data) => data.len(),
            Data::Bf16(data) => data.len(),
            Data::F16(data) => data.len(),
        }
    }
}

/// Rows of one vocabulary, back to back.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    data: Data,
    vocab: usize,
}

impl Logits {
    /// Takes rows of `vocab` logits each.
    ///
    /// # Errors
    /// A sentence on the defect of the shape.
    pub fn new(data: Data, vocab: usize) -> Result<Self, String> {
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(format!("a row has {vocab} logits; Gumball takes 1 to 2^20 of them"));
        }
        if !data.len().is_multiple_of(vocab) || data.len() == 0 {
            return Err(format!("{} logits are no whole number of rows of {vocab}", data.len()));
        }
        Ok(Self { data, vocab })
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.data.len() / self.vocab
    }

    /// Returns the number of logits in a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the name of the logits' type.
    #[must_use]
    pub fn dtype(&self) -> &'static str {
        self.data.dtype()
    }

    /// Returns all rows as the engine takes a batch.
    ///
    /// # Errors
    /// None for rows that were made by [`Logits::new`].
    pub fn batch(&self) -> gumball_engine::Result<gumball_engine::Rows<'_>> {
        let all = match &self.data {
            Data::F32(data) => Row::F32(data),
            Data::Bf16(data) => Row::Bf16(data),
            Data::F16(data) => Row::F16(data),
        };
        gumball_engine::Rows::logits(all, self.rows(), self.vocab)
    }

    /// Returns the logits as they lie in memory, little-endian as everywhere.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::F32(data) => bytemuck::cast_slice(data),
            Data::Bf16(data) => bytemuck::cast_slice(data),
            Data::F16(data) => bytemuck::cast_slice(data),
        }
    }

    /// Returns a row.
    ///
    /// # Panics
    /// If `row` is not below [`Logits::rows`].
    #[must_use]
    pub fn row(&self, row: usize) -> Row<'_> {
        let range = row * self.vocab..(row + 1) * self.vocab;
        match &self.data {
            Data::F32(data) => Row::F32(&data[range]),
            Data::Bf16(data) => Row::Bf16(&data[range]),
            Data::F16(data) => Row::F16(&data[range]),
        }
    }
}

/// Copies little-endian bytes of any alignment into elements; a trailing part is left out.
#[must_use]
pub fn elements<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
