//! Drafts of a request judged by the probabilities of its rows (rules S5 to S7 in a pool).
//!
//! Here each row that matters is sampled for its probabilities (P4), judged, and sampled once more with the
//! token that was decided on as a known one, which gives all that is said of it.

use crate::error::{Error, Result};
use crate::oracle::Outcome;
use crate::request::{Forced, Request};
use crate::row::NONE;

use super::by_probabilities::{Decision, Judgement, Last, Siblings, Trial, check_draft_probs};
use super::coupled::{RowEdits, TargetRow, Walk, check, check_judged, coupled, row_after, stops};
use super::tree::DraftTree;
use super::weights::{Key, Naive, Weigh};

/// Drafts, and the drafter's rows of probabilities if it has some: one for each row of the target, of which
/// rows without a draft after them are not read.
#[derive(Clone, Copy, Debug)]
pub struct Drafts<'a> {
    /// The drafts.
    pub tree: DraftTree<'a>,
    /// The rows, one after the other.
    pub probs: Option<&'a [f32]>,
}

/// Walks from the root to the row where no draft is accepted. A request without drafts takes a step.
///
/// `request` is the state before the first draft; its `mask` and `forced` are not read, since every row has
/// its own.
///
/// # Errors
/// - The errors of [`coupled`] and of [`Judgement::check`].
/// - [`Error::Conflict`] for probabilities of the drafter that are not read, and for a forced token beside a
///   block.
/// - [`Error::Length`] unless the drafter has as many rows as the target.
/// - [`Error::OutOfRange`] for a block that is no chain.
pub fn judged(
    request: &Request<'_>,
    drafts: &Drafts<'_>,
    rows: &[TargetRow<'_>],
    judgement: Judgement,
    edits: Option<RowEdits<'_>>,
) -> Result<Walk> {
    let Drafts { tree, probs } = *drafts;
    check(request, &tree, rows)?;
    judgement.check()?;
    check_judged(request.params, tree.drafts.len())?;
    let vocab = rows[0].row.vocab();
    if let Some(probs) = probs {
        check_draft_probs("draft_probs", Some(judgement))?;
        if probs.len() != rows.len() * vocab {
            let wanted = format!("{}, a row for each row of the target", rows.len() * vocab);
            return Err(Error::length("draft_probs", probs.len(), wanted));
        }
    }
    if judgement == Judgement::Block {
        tree.check_chain()?;
        if rows.len() > 1 && rows.iter().any(|row| row.forced.is_some()) {
            let reason = "a block is judged as a whole; force tokens in another mode, or without drafts";
            return Err(Error::Conflict { parameter: "forced", other: "block", reason });
        }
    }
    if tree.drafts.is_empty() {
        return coupled(request, &tree, rows, edits);
    }
    let mut walker = Walker { request, rows, edits, walk: Walk { rows: Vec::new(), outcomes: Vec::new() } };
    if judgement == Judgement::Block {
        let mut target = Vec::with_capacity(rows.len() * vocab);
        for row in 0..rows.len() {
            let is_token = |draft: &i32| usize::try_from(*draft).is_ok_and(|id| id < vocab);
            let path: Vec<u32> =
                tree.drafts[..row].iter().filter(|id| is_token(id)).map(|id| *id as u32).collect();
            // After a draft that is no token nothing is judged.
            let is_judged = path.len() == row;
            let of_row = is_judged.then(|| walker.sample(row, &path, None)).transpose()?;
            target.extend(of_row.map_or_else(|| vec![0.0; vocab], |outcome| outcome.probabilities()));
        }
        let Request { seed, position, draw, .. } = *request;
        let trial = Trial { tree, draft_probs: probs, target_probs: &target, vocab, seed, position, draw };
        for (row, token) in trial.judge(judgement)?.tokens.into_iter().enumerate() {
            walker.emit(row, token)?;
            if stops(request.params, token) {
                break;
            }
        }
        return Ok(walker.walk);
    }
    let mut next = Some(0);
    while let Some(row) = next {
        let (token, child) = walker.judge(row, drafts, judgement)?;
        walker.emit(row, token)?;
        next = child.filter(|_| token != NONE && !stops(request.params, token));
    }
    Ok(walker.walk)
}

/// A walk on its way.
struct Walker<'a, 'h> {
    request: &'a Request<'a>,
    rows: &'a [TargetRow<'a>],
    edits: Option<RowEdits<'h>>,
    walk: Walk,
}

impl Walker<'_, '_> {
    /// Samples a row after the tokens on the path to it.
    fn sample(&mut self, row: usize, path: &[u32], forced: Option<Forced>) -> Result<Outcome> {
        let output = [self.request.output, path].concat();
        let position = self.request.position.wrapping_add(path.len() as u32);
        let request =
            Request { output: &output, position, mask: self.rows[row].mask, forced, ..*self.request };
        self.rows[row].sample(row, &request, &mut self.edits)
    }

    /// Returns the tokens that were emitted.
    fn path(&self) -> Vec<u32> {
        self.walk.tokens().iter().map(|token| *token as u32).collect()
    }

    /// Decides what the next row of the walk emits, and which row is next if the walk goes on.
    fn judge(
        &mut self,
        row: usize,
        drafts: &Drafts<'_>,
        judgement: Judgement,
    ) -> Result<(i32, Option<usize>)> {
        let tree = &drafts.tree;
        if let Some(id) = self.rows[row].forced {
            return Ok((id as i32, row_after(tree, self.request.params, row, id as i32)));
        }
        let path = self.path();
        let target = self.sample(row, &path, None)?.probabilities();
        let nodes: Vec<usize> = tree.children(row).collect();
        let siblings: Vec<i32> = nodes.iter().map(|node| tree.drafts[*node]).collect();
        let Request { seed, position, draw, .. } = *self.request;
        let key = Key { seed, position, draw }.ahead(path.len());
        let siblings = Siblings {
            drafts: &siblings,
            target_probs: &target,
            draft_probs: drafts.probs.map(|probs| &probs[row * target.len()..][..target.len()]),
            key,
        };
        Ok(match siblings.judge(judgement, &mut Naive) {
            Decision::Accepted(number) => (siblings.drafts[number], Some(nodes[number] + 1)),
            Decision::Ended(Last { weights, residual }) => {
                (Naive.draw(&weights, key, residual).map_or(NONE, |id| id as i32), None)
            }
        })
    }

    /// Emits a token from a row.
    fn emit(&mut self, row: usize, token: i32) -> Result<()> {
        let path = self.path();
        let known = u32::try_from(token).ok().map(Forced::known);
        let outcome = self.sample(row, &path, self.rows[row].forced.map(Forced::by_caller).or(known))?;
        self.walk.rows.push(row);
        self.walk.outcomes.push(outcome);
        Ok(())
    }
}
