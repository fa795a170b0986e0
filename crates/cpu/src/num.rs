//! `gumball_spec::num` over lanes, bit for bit.

use gumball_spec::num::{EXP2_COEFFICIENTS, LOG2_COEFFICIENTS, LOG2_SPLIT, SWITCH_32, SWITCH_64};

use crate::lanes::Lanes;

/// `2^28`: the unit of a weight is its inverse.
const WEIGHT_ONE: f32 = 268_435_456.0;

/// Horner's rule over `N` coefficients times `unit`, lowest power first.
#[inline(always)]
fn horner<L: Lanes, const N: usize>(l: L, coefficients: &[f32; N], unit: f32, x: L::F) -> L::F {
    let mut p = l.splat(coefficients[N - 1] * unit);
    for i in (0..N - 1).rev() {
        p = l.fma(p, x, l.splat(coefficients[i] * unit));
    }
    p
}

/// `2^d` for `d <= 0`, +0 for `d < -126`.
#[inline(always)]
pub fn exp2<L: Lanes>(l: L, d: L::F) -> L::F {
    let in_range = l.ge(d, l.splat(-126.0));
    // Far below the range the fraction would be NaN.
    let n = l.round(l.max(d, l.splat(-126.0)));
    let f = l.sub(l.max(d, l.splat(-126.0)), n);
    l.select(in_range, l.scale(horner(l, &EXP2_COEFFICIENTS, 1.0, f), n), l.splat(0.0))
}

/// `round(2^28 2^d)` for `d <= 0`, -inf included: a token's weight within its tile (M3).
///
/// The unit is folded into the coefficients, which scales every intermediate exactly. Below -29 the weight
/// rounds to 0 for any value.
#[inline(always)]
pub fn weight<L: Lanes>(l: L, d: L::F) -> L::U {
    let (n, f) = l.split(d);
    l.to_int(l.scale(horner(l, &EXP2_COEFFICIENTS, WEIGHT_ONE, f), n))
}

/// The bits of a float per unit of its exponent, and the bits of 1: `d ROUGH_UNIT + ROUGH_BIAS` are about the
/// bits of `2^d`.
pub const ROUGH_UNIT: f32 = 8_388_608.0;
pub const ROUGH_BIAS: f32 = 127.0 * ROUGH_UNIT;

/// Adds `2^d`, told from its bits as a line between whole `d` has them, which may be any number, to a sum: to
/// within [`COARSE_ERROR`], or if `FINE` [`FINE_ERROR`], or 2^-126.
#[inline(always)]
pub fn add_rough_exp2<L: Lanes, const FINE: bool>(l: L, sum: L::F, bits: L::F) -> L::F {
    let bits = l.to_int(l.max(bits, l.splat(0.0)));
    let line = l.float_of_bits(bits);
    if !FINE {
        return l.fma(line, l.splat(COARSE_MIDDLE), sum);
    }
    let mantissa = l.or(l.and(bits, l.splat_u(0x007F_FFFF)), l.splat_u(0x3F80_0000));
    l.fma(line, horner(l, &FINE_COEFFICIENTS, 1.0, l.float_of_bits(mantissa)), sum)
}

/// A line from 1 to 2 is at most 1.06148 times the power of two, and on average 1.04068 times.
const COARSE_MIDDLE: f32 = 0.970_178_8;
/// What rough weights are on average where they are not fine.
pub const COARSE_MEAN: f64 = 1.040_68 * 0.970_178_8;
/// By how much rough weights may be off, relative to the true ones.
pub const COARSE_ERROR: f64 = 0.029_83;
/// Coefficients of a polynomial near `2^(m - 1) / m` for `m` from 1 to 2, lowest power first.
const FINE_COEFFICIENTS: [f32; 4] = [1.775_614_7, -1.377_307_6, 0.707_475_8, -0.106_445_7];
/// By how much fine rough weights may be off, relative to the true ones, roundings of their evaluation
/// included.
pub const FINE_ERROR: f64 = 6.64e-4;

/// The exponent of positive normal `x`, and its mantissa less 1 (N1).
#[inline(always)]
fn log2_parts<L: Lanes>(l: L, x: L::F) -> (L::F, L::F) {
    let bits = l.bits(x);
    let fraction = l.and(bits, l.splat_u(0x007F_FFFF));
    let raised = l.less_u(l.splat_u(LOG2_SPLIT), fraction);
    let m = l.or(fraction, l.select_u(raised, l.splat_u(126 << 23), l.splat_u(127 << 23)));
    let e = l.sub_u(l.shr::<23>(bits), l.select_u(raised, l.splat_u(126), l.splat_u(127)));
    (l.float_of_int(e), l.sub(l.float_of_bits(m), l.splat(1.0)))
}

/// `log2(x)` of finite `x`, subnormals included; -inf for 0 and below.
#[inline(always)]
pub fn log2_of_any<L: Lanes>(l: L, x: L::F) -> L::F {
    let subnormal = l.gt(l.splat(f32::MIN_POSITIVE), x);
    let lifted = l.mul(x, l.splat(TWO_POW_24));
    let (e, f) = log2_parts(l, l.select(subnormal, lifted, x));
    let e = l.select(subnormal, l.sub(e, l.splat(24.0)), e);
    let log = l.fma(horner(l, &LOG2_COEFFICIENTS, 1.0, f), f, e);
    l.select(l.gt(x, l.splat(0.0)), log, l.splat(f32::NEG_INFINITY))
}

/// Lifts every subnormal to a normal number.
const TWO_POW_24: f32 = 16_777_216.0;

/// `log2(x)` of positive normal `x`.
#[inline(always)]
pub fn log2<L: Lanes>(l: L, x: L::F) -> L::F {
    let (e, f) = log2_parts(l, x);
    l.fma(horner(l, &LOG2_COEFFICIENTS, 1.0, f), f, e)
}

/// The exponential variable of a uniform `v`, computed from `v` where `near` and else from `1 - v`, which is
/// what `v` then holds. Both branches share the polynomial.
#[inline(always)]
fn exponential<L: Lanes>(l: L, near: u16, v: L::F) -> L::F {
    let zero = l.splat(0.0);
    let (e, f) = log2_parts(l, v);
    let p = horner(l, &LOG2_COEFFICIENTS, 1.0, l.select(near, l.sub(zero, v), f));
    l.select(near, l.mul(v, p), l.sub(zero, l.fma(p, f, e)))
}

/// `Exp` of 32-bit words (N3).
#[inline(always)]
pub fn exp_of_u32<L: Lanes>(l: L, r: L::U) -> L::F {
    let near = l.less_u(r, l.splat_u(SWITCH_32));
    let word = l.select_u(near, r, l.xor(r, l.splat_u(u32::MAX)));
    let low = l.or(l.shl::<1>(word), l.splat_u(1));
    let v = l.mul(l.float_of_u64(l.shr::<31>(word), low), l.splat(f32::from_bits((127 - 33) << 23)));
    exponential(l, near, v)
}

/// `Exp` of 64-bit words, high word first (N4).
#[inline(always)]
pub fn exp_of_u64<L: Lanes>(l: L, hi: L::U, lo: L::U) -> L::F {
    let switch_hi = l.splat_u((SWITCH_64 >> 32) as u32);
    let switch_lo = l.splat_u(SWITCH_64 as u32);
    let near = l.less_u(hi, switch_hi) | l.equal_u(hi, switch_hi) & l.less_u(lo, switch_lo);
    let ones = l.splat_u(u32::MAX);
    let hi = l.select_u(near, hi, l.xor(hi, ones));
    let lo = l.select_u(near, lo, l.xor(lo, ones));
    // max(U, 1), on the float: 0 is the only integer that converts to less than 1.
    let u = l.max(l.float_of_u64(hi, lo), l.splat(1.0));
    exponential(l, near, l.mul(u, l.splat(f32::from_bits((127 - 64) << 23))))
}

#[cfg(test)]
mod tests {
    use gumball_spec::num as spec;

    use super::*;
    use crate::lanes::{Kernel, Proven, WIDTH, dispatch};

    struct Check(u32);

    impl Kernel for Check {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let f = |v: L::F| {
                let mut out = [0.0; WIDTH];
                l.store(v, &mut out);
                out.map(f32::to_bits)
            };
            let u = |v: L::U| {
                let mut out = [0; WIDTH];
                l.store_u(v, &mut out);
                out
            };
            let index: [u32; WIDTH] = std::array::from_fn(|i| self.0 * WIDTH as u32 + i as u32);
            let words = l.philox(0x1234_5678_9ABC_DEF0, l.load_u(&index), [3, 1, 5]);
            let want = index.map(|i| spec::philox4x32_10(0x1234_5678_9ABC_DEF0, [i, 3, 1, 5]));
            for (j, word) in words.into_iter().enumerate() {
                assert_eq!(u(word), want.map(|want| want[j]));
            }

            let r = u(words[0]);
            assert_eq!(f(exp_of_u32(l, l.load_u(&r))), r.map(|r| spec::exp_of_u32(r).to_bits()));
            // Small, ordinary and large 64-bit words: shifts move the leading bit everywhere.
            let hi: [u32; WIDTH] = std::array::from_fn(|i| match i % 4 {
                0 => r[i],
                1 => r[i] >> (self.0 % 32),
                2 => 0,
                _ => !(r[i] >> (self.0 % 32)),
            });
            let lo = u(words[1]).map(|w| w >> (self.0 % 29));
            let want = std::array::from_fn(|i| {
                spec::exp_of_u64(u64::from(hi[i]) << 32 | u64::from(lo[i])).to_bits()
            });
            assert_eq!(f(exp_of_u64(l, l.load_u(&hi), l.load_u(&lo))), want);

            let x = r.map(|r| f32::from_bits(r % 0x7F00_0000 + 0x0080_0000));
            assert_eq!(f(log2(l, l.load(&x))), x.map(|x| spec::log2(x).to_bits()));
            let any = r.map(|r| f32::from_bits((r % 0x7F80_0000) >> (r % 9)));
            assert_eq!(f(log2_of_any(l, l.load(&any))), any.map(|x| spec::log2(x).to_bits()));
            let none = std::array::from_fn(|i| if i % 2 == 0 { 0.0 } else { -f32::from_bits(r[i] >> 2) });
            assert_eq!(f(log2_of_any(l, l.load(&none))), [f32::NEG_INFINITY.to_bits(); WIDTH]);
            let d = r.map(|r| if r % 64 == 0 { f32::NEG_INFINITY } else { (r >> 4) as f32 * -5e-7 });
            assert_eq!(f(exp2(l, l.load(&d))), d.map(|d| spec::exp2(d).to_bits()));
            let bits = l.fma(l.load(&d), l.splat(ROUGH_UNIT), l.splat(ROUGH_BIAS));
            let of = [
                f(add_rough_exp2::<L, false>(l, l.splat(0.0), bits)),
                f(add_rough_exp2::<L, true>(l, l.splat(0.0), bits)),
            ];
            for (rough, limit) in of.into_iter().zip([COARSE_ERROR, FINE_ERROR]) {
                for (rough, d) in rough.into_iter().zip(d) {
                    let error = (f64::from(f32::from_bits(rough)) - f64::from(d).exp2()).abs();
                    assert!(error <= (limit + 2e-5) * f64::from(d).exp2() + 2e-38, "{d}: {error:e}");
                }
            }
            let weights = d.map(|d| (spec::exp2(d * 0.3) * 268_435_456.0).round_ties_even() as u32);
            assert_eq!(u(weight(l, l.mul(l.load(&d), l.splat(0.3)))), weights);
        }
    }

    #[test]
    fn all_levels_agree_with_the_definition() {
        for level in Proven::all() {
            for i in 0..20_000 {
                dispatch(level, Check(i));
            }
        }
    }
}
