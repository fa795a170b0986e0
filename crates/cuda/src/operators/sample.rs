//! Sampling: draws a token for each output from the row of logits or probabilities that it reads.
//!
//! Outputs are drawn in groups of bounded size, whatever their number. If many outputs read few rows, each of
//! these rows is surveyed once.

use gumball_spec::layout::Layout;
use gumball_spec::{Error, Kind, Result, TILE, Widths};

use super::params::{Asked, integers};
use super::scratch::Piece;
use super::{Draws, Operators, RowParams, check_rows};
use crate::abi::dtype::IntType;
use crate::abi::kernel_table::Kernel;
use crate::abi::program::KernelModule;
use crate::abi::{
    self, ParamColumns, Params, Request, RowCut, Slot, State, TileRecord, columns, flags, from_columns_flags,
};
use crate::driver::runtime::Grid;
use crate::launch::finish::{finish, finish_grid};
use crate::launch::survey::{self, Survey};
use crate::launch::work_sharing::{self, WorkSharing};
use crate::memory::rows::Rows;
use crate::memory::slices::{DeviceIntSlice, DeviceSlice};
use crate::requests::filter_params;
use crate::requests::variant::{StepFeatures, Variant};

const PREPARE: Kernel = Kernel::named("params_from_columns");

/// Threads per block of `params_from_columns`, and outputs per block.
const PREPARE_THREADS: u32 = 128;

/// The most rows, and the most tiles, that one group of launches takes.
const MOST_ROWS: usize = 1024;
const MOST_TILES: usize = 1 << 19;

/// How a call is divided and surveyed: a pure function of the device, the shape and the features.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub tiles: usize,
    /// The number of rows in a group.
    pub rows: usize,
    pub needs: StepFeatures,
    /// The survey of rows that several outputs read; `None` if each output surveys its own.
    lines: Option<Survey>,
}

impl Operators {
    /// Draws a token for each output, after temperature and filters.
    ///
    /// The token is the one that a request with these parameters, seed, position and draw index gets. An
    /// output is [`gumball_spec::NONE`], with the status `EMPTY`, if its row has no logit above -inf or no
    /// probability above 0. So is an output whose entry of `lines` is not the index of a row.
    ///
    /// # Shapes and units
    /// `rows`: L rows. `params`: columns of length L or 1. `lines`: for each of R outputs, the index of the
    /// row that it reads; if `None`, R is L and output i reads row i. `draws`: columns of length R or 1.
    /// `tokens`: R integers, i32 or i64. `statuses`: R words, which receive the [`gumball_spec::Status`]
    /// bits.
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
        lines: Option<&DeviceIntSlice<'_>>,
        tokens: &DeviceIntSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let outputs = tokens.rows;
        if !matches!(tokens.dtype, IntType::I32 | IntType::I64) {
            return Err(Error::out_of_range("tokens.dtype", tokens.dtype.name(), "i32 or i64"));
        }
        match lines {
            Some(lines) => check_rows("lines", lines.rows, outputs)?,
            None => check_rows("tokens", outputs, rows.rows)?,
        }
        statuses.map_or(Ok(()), |statuses| check_rows("statuses", statuses.rows, outputs))?;
        if u32::try_from(outputs).is_err() {
            return Err(Error::length("tokens", outputs, "less than 2^32 numbers"));
        }
        if outputs > 0 && rows.rows == 0 {
            return Err(Error::length("rows", 0, "a line at least, where there are outputs"));
        }
        let mut asked = params.ask(rows.kind, rows.rows, rows.vocab)?;
        draws.ask(outputs, &mut asked.prepare)?;
        if let Some(lines) = lines {
            asked.prepare.row_indices =
                integers(&mut asked.prepare, "lines", lines, outputs, columns::ROW_INDEX)?;
            // A column of row indices always has one entry per output, even if there is one output.
            asked.prepare.per_row_columns |= columns::ROW_INDEX;
        }
        if outputs == 0 {
            return Ok(());
        }

        self.load(rows.kind)?;
        let plan = self.plan(rows, outputs, &asked);
        self.reserve(rows, &plan)?;
        let step = self.step(rows, &plan, asked.prepare.row_indices != 0);
        let step = abi::Step {
            tokens: tokens.address,
            statuses: statuses.map_or(0, |statuses| statuses.address),
            flags: step.flags
                | if tokens.dtype == IntType::I64 { flags::TOKENS_I64 } else { 0 }
                | if draws.zero_for_none { flags::ZERO_FOR_NONE } else { 0 },
            ..step
        };
        if let Some(survey) = plan.lines {
            self.survey_lines(rows, survey, &asked, &step)?;
        }
        let width = tokens.dtype.bytes();
        for first in (0..outputs).step_by(plan.rows) {
            let count = plan.rows.min(outputs - first);
            let from =
                if asked.prepare.row_indices == 0 { first * rows.stride * rows.dtype.bytes() } else { 0 };
            let step = abi::Step {
                logits: step.logits + from as u64,
                rows: count as u32,
                tokens: step.tokens + (first * width) as u64,
                statuses: if step.statuses == 0 {
                    0
                } else {
                    step.statuses + (first * size_of::<u32>()) as u64
                },
                ..step
            };
            self.prepare(&asked.prepare, first, count)?;
            let step = self.survey(rows, &plan, step)?;
            self.finish(rows, &plan, step)?;
        }
        Ok(())
    }

    /// Prepares the kernels that survey and finish rows of a kind.
    pub(super) fn load(&self, kind: Kind) -> Result<()> {
        // Rows of both kinds need this module: it holds the kernel that makes rows' records from those of
        // shared rows.
        self.runtime.prepare(KernelModule::Step)?;
        if kind == Kind::Probabilities {
            self.runtime.prepare(KernelModule::Probabilities)?;
        }
        Ok(())
    }

    /// Chooses how a call is divided and surveyed.
    pub(super) fn plan(&self, rows: &Rows<'_>, outputs: usize, asked: &Asked) -> Plan {
        let Rows { vocab, kind, dtype, .. } = *rows;
        let (multiprocessors, tiles) = (self.runtime.multiprocessors(), vocab.div_ceil(TILE));
        let most = (MOST_TILES / tiles).clamp(1, MOST_ROWS);
        let needs = asked.needs;
        let by_line = asked.prepare.row_indices != 0
            && rows.rows <= most
            && survey::by_line(multiprocessors, outputs, rows.rows, vocab);
        let lines = by_line.then(|| {
            survey::survey(
                multiprocessors,
                rows.rows,
                vocab,
                (kind, dtype),
                StepFeatures { sums: needs.sums, ..StepFeatures::NONE },
            )
        });
        let rows = outputs.min(most);
        let survey_draw =
            kind == Kind::Logits && lines.is_none() && survey::draws_in_survey(multiprocessors, rows, vocab);
        let needs = if survey_draw { needs } else { needs.and(StepFeatures::SIMPLE) };
        Plan { tiles, rows, needs, lines }
    }

    /// Enlarges the scratch memory for a plan.
    pub(super) fn reserve(&mut self, rows: &Rows<'_>, plan: &Plan) -> Result<()> {
        let Plan { tiles, rows: count, needs, .. } = *plan;
        let lines = if plan.lines.is_some() { rows.rows } else { 0 };
        let searches = if needs.variant >= Variant::Candidates { count } else { 0 };
        let sums = if needs.sums { tiles * size_of::<u64>() } else { 0 };
        self.room.reserve(&[
            (Piece::Params, count * size_of::<Params>()),
            (Piece::States, count * size_of::<State>()),
            (Piece::Slots, count * size_of::<Slot>()),
            (Piece::Forced, count * size_of::<i32>()),
            (Piece::Read, count * size_of::<u32>()),
            // All zeros, for requests without lists; `finish_general` reads them nonetheless.
            (Piece::Requests, count * size_of::<Request>()),
            (Piece::Records, count * tiles * size_of::<TileRecord>()),
            (Piece::Sums, count * sums),
            (Piece::Scratch, searches * filter_params::scratch_words(tiles) * size_of::<u64>()),
            (Piece::WorkSharing, work_sharing::words(count) * size_of::<u32>()),
            (Piece::Outputs, Layout { rows: count, widths: Widths::default() }.words() * size_of::<u32>()),
            (Piece::Kept, count * size_of::<RowCut>()),
            (Piece::LineParams, lines * size_of::<Params>()),
            (Piece::LineStates, lines * size_of::<State>()),
            (Piece::LineSlots, lines * size_of::<Slot>()),
            (Piece::LineForced, lines * size_of::<i32>()),
            (Piece::LineRecords, lines * tiles * size_of::<TileRecord>()),
            (Piece::LineSums, lines * sums),
        ])
    }

    /// Returns the argument of a step's kernels, without the number of rows and the outputs.
    pub(super) fn step(&self, rows: &Rows<'_>, plan: &Plan, reads: bool) -> abi::Step {
        let (room, tiles) = (&self.room, plan.tiles);
        let by_line = plan.lines.is_some();
        abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            vocab: rows.vocab as u32,
            tiles: tiles as u32,
            row_indices: if reads { room.at(Piece::Read) } else { 0 },
            slots: room.at(Piece::Slots),
            forced: room.at(Piece::Forced),
            params: room.at(Piece::Params),
            requests: room.at(Piece::Requests),
            states: room.at(Piece::States),
            records: room.at(Piece::Records),
            filter_sums: room.at(Piece::Sums),
            shared_records: if by_line { room.at(Piece::LineRecords) } else { 0 },
            shared_filter_sums: if by_line && plan.needs.sums { room.at(Piece::LineSums) } else { 0 },
            scratch: room.at(Piece::Scratch),
            scratch_words: filter_params::scratch_words(tiles) as u64,
            work_sharing: room.at(Piece::WorkSharing),
            outputs: room.at(Piece::Outputs),
            flags: flags::SLOT_IS_ROW,
            ..abi::Step::default()
        }
    }

    /// Enqueues the kernel that makes the requests of `count` rows, beginning with output `first`.
    pub(super) fn prepare(&self, asked: &ParamColumns, first: usize, count: usize) -> Result<()> {
        let room = &self.room;
        self.enqueue_prepare(&ParamColumns {
            params: room.at(Piece::Params),
            states: room.at(Piece::States),
            slots: room.at(Piece::Slots),
            forced: room.at(Piece::Forced),
            row_indices_out: room.at(Piece::Read),
            rows: count as u32,
            first_output: first as u32,
            ..*asked
        })
    }

    fn enqueue_prepare(&self, prepare: &ParamColumns) -> Result<()> {
        let grid = Grid::new(prepare.rows.div_ceil(PREPARE_THREADS), PREPARE_THREADS);
        // SAFETY: the grid is the one that params_from_columns.cu expects, and the scratch memory has an
        // element for each row. The columns' creators guarantee their memory, and `ask` saw their lengths.
        // tests/abi.rs checks that the argument's layout equals the kernels'. Each block waits for the
        // earlier kernels before it does anything, and lets the survey begin only then.
        unsafe { self.runtime.launch_dependent(PREPARE, grid, bytemuck::bytes_of(prepare)) }?;
        Ok(())
    }

    /// Surveys each row of logits or probabilities once, for all outputs that read it.
    fn survey_lines(&self, rows: &Rows<'_>, survey: Survey, asked: &Asked, step: &abi::Step) -> Result<()> {
        let room = &self.room;
        let lines = ParamColumns {
            params: room.at(Piece::LineParams),
            states: room.at(Piece::LineStates),
            slots: room.at(Piece::LineSlots),
            forced: room.at(Piece::LineForced),
            rows: rows.rows as u32,
            row_indices: 0,
            seeds: 0,
            positions: 0,
            draws: 0,
            flags: from_columns_flags::SHARED_ROWS | from_columns_flags::ONE_DRAW,
            ..asked.prepare
        };
        self.enqueue_prepare(&lines)?;
        let step = abi::Step {
            rows: lines.rows,
            row_indices: 0,
            slots: lines.slots,
            forced: lines.forced,
            params: lines.params,
            states: lines.states,
            records: step.shared_records,
            filter_sums: step.shared_filter_sums,
            ..*step
        }
        .cut(survey.blocks_per_row);
        // SAFETY: the conditions of the launch in `survey` hold here too. `reserve` saw to records for each
        // of these rows.
        unsafe { survey::enqueue_early(&*self.runtime, survey, &step) }?;
        Ok(())
    }

    /// Surveys rows whose requests the kernel before makes. Returns the argument for the kernel that finishes
    /// them.
    pub(super) fn survey(&self, rows: &Rows<'_>, plan: &Plan, step: abi::Step) -> Result<abi::Step> {
        let runtime = &*self.runtime;
        if plan.lines.is_some() {
            let arrive = survey::arrive(rows.vocab);
            let step = step.cut(arrive.blocks_per_row);
            // SAFETY: the conditions of the launch below hold here too. The shared rows were surveyed before.
            unsafe { survey::enqueue(runtime, arrive, &step) }?;
            return Ok(step);
        }
        let survey = if plan.needs.variant == Variant::SurveyDraw {
            survey::survey_draw(rows.vocab, rows.dtype)
        } else {
            let holds = (rows.kind, rows.dtype);
            survey::survey(runtime.multiprocessors(), step.rows as usize, rows.vocab, holds, plan.needs)
        };
        let step = step.cut(survey.blocks_per_row);
        // SAFETY: the buffers are this object's scratch memory, which `reserve` made large enough for these
        // rows. The kernel before makes the rows' requests, and every block of survey.cu and survey_draw.cu
        // waits for it; it also checks the row indices. The creator of `Rows` guarantees the logits.
        unsafe { survey::enqueue_early(runtime, survey, &step) }?;
        Ok(step)
    }

    fn finish(&self, rows: &Rows<'_>, plan: &Plan, step: abi::Step) -> Result<()> {
        let runtime = &*self.runtime;
        let variant = plan.needs.variant;
        let help = match plan.lines {
            // `records_from_shared_rows` does not reset the count of retired rows, which helpers read to know
            // when to leave.
            Some(_) => WorkSharing::default(),
            None => WorkSharing::of(runtime.multiprocessors(), step.rows, plan.needs),
        };
        let step = abi::Step { chunks: help.parts, ..step };
        let grid = finish_grid(runtime, step.rows, step.tiles, variant, help);
        // SAFETY: the conditions of the survey's launch hold here too. Every block of the kernel that
        // finishes rows waits for the survey, which began after the requests were made. `sample` saw that
        // tokens and statuses have an element per row.
        unsafe {
            runtime.launch_dependent(finish(rows.kind, rows.dtype, variant), grid, bytemuck::bytes_of(&step))
        }?;
        Ok(())
    }
}
