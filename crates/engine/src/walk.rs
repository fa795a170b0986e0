//! The walk of one request through the rows of its drafts, on one thread.
//!
//! Where drafts are compared with drawn tokens, or judged sibling by sibling, a row is read when the walk
//! gets to it. A block is judged as a whole, so all of its rows are made probabilities first.

use gumball_cpu::{History, Judged, Level, Prepared, Task, Workspace};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Judgement, Siblings, Trial};
use gumball_spec::verify::coupled::{row_after, stops};
use gumball_spec::verify::weights::Key;
use gumball_spec::{Forced, Result};

use crate::batch::Batch;
use crate::logits::Logits;
use crate::sequence::Sequence;
use crate::sink::RowsMut;
use crate::stages::Stages;

/// A request with drafts, whose rows of the batch begin at `start`.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a> {
    pub(crate) logits: Logits<'a>,
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) sequence: &'a Sequence,
    /// The parameters, if they are not the sequence's.
    pub(crate) greedy: Option<&'a Prepared>,
    pub(crate) tree: DraftTree<'a>,
    pub(crate) start: usize,
}

/// The way of a walk so far.
#[derive(Default)]
struct Path {
    /// The rows that it went through, counted from the request's first.
    rows: Vec<usize>,
    /// The history at the next row; `None`: the sequence's own, since no draft was accepted.
    history: Option<History>,
}

impl Walk<'_> {
    /// Accepts drafts while they equal what is drawn: writes a row for each token, and returns the rows they
    /// come from.
    pub(crate) fn coupled(&self, rows: &mut RowsMut<'_>, stages: &mut dyn Stages) -> Result<Vec<usize>> {
        let (mut path, mut next) = (Path::default(), Some(0));
        while let Some(row) = next {
            let token = self.emit(row, None, &mut path, rows, stages)?;
            next = row_after(&self.tree, self.sequence.params(), row, token);
            if next.is_some() {
                path.follow(self.sequence, token);
            }
        }
        Ok(path.rows)
    }

    /// Judges drafts by probabilities; the rest is as in [`Walk::coupled`]. `probs` are the drafter's rows of
    /// the batch.
    pub(crate) fn judged(
        &self,
        judgement: Judgement,
        probs: Option<&[f32]>,
        level: Level,
        rows: &mut RowsMut<'_>,
        stages: &mut dyn Stages,
    ) -> Result<Vec<usize>> {
        let vocab = self.sequence.vocab();
        let workspace = &mut Workspace::new(level)?;
        let probs = probs.map(|probs| &probs[self.start * vocab..][..self.tree.rows() * vocab]);
        let mut path = Path::default();
        if judgement == Judgement::Block {
            for (row, token) in self.block(probs, workspace, stages)?.into_iter().enumerate() {
                if row > 0 {
                    path.follow(self.sequence, self.tree.drafts[row - 1]);
                }
                self.emit(row, Some(token), &mut path, rows, stages)?;
                if stops(self.sequence.params(), token) {
                    break;
                }
            }
            return Ok(path.rows);
        }
        let mut target = vec![0.0; vocab];
        let mut next = Some(0);
        while let Some(row) = next {
            let params = self.sequence.params();
            let (token, after) = match self.batch.forced(self.start + row) {
                Some(id) => (id as i32, row_after(&self.tree, params, row, id as i32)),
                None => {
                    let task = self.task(row, &path);
                    self.probabilities(row, &task, &mut target, stages)?;
                    let nodes: Vec<usize> = self.tree.children(row).collect();
                    let drafts: Vec<i32> = nodes.iter().map(|node| self.tree.drafts[*node]).collect();
                    let siblings = Siblings {
                        drafts: &drafts,
                        target_probs: &target,
                        draft_probs: probs.map(|probs| &probs[row * vocab..][..vocab]),
                        key: Key { seed: task.seed, position: task.position, draw: task.draw },
                    };
                    match workspace.judge_siblings(&siblings, judgement)? {
                        Judged::Drawn(token) => (token, None),
                        Judged::Accepted(number) => {
                            let token = drafts[number];
                            (token, (!stops(params, token)).then_some(nodes[number] + 1))
                        }
                    }
                }
            };
            self.emit(row, Some(token), &mut path, rows, stages)?;
            next = after;
            if next.is_some() {
                path.follow(self.sequence, token);
            }
        }
        Ok(path.rows)
    }

    /// Returns the tokens that a block emits: the probabilities of all its rows, then one judgement.
    fn block(
        &self,
        probs: Option<&[f32]>,
        workspace: &mut Workspace,
        stages: &mut dyn Stages,
    ) -> Result<Vec<i32>> {
        let (vocab, drafts) = (self.sequence.vocab(), self.tree.drafts);
        let mut target = vec![0.0; self.tree.rows() * vocab];
        let mut path = Path::default();
        for (row, target) in target.chunks_mut(vocab).enumerate() {
            self.probabilities(row, &self.task(row, &path), target, stages)?;
            path.rows.push(row);
            // After a draft that is no token nothing is judged.
            let is_token = |draft: &&i32| usize::try_from(**draft).is_ok_and(|id| id < vocab);
            let Some(draft) = drafts.get(row).filter(is_token) else { break };
            path.follow(self.sequence, *draft);
        }
        let Key { seed, position, draw } = self.key();
        let trial =
            Trial { tree: self.tree, draft_probs: probs, target_probs: &target, vocab, seed, position, draw };
        Ok(workspace.judge(&trial, Judgement::Block)?.tokens)
    }

    /// Emits a token from a row, the drawn one or one that was decided on, with all that a step says of it.
    fn emit(
        &self,
        row: usize,
        token: Option<i32>,
        path: &mut Path,
        rows: &mut RowsMut<'_>,
        stages: &mut dyn Stages,
    ) -> Result<i32> {
        let task = self.task(row, path);
        let decided = token.and_then(|token| u32::try_from(token).ok()).map(Forced::known);
        let task = Task { forced: task.forced.or(decided), ..task };
        let (from, to) = (self.start + row, self.start + path.rows.len());
        let token = rows.carry(self.logits.row(from), to, &task, self.batch.hook(from), stages)?;
        path.rows.push(row);
        Ok(token)
    }

    fn key(&self) -> Key {
        Key { seed: self.sequence.seed(), position: self.sequence.position(), draw: self.sequence.draw() }
    }

    /// Returns the task of a row after a path.
    fn task<'b>(&'b self, row: usize, path: &'b Path) -> Task<'b> {
        let from = self.start + row;
        let task =
            self.sequence.task(self.logits.kind(), self.batch.masks.row(from), self.batch.forced(from));
        Task {
            prepared: self.greedy.unwrap_or(task.prepared),
            history: path.history.as_ref().unwrap_or(task.history),
            position: task.position.wrapping_add(path.rows.len() as u32),
            ..task
        }
    }

    /// Writes the probabilities that a row's token would be drawn by.
    fn probabilities(
        &self,
        row: usize,
        task: &Task<'_>,
        out: &mut [f32],
        stages: &mut dyn Stages,
    ) -> Result<()> {
        let from = self.start + row;
        let logits = self.logits.row(from);
        match self.batch.hook(from) {
            Some(hook) => stages.probabilities(logits, task, Some(&mut |z: &mut [f32]| hook(z)), out),
            None => stages.probabilities(logits, task, None, out),
        }
    }
}

impl Path {
    /// Goes on after the token of the last row.
    fn follow(&mut self, sequence: &Sequence, token: i32) {
        self.history.get_or_insert_with(|| sequence.history().clone()).push(token as u32);
    }
}
