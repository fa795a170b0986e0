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
use crate::memory::rows::{MaskRows, Rows, RowsOut};
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

    /// Writes the radius of each row (L7): that of the token that [`Operators::sample`] draws.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `params`, `draws`: columns of length R or 1; a radius must be known of the
    /// parameters. `size`: that of edits. `radii`: R numbers, f32.
    ///
    /// # Errors
    /// The errors of [`Operators::sample`].
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn radii(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        size: f32,
        radii: &DeviceSlice<'_>,
    ) -> Result<()> {
        self.passes.radii(rows, params, draws, size, radii)
    }

    /// Writes the raw logprob and the rank of one token of each row, as steps report them of forced tokens.
    ///
    /// # Shapes and units
    /// `rows`: R rows of either kind. `tokens`: R integers, or one for all rows, of i32 or i64. `out`:
    /// columns of length R. A token of -1, and one that is no id of the vocabulary, has the logprob -inf and
    /// the rank 0; the latter also the status [`NO_ID`](gumball_spec::Status::NO_ID). Rows of such tokens are
    /// not read.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn selected_logprobs(
        &mut self,
        rows: &Rows<'_>,
        tokens: &DeviceSlice<'_>,
        out: &SelectedLogprobs<'_>,
    ) -> Result<()> {
        self.passes.selected_logprobs(rows, tokens, out)
    }

    /// Enqueues the writing of the logprobs of given ids over given sets, and of the sets' entropies (L4), in
    /// one launch. Allocates nothing.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `tokens`, `out`: what their fields say. An id that is none of the vocabulary
    /// has the logprob -inf.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn logprobs(&self, rows: &Rows<'_>, tokens: &GivenTokens<'_>, out: &GivenLogprobs<'_>) -> Result<()> {
        given::logprobs(&self.passes.runtime, rows, tokens, out)
    }

    /// Enqueues the writing of the derivatives of a loss by logits (L5), in one launch. Allocates nothing.
    ///
    /// # Shapes and units
    /// `from`: R rows of logits; `None`: the logits lie in `to` and are replaced. `to`: R rows of the logits'
    /// type. `by`: as its fields say.
    ///
    /// # Errors
    /// - The errors of [`Operators::logprobs`].
    pub fn logprobs_gradient(
        &self,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        tokens: &GivenTokens<'_>,
        by: &LossDerivatives<'_>,
    ) -> Result<()> {
        given::gradient(&self.passes.runtime, from, to, tokens, by)
    }

    /// Enqueues the packing of sets, in two launches: how many ids each has, then each one's ids, ascending,
    /// or, of a set with more ids than words, its words. Allocates nothing.
    ///
    /// # Shapes and units
    /// `sets`: R bitmasks, whose address, width and stride are multiples of 16 bytes. `packed`: R (1 + width)
    /// words, of which the last are not written unless every set has as many ids as words.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn pack_kept(&self, sets: &MaskRows<'_>, packed: &DeviceSlice<'_>) -> Result<()> {
        packed::pack_kept(&self.passes.runtime, sets, packed)
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
