//! The fused multiply-add: `a * b + c` with one rounding.
//!
//! The library's `mul_add` is that on machines with an instruction for it, and in the C libraries of the
//! others. WebAssembly has neither, and the function that stands in for it there rounds subnormal results
//! twice.

/// Returns `a * b + c`, rounded once, to nearest even.
#[inline(always)]
#[must_use]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_family = "wasm") { by_rounding_to_odd(a, b, c) } else { a.mul_add(b, c) }
}

/// The product of two f32 is exact in f64. The sum is rounded to odd: where it is inexact, the one of its two
/// f64 neighbours whose last bit is 1 is taken. To round that to fewer bits is to round the exact sum.
#[inline(always)]
fn by_rounding_to_odd(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // TwoSum: what the rounding took off. NaN where the sum is not finite, and then nothing is changed.
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    if error.abs() > 0.0 && sum.to_bits() & 1 == 0 {
        let away = error.is_sign_negative() == sum.is_sign_negative();
        let bits = if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 };
        return f64::from_bits(bits) as f32;
    }
    sum as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(target_family = "wasm"))]
    use crate::num::philox4x32_10;

    /// The result of x86-64's fma instruction: the test holds where the library's function is not exact,
    /// too.
    #[test]
    fn a_subnormal_result_is_rounded_once() {
        // 2^-150 (1 - 2^-46) is just below half of the smallest subnormal number, by which c is odd.
        let (a, b) = (
            (1.0 + f32::EPSILON) * f32::from_bits(52 << 23),
            (1.0 - f32::EPSILON) * f32::from_bits(52 << 23),
        );
        for c in [0x0040_0001, 0x007F_FFFF, 0x0012_3457] {
            assert_eq!(fma(a, b, f32::from_bits(c)).to_bits(), c);
            assert_eq!(by_rounding_to_odd(a, b, f32::from_bits(c)).to_bits(), c);
        }
    }

    #[test]
    #[cfg(not(target_family = "wasm"))]
    fn rounding_to_odd_gives_what_the_library_gives() {
        for seed in 0..2_000_000 {
            let [a, b, c, way] = philox4x32_10(11, [seed, 0, 0, 0]);
            let near = |x: u32, exponent: u32| f32::from_bits(x & 0x807F_FFFF | exponent << 23);
            let [a, b, c] = match way % 4 {
                0 => [a, b, c].map(f32::from_bits),
                1 => [near(a, 115), near(b, 115), near(c, 127)],
                2 => [near(a & 0x8000_003F, 52), near(b | 0x007F_FFC0, 51), near(c, 0)],
                _ => [near(a & 0x8000_003F, 103), near(b | 0x007F_FFC0, 126), near(c, 128)],
            };
            let (got, want) = (by_rounding_to_odd(a, b, c), a.mul_add(b, c));
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{a:e} * {b:e} + {c:e}"
            );
        }
    }
}
