//! Sampling: draws a token for each output from the row of logits or probabilities that it reads.
//!
//! Outputs are drawn in groups of bounded size, whatever their number. If many outputs read few rows, each of
//! these rows is surveyed once.

use gumball_spec::layout::Layout;
use gumball_spec::{Error, Result, TILE, Widths};

use super::params::{Numbers, PreparedRows};
use super::pools::PoolSlots;
use super::scratch::Piece;
use super::{Draws, Operators, RowParams, check_column, check_rows};
use crate::abi::{
    self, ParamColumns, Params, Request, RowCut, Slot, State, TileRecord, columns, flags, from_columns_flags,
};
use crate::launch::tuning::{self, Plan, Survey};
use crate::launch::{finish, survey};
use crate::memory::columns::{DeviceSlice, INTEGERS, SIGNED, WORDS};
use crate::memory::rows::Rows;
use crate::programs::kernels::PARAMS_FROM_COLUMNS;
use crate::requests::step_features::Variant;

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
    /// - Those of [`gumball_spec::SamplingParams::validate`] for the common parameters.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], and [`Error::Conflict`] for a temperature
    ///   column, if `rows` holds probabilities.
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

    /// Draws a token for each row whose parameters, seed, position and draw index lie in pools, at its request's slot; otherwise as
    /// [`Operators::sample`].
    ///
    /// An output is [`gumball_spec::NONE`] if its slot is not an index of the pools.
    ///
    /// # Shapes and units
    /// `rows`: L rows. `pools.slots`: one for each `pools.rows_per_slot` rows, or one for all. The columns of `params` and `draws`: of
    /// length `pools.size`, or 1. `tokens`, `statuses`: L.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for pools without elements, and for no rows a slot.
    /// - [`Error::Conflict`] if high words of positions are both draw indices and something else, and [`Error::OutOfRange`] if there
    ///   are none.
    /// - Those of [`Operators::sample`].
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

        let plan = self.plan(rows, outputs, prepared);
        self.reserve(rows, &plan)?;
        let step = self.step(rows, &plan, indexed);
        let step = abi::Step {
            flags: step.flags
                | if tokens.dtype.bytes() == size_of::<i64>() { flags::TOKENS_I64 } else { 0 }
                | if zero_for_none { flags::ZERO_FOR_NONE } else { 0 },
            ..step
        };
        if let Some(survey) = &plan.shared {
            self.survey_shared_rows(rows, survey, columns, &step)?;
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
            self.prepare(columns, first, count)?;
            let step = self.survey(rows, &plan, step)?;
            self.finish(rows, &plan, &step)?;
        }
        Ok(())
    }

    /// Chooses how a call is divided and surveyed.
    pub(super) fn plan(&self, rows: &Rows<'_>, outputs: usize, prepared: &PreparedRows) -> Plan {
        let (shape, of) = ((rows.rows, rows.vocab.div_ceil(TILE)), (rows.kind, rows.dtype));
        tuning::plan(&self.device, shape, of, (outputs, prepared.columns.row_indices != 0), prepared.needs)
    }

    /// Enlarges the scratch memory for a plan.
    pub(super) fn reserve(&mut self, rows: &Rows<'_>, plan: &Plan) -> Result<()> {
        let Plan { tiles, rows: count, needs, .. } = *plan;
        let shared = if plan.shared.is_some() { rows.rows } else { 0 };
        let searches = if needs.variant >= Variant::Candidates { count } else { 0 };
        let sums = if needs.sums { tiles * size_of::<u64>() } else { 0 };
        self.scratch.reserve(&[
            (Piece::Params, count * size_of::<Params>()),
            (Piece::States, count * size_of::<State>()),
            (Piece::Slots, count * size_of::<Slot>()),
            (Piece::Forced, count * size_of::<i32>()),
            (Piece::RowIndices, count * size_of::<u32>()),
            // All zeros, for requests without lists; `finish_general` reads them nonetheless.
            (Piece::Requests, count * size_of::<Request>()),
            (Piece::Records, count * tiles * size_of::<TileRecord>()),
            (Piece::FilterSums, count * sums),
            (Piece::Search, searches * abi::Step::scratch_words(tiles) * size_of::<u64>()),
            (Piece::Outputs, Layout { rows: count, widths: Widths::default() }.words() * size_of::<u32>()),
            (Piece::Cuts, count * size_of::<RowCut>()),
            (Piece::SharedParams, shared * size_of::<Params>()),
            (Piece::SharedStates, shared * size_of::<State>()),
            (Piece::SharedSlots, shared * size_of::<Slot>()),
            (Piece::SharedForced, shared * size_of::<i32>()),
            (Piece::SharedRecords, shared * tiles * size_of::<TileRecord>()),
            (Piece::SharedFilterSums, shared * sums),
        ])
    }

    /// Returns the argument of a step's kernels, without the number of rows and the outputs.
    pub(super) fn step(&self, rows: &Rows<'_>, plan: &Plan, indexed: bool) -> abi::Step {
        let (scratch, tiles, shared) = (&self.scratch, plan.tiles, plan.shared.is_some());
        abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            vocab: rows.vocab as u32,
            tiles: tiles as u32,
            row_indices: if indexed { scratch.at(Piece::RowIndices) } else { 0 },
            slots: scratch.at(Piece::Slots),
            forced: scratch.at(Piece::Forced),
            params: scratch.at(Piece::Params),
            requests: scratch.at(Piece::Requests),
            states: scratch.at(Piece::States),
            records: scratch.at(Piece::Records),
            filter_sums: scratch.at(Piece::FilterSums),
            shared_records: if shared { scratch.at(Piece::SharedRecords) } else { 0 },
            shared_filter_sums: if shared && plan.needs.sums {
                scratch.at(Piece::SharedFilterSums)
            } else {
                0
            },
            scratch: scratch.at(Piece::Search),
            scratch_words: abi::Step::scratch_words(tiles) as u64,
            outputs: scratch.at(Piece::Outputs),
            flags: flags::SLOT_IS_ROW,
            ..abi::Step::default()
        }
    }

    /// Enqueues the kernel that makes the requests of `count` rows, beginning with output `first`.
    pub(super) fn prepare(&self, columns: &ParamColumns, first: usize, count: usize) -> Result<()> {
        let scratch = &self.scratch;
        self.enqueue_prepare(&ParamColumns {
            params: scratch.at(Piece::Params),
            states: scratch.at(Piece::States),
            slots: scratch.at(Piece::Slots),
            forced: scratch.at(Piece::Forced),
            row_indices_out: scratch.at(Piece::RowIndices),
            rows: count as u32,
            first_output: first as u32,
            ..*columns
        })
    }

    fn enqueue_prepare(&self, columns: &ParamColumns) -> Result<()> {
        let grid = tuning::params_from_columns(columns.rows as usize);
        // SAFETY: the grid is the one that params_from_columns.cu expects, and the scratch memory has an
        // element for each row. The columns' creators guarantee their memory, and `prepare` checked their
        // lengths. Each block waits for the earlier kernels before it does anything, and lets the survey
        // begin only then.
        unsafe {
            self.runtime.launch_dependent(PARAMS_FROM_COLUMNS.kernel(), grid, bytemuck::bytes_of(columns))
        }?;
        Ok(())
    }

    /// Surveys each row of logits or probabilities once, for all outputs that read it.
    fn survey_shared_rows(
        &self,
        rows: &Rows<'_>,
        survey: &Survey,
        columns: &ParamColumns,
        step: &abi::Step,
    ) -> Result<()> {
        let scratch = &self.scratch;
        let columns = ParamColumns {
            params: scratch.at(Piece::SharedParams),
            states: scratch.at(Piece::SharedStates),
            slots: scratch.at(Piece::SharedSlots),
            forced: scratch.at(Piece::SharedForced),
            rows: rows.rows as u32,
            row_indices: 0,
            seeds: 0,
            positions: 0,
            draws: 0,
            flags: from_columns_flags::SHARED_ROWS | from_columns_flags::ONE_DRAW,
            ..*columns
        };
        self.enqueue_prepare(&columns)?;
        let step = abi::Step {
            rows: columns.rows,
            row_indices: 0,
            slots: columns.slots,
            forced: columns.forced,
            params: columns.params,
            states: columns.states,
            records: step.shared_records,
            filter_sums: step.shared_filter_sums,
            ..*step
        }
        .with_blocks_per_row(survey.blocks.blocks_per_row as u32);
        // SAFETY: the conditions of the launch in `survey` hold here too. `reserve` provided records for
        // each of these rows.
        unsafe { survey::enqueue_dependent(&*self.runtime, survey, &step) }?;
        Ok(())
    }

    /// Surveys rows whose requests the kernel before makes. Returns the argument for the kernel that finishes
    /// them.
    pub(super) fn survey(&self, rows: &Rows<'_>, plan: &Plan, step: abi::Step) -> Result<abi::Step> {
        let (runtime, of) = (&*self.runtime, (rows.kind, rows.dtype));
        if plan.shared.is_some() {
            let survey = tuning::records_from_shared_rows(plan.tiles);
            let step = step.with_blocks_per_row(survey.blocks.blocks_per_row as u32);
            // SAFETY: the conditions of the launch below hold here too. The shared rows were surveyed before.
            unsafe { survey::enqueue(runtime, &survey, &step) }?;
            return Ok(step);
        }
        let survey = tuning::survey(&self.device, (step.rows as usize, plan.tiles), of, plan.needs);
        let step = step.with_blocks_per_row(survey.blocks.blocks_per_row as u32);
        // SAFETY: the buffers are this object's scratch memory, which `reserve` made large enough for
        // these rows. The kernel before makes the rows' requests, and every block of survey.cu and
        // survey_draw.cu waits for it; it also checks the row indices. No operator has edits. The creator
        // of `Rows` guarantees the logits.
        unsafe { survey::enqueue_dependent(runtime, &survey, &step) }?;
        Ok(step)
    }

    /// Finishes rows after their survey.
    pub(super) fn finish(&self, rows: &Rows<'_>, plan: &Plan, step: &abi::Step) -> Result<()> {
        // SAFETY: the conditions of the survey's launch hold here too. The survey began after the requests
        // were made. `sample` checked that tokens and statuses have an element per row; `selected_logprobs` has none.
        unsafe { finish::enqueue(&*self.runtime, &self.device, (rows.kind, rows.dtype), plan.needs, step) }?;
        Ok(())
    }
}
