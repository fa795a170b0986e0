//! Adaptive-p: which probability the race favours, after the ones of the tokens drawn before (rule D3).
//!
//! It cuts nothing. The kept tokens race by how near their probabilities are to a goal. The goal is above the
//! target where the drawn tokens' probabilities were below it on average, and below it where they were above.

use crate::params::SamplingParams;
use crate::survey::{Given, in_first_weights};

/// The inverse of the width of the favoured probabilities, 0.3.
pub const INVERSE_WIDTH: f32 = f32::from_bits(0x4055_5555);

/// How many powers of two a weight falls for each width, far from the goal: 10 log2(e).
pub const SHARPNESS: f32 = f32::from_bits(0x4166_D4CA);

/// The race of adaptive-p over a kept set.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    /// The probability that weighs the most.
    pub goal: f32,
    /// The sum of the weights of the kept set, in units of the first one's.
    pub sum: f32,
}

impl Adaptive {
    /// Returns the race over a kept set of a mass, after tokens whose mean is `mu`; none where adaptive-p is
    /// off.
    #[must_use]
    pub fn new(params: &SamplingParams, mu: f32, mass: impl FnOnce() -> u64) -> Option<Self> {
        let twice = params.is_adaptive().then_some(2.0 * params.adaptive_target)?;
        let goal = (twice - mu.clamp(0.0, 1.0)).clamp(0.0, 1.0);
        Some(Self { goal, sum: in_first_weights(mass()) })
    }

    /// Returns the exponent of a token in the race, given its weight in units of the first one's.
    #[must_use]
    pub fn exponent(self, ratio: f32) -> f32 {
        let p = ratio / self.sum;
        let distance = (p - self.goal).abs() * INVERSE_WIDTH;
        if p > 0.0 { -(distance * distance / (1.0 + distance) * SHARPNESS) } else { f32::NEG_INFINITY }
    }

    /// Returns the mean after a token was drawn, given its weight in units of the first one's.
    #[must_use]
    pub fn next_mu(self, params: &SamplingParams, mu: f32, ratio: f32) -> f32 {
        let decay = params.adaptive_decay;
        decay * mu.clamp(0.0, 1.0) + (1.0 - decay) * (ratio / self.sum)
    }
}

/// Returns the exponents by which the members of a kept set race: y' with adaptive-p (D3), else `y` (D1).
pub fn exponents(params: &SamplingParams, mu: f32, kept: &Given<'_>) -> impl Fn(u32) -> f32 {
    let adaptive = Adaptive::new(params, mu, || kept.total());
    move |id| adaptive.map_or_else(|| kept.y(id), |adaptive| adaptive.exponent(kept.ratio(id)))
}
