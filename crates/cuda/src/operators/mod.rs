//! Operators: draw tokens, report logprobs, renormalise probabilities and mask rows in device memory, without
//! requests.
//!
//! They are for programs that hold parameters, seeds and positions themselves, as numbers or as columns in
//! device memory. The kernel `params_from_columns` makes requests from these, which a step's kernels then
//! read. The results equal the oracle's bit for bit. All checks come before anything is enqueued. No call
//! waits, and every call can be captured.
//!
//! Depends on every folder but `pipeline`.

pub(crate) mod draft_trees;
mod given;
pub(crate) mod judge;
#[cfg(feature = "testing")]
pub mod numeric_check;
mod packed;
mod params;
mod passes;
mod pools;
mod radii;
mod sample;
mod scratch;
mod selected;
pub(crate) mod softmax;
mod write;

use std::sync::Arc;

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, Dtype};
use crate::driver::runtime::Runtime;
use crate::memory::columns::DeviceSlice;
use crate::memory::rows::{Rows, RowsOut};
use crate::operators::draft_trees::{DraftTrees, Judged};
use crate::operators::judge::Judge;
use crate::operators::softmax::Softmax;

pub use given::{GivenLogprobs, GivenTokens, LossDerivatives};
pub use params::{Draws, PerRow, RowParams};
use passes::Passes;
pub use pools::PoolSlots;
pub use selected::SelectedLogprobs;
pub use write::Output;

/// The operators of a device, with scratch memory that grows with the shapes of their calls.
///
/// Every call may be captured by the host program. Memory that a captured graph uses is freed only with the
/// operators.
#[derive(Debug)]
pub struct Operators {
    passes: Passes,
    /// The softmax for rows without filters, made at its first use.
    softmax: Option<Softmax>,
    /// Made at its first use.
    judge: Option<Judge>,
}

impl Operators {
    /// Makes the operators of a device. Each allocates its memory in its first call.
    #[must_use]
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { passes: Passes::new(runtime), softmax: None, judge: None }
    }

    /// Enqueues the judgement of trees of drafts, chains among them; see [`Judge::enqueue`].
    ///
    /// # Errors
    /// The errors of [`Judge::new`] and [`Judge::enqueue`].
    pub fn judge(&mut self, trees: &DraftTrees<'_>, judgement: Judgement, out: &Judged<'_>) -> Result<()> {
        made(&self.passes.runtime, &mut self.judge, Judge::new)?.enqueue(trees, judgement, out)
    }
}

/// Returns an operator; makes it first if it does not exist yet.
fn made<'a, T>(
    runtime: &Arc<dyn Runtime>,
    operator: &'a mut Option<T>,
    make: impl FnOnce(Arc<dyn Runtime>) -> Result<T>,
) -> Result<&'a T> {
    let made = match operator.take() {
        Some(made) => made,
        None => make(Arc::clone(runtime))?,
    };
    Ok(operator.insert(made))
}

/// Checks that a list has one element per row, with `wanted` rows.
fn check_rows(parameter: &'static str, rows: usize, wanted: usize) -> Result<()> {
    if rows == wanted {
        return Ok(());
    }
    Err(Error::length(parameter, rows, format!("one for each of {wanted} rows")))
}

/// Checks a column that kernels write, if there is one: its type, and that it has one element for each of
/// `wanted` rows.
fn check_column(
    parameter: &'static str,
    column: Option<&DeviceSlice<'_>>,
    types: &[ColumnType],
    wanted: usize,
) -> Result<()> {
    let Some(column) = column else { return Ok(()) };
    column.check_type(parameter, types)?;
    check_rows(parameter, column.rows, wanted)
}

/// Checks that output rows have the shape of the rows that are read, and their type or f32.
fn check_out(rows: &Rows<'_>, out: &RowsOut<'_>) -> Result<()> {
    let out = out.rows();
    check_rows("out", out.rows, rows.rows)?;
    if out.vocab != rows.vocab {
        return Err(Error::out_of_range("out.vocab", out.vocab, format!("{}, as the input", rows.vocab)));
    }
    if out.dtype != Dtype::F32 && out.dtype != rows.dtype {
        let allowed = format!("f32 or {}, as the input", rows.dtype.name());
        return Err(Error::out_of_range("out.dtype", out.dtype.name(), allowed));
    }
    Ok(())
}
