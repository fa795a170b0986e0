//! A step: rows of logits or probabilities in, tokens out, by kernels alone.
//!
//! [`Workspace::step`] fixes the kernels of a shape, in each [`Variant`]; [`Workspace::enqueue`] launches those that
//! the assigned rows need. It neither allocates nor waits, so it can be captured in a graph and replayed: positions
//! advance on the device. A step holds no borrow of its workspace, so requests can come and go between two replays.

use std::marker::PhantomData;

use gumball_spec::{Error, Kind, Result};

use crate::abi::{self, flags};
use crate::edit;
use crate::kernel_table::{ByDtype, ByRows, by_dtype, by_rows};
use crate::program::KernelModule;
use crate::rows::{Dtype, MaskRows, Rows};
use crate::runtime::{Grid, Kernel, Runtime};
use crate::survey::{self, Survey};
use crate::variant::{Edits, StepFeatures, Variant};
use crate::work_sharing::Help;
use crate::workspace::{Shape, Workspace};

const FINISH: ByRows = by_rows!("finish_general_", "");
const FINISH_LEAN: ByRows = by_rows!("finish_simple_", "");
const FINISH_RACED: ByDtype = by_dtype!("finish_survey_draw_", "");
const FINISH_LISTED: ByRows = by_rows!("finish_candidates_", "");
const FINISH_TOLD: ByRows = by_rows!("finish_candidates_logprob_", "");

/// Returns the kernel that ends the rows of a step.
pub(crate) fn finish(kind: Kind, dtype: Dtype, variant: Variant) -> Kernel {
    let kernels = match variant {
        Variant::SurveyDraw => return FINISH_RACED.of(dtype),
        Variant::Simple => FINISH_LEAN,
        Variant::Candidates => FINISH_LISTED,
        Variant::CandidatesLogprob => FINISH_TOLD,
        Variant::General => FINISH,
    };
    kernels.of(kind, dtype)
}

/// Returns the grid of what ends the rows. A lean end has a thread for each tile, as what it does is short, while each block
/// has a multiprocessor of its own, and a told one a warp besides, that draws while the others tell; blocks are smaller where
/// rows are so many that they wait for each other; few lists are apart, as two on a multiprocessor take longer. All are
/// measured.
pub(crate) fn finish_grid(
    machine: &dyn Runtime,
    rows: u32,
    tiles: u32,
    variant: Variant,
    help: Help,
) -> Grid {
    let (usual, multiprocessors) = (machine.threads_per_row(), machine.multiprocessors());
    let of_many = usual.min(THREADS_OF_MANY);
    let threads = if rows >= 2 * multiprocessors {
        of_many
    } else if variant <= Variant::CandidatesLogprob && rows <= multiprocessors {
        let drawing = if variant == Variant::CandidatesLogprob { 32 } else { 0 };
        (tiles.next_multiple_of(32) + drawing).clamp(of_many, 2 * usual)
    } else {
        usual
    };
    let lists = matches!(variant, Variant::Candidates | Variant::CandidatesLogprob);
    Grid::new(rows + help.blocks, threads)
        .one_block_per_sm(lists && rows <= multiprocessors)
        .co_resident(help.blocks != 0)
}

/// Threads a row of many.
const THREADS_OF_MANY: u32 = 256;

impl Workspace {
    /// Fixes the kernels of a step over some rows, as they were assigned.
    ///
    /// Row i reads line i, or the line that was assigned to it.
    ///
    /// # Errors
    /// - [`Error::Length`] if the rows are not of the vocabulary, or not as many as were assigned.
    /// - [`Error::Unavailable`] if the kernels of rows of probabilities are asked for the first time, and cannot be compiled.
    pub fn step<'b>(&self, rows: &Rows<'b>) -> Result<Step<'b>> {
        self.step_masked(rows, None)
    }

    /// Fixes the kernels of a step, as [`Workspace::step`] does, over rows with bitmasks of the machine's own.
    ///
    /// They stand in for those of the assignment, and count where those count: in every row if none were assigned.
    ///
    /// # Errors
    /// - Those of [`Workspace::step`], for the bitmasks too.
    pub fn step_masked<'b>(&self, rows: &Rows<'b>, masks: Option<&MaskRows<'b>>) -> Result<Step<'b>> {
        let vocab = self.room.vocab;
        if rows.vocab != vocab {
            let allowed = format!("{vocab} elements in a row, the vocabulary");
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        if rows.kind == Kind::Probabilities {
            self.machine.prepare(KernelModule::Probabilities)?;
        }
        let mut abi = self.abi();
        if abi.row_indices == 0 && rows.rows != self.rows() {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", self.rows())));
        }
        if let Some(masks) = masks {
            if masks.rows != self.rows() {
                let allowed = format!("one per row, {}", self.rows());
                return Err(Error::length("masks", masks.rows, allowed));
            }
            let most = vocab.div_ceil(32);
            if masks.width > most {
                let allowed = format!("at most {most}, a bit for each of {vocab} ids");
                return Err(Error::out_of_range("masks.width", masks.width, allowed));
            }
            // Of lines without words the kernels read nothing, but an address of 0 would stand for rows without masks.
            abi.masks = if masks.width == 0 { abi.slots } else { masks.address };
            abi.mask_words = masks.width as u32;
            abi.mask_stride = masks.stride as u64;
        }
        let step =
            abi::Step { logits: rows.address, stride: rows.stride as u64, rows: self.rows() as u32, ..abi };
        let multiprocessors = self.machine.multiprocessors();
        let alike = step.row_indices != 0 && step.masks == 0;
        let by_line = alike && survey::by_line(multiprocessors, self.rows(), rows.rows, vocab);
        let (by_line, step) = if by_line {
            let (survey, arrive, step) = self.shared_rows.cut(multiprocessors, rows, step);
            (Some((survey, arrive)), step)
        } else {
            (None, step)
        };
        let step = Step {
            workspace: self.id,
            shape: self.assigned.shape,
            lines: rows.rows,
            kind: rows.kind,
            dtype: rows.dtype,
            by_line,
            ends: true,
            step,
            memory: PhantomData,
        };
        self.check(step.shape, step.lines)?;
        Ok(step)
    }

    /// Checks that what is assigned now fits what a step was fixed for: its shape, and how many lines its logits have.
    pub(crate) fn check(&self, shape: Shape, lines: usize) -> Result<()> {
        let assigned = &self.assigned;
        if assigned.shape.rows != shape.rows {
            let allowed = format!("{} rows, for which the step was fixed", shape.rows);
            return Err(Error::length("slots", assigned.shape.rows, allowed));
        }
        if assigned.shape != shape {
            let reason = "a step that was fixed with lines or masks needs some, and one without takes none";
            return Err(Error::Conflict { parameter: "assignment", other: "step", reason });
        }
        if assigned.lines_end > lines {
            let line = assigned.lines_end - 1;
            return Err(Error::out_of_range(
                "row_indices",
                line,
                format!("a row of the logits, in 0..{lines}"),
            ));
        }
        Ok(())
    }

    /// Checks that the requests of the assigned rows may go by rows of a kind (P2).
    pub(crate) fn check_kind(&self, kind: Kind) -> Result<()> {
        if kind == Kind::Probabilities { self.refusal() } else { Ok(()) }
    }

    /// Enqueues a step on the machine's stream. Allocates nothing and waits for nothing.
    ///
    /// Where the host program captures the stream, the step becomes part of its graph, for whatever rows may need, and
    /// [`Workspace::reserve_replays`] is for the replays. Returns whether it runs now instead.
    ///
    /// # Errors
    /// - [`Error::Length`], [`Error::Conflict`] or [`Error::OutOfRange`] if another shape, or a line that the logits
    ///   lack, was assigned since the step was fixed.
    /// - [`Error::OutOfRange`] if the history of a row's request may have no room for another token.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if the rows hold probabilities and the request of one speaks of
    ///   logits.
    /// - [`Error::Unavailable`] if the machine fails.
    ///
    /// # Panics
    /// If the step was fixed by another workspace.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<bool> {
        self.check(step.shape, step.lines)?;
        self.check_kind(step.kind)?;
        if self.machine.is_capturing()? {
            // It does not run yet, and the host program may replay it for any requests.
            self.captured.note(step.kind);
            self.enqueue_kernels(step, StepFeatures::EVERYTHING)?;
            return Ok(false);
        }
        self.spend(step.moves())?;
        let needs = self.needs();
        self.enqueue_kernels(step, needs)?;
        self.served.count(needs.variant, 1);
        Ok(true)
    }

    /// Says that the host program is about to replay a graph of its own with steps of this workspace, so many in all.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the history of a row's request may have no room for as many tokens.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if a step on rows of probabilities was ever captured and the
    ///   request of a row speaks of logits.
    pub fn reserve_replays(&self, steps: u64) -> Result<()> {
        self.check_kind(self.captured.kind())?;
        self.spend(steps)?;
        self.served.count(StepFeatures::EVERYTHING.variant, steps);
        Ok(())
    }

    /// Launches the kernels that serve some needs, which must be those of the rows at least.
    pub(crate) fn enqueue_kernels(&self, fixed: &Step<'_>, needs: StepFeatures) -> crate::Result<()> {
        assert_eq!(fixed.workspace, self.id, "a step goes to the workspace that fixed it");
        let (machine, step) = (&*self.machine, &fixed.step);
        if step.rows == 0 {
            return Ok(());
        }
        let needs = if step.masks == 0 { needs } else { needs.and(StepFeatures::MASKS) };
        if needs.over == Edits::HistoryDependent {
            // SAFETY: as for the survey below; the lists of the requests are this workspace's as well.
            unsafe { edit::enqueue(machine, step) }?;
        }
        let (multiprocessors, rows) = (machine.multiprocessors(), step.rows as usize);
        let raced = fixed.by_line.is_none()
            && fixed.kind == Kind::Logits
            && step.flags & flags::NO_CANDIDATES == 0
            && survey::is_raced(multiprocessors, rows, self.room.vocab);
        let needs = if raced { needs } else { needs.and(StepFeatures::SIMPLE) };
        let survey = match &fixed.by_line {
            // Rows with edits, or that ask for sums, are surveyed for themselves, and so are those beside them.
            Some(((survey, lines), arrive)) if needs.over == Edits::None && !needs.sums => {
                // SAFETY: as below, and `by_line` saw that there are no more lines than rows, for which there is room.
                unsafe { survey::enqueue(machine, *survey, lines) }?;
                *arrive
            }
            _ if needs.variant == Variant::SurveyDraw => survey::raced(self.room.vocab, fixed.dtype),
            _ => survey::survey(multiprocessors, rows, self.room.vocab, (fixed.kind, fixed.dtype), needs),
        };
        let step = &step.cut(survey.blocks_per_row);
        // SAFETY: the buffers are this workspace's and so live until what is enqueued here is done, sized for the shape that
        // `step` checked; slots were checked where they were assigned; for the logits whoever made `Rows` vouches.
        unsafe { survey::enqueue(machine, survey, step) }?;
        if !fixed.ends {
            return Ok(());
        }
        let help = Help::of(multiprocessors, step.rows, needs);
        let step = &abi::Step { chunks: help.parts, ..*step };
        let grid = finish_grid(machine, step.rows, step.tiles, needs.variant, help);
        // SAFETY: the same, and the survey was enqueued before, for which every block of finish_general.cu, finish_simple.cu,
        // finish_candidates.cu and finish_candidates_logprob.cu waits; the grid is theirs, and the layout of `step` is held to the kernels' in tests/abi.rs.
        unsafe {
            machine.launch_dependent(
                finish(fixed.kind, fixed.dtype, needs.variant),
                grid,
                bytemuck::bytes_of(step),
            )
        }
    }
}

/// A step of a workspace, ready to be enqueued there; its logits live as long as `'b`.
#[derive(Clone, Debug)]
pub struct Step<'b> {
    workspace: u64,
    pub(crate) shape: Shape,
    /// How many lines the logits have.
    pub(crate) lines: usize,
    pub(crate) kind: Kind,
    dtype: Dtype,
    /// The survey of lines that several rows read, and what gives the rows their records from there.
    by_line: Option<((Survey, abi::Step), Survey)>,
    /// Whether the rows come to an end, and not only to their survey.
    ends: bool,
    step: abi::Step,
    memory: PhantomData<&'b ()>,
}

impl Step<'_> {
    /// Returns the step as one of scores: row i stands i tokens further on than its request, which stays where it is.
    pub(crate) fn scoring(mut self) -> Self {
        self.step.flags |= flags::SCORING;
        self
    }

    /// Returns the step with short sets searched as long ones are, which gives the same: for tests.
    #[must_use]
    pub fn searching(mut self) -> Self {
        self.step.flags |= flags::NO_CANDIDATES;
        self
    }

    /// Returns the survey of the step alone, which yields no tokens: for measurements.
    #[must_use]
    pub fn survey_only(self) -> Self {
        Self { ends: false, ..self }
    }

    /// Returns by how many tokens it can move a request on.
    pub(crate) fn moves(&self) -> u64 {
        u64::from(self.ends && self.step.flags & flags::SCORING == 0)
    }
}
