//! Trees and blocks of drafts judged by probabilities: rejection (S5), whole blocks (S6), thresholds (S7).
//!
//! Each rule decides at a row which of its children stands, with coins of its own tag, and where none does
//! from which weights the last token is drawn. A backend brings its own way of summing and drawing
//! ([`Weigh`]), and may have the rows of the target one by one ([`Siblings`]).

use crate::error::{Error, Result};
use crate::filter::fraction_to_u32;
use crate::num::Tag;
use crate::row::{Kind, NONE, Status};
use crate::shape::check_vocab;

use super::tree::DraftTree;
use super::weights::{Key, Naive, Weigh, counted};
use super::{DraftChain, Verified};

/// Drafts with the rows of probabilities that they are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The drafts.
    pub tree: DraftTree<'a>,
    /// The rows that the drafter drew from: the root's, then the row after each draft; the last, after which
    /// no draft can be, may be left out. Rows without children are not read. `None`: the drafter has no
    /// probabilities.
    pub draft_probs: Option<&'a [f32]>,
    /// The target's rows: the root's, then one for each draft.
    pub target_probs: &'a [f32],
    /// The number of ids in a row.
    pub vocab: usize,
    /// The seed.
    pub seed: u64,
    /// The number of tokens before the first draft, modulo 2^32.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// How drafts are judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Judgement {
    /// Sibling after sibling by rejection (S5).
    Rejection,
    /// A chain as a whole (S6).
    Block,
    /// By the probability of a draft, and of it and the siblings before it (S7).
    Threshold {
        /// A draft of at least this probability is accepted; in 0..=1.
        single: f32,
        /// The factor of the coin when it is compared with the sum of probabilities; in 0..=1.
        acc: f32,
    },
}

/// The rows that were gone through, and the token of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The numbers of the rows: 0 first, then the rows of the accepted drafts.
    pub rows: Vec<usize>,
    /// The accepted drafts and the token drawn last, which is [`NONE`] if its row has none.
    pub tokens: Vec<i32>,
    /// The status of the rows that the last token was drawn from.
    pub status: Status,
    /// How many drafts would be accepted if each were judged alone, drafts after the last row included; of a
    /// [`Trial::chain`].
    pub accepted_alone: Option<u32>,
}

impl Emitted {
    /// Says what became of a chain, whose places for tokens are given.
    #[must_use]
    pub fn of_chain(mut tokens: Vec<i32>, verified: Verified) -> Self {
        let Verified { accepted, accepted_alone, status } = verified;
        let rows: Vec<usize> = (0..=accepted as usize).collect();
        tokens.truncate(rows.len());
        Self { rows, tokens, status, accepted_alone: Some(accepted_alone) }
    }
}

/// The weights that the last token is drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Last {
    /// The weights.
    pub weights: Vec<f32>,
    /// Whether a draft was refused, and weights taken away for it.
    pub residual: bool,
}

/// Checks that drafts whose drafter has probabilities, handed over as `parameter`, are judged by a rule that
/// reads these. `None`: they are not judged by probabilities at all.
///
/// # Errors
/// - [`Error::Conflict`] if it does not.
pub fn check_draft_probs(parameter: &'static str, judgement: Option<Judgement>) -> Result<()> {
    if judgement.is_some_and(Judgement::reads_draft_probs) {
        return Ok(());
    }
    let reason = "only rejection and block read the drafter's probabilities; leave them out";
    Err(Error::Conflict { parameter, other: "mode", reason })
}

/// Checks that a caller who asks how many drafts would be accepted alone has a chain that S4 judges.
///
/// # Errors
/// - [`Error::Conflict`] for other drafts.
pub fn check_accepted_alone(is_asked: bool, is_chain: bool) -> Result<()> {
    if !is_asked || is_chain {
        return Ok(());
    }
    let reason = "only chains that are judged by rejection, with the drafter's probabilities and without parents, have this count";
    Err(Error::Conflict { parameter: "accepted_alone", other: "the drafts", reason })
}

/// The decision of a row about its children.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The child of this number among its siblings is accepted.
    Accepted(usize),
    /// None is.
    Ended(Last),
}

/// A row and the drafts that it judges one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Siblings<'a> {
    /// The drafts; one outside the vocabulary was not drawn.
    pub drafts: &'a [i32],
    /// The target's row.
    pub target_probs: &'a [f32],
    /// The row that the drafter drew from, if it has probabilities.
    pub draft_probs: Option<&'a [f32]>,
    /// Seed, position of the row, and draw index.
    pub key: Key,
}

impl<'a> Trial<'a> {
    /// Returns the drafts as a chain that S4 judges: by rejection, without parents, with the drafter's
    /// probabilities. `None` for other drafts.
    #[must_use]
    pub fn chain(&self, judgement: Judgement) -> Option<DraftChain<'a>> {
        let Self { tree: DraftTree { drafts, parents }, draft_probs, target_probs, .. } = *self;
        let Self { vocab, seed, position, draw, .. } = *self;
        if !judgement.is_of_chains(parents.is_some(), draft_probs.is_some()) {
            return None;
        }
        let (all, read) = (draft_probs?, drafts.len().saturating_mul(vocab));
        let draft_probs = if all.len().checked_sub(read) == Some(vocab) { &all[..read] } else { all };
        Some(DraftChain { drafts, draft_probs, target_probs, vocab, seed, position, draw })
    }

    /// Judges the drafts: a [`Trial::chain`] by [`DraftChain::verify`], all others as trees.
    ///
    /// # Errors
    /// - For a chain the errors of [`DraftChain::check`].
    /// - The errors of [`DraftTree::check`], and for [`Judgement::Block`] of [`DraftTree::check_chain`].
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, or a threshold outside 0..=1.
    /// - [`Error::Length`] if there is not a row for the root and one for each draft.
    pub fn judge(&self, judgement: Judgement) -> Result<Emitted> {
        match self.chain(judgement) {
            Some(chain) => chain.verify().map(|(tokens, verified)| Emitted::of_chain(tokens, verified)),
            None => self.judge_with(judgement, &mut Naive),
        }
    }

    /// Judges the drafts as a tree, by a backend's way of summing and drawing.
    ///
    /// # Errors
    /// The errors of [`Trial::judge`].
    pub fn judge_with(&self, judgement: Judgement, weigh: &mut dyn Weigh) -> Result<Emitted> {
        self.check()?;
        judgement.check()?;
        let (rows, last) = if judgement == Judgement::Block {
            self.tree.check_chain()?;
            self.block(weigh)
        } else {
            self.walk(judgement, weigh)
        };
        let end = rows[rows.len() - 1];
        let mut status = Status::default();
        let mut read = |row: &[f32]| row.iter().for_each(|p| status.insert(Kind::Probabilities.status(*p)));
        read(self.target(end));
        let thresholds = matches!(judgement, Judgement::Threshold { .. });
        if let Some(probs) = self.draft(end).filter(|_| last.residual && !thresholds) {
            read(probs);
        }
        let mut tokens: Vec<i32> = rows[1..].iter().map(|row| self.tree.drafts[row - 1]).collect();
        let token = weigh.draw(&last.weights, self.key().ahead(tokens.len()), last.residual);
        if token.is_none() {
            status.insert(Status::EMPTY);
        }
        tokens.push(token.map_or(NONE, |id| id as i32));
        Ok(Emitted { rows, tokens, status, accepted_alone: None })
    }

    /// Goes from row to row while one of the row's children is accepted.
    fn walk(&self, judgement: Judgement, weigh: &mut dyn Weigh) -> (Vec<usize>, Last) {
        let mut rows = vec![0];
        loop {
            let depth = rows.len() - 1;
            let nodes: Vec<usize> = self.tree.children(rows[depth]).collect();
            let drafts: Vec<i32> = nodes.iter().map(|node| self.tree.drafts[*node]).collect();
            let siblings = Siblings {
                drafts: &drafts,
                target_probs: self.target(rows[depth]),
                draft_probs: self.draft(rows[depth]),
                key: self.key().ahead(depth),
            };
            match siblings.judge(judgement, weigh) {
                Decision::Accepted(number) => rows.push(nodes[number] + 1),
                Decision::Ended(last) => return (rows, last),
            }
        }
    }

    /// Judges a chain: the longest beginning of it that its coin lets stand (S6).
    fn block(&self, weigh: &mut dyn Weigh) -> (Vec<usize>, Last) {
        let q_of = |node: usize| {
            let id = self.id(node)?;
            let q = self.draft(node).map_or(1.0, |q| counted(q[id]));
            (q > 0.0).then_some((id, q))
        };
        let drafts: Vec<_> = (0..self.tree.drafts.len()).map_while(q_of).collect();
        let n = drafts.len();
        let (mut ratio, mut accepted, mut residual) = (1.0f32, 0, self.residual(0, 1.0));
        for (node, &(id, q)) in drafts.iter().enumerate() {
            ratio = (ratio * counted(self.target(node)[id]) / q).min(1.0);
            let (u, row) = (self.key().uniform(node as u32, Tag::Block), node + 1);
            if row == n {
                accepted = if ratio == 1.0 || u < ratio { n } else { accepted };
                break;
            }
            let weights = self.residual(row, ratio);
            let sum = match self.draft(row) {
                Some(_) => weigh.sum(&weights),
                None => (ratio * (1.0 - counted(self.target(row)[drafts[row].0]))).max(0.0),
            };
            if sum > 0.0 && (ratio == 1.0 || u * (sum + (1.0 - ratio)) < sum) {
                (accepted, residual) = (row, weights);
            }
        }
        let whole = accepted == n || residual.iter().all(|w| *w <= 0.0);
        let weights = if whole { counted_row(self.target(accepted)) } else { residual };
        ((0..=accepted).collect(), Last { weights, residual: accepted < n })
    }

    /// Returns what the target has more of than the drafter at a row of a chain, its own part being `ratio`;
    /// of a drafter without probabilities all but the draft.
    fn residual(&self, row: usize, ratio: f32) -> Vec<f32> {
        let mut weights = counted_row(self.target(row));
        match self.draft(row) {
            Some(probs) => {
                let both = weights.iter_mut().zip(probs);
                both.for_each(|(p, q)| *p = (ratio * *p - counted(*q)).max(0.0));
            }
            None => self.tree.children(row).filter_map(|node| self.id(node)).for_each(|id| weights[id] = 0.0),
        }
        weights
    }

    fn check(&self) -> Result<()> {
        check_vocab(self.vocab)?;
        self.tree.check()?;
        let (rows, vocab) = (self.tree.rows(), self.vocab);
        let wanted = |rows: usize| format!("{} for {rows} rows of {vocab} ids", rows * vocab);
        match self.draft_probs.map(<[f32]>::len) {
            Some(length) if length != rows * vocab && length != (rows - 1) * vocab => {
                let allowed = format!("{}, or {vocab} less without the last row", wanted(rows));
                Err(Error::length("draft_probs", length, allowed))
            }
            _ if self.target_probs.len() != rows * vocab => {
                Err(Error::length("target_probs", self.target_probs.len(), wanted(rows)))
            }
            _ => Ok(()),
        }
    }

    fn key(&self) -> Key {
        Key { seed: self.seed, position: self.position, draw: self.draw }
    }

    /// Returns a draft's id if it is a token.
    fn id(&self, node: usize) -> Option<usize> {
        id_of(self.tree.drafts[node], self.vocab)
    }

    fn target(&self, row: usize) -> &[f32] {
        &self.target_probs[row * self.vocab..][..self.vocab]
    }

    /// Returns the drafter's row, if it has one there.
    fn draft(&self, row: usize) -> Option<&[f32]> {
        self.draft_probs?.get(row * self.vocab..(row + 1) * self.vocab)
    }
}

impl Siblings<'_> {
    /// Judges the drafts by S5 or S7. The thresholds were checked.
    ///
    /// # Panics
    /// For [`Judgement::Block`], which judges no single row.
    pub fn judge(&self, judgement: Judgement, weigh: &mut dyn Weigh) -> Decision {
        match judgement {
            Judgement::Rejection => self.rejection(weigh),
            Judgement::Threshold { single, acc } => self.threshold(single, acc),
            Judgement::Block => panic!("a block is judged as a whole"),
        }
    }

    /// Judges one draft after the other, each by the residuals of the two rows (S5).
    fn rejection(&self, weigh: &mut dyn Weigh) -> Decision {
        let mut p = counted_row(self.target_probs);
        let mut q = self.draft_probs.map(counted_row);
        let (mut p_sum, mut q_sum) = (1.0, 1.0);
        let mut residual = false;
        for (number, draft) in self.drafts.iter().enumerate() {
            let Some(id) = id_of(*draft, p.len()) else { continue };
            let q_id = q.as_ref().map_or(1.0, |q| if q[id] > 0.0 { q[id] / q_sum } else { 0.0 });
            if q_id <= 0.0 {
                continue;
            }
            let p_id = if p[id] > 0.0 { p[id] / p_sum } else { 0.0 };
            if p_id >= q_id || self.key.uniform(number as u32, Tag::Accept) * q_id < p_id {
                return Decision::Accepted(number);
            }
            residual = true;
            let Some(q) = &mut q else {
                p_sum -= std::mem::take(&mut p[id]);
                continue;
            };
            let left: Vec<f32> =
                p.iter().zip(q.iter()).map(|(p, q)| (p / p_sum - q / q_sum).max(0.0)).collect();
            q[id] = 0.0;
            q_sum = weigh.sum(q);
            // Where nothing is left, only roundings led here.
            if left.iter().any(|p| *p > 0.0) {
                p = left;
                p_sum = weigh.sum(&p);
            }
        }
        self.ended(p, residual)
    }

    /// No draft is accepted: the last token is drawn from the rest of the target's row, or from the whole row
    /// if the rest is empty.
    fn ended(&self, left: Vec<f32>, residual: bool) -> Decision {
        let is_empty = left.iter().all(|p| *p <= 0.0);
        let weights = if is_empty { counted_row(self.target_probs) } else { left };
        Decision::Ended(Last { weights, residual })
    }

    /// Judges the drafts by one coin (S7).
    fn threshold(&self, single: f32, acc: f32) -> Decision {
        let mut p = counted_row(self.target_probs);
        let coin = (u64::from(self.key.word(0, Tag::Threshold)) * fraction_to_u32(acc)) >> 16;
        let (mut reached, mut residual) = (0, false);
        for (number, draft) in self.drafts.iter().enumerate() {
            let Some(id) = id_of(*draft, p.len()) else { continue };
            reached += (p[id].min(1.0) * TWO_POW_48) as u64;
            if p[id] > 0.0 && (coin < reached || p[id] >= single) {
                return Decision::Accepted(number);
            }
            (p[id], residual) = (0.0, true);
        }
        self.ended(p, residual)
    }
}

/// Returns a draft's id if it is a token.
fn id_of(draft: i32, vocab: usize) -> Option<usize> {
    usize::try_from(draft).ok().filter(|id| *id < vocab)
}

fn counted_row(row: &[f32]) -> Vec<f32> {
    row.iter().map(|p| counted(*p)).collect()
}

impl Judgement {
    /// Returns whether the drafter's probabilities have a part in it.
    #[must_use]
    pub fn reads_draft_probs(self) -> bool {
        !matches!(self, Self::Threshold { .. })
    }

    /// Returns whether drafts are judged by S4: by rejection, as a chain without parents, by the drafter's
    /// probabilities.
    #[must_use]
    pub fn is_of_chains(self, has_parents: bool, has_draft_probs: bool) -> bool {
        self == Self::Rejection && !has_parents && has_draft_probs
    }

    /// Checks the thresholds.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for one outside 0..=1, NaN included.
    pub fn check(self) -> Result<()> {
        let Judgement::Threshold { single, acc } = self else { return Ok(()) };
        for (name, threshold) in [("threshold_single", single), ("threshold_acc", acc)] {
            if !(0.0..=1.0).contains(&threshold) {
                return Err(Error::out_of_range(name, threshold, "in 0..=1"));
            }
        }
        Ok(())
    }
}

const TWO_POW_48: f32 = f32::from_bits((127 + 48) << 23);
