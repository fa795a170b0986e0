//! What pools have in common, whatever they run on.

use std::fmt;

use gumball_engine::{
    Batch, Drafts, Kind, Logits, Matrix, Outputs, PADDING, Proposals, Rows, SamplingParams, Scored, Sequence,
    Slot, State,
};
use gumball_spec::{Error, Result};

use crate::head_case::{ClusterCase, HeadCase};

/// A step, or with drafts a verification, as work in order.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Whose they are, and what comes with them; hooks are not for work in order.
    pub batch: Batch<'a>,
    /// The drafts of a verification.
    pub drafts: Option<Drafts<'a>>,
}

/// Returns the rows that a batch reads, in its order.
///
/// # Errors
/// Those of [`Logits::select`].
pub fn read<'a>(rows: Rows<'a>, batch: &Batch<'a>) -> Result<Logits<'a>> {
    let kind = if matches!(rows, Rows::Probabilities(_)) { Kind::Probabilities } else { Kind::Logits };
    let Matrix::Host(matrix) = rows.matrix() else { unreachable!("cases lie on the host") };
    let logits = Logits::of(matrix, kind);
    if batch.row_indices.is_empty() { Ok(logits) } else { logits.select(batch.row_indices) }
}

impl<'a> Work<'a> {
    /// Returns it for other slots.
    #[must_use]
    pub fn of_slots(self, slots: &'a [Slot]) -> Self {
        Self { batch: Batch { slots, ..self.batch }, ..self }
    }

    /// Returns it as the engine takes it, for an assignment of its batch.
    #[must_use]
    pub fn of_engine(&self) -> gumball_engine::Work<'a> {
        match self.drafts {
            None => gumball_engine::Work::step(self.rows),
            Some(drafts) => gumball_engine::Work::verify(self.rows, drafts),
        }
    }

    /// Does it by a direct call.
    ///
    /// # Errors
    /// The pool's.
    pub fn call(&self, pool: &mut impl Verbs, out: &mut Outputs) -> Result<()> {
        match &self.drafts {
            None => pool.step(self.rows, &self.batch, out),
            Some(drafts) => pool.verify(self.rows, &self.batch, drafts, out),
        }
    }
}

/// The verbs that pools have in common, whatever they run on.
pub trait Verbs: fmt::Debug + Send + Sized {
    /// Admits a request.
    ///
    /// # Errors
    /// The pool's.
    fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot>;

    /// Appends a token that the caller chose.
    ///
    /// # Errors
    /// The pool's.
    fn push(&mut self, slot: Slot, id: u32) -> Result<()>;

    /// Takes the last output tokens of sequences away.
    ///
    /// # Errors
    /// The pool's.
    fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()>;

    /// Takes up a sequence.
    ///
    /// # Errors
    /// The pool's.
    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot>;

    /// Returns the state of a slot.
    ///
    /// # Errors
    /// The pool's.
    fn sequence(&mut self, slot: Slot) -> Result<&Sequence>;

    /// Takes a step.
    ///
    /// # Errors
    /// The pool's.
    fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()>;

    /// Ends a sequence.
    ///
    /// # Errors
    /// The pool's.
    fn release(&mut self, slot: Slot) -> Result<()>;

    /// Copies a sequence under another draw index.
    ///
    /// # Errors
    /// The pool's.
    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot>;

    /// Verifies drafts.
    ///
    /// # Errors
    /// The pool's.
    fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()>;

    /// Returns whether the caller's edits of a row are for it.
    fn hooks(&self) -> bool;

    /// Whether it assigns batches, and checks them then. Others do work in order by direct calls.
    const ASSIGNS: bool = false;

    /// By how much fewer draws are made where a law would like many.
    const SLOWNESS: u32 = 1;

    /// Whether the pool draws drafts.
    const PROPOSES: bool = false;

    /// Takes a head whose hidden states are the rows of calls that follow, in turn, beside their logits; a pool without heads takes the
    /// logits.
    fn give_head(&mut self, _head: Option<&HeadCase>) {}

    /// Takes clusters, by which the head that was given makes the rows of steps; a pool without heads takes the logits.
    fn give_clusters(&mut self, _clusters: Option<&ClusterCase>) {}

    /// Draws drafts. Only for pools that do.
    ///
    /// # Errors
    /// The pool's.
    fn propose(
        &mut self,
        _rows: Rows<'_>,
        _batch: &Batch<'_>,
        _paths: &[i32],
        _out: &mut Proposals,
    ) -> Result<()> {
        unreachable!("a pool that draws no drafts is not asked for some")
    }

    /// Scores given tokens. A pool that cannot says so.
    ///
    /// # Errors
    /// The pool's.
    fn score(
        &mut self,
        _rows: Rows<'_>,
        _batch: &Batch<'_>,
        _scored: &Scored<'_>,
        _out: &mut Outputs,
    ) -> Result<()> {
        Err(Error::Unavailable { resource: "scores over ranks", reason: "score in one process".to_owned() })
    }

    /// Enqueues work, whose outcome `fetch` reads.
    ///
    /// # Errors
    /// The pool's.
    fn enqueue(&mut self, work: &Work<'_>, out: &mut Outputs) -> Result<()> {
        work.call(self, out)
    }

    /// Assigns slots and options to the rows of work that [`Verbs::enqueue_assigned`] enqueues.
    ///
    /// # Errors
    /// The pool's.
    fn assign(&mut self, _work: &Work<'_>) -> Result<()> {
        Ok(())
    }

    /// Enqueues rows for the last assignment, which `work` repeats with padding in place of requests that have ended.
    ///
    /// # Errors
    /// The pool's.
    fn enqueue_assigned(&mut self, work: &Work<'_>, out: &mut Outputs) -> Result<()> {
        self.enqueue(work, out)
    }

    /// Reads the outcome of the last step or verification; of a direct call it is there already.
    ///
    /// # Errors
    /// The pool's.
    fn fetch(&mut self, _out: &mut Outputs) -> Result<()> {
        Ok(())
    }

    /// Captures work in a graph, and replays it for the slots of each turn. Where that cannot be, it is done that often.
    ///
    /// # Errors
    /// The pool's, of the first turn that is refused.
    fn replay(&mut self, work: &Work<'_>, turns: &[Vec<Slot>], out: &mut Outputs) -> Result<()> {
        turns.iter().try_for_each(|slots| self.enqueue(&work.of_slots(slots), out))
    }

    /// Takes output tokens of the sequences in `slots` away, as a device does by counts in its memory: a count above the number of output tokens
    /// takes none. `slots` are the slots of the last work.
    ///
    /// # Errors
    /// The pool's.
    fn enqueue_shorten(&mut self, slots: &[Slot], counts: &[u32]) -> Result<()> {
        for (slot, count) in slots.iter().zip(counts).filter(|(slot, _)| **slot != PADDING) {
            let length = self.sequence(*slot)?.history().output().len();
            if *count as usize <= length {
                self.shorten(&[*slot], &[*count as usize])?;
            }
        }
        Ok(())
    }
}
