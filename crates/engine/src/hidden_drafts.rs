//! Drafts verified and drawn from hidden states (H6): heads compute the logits, and the rest is as from
//! logits.
//!
//! Coupled verification reads a row after drafts only if these drafts are the tokens that were drawn. So the
//! history that the row is drawn with is known before the walk: the request's, followed by the drafts on the
//! path to the row. A certified head therefore decides all rows of a call together, and the walk then reads
//! off the decisions of the rows that it visits.

use gumball_cpu::{Prepared, Task};
use gumball_head::{Reading, WholeRow};
use gumball_spec::{HostMatrix, Kind, Result, Wanted};

use crate::batch::{Batch, Checked};
use crate::draft::{Proposals, after_path};
use crate::drafts::ReadDrafts;
use crate::hidden_rows::RowTasks;
use crate::host::Host;
use crate::lm_head::Head;
use crate::outputs::Outputs;
use crate::score::reads_history;
use crate::sequence::Sequence;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::verify::request_of;
use crate::verify_mode::VerifyMode;

impl Host {
    /// Computes what a verification from hidden states gives that was checked, and changes no sequence.
    pub fn judge_hidden(
        &mut self,
        slots: &Slots,
        head: Head<'_>,
        states: HostMatrix<'_>,
        batch: &Checked<'_>,
        drafts: &ReadDrafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let greedy = self.greedy(slots, batch.slots, batch.mode)?;
        self.with_head_buffers(|host, buffers| {
            let (collects_kept, vocab) = (out.collects_kept(), host.vocab);
            let tasks = VerifyTasks { slots, vocab, batch, drafts, greedy: &greedy, collects_kept };
            host.fill_rows(head, states, &tasks, buffers)?;
            host.judge(slots, buffers.rows(vocab)?, batch, drafts, out)
        })?;
        out.mark_approximate(head.is_approximate());
        Ok(())
    }

    /// Draws drafts from hidden states that were checked.
    pub(crate) fn propose_hidden(
        &mut self,
        slots: &Slots,
        head: Head<'_>,
        states: HostMatrix<'_>,
        batch: &Checked<'_>,
        (paths, greedy): (&[&[i32]], &[Option<Prepared>]),
        out: &mut Proposals,
    ) -> Result<()> {
        self.with_head_buffers(|host, buffers| {
            let races = batch.mode != VerifyMode::Block && !out.has_probs();
            let tasks = DraftTasks { slots, batch, paths, greedy, siblings: out.siblings(), races };
            host.fill_rows(head, states, &tasks, buffers)?;
            host.propose(slots, buffers.rows(host.vocab)?, batch, (paths, greedy), out)
        })
    }
}

/// The tasks of the rows of a verification.
struct VerifyTasks<'a> {
    slots: &'a Slots,
    vocab: usize,
    batch: &'a Batch<'a>,
    drafts: &'a ReadDrafts<'a>,
    greedy: &'a [Option<Prepared>],
    collects_kept: bool,
}

impl VerifyTasks<'_> {
    fn request(&self, row: usize) -> usize {
        request_of(&self.drafts.starts, row)
    }

    /// Returns the drafts between the end of the history and a row.
    fn path(&self, row: usize, request: usize) -> Vec<i32> {
        let tree = self.drafts.tree(request);
        let mut path = Vec::new();
        let mut node = row - self.drafts.starts[request];
        while node > 0 {
            path.push(tree.drafts[node - 1]);
            node = tree.parents.map_or(node - 1, |parents| (parents[node - 1] + 1) as usize);
        }
        path.reverse();
        path
    }

    fn prepared(&self, request: usize) -> &Prepared {
        let own = self.slots.admitted(self.batch.slots[request]).prepared();
        self.greedy[request].as_ref().unwrap_or(own)
    }
}

impl RowTasks for VerifyTasks<'_> {
    fn reading(&self, row: usize) -> Option<Reading> {
        let request = self.request(row);
        let is_token = |id: &i32| (0..self.vocab as i32).contains(id);
        if self.batch.slots[request] == PADDING || !self.path(row, request).iter().all(is_token) {
            return None;
        }
        if self.batch.mode.judgement().is_some() && !self.drafts.tree(request).drafts.is_empty() {
            return Some(Reading::Whole(WholeRow::Judged));
        }
        let hooked = self.batch.hook(row).is_some();
        Some(self.prepared(request).reading_with(hooked, self.collects_kept))
    }

    fn batch(&self) -> Option<&Batch<'_>> {
        Some(self.batch)
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let request = self.request(row);
        let sequence = self.slots.admitted(self.batch.slots[request]);
        behind(sequence, self.prepared(request), &self.path(row, request), row, self.batch, work)
    }
}

/// The tasks of the rows of a draft model.
struct DraftTasks<'a> {
    slots: &'a Slots,
    batch: &'a Batch<'a>,
    paths: &'a [&'a [i32]],
    greedy: &'a [Option<Prepared>],
    siblings: usize,
    races: bool,
}

impl DraftTasks<'_> {
    fn prepared(&self, row: usize) -> &Prepared {
        let own = self.slots.admitted(self.batch.slots[row]).prepared();
        self.greedy[row].as_ref().unwrap_or(own)
    }
}

impl RowTasks for DraftTasks<'_> {
    fn reading(&self, row: usize) -> Option<Reading> {
        if self.batch.slots[row] == PADDING {
            return None;
        }
        let (hooked, siblings) = (self.batch.hook(row).is_some(), self.siblings);
        let wanted = Wanted { hooked, kept_set: siblings > 1 || !self.races, logprobs: None, siblings };
        Some(self.prepared(row).reading().with(&wanted))
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let sequence = self.slots.admitted(self.batch.slots[row]);
        behind(sequence, self.prepared(row), self.paths[row], row, self.batch, work)
    }
}

/// Works with the task of a row after a path of drafts.
fn behind<R>(
    sequence: &Sequence,
    prepared: &Prepared,
    path: &[i32],
    row: usize,
    batch: &Batch<'_>,
    work: impl FnOnce(&Task<'_>) -> R,
) -> R {
    let task = sequence.task(Kind::Logits, batch.masks.row(row), batch.forced(row));
    let mut extended = None;
    let is_read = reads_history(prepared.params());
    work(&after_path(task, Some(prepared), path, (is_read, &mut extended)))
}
