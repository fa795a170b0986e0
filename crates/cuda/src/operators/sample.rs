//! Sampling: draws a token for each output from the row of logits or probabilities that it reads.
//!
//! Outputs are drawn in groups of bounded size, whatever their number. If many outputs read few rows, each of
//! these rows is surveyed once.

use gumball_spec::{Error, Result};

use super::params::{Numbers, PreparedRows};
use super::pools::PoolSlots;
use super::{Draws, Operators, RowParams, check_column, check_rows};
use crate::abi::{self, ParamColumns, columns, flags};
use crate::memory::columns::{DeviceSlice, INTEGERS, SIGNED, WORDS};
use crate::memory::rows::Rows;

impl Operators {
    /// Draws a token for each output, after temperature and filters.
    ///
    /// The token is the one that a request with these parameters, seed, position and draw index gets. An
    /// output is [`gumball_spec::NONE`], with the status `EMPTY`, if its row has no logit above -inf or no
    /// probability above 0. So is an output whose row index is not below the number of rows.
    ///
    /// # Shapes and units
    /// `rows`: L rows. `params`: columns of length L or 1. `row_indices`: for each of R outputs, the index
    /// of the row that it reads; if `None`, R is L and output i reads row i. `draws`: columns of length R
    /// or 1. `tokens`: R integers, i32 or i64. `statuses`: R words, which receive the
    /// [`gumball_spec::Status`] bits.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or a type differs from these.
    /// - The errors of [`gumball_spec::SamplingParams::validate`] for the common parameters.
    /// - The errors of [`gumball_spec::SamplingParams::check_kind`], and [`Error::Conflict`] for a
    ///   temperature column, if `rows` holds probabilities.
    /// - [`Error::Unavailable`] if the parameters have biases or bans.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn sample(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        row_indices: Option<&DeviceSlice<'_>>,
        tokens: &DeviceSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let outputs = tokens.rows;
        match row_indices {
            Some(indices) => check_rows("row_indices", indices.rows, outputs)?,
            None => check_rows("tokens", outputs, rows.rows)?,
        }
        if outputs > 0 && rows.rows == 0 {
            return Err(Error::length("rows", 0, "at least one row, which outputs read"));
        }
        let mut prepared = params.prepare(rows.kind, (rows.rows, "rows"), rows.vocab)?;
        let columns = &mut prepared.columns;
        draws.prepare((outputs, "outputs"), columns)?;
        if let Some(indices) = row_indices {
            let indices = Numbers::of("row_indices", indices, INTEGERS, (outputs, "outputs"))?;
            columns.row_indices = indices.mark(columns, columns::ROW_INDEX);
        }
        self.enqueue_draws(rows, &prepared, draws.zero_for_none, (tokens, statuses))
    }

    /// Draws a token for each row whose parameters, seed, position and draw index lie in pools, at its
    /// request's slot; otherwise as [`Operators::sample`].
    ///
    /// An output is [`gumball_spec::NONE`] if its slot is not an index of the pools.
    ///
    /// # Shapes and units
    /// `rows`: L rows. `pools.slots`: one for each `pools.rows_per_slot` rows, or one for all. The columns of
    /// `params` and `draws`: of length `pools.size`, or 1. `tokens`, `statuses`: L.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for pools without elements, and for no rows a slot.
    /// - [`Error::Conflict`] if high words of positions are both draw indices and something else, and
    ///   [`Error::OutOfRange`] if there are none.
    /// - The errors of [`Operators::sample`].
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn sample_from_pools(
        &mut self,
        rows: &Rows<'_>,
        pools: &PoolSlots<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &DeviceSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        check_rows("tokens", tokens.rows, rows.rows)?;
        let count = (pools.size, "elements of the pools");
        let mut prepared = params.prepare(rows.kind, count, rows.vocab)?;
        draws.prepare(count, &mut prepared.columns)?;
        pools.prepare(rows.rows, draws, &mut prepared.columns)?;
        self.enqueue_draws(rows, &prepared, draws.zero_for_none, (tokens, statuses))
    }

    /// Enqueues draws whose parameters and keys are prepared.
    fn enqueue_draws(
        &mut self,
        rows: &Rows<'_>,
        prepared: &PreparedRows,
        zero_for_none: bool,
        (tokens, statuses): (&DeviceSlice<'_>, Option<&DeviceSlice<'_>>),
    ) -> Result<()> {
        let outputs = tokens.rows;
        tokens.check_type("tokens", SIGNED)?;
        check_column("statuses", statuses, WORDS, outputs)?;
        if u32::try_from(outputs).is_err() {
            return Err(Error::length("tokens", outputs, "less than 2^32 numbers"));
        }
        let columns = &ParamColumns { logits_rows: rows.rows as u32, ..prepared.columns };
        let indexed = columns.row_indices != 0;
        if outputs == 0 {
            return Ok(());
        }

        let plan = self.passes.plan(rows, outputs, prepared);
        self.passes.reserve(rows, &plan)?;
        let step = self.passes.step(rows, &plan, indexed);
        let step = abi::Step {
            flags: step.flags
                | if tokens.dtype.bytes() == size_of::<i64>() { flags::TOKENS_I64 } else { 0 }
                | if zero_for_none { flags::ZERO_FOR_NONE } else { 0 },
            ..step
        };
        if let Some(survey) = &plan.shared {
            self.passes.survey_shared_rows(rows, survey, columns, &step)?;
        }
        for first in (0..outputs).step_by(plan.rows) {
            let count = plan.rows.min(outputs - first);
            let start = if !indexed { first * rows.stride * rows.dtype.bytes() } else { 0 };
            let step = abi::Step {
                logits: step.logits + start as u64,
                rows: count as u32,
                tokens: tokens.at(first),
                statuses: statuses.map_or(0, |statuses| statuses.at(first)),
                ..step
            };
            self.passes.prepare(columns, first, count)?;
            let step = self.passes.survey(rows, &plan, step)?;
            self.passes.finish(rows, &plan, &step)?;
        }
        Ok(())
    }
}
