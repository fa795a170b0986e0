//! Lanes in one 512-bit register.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "nested intrinsics share one obligation")]

use std::arch::x86_64::*;

use gumball_spec::num::{PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1};
use half::{bf16, f16};

use super::{Kernel, Lanes, Mask, TILE, WIDTH, tile_maximum};

/// Runs a kernel with AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,popcnt")]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// Runs a kernel with VNNI besides.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2,popcnt")]
pub fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

/// The proof that the machine has AVX-512 F, BW, DQ and VL, and VNNI if that is said: only [`run`] and
/// [`run_vnni`] make one.
#[derive(Clone, Copy, Debug)]
pub struct Avx512<const VNNI: bool>(());

/// Calls one intrinsic.
macro_rules! have {
    ($call:expr) => {
        // SAFETY: `self` proves that the machine has the instruction. Where a pointer goes in, it comes from
        // a reference to an array of sixteen, or of 32 of one or two bytes, and the access is unaligned.
        unsafe { $call }
    };
}

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    type F = __m512;
    type U = __m512i;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        have!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> __m512i {
        have!(_mm512_set1_epi32(x as i32))
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> __m512 {
        have!(_mm512_loadu_ps(from.as_ptr()))
    }
    #[inline(always)]
    fn load_u(self, from: &[u32; WIDTH]) -> __m512i {
        have!(_mm512_loadu_si512(from.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; WIDTH]) -> __m512 {
        let half = have!(_mm256_loadu_si256(from.as_ptr().cast()));
        let wide = have!(_mm512_cvtepu16_epi32(half));
        self.float_of_bits(self.shl::<16>(wide))
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; WIDTH]) -> __m512 {
        let half = have!(_mm256_loadu_si256(from.as_ptr().cast()));
        have!(_mm512_cvtph_ps(half))
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; WIDTH]) {
        have!(_mm512_storeu_ps(to.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn store_u(self, v: __m512i, to: &mut [u32; WIDTH]) {
        have!(_mm512_storeu_si512(to.as_mut_ptr().cast(), v));
    }
    #[inline(always)]
    fn store_bf16(self, v: __m512, to: &mut [bf16; WIDTH]) {
        let half = have!(_mm512_cvtepi32_epi16(self.bf16_bits(v)));
        have!(_mm256_storeu_si256(to.as_mut_ptr().cast(), half));
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, to: &mut [f16; WIDTH]) {
        let half = have!(_mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v));
        have!(_mm256_storeu_si256(to.as_mut_ptr().cast(), half));
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        have!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        have!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn split(self, a: __m512) -> (__m512, __m512) {
        // The reduction of an infinity is 0.
        (self.round(a), have!(_mm512_reduce_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)))
    }
    #[inline(always)]
    fn scale(self, a: __m512, n: __m512) -> __m512 {
        have!(_mm512_scalef_ps(a, n))
    }
    #[inline(always)]
    fn ge(self, a: __m512, b: __m512) -> Mask {
        have!(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b))
    }
    #[inline(always)]
    fn gt(self, a: __m512, b: __m512) -> Mask {
        have!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b))
    }
    #[inline(always)]
    fn equal(self, a: __m512, b: __m512) -> Mask {
        have!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }
    /// The lanes that were never NaN.
    type Seen = Mask;
    #[inline(always)]
    fn seen_nothing(self) -> Mask {
        Mask::MAX
    }
    #[inline(always)]
    fn see(self, seen: Mask, a: __m512, b: __m512) -> Mask {
        have!(_mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(seen, a, b))
    }
    #[inline(always)]
    fn has_seen_nan(self, seen: Mask) -> bool {
        seen != Mask::MAX
    }
    #[inline(always)]
    fn max_where(self, mask: Mask, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mask_max_ps(b, mask, a, b))
    }
    #[inline(always)]
    fn maximum_bf16(self, tile: &[bf16; TILE], seen: &mut [Mask; 4]) -> __m512 {
        // On the bits: as signed integers non-negative floats are in order and all negative ones below them;
        // as unsigned integers the least negative float is the smallest with its sign bit set.
        let zero = have!(_mm512_setzero_si512());
        let (mut signed, mut unsigned, mut least) = (self.splat_u(0x8000_8000), zero, self.splat_u(u32::MAX));
        let (chunks, _) = tile.as_chunks::<{ 2 * WIDTH }>();
        for chunk in chunks {
            let bits = have!(_mm512_loadu_si512(chunk.as_ptr().cast()));
            signed = have!(_mm512_max_epi16(signed, bits));
            unsigned = have!(_mm512_max_epu16(unsigned, bits));
            least = have!(_mm512_min_epu16(least, bits));
        }
        // NaN lies above +inf as a signed and above -inf as an unsigned integer.
        let nan = have!(_mm512_cmpgt_epi16_mask(signed, _mm512_set1_epi16(0x7F80)))
            | have!(_mm512_cmpgt_epu16_mask(unsigned, _mm512_set1_epi16(0xFF80_u16 as i16)));
        if nan != 0 {
            return tile_maximum(self, tile, seen);
        }
        let negative = have!(_mm512_movepi16_mask(signed));
        let largest = have!(_mm512_mask_blend_epi16(negative, signed, least));
        let odd = have!(_mm512_and_si512(largest, self.splat_u(0xFFFF_0000)));
        self.max(self.float_of_bits(self.shl::<16>(largest)), self.float_of_bits(odd))
    }
    #[inline(always)]
    fn select(self, mask: Mask, a: __m512, b: __m512) -> __m512 {
        have!(_mm512_mask_blend_ps(mask, b, a))
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        have!(_mm512_reduce_add_ps(a))
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        have!(_mm512_reduce_max_ps(a))
    }
    #[inline(always)]
    fn bits(self, a: __m512) -> __m512i {
        have!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn float_of_bits(self, a: __m512i) -> __m512 {
        have!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn float_of_int(self, a: __m512i) -> __m512 {
        have!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn to_int(self, a: __m512) -> __m512i {
        have!(_mm512_cvtps_epi32(a))
    }
    #[inline(always)]
    fn float_of_u64(self, hi: __m512i, lo: __m512i) -> __m512 {
        // Interleaving works within 128-bit blocks; the permutation undoes it in pairs of lanes.
        let even = have!(_mm512_cvtepu64_ps(_mm512_unpacklo_epi32(lo, hi)));
        let odd = have!(_mm512_cvtepu64_ps(_mm512_unpackhi_epi32(lo, hi)));
        let pairs: [u64; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
        let order = have!(_mm512_loadu_si512(pairs.as_ptr().cast::<__m512i>()));
        let both = have!(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(even), odd));
        have!(_mm512_castpd_ps(_mm512_permutexvar_pd(order, _mm512_castps_pd(both))))
    }
    #[inline(always)]
    fn add_u(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_u(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: __m512i) -> __m512i {
        have!(_mm512_slli_epi32::<N>(a))
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: __m512i) -> __m512i {
        have!(_mm512_srli_epi32::<N>(a))
    }
    #[inline(always)]
    fn mul_wide(self, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        let even = have!(_mm512_mul_epu32(a, b));
        let odd = have!(_mm512_mul_epu32(_mm512_srli_epi64::<32>(a), _mm512_srli_epi64::<32>(b)));
        let high = have!(_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64::<32>(even), odd));
        let low = have!(_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64::<32>(odd)));
        (high, low)
    }
    #[inline(always)]
    fn equal_u(self, a: __m512i, b: __m512i) -> Mask {
        have!(_mm512_cmpeq_epu32_mask(a, b))
    }
    #[inline(always)]
    fn less_u(self, a: __m512i, b: __m512i) -> Mask {
        have!(_mm512_cmplt_epu32_mask(a, b))
    }
    #[inline(always)]
    fn select_u(self, mask: Mask, a: __m512i, b: __m512i) -> __m512i {
        have!(_mm512_mask_blend_epi32(mask, b, a))
    }
    #[inline(always)]
    fn sum_u(self, a: __m512i) -> u64 {
        let low = have!(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(a)));
        let high = have!(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(a)));
        have!(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high))) as u64
    }
    #[inline(always)]
    fn add_products(self, sums: __m512i, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> __m512i {
        let codes = have!(_mm512_cvtepi8_epi16(_mm256_loadu_si256(codes.as_ptr().cast())));
        let digits = have!(_mm512_loadu_si512(digits.as_ptr().cast()));
        if VNNI {
            return have!(_mm512_dpwssd_epi32(sums, codes, digits));
        }
        have!(_mm512_add_epi32(sums, _mm512_madd_epi16(codes, digits)))
    }
    #[inline(always)]
    fn philox(self, key: u64, index: __m512i, rest: [u32; 3]) -> [__m512i; 4] {
        // One counter a 64-bit lane, in two registers: the multiplication reads only the low halves, so what
        // it leaves in the high halves need never be cleared.
        let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
        let (m0, m1) = (self.splat_u(PHILOX_M0), self.splat_u(PHILOX_M1));
        let [c1, c2, c3] = [self.splat_u(rest[0]), self.splat_u(rest[1]), self.splat_u(rest[2])];
        let low = have!(_mm512_cvtepu32_epi64(_mm512_castsi512_si256(index)));
        let high = have!(_mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64::<1>(index)));
        let mut states = [[low, c1, c2, c3], [high, c1, c2, c3]];
        for _ in 0..10 {
            let (key0, key1) = (self.splat_u(k0), self.splat_u(k1));
            for [c0, c1, c2, c3] in &mut states {
                let p0 = have!(_mm512_mul_epu32(*c0, m0));
                let p1 = have!(_mm512_mul_epu32(*c2, m1));
                *c0 = have!(_mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p1), *c1, key0));
                *c2 = have!(_mm512_ternarylogic_epi64::<0x96>(_mm512_srli_epi64::<32>(p0), *c3, key1));
                *c1 = p1;
                *c3 = p0;
            }
            k0 = k0.wrapping_add(PHILOX_W0);
            k1 = k1.wrapping_add(PHILOX_W1);
        }
        const EVEN: [u32; WIDTH] = [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30];
        let even = self.load_u(&EVEN);
        let mut words = states[0];
        for i in 0..4 {
            words[i] = have!(_mm512_permutex2var_epi32(states[0][i], even, states[1][i]));
        }
        words
    }
}
