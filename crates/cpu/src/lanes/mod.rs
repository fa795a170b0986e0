//! Sixteen lanes on any instruction set: the one vector trait that all stages are written over.
//!
//! A stage is a [`Kernel`]: generic code over some `L: Lanes`, inlined into one function per [`Level`] that
//! is compiled with that level's instructions. The width is sixteen at every level, so that masks are
//! `u16` and the algorithms read alike; AVX2 carries two registers, scalar code an array.
//!
//! A value of a lanes type is the proof that the machine has its instructions: it is made only by
//! [`dispatch`], after the level was [`Proven`].

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
mod neon;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;

use gumball_spec::num::{PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1};
use half::{bf16, f16};

use gumball_spec::{Result, Row, TILE};

use crate::Level;

/// Lanes per vector.
pub const WIDTH: usize = 16;

/// One bit per lane, lane 0 lowest.
pub type Mask = u16;

/// Sixteen f32 or u32 lanes. Every f32 operation rounds once, to nearest even, and keeps subnormals.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen u32.
    type U: Copy;

    /// Runs a kernel as a part of another. Vector instructions are inlined. Over scalar lanes, which take
    /// sixteen times the code, and over WebAssembly's, which take four times, it is a function of its own:
    /// copies in each kernel took minutes to compile, and a third of the smallest module.
    fn call<K: Kernel>(self, kernel: K) -> K::Output;

    fn splat(self, x: f32) -> Self::F;
    fn splat_u(self, x: u32) -> Self::U;
    fn load(self, from: &[f32; WIDTH]) -> Self::F;
    fn load_u(self, from: &[u32; WIDTH]) -> Self::U;
    fn load_bf16(self, from: &[bf16; WIDTH]) -> Self::F;
    /// Loads sixteen bf16 as [`Lanes::load_bf16`] does, in the quickest order of lanes.
    #[inline(always)]
    fn load_bf16_in_any_order(self, from: &[bf16; WIDTH]) -> Self::F {
        self.load_bf16(from)
    }
    fn load_f16(self, from: &[f16; WIDTH]) -> Self::F;
    fn store(self, v: Self::F, to: &mut [f32; WIDTH]);
    fn store_u(self, v: Self::U, to: &mut [u32; WIDTH]);
    /// Rounds to nearest even; no lane may be NaN.
    fn store_bf16(self, v: Self::F, to: &mut [bf16; WIDTH]);
    /// Rounds to nearest even; no lane may be NaN.
    fn store_f16(self, v: Self::F, to: &mut [f16; WIDTH]);
    /// The bits of the nearest bf16, ties to even, in the low halves; no lane may be NaN.
    #[inline(always)]
    fn bf16_bits(self, v: Self::F) -> Self::U {
        let bits = self.bits(v);
        let even = self.and(self.shr::<16>(bits), self.splat_u(1));
        self.shr::<16>(self.add_u(bits, self.add_u(even, self.splat_u(0x7FFF))))
    }

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c` with one rounding.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`: `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b`: `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest whole number, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// The nearest whole number `n`, ties to even, and `a - n`; from -64 down some `n` of at most -64 and a
    /// finite fraction.
    #[inline(always)]
    fn split(self, a: Self::F) -> (Self::F, Self::F) {
        let a = self.max(a, self.splat(-64.0));
        let n = self.round(a);
        (n, self.sub(a, n))
    }
    /// `a 2^n` for whole `n` of which [`Lanes::split`] is the source or the result is normal.
    fn scale(self, a: Self::F, n: Self::F) -> Self::F;
    fn ge(self, a: Self::F, b: Self::F) -> Mask;
    fn gt(self, a: Self::F, b: Self::F) -> Mask;
    fn equal(self, a: Self::F, b: Self::F) -> Mask;
    /// `low <= a <= high`.
    #[inline(always)]
    fn within(self, a: Self::F, low: Self::F, high: Self::F) -> Mask {
        self.ge(a, low) & self.ge(high, a)
    }
    /// The state of a search for NaN.
    type Seen: Copy;
    fn seen_nothing(self) -> Self::Seen;
    /// Remembers whether `a` or `b` holds NaN.
    fn see(self, seen: Self::Seen, a: Self::F, b: Self::F) -> Self::Seen;
    fn has_seen_nan(self, seen: Self::Seen) -> bool;

    /// `a` where the mask is set, else `b`.
    fn select(self, mask: Mask, a: Self::F, b: Self::F) -> Self::F;
    /// `max(a, b)` where the mask is set, else `b`.
    #[inline(always)]
    fn max_where(self, mask: Mask, a: Self::F, b: Self::F) -> Self::F {
        self.select(mask, self.max(a, b), b)
    }
    /// Lane-wise maxima of a tile, in no particular order, NaN left out and remembered.
    #[inline(always)]
    fn maximum<E: Element>(self, tile: &[E; TILE], seen: &mut [Self::Seen; 4]) -> Self::F {
        tile_maximum(self, tile, seen)
    }
    /// [`Lanes::maximum`] of a tile of bf16.
    #[inline(always)]
    fn maximum_bf16(self, tile: &[bf16; TILE], seen: &mut [Self::Seen; 4]) -> Self::F {
        self.maximum(tile, seen)
    }
    /// The sum of all lanes, in some order: for bounds, never for results.
    fn reduce_add(self, a: Self::F) -> f32;
    /// The largest lane; no lane may be NaN.
    fn reduce_max(self, a: Self::F) -> f32;

    fn bits(self, a: Self::F) -> Self::U;
    fn float_of_bits(self, a: Self::U) -> Self::F;
    /// From i32 lanes.
    fn float_of_int(self, a: Self::U) -> Self::F;
    /// To i32 lanes, to nearest even.
    fn to_int(self, a: Self::F) -> Self::U;
    /// The 64-bit integers `hi << 32 | lo` with one rounding.
    fn float_of_u64(self, hi: Self::U, lo: Self::U) -> Self::F;

    fn add_u(self, a: Self::U, b: Self::U) -> Self::U;
    fn sub_u(self, a: Self::U, b: Self::U) -> Self::U;
    fn and(self, a: Self::U, b: Self::U) -> Self::U;
    fn or(self, a: Self::U, b: Self::U) -> Self::U;
    fn xor(self, a: Self::U, b: Self::U) -> Self::U;
    fn shl<const N: u32>(self, a: Self::U) -> Self::U;
    fn shr<const N: u32>(self, a: Self::U) -> Self::U;
    /// High and low words of the 64-bit products.
    fn mul_wide(self, a: Self::U, b: Self::U) -> (Self::U, Self::U);
    fn equal_u(self, a: Self::U, b: Self::U) -> Mask;
    /// Unsigned `a < b`.
    fn less_u(self, a: Self::U, b: Self::U) -> Mask;
    /// `a` where the mask is set, else `b`.
    fn select_u(self, mask: Mask, a: Self::U, b: Self::U) -> Self::U;
    /// `a` where `x >= y`, else 0.
    #[inline(always)]
    fn where_ge(self, x: Self::F, y: Self::F, a: Self::U) -> Self::U {
        self.select_u(self.ge(x, y), a, self.splat_u(0))
    }
    /// The sum of all lanes.
    fn sum_u(self, a: Self::U) -> u64;
    /// Adds the 32 products of codes and digits to the sums, two to each i32 lane, in some order of lanes. A
    /// sum that leaves i32 wraps.
    fn add_products(self, sums: Self::U, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> Self::U;
    /// The sum of all lanes as i32.
    #[inline(always)]
    fn sum_i(self, a: Self::U) -> i64 {
        // With the sign bit changed, a lane is larger by 2^31 and not negative.
        self.sum_u(self.xor(a, self.splat_u(1 << 31))) as i64 - ((WIDTH as i64) << 31)
    }

    /// The words of sixteen Philox counters `(index, position, tag, draw)` under one key (N8).
    #[inline(always)]
    fn philox(self, key: u64, index: Self::U, rest: [u32; 3]) -> [Self::U; 4] {
        let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
        let (m0, m1) = (self.splat_u(PHILOX_M0), self.splat_u(PHILOX_M1));
        let (mut c1, mut c2, mut c3) = (self.splat_u(rest[0]), self.splat_u(rest[1]), self.splat_u(rest[2]));
        let mut c0 = index;
        for _ in 0..10 {
            let (p0_high, p0_low) = self.mul_wide(c0, m0);
            let (p1_high, p1_low) = self.mul_wide(c2, m1);
            c0 = self.xor(self.xor(p1_high, c1), self.splat_u(k0));
            c2 = self.xor(self.xor(p0_high, c3), self.splat_u(k1));
            c1 = p1_low;
            c3 = p0_low;
            k0 = k0.wrapping_add(PHILOX_W0);
            k1 = k1.wrapping_add(PHILOX_W1);
        }
        [c0, c1, c2, c3]
    }

    /// 0, 1, 2, ... 15.
    #[inline(always)]
    fn iota(self) -> Self::U {
        self.load_u(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
    }
}

/// Code over lanes. `run` must be `#[inline(always)]`, as must be everything generic that it calls. No
/// operation on lanes may stand in a closure: a closure is compiled without the level's instructions, and
/// then each operation is a call.
pub trait Kernel {
    type Output;
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// A level that this machine has: the proof that [`dispatch`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proven(Level);

impl Proven {
    /// Proves a level.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        level.check().map(Self)
    }

    /// Returns the level.
    pub fn level(self) -> Level {
        self.0
    }

    /// Proves every level of this machine.
    #[cfg(test)]
    pub fn all() -> impl Iterator<Item = Self> {
        Level::available().map(Self)
    }
}

/// Runs a kernel with the instructions of a level.
#[inline]
pub fn dispatch<K: Kernel>(level: Proven, kernel: K) -> K::Output {
    match level.0 {
        #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
        Level::Scalar => scalar::run(kernel),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is proven, so the machine has the function's target features.
        Level::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is proven, so the machine has the function's target features.
        Level::Avx512 => unsafe { avx512::run(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => unreachable!("no machine of this architecture has level {level:?}"),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128 => simd128::run(kernel),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Scalar => unreachable!("this build has no level {level:?}"),
        #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
        Level::Simd128 => unreachable!("this build has no level {level:?}"),
        #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
        Level::Neon => neon::run(kernel),
        #[cfg(not(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little")))]
        Level::Neon => unreachable!("this build has no level {level:?}"),
    }
}

/// Runs a kernel of integer products with the instructions of a level, like [`dispatch`] and with the same
/// result. Where the level is AVX-512 and the machine also has VNNI, the kernel is compiled with VNNI's
/// instructions, which multiply pairs and add in one go.
#[inline]
pub fn dispatch_products<K: Kernel>(level: Proven, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if level.0 == Level::Avx512 && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the level is proven and VNNI was found, so the machine has the function's target features.
        return unsafe { avx512::run_vnni(kernel) };
    }
    dispatch(level, kernel)
}

/// Lane-wise maxima of a tile, NaN left out.
#[inline(always)]
fn tile_maximum<L: Lanes, E: Element>(l: L, tile: &[E; TILE], seen: &mut [L::Seen; 4]) -> L::F {
    let (chunks, _) = tile.as_chunks::<WIDTH>();
    let mut max = [l.splat(f32::NEG_INFINITY); 4];
    for (i, four) in chunks.chunks_exact(4).enumerate() {
        let z = [E::load(l, &four[0]), E::load(l, &four[1]), E::load(l, &four[2]), E::load(l, &four[3])];
        see_pairs(l, z, i, seen);
        for j in 0..4 {
            max[j] = l.max(z[j], max[j]);
        }
    }
    l.max(l.max(max[0], max[1]), l.max(max[2], max[3]))
}

/// Looks for NaN in the `i`-th four vectors. Pairs alternate between four memories, so that no comparison
/// waits for the last one.
#[inline(always)]
pub fn see_pairs<L: Lanes>(l: L, z: [L::F; 4], i: usize, seen: &mut [L::Seen; 4]) {
    let pair = i % 2 * 2;
    seen[pair] = l.see(seen[pair], z[0], z[1]);
    seen[pair + 1] = l.see(seen[pair + 1], z[2], z[3]);
}

/// A type that logits come in.
pub trait Element: Copy {
    /// A row of this type.
    fn row(of: &[Self]) -> Row<'_>;
    /// Lane-wise maxima of a tile, in no particular order, NaN left out.
    #[inline(always)]
    fn max_of_tile<L: Lanes>(l: L, tile: &[Self; TILE], seen: &mut [L::Seen; 4]) -> L::F {
        l.maximum(tile, seen)
    }
    /// Loads sixteen logits, converted exactly; NaN and infinities as they are.
    fn load<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F;
    /// Loads sixteen logits as [`Element::load`] does, in the quickest order of lanes.
    #[inline(always)]
    fn load_in_any_order<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F {
        Self::load(l, from)
    }
    /// One logit, converted exactly.
    fn to_f32(self) -> f32;
    /// Stores sixteen numbers, none of them NaN, each rounded once.
    fn store<L: Lanes>(l: L, v: L::F, to: &mut [Self; WIDTH]);
    /// One number, rounded once.
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn row(of: &[Self]) -> Row<'_> {
        Row::F32(of)
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F {
        l.load(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::F, to: &mut [Self; WIDTH]) {
        l.store(v, to);
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn row(of: &[Self]) -> Row<'_> {
        Row::Bf16(of)
    }
    #[inline(always)]
    fn max_of_tile<L: Lanes>(l: L, tile: &[Self; TILE], seen: &mut [L::Seen; 4]) -> L::F {
        l.maximum_bf16(tile, seen)
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F {
        l.load_bf16(from)
    }
    #[inline(always)]
    fn load_in_any_order<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F {
        l.load_bf16_in_any_order(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::F, to: &mut [Self; WIDTH]) {
        l.store_bf16(v, to);
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn row(of: &[Self]) -> Row<'_> {
        Row::F16(of)
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; WIDTH]) -> L::F {
        l.load_f16(from)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store<L: Lanes>(l: L, v: L::F, to: &mut [Self; WIDTH]) {
        l.store_f16(v, to);
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}

#[cfg(test)]
mod tests;
