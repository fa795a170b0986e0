//! A step: rows of logits in, tokens out, by kernels alone.
//!
//! [`Workspace::step`] fixes the kernels of a shape; [`Workspace::enqueue`] launches them and neither allocates nor
//! waits, so it can be captured in a graph and replayed: positions advance on the device. A step holds no borrow of its
//! workspace, so requests can come and go between two replays.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi;
use crate::machine::Kernel;
use crate::program::Program;
use crate::rows::{Dtype, Rows};
use crate::survey;
use crate::workspace::Workspace;

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
        let vocab = self.room.vocab;
        if rows.vocab != vocab {
            let allowed = format!("{vocab} elements in a row, the vocabulary");
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        let abi = self.abi();
        if abi.lines == 0 && rows.rows != self.rows() {
            return Err(Error::length("logits", rows.rows, format!("one per slot, {}", self.rows())));
        }
        let tuning = survey::tuning(self.machine.multiprocessors(), self.rows(), vocab);
        let step = abi::Step {
            logits: rows.address,
            stride: rows.stride as u64,
            rows: self.rows() as u32,
            blocks_per_row: tuning.blocks_per_row(vocab),
            ..abi
        };
        let survey = tuning.kernel(rows.dtype, true);
        let finish = Some(finish(rows.dtype));
        Ok(Step { workspace: self.id, survey, finish, step, memory: PhantomData })
    }

    /// Enqueues a step on the machine's stream. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails.
    ///
    /// # Panics
    /// If the step was fixed by another workspace.
    pub fn enqueue(&self, step: &Step<'_>) -> Result<()> {
        Ok(self.enqueue_kernels(step)?)
    }

    pub(crate) fn enqueue_kernels(&self, step: &Step<'_>) -> crate::Result<()> {
        assert_eq!(step.workspace, self.id, "a step goes to the workspace that fixed it");
        let Step { survey, finish, step, .. } = step;
        if step.rows == 0 {
            return Ok(());
        }
        let machine = &*self.machine;
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
    survey: Kernel,
    finish: Option<Kernel>,
    step: abi::Step,
    memory: PhantomData<&'b ()>,
}

impl Step<'_> {
    /// Returns the survey of the step alone, which yields no tokens: for measurements.
    #[must_use]
    pub fn survey_only(self) -> Self {
        Self { finish: None, ..self }
    }
}
