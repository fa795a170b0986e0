//! What judging drafts by probabilities has in common: how a number counts, the sum of a row, a coin, the
//! last draw.

use crate::draw::{TAGS, Tags, draw_with};
use crate::num::{Tag, philox4x32_10};
use crate::params::SamplingParams;
use crate::request::Request;
use crate::row::{Kind, Row};
use crate::survey::{Given, Measure, in_first_weights, order};

/// Returns a probability as it counts in a difference: 0 for NaN and negative numbers, `f32::MAX` for +inf
/// (P1).
#[must_use]
pub fn counted(p: f32) -> f32 {
    if p > 0.0 { p.min(f32::MAX) } else { 0.0 }
}

/// The seed, position and draw index of random words, for any purpose.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The seed.
    pub seed: u64,
    /// The position.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

impl Key {
    /// Returns the key some positions on.
    #[must_use]
    pub fn ahead(self, tokens: usize) -> Self {
        Self { position: self.position.wrapping_add(tokens as u32), ..self }
    }

    /// Returns word 0 of a counter.
    #[must_use]
    pub fn word(self, index: u32, tag: Tag) -> u32 {
        philox4x32_10(self.seed, [index, self.position, tag as u32, self.draw])[0]
    }

    /// Returns a uniform number in (0, 1] of word 0 of a counter.
    #[must_use]
    pub fn uniform(self, index: u32, tag: Tag) -> f32 {
        uniform(self.word(index, tag))
    }
}

/// How rows of counted numbers are summed and drawn from: the oracle's way, or a backend's.
pub trait Weigh {
    /// Returns the sum of a row, from its mass, so that no order of adding matters; 0 if no number is above
    /// 0.
    fn sum(&mut self, weights: &[f32]) -> f32;

    /// Draws from a row: plainly, or as from a residual; `None` if no number is above 0.
    fn draw(&mut self, weights: &[f32], key: Key, residual: bool) -> Option<u32>;
}

/// Returns a sum by the value of the first token and the mass of all.
#[must_use]
pub fn sum_of(first: f32, mass: u64) -> f32 {
    first * in_first_weights(mass)
}

/// The oracle's way.
#[derive(Clone, Copy, Debug)]
pub struct Naive;

impl Weigh for Naive {
    fn sum(&mut self, weights: &[f32]) -> f32 {
        let z = Row::F32(weights).values(Kind::Probabilities);
        let members = order(&z);
        if members.is_empty() {
            return 0.0;
        }
        let given = Given::new(&z, &members, Measure::Probabilities);
        sum_of(given.first(), given.total())
    }

    fn draw(&mut self, weights: &[f32], key: Key, residual: bool) -> Option<u32> {
        let z = Row::F32(weights).values(Kind::Probabilities);
        let members = order(&z);
        if members.is_empty() {
            return None;
        }
        let params = SamplingParams::default();
        let request =
            Request { position: key.position, draw: key.draw, ..Request::new(&params, &[], key.seed) };
        Some(draw_with(&request, &Given::new(&z, &members, Measure::Probabilities), tags(residual)))
    }
}

/// Returns the tags of a draw from a residual, or of a plain one.
#[must_use]
pub fn tags(residual: bool) -> Tags {
    if residual { [Tag::ResidualTile as u32, Tag::ResidualToken as u32] } else { TAGS }
}

/// Returns a uniform number in (0, 1] of a word.
#[must_use]
pub fn uniform(word: u32) -> f32 {
    (2 * u64::from(word) + 1) as f32 * f32::from_bits((127 - 33) << 23)
}
