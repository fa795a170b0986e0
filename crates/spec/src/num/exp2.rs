//! `exp2` as a polynomial of fma, flushed to zero below 2^-126.
//!
//! It is accurate but not monotone to the last bit, so nothing is ever ordered by it: cuts come from
//! keys and from `y`.

#[expect(clippy::excessive_precision, reason = "nine digits name an f32 exactly")]
/// Coefficients of `2^f` for `f` in [-0.5, 0.5], lowest power first (N2).
pub const EXP2_COEFFICIENTS: [f32; 7] = [
    1.0,
    0.693_147_182,
    0.240_226_477,
    0.055_503_595_6,
    0.009_618_500_25,
    0.001_339_097_16,
    0.000_153_290_152,
];

/// Returns `2^d` for `d <= 0`, and +0 for `d < -126` (`-inf` included).
///
/// Relative error at most 6.8e-8. The result is never subnormal: scaling is an addition to the
/// exponent.
#[must_use]
pub fn exp2(d: f32) -> f32 {
    debug_assert!(d <= 0.0, "exp2 of {d}");
    if d < -126.0 {
        return 0.0;
    }
    let n = d.round_ties_even();
    let f = d - n;
    let mut p = EXP2_COEFFICIENTS[6];
    for c in EXP2_COEFFICIENTS[..6].iter().rev() {
        p = super::fma(p, f, *c);
    }
    f32::from_bits(p.to_bits().wrapping_add(((n as i32) << 23) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_powers_are_exact_and_the_floor_is_zero() {
        for e in -126..=0 {
            assert_eq!(exp2(e as f32), (2.0f64).powi(e) as f32);
        }
        assert_eq!(exp2(-126.000_01), 0.0);
        assert_eq!(exp2(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp2(-0.0), 1.0);
    }

    #[test]
    fn agrees_with_f64_over_a_coarse_sweep() {
        for i in 0..1_260_000 {
            let d = -(i as f32) * 1e-4;
            let exact = f64::from(d).exp2();
            let error = (f64::from(exp2(d)) - exact).abs() / exact;
            assert!(error <= 7.0e-8, "{d}: {error:e}");
        }
    }
}
