//! Rows that are written: the probabilities of what temperature and filters keep, or the rows with all else dropped.
//!
//! A survey, as of a step, that fills the rows to be written with nothing, if they lie apart; then what is kept of each row, and what it
//! weighs, which is written at once if a list says so; then other rows, tile by tile. A tile that holds nothing kept is not read.

use gumball_spec::{Error, Kind, Result};

use super::params::Asked;
use super::room::Piece;
use super::{Operators, RowParams, check_rows};
use crate::abi::{self, from_columns_flags};
use crate::kernel_table::{ByDtype, ByRows, by_rows};
use crate::program::KernelModule;
use crate::rows::{DeviceSlice, Dtype, Rows, RowsOut};
use crate::runtime::{Grid, Kernel};
use crate::softmax::{Softmax, Temperature};
use crate::step::finish_grid;
use crate::variant::Variant;
use crate::work_sharing::Help;

const KEEP: ByRows = by_rows!("find_cut_", "");

/// To the rows' own type, and to f32.
const EMIT: [ByRows; 2] = [
    by_rows!("write_rows_", ""),
    ByRows([
        ByDtype([
            Kernel::named("write_rows_f32"),
            Kernel::named("write_rows_bf16_f32"),
            Kernel::named("write_rows_f16_f32"),
        ]),
        ByDtype([
            Kernel::named("write_rows_f32_probs"),
            Kernel::named("write_rows_bf16_f32_probs"),
            Kernel::named("write_rows_f16_f32_probs"),
        ]),
    ]),
];

/// How many warps a block of them has, how many blocks a multiprocessor has before warps take several tiles, and how many they take at
/// most where all are written.
const EMIT_WARPS: usize = 8;
const EMIT_BLOCKS: usize = 4;
const MOST_PER_WARP: usize = 8;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Probabilities,
    Masked,
}

impl Output {
    /// Returns the bits of what stands where no token is kept, twice those of a short element.
    fn nothing(self, kind: Kind, dtype: Dtype) -> u32 {
        match (self, kind, dtype) {
            (Self::Probabilities, ..) | (_, Kind::Probabilities, _) => 0,
            (Self::Masked, Kind::Logits, Dtype::F32) => f32::NEG_INFINITY.to_bits(),
            (Self::Masked, Kind::Logits, Dtype::Bf16) => 0xFF80_FF80,
            (Self::Masked, Kind::Logits, Dtype::F16) => 0xFC00_FC00,
        }
    }
}

impl Operators {
    /// Writes the distribution that each row's token is drawn from: of logits the softmax of what temperature and filters keep, of
    /// probabilities what filters keep, renormalised (rule P4).
    ///
    /// Of logits without filters it is that of [`Softmax`]. XTC acts by draw 0 of seed 0 at position 0. In a row NaN counts as -inf and +inf as
    /// `f32::MAX`; of probabilities NaN and less than 0 as 0; a row with nothing to draw becomes all 0.
    ///
    /// # Shapes and units
    /// `rows`: R rows. `params`: columns of R, or of one for all. `out`: R rows of f32 or of the rows' type, to which each number is
    /// rounded once. `statuses`: R, the [`gumball_spec::Status`] bits.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or a type is not so.
    /// - Those of [`gumball_spec::SamplingParams::validate`] for what the rows have in common.
    /// - [`Error::Unavailable`] for edits of ids; if the machine fails; or if the host program captures the stream and there is not
    ///   enough room.
    ///
    /// Nothing was enqueued then, unless the machine failed.
    pub fn probabilities(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        check_out(rows, out)?;
        self.write(Output::Probabilities, rows, params, out.rows(), statuses)
    }

    /// Writes the same in the rows' place.
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn probabilities_in_place(
        &mut self,
        rows: &RowsOut<'_>,
        params: &RowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(Output::Probabilities, rows.rows(), params, rows.rows(), statuses)
    }

    /// Writes each row with only the tokens that its filters keep: other logits are -inf, other probabilities 0.
    ///
    /// Rows of only -inf stay as they are. What is kept counts as input does: -0.0 as +0.0, +inf as `f32::MAX`.
    ///
    /// # Shapes and units
    /// Those of [`Operators::probabilities`].
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn mask(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        check_out(rows, out)?;
        self.write(Output::Masked, rows, params, out.rows(), statuses)
    }

    /// Masks each row in its place.
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn mask_in_place(
        &mut self,
        rows: &RowsOut<'_>,
        params: &RowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(Output::Masked, rows.rows(), params, rows.rows(), statuses)
    }

    fn write(
        &mut self,
        output: Output,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        out: &Rows<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let mut asked = params.ask(rows.kind, rows.rows, rows.vocab)?;
        asked.prepare.flags |= from_columns_flags::ONE_DRAW;
        statuses.map_or(Ok(()), |statuses| check_rows("statuses", statuses.rows, rows.rows))?;
        if rows.rows == 0 {
            return Ok(());
        }
        if rows.kind == Kind::Logits && output == Output::Probabilities && asked.keeps_all() {
            let temperature =
                params.temperature.map_or(Temperature::All(params.common.temperature), Temperature::PerRow);
            return self.softmax()?.enqueue_checked(rows, out, temperature, statuses);
        }

        self.load(rows.kind)?;
        let write = [KernelModule::Write, KernelModule::WriteProbabilities][rows.kind as usize];
        self.machine.prepare(write)?;
        // Whatever is kept may have to be searched for.
        asked.needs.variant = asked.needs.variant.max(Variant::Candidates);
        let plan = self.plan(rows, rows.rows, &asked);
        self.reserve(rows, &plan)?;
        let step = abi::Step {
            statuses: statuses.map_or(0, |statuses| statuses.address),
            ..self.step(rows, &plan, false)
        };
        for first in (0..rows.rows).step_by(plan.rows) {
            let count = plan.rows.min(rows.rows - first);
            let at = |rows: &Rows<'_>| rows.address + (first * rows.stride * rows.dtype.bytes()) as u64;
            let filled = if at(rows) == at(out) { 0 } else { at(out) };
            let step = abi::Step {
                logits: at(rows),
                prefill_out: filled,
                prefill_stride_bytes: (out.stride * out.dtype.bytes()) as u64,
                prefill_element_bytes: out.dtype.bytes() as u32,
                prefill_word: output.nothing(rows.kind, out.dtype),
                rows: count as u32,
                statuses: if step.statuses == 0 {
                    0
                } else {
                    step.statuses + (first * size_of::<u32>()) as u64
                },
                ..step
            };
            self.prepare(&asked.prepare, first, count)?;
            let step = self.survey(rows, &plan, step)?;
            self.keep((rows.kind, rows.dtype), &asked, output, &step)?;
            self.emit((rows.kind, rows.dtype, out.dtype), output, &step, (at(out), out.stride))?;
        }
        Ok(())
    }

    /// Returns the softmax, made when it is first asked for.
    fn softmax(&mut self) -> Result<&Softmax> {
        if self.softmax.is_none() {
            self.room.check_open()?;
            self.softmax = Some(Softmax::new(self.machine.clone())?);
        }
        Ok(self.softmax.as_ref().expect("it was just made"))
    }

    /// Finds what is kept of rows that were surveyed.
    fn keep(
        &self,
        (kind, dtype): (Kind, Dtype),
        asked: &Asked,
        output: Output,
        step: &abi::Step,
    ) -> Result<()> {
        let machine = &*self.machine;
        let help = Help::of(machine.multiprocessors(), step.rows, asked.needs);
        let keep = abi::FindCut {
            step: abi::Step { chunks: help.parts, ..*step },
            cuts: self.room.at(Piece::Kept),
            mask_only: u32::from(output == Output::Masked),
            reserved: 0,
        };
        let grid = finish_grid(machine, step.rows, step.tiles, Variant::Candidates, help);
        // SAFETY: the grid is find_cut.cu's; the buffers are this room's, sized by `reserve`, with a place for what is kept of each row; the
        // survey was enqueued before, for which every block waits; requests were made when it began. The layout is held to the
        // kernels' in tests/abi.rs.
        unsafe { machine.launch_dependent(KEEP.of(kind, dtype), grid, bytemuck::bytes_of(&keep)) }?;
        Ok(())
    }

    /// Writes rows of which it is known what is kept.
    fn emit(
        &self,
        (kind, from, to): (Kind, Dtype, Dtype),
        output: Output,
        step: &abi::Step,
        (out, out_stride): (u64, usize),
    ) -> Result<()> {
        let machine = &*self.machine;
        let (rows, tiles) = (step.rows as usize, step.tiles as usize);
        let blocks = machine.multiprocessors() as usize * EMIT_BLOCKS;
        // Where most rows are written by now, no block shall wait for room only to see that.
        let per_warp = if step.prefill_out == 0 {
            (rows * tiles).div_ceil(blocks * EMIT_WARPS).clamp(1, MOST_PER_WARP)
        } else {
            tiles.div_ceil((blocks / rows).max(1) * EMIT_WARPS)
        };
        let share = EMIT_WARPS * per_warp;
        let emit = abi::WriteRows {
            logits: step.logits,
            out,
            stride: step.stride,
            out_stride: out_stride as u64,
            records: step.records,
            cuts: self.room.at(Piece::Kept),
            rows: step.rows,
            vocab: step.vocab,
            tiles: step.tiles,
            blocks_per_row: tiles.div_ceil(share) as u32,
            tiles_per_block: share as u32,
            mask_only: u32::from(output == Output::Masked),
        };
        let grid = Grid::new(emit.rows * emit.blocks_per_row, 32 * EMIT_WARPS as u32);
        // SAFETY: the grid is write_rows.cu's; `keep` was enqueued before, for which every block waits; for the rows whoever made them
        // vouches, and that those to be written are as many and as wide was seen.
        unsafe {
            machine.launch_dependent(
                EMIT[usize::from(to != from)].of(kind, from),
                grid,
                bytemuck::bytes_of(&emit),
            )
        }?;
        Ok(())
    }
}

fn check_out(rows: &Rows<'_>, out: &RowsOut<'_>) -> Result<()> {
    let to = out.rows();
    check_rows("out", to.rows, rows.rows)?;
    if to.vocab != rows.vocab {
        return Err(Error::out_of_range("out.vocab", to.vocab, format!("{}, as the rows have", rows.vocab)));
    }
    if to.dtype != Dtype::F32 && to.dtype != rows.dtype {
        let allowed = format!("f32 or {}, as the rows are", rows.dtype.name());
        return Err(Error::out_of_range("out.dtype", to.dtype.name(), allowed));
    }
    Ok(())
}
