//! Trees and blocks of drafts judged by probabilities: rejection (S5), whole blocks (S6), thresholds (S7).
//!
//! Each rule decides at a row which of its children stands, with coins of its own tag, and where none does from which
//! weights the last token is drawn.

use crate::error::{Error, Result};
use crate::filter::fraction_to_u32;
use crate::num::Tag;
use crate::row::{Kind, NONE, Status};
use crate::shape::check_vocab;

use super::tree::DraftTree;
use super::weights::{Key, counted, sum};

/// Drafts with the rows of probabilities that they are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The drafts.
    pub tree: DraftTree<'a>,
    /// The rows that the drafter drew from, one for each target row; those of rows without children are not read.
    /// `None`: the drafter has no probabilities.
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
        /// What the coin is multiplied by before it is compared with the sum of probabilities; in 0..=1.
        acc: f32,
    },
}

/// The rows that were gone through, and the token of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The numbers of the rows: 0 first, then those of the accepted drafts.
    pub rows: Vec<usize>,
    /// The accepted drafts and the token drawn last, which is [`NONE`] if its row has none.
    pub tokens: Vec<i32>,
    /// What the rows had to say that the last token was drawn from.
    pub status: Status,
}

/// What the last token is drawn from.
struct Last {
    weights: Vec<f32>,
    /// Whether a draft was refused, and weights taken away for it.
    residual: bool,
}

impl Trial<'_> {
    /// Judges the drafts.
    ///
    /// # Errors
    /// - Those of [`DraftTree::check`], and for [`Judgement::Block`] of [`DraftTree::check_chain`].
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, or a threshold outside 0..=1.
    /// - [`Error::Length`] if there is not a row for the root and one for each draft.
    pub fn judge(&self, judgement: Judgement) -> Result<Emitted> {
        self.check()?;
        judgement.check()?;
        let (rows, last) = match judgement {
            Judgement::Block => {
                self.tree.check_chain()?;
                self.block()
            }
            Judgement::Rejection => self.walk(|row, key| self.rejection(row, key)),
            Judgement::Threshold { single, acc } => {
                self.walk(|row, key| self.threshold(row, key, [single, acc]))
            }
        };
        let end = rows[rows.len() - 1];
        let mut status = Status::default();
        let mut read = |row: &[f32]| row.iter().for_each(|p| status.insert(Kind::Probabilities.status(*p)));
        read(self.target(end));
        if let Some(probs) = self.draft_probs.filter(|_| last.residual && !judgement.has_thresholds()) {
            read(&probs[end * self.vocab..][..self.vocab]);
        }
        let mut tokens: Vec<i32> = rows[1..].iter().map(|row| self.tree.drafts[row - 1]).collect();
        let token = self.key().ahead(tokens.len()).draw_from(&last.weights, last.residual);
        if token.is_none() {
            status.insert(Status::EMPTY);
        }
        tokens.push(token.map_or(NONE, |id| id as i32));
        Ok(Emitted { rows, tokens, status })
    }

    /// Goes from row to row while one of the row's children is accepted.
    fn walk(&self, judge: impl Fn(usize, Key) -> (Option<usize>, Last)) -> (Vec<usize>, Last) {
        let mut rows = vec![0];
        loop {
            let depth = rows.len() - 1;
            match judge(rows[depth], self.key().ahead(depth)) {
                (Some(node), _) => rows.push(node + 1),
                (None, last) => return (rows, last),
            }
        }
    }

    /// Judges a row's children one after the other, each by what is left of the two rows (S5).
    fn rejection(&self, row: usize, key: Key) -> (Option<usize>, Last) {
        let mut p = self.target_weights(row);
        let mut q = self.draft_probs.map(|_| self.draft_weights(row));
        let (mut p_sum, mut q_sum) = (1.0, 1.0);
        let mut residual = false;
        for (number, node) in self.tree.children(row).enumerate() {
            let Some(id) = self.id(node) else { continue };
            let q_id = q.as_ref().map_or(1.0, |q| if q[id] > 0.0 { q[id] / q_sum } else { 0.0 });
            if q_id <= 0.0 {
                continue;
            }
            let p_id = if p[id] > 0.0 { p[id] / p_sum } else { 0.0 };
            if p_id >= q_id || key.uniform(number as u32, Tag::Accept) * q_id < p_id {
                return (Some(node), Last { weights: p, residual });
            }
            residual = true;
            let mut left = p.clone();
            match &mut q {
                None => left[id] = 0.0,
                Some(q) => {
                    let both = left.iter_mut().zip(q.iter());
                    both.for_each(|(p, q)| *p = (*p / p_sum - q / q_sum).max(0.0));
                    q[id] = 0.0;
                    q_sum = sum(q);
                }
            }
            // Where nothing is left, only roundings led here.
            if left.iter().any(|p| *p > 0.0) {
                p = left;
                p_sum = sum(&p);
            }
        }
        (None, Last { weights: p, residual })
    }

    /// Judges a chain: the longest beginning of it that its coin lets stand (S6).
    fn block(&self) -> (Vec<usize>, Last) {
        let (mut ratio, mut accepted) = (1.0f32, 0);
        let mut last = Last { weights: self.residual(0, 1.0), residual: true };
        let drawn = |node: &usize| self.id(*node).is_some_and(|id| self.draft_weights(*node)[id] > 0.0);
        let drafts = (0..self.tree.drafts.len()).take_while(drawn).count();
        for node in 0..drafts {
            let id = self.id(node).expect("drawn");
            ratio = (ratio * self.target_weights(node)[id] / self.draft_weights(node)[id]).min(1.0);
            let (u, row) = (self.key().uniform(node as u32, Tag::Block), node + 1);
            if row == drafts {
                if ratio == 1.0 || u < ratio {
                    (accepted, last.residual) = (row, false);
                }
                break;
            }
            let weights = self.residual(row, ratio);
            let more = sum(&weights);
            if more > 0.0 && (ratio == 1.0 || u * (more + (1.0 - ratio)) < more) {
                (accepted, last) = (row, Last { weights, residual: true });
            }
        }
        if drafts == 0 || !last.residual {
            last = Last { weights: self.target_weights(accepted), residual: false };
        } else if last.weights.iter().all(|w| *w <= 0.0) {
            last.weights = self.target_weights(accepted);
        }
        ((0..=accepted).collect(), last)
    }

    /// Judges a row's children by one coin (S7).
    fn threshold(&self, row: usize, key: Key, [single, acc]: [f32; 2]) -> (Option<usize>, Last) {
        let whole = self.target_weights(row);
        let mut p = whole.clone();
        let coin = (u64::from(key.word(0, Tag::Threshold)) * fraction_to_u32(acc)) >> 16;
        let (mut reached, mut residual) = (0, false);
        for node in self.tree.children(row) {
            let Some(id) = self.id(node) else { continue };
            reached += (p[id].min(1.0) * TWO_POW_48) as u64;
            if p[id] > 0.0 && (coin < reached || p[id] >= single) {
                return (Some(node), Last { weights: p, residual });
            }
            (p[id], residual) = (0.0, true);
        }
        let weights = if p.iter().any(|p| *p > 0.0) { p } else { whole };
        (None, Last { weights, residual })
    }

    /// Returns what the target has more of than the drafter at a row of a chain, its own part being `ratio`.
    fn residual(&self, row: usize, ratio: f32) -> Vec<f32> {
        let weights = self.target_weights(row).into_iter().zip(self.draft_weights(row));
        weights.map(|(p, q)| (ratio * p - q).max(0.0)).collect()
    }

    fn check(&self) -> Result<()> {
        check_vocab(self.vocab)?;
        self.tree.check()?;
        let rows = self.tree.rows();
        let wanted = rows * self.vocab;
        let draft = self.draft_probs.map(|probs| ("draft_probs", probs.len()));
        for (name, length) in draft.into_iter().chain([("target_probs", self.target_probs.len())]) {
            if length != wanted {
                return Err(Error::length(
                    name,
                    length,
                    format!("{wanted} for {rows} rows of {} ids", self.vocab),
                ));
            }
        }
        Ok(())
    }

    fn key(&self) -> Key {
        Key { seed: self.seed, position: self.position, draw: self.draw }
    }

    /// Returns a draft's token if it is one.
    fn id(&self, node: usize) -> Option<usize> {
        usize::try_from(self.tree.drafts[node]).ok().filter(|id| *id < self.vocab)
    }

    fn target(&self, row: usize) -> &[f32] {
        &self.target_probs[row * self.vocab..][..self.vocab]
    }

    fn target_weights(&self, row: usize) -> Vec<f32> {
        self.target(row).iter().map(|p| counted(*p)).collect()
    }

    /// Returns the drafter's row; one without probabilities has 1 at its only draft there.
    fn draft_weights(&self, row: usize) -> Vec<f32> {
        match self.draft_probs {
            Some(probs) => probs[row * self.vocab..][..self.vocab].iter().map(|q| counted(*q)).collect(),
            None => {
                let mut weights = vec![0.0; self.vocab];
                self.tree.children(row).filter_map(|node| self.id(node)).for_each(|id| weights[id] = 1.0);
                weights
            }
        }
    }
}

impl Judgement {
    fn has_thresholds(self) -> bool {
        matches!(self, Judgement::Threshold { .. })
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
