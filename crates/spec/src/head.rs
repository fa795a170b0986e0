//! The head: from a hidden state to the logits of a row, naively (rules H1 to H4).
//!
//! One function for one product, one for what follows it. Weights and hidden states may be f32, bf16 or f16;
//! all arithmetic is f32, in one order that sixteen SIMD lanes and two threads of a GPU can keep alike.
//! [`clusters`] has the row of a clustered head (H7, H8).

pub mod clusters;

use crate::num::exp2;
use crate::{Error, Result, Row};

/// How many partial sums a product has (H1).
pub const PARTIAL_SUMS: usize = 16;

/// The largest width of hidden states.
pub const MAX_HIDDEN: usize = 1 << 16;

/// 2 log2(e) (H2).
pub const TWO_LOG2_E: f32 = f32::from_bits(0x4038_AA3B);

/// The least softcap but 0: for subnormal ones the error below would not hold.
const LEAST_SOFTCAP: f32 = f32::from_bits((127 - 64) << 23);

/// How far [`softcap`] is from the exact hyperbolic tangent at most, in units of the bound: derived in
/// `docs/numerics.md`.
pub const SOFTCAP_ERROR: f64 = 4.8e-7;

/// What follows the product of every logit (H2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The factor of every logit, in (0, 2^16]; 1: none.
    pub logit_scale: f32,
    /// The bound that a hyperbolic tangent keeps logits below, 2^-64 to 2^16; 0: none.
    pub softcap: f32,
}

impl Default for Scaling {
    fn default() -> Self {
        Self { logit_scale: 1.0, softcap: 0.0 }
    }
}

impl Scaling {
    /// Checks both numbers.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a number outside its range, NaN included.
    pub fn check(&self) -> Result<()> {
        const MOST: f32 = 65_536.0;
        if !(self.logit_scale > 0.0 && self.logit_scale <= MOST) {
            return Err(Error::out_of_range("logit_scale", self.logit_scale, "in (0, 2^16]"));
        }
        if self.softcap != 0.0 && !(LEAST_SOFTCAP..=MOST).contains(&self.softcap) {
            return Err(Error::out_of_range("softcap", self.softcap, "0, or in 2^-64..=2^16"));
        }
        Ok(())
    }
}

/// Returns the product of a row of weights and a hidden state of the same length (H1).
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn product(weights: Row<'_>, hidden: Row<'_>) -> f32 {
    let width = weights.vocab();
    assert_eq!(hidden.vocab(), width, "elements of a hidden state");
    let value = |row: Row<'_>, i: usize| if i < width { row.logit(i) } else { 0.0 };
    let mut sums = [0.0f32; PARTIAL_SUMS];
    for i in 0..width.next_multiple_of(PARTIAL_SUMS) {
        let sum = &mut sums[i % PARTIAL_SUMS];
        *sum = crate::num::fma(value(weights, i), value(hidden, i), *sum);
    }
    for half in [8, 4, 2, 1] {
        for j in 0..half {
            sums[j] += sums[j + half];
        }
    }
    sums[0]
}

/// Returns the logit of a product (H2); a NaN as the one of the bits `0x7FC00000` (H3).
#[must_use]
pub fn logit(product: f32, bias: Option<f32>, scaling: &Scaling) -> f32 {
    let mut z = product;
    if let Some(bias) = bias {
        z += bias;
    }
    z *= scaling.logit_scale;
    if scaling.softcap > 0.0 {
        z = softcap(z, scaling.softcap);
    }
    if z.is_nan() { f32::NAN } else { z }
}

/// Returns `cap tanh(z / cap)`, computed by `exp2` (H2).
#[must_use]
pub fn softcap(z: f32, cap: f32) -> f32 {
    if z.is_nan() {
        return z;
    }
    let e = exp2(-(z.abs() / cap * TWO_LOG2_E));
    (cap * ((1.0 - e) / (1.0 + e))).copysign(z)
}

/// Returns the row of a hidden state: a logit for each row of weights, which follow each other.
///
/// # Panics
/// If the weights are no whole number of rows of the hidden state's length, or there is not one bias for each
/// of them.
#[must_use]
pub fn logits(weights: Row<'_>, hidden: Row<'_>, bias: Option<&[f32]>, scaling: &Scaling) -> Vec<f32> {
    let width = hidden.vocab();
    let vocab = weights.vocab() / width;
    assert_eq!(vocab * width, weights.vocab(), "rows of {width} weights");
    assert!(bias.is_none_or(|bias| bias.len() == vocab), "one bias for each of {vocab} ids");
    let of_id = |id: usize| {
        let weights = weights.part(id * width..(id + 1) * width);
        logit(product(weights, hidden), bias.map(|bias| bias[id]), scaling)
    };
    (0..vocab).map(of_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_adds_in_the_order_of_the_rule() {
        // 2^24 in partial sum 0 takes up no 1, but a tree adds the ones of the other sums first where they
        // meet.
        let mut weights = vec![1.0f32; 17];
        weights[0] = 16_777_216.0;
        let hidden = vec![1.0f32; 17];
        // Sum 0: 2^24 + 1 rounds to 2^24. With sum 8: 2^24 + 1 again; with 4 + 12: + 2; with 2, 6, 10, 14: +
        // 4; with the odd ones: + 8.
        assert_eq!(product(Row::F32(&weights), Row::F32(&hidden)), 16_777_216.0 + 14.0);
        // In one partial sum: (1 + 2^-20)^2 is not rounded before 1 is taken away.
        let (mut w, mut h) = ([0.0f32; 17], [0.0f32; 17]);
        let near = 1.0 + f32::from_bits((127 - 20) << 23);
        (w[0], h[0]) = (-1.0, 1.0);
        (w[16], h[16]) = (near, near);
        assert_eq!(f64::from(product(Row::F32(&w), Row::F32(&h))), f64::from(near).powi(2) - 1.0);
    }

    #[test]
    fn a_soft_cap_is_a_hyperbolic_tangent_and_never_beyond_its_bound() {
        for cap in [LEAST_SOFTCAP, 0.5f32, 1.0, 30.0, 50.0, 65_536.0] {
            let mut last = 0.0f32;
            for i in 0..400_000u32 {
                let z = f32::from_bits(i * (0x7F80_0000 / 400_000));
                let (capped, exact) =
                    (softcap(z, cap), f64::from(cap) * (f64::from(z) / f64::from(cap)).tanh());
                let error = (f64::from(capped) - exact).abs() / f64::from(cap);
                assert!(error <= SOFTCAP_ERROR, "{z} {cap}: {error:e}");
                assert!(capped <= cap && capped >= last - cap * 2.0 * SOFTCAP_ERROR as f32);
                assert_eq!(softcap(-z, cap), -capped);
                last = capped;
            }
            assert_eq!(softcap(f32::INFINITY, cap), cap);
            assert!(softcap(f32::NAN, cap).is_nan());
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        for logit_scale in [0.0, -1.0, f32::NAN, 65_537.0] {
            let error = Scaling { logit_scale, ..Default::default() }.check().unwrap_err();
            assert!(error.to_string().starts_with("logit_scale is "), "{error}");
        }
        for softcap in [-1.0, f32::NAN, f32::INFINITY, f32::from_bits(1), LEAST_SOFTCAP.next_down()] {
            assert!(Scaling { softcap, ..Default::default() }.check().is_err());
        }
        assert_eq!(Scaling { logit_scale: 0.0625, softcap: 30.0 }.check(), Ok(()));
    }
}
