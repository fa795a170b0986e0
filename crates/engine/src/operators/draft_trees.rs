//! Trees of draft tokens, judged by probabilities (rules S5 to S7).

use gumball_cpu::Draw;
use gumball_spec::verify::by_probabilities::{Judgement, Trial};
use gumball_spec::verify::{DraftTree, MAX_DRAFTS};
use gumball_spec::{Error, MAX_VOCAB, NONE, Result, Status, memory};

use super::MEMORY;
use super::arrays::{PerRowMut, host_column};
use super::draws::Draws;
use super::host::Host;
#[cfg(feature = "cuda")]
use gumball_cuda::{DeviceIntMatrix, DeviceIntMatrixMut, DraftChainRows};

/// A batch of trees of n drafts each, n in 0..=64, and what to write of them.
///
/// `tokens`, `[trees, n + 1]`, receives the accepted drafts, the token drawn behind them, then [`NONE`].
/// `rows`, of the same shape, receives the rows that these tokens come from, then -1: 0 first, and i + 1 for draft i. The
/// other shapes are those that [`HostDraftTrees`] names.
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
    #[cfg(feature = "cuda")]
    Device {
        /// The probabilities that the drafts were drawn from, if the drafter has some. Thresholds read none.
        draft_probs: Option<DraftChainRows<'a>>,
        /// The draft tokens.
        draft_token_ids: DeviceIntMatrix<'a>,
        /// Their parents, of i32 or i64. A tree whose parents are none of those that [`HostDraftTrees::parents`] allows
        /// accepts no draft, and has the status [`Status::NO_TREE`].
        parents: Option<DeviceIntMatrix<'a>>,
        /// The target's probabilities.
        target_probs: DraftChainRows<'a>,
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
    /// The number of drafts in a tree, n; in 0..=64.
    pub drafts: usize,
    /// The number of ids in a row.
    pub vocab: usize,
    /// The probabilities that the drafts were drawn from: `[trees, n + 1, vocab]`. Row 0 is the root's, row i + 1 that behind
    /// draft i; rows without children are not read, and none is by thresholds. `None`: the drafter has no probabilities.
    pub draft_probs: Option<&'a [f32]>,
    /// The draft tokens: `[trees, n]`. An id outside the vocabulary, such as [`NONE`], is never accepted, and can
    /// fill trees of fewer drafts.
    pub draft_token_ids: &'a [i32],
    /// The parent of each draft: `[trees, n]`, -1 for the root, or the number of a draft before it. `None`: each draft
    /// follows the one before it.
    pub parents: Option<&'a [i32]>,
    /// The target's probabilities: `[trees, n + 1, vocab]`.
    pub target_probs: &'a [f32],
}

/// Where the counts and statuses of trees are written, each with one entry per tree; `default()` writes none.
#[derive(Debug, Default)]
pub struct DraftTreeCounts<'a> {
    /// The number of accepted drafts; the token drawn behind them is not counted.
    pub accepted: Option<PerRowMut<'a, u32>>,
    /// The status of the rows from which the last token was drawn.
    pub statuses: Option<PerRowMut<'a, Status>>,
}

impl Host {
    /// Judges trees; see [`Operators::tree_speculative_sampling`](super::Operators::tree_speculative_sampling).
    pub(super) fn judge(
        &self,
        batch: &HostDraftTrees<'_>,
        judgement: Judgement,
        draws: &Draws<'_>,
        (tokens, mut rows): (&mut [i32], Option<&mut [i32]>),
        counts: DraftTreeCounts<'_>,
    ) -> Result<()> {
        judgement.check()?;
        batch.check([("tokens", Some(tokens.len())), ("rows", rows.as_ref().map(|rows| rows.len()))])?;
        let trees = batch.trees;
        let accepted = host_column("accepted", counts.accepted, trees)?;
        let statuses = host_column("statuses", counts.statuses, trees)?;
        draws.check_host(trees)?;
        for i in 0..trees {
            let tree = batch.trial(i, draws).tree;
            let check = if judgement == Judgement::Block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_tree(error, i))?;
        }
        let width = batch.drafts + 1;
        let items = memory::collected(MEMORY, tokens.chunks_mut(width).enumerate())?;
        let judged = self.over(items, |workspace, (i, tokens)| {
            let emitted = workspace.judge(&batch.trial(i, draws), judgement)?;
            let (written, rest) = tokens.split_at_mut(emitted.tokens.len());
            written.copy_from_slice(&emitted.tokens);
            rest.fill(NONE);
            let last = written.last_mut().expect("a token behind the drafts");
            *last = draws.written(*last);
            Ok(emitted)
        })?;
        if let Some(rows) = &mut rows {
            for (rows, emitted) in rows.chunks_mut(width).zip(&judged) {
                let (written, rest) = rows.split_at_mut(emitted.rows.len());
                written.iter_mut().zip(&emitted.rows).for_each(|(to, row)| *to = *row as i32);
                rest.fill(-1);
            }
        }
        for (to, emitted) in accepted.into_iter().flatten().zip(&judged) {
            *to = emitted.rows.len() as u32 - 1;
        }
        for (to, emitted) in statuses.into_iter().flatten().zip(&judged) {
            *to = emitted.status;
        }
        Ok(())
    }
}

impl<'a> HostDraftTrees<'a> {
    /// Checks the lengths of the arrays, and of those to write.
    fn check(&self, written: [(&'static str, Option<usize>); 2]) -> Result<()> {
        let Self { trees, drafts: n, vocab, .. } = *self;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        if n > MAX_DRAFTS {
            return Err(Error::out_of_range("drafts", n, format!("in 0..={MAX_DRAFTS}")));
        }
        let times = |a: usize, b: usize| a.saturating_mul(b);
        let (nodes, rows) = (times(trees, n), times(trees, n + 1));
        let lengths = [
            ("draft_probs", self.draft_probs.map(<[f32]>::len), times(rows, vocab)),
            ("draft_token_ids", Some(self.draft_token_ids.len()), nodes),
            ("parents", self.parents.map(<[i32]>::len), nodes),
            ("target_probs", Some(self.target_probs.len()), times(rows, vocab)),
        ];
        let written = written.map(|(name, length)| (name, length, rows));
        for (name, length, wanted) in lengths.into_iter().chain(written) {
            if let Some(length) = length.filter(|length| *length != wanted) {
                let allowed = format!("{wanted} for {trees} trees of {n} drafts and {vocab} ids");
                return Err(Error::length(name, length, allowed));
            }
        }
        Ok(())
    }

    /// Returns a tree with the keys of its draw.
    fn trial(&self, i: usize, draws: &Draws<'_>) -> Trial<'a> {
        let Self { drafts: n, vocab, .. } = *self;
        let (nodes, numbers) = (i * n..(i + 1) * n, i * (n + 1) * vocab..(i + 1) * (n + 1) * vocab);
        let Draw { seed, position, draw } = draws.of(i);
        Trial {
            tree: DraftTree {
                drafts: &self.draft_token_ids[nodes.clone()],
                parents: self.parents.map(|parents| &parents[nodes]),
            },
            draft_probs: self.draft_probs.map(|probs| &probs[numbers.clone()]),
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
