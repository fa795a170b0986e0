//! The exact head: every logit of every hidden state, in the order of adding that rule H1 fixes.
//!
//! Pieces of the weights go over threads, and each piece is multiplied with all hidden states while it is in
//! a core's cache: weights are read from memory once for a batch.

use std::borrow::Cow;
use std::ops::Range;

use gumball_cpu::{HeadLanes, Level};
use gumball_spec::head::Scaling;
use gumball_spec::shape::check_vocab;
use gumball_spec::{Error, Result, Row};
use rayon::prelude::*;

use crate::spread::{Spread, rows_of_piece};
use crate::states::{Widened, check_width};
use crate::weights::Weights;

/// The parts of a head besides its weights.
#[derive(Clone, Debug, Default)]
pub struct HeadOptions<'w> {
    /// A bias for each id.
    pub bias: Option<Cow<'w, [f32]>>,
    /// What follows the product.
    pub scaling: Scaling,
    /// The SIMD level; `None`: the machine's best.
    pub level: Option<Level>,
}

/// How many hidden states the calling thread multiplies with a piece of the weights at a time.
const AT_ONCE: usize = 4;

/// The head that computes every logit (H1 to H4).
#[derive(Clone, Debug)]
pub struct Exact<'w> {
    weights: Weights<'w>,
    vocab: usize,
    width: usize,
    bias: Option<Cow<'w, [f32]>>,
    scaling: Scaling,
    lanes: HeadLanes,
}

impl<'w> Exact<'w> {
    /// Makes a head of weights `[vocab, width]`, borrowed or owned.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary outside 1..=2^20, a width outside 1..=2^16, a scaling outside
    ///   its range, or a level that this machine lacks.
    /// - [`Error::Length`] if there are not `vocab * width` weights, or not one bias for each id.
    pub fn new(
        weights: impl Into<Weights<'w>>,
        vocab: usize,
        width: usize,
        options: HeadOptions<'w>,
    ) -> Result<Self> {
        let weights = weights.into();
        check_vocab(vocab)?;
        check_width(width)?;
        let length = weights.all().vocab();
        if length != vocab * width {
            return Err(Error::length("weights", length, format!("{vocab} rows of {width} weights")));
        }
        let HeadOptions { bias, scaling, level } = options;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != vocab) {
            return Err(Error::length("bias", bias.len(), format!("one for each of {vocab} ids")));
        }
        scaling.check()?;
        let lanes = HeadLanes::new(level.map_or_else(Level::detect, Ok)?)?;
        Ok(Self { weights, vocab, width, bias, scaling, lanes })
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the elements of a hidden state.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the weights.
    #[must_use]
    pub fn weights(&self) -> &Weights<'w> {
        &self.weights
    }

    /// Returns the row of weights of an id.
    pub(crate) fn weights_of(&self, id: usize) -> Row<'_> {
        self.weights.part(id * self.width..(id + 1) * self.width)
    }

    /// Returns the bias of each id, if the head has one.
    #[must_use]
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    pub(crate) fn lanes(&self) -> HeadLanes {
        self.lanes
    }

    /// Returns what follows the product.
    #[must_use]
    pub fn scaling(&self) -> &Scaling {
        &self.scaling
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.lanes.level()
    }

    /// Checks that hidden states are as wide as the weights.
    ///
    /// # Errors
    /// - [`Error::Length`] if not.
    pub fn check_width(&self, width: usize) -> Result<()> {
        if width == self.width {
            return Ok(());
        }
        Err(Error::length("hidden", width, format!("{} elements each, as a row of weights", self.width)))
    }

    /// Computes the logits of hidden states. A row depends on nothing but its own hidden state.
    ///
    /// # Shapes and units
    /// `states`: B hidden states. `out`: `[B, vocab]`.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state or `out` has another length.
    pub fn logits(&self, states: &Widened, spread: Spread, out: &mut [f32]) -> Result<()> {
        self.check_width(states.width())?;
        if out.len() != states.rows() * self.vocab {
            let allowed = format!("{} rows of {} logits", states.rows(), self.vocab);
            return Err(Error::length("logits", out.len(), allowed));
        }
        let piece = rows_of_piece(self.width * self.weights.element_bytes());
        match spread {
            Spread::Caller => {
                for from in (0..self.vocab).step_by(piece) {
                    let ids = from..(from + piece).min(self.vocab);
                    for (first, rows) in out.chunks_mut(AT_ONCE * self.vocab).enumerate() {
                        let (first, count) = (first * AT_ONCE, rows.len() / self.vocab);
                        let mut places: [&mut [f32]; AT_ONCE] = Default::default();
                        for (place, row) in places.iter_mut().zip(rows.chunks_mut(self.vocab)) {
                            *place = &mut row[ids.clone()];
                        }
                        self.piece(ids.clone(), states.padded(first..first + count), &mut places[..count]);
                    }
                }
            }
            Spread::Rayon => {
                let mut pieces: Vec<Vec<&mut [f32]>> = Vec::new();
                pieces.resize_with(self.vocab.div_ceil(piece), || Vec::with_capacity(states.rows()));
                for row in out.chunks_mut(self.vocab) {
                    pieces.iter_mut().zip(row.chunks_mut(piece)).for_each(|(piece, part)| piece.push(part));
                }
                pieces.par_iter_mut().enumerate().for_each(|(i, places)| {
                    let ids = i * piece..((i + 1) * piece).min(self.vocab);
                    self.piece(ids, states.padded(0..states.rows()), places);
                });
            }
        }
        Ok(())
    }

    /// Computes the logits of neighbouring ids.
    pub(crate) fn piece(&self, ids: Range<usize>, states: &[f32], out: &mut [&mut [f32]]) {
        let weights = self.weights.part(ids.start * self.width..ids.end * self.width);
        let bias = self.bias.as_ref().map(|bias| &bias[ids]);
        self.lanes.logits(weights, self.width, states, bias, &self.scaling, out);
    }

    /// Computes the logits of some ids, for one of the hidden states.
    ///
    /// # Shapes and units
    /// `out`: one for each id.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state or `out` has another length.
    /// - [`Error::OutOfRange`] if an id is not below the vocabulary, or there is no such hidden state.
    pub fn logits_of(&self, states: &Widened, row: usize, ids: &[u32], out: &mut [f32]) -> Result<()> {
        self.check_width(states.width())?;
        if row >= states.rows() {
            return Err(Error::out_of_range("row", row, format!("a hidden state in 0..{}", states.rows())));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocab) {
            return Err(Error::out_of_range("ids", id, format!("an id in 0..{}", self.vocab)));
        }
        if out.len() != ids.len() {
            return Err(Error::length("logits", out.len(), format!("one for each of {} ids", ids.len())));
        }
        let (weights, bias) = (self.weights.all(), self.bias.as_deref());
        let state = states.padded(row..row + 1);
        self.lanes.logits_of(weights, self.width, state, bias, &self.scaling, ids, out);
        Ok(())
    }
}
