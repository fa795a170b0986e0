//! A step: rows of logits in, tokens out, by kernels alone.
//!
//! [`Workspace::step`] fixes the kernels of a shape, in each [`Variant`]; [`Workspace::enqueue`] launches those that
//! the assigned rows need. It neither allocates nor waits, so it can be captured in a graph and replayed: positions
//! advance on the device. A step holds no borrow of its workspace, so requests can come and go between two replays.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::{self, flags};
use crate::edit;
use crate::machine::{Kernel, Machine};
use crate::program::Program;
use crate::rows::{Dtype, MaskRows, Rows};
use crate::survey::{self, Survey};
use crate::variant::Variant;
use crate::workspace::{Shape, Workspace};

/// The kernels that end a step.
pub(crate) const PROGRAM: Program = Program {
    name: "step",
    source: include_str!("step.cu"),
    kernels: &["finish_f32", "finish_bf16", "finish_f16"],
};

/// The kernels that end a step whose rows ask for little.
pub(crate) const LEAN: Program = Program {
    name: "lean",
    source: include_str!("lean.cu"),
    kernels: &[
        "finish_lean_f32",
        "finish_listed_f32",
        "finish_lean_bf16",
        "finish_listed_bf16",
        "finish_lean_f16",
        "finish_listed_f16",
    ],
};

fn finish(dtype: Dtype, variant: Variant) -> Kernel {
    let stage = match variant {
        Variant::Lean => "finish_lean",
        Variant::Listed => "finish_listed",
        _ => "finish",
    };
    Kernel::named(&format!("{stage}_{}", dtype.name()))
}

/// Returns how many threads a block that ends a row has: as many as a block can, unless rows are so many that blocks wait
/// for each other.
fn finish_threads(machine: &dyn Machine, rows: usize, variant: Variant) -> u32 {
    let most = machine.threads_per_row();
    let many = rows >= 2 * machine.multiprocessors() as usize;
    if variant <= Variant::Listed && many { most.min(LEAN_THREADS_OF_MANY) } else { most }
}

/// Threads a row of many whose end is lean; measured.
const LEAN_THREADS_OF_MANY: u32 = 256;

impl Workspace {
    /// Fixes the kernels of a step over some rows, as they were assigned.
    ///
    /// Row i reads line i, or the line that was assigned to it.
    ///
    /// # Errors
    /// - [`Error::Length`] if the rows are not of the vocabulary, or not as many as were assigned.
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
        let mut abi = self.abi();
        if abi.lines == 0 && rows.rows != self.rows() {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", self.rows())));
        }
        if let Some(masks) = masks {
            if masks.rows != self.rows() {
                let allowed = format!("one per row, {}", self.rows());
                return Err(Error::length("masks", masks.rows, allowed));
            }
            abi.masks = masks.address;
            abi.mask_words = masks.width as u32;
            abi.mask_stride = masks.stride as u64;
        }
        let step =
            abi::Step { logits: rows.address, stride: rows.stride as u64, rows: self.rows() as u32, ..abi };
        let multiprocessors = self.machine.multiprocessors();
        let alike = false && step.lines != 0 && step.masks == 0;
        let by_line = alike && survey::by_line(multiprocessors, self.rows(), rows.rows, vocab);
        let survey = |variant| survey::survey(multiprocessors, self.rows(), vocab, rows.dtype, variant);
        let (lines_survey, surveys, step) = if by_line {
            let (lines, (arrive, step)) = self.lines_room.cut(multiprocessors, rows, step);
            (Some(lines), [arrive; Variant::ALL.len()], step)
        } else {
            (None, Variant::ALL.map(survey), step)
        };
        let step = Step {
            workspace: self.id,
            shape: self.assigned.shape,
            lines: rows.rows,
            lines_survey,
            surveys,
            finishes: Some(Variant::ALL.map(|variant| {
                (finish(rows.dtype, variant), finish_threads(&*self.machine, self.rows(), variant))
            })),
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
            return Err(Error::out_of_range("lines", line, format!("a row of the logits, in 0..{lines}")));
        }
        Ok(())
    }

    /// Enqueues a step on the machine's stream. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// - [`Error::Length`], [`Error::Conflict`] or [`Error::OutOfRange`] if another shape, or a line that the logits
    ///   lack, was assigned since the step was fixed.
    /// - [`Error::OutOfRange`] if the history of a row's request may have no room for another token.
    /// - [`Error::Unavailable`] if the machine fails.
    ///
    /// # Panics
    /// If the step was fixed by another workspace.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<()> {
        self.check(step.shape, step.lines)?;
        self.spend(step.moves())?;
        // The host program may replay what it captures for any requests.
        let capturing = self.machine.is_capturing()?;
        let variant = if capturing { Variant::Searching } else { self.variant() };
        self.enqueue_kernels(step, variant)?;
        self.served.count(variant, 1);
        Ok(())
    }

    /// Launches the kernels of a variant. The rows must not need another that serves more.
    pub(crate) fn enqueue_kernels(&self, step: &Step<'_>, variant: Variant) -> crate::Result<()> {
        assert_eq!(step.workspace, self.id, "a step goes to the workspace that fixed it");
        let Step { lines_survey, surveys, finishes, step, .. } = step;
        if step.rows == 0 {
            return Ok(());
        }
        let variant = variant.max(if step.masks == 0 { Variant::Lean } else { Variant::Edited });
        let machine = &*self.machine;
        if variant == Variant::Searching {
            // SAFETY: as for the survey below; the lists of the requests are this workspace's as well.
            unsafe { edit::enqueue(machine, step) }?;
        }
        if let Some((survey, lines)) = lines_survey {
            // SAFETY: as below, and `by_line` saw that there are no more lines than rows, for which there is room.
            unsafe { survey::enqueue(machine, *survey, lines) }?;
        }
        let survey = surveys[variant as usize];
        let step = &abi::Step { blocks_per_row: survey.blocks_per_row, ..*step };
        // SAFETY: the buffers are this workspace's and so live until what is enqueued here is done, sized for the shape that
        // `step` checked; slots were checked where they were assigned; for the logits whoever made `Rows` vouches.
        unsafe { survey::enqueue(machine, survey, step) }?;
        let Some(finishes) = finishes else { return Ok(()) };
        let (finish, threads) = finishes[variant as usize];
        // SAFETY: the same, and the survey was enqueued before, for which every block of step.cu and lean.cu waits; the
        // grid is theirs, and the layout of `step` is held to the kernels' in tests/abi.rs.
        unsafe { machine.launch_early(finish, step.rows, threads, bytemuck::bytes_of(step)) }
    }
}

/// A step of a workspace, ready to be enqueued there; its logits live as long as `'b`.
#[derive(Clone, Debug)]
pub struct Step<'b> {
    workspace: u64,
    pub(crate) shape: Shape,
    /// How many lines the logits have.
    pub(crate) lines: usize,
    /// The survey of lines that several rows read; then `surveys` give the rows their records from there.
    lines_survey: Option<(Survey, abi::Step)>,
    /// By variant.
    surveys: [Survey; Variant::ALL.len()],
    /// Kernel and threads a row, by variant.
    finishes: Option<[(Kernel, u32); Variant::ALL.len()]>,
    step: abi::Step,
    memory: PhantomData<&'b ()>,
}

impl Step<'_> {
    /// Returns the step as one of scores: row i stands i tokens further on than its request, which stays where it is.
    pub(crate) fn scoring(mut self) -> Self {
        self.step.flags |= flags::SCORES;
        self
    }

    /// Returns the step with short sets searched as long ones are, which gives the same: for tests.
    #[must_use]
    pub fn searching(mut self) -> Self {
        self.step.flags |= flags::SEARCHES;
        self
    }

    /// Returns the survey of the step alone, which yields no tokens: for measurements.
    #[must_use]
    pub fn survey_only(self) -> Self {
        Self { finishes: None, ..self }
    }

    /// Returns by how many tokens it can move a request on.
    pub(crate) fn moves(&self) -> u64 {
        u64::from(self.finishes.is_some() && self.step.flags & flags::SCORES == 0)
    }
}
