//! Measures over lanes: how the numbers of a row weigh against each other, logits or probabilities.
//!
//! A kernel that weighs takes a [`Weights`] by type, so that each kind of row has its own code and neither
//! pays for the other; [`measured!`] picks it once, from the [`Measure`] that the stages hand on.

use gumball_spec::adaptive::{Adaptive, INVERSE_WIDTH, SHARPNESS};
use gumball_spec::survey::Measure;

use crate::lanes::Lanes;
use crate::num;

/// `2^28`: the unit of a weight is its inverse.
const WEIGHT_ONE: f32 = 268_435_456.0;

/// What [`Measure`] says, over lanes, bit for bit.
pub trait Weights: Exponents {
    /// A value's weight relative to a tile's maximum, in units of 2^-28; 0 for no token.
    fn weight<L: Lanes>(self, l: L, value: L::F, maximum: L::F) -> L::U;
    /// A value's weight relative to the weight of another value, which is no smaller and a token; 0 for no
    /// token.
    fn ratio<L: Lanes>(self, l: L, value: L::F, of: L::F) -> L::F;
    /// What [`Weights::rough`] compares with: made once from a value.
    fn rough_origin<L: Lanes>(self, l: L, of: L::F) -> L::F;
    /// Adds a value's weight relative to the origin's weight to a sum: to within
    /// [`num::COARSE_ERROR`], or if `FINE` [`num::FINE_ERROR`], besides what [`Weights::rough_reach`] says.
    /// For bounds, never for results.
    fn add_rough<L: Lanes, const FINE: bool>(self, l: L, sum: L::F, value: L::F, origin: L::F) -> L::F;
    /// By how much rough weights may be off in rows whose first value is given, for the roundings on the way.
    fn rough_reach(self, first: f32) -> f64;
}

/// How tokens race.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub measure: Measure,
    /// Takes the place of the measure's own exponents (D3).
    pub adaptive: Option<Adaptive>,
}

impl From<Measure> for Pace {
    fn from(measure: Measure) -> Self {
        Self { measure, adaptive: None }
    }
}

/// The exponents by which tokens race.
pub trait Exponents: Copy {
    /// What [`Exponents::exponent`] compares with: made once from a value.
    fn origin<L: Lanes>(self, l: L, of: L::F) -> L::F;
    /// The exponent of two of a value's weight relative to the origin's; anything for no token.
    fn exponent<L: Lanes>(self, l: L, value: L::F, origin: L::F) -> L::F;
    /// The largest exponent of kept tokens whose values are at most a value; the origin is made of the first
    /// kept token's value.
    #[inline(always)]
    fn most<L: Lanes>(self, l: L, value: L::F, origin: L::F) -> L::F {
        l.min(self.exponent(l, value, origin), l.splat(0.0))
    }
    /// The exponent of one value relative to another.
    fn of_one(self, value: f32, of: f32) -> f32;
}

/// The exponents of adaptive-p (D3).
#[derive(Clone, Copy, Debug)]
pub struct Adapted<W> {
    pub weights: W,
    pub measure: Measure,
    pub adaptive: Adaptive,
}

impl<W: Weights> Exponents for Adapted<W> {
    #[inline(always)]
    fn origin<L: Lanes>(self, _l: L, of: L::F) -> L::F {
        of
    }
    #[inline(always)]
    fn exponent<L: Lanes>(self, l: L, value: L::F, origin: L::F) -> L::F {
        let goal = l.splat(self.adaptive.goal);
        let p = l.div(self.weights.ratio(l, value, origin), l.splat(self.adaptive.sum));
        let distance = l.mul(l.max(l.sub(p, goal), l.sub(goal, p)), l.splat(INVERSE_WIDTH));
        let fall = l.div(l.mul(distance, distance), l.add(l.splat(1.0), distance));
        let exponent = l.sub(l.splat(0.0), l.mul(fall, l.splat(SHARPNESS)));
        l.select(l.gt(p, l.splat(0.0)), exponent, l.splat(f32::NEG_INFINITY))
    }
    #[inline(always)]
    fn most<L: Lanes>(self, l: L, _value: L::F, _origin: L::F) -> L::F {
        l.splat(0.0)
    }
    #[inline(always)]
    fn of_one(self, value: f32, of: f32) -> f32 {
        self.adaptive.exponent(self.measure.ratio(value, of))
    }
}

/// Logits at a scale.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    pub s: f32,
}

impl Exponents for Logits {
    #[inline(always)]
    fn origin<L: Lanes>(self, _l: L, of: L::F) -> L::F {
        of
    }
    #[inline(always)]
    fn exponent<L: Lanes>(self, l: L, value: L::F, origin: L::F) -> L::F {
        l.mul(l.sub(value, origin), l.splat(self.s))
    }
    #[inline(always)]
    fn of_one(self, value: f32, of: f32) -> f32 {
        Measure::Logits { s: self.s }.exponent(value, of)
    }
}

impl Weights for Logits {
    #[inline(always)]
    fn weight<L: Lanes>(self, l: L, value: L::F, maximum: L::F) -> L::U {
        num::weight(l, self.exponent(l, value, maximum))
    }
    #[inline(always)]
    fn ratio<L: Lanes>(self, l: L, value: L::F, of: L::F) -> L::F {
        num::exp2(l, self.exponent(l, value, of))
    }
    #[inline(always)]
    fn rough_origin<L: Lanes>(self, l: L, of: L::F) -> L::F {
        l.sub(l.splat(num::ROUGH_BIAS), l.mul(of, l.splat(self.s * num::ROUGH_UNIT)))
    }
    #[inline(always)]
    fn add_rough<L: Lanes, const FINE: bool>(self, l: L, sum: L::F, value: L::F, origin: L::F) -> L::F {
        let bits = l.fma(value, l.splat(self.s * num::ROUGH_UNIT), origin);
        num::add_rough_exp2::<L, FINE>(l, sum, bits)
    }
    fn rough_reach(self, first: f32) -> f64 {
        // Of tiles that have a factor, no exponent lies further below 0 than this one and 126, nor has the
        // origin more than that and the bias. Each of these is rounded in its last bit, two of them twice.
        let exponent = f64::from(first.abs()) * f64::from(self.s) + 126.0;
        4.0 * (exponent + 127.0) * f64::from(f32::EPSILON)
    }
}

/// Probabilities, which need not sum to 1. What is no token is 0, -inf or, in a row that was not cleaned,
/// below 0 or NaN, and compares below every token.
#[derive(Clone, Copy, Debug)]
pub struct Probabilities;

impl Exponents for Probabilities {
    #[inline(always)]
    fn origin<L: Lanes>(self, l: L, of: L::F) -> L::F {
        num::log2_of_any(l, of)
    }
    #[inline(always)]
    fn exponent<L: Lanes>(self, l: L, value: L::F, origin: L::F) -> L::F {
        l.sub(num::log2_of_any(l, value), origin)
    }
    #[inline(always)]
    fn of_one(self, value: f32, of: f32) -> f32 {
        Measure::Probabilities.exponent(value, of)
    }
}

impl Weights for Probabilities {
    #[inline(always)]
    fn weight<L: Lanes>(self, l: L, value: L::F, maximum: L::F) -> L::U {
        l.to_int(l.mul(self.ratio(l, value, maximum), l.splat(WEIGHT_ONE)))
    }
    #[inline(always)]
    fn ratio<L: Lanes>(self, l: L, value: L::F, of: L::F) -> L::F {
        // The maximum with 0 turns NaN into 0 as well.
        l.div(l.max(value, l.splat(0.0)), of)
    }
    #[inline(always)]
    fn rough_origin<L: Lanes>(self, _l: L, of: L::F) -> L::F {
        of
    }
    #[inline(always)]
    fn add_rough<L: Lanes, const FINE: bool>(self, l: L, sum: L::F, value: L::F, origin: L::F) -> L::F {
        l.add(sum, self.ratio(l, value, origin))
    }
    fn rough_reach(self, _first: f32) -> f64 {
        0.0
    }
}

/// Calls with the [`Weights`] of a [`Measure`].
macro_rules! measured {
    ($measure:expr, |$weights:ident| $body:expr) => {
        match $measure {
            gumball_spec::survey::Measure::Logits { s } => {
                let $weights = $crate::measure::Logits { s };
                $body
            }
            gumball_spec::survey::Measure::Probabilities => {
                let $weights = $crate::measure::Probabilities;
                $body
            }
        }
    };
}
pub(crate) use measured;

/// Returns the least value whose weight can matter beside the weight of `first`: the weight of all smaller
/// ones together, 2^20 at most, hardly does.
pub fn least_that_matters(measure: Measure, first: f32) -> f32 {
    const NEGLIGIBLE: f32 = 48.0;
    match measure {
        Measure::Logits { s } => first - NEGLIGIBLE / s,
        Measure::Probabilities => first * f32::from_bits((127 - NEGLIGIBLE as u32) << 23),
    }
}
