//! Lanes in two 256-bit registers.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "nested intrinsics share one obligation")]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{Kernel, Lanes, Mask, TILE, WIDTH, tile_maximum};

/// Runs a kernel with AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c,popcnt")]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// The proof that the machine has AVX2, FMA and F16C: only [`run`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

type F = [__m256; 2];
type U = [__m256i; 2];

/// Calls one intrinsic.
macro_rules! have {
    ($call:expr) => {
        // SAFETY: `self` proves that the machine has the instruction. Where a pointer goes in, it points to
        // at least the eight elements of its half of an array of sixteen, or to sixteen of two bytes, and the
        // access is unaligned.
        unsafe { $call }
    };
}

/// Applies an intrinsic to both registers.
macro_rules! both {
    (|$($name:ident),+| $call:expr) => {
        [{ $(let $name = $name[0];)+ have!($call) }, { $(let $name = $name[1];)+ have!($call) }]
    };
}

impl Avx2 {
    /// Gathers the sign bits of all lanes.
    #[inline(always)]
    fn mask(self, [low, high]: F) -> Mask {
        let low = have!(_mm256_movemask_ps(low));
        let high = have!(_mm256_movemask_ps(high));
        (low | high << 8) as Mask
    }

    /// Spreads a mask over the lanes, all bits of a lane alike.
    #[inline(always)]
    fn spread(self, mask: Mask) -> U {
        const BITS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
        let bits = have!(_mm256_loadu_si256(BITS.as_ptr().cast()));
        let low = have!(_mm256_set1_epi32(i32::from(mask & 0xFF)));
        let high = have!(_mm256_set1_epi32(i32::from(mask >> 8)));
        [
            have!(_mm256_cmpeq_epi32(_mm256_and_si256(low, bits), bits)),
            have!(_mm256_cmpeq_epi32(_mm256_and_si256(high, bits), bits)),
        ]
    }

    #[inline(always)]
    fn load_halves<T>(self, from: &[T; WIDTH]) -> [__m128i; 2] {
        let (low, high) = from.split_at(8);
        [have!(_mm_loadu_si128(low.as_ptr().cast())), have!(_mm_loadu_si128(high.as_ptr().cast()))]
    }

    /// Converts four u64, given as f64 parts `hi 2^32 + lo`, with one rounding.
    #[inline(always)]
    fn narrow(self, hi: __m128i, lo: __m128i) -> __m128 {
        // A double has 53 bits. Where the integer needs more, its low 11 bits become one sticky bit that lies
        // far below the last bit of the float, so that the sum is exact and the only rounding is the last.
        let wide = have!(_mm_cmpeq_epi32(_mm_srli_epi32::<21>(hi), _mm_setzero_si128()));
        let dropped = have!(_mm_and_si128(lo, _mm_set1_epi32(0x7FF)));
        let none = have!(_mm_cmpeq_epi32(dropped, _mm_setzero_si128()));
        let sticky = have!(_mm_andnot_si128(none, _mm_set1_epi32(0x800)));
        let rounded = have!(_mm_or_si128(_mm_andnot_si128(_mm_set1_epi32(0x7FF), lo), sticky));
        let lo = have!(_mm_blendv_epi8(rounded, lo, wide));
        // u32 to f64: read as i32 and shifted by 2^31, exactly.
        let flip = have!(_mm_set1_epi32(i32::MIN));
        let offset = have!(_mm256_set1_pd(2_147_483_648.0));
        let lo = have!(_mm256_add_pd(_mm256_cvtepi32_pd(_mm_xor_si128(lo, flip)), offset));
        let hi = have!(_mm256_add_pd(_mm256_cvtepi32_pd(_mm_xor_si128(hi, flip)), offset));
        let sum = have!(_mm256_fmadd_pd(hi, _mm256_set1_pd(4_294_967_296.0), lo));
        have!(_mm256_cvtpd_ps(sum))
    }
}

impl Lanes for Avx2 {
    type F = F;
    type U = U;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [have!(_mm256_set1_ps(x)); 2]
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> U {
        [have!(_mm256_set1_epi32(x as i32)); 2]
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> F {
        let (low, high) = from.split_at(8);
        [have!(_mm256_loadu_ps(low.as_ptr())), have!(_mm256_loadu_ps(high.as_ptr()))]
    }
    #[inline(always)]
    fn load_u(self, from: &[u32; WIDTH]) -> U {
        let (low, high) = from.split_at(8);
        [have!(_mm256_loadu_si256(low.as_ptr().cast())), have!(_mm256_loadu_si256(high.as_ptr().cast()))]
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; WIDTH]) -> F {
        let halves = self.load_halves(from);
        let wide = both!(|halves| _mm256_cvtepu16_epi32(halves));
        self.float_of_bits(self.shl::<16>(wide))
    }
    /// Even places, then odd ones: half the instructions.
    #[inline(always)]
    fn load_bf16_in_any_order(self, from: &[bf16; WIDTH]) -> F {
        let bits = have!(_mm256_loadu_si256(from.as_ptr().cast()));
        let odd = have!(_mm256_and_si256(bits, _mm256_set1_epi32(0xFFFF_0000_u32 as i32)));
        self.float_of_bits([have!(_mm256_slli_epi32::<16>(bits)), odd])
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; WIDTH]) -> F {
        let halves = self.load_halves(from);
        both!(|halves| _mm256_cvtph_ps(halves))
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32; WIDTH]) {
        let (low, high) = to.split_at_mut(8);
        have!(_mm256_storeu_ps(low.as_mut_ptr(), v[0]));
        have!(_mm256_storeu_ps(high.as_mut_ptr(), v[1]));
    }
    #[inline(always)]
    fn store_u(self, v: U, to: &mut [u32; WIDTH]) {
        let (low, high) = to.split_at_mut(8);
        have!(_mm256_storeu_si256(low.as_mut_ptr().cast(), v[0]));
        have!(_mm256_storeu_si256(high.as_mut_ptr().cast(), v[1]));
    }
    #[inline(always)]
    fn store_bf16(self, v: F, to: &mut [bf16; WIDTH]) {
        let [low, high] = self.bf16_bits(v);
        // Packing works within 128-bit blocks; the permutation undoes it.
        let packed = have!(_mm256_packus_epi32(low, high));
        let packed = have!(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        have!(_mm256_storeu_si256(to.as_mut_ptr().cast(), packed));
    }
    #[inline(always)]
    fn store_f16(self, v: F, to: &mut [f16; WIDTH]) {
        let halves = both!(|v| _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(v));
        let (low, high) = to.split_at_mut(8);
        have!(_mm_storeu_si128(low.as_mut_ptr().cast(), halves[0]));
        have!(_mm_storeu_si128(high.as_mut_ptr().cast(), halves[1]));
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(|a, b, c| _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(|a, b| _mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: F) -> F {
        both!(|a| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn scale(self, a: F, n: F) -> F {
        self.float_of_bits(self.add_u(self.bits(a), self.shl::<23>(self.to_int(n))))
    }
    #[inline(always)]
    fn ge(self, a: F, b: F) -> Mask {
        self.mask(both!(|a, b| _mm256_cmp_ps::<_CMP_GE_OQ>(a, b)))
    }
    #[inline(always)]
    fn gt(self, a: F, b: F) -> Mask {
        self.mask(both!(|a, b| _mm256_cmp_ps::<_CMP_GT_OQ>(a, b)))
    }
    #[inline(always)]
    fn equal(self, a: F, b: F) -> Mask {
        self.mask(both!(|a, b| _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b)))
    }
    #[inline(always)]
    fn within(self, a: F, low: F, high: F) -> Mask {
        let from = both!(|a, low| _mm256_cmp_ps::<_CMP_GE_OQ>(a, low));
        let to = both!(|a, high| _mm256_cmp_ps::<_CMP_LE_OQ>(a, high));
        self.mask(both!(|from, to| _mm256_and_ps(from, to)))
    }
    /// All ones in some lanes, once NaN was seen; one register for both halves, as registers are few.
    type Seen = __m256;
    #[inline(always)]
    fn seen_nothing(self) -> __m256 {
        have!(_mm256_setzero_ps())
    }
    #[inline(always)]
    fn see(self, seen: __m256, a: F, b: F) -> __m256 {
        let a = have!(_mm256_cmp_ps::<_CMP_UNORD_Q>(a[0], a[1]));
        let b = have!(_mm256_cmp_ps::<_CMP_UNORD_Q>(b[0], b[1]));
        have!(_mm256_or_ps(seen, _mm256_or_ps(a, b)))
    }
    #[inline(always)]
    fn maximum_bf16(self, tile: &[bf16; TILE], seen: &mut [__m256; 4]) -> F {
        // On the bits, as `avx512.rs` explains.
        let lowest = have!(_mm256_set1_epi16(i16::MIN));
        let mut signed = [lowest; 2];
        let mut unsigned = [have!(_mm256_setzero_si256()); 2];
        let mut least = [have!(_mm256_set1_epi16(-1)); 2];
        let (chunks, _) = tile.as_chunks::<WIDTH>();
        for pair in chunks.chunks_exact(2) {
            for i in 0..2 {
                let bits = have!(_mm256_loadu_si256(pair[i].as_ptr().cast()));
                signed[i] = have!(_mm256_max_epi16(signed[i], bits));
                unsigned[i] = have!(_mm256_max_epu16(unsigned[i], bits));
                least[i] = have!(_mm256_min_epu16(least[i], bits));
            }
        }
        let signed = have!(_mm256_max_epi16(signed[0], signed[1]));
        let unsigned = have!(_mm256_max_epu16(unsigned[0], unsigned[1]));
        let least = have!(_mm256_min_epu16(least[0], least[1]));
        // The subtraction saturates to 0 unless the unsigned maximum lies above -inf.
        let above = have!(_mm256_subs_epu16(unsigned, _mm256_set1_epi16(0xFF80_u16 as i16)));
        let nan = have!(_mm256_or_si256(above, _mm256_cmpgt_epi16(signed, _mm256_set1_epi16(0x7F80))));
        if have!(_mm256_testz_si256(nan, nan)) == 0 {
            return tile_maximum(self, tile, seen);
        }
        let negative = have!(_mm256_cmpgt_epi16(_mm256_setzero_si256(), signed));
        let largest = have!(_mm256_blendv_epi8(signed, least, negative));
        let even = have!(_mm256_slli_epi32::<16>(largest));
        let odd = have!(_mm256_and_si256(largest, _mm256_set1_epi32(0xFFFF_0000_u32 as i32)));
        [have!(_mm256_castsi256_ps(even)), have!(_mm256_castsi256_ps(odd))]
    }
    #[inline(always)]
    fn has_seen_nan(self, seen: __m256) -> bool {
        have!(_mm256_movemask_ps(seen)) != 0
    }
    #[inline(always)]
    fn select(self, mask: Mask, a: F, b: F) -> F {
        let m = self.float_of_bits(self.spread(mask));
        both!(|a, b, m| _mm256_blendv_ps(b, a, m))
    }
    #[inline(always)]
    fn reduce_add(self, [low, high]: F) -> f32 {
        let a = have!(_mm256_add_ps(low, high));
        let a = have!(_mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)));
        let a = have!(_mm_add_ps(a, _mm_movehl_ps(a, a)));
        have!(_mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<0b01>(a, a))))
    }
    #[inline(always)]
    fn reduce_max(self, [low, high]: F) -> f32 {
        let a = have!(_mm256_max_ps(low, high));
        let a = have!(_mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a)));
        let a = have!(_mm_max_ps(a, _mm_movehl_ps(a, a)));
        have!(_mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<0b01>(a, a))))
    }
    #[inline(always)]
    fn bits(self, a: F) -> U {
        both!(|a| _mm256_castps_si256(a))
    }
    #[inline(always)]
    fn float_of_bits(self, a: U) -> F {
        both!(|a| _mm256_castsi256_ps(a))
    }
    #[inline(always)]
    fn float_of_int(self, a: U) -> F {
        both!(|a| _mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_int(self, a: F) -> U {
        both!(|a| _mm256_cvtps_epi32(a))
    }
    #[inline(always)]
    fn float_of_u64(self, hi: U, lo: U) -> F {
        let mut out = self.splat(0.0);
        for i in 0..2 {
            let (hi, lo) = (hi[i], lo[i]);
            let low = self.narrow(have!(_mm256_castsi256_si128(hi)), have!(_mm256_castsi256_si128(lo)));
            let high = have!(_mm256_extracti128_si256::<1>(hi));
            let high = self.narrow(high, have!(_mm256_extracti128_si256::<1>(lo)));
            out[i] = have!(_mm256_set_m128(high, low));
        }
        out
    }
    #[inline(always)]
    fn add_u(self, a: U, b: U) -> U {
        both!(|a, b| _mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_u(self, a: U, b: U) -> U {
        both!(|a, b| _mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: U, b: U) -> U {
        both!(|a, b| _mm256_and_si256(a, b))
    }
    #[inline(always)]
    fn or(self, a: U, b: U) -> U {
        both!(|a, b| _mm256_or_si256(a, b))
    }
    #[inline(always)]
    fn xor(self, a: U, b: U) -> U {
        both!(|a, b| _mm256_xor_si256(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: U) -> U {
        both!(|a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32)))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: U) -> U {
        both!(|a| _mm256_srl_epi32(a, _mm_cvtsi32_si128(N as i32)))
    }
    #[inline(always)]
    fn mul_wide(self, a: U, b: U) -> (U, U) {
        let even: U = both!(|a, b| _mm256_mul_epu32(a, b));
        let odd: U = both!(|a, b| _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b)));
        let high = both!(|even, odd| _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<32>(even), odd));
        let low = both!(|even, odd| _mm256_blend_epi32::<0xAA>(even, _mm256_slli_epi64::<32>(odd)));
        (high, low)
    }
    #[inline(always)]
    fn equal_u(self, a: U, b: U) -> Mask {
        let equal = both!(|a, b| _mm256_cmpeq_epi32(a, b));
        self.mask(self.float_of_bits(equal))
    }
    #[inline(always)]
    fn less_u(self, a: U, b: U) -> Mask {
        let flip = self.splat_u(1 << 31);
        let (a, b) = (self.xor(a, flip), self.xor(b, flip));
        let less = both!(|a, b| _mm256_cmpgt_epi32(b, a));
        self.mask(self.float_of_bits(less))
    }
    #[inline(always)]
    fn select_u(self, mask: Mask, a: U, b: U) -> U {
        let m = self.spread(mask);
        both!(|a, b, m| _mm256_blendv_epi8(b, a, m))
    }
    /// Without the way through a mask of bits, which takes a dozen instructions.
    #[inline(always)]
    fn where_ge(self, x: F, y: F, a: U) -> U {
        let reach = self.bits(both!(|x, y| _mm256_cmp_ps::<_CMP_GE_OQ>(x, y)));
        self.and(reach, a)
    }
    #[inline(always)]
    fn sum_u(self, a: U) -> u64 {
        let low = have!(_mm256_set1_epi64x(0xFFFF_FFFF));
        let wide = both!(|a| _mm256_add_epi64(_mm256_and_si256(a, low), _mm256_srli_epi64::<32>(a)));
        let sum = have!(_mm256_add_epi64(wide[0], wide[1]));
        let mut parts = [0u64; 4];
        have!(_mm256_storeu_si256(parts.as_mut_ptr().cast(), sum));
        parts.iter().sum()
    }
    #[inline(always)]
    fn add_products(self, sums: U, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> U {
        let (codes, digits) = (codes.as_chunks::<WIDTH>().0, digits.as_chunks::<WIDTH>().0);
        let mut out = sums;
        for i in 0..2 {
            let codes = have!(_mm256_cvtepi8_epi16(_mm_loadu_si128(codes[i].as_ptr().cast())));
            let digits = have!(_mm256_loadu_si256(digits[i].as_ptr().cast()));
            out[i] = have!(_mm256_add_epi32(sums[i], _mm256_madd_epi16(codes, digits)));
        }
        out
    }
}
