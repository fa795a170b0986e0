//! Written rows: the probabilities of the tokens that temperature and filters keep, or rows in which all
//! other tokens are masked.
//!
//! A survey also pre-fills the output rows with 0 or -inf if they are not the input's own memory. Then
//! `find_cut` finds each row's cut and its mass, and writes rows whose kept tokens are in a candidate list.
//! Finally `write_rows` writes the other rows, tile by tile. It reads no tile without kept tokens.

use gumball_spec::{Kind, Result};

use super::scratch::Piece;
use super::{Operators, PerRow, RowParams, check_column, check_out, made};
use crate::abi::dtype::Dtype;
use crate::abi::{self, from_columns_flags};
use crate::launch::written_rows;
use crate::memory::columns::{DeviceSlice, WORDS};
use crate::memory::rows::{Rows, RowsOut};
use crate::operators::softmax::Softmax;
use crate::requests::step_features::Variant;

/// The numbers that an operator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The distribution that each row's token is drawn from (rule P4). For logits, that is the softmax of
    /// what temperature and filters keep. For probabilities, it is those that filters keep, renormalised. A
    /// row without a token to draw becomes all 0.
    Probabilities,
    /// The row with only the tokens that its filters keep: other logits become -inf, other probabilities 0.
    /// Rows of only -inf stay as they are. Kept numbers are written as they count on input: -0.0 as +0.0, and
    /// +inf as `f32::MAX`.
    Masked,
}

impl Output {
    /// Returns the bits written for tokens that are not kept. For 2-byte elements, both halves hold them.
    fn masked_word(self, kind: Kind, dtype: Dtype) -> u32 {
        match (self, kind, dtype) {
            (Self::Probabilities, ..) | (_, Kind::Probabilities, _) => 0,
            (Self::Masked, Kind::Logits, Dtype::F32) => f32::NEG_INFINITY.to_bits(),
            (Self::Masked, Kind::Logits, Dtype::Bf16) => 0xFF80_FF80,
            (Self::Masked, Kind::Logits, Dtype::F16) => 0xFC00_FC00,
        }
    }
}

impl Operators {
    /// Writes rows: probabilities of the kept tokens, or masked rows.
    ///
    /// For logits without filters, the probabilities equal those of [`Softmax`]. XTC acts by draw index 0 of
    /// seed 0 at position 0. NaN counts as -inf and +inf as `f32::MAX`; NaN and negative probabilities count
    /// as 0.
    ///
    /// # Shapes and units
    /// `from`: R rows to read; `None`: those of `to`, which are replaced. `to`: R rows of f32 or of the type
    /// of `from`, to which each number is rounded once. `params`: columns of length R or 1. `statuses`: R
    /// words, which receive the [`gumball_spec::Status`] bits.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type
    ///   differs from these.
    /// - The errors of [`gumball_spec::SamplingParams::validate`] for the common parameters.
    /// - The errors of [`gumball_spec::SamplingParams::check_kind`], and [`gumball_spec::Error::Conflict`]
    ///   for a temperature column, if the rows hold probabilities.
    /// - [`gumball_spec::Error::Unavailable`] if the parameters have biases or bans.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn write(
        &mut self,
        output: Output,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        params: &RowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        from.map_or(Ok(()), |from| check_out(from, to))?;
        let (rows, out) = (from.unwrap_or(to.rows()), to.rows());
        let mut prepared = params.prepare(rows.kind, (rows.rows, "rows"), rows.vocab)?;
        prepared.columns.flags |= from_columns_flags::ONE_DRAW;
        check_column("statuses", statuses, WORDS, rows.rows)?;
        if rows.rows == 0 {
            return Ok(());
        }
        if rows.kind == Kind::Logits && output == Output::Probabilities && prepared.keeps_all() {
            let temperature = params.temperature.map_or(PerRow::All(params.common.temperature), PerRow::Rows);
            let softmax = made(&self.passes.runtime, &mut self.softmax, Softmax::new)?;
            return softmax.enqueue_checked(rows, out, temperature, statuses);
        }

        // `find_cut` may have to search any row, and `reserve` provides scratch memory for that from
        // `Candidates` on.
        prepared.needs.variant = prepared.needs.variant.max(Variant::Candidates);
        let plan = self.passes.plan(rows, rows.rows, &prepared);
        self.passes.reserve(rows, &plan)?;
        let step = self.passes.step(rows, &plan, false);
        for first in (0..rows.rows).step_by(plan.rows) {
            let count = plan.rows.min(rows.rows - first);
            let at = |rows: &Rows<'_>| rows.address + (first * rows.stride * rows.dtype.bytes()) as u64;
            let prefill_out = if at(rows) == at(out) { 0 } else { at(out) };
            let step = abi::Step {
                logits: at(rows),
                prefill_out,
                prefill_stride_bytes: (out.stride * out.dtype.bytes()) as u64,
                prefill_element_bytes: out.dtype.bytes() as u32,
                prefill_word: output.masked_word(rows.kind, out.dtype),
                rows: count as u32,
                statuses: statuses.map_or(0, |statuses| statuses.at(first)),
                ..step
            };
            self.passes.prepare(&prepared.columns, first, count)?;
            let step = self.passes.survey(rows, &plan, step)?;
            let mask_only = u32::from(output == Output::Masked);
            let cuts =
                abi::FindCut { step, cuts: self.passes.scratch.at(Piece::Cuts), mask_only, reserved: 0 };
            let (types, to) = ((rows.kind, rows.dtype, out.dtype), (at(out), out.stride as u64));
            // SAFETY: the buffers are this object's scratch memory, which `reserve` made large enough, with a
            // cut for each row. The survey began after the requests were made. The rows' creators guarantee
            // their memory, and `check_out` saw that the output rows have the input's shape.
            unsafe {
                written_rows::write(
                    &*self.passes.runtime,
                    &self.passes.device,
                    types,
                    prepared.needs,
                    &cuts,
                    to,
                )
            }?;
        }
        Ok(())
    }
}
