//! Trees of draft tokens, chains among them, judged by probabilities (rules S4 to S7).

use gumball_cpu::Draw;
use gumball_spec::verify::by_probabilities::{Judgement, Trial, check_accepted_alone};
use gumball_spec::verify::{DraftTree, MAX_DRAFTS};
use gumball_spec::{Error, MAX_VOCAB, NONE, Result, Status, memory};

use super::MEMORY;
use super::arrays::{PerRowMut, host_column};
use super::draws::{Draws, HostKeys};
use super::host::Host;
use crate::device::{DeviceIntMatrix, DeviceIntMatrixMut, DraftTreeRows};

/// A batch of trees of n drafts each, and what to write of them.
///
/// n is in 0..=64, but without a limit for chains that are judged by rejection with `draft_probs`.
///
/// `tokens`, `[trees, n + 1]`, receives the accepted drafts, the token drawn after them, then [`NONE`].
/// `rows`, of the same shape, receives the rows that these tokens come from, then -1: 0 first, and i + 1 for
/// draft i. The other shapes are as [`HostDraftTrees`] names them.
#[derive(Debug)]
pub enum DraftTrees<'a> {
    /// Arrays in the host's memory.
    Host {
        /// The arrays to read.
        trees: HostDraftTrees<'a>,
        /// The tokens to write.
        tokens: &'a mut [i32],
        /// The rows to write.
        rows: Option<&'a mut [i32]>,
    },
    /// Arrays in a device's memory.
    Device {
        /// The probabilities that the drafts were drawn from, if the drafter has some. Thresholds read none.
        draft_probs: Option<DraftTreeRows<'a>>,
        /// The draft tokens.
        draft_token_ids: DeviceIntMatrix<'a>,
        /// Their parents, of i32 or i64. A tree whose parents are none of those that
        /// [`HostDraftTrees::parents`] allows accepts no draft, and has the status [`Status::NO_TREE`].
        parents: Option<DeviceIntMatrix<'a>>,
        /// The target's probabilities.
        target_probs: DraftTreeRows<'a>,
        /// The emitted tokens.
        tokens: DeviceIntMatrixMut<'a>,
        /// Their rows, of i32.
        rows: Option<DeviceIntMatrixMut<'a>>,
    },
}

/// Trees of n drafts each in the host's memory, whose rows follow each other without gaps.
#[derive(Clone, Copy, Debug)]
pub struct HostDraftTrees<'a> {
    /// The number of trees.
    pub trees: usize,
    /// The number of drafts in a tree, n.
    pub drafts: usize,
    /// The number of ids in a row.
    pub vocab: usize,
    /// The probabilities that the drafts were drawn from: `[trees, n, vocab]`, where row 0 is the root's and
    /// row i + 1 the one after draft i, or `[trees, n + 1, vocab]`. Rows without children are not read, so
    /// the last one never is, and none is by thresholds. `None`: the drafter has no probabilities.
    pub draft_probs: Option<&'a [f32]>,
    /// The draft tokens: `[trees, n]`. An id outside the vocabulary, such as [`NONE`], was not drawn: it is
    /// never accepted, and can fill trees of fewer drafts.
    pub draft_token_ids: &'a [i32],
    /// The parent of each draft: `[trees, n]`, -1 for the root, or the number of a draft before it. `None`:
    /// chains, where each draft follows the one before it.
    pub parents: Option<&'a [i32]>,
    /// The target's probabilities: `[trees, n + 1, vocab]`.
    pub target_probs: &'a [f32],
}

/// Where the counts and statuses of trees are written, each with one entry per tree; `default()` writes none.
#[derive(Debug, Default)]
pub struct DraftTreeCounts<'a> {
    /// The number of accepted drafts; the token drawn after them is not counted.
    pub accepted: Option<PerRowMut<'a, u32>>,
    /// The number of drafts that would be accepted if each were judged alone, those after the first rejected
    /// one included. For chains that are judged by rejection with `draft_probs`.
    pub accepted_alone: Option<PerRowMut<'a, u32>>,
    /// The status of the rows from which the last token was drawn.
    pub statuses: Option<PerRowMut<'a, Status>>,
    /// Whether the two counts are added to the values in memory; otherwise they replace them.
    pub adds: bool,
}

impl Host {
    /// Judges trees; see [`Operators::judge`](super::Operators::judge).
    pub(super) fn judge(
        &self,
        batch: &HostDraftTrees<'_>,
        judgement: Judgement,
        draws: &Draws<'_>,
        (tokens, rows): (&mut [i32], Option<&mut [i32]>),
        counts: DraftTreeCounts<'_>,
    ) -> Result<()> {
        judgement.check()?;
        let are_chains = judgement.is_of_chains(batch.parents.is_some(), batch.draft_probs.is_some());
        let written = [("tokens", Some(tokens.len())), ("rows", rows.as_ref().map(|rows| rows.len()))];
        batch.check(are_chains, written)?;
        check_accepted_alone(counts.accepted_alone.is_some(), are_chains)?;
        let trees = batch.trees;
        let accepted = host_column("accepted", counts.accepted, trees)?;
        let accepted_alone = host_column("accepted_alone", counts.accepted_alone, trees)?;
        let statuses = host_column("statuses", counts.statuses, trees)?;
        let keys = draws.on_host(trees)?;
        for i in 0..if are_chains { 0 } else { trees } {
            let tree = batch.trial(i, &keys).tree;
            let check = if judgement == Judgement::Block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_tree(error, i))?;
        }
        if trees == 0 {
            return Ok(());
        }
        let width = batch.drafts + 1;
        let mut rows = rows.map(|rows| rows.chunks_mut(width));
        let places = tokens.chunks_mut(width).enumerate();
        let places = places.map(|(i, tokens)| (i, tokens, rows.as_mut().and_then(Iterator::next)));
        let judged = self.over(memory::collected(MEMORY, places)?, |workspace, (i, tokens, rows)| {
            let emitted = workspace.judge(&batch.trial(i, &keys), judgement)?;
            let (written, rest) = tokens.split_at_mut(emitted.tokens.len());
            written.copy_from_slice(&emitted.tokens);
            rest.fill(NONE);
            let last = written.last_mut().expect("a token behind the drafts");
            *last = draws.written(*last);
            if let Some(rows) = rows {
                let (written, rest) = rows.split_at_mut(emitted.rows.len());
                written.iter_mut().zip(&emitted.rows).for_each(|(to, row)| *to = *row as i32);
                rest.fill(-1);
            }
            Ok((emitted.rows.len() as u32 - 1, emitted.accepted_alone.unwrap_or(0), emitted.status))
        })?;
        let write = |to: &mut u32, count: u32| *to = if counts.adds { to.wrapping_add(count) } else { count };
        accepted.into_iter().flatten().zip(&judged).for_each(|(to, judged)| write(to, judged.0));
        accepted_alone.into_iter().flatten().zip(&judged).for_each(|(to, judged)| write(to, judged.1));
        statuses.into_iter().flatten().zip(&judged).for_each(|(to, judged)| *to = judged.2);
        Ok(())
    }
}

impl<'a> HostDraftTrees<'a> {
    /// Checks the lengths of the arrays, and of those to write.
    fn check(&self, are_chains: bool, written: [(&'static str, Option<usize>); 2]) -> Result<()> {
        let Self { trees, drafts: n, vocab, .. } = *self;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        if n > MAX_DRAFTS && !are_chains {
            let allowed = format!("in 0..={MAX_DRAFTS}, but for chains by rejection with draft_probs");
            return Err(Error::out_of_range("drafts", n, allowed));
        }
        let times = |a: usize, b: usize| a.saturating_mul(b);
        let (nodes, rows) = (times(trees, n), times(trees, n.saturating_add(1)));
        let shape = format!("for {trees} trees of {n} drafts and {vocab} ids");
        let of_drafter = [times(nodes, vocab), times(rows, vocab)];
        if let Some(length) = self.draft_probs.map(<[f32]>::len).filter(|length| !of_drafter.contains(length))
        {
            let allowed = format!("{} or {} {shape}", of_drafter[0], of_drafter[1]);
            return Err(Error::length("draft_probs", length, allowed));
        }
        let lengths = [
            ("draft_token_ids", Some(self.draft_token_ids.len()), nodes),
            ("parents", self.parents.map(<[i32]>::len), nodes),
            ("target_probs", Some(self.target_probs.len()), times(rows, vocab)),
        ];
        let written = written.map(|(name, length)| (name, length, rows));
        for (name, length, wanted) in lengths.into_iter().chain(written) {
            if let Some(length) = length.filter(|length| *length != wanted) {
                return Err(Error::length(name, length, format!("{wanted} {shape}")));
            }
        }
        Ok(())
    }

    /// Returns a tree with the keys of its draw.
    fn trial(&self, i: usize, keys: &HostKeys<'_>) -> Trial<'a> {
        let Self { drafts: n, vocab, trees, .. } = *self;
        let (nodes, numbers) = (i * n..(i + 1) * n, i * (n + 1) * vocab..(i + 1) * (n + 1) * vocab);
        let Draw { seed, position, draw } = keys.of(i);
        Trial {
            tree: DraftTree {
                drafts: &self.draft_token_ids[nodes.clone()],
                parents: self.parents.map(|parents| &parents[nodes]),
            },
            draft_probs: self
                .draft_probs
                .map(|probs| &probs[i * (probs.len() / trees)..][..probs.len() / trees]),
            target_probs: &self.target_probs[numbers],
            vocab,
            seed,
            position,
            draw,
        }
    }
}

/// Says in an error which tree it is about.
fn in_tree(error: Error, tree: usize) -> Error {
    match error {
        Error::OutOfRange { parameter, value, allowed } => {
            Error::OutOfRange { parameter, value: format!("{value} of tree {tree}"), allowed }
        }
        error => error,
    }
}
