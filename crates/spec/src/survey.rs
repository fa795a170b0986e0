//! The survey: tile maxima, and where a rule needs sums, masses (rules M1 to M5).
//!
//! A mass is a sum of integers, so no order of adding can change it: hence a cut is the same on
//! every machine. Weights are relative to their tile's maximum and tiles relative to the given set's
//! first token, so that neither extreme logits nor a million equal ones lose precision.
//!
//! A row of probabilities goes the same way: only how two of its values compare is another [`Measure`].

use crate::num::{LOG2_E, exp2, key, log2};
use crate::row::{Kind, TILE};

/// Returns the ids above -inf, sorted by the order.
#[must_use]
pub fn order(z: &[f32]) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..z.len() as u32).filter(|id| z[*id as usize] > f32::NEG_INFINITY).collect();
    ids.sort_by_key(|id| std::cmp::Reverse(key(z[*id as usize], *id)));
    ids
}

/// Returns the scale `log2(e) / T` that turns logit differences into exponents of two (N6).
#[must_use]
pub fn scale(temperature: f32) -> f32 {
    LOG2_E / temperature
}

/// How the values of a row give their tokens' weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Logits: weights are `2^(z s)`.
    Logits {
        /// The [`scale`].
        s: f32,
    },
    /// Probabilities, which need not sum to 1: weights are the values themselves (P1).
    Probabilities,
}

impl Measure {
    /// Returns the measure of a kind of row, at a temperature above 0. That of probabilities is 1 (P2).
    #[must_use]
    pub fn new(kind: Kind, temperature: f32) -> Self {
        match kind {
            Kind::Logits => Self::Logits { s: scale(temperature) },
            Kind::Probabilities => Self::Probabilities,
        }
    }

    /// Returns the scale of logits; 1 for probabilities.
    #[must_use]
    pub fn scale(self) -> f32 {
        match self {
            Self::Logits { s } => s,
            Self::Probabilities => 1.0,
        }
    }

    /// Returns the measure in which each weight of logits is the square of the weight in this one. Rows of
    /// probabilities refuse p-less, which alone asks for it (P2).
    #[must_use]
    pub fn squared(self) -> Self {
        match self {
            Self::Logits { s } => Self::Logits { s: 2.0 * s },
            Self::Probabilities => Self::Probabilities,
        }
    }

    /// Returns the exponent of two of a value's weight relative to another's: `y`, where that is the first
    /// token's.
    #[must_use]
    pub fn exponent(self, value: f32, of: f32) -> f32 {
        match self {
            Self::Logits { s } => (value - of) * s,
            Self::Probabilities => log2(value) - log2(of),
        }
    }

    /// Returns a value's weight relative to the weight of another value, which is no smaller.
    #[must_use]
    pub fn ratio(self, value: f32, of: f32) -> f32 {
        match self {
            Self::Logits { .. } => exp2(self.exponent(value, of)),
            Self::Probabilities => value / of,
        }
    }
}

/// A tile's factor, `G 2^(-23 - k)`, split for integer sums (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    /// The 24-bit mantissa; 0 for a factor of 0.
    pub mantissa: u64,
    /// The negated exponent.
    pub k: u32,
}

impl Factor {
    /// Splits a factor in 0..=1.
    #[must_use]
    pub fn new(factor: f32) -> Self {
        if factor == 0.0 {
            return Self { mantissa: 0, k: 0 };
        }
        let bits = factor.to_bits();
        Self { mantissa: u64::from(bits & 0x007F_FFFF | 0x0080_0000), k: 127 - (bits >> 23) }
    }

    /// Returns the mass of a tile whose weights sum to `q`.
    #[must_use]
    pub fn mass(self, q: u64) -> u64 {
        (q * self.mantissa).checked_shr(8 + self.k).unwrap_or(0)
    }
}

/// An interval of the order in which masses are taken: the whole row, or what a filter left.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    z: &'a [f32],
    /// How its values weigh against each other.
    pub(crate) measure: Measure,
    /// The members, sorted by the order; never empty.
    pub members: &'a [u32],
    maxima: Vec<f32>,
}

impl<'a> Given<'a> {
    /// Returns this set with the squares of its weights.
    #[must_use]
    pub fn squared(&self) -> Self {
        Self::new(self.z, self.members, self.measure.squared())
    }

    /// Takes an interval of the order of `z`, not empty.
    #[must_use]
    pub fn new(z: &'a [f32], members: &'a [u32], measure: Measure) -> Self {
        let mut maxima = vec![f32::NEG_INFINITY; z.len().div_ceil(TILE)];
        for id in members {
            let maximum = &mut maxima[*id as usize / TILE];
            *maximum = maximum.max(z[*id as usize]);
        }
        Self { z, measure, members, maxima }
    }

    /// Returns the logit or probability of the first token.
    #[must_use]
    pub fn first(&self) -> f32 {
        self.z[self.members[0] as usize]
    }

    /// Returns a token's logit or probability.
    #[must_use]
    pub fn value(&self, id: u32) -> f32 {
        self.z[id as usize]
    }

    /// Returns `y`: a token's exponent of two relative to the first token.
    #[must_use]
    pub fn y(&self, id: u32) -> f32 {
        self.measure.exponent(self.z[id as usize], self.first())
    }

    /// Returns a token's weight in units of the first token's.
    #[must_use]
    pub fn ratio(&self, id: u32) -> f32 {
        self.measure.ratio(self.z[id as usize], self.first())
    }

    /// Returns a token's weight relative to its tile's maximum, in units of 2^-28.
    #[must_use]
    pub fn q(&self, id: u32) -> u64 {
        let ratio = self.measure.ratio(self.z[id as usize], self.maxima[id as usize / TILE]);
        (ratio * 268_435_456.0).round_ties_even() as u64
    }

    /// Returns a tile's factor.
    #[must_use]
    pub fn factor(&self, tile: usize) -> Factor {
        Factor::new(self.measure.ratio(self.maxima[tile], self.first()))
    }

    /// Returns the mass of some members (M3), in units of 2^-43 of the first token's weight.
    #[must_use]
    pub fn mass(&self, ids: &[u32]) -> u64 {
        let mut q = vec![0u64; self.maxima.len()];
        for id in ids {
            q[*id as usize / TILE] += self.q(*id);
        }
        (0..q.len()).filter(|tile| q[*tile] > 0).map(|tile| self.factor(tile).mass(q[tile])).sum()
    }

    /// Returns the mass of all members.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.mass(self.members)
    }

    /// Returns how many of `ids`, taken in turn, first reach a mass of `target`; at least one.
    ///
    /// One mass function is meant, floored per tile, so a running prefix keeps its sum per tile (M4).
    #[must_use]
    pub fn prefix_reaching(&self, ids: &[u32], target: u64) -> usize {
        let mut q = vec![0u64; self.maxima.len()];
        let mut mass = 0;
        for (i, id) in ids.iter().enumerate() {
            let tile = *id as usize / TILE;
            let factor = self.factor(tile);
            let before = factor.mass(q[tile]);
            q[tile] += self.q(*id);
            mass += factor.mass(q[tile]) - before;
            if mass >= target {
                return i + 1;
            }
        }
        ids.len()
    }

    /// Returns `log2` of the mass in units of the first token's weight (M5).
    #[must_use]
    pub fn lz(&self) -> f32 {
        log_mass(self.total())
    }

    /// Returns the entropy in bits (M5).
    #[must_use]
    pub fn entropy(&self) -> f32 {
        let total = self.total();
        log_mass(total) + mean_distance(total, self.distances())
    }

    /// Returns the sum of the weighted distances below the first token (M5).
    #[must_use]
    pub fn distances(&self) -> u64 {
        let fixed = |x: f32| (1_048_576.0 * x.min(32.0)).round_ties_even() as u64;
        let tiles = self.maxima.len();
        let (mut q, mut r) = (vec![0u64; tiles], vec![0u64; tiles]);
        for id in self.members {
            let tile = *id as usize / TILE;
            q[tile] += self.q(*id);
            r[tile] += self.q(*id) * fixed(self.measure.exponent(self.maxima[tile], self.z[*id as usize]));
        }
        let mut sum = 0u64;
        for tile in (0..tiles).filter(|tile| q[*tile] > 0) {
            let d = fixed(self.measure.exponent(self.first(), self.maxima[tile]));
            sum += self.factor(tile).mass((r[tile] + q[tile] * d) >> 24);
        }
        sum
    }
}

/// Returns how far the tokens of a set lie below its first one, on average by weight, in powers of two (M5).
/// `sum`: what [`Given::distances`] returns.
#[must_use]
pub fn mean_distance(mass: u64, sum: u64) -> f32 {
    16.0 * (sum as f32 / mass as f32)
}

/// Returns a mass in units of the first token's weight.
#[must_use]
pub fn in_first_weights(mass: u64) -> f32 {
    mass as f32 * f32::from_bits((127 - 43) << 23)
}

/// Returns `log2` of a mass in units of the first token's weight (M5).
#[must_use]
pub fn log_mass(mass: u64) -> f32 {
    log2(in_first_weights(mass))
}
