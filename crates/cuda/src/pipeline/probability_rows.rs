//! Rows of probabilities of a workspace's own: a softmax of a step's logits fills them, and the step draws
//! from them.

use std::sync::Arc;

use gumball_spec::{Kind, Result};

use crate::abi::dtype::{ColumnType, Dtype, IntType};
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::columns::DeviceSlice;
use crate::memory::rows::Rows;
use crate::operators::PerRow;
use crate::operators::softmax::Softmax;

/// The softmax, `[rows, vocab]` of f32 that it writes, and a temperature and a status for each row.
#[derive(Debug)]
pub(crate) struct ProbabilityRows {
    softmax: Softmax,
    vocab: usize,
    rows: Buffer,
    /// The temperatures of the next steps' rows, and the statuses that the last softmax gave to rows.
    pub temperatures: Buffer,
    pub statuses: Buffer,
}

impl ProbabilityRows {
    /// Allocates the rows and loads the softmax.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let alloc = |sizes: &[usize]| Buffer::sized(runtime, ROWS, sizes);
        Ok(Self {
            rows: alloc(&[rows, vocab, size_of::<f32>()])?,
            temperatures: alloc(&[rows, size_of::<f32>()])?,
            statuses: alloc(&[rows, size_of::<u32>()])?,
            softmax: Softmax::new(Arc::clone(runtime))?,
            vocab,
        })
    }

    /// Returns the first `count` rows.
    pub fn rows(&self, count: usize) -> Result<Rows<'_>> {
        let rows = Rows::of(&self.rows, Dtype::F32, 0, count, self.vocab, self.vocab)?;
        Ok(rows.with_kind(Kind::Probabilities))
    }

    /// Enqueues the softmax of rows of logits into as many rows, each at its temperature.
    pub fn enqueue(&self, logits: &Rows<'_>) -> Result<()> {
        let temperatures = DeviceSlice::of(&self.temperatures, ColumnType::F32).first(logits.rows)?;
        let statuses = DeviceSlice::of(&self.statuses, IntType::U32).first(logits.rows)?;
        let out = self.rows(logits.rows)?;
        self.softmax.enqueue_checked(logits, &out, PerRow::Rows(temperatures), Some(&statuses))
    }
}
