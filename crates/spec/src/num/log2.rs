//! `log2` as a polynomial of fma: monotone over every input the race can give it.
//!
//! The argument is split into a power of two and a mantissa in [0.707, 1.414), so that the polynomial
//! is evaluated around 1, where `log2` is nearly linear and the result keeps its relative precision.

#[expect(clippy::excessive_precision, reason = "nine digits name an f32 exactly")]
/// Coefficients of `P` in `log2(1 + f) = f P(f)`, lowest power first (N1).
pub const LOG2_COEFFICIENTS: [f32; 9] = [
    1.442_695_02,
    -0.721_347_392,
    0.480_909_109,
    -0.360_699_952,
    0.287_947_953,
    -0.239_030_987,
    0.215_552_017,
    -0.206_686_974,
    0.125_518_844,
];

/// Mantissas whose fraction bits exceed this are halved, and their exponent raised (N1).
pub const LOG2_SPLIT: u32 = 0x35_04F3;

/// Returns `P(f)`, so that `log2(1 + f)` is `f P(f)`, for `f` in [-0.293, 0.4143].
#[must_use]
pub fn log2_one_plus(f: f32) -> f32 {
    let mut p = LOG2_COEFFICIENTS[8];
    for c in LOG2_COEFFICIENTS[..8].iter().rev() {
        p = super::fma(p, f, *c);
    }
    p
}

/// Returns the exponent `e` and `f`, the mantissa less 1, of a positive finite `x`: `x = (1 + f) 2^e`.
///
/// Subnormals are normalised first; both parts are exact.
#[must_use]
pub fn log2_parts(x: f32) -> (i32, f32) {
    debug_assert!(x > 0.0 && x.is_finite(), "log2 of {x}");
    let (bits, bias) =
        if x.to_bits() < 0x0080_0000 { ((x * 16_777_216.0).to_bits(), 127 + 24) } else { (x.to_bits(), 127) };
    let fraction = bits & 0x007F_FFFF;
    let raise = u32::from(fraction > LOG2_SPLIT);
    let e = (bits >> 23) as i32 - bias + raise as i32;
    let m = f32::from_bits(fraction | ((127 - raise) << 23));
    (e, m - 1.0)
}

/// Returns `log2(x)` of a finite `x >= 0`; `-inf` for 0.
///
/// Relative error at most 1.4e-7; monotone over all positive floats, exhaustively (N1).
#[must_use]
pub fn log2(x: f32) -> f32 {
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    let (e, f) = log2_parts(x);
    super::fma(log2_one_plus(f), f, e as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_are_exact() {
        for e in -149..128 {
            let x = (2.0f64).powi(e) as f32;
            assert_eq!(log2(x), e as f32, "2^{e}");
        }
        assert_eq!(log2(0.0), f32::NEG_INFINITY);
    }

    #[test]
    fn agrees_with_f64_over_a_coarse_sweep() {
        for bits in (1u32..0x7F80_0000).step_by(9973) {
            let x = f32::from_bits(bits);
            let exact = f64::from(x).log2();
            let error = (f64::from(log2(x)) - exact).abs();
            assert!(error <= 1.3e-7 * exact.abs().max(1e-30) + 6.0e-8 * exact.abs(), "{x:e}: {error:e}");
        }
    }
}
