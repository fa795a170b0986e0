//! Graphs of a pool on a device: steps and verifications, and what drafts for them, captured once and replayed with one call.
//!
//! A graph of ours holds launches of this crate alone. A program that has kernels of its own between them captures the device's stream
//! itself, and enqueues the same calls.

use gumball_cuda::{
    DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftCopyLaunch, DraftIds, Graph, ShortenLaunch,
    StepInput, Work,
};
use gumball_spec::Result;

use super::ahead::Ahead;
use super::draft_batch::DraftBatch;
use super::head::DeviceHead;
use super::input::DeviceInput;
use super::pool::DevicePool;

/// What a graph does at one point. See [`DevicePool::capture_work`].
#[derive(Clone, Copy, Debug)]
pub enum GraphWork<'a, 'b> {
    /// A step, as of [`DevicePool::enqueue_assigned`].
    Step(DeviceInput<'b>),
    /// A verification of drafts, as of [`DevicePool::enqueue_verify_assigned`].
    Verify(DeviceInput<'b>, DraftIds<'b>),
    /// A step from hidden states, as of [`DevicePool::enqueue_hidden_assigned`].
    StepHidden(&'b DeviceHead<'b>, DeviceInput<'b>),
    /// A verification of drafts from hidden states, as of [`DevicePool::enqueue_verify_hidden_assigned`].
    VerifyHidden(&'b DeviceHead<'b>, DeviceInput<'b>, DraftIds<'b>),
    /// Drafts, as of [`DevicePool::enqueue_draft`].
    Draft {
        /// The batch whose rows draw.
        batch: DraftBatch,
        /// The rows.
        input: DeviceInput<'b>,
        /// The paths in front of the rows.
        paths: Option<DeviceIntMatrix<'b>>,
    },
    /// A copy of drafts, as of [`DevicePool::enqueue_copy_drafts`].
    CopyDrafts {
        /// The batch whose drafts are copied.
        batch: DraftBatch,
        /// Where they go.
        to: &'a DeviceIntMatrixMut<'b>,
        /// The column of the first sibling.
        column: usize,
    },
    /// Taking emitted tokens away, as of [`DevicePool::enqueue_shorten`].
    Shorten(DeviceSlice<'b>),
}

impl DevicePool {
    /// Captures a step for each input, to be replayed in this order. Nothing runs yet.
    ///
    /// A replay uses the assignment of that moment. Requests may be admitted, released and assigned in
    /// between. The number of rows, and whether row indices and masks exist, must stay the same.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_assigned`].
    pub fn capture<'b>(&self, inputs: &[DeviceInput<'b>]) -> Result<Graph<'b>> {
        self.capture_work(&inputs.iter().copied().map(GraphWork::Step).collect::<Vec<_>>())
    }

    /// Captures a verification for each input with its drafts, to be replayed in this order by [`DevicePool::replay`].
    /// Nothing runs yet. See [`DevicePool::capture`].
    ///
    /// A replay uses the assignment of that moment, and reads the drafts that lie there then. The numbers of requests and of
    /// rows and the mode must stay the same; how many drafts each request has may change.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_verify_assigned`].
    pub fn capture_verify<'b>(&self, inputs: &[(DeviceInput<'b>, DraftIds<'b>)]) -> Result<Graph<'b>> {
        let verify = |(input, drafts): &(DeviceInput<'b>, DraftIds<'b>)| GraphWork::Verify(*input, *drafts);
        self.capture_work(&inputs.iter().map(verify).collect::<Vec<_>>())
    }

    /// Captures a step from hidden states for each input, to be replayed in this order by [`DevicePool::replay`]. Nothing runs yet. See
    /// [`DevicePool::capture`].
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_hidden_assigned`].
    pub fn capture_hidden<'b>(
        &self,
        head: &'b DeviceHead<'_>,
        inputs: &[DeviceInput<'b>],
    ) -> Result<Graph<'b>> {
        let work: Vec<_> = inputs.iter().map(|input| GraphWork::StepHidden(head, *input)).collect();
        self.capture_work(&work)
    }

    /// Captures work of several kinds, to be replayed in this order by [`DevicePool::replay`]: drafts of batches, which one copies to
    /// where the next one's paths and a verification read them, the verification, and whatever follows. Nothing runs yet.
    ///
    /// Each piece reads what the ones before it have written, and requests as these have left them, so a replay drafts, verifies
    /// and advances without the host. What [`DevicePool::assign`], [`DevicePool::assign_drafts`] and [`DevicePool::assign_draft`] say at
    /// the time of a replay counts. The numbers of requests and rows, the modes, and whether row indices and masks exist, must stay the
    /// same, for each batch of drafts too. [`DevicePool::assign`] and [`DevicePool::assign_drafts`] replace each other, so a graph has steps or
    /// verifications, not both.
    ///
    /// # Errors
    /// Those of the calls that [`GraphWork`] names.
    pub fn capture_work<'b>(&self, work: &[GraphWork<'_, 'b>]) -> Result<Graph<'b>> {
        let fixed = work.iter().map(|work| self.fix(work)).collect::<Result<_>>()?;
        self.workspace.capture_work(fixed)
    }

    fn fix<'b>(&self, work: &GraphWork<'_, 'b>) -> Result<Work<'b>> {
        let workspace = &self.workspace;
        let input: StepInput<'_, 'b> = match *work {
            GraphWork::Step(input) => input.of_step(),
            GraphWork::Verify(input, drafts) => StepInput { drafts: Some(drafts), ..input.of_step() },
            GraphWork::StepHidden(head, input) => {
                self.check_head(head)?;
                StepInput { head: Some(&head.head), ..input.of_step() }
            }
            GraphWork::VerifyHidden(head, input, drafts) => {
                self.check_head(head)?;
                StepInput { head: Some(&head.head), drafts: Some(drafts), ..input.of_step() }
            }
            GraphWork::Draft { batch, input, paths } => {
                StepInput { of: Some(batch.id), paths, ..input.of_step() }
            }
            GraphWork::CopyDrafts { batch, to, column } => {
                return Ok(Work::CopyDrafts(DraftCopyLaunch::new(workspace, batch.id, to, column)?));
            }
            GraphWork::Shorten(counts) => return Ok(Work::Shorten(ShortenLaunch::new(workspace, &counts)?)),
        };
        self.check_input(&input)?;
        Ok(Work::Step(Box::new(workspace.fix(&input)?)))
    }

    /// Enqueues the work of a graph: one call, however much it is.
    ///
    /// # Errors
    /// - [`Error::Length`](gumball_spec::Error::Length), [`Error::Conflict`](gumball_spec::Error::Conflict) or
    ///   [`Error::OutOfRange`](gumball_spec::Error::OutOfRange) if an assignment's shape differs from that of the capture, a row index
    ///   lies beyond the captured logits, or a path is longer than the rows of paths.
    /// - [`Error::OutOfRange`](gumball_spec::Error::OutOfRange) if a batch of drafts was removed.
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if the device fails.
    ///
    /// # Panics
    /// If another pool captured the graph.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        let advances = graph.steps() > 0;
        if advances {
            self.grow_histories(graph.steps())?;
        }
        for (slot, ids) in self.workspace.lacking_paths(graph)? {
            self.workspace.extend(slot, self.config.history_growth.max(ids as usize))?;
        }
        self.workspace.replay(graph)?;
        for work in graph.work() {
            match work {
                Work::Step(step) if step.draft_batch().is_none() => self.note(1, step.is_approximate()),
                Work::Shorten(_) => self.note_shorten(),
                Work::Step(_) | Work::CopyDrafts(_) => {}
            }
        }
        Ok(())
    }

    /// Records that tokens of the assigned sequences are taken away behind the steps that were noted.
    pub(super) fn note_shorten(&mut self) {
        self.slots.each_ahead(&self.assigned.slots, Ahead::note_shorten);
    }
}
