//! A step: rows of logits in, tokens out, by kernels alone.
//!
//! [`Workspace::step`] fixes the kernels of a shape; [`Workspace::enqueue`] launches them and neither allocates nor
//! waits, so it can be captured in a graph and replayed: positions advance on the device. A step holds no borrow of its
//! workspace, so requests can come and go between two replays.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::{self, flags};
use crate::edit;
use crate::machine::Kernel;
use crate::program::Program;
use crate::residents::Needs;
use crate::rows::{Dtype, MaskRows, Rows};
use crate::survey;
use crate::workspace::{Shape, Workspace};

/// The kernels that end a step.
pub(crate) const PROGRAM: Program = Program {
    name: "step",
    source: include_str!("step.cu"),
    kernels: &["finish_f32", "finish_bf16", "finish_f16"],
};

fn finish(dtype: Dtype) -> Kernel {
    Kernel::named(&format!("finish_{}", dtype.name()))
}

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
        let needs = self.needs();
        self.fix(rows, masks, Needs { edits: needs.edits || masks.is_some(), ..needs })
    }

    /// Fixes a step, as [`Workspace::step_masked`] does, with kernels for rows that ask for anything: so it, and a graph
    /// of it, serves whatever requests are assigned later. Where they ask for less, that costs a launch.
    ///
    /// # Errors
    /// - Those of [`Workspace::step_masked`].
    pub fn step_for_any<'b>(&self, rows: &Rows<'b>, masks: Option<&MaskRows<'b>>) -> Result<Step<'b>> {
        self.fix(rows, masks, Needs::ANY)
    }

    fn fix<'b>(&self, rows: &Rows<'b>, masks: Option<&MaskRows<'b>>, serves: Needs) -> Result<Step<'b>> {
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
        let tuning = survey::tuning(self.machine.multiprocessors(), self.rows(), vocab);
        let step = abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            rows: self.rows() as u32,
            blocks_per_row: tuning.blocks_per_row(vocab),
            ..abi
        };
        let finish = Some(finish(rows.dtype));
        let multiprocessors = self.machine.multiprocessors();
        let alike = step.lines != 0 && step.masks == 0;
        let (serves, lines_survey, (survey, step)) =
            if alike && survey::by_line(multiprocessors, self.rows(), rows.rows, vocab) {
                let (survey, step) = self.lines_room.cut(multiprocessors, rows, step);
                // Its second kernel surveys rows with edits for themselves.
                (Needs { edits: true, ..serves }, Some(survey), step)
            } else {
                (serves, None, (tuning.kernel(rows.dtype, serves.edits), step))
            };
        let step = Step {
            workspace: self.id,
            serves,
            shape: self.assigned.shape,
            lines: rows.rows,
            lines_survey,
            survey,
            finish,
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
    ///   lack, was assigned since the step was fixed, or rows that ask for kernels it has not.
    /// - [`Error::OutOfRange`] if the history of a row's request may have no room for another token.
    /// - [`Error::Unavailable`] if the machine fails.
    ///
    /// # Panics
    /// If the step was fixed by another workspace.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<()> {
        self.check(step.shape, step.lines)?;
        self.allow(step.serves, step.moves())?;
        Ok(self.enqueue_kernels(step)?)
    }

    pub(crate) fn enqueue_kernels(&self, step: &Step<'_>) -> crate::Result<()> {
        assert_eq!(step.workspace, self.id, "a step goes to the workspace that fixed it");
        let Step { serves, lines_survey, survey, finish, step, .. } = step;
        if step.rows == 0 {
            return Ok(());
        }
        let machine = &*self.machine;
        if serves.search {
            // SAFETY: as for the survey below; the lists of the requests are this workspace's as well.
            unsafe { edit::enqueue(machine, step) }?;
        }
        if let Some((kernel, lines)) = lines_survey {
            // SAFETY: as below, and `by_line` saw that there are no more lines than rows, for which there is room.
            unsafe { survey::enqueue(machine, *kernel, lines) }?;
        }
        // SAFETY: the buffers are this workspace's and so live until what is enqueued here is done, sized for the shape that
        // `step` checked; slots were checked where they were assigned; for the logits whoever made `Rows` vouches.
        unsafe { survey::enqueue(machine, *survey, step) }?;
        let Some(finish) = *finish else { return Ok(()) };
        // SAFETY: the same, and the survey was enqueued before; the grid is step.cu's, and the layout of `step` is held
        // to the kernels' in tests/abi.rs.
        unsafe { machine.launch(finish, step.rows, machine.threads_per_row(), bytemuck::bytes_of(step)) }
    }
}

/// A step of a workspace, ready to be enqueued there; its logits live as long as `'b`.
#[derive(Clone, Debug)]
pub struct Step<'b> {
    workspace: u64,
    /// What rows it has the kernels for.
    pub(crate) serves: Needs,
    pub(crate) shape: Shape,
    /// How many lines the logits have.
    pub(crate) lines: usize,
    /// The survey of lines that several rows read; then `survey` gives the rows their records from there.
    lines_survey: Option<(Kernel, abi::Step)>,
    survey: Kernel,
    finish: Option<Kernel>,
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
        Self { finish: None, ..self }
    }

    /// Returns by how many tokens it can move a request on.
    pub(crate) fn moves(&self) -> u64 {
        u64::from(self.finish.is_some() && self.step.flags & flags::SCORES == 0)
    }
}
