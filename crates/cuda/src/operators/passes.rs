//! Passes: the launches of a step's kernels over rows whose requests lie in scratch memory, as most operators
//! need them.

use std::sync::Arc;

use gumball_spec::layout::Layout;
use gumball_spec::{Result, TILE, Widths};

use super::params::PreparedRows;
use super::scratch::{Piece, Scratch};
use crate::abi::{
    self, ParamColumns, Params, Request, RowCut, RowRace, Slot, State, TileRecord, TileSum, flags,
    from_columns_flags,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::tuning::{self, Plan, Survey};
use crate::memory::rows::Rows;
use crate::requests::step_features::Variant;

/// What passes over rows run on.
#[derive(Debug)]
pub(super) struct Passes {
    pub runtime: Arc<dyn Runtime>,
    /// What launches are fitted to.
    pub device: DeviceLimits,
    pub scratch: Scratch,
}

impl Passes {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        let scratch = Scratch::new(Arc::clone(&runtime));
        Self { device: runtime.limits(), scratch, runtime }
    }

    /// Chooses how a call is divided and surveyed.
    pub fn plan(&self, rows: &Rows<'_>, outputs: usize, prepared: &PreparedRows) -> Plan {
        let (shape, of) = ((rows.rows, rows.vocab.div_ceil(TILE)), (rows.kind, rows.dtype));
        tuning::plan(&self.device, shape, of, (outputs, prepared.columns.row_indices != 0), prepared.needs)
    }

    /// Enlarges the scratch memory for a plan.
    pub fn reserve(&mut self, rows: &Rows<'_>, plan: &Plan) -> Result<()> {
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
            (Piece::Races, count * size_of::<RowRace>()),
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
    pub fn step(&self, rows: &Rows<'_>, plan: &Plan, indexed: bool) -> abi::Step {
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
            races: scratch.at(Piece::Races),
            outputs: scratch.at(Piece::Outputs),
            flags: flags::SLOT_IS_ROW,
            ..abi::Step::default()
        }
    }

    /// Returns such an argument with memory, which this reserves, for the sums of weights for logprobs.
    pub fn step_with_logprob_sums(&mut self, rows: &Rows<'_>, plan: &Plan) -> Result<abi::Step> {
        let bytes = plan.rows * plan.tiles * size_of::<TileSum>();
        self.scratch.reserve(&[(Piece::LogprobSums, bytes)])?;
        let logprob_sums = self.scratch.at(Piece::LogprobSums);
        Ok(abi::Step { logprob_sums, ..self.step(rows, plan, false) })
    }

    /// Enqueues the kernel that makes the requests of `count` rows, beginning with output `first`.
    pub fn prepare(&self, columns: &ParamColumns, first: usize, count: usize) -> Result<()> {
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
        let launch = tuning::params_from_columns(columns.rows as usize);
        // SAFETY: the scratch memory has an element for each row. The columns' creators guarantee their
        // memory, and `prepare` checked their lengths.
        Ok(unsafe { launch.enqueue(&*self.runtime, columns) }?)
    }

    /// Surveys each row of logits or probabilities once, for all outputs that read it.
    pub fn survey_shared_rows(
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
        };
        let (step, launch) = survey.over(&step, true);
        // SAFETY: the conditions of the launch in `survey` hold here too. `reserve` provided records for
        // each of these rows.
        Ok(unsafe { launch.enqueue(&*self.runtime, &step) }?)
    }

    /// Surveys rows whose requests the kernel before makes. Returns the argument for the kernel that finishes
    /// them.
    pub fn survey(&self, rows: &Rows<'_>, plan: &Plan, step: abi::Step) -> Result<abi::Step> {
        let of = (rows.kind, rows.dtype);
        let survey = match plan.shared {
            Some(_) => tuning::records_from_shared_rows(plan.tiles),
            None => tuning::survey(&self.device, (step.rows as usize, plan.tiles), of, plan.needs),
        };
        let (step, launch) = survey.over(&step, plan.shared.is_none());
        // SAFETY: the buffers are this object's scratch memory, which `reserve` made large enough for
        // these rows. The kernel before makes the rows' requests; it also checks the row indices. Shared rows
        // were surveyed before. No operator has edits. The creator of `Rows` guarantees the logits.
        unsafe { launch.enqueue(&*self.runtime, &step) }?;
        Ok(step)
    }

    /// Finishes rows after their survey.
    pub fn finish(&self, rows: &Rows<'_>, plan: &Plan, step: &abi::Step) -> Result<()> {
        let of = (rows.kind, rows.dtype);
        let launch = tuning::finish_step(&self.device, of, plan.needs, step, true);
        // SAFETY: the conditions of the survey's launch hold here too. The survey began after the requests
        // were made. `sample` checked that tokens and statuses have an element per row; `selected_logprobs`
        // has none.
        Ok(unsafe { launch.enqueue(&*self.runtime, step) }?)
    }
}
