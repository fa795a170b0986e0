//! A profile of a long set: about how many of its tokens, or how much of its mass, lie at or above any value.
//!
//! Each tile gives its maximum, which counts by itself, and one vector of its tokens, which stands for all of
//! its others. So the heavy tokens of a row are all there, and only the many light ones are estimated. A
//! profile chooses pivots and decides nothing: results do not depend on it.

use gumball_spec::TILE;
use gumball_spec::num::ordered_bits;
use gumball_spec::survey::Measure;

use super::{Given, Reader};
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::mass::{Mass, TWO_POW_43};
use crate::measure::least_that_matters;
use crate::tiles::{EMPTY_TILE, for_tiles_reaching};

/// How many equal parts the values of a set are divided into.
const LEVELS: usize = 1024;
/// How many tokens a sampled one stands for.
const EACH: f64 = (TILE / WIDTH) as f64;

/// From this number of tokens on, a level is crowded: it may hold a heap of equal tokens, within which no
/// value lies.
const CROWD: f64 = 1024.0;
/// How many sampled tokens of a crowded level are looked at for a heap.
const HEAP_SAMPLE: usize = 32;

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
    /// The maximum of each tile that reaches the set's lowest value, and a vector of its tokens.
    maxima: Vec<f32>,
    sample: Vec<[f32; WIDTH]>,
    /// How many tile maxima, and how many sampled tokens, each level has; the last element is for tokens
    /// outside.
    counts: Vec<[u32; 2]>,
    /// How many tokens, or how much mass, lie above each level; the last element is for all levels.
    above: Vec<f64>,
    /// Whether amounts are masses, and not numbers of tokens.
    of_mass: bool,
    measure: Measure,
    first: f32,
    /// How many levels there are in a unit of height.
    scale: f64,
    /// The value of the heap that was guessed last.
    heap: Option<u32>,
}

impl Default for Profile {
    fn default() -> Self {
        let (maxima, sample, counts, above) = Default::default();
        let (of_mass, measure, first, scale, heap) = (false, Measure::Probabilities, 0.0, 0.0, None);
        Self { maxima, sample, counts, above, of_mass, measure, first, scale, heap }
    }
}

impl Profile {
    /// Profiles an unlisted set by mass or by numbers of tokens, down to the least value that matters.
    /// `whole` is the number or the mass of all tokens of the set, if an estimate of it is known. Returns
    /// false if all values lie in one level.
    pub fn make(
        &mut self,
        reader: &Reader<'_>,
        mass: &Mass,
        given: &Given,
        of_mass: bool,
        whole: Option<f64>,
    ) -> bool {
        (self.measure, self.first) = (mass.measure(), given.first);
        (self.of_mass, self.heap) = (of_mass, None);
        let low = given.cut.low();
        let low = if of_mass { low.max(least_that_matters(self.measure, self.first)) } else { low };
        reader.view.need(low);
        self.maxima.clear();
        self.sample.clear();
        let (maxima, sample) = (&mut self.maxima, &mut self.sample);
        let of = mass.maxima();
        let least = dispatch(reader.level, Sample { reader, of, low, first: given.first, maxima, sample });
        self.scale = LEVELS as f64 / (self.height(self.first) - self.height(least));
        if !self.scale.is_finite() {
            return false;
        }
        self.counts.clear();
        self.counts.resize(LEVELS + 1, [0; 2]);
        dispatch(reader.level, Count { profile: self, least });
        self.sum(whole);
        true
    }

    /// Adds up the tokens or the mass of the levels, from the first value down. A common factor scales the
    /// sampled tokens, so that all levels together have as much as the whole set.
    fn sum(&mut self, whole: Option<f64>) {
        // First what a token of each level adds, then the sums.
        let mut above = std::mem::take(&mut self.above);
        above.clear();
        above.push(0.0);
        match self.measure {
            _ if !self.of_mass => above.resize(LEVELS + 1, 1.0),
            Measure::Logits { s } => {
                let each = f64::exp2(-f64::from(s) / self.scale);
                let first = TWO_POW_43 * each.sqrt();
                above.extend(std::iter::successors(Some(first), |last| Some(last * each)).take(LEVELS));
            }
            Measure::Probabilities => {
                above.extend((0..LEVELS).map(|level| self.amount_of(self.value(level as f64 + 0.5))));
            }
        }
        let (mut maxima, mut others) = (0.0, 0.0);
        for ([heads, sampled], each) in self.counts.iter().zip(&above[1..]) {
            maxima += f64::from(*heads) * each;
            others += f64::from(*sampled) * each;
        }
        let factor = match whole {
            Some(whole) if others > 0.0 => ((whole - maxima) / (others * EACH)).clamp(0.25, 4.0),
            _ => 1.0,
        };
        let mut sum = 0.0;
        for ([heads, sampled], above) in self.counts.iter().zip(&mut above[1..]) {
            sum += (f64::from(*heads) + f64::from(*sampled) * EACH * factor) * *above;
            *above = sum;
        }
        self.above = above;
    }

    /// Estimates how many tokens, or how much mass, the whole set has.
    pub fn whole(&self) -> f64 {
        self.above[LEVELS]
    }

    /// Guesses the value, between two ends, down to which the set has an amount. Where that lies in a heap of
    /// equal tokens it is their value; and if that was the last guess and became the lower end, the next
    /// value above.
    pub fn guess(&mut self, amount: f64, side: Side, low: u32, high: u32) -> u32 {
        if self.heap.take() == Some(low) {
            return low + 1;
        }
        self.heap = self.heap_at(amount).filter(|heap| low < *heap && *heap < high);
        self.heap.unwrap_or_else(|| ordered_bits(self.value_at(amount, side) + 0.0)).clamp(low + 1, high - 1)
    }

    /// Returns the value of most tokens of a crowded level, that of an amount, if there is one.
    fn heap_at(&self, amount: f64) -> Option<u32> {
        let level = self.level_at(amount);
        if !self.is_crowded(level) {
            return None;
        }
        let (from, to) = (self.value(level as f64 + 0.02), self.value(level as f64 - 1.02));
        let mut found = [0; HEAP_SAMPLE];
        let tokens = self.sample.iter().flatten().filter(|z| from <= **z && **z <= to);
        let count = tokens.zip(&mut found).map(|(z, found)| *found = ordered_bits(*z + 0.0)).count();
        let (_, median, _) = found[..count].select_nth_unstable(count.checked_sub(1)? / 2);
        let median = *median;
        (2 * found[..count].iter().filter(|z| **z == median).count() > count).then_some(median)
    }

    /// Returns the level, from 1, at which an amount is reached.
    fn level_at(&self, amount: f64) -> usize {
        self.above.partition_point(|above| *above < amount).clamp(1, LEVELS)
    }

    fn is_crowded(&self, level: usize) -> bool {
        let [heads, sampled] = self.counts[level - 1];
        f64::from(heads) + f64::from(sampled) * EACH > CROWD
    }

    /// Estimates the value down to which the set has an amount: a number of tokens, or a mass.
    fn value_at(&self, amount: f64, side: Side) -> f32 {
        let level = self.level_at(amount);
        let (before, upto) = (self.above[level - 1], self.above[level]);
        let crowded = self.is_crowded(level);
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
    pub fn amount_of(&self, value: f32) -> f64 {
        match self.measure {
            _ if !self.of_mass => 1.0,
            Measure::Logits { .. } => {
                TWO_POW_43 * f64::exp2(f64::from(self.measure.exponent(value, self.first)))
            }
            Measure::Probabilities => TWO_POW_43 * (f64::from(value) / f64::from(self.first)),
        }
    }

    /// Returns a number that rises with the value; levels are equal parts of it. The bits of a probability
    /// are nearly its logarithm.
    fn height(&self, value: f32) -> f64 {
        match self.measure {
            Measure::Logits { .. } => f64::from(value),
            Measure::Probabilities => f64::from(value.max(0.0).to_bits()),
        }
    }
}

/// Collects the maximum and a vector of tokens of each tile that reaches a value; returns the least of the
/// tokens from there on up to the first.
struct Sample<'a> {
    reader: &'a Reader<'a>,
    of: &'a [f32],
    low: f32,
    first: f32,
    maxima: &'a mut Vec<f32>,
    sample: &'a mut Vec<[f32; WIDTH]>,
}

impl Kernel for Sample<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut scratch = EMPTY_TILE;
        let (zero, low, first) = (l.splat(0.0), l.splat(self.low), l.splat(self.first));
        let mut negated = l.splat(-self.first);
        for_tiles_reaching!(l, self.of, self.low, |tile| {
            let (vectors, _) = self.reader.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            // Another one of each tile, so that no period of the ids is followed.
            let vector = vectors[tile * 7 % (TILE / WIDTH)];
            let z = l.load(&vector);
            negated = l.max_where(l.ge(z, low) & l.ge(first, z), l.sub(zero, z), negated);
            self.sample.push(vector);
            self.maxima.push(self.of[tile]);
        });
        -l.reduce_max(negated)
    }
}

/// Counts tile maxima and the sampled tokens from `least` on by levels of their height.
struct Count<'a> {
    profile: &'a mut Profile,
    least: f32,
}

impl Kernel for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Profile { maxima, sample, counts, measure, first, scale, .. } = self.profile;
        let of_bits = *measure == Measure::Probabilities;
        let levels = LevelsOf {
            top: l.splat(if of_bits { first.to_bits() as f32 } else { *first }),
            scale: l.splat(*scale as f32),
            of_bits,
        };
        let (least, outside) = (l.splat(self.least), l.splat_u(LEVELS as u32));
        let mut found = [0; WIDTH];
        for (maximum, tokens) in maxima.iter().zip(sample) {
            let z = l.load(tokens);
            let inside = l.ge(z, least) & l.gt(l.splat(*maximum), z);
            l.store_u(l.select_u(inside, levels.of(l, z), outside), &mut found);
            for level in found {
                counts[level as usize][1] += 1;
            }
        }
        for heads in maxima.chunks(WIDTH) {
            let mut padded = [*first; WIDTH];
            padded[..heads.len()].copy_from_slice(heads);
            l.store_u(levels.of(l, l.load(&padded)), &mut found);
            for level in &found[..heads.len()] {
                counts[*level as usize][0] += 1;
            }
        }
    }
}

/// Finds the levels of values.
struct LevelsOf<F> {
    top: F,
    scale: F,
    of_bits: bool,
}

impl<F: Copy> LevelsOf<F> {
    #[inline(always)]
    fn of<L: Lanes<F = F>>(&self, l: L, z: F) -> L::U {
        let height = if self.of_bits { l.float_of_int(l.bits(l.max(z, l.splat(0.0)))) } else { z };
        let position = l.sub(l.mul(l.sub(self.top, height), self.scale), l.splat(0.5));
        l.to_int(l.min(l.max(position, l.splat(0.0)), l.splat(LEVELS as f32 - 1.0)))
    }
}
