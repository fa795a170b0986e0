//! Lanes in four 128-bit vectors of WebAssembly, without its relaxed instructions, whose results differ
//! between machines.
//!
//! There is no fma: [`Simd128::fma`] goes through f64, and through round-to-odd where that could be wrong.

use std::arch::wasm32::*;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Kernel, Lanes, Mask, WIDTH};

/// Runs a kernel over vectors of WebAssembly, as a function of its own: modules are fetched before they run.
#[inline(never)]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Simd128(()))
}

/// Four vectors. The module that this is compiled into has the instructions, or no machine would load it.
#[derive(Clone, Copy, Debug)]
pub struct Simd128(());

type V = [v128; 4];

/// Loads the `i`-th sixteen bytes of an array.
macro_rules! at {
    ($from:expr, $i:expr) => {
        // SAFETY: the caller's array has as many bytes, and the access is unaligned.
        unsafe { v128_load($from.as_ptr().cast::<v128>().wrapping_add($i)) }
    };
}

/// Stores the `i`-th sixteen bytes of an array.
macro_rules! put {
    ($to:expr, $i:expr, $v:expr) => {
        // SAFETY: the caller's array has as many bytes, and the access is unaligned.
        unsafe { v128_store($to.as_mut_ptr().cast::<v128>().wrapping_add($i), $v) }
    };
}

/// Applies an expression to all four vectors.
macro_rules! each {
    (|$($name:ident),+| $call:expr) => {
        [
            { $(let $name = $name[0];)+ $call },
            { $(let $name = $name[1];)+ $call },
            { $(let $name = $name[2];)+ $call },
            { $(let $name = $name[3];)+ $call },
        ]
    };
}

/// Gathers the sign bits of all lanes.
#[inline(always)]
fn gather(v: V) -> Mask {
    let four = |i: usize| Mask::from(i32x4_bitmask(v[i])) << (4 * i);
    four(0) | four(1) | four(2) | four(3)
}

/// Spreads a mask over the lanes, all bits of a lane alike.
#[inline(always)]
fn spread(mask: Mask) -> V {
    let all = u32x4_splat(u32::from(mask));
    let lanes = |i: u32| {
        let bits = u32x4(1 << i, 2 << i, 4 << i, 8 << i);
        i32x4_eq(v128_and(all, bits), bits)
    };
    [lanes(0), lanes(4), lanes(8), lanes(12)]
}

/// The upper two lanes of four, moved down.
#[inline(always)]
fn upper(v: v128) -> v128 {
    i64x2_shuffle::<1, 1>(v, v)
}

/// Two vectors of two f64 as one of four f32, each rounded once.
#[inline(always)]
fn narrow(low: v128, high: v128) -> v128 {
    i64x2_shuffle::<0, 2>(f32x4_demote_f64x2_zero(low), f32x4_demote_f64x2_zero(high))
}

/// Lanes whose rounding to f32 may differ from the exact sum's rounding: lanes half way
/// between two f32, and all small ones, in which f32 have fewer bits. Elsewhere the sum lies on the same side
/// of each halfway point as before.
#[inline(always)]
fn in_doubt(sum: v128) -> v128 {
    let half = i64x2_eq(i64x2_shl(sum, 35), i64x2_splat(i64::MIN));
    v128_or(half, f64x2_lt(f64x2_abs(sum), f64x2_splat(f64::from(f32::MIN_POSITIVE))))
}

/// `p + c` rounded to odd: where the sum is inexact, the one of its two f64 neighbours whose last bit is 1.
/// To round that to fewer bits is to round the exact sum.
#[inline(always)]
fn add_to_odd(p: v128, c: v128) -> v128 {
    let sum = f64x2_add(p, c);
    // TwoSum: what the rounding took off. NaN where the sum is not finite, and then nothing is changed.
    let part = f64x2_sub(sum, p);
    let error = f64x2_add(f64x2_sub(p, f64x2_sub(sum, part)), f64x2_sub(c, part));
    let inexact = f64x2_gt(f64x2_abs(error), f64x2_splat(0.0));
    // All ones where the last bit is 0; then 1 away from zero or towards it, by the signs.
    let even = i64x2_sub(v128_and(sum, i64x2_splat(1)), i64x2_splat(1));
    let step = v128_or(i64x2_shr(v128_xor(sum, error), 63), i64x2_splat(1));
    i64x2_add(sum, v128_and(step, v128_and(inexact, even)))
}

/// A product of two f32 is exact in f64.
#[inline(always)]
fn products(a: v128, b: v128) -> [v128; 2] {
    let low = f64x2_mul(f64x2_promote_low_f32x4(a), f64x2_promote_low_f32x4(b));
    [low, f64x2_mul(f64x2_promote_low_f32x4(upper(a)), f64x2_promote_low_f32x4(upper(b)))]
}

/// The fma of all lanes by round-to-odd, which is always right.
#[inline(never)]
fn fma_to_odd(a: &V, b: &V, c: &V) -> V {
    let mut out = *c;
    for i in 0..4 {
        let [low, high] = products(a[i], b[i]);
        let low = add_to_odd(low, f64x2_promote_low_f32x4(c[i]));
        let high = add_to_odd(high, f64x2_promote_low_f32x4(upper(c[i])));
        out[i] = narrow(low, high);
    }
    out
}

/// The first two of the 64-bit integers `hi << 32 | lo` as f64, exactly where these need at most 53 bits.
#[inline(always)]
fn wide_to_f64(hi: v128, lo: v128) -> v128 {
    let high = f64x2_mul(f64x2_convert_low_u32x4(hi), f64x2_splat(4_294_967_296.0));
    f64x2_add(high, f64x2_convert_low_u32x4(lo))
}

impl Lanes for Simd128 {
    type F = V;
    type U = V;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        run(kernel)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [f32x4_splat(x); 4]
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> V {
        [u32x4_splat(x); 4]
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> V {
        [at!(from, 0), at!(from, 1), at!(from, 2), at!(from, 3)]
    }
    #[inline(always)]
    fn load_u(self, from: &[u32; WIDTH]) -> V {
        [at!(from, 0), at!(from, 1), at!(from, 2), at!(from, 3)]
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; WIDTH]) -> V {
        let (low, high, zero) = (at!(from, 0), at!(from, 1), u32x4_splat(0));
        let first = |v| u16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(zero, v);
        let last = |v| u16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(zero, v);
        [first(low), last(low), first(high), last(high)]
    }
    /// Even places, then odd ones: no shuffles.
    #[inline(always)]
    fn load_bf16_in_any_order(self, from: &[bf16; WIDTH]) -> V {
        let (low, high, odd) = (at!(from, 0), at!(from, 1), u32x4_splat(0xFFFF_0000));
        [u32x4_shl(low, 16), v128_and(low, odd), u32x4_shl(high, 16), v128_and(high, odd)]
    }
    /// The bits of a half, moved into their places, are a float that is smaller by 2^112, subnormal numbers
    /// too; infinities and NaN get their exponent.
    #[inline(always)]
    fn load_f16(self, from: &[f16; WIDTH]) -> V {
        let (low, high) = (at!(from, 0), at!(from, 1));
        let wide = [
            u32x4_extend_low_u16x8(low),
            u32x4_extend_high_u16x8(low),
            u32x4_extend_low_u16x8(high),
            u32x4_extend_high_u16x8(high),
        ];
        let scale = u32x4_splat((127 + 112) << 23);
        each!(|wide| {
            let sign = u32x4_shl(v128_and(wide, u32x4_splat(0x8000)), 16);
            let rest = v128_and(wide, u32x4_splat(0x7FFF));
            let finite = f32x4_mul(u32x4_shl(rest, 13), scale);
            let special = v128_and(u32x4_gt(rest, u32x4_splat(0x7BFF)), u32x4_splat(0x7F80_0000));
            v128_or(v128_or(finite, special), sign)
        })
    }
    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; WIDTH]) {
        for i in 0..4 {
            put!(to, i, v[i]);
        }
    }
    #[inline(always)]
    fn store_u(self, v: V, to: &mut [u32; WIDTH]) {
        for i in 0..4 {
            put!(to, i, v[i]);
        }
    }
    #[inline(always)]
    fn store_bf16(self, v: V, to: &mut [bf16; WIDTH]) {
        let bits = self.bf16_bits(v);
        for i in 0..2 {
            put!(to, i, u16x8_shuffle::<0, 2, 4, 6, 8, 10, 12, 14>(bits[2 * i], bits[2 * i + 1]));
        }
    }
    #[inline(always)]
    fn store_f16(self, v: V, to: &mut [f16; WIDTH]) {
        let mut singles = [0.0; WIDTH];
        self.store(v, &mut singles);
        to.convert_from_f32_slice(&singles);
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_div(a, b))
    }
    /// The f64 sum and the f32 round once each. Where that could differ from one rounding, the sum is rounded
    /// to odd instead.
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        let mut out = c;
        let mut doubt = u32x4_splat(0);
        for i in 0..4 {
            let [low, high] = products(a[i], b[i]);
            let low = f64x2_add(low, f64x2_promote_low_f32x4(c[i]));
            let high = f64x2_add(high, f64x2_promote_low_f32x4(upper(c[i])));
            doubt = v128_or(doubt, v128_or(in_doubt(low), in_doubt(high)));
            out[i] = narrow(low, high);
        }
        if v128_any_true(doubt) { fma_to_odd(&a, &b, &c) } else { out }
    }
    /// `pmax(b, a)` is `b < a ? a : b`.
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_pmax(b, a))
    }
    /// `pmin(b, a)` is `a < b ? a : b`.
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        each!(|a, b| f32x4_pmin(b, a))
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        each!(|a| f32x4_nearest(a))
    }
    #[inline(always)]
    fn scale(self, a: V, n: V) -> V {
        self.add_u(a, self.shl::<23>(self.to_int(n)))
    }
    #[inline(always)]
    fn ge(self, a: V, b: V) -> Mask {
        gather(each!(|a, b| f32x4_ge(a, b)))
    }
    #[inline(always)]
    fn gt(self, a: V, b: V) -> Mask {
        gather(each!(|a, b| f32x4_gt(a, b)))
    }
    #[inline(always)]
    fn equal(self, a: V, b: V) -> Mask {
        gather(each!(|a, b| f32x4_eq(a, b)))
    }
    #[inline(always)]
    fn within(self, a: V, low: V, high: V) -> Mask {
        gather(each!(|a, low, high| v128_and(f32x4_ge(a, low), f32x4_le(a, high))))
    }
    /// All ones in some lanes, once NaN was seen.
    type Seen = v128;
    #[inline(always)]
    fn seen_nothing(self) -> v128 {
        u32x4_splat(0)
    }
    #[inline(always)]
    fn see(self, seen: v128, a: V, b: V) -> v128 {
        let nan = each!(|a, b| v128_or(f32x4_ne(a, a), f32x4_ne(b, b)));
        v128_or(seen, v128_or(v128_or(nan[0], nan[1]), v128_or(nan[2], nan[3])))
    }
    #[inline(always)]
    fn has_seen_nan(self, seen: v128) -> bool {
        v128_any_true(seen)
    }
    #[inline(always)]
    fn select(self, mask: Mask, a: V, b: V) -> V {
        self.select_u(mask, a, b)
    }
    #[inline(always)]
    fn reduce_add(self, a: V) -> f32 {
        let a = f32x4_add(f32x4_add(a[0], a[1]), f32x4_add(a[2], a[3]));
        let a = f32x4_add(a, upper(a));
        f32x4_extract_lane::<0>(a) + f32x4_extract_lane::<1>(a)
    }
    #[inline(always)]
    fn reduce_max(self, a: V) -> f32 {
        let a = f32x4_pmax(f32x4_pmax(a[0], a[1]), f32x4_pmax(a[2], a[3]));
        let a = f32x4_pmax(a, upper(a));
        let (first, second) = (f32x4_extract_lane::<0>(a), f32x4_extract_lane::<1>(a));
        if first > second { first } else { second }
    }
    #[inline(always)]
    fn bits(self, a: V) -> V {
        a
    }
    #[inline(always)]
    fn float_of_bits(self, a: V) -> V {
        a
    }
    #[inline(always)]
    fn float_of_int(self, a: V) -> V {
        each!(|a| f32x4_convert_i32x4(a))
    }
    #[inline(always)]
    fn to_int(self, a: V) -> V {
        each!(|a| i32x4_trunc_sat_f32x4(f32x4_nearest(a)))
    }
    #[inline(always)]
    fn float_of_u64(self, hi: V, lo: V) -> V {
        each!(|hi, lo| {
            // Where the integer needs more bits than a double has, its low 11 become one sticky bit, as in
            // `avx2.rs`.
            let wide = u32x4_gt(u32x4_shr(hi, 21), u32x4_splat(0));
            let low = u32x4_splat(0x7FF);
            let none = i32x4_eq(v128_and(lo, low), u32x4_splat(0));
            let sticky = v128_andnot(u32x4_splat(0x800), none);
            let lo = v128_bitselect(v128_or(v128_andnot(lo, low), sticky), lo, wide);
            narrow(wide_to_f64(hi, lo), wide_to_f64(upper(hi), upper(lo)))
        })
    }
    #[inline(always)]
    fn add_u(self, a: V, b: V) -> V {
        each!(|a, b| i32x4_add(a, b))
    }
    #[inline(always)]
    fn sub_u(self, a: V, b: V) -> V {
        each!(|a, b| i32x4_sub(a, b))
    }
    #[inline(always)]
    fn and(self, a: V, b: V) -> V {
        each!(|a, b| v128_and(a, b))
    }
    #[inline(always)]
    fn or(self, a: V, b: V) -> V {
        each!(|a, b| v128_or(a, b))
    }
    #[inline(always)]
    fn xor(self, a: V, b: V) -> V {
        each!(|a, b| v128_xor(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: V) -> V {
        each!(|a| u32x4_shl(a, N))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: V) -> V {
        each!(|a| u32x4_shr(a, N))
    }
    #[inline(always)]
    fn mul_wide(self, a: V, b: V) -> (V, V) {
        let low: V = each!(|a, b| u64x2_extmul_low_u32x4(a, b));
        let high: V = each!(|a, b| u64x2_extmul_high_u32x4(a, b));
        (
            each!(|low, high| u32x4_shuffle::<1, 3, 5, 7>(low, high)),
            each!(|low, high| u32x4_shuffle::<0, 2, 4, 6>(low, high)),
        )
    }
    #[inline(always)]
    fn equal_u(self, a: V, b: V) -> Mask {
        gather(each!(|a, b| i32x4_eq(a, b)))
    }
    #[inline(always)]
    fn less_u(self, a: V, b: V) -> Mask {
        gather(each!(|a, b| u32x4_lt(a, b)))
    }
    #[inline(always)]
    fn select_u(self, mask: Mask, a: V, b: V) -> V {
        let m = spread(mask);
        each!(|a, b, m| v128_bitselect(a, b, m))
    }
    /// Without the way through a mask of bits.
    #[inline(always)]
    fn where_ge(self, x: V, y: V, a: V) -> V {
        each!(|x, y, a| v128_and(f32x4_ge(x, y), a))
    }
    #[inline(always)]
    fn sum_u(self, a: V) -> u64 {
        let low = u64x2_splat(0xFFFF_FFFF);
        let wide = each!(|a| u64x2_add(v128_and(a, low), u64x2_shr(a, 32)));
        let sum = u64x2_add(u64x2_add(wide[0], wide[1]), u64x2_add(wide[2], wide[3]));
        u64x2_extract_lane::<0>(sum) + u64x2_extract_lane::<1>(sum)
    }
    #[inline(always)]
    fn add_products(self, sums: V, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> V {
        let mut out = sums;
        for i in 0..2 {
            let codes = at!(codes, i);
            let low = i32x4_dot_i16x8(i16x8_extend_low_i8x16(codes), at!(digits, 2 * i));
            let high = i32x4_dot_i16x8(i16x8_extend_high_i8x16(codes), at!(digits, 2 * i + 1));
            out[2 * i] = i32x4_add(sums[2 * i], low);
            out[2 * i + 1] = i32x4_add(sums[2 * i + 1], high);
        }
        out
    }
}
