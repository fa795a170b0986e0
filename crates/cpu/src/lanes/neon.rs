//! Lanes in four 128-bit registers of NEON, which every little-endian aarch64 has.
//!
//! Conversions between halves and f32 belong to NEON. The arithmetic of halves of ARMv8.2 rounds to halves,
//! which no rule allows. Those conversions are written as assembly, because Rust's stable library has no
//! functions for them.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "nested intrinsics share one obligation")]

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use super::{Element, Kernel, Lanes, Mask, TILE, WIDTH, tile_maximum};

/// Runs a kernel over vectors of NEON.
#[inline(never)]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon)
}

/// Four vectors. The program that this is compiled into has NEON.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

type F = [float32x4_t; 4];
type U = [uint32x4_t; 4];

/// Calls intrinsics.
macro_rules! have {
    ($call:expr) => {
        // SAFETY: this is compiled only where NEON is a feature of the target. Where a pointer goes in, it
        // points to as many elements of an array as a register holds, and the access is unaligned.
        unsafe { $call }
    };
}

/// Applies an expression to all four registers.
macro_rules! each {
    (|$($name:ident),+| $call:expr) => {
        [
            { $(let $name = $name[0];)+ have!($call) },
            { $(let $name = $name[1];)+ have!($call) },
            { $(let $name = $name[2];)+ have!($call) },
            { $(let $name = $name[3];)+ have!($call) },
        ]
    };
}

/// Loads four registers from an array of words.
macro_rules! words {
    ($load:ident, $from:expr) => {
        [
            have!($load($from.as_ptr())),
            have!($load($from[4..].as_ptr())),
            have!($load($from[8..].as_ptr())),
            have!($load($from[12..].as_ptr())),
        ]
    };
}

/// The bits of sixteen halves of either kind.
#[inline(always)]
fn load_halves<T>(from: &[T; WIDTH]) -> [uint16x8_t; 2] {
    const { assert!(size_of::<T>() == 2) };
    let (low, high) = from.split_at(8);
    [have!(vld1q_u16(low.as_ptr().cast())), have!(vld1q_u16(high.as_ptr().cast()))]
}

#[inline(always)]
fn store_halves<T>(bits: [uint16x8_t; 2], to: &mut [T; WIDTH]) {
    const { assert!(size_of::<T>() == 2) };
    let (low, high) = to.split_at_mut(8);
    have!(vst1q_u16(low.as_mut_ptr().cast(), bits[0]));
    have!(vst1q_u16(high.as_mut_ptr().cast(), bits[1]));
}

/// Gathers lanes of all ones or of zeros into a mask.
#[inline(always)]
fn gather(lanes: U) -> Mask {
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    let [a, b, c, d] = each!(|lanes| vreinterpretq_u16_u32(lanes));
    have!({
        let (low, high) = (vuzp1q_u16(a, b), vuzp1q_u16(c, d));
        let bytes = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
        let bits = vandq_u8(bytes, vld1q_u8(BITS.as_ptr()));
        let pairs = vpaddq_u8(bits, bits);
        let fours = vpaddq_u8(pairs, pairs);
        vgetq_lane_u16::<0>(vreinterpretq_u16_u8(vpaddq_u8(fours, fours)))
    })
}

/// Spreads a mask over the lanes, all bits of a lane alike.
#[inline(always)]
fn spread(mask: Mask) -> U {
    const BITS: [u32; WIDTH] = {
        let mut bits = [1; WIDTH];
        let mut i = 0;
        while i < WIDTH {
            bits[i] <<= i;
            i += 1;
        }
        bits
    };
    let all = have!(vdupq_n_u32(u32::from(mask)));
    let bits = words!(vld1q_u32, BITS);
    each!(|bits| vtstq_u32(all, bits))
}

impl Lanes for Neon {
    type F = F;
    type U = U;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [have!(vdupq_n_f32(x)); 4]
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> U {
        [have!(vdupq_n_u32(x)); 4]
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> F {
        words!(vld1q_f32, from)
    }
    #[inline(always)]
    fn load_u(self, from: &[u32; WIDTH]) -> U {
        words!(vld1q_u32, from)
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; WIDTH]) -> F {
        let [low, high] = load_halves(from);
        let first = [have!(vmovl_u16(vget_low_u16(low))), have!(vmovl_high_u16(low))];
        let last = [have!(vmovl_u16(vget_low_u16(high))), have!(vmovl_high_u16(high))];
        let wide = [first[0], first[1], last[0], last[1]];
        each!(|wide| vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide)))
    }
    /// Even places, then odd ones: no moves between lanes.
    #[inline(always)]
    fn load_bf16_in_any_order(self, from: &[bf16; WIDTH]) -> F {
        let [low, high] = load_halves(from);
        self.float_of_bits(have!({
            let (low, high) = (vreinterpretq_u32_u16(low), vreinterpretq_u32_u16(high));
            let odd = vdupq_n_u32(0xFFFF_0000);
            [vshlq_n_u32::<16>(low), vandq_u32(low, odd), vshlq_n_u32::<16>(high), vandq_u32(high, odd)]
        }))
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; WIDTH]) -> F {
        let halves = load_halves(from);
        let mut out = self.splat(0.0);
        for i in 0..2 {
            // SAFETY: NEON has the instructions; they read and write registers alone.
            unsafe {
                asm!(
                    "fcvtl {0:v}.4s, {2:v}.4h",
                    "fcvtl2 {1:v}.4s, {2:v}.8h",
                    out(vreg) out[2 * i],
                    lateout(vreg) out[2 * i + 1],
                    in(vreg) halves[i],
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
        out
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32; WIDTH]) {
        for (v, to) in v.into_iter().zip(to.as_chunks_mut::<4>().0) {
            have!(vst1q_f32(to.as_mut_ptr(), v));
        }
    }
    #[inline(always)]
    fn store_u(self, v: U, to: &mut [u32; WIDTH]) {
        for (v, to) in v.into_iter().zip(to.as_chunks_mut::<4>().0) {
            have!(vst1q_u32(to.as_mut_ptr(), v));
        }
    }
    #[inline(always)]
    fn store_bf16(self, v: F, to: &mut [bf16; WIDTH]) {
        let bits = self.bf16_bits(v);
        let [a, b, c, d] = each!(|bits| vreinterpretq_u16_u32(bits));
        store_halves([have!(vuzp1q_u16(a, b)), have!(vuzp1q_u16(c, d))], to);
    }
    #[inline(always)]
    fn store_f16(self, v: F, to: &mut [f16; WIDTH]) {
        let mut halves = [have!(vdupq_n_u16(0)); 2];
        for i in 0..2 {
            // SAFETY: NEON has the instructions; they read and write registers alone.
            unsafe {
                asm!(
                    "fcvtn {0:v}.4h, {1:v}.4s",
                    "fcvtn2 {0:v}.8h, {2:v}.4s",
                    out(vreg) halves[i],
                    in(vreg) v[2 * i],
                    in(vreg) v[2 * i + 1],
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
        }
        store_halves(halves, to);
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        each!(|a, b| vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        each!(|a, b| vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        each!(|a, b, c| vfmaq_f32(c, a, b))
    }
    /// NEON's own maximum is NaN where either is, and +0 of both zeros.
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        each!(|a, b| vbslq_f32(vcgtq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        each!(|a, b| vbslq_f32(vcltq_f32(a, b), a, b))
    }
    #[inline(always)]
    fn round(self, a: F) -> F {
        each!(|a| vrndnq_f32(a))
    }
    /// With NEON's own maximum, as no zeros meet.
    #[inline(always)]
    fn split(self, a: F) -> (F, F) {
        let floor = have!(vdupq_n_f32(-64.0));
        let a = each!(|a| vmaxq_f32(a, floor));
        let n = self.round(a);
        (n, self.sub(a, n))
    }
    #[inline(always)]
    fn scale(self, a: F, n: F) -> F {
        self.float_of_bits(self.add_u(self.bits(a), self.shl::<23>(self.to_int(n))))
    }
    #[inline(always)]
    fn ge(self, a: F, b: F) -> Mask {
        gather(each!(|a, b| vcgeq_f32(a, b)))
    }
    #[inline(always)]
    fn gt(self, a: F, b: F) -> Mask {
        gather(each!(|a, b| vcgtq_f32(a, b)))
    }
    #[inline(always)]
    fn equal(self, a: F, b: F) -> Mask {
        gather(each!(|a, b| vceqq_f32(a, b)))
    }
    #[inline(always)]
    fn within(self, a: F, low: F, high: F) -> Mask {
        gather(each!(|a, low, high| vandq_u32(vcgeq_f32(a, low), vcleq_f32(a, high))))
    }
    /// The largest number so far, or NaN: NEON's maximum is NaN where either is, so one instruction remembers
    /// both.
    type Seen = float32x4_t;
    #[inline(always)]
    fn seen_nothing(self) -> float32x4_t {
        have!(vdupq_n_f32(0.0))
    }
    #[inline(always)]
    fn see(self, seen: float32x4_t, a: F, b: F) -> float32x4_t {
        let pairs = each!(|a, b| vmaxq_f32(a, b));
        have!({
            let pairs = vmaxq_f32(vmaxq_f32(pairs[0], pairs[1]), vmaxq_f32(pairs[2], pairs[3]));
            vmaxq_f32(seen, pairs)
        })
    }
    #[inline(always)]
    fn has_seen_nan(self, seen: float32x4_t) -> bool {
        have!(vmaxvq_f32(seen)).is_nan()
    }
    #[inline(always)]
    fn select(self, mask: Mask, a: F, b: F) -> F {
        let mask = spread(mask);
        each!(|mask, a, b| vbslq_f32(mask, a, b))
    }
    /// With NEON's own maximum, which shows NaN; a tile that has it is read once more. Of both zeros it is
    /// +0, which is equal to -0.
    #[inline(always)]
    fn maximum<E: Element>(self, tile: &[E; TILE], seen: &mut [float32x4_t; 4]) -> F {
        let mut max = [self.splat(f32::NEG_INFINITY); 2];
        for pair in tile.as_chunks::<WIDTH>().0.chunks_exact(2) {
            for i in 0..2 {
                let (z, old) = (E::load_in_any_order(self, &pair[i]), max[i]);
                max[i] = each!(|z, old| vmaxq_f32(z, old));
            }
        }
        let [a, b] = max;
        let max: F = each!(|a, b| vmaxq_f32(a, b));
        if self.has_seen_nan(self.see(max[0], max, max)) {
            return tile_maximum(self, tile, seen);
        }
        max
    }
    #[inline(always)]
    fn maximum_bf16(self, tile: &[bf16; TILE], seen: &mut [float32x4_t; 4]) -> F {
        // On the bits: as signed integers non-negative floats are in order and all negative ones below them;
        // as unsigned integers the least negative float is the smallest with its sign bit set.
        let mut signed = [have!(vdupq_n_s16(i16::MIN)); 2];
        let mut unsigned = [have!(vdupq_n_u16(0)); 2];
        let mut least = [have!(vdupq_n_u16(u16::MAX)); 2];
        for chunk in tile.as_chunks::<WIDTH>().0 {
            let bits = load_halves(chunk);
            for i in 0..2 {
                signed[i] = have!(vmaxq_s16(signed[i], vreinterpretq_s16_u16(bits[i])));
                unsigned[i] = have!(vmaxq_u16(unsigned[i], bits[i]));
                least[i] = have!(vminq_u16(least[i], bits[i]));
            }
        }
        let signed = have!(vmaxq_s16(signed[0], signed[1]));
        let unsigned = have!(vmaxq_u16(unsigned[0], unsigned[1]));
        let least = have!(vminq_u16(least[0], least[1]));
        // NaN lies above +inf as a signed and above -inf as an unsigned integer.
        let above = have!(vcgtq_u16(unsigned, vdupq_n_u16(0xFF80)));
        let nan = have!(vorrq_u16(vcgtq_s16(signed, vdupq_n_s16(0x7F80)), above));
        if have!(vmaxvq_u16(nan)) != 0 {
            return tile_maximum(self, tile, seen);
        }
        let largest = have!(vbslq_u16(vcltzq_s16(signed), least, vreinterpretq_u16_s16(signed)));
        let wide = have!(vreinterpretq_u32_u16(largest));
        let even = have!(vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide)));
        let odd = have!(vreinterpretq_f32_u32(vandq_u32(wide, vdupq_n_u32(0xFFFF_0000))));
        [even, odd, even, odd]
    }
    #[inline(always)]
    fn reduce_add(self, [a, b, c, d]: F) -> f32 {
        have!(vaddvq_f32(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d))))
    }
    #[inline(always)]
    fn reduce_max(self, [a, b, c, d]: F) -> f32 {
        have!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d))))
    }
    #[inline(always)]
    fn bits(self, a: F) -> U {
        each!(|a| vreinterpretq_u32_f32(a))
    }
    #[inline(always)]
    fn float_of_bits(self, a: U) -> F {
        each!(|a| vreinterpretq_f32_u32(a))
    }
    #[inline(always)]
    fn float_of_int(self, a: U) -> F {
        each!(|a| vcvtq_f32_s32(vreinterpretq_s32_u32(a)))
    }
    #[inline(always)]
    fn to_int(self, a: F) -> U {
        each!(|a| vreinterpretq_u32_s32(vcvtnq_s32_f32(a)))
    }
    #[inline(always)]
    fn float_of_u64(self, hi: U, lo: U) -> F {
        // Where the integer needs more bits than a double has, its low 11 become one sticky bit, so that the
        // only rounding is the last.
        let rest = have!(vdupq_n_u32(0x7FF));
        each!(|hi, lo| {
            let wide = vcgtq_u32(hi, vdupq_n_u32(0x1F_FFFF));
            let carried = vorrq_u32(lo, vaddq_u32(vandq_u32(lo, rest), rest));
            let lo = vbslq_u32(wide, vbicq_u32(carried, rest), lo);
            let first = vcvtq_f64_u64(vreinterpretq_u64_u32(vzip1q_u32(lo, hi)));
            let last = vcvtq_f64_u64(vreinterpretq_u64_u32(vzip2q_u32(lo, hi)));
            vcvt_high_f32_f64(vcvt_f32_f64(first), last)
        })
    }
    #[inline(always)]
    fn add_u(self, a: U, b: U) -> U {
        each!(|a, b| vaddq_u32(a, b))
    }
    #[inline(always)]
    fn sub_u(self, a: U, b: U) -> U {
        each!(|a, b| vsubq_u32(a, b))
    }
    #[inline(always)]
    fn and(self, a: U, b: U) -> U {
        each!(|a, b| vandq_u32(a, b))
    }
    #[inline(always)]
    fn or(self, a: U, b: U) -> U {
        each!(|a, b| vorrq_u32(a, b))
    }
    #[inline(always)]
    fn xor(self, a: U, b: U) -> U {
        each!(|a, b| veorq_u32(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: U) -> U {
        let by = have!(vdupq_n_s32(N as i32));
        each!(|a| vshlq_u32(a, by))
    }
    /// NEON shifts to the right by negative numbers; the compiler makes it one instruction with the number in
    /// it.
    #[inline(always)]
    fn shr<const N: u32>(self, a: U) -> U {
        let by = have!(vdupq_n_s32(-(N as i32)));
        each!(|a| vshlq_u32(a, by))
    }
    #[inline(always)]
    fn mul_wide(self, a: U, b: U) -> (U, U) {
        let low: [uint64x2_t; 4] = each!(|a, b| vmull_u32(vget_low_u32(a), vget_low_u32(b)));
        let high: [uint64x2_t; 4] = each!(|a, b| vmull_high_u32(a, b));
        let (low, high): (U, U) =
            (each!(|low| vreinterpretq_u32_u64(low)), each!(|high| vreinterpretq_u32_u64(high)));
        (each!(|low, high| vuzp2q_u32(low, high)), each!(|low, high| vuzp1q_u32(low, high)))
    }
    #[inline(always)]
    fn equal_u(self, a: U, b: U) -> Mask {
        gather(each!(|a, b| vceqq_u32(a, b)))
    }
    #[inline(always)]
    fn less_u(self, a: U, b: U) -> Mask {
        gather(each!(|a, b| vcltq_u32(a, b)))
    }
    #[inline(always)]
    fn select_u(self, mask: Mask, a: U, b: U) -> U {
        let mask = spread(mask);
        each!(|mask, a, b| vbslq_u32(mask, a, b))
    }
    /// Without the way through a mask of bits.
    #[inline(always)]
    fn where_ge(self, x: F, y: F, a: U) -> U {
        each!(|x, y, a| vandq_u32(vcgeq_f32(x, y), a))
    }
    #[inline(always)]
    fn sum_u(self, [a, b, c, d]: U) -> u64 {
        have!(vaddvq_u64(vpadalq_u32(vpadalq_u32(vpadalq_u32(vpaddlq_u32(a), b), c), d)))
    }
    #[inline(always)]
    fn sum_i(self, a: U) -> i64 {
        let [a, b, c, d] = each!(|a| vreinterpretq_s32_u32(a));
        have!(vaddvq_s64(vpadalq_s32(vpadalq_s32(vpadalq_s32(vpaddlq_s32(a), b), c), d)))
    }
    #[inline(always)]
    fn add_products(self, sums: U, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> U {
        let (codes, digits) = (codes.as_chunks::<8>().0, digits.as_chunks::<8>().0);
        let mut out = sums;
        for i in 0..4 {
            out[i] = have!({
                let codes = vmovl_s8(vld1_s8(codes[i].as_ptr()));
                let digits = vld1q_s16(digits[i].as_ptr());
                let sum =
                    vmlal_s16(vreinterpretq_s32_u32(sums[i]), vget_low_s16(codes), vget_low_s16(digits));
                vreinterpretq_u32_s32(vmlal_high_s16(sum, codes, digits))
            });
        }
        out
    }
}
