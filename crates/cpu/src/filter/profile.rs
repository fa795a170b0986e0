//! A profile of a long set: about how many of its tokens, or how much of its mass, lie at or above any value.
//!
//! Each tile gives its maximum, which counts by itself, and one vector of its tokens, which stands for all of its others.
//! So the heavy tokens of a row are all there, and only the many light ones are estimated. A profile chooses
//! pivots and decides nothing: results do not depend on it.

use gumball_spec::TILE;
use gumball_spec::survey::Measure;

use super::goal::Goal;
use super::{Given, Reader};
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::mass::{Mass, TWO_POW_43, Total};
use crate::measure::least_that_matters;
use crate::tiles::{EMPTY_TILE, for_tiles_reaching};

/// How many equal parts the values of a set are divided into.
const LEVELS: usize = 2048;
/// How many tokens a sampled one stands for.
const EACH: f64 = (TILE / WIDTH) as f64;

/// From this number of tokens on, a level is crowded: it may hold a heap of equal tokens, within which no value lies.
const CROWD: f64 = 1024.0;

/// Where in its level a value is looked for, if the level is crowded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Where the amount is reached if the tokens are spread evenly.
    Within,
    /// At the upper end of the level, or at its lower end.
    Above,
    Below,
}

/// The buffers of a profile, and what it says.
#[derive(Debug)]
pub struct Profile {
    /// A vector of tokens of each tile that reaches the set's lowest value.
    sample: Vec<[f32; WIDTH]>,
    /// How many tile maxima, and how many sampled tokens, each level has.
    counts: Vec<[u32; 2]>,
    /// How many tokens, or how much mass, lie above each level; the last element is for all levels.
    above: Vec<f64>,
    measure: Measure,
    first: f32,
    /// How many levels there are in a unit of height.
    scale: f64,
}

impl Default for Profile {
    fn default() -> Self {
        let (sample, counts, above) = Default::default();
        Self { sample, counts, above, measure: Measure::Probabilities, first: 0.0, scale: 0.0 }
    }
}

impl Profile {
    /// Profiles an unlisted set, down to the least value at which it may reach the goal. `whole` is the number of the
    /// set's tokens and their mass, from the last weighing. Returns false if all values lie in one level.
    pub fn make(
        &mut self,
        reader: &Reader<'_>,
        mass: &Mass,
        given: &Given,
        goal: Goal,
        whole: Total,
    ) -> bool {
        (self.measure, self.first) = (mass.measure(), given.first);
        let low = match goal {
            Goal::Count(_) => given.cut.low(),
            Goal::Mass(_) => given.cut.low().max(least_that_matters(self.measure, self.first)),
        };
        self.sample.clear();
        dispatch(reader.level, Sample { reader, maxima: mass.maxima(), low, to: &mut self.sample });
        let range = low..=self.first;
        let tokens = self.sample.iter().flatten().filter(|z| range.contains(z));
        let least = tokens.fold(self.first, |least, z| least.min(*z));
        self.scale = LEVELS as f64 / (self.height(self.first) - self.height(least));
        if !self.scale.is_finite() {
            return false;
        }

        let reached = mass.maxima().iter().filter(|maximum| **maximum >= low.max(-f32::MAX));
        match self.measure {
            Measure::Logits { .. } => self.count(reached, least, |z| z),
            Measure::Probabilities => self.count(reached, least, |p| p.max(0.0).to_bits() as f32),
        }
        self.sum(goal, whole);
        true
    }

    /// Counts tile maxima and the sampled tokens from `least` on by levels of their height.
    fn count<'m>(&mut self, maxima: impl Iterator<Item = &'m f32>, least: f32, height: impl Fn(f32) -> f32) {
        let (top, scale) = (height(self.first), self.scale as f32);
        let level = |z: f32| (((top - height(z)) * scale) as usize).min(LEVELS - 1);
        self.counts.clear();
        self.counts.resize(LEVELS, [0; 2]);
        for (maximum, tokens) in maxima.zip(&self.sample) {
            self.counts[level(*maximum)][0] += 1;
            for z in tokens.iter().filter(|z| **z >= least && *z < maximum) {
                self.counts[level(*z)][1] += 1;
            }
        }
    }

    /// Adds up the tokens or the mass of the levels, from the first value down. A common factor scales the sampled tokens,
    /// so that all levels together have as much as the whole set.
    fn sum(&mut self, goal: Goal, whole: Total) {
        // First what a token of each level adds, then the sums.
        let mut above = std::mem::take(&mut self.above);
        above.clear();
        above.push(0.0);
        above.extend((0..LEVELS).map(|level| self.amount_of(goal, self.value(level as f64 + 0.5))));
        let (mut maxima, mut others) = (0.0, 0.0);
        for ([heads, sampled], each) in self.counts.iter().zip(&above[1..]) {
            maxima += f64::from(*heads) * each;
            others += f64::from(*sampled) * each * EACH;
        }
        let factor = ((goal.amount(whole) - maxima) / others).clamp(0.25, 4.0);
        let mut sum = 0.0;
        for ([heads, sampled], above) in self.counts.iter().zip(&mut above[1..]) {
            if heads + sampled > 0 {
                sum += (f64::from(*heads) + f64::from(*sampled) * EACH * factor) * *above;
            }
            *above = sum;
        }
        self.above = above;
    }

    /// Estimates the value down to which the set has an amount: a number of tokens, or a mass.
    pub fn value_at(&self, amount: f64, side: Side) -> f32 {
        let level = self.above.partition_point(|above| *above < amount).clamp(1, LEVELS);
        let (before, upto) = (self.above[level - 1], self.above[level]);
        let [heads, sampled] = self.counts[level - 1];
        let crowded = f64::from(heads) + f64::from(sampled) * EACH > CROWD;
        let part = match side {
            _ if upto <= before => 1.0,
            Side::Above if crowded => 0.0,
            Side::Below if crowded => 1.0,
            _ => ((amount - before) / (upto - before)).clamp(0.0, 1.0),
        };
        self.value(level as f64 - 1.0 + part)
    }

    /// Returns the value at a position, which counts levels from the first token's value down.
    fn value(&self, position: f64) -> f32 {
        let height = self.height(self.first) - position / self.scale;
        match self.measure {
            Measure::Logits { .. } => height as f32,
            Measure::Probabilities => f32::from_bits(height.max(1.0) as u32),
        }
    }

    /// Estimates how many tokens, or how much mass, the set has at or above a value.
    pub fn amount_at(&self, value: f32) -> f64 {
        let position = (self.height(self.first) - self.height(value)) * self.scale;
        let position = position.clamp(0.0, LEVELS as f64 - 1e-9);
        let (level, part) = (position as usize, position.fract());
        self.above[level] + (self.above[level + 1] - self.above[level]) * part
    }

    /// Returns how much one token of a value adds to an amount.
    pub fn amount_of(&self, goal: Goal, value: f32) -> f64 {
        match goal {
            Goal::Count(_) => 1.0,
            Goal::Mass(_) => TWO_POW_43 * f64::exp2(f64::from(self.measure.exponent(value, self.first))),
        }
    }

    /// Returns a number that rises with the value; levels are equal parts of it. The bits of a probability are nearly
    /// its logarithm.
    fn height(&self, value: f32) -> f64 {
        match self.measure {
            Measure::Logits { .. } => f64::from(value),
            Measure::Probabilities => f64::from(value.max(0.0).to_bits()),
        }
    }
}

/// Collects a vector of tokens of each tile that reaches a value.
struct Sample<'a> {
    reader: &'a Reader<'a>,
    maxima: &'a [f32],
    low: f32,
    to: &'a mut Vec<[f32; WIDTH]>,
}

impl Kernel for Sample<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let mut scratch = EMPTY_TILE;
        for_tiles_reaching!(l, self.maxima, self.low, |tile| {
            let (vectors, _) = self.reader.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            // Another one of each tile, so that no period of the ids is followed.
            self.to.push(vectors[tile * 7 % (TILE / WIDTH)]);
        });
    }
}
