//! The maximum by AVX-512: eight running maxima of 16 lanes each, so that none waits for another.

use std::arch::x86_64::*;

use half::bf16;

use super::{Maximum, portable::Portable};

/// f32 lanes of a vector.
const LANES: usize = 16;
/// Running maxima.
const RUNNING: usize = 8;

/// Proof that this processor has AVX-512.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The level, if the processor has it.
    pub(super) fn new() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")).then_some(Self(()))
    }
}

impl Maximum for Avx512 {
    const DOES: &'static str = "one maximum over the row, AVX-512";

    fn of_f32(self, row: &[f32]) -> f32 {
        // SAFETY: the function wants only AVX-512 F and BW, which `self` proves: `new` alone makes one.
        unsafe { max_f32(row) }
    }

    fn of_bf16(self, row: &[bf16]) -> f32 {
        // SAFETY: the function wants only AVX-512 F and BW, which `self` proves: `new` alone makes one.
        unsafe { max_bf16(row) }
    }
}

#[target_feature(enable = "avx512f")]
fn max_f32(row: &[f32]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut running = [_mm512_set1_ps(f32::NEG_INFINITY); RUNNING];
    for block in blocks {
        for (largest, lanes) in running.iter_mut().zip(block.as_chunks().0) {
            *largest = _mm512_max_ps(*largest, load_f32(lanes));
        }
    }
    Portable.of_f32(tail).max(reduce(running))
}

/// bf16 bits are ordered as whole numbers are, upwards above zero and downwards below it. So the
/// greatest pattern is the largest logit if any is positive, and otherwise the least pattern is: two
/// operations for two logits a lane, where widening to f32 takes three, and the same logit found.
#[target_feature(enable = "avx512bw")]
fn max_bf16(row: &[bf16]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut greatest = [_mm512_set1_epi16(i16::MIN); RUNNING / 2];
    let mut least = [_mm512_set1_epi16(i16::MAX); RUNNING / 2];
    for block in blocks {
        for (place, lanes) in block.as_chunks().0.iter().enumerate() {
            let bits = load_bf16(lanes);
            greatest[place] = _mm512_max_epi16(greatest[place], bits);
            least[place] = _mm512_min_epi16(least[place], bits);
        }
    }
    let (mut over, mut under) = (greatest[0], least[0]);
    for (&high, &low) in greatest.iter().zip(&least) {
        over = _mm512_max_epi16(over, high);
        under = _mm512_min_epi16(under, low);
    }
    let greatest = lanes_of(over).into_iter().fold(i16::MIN, i16::max);
    let least = lanes_of(under).into_iter().fold(i16::MAX, i16::min);
    let largest = if greatest >= 0 { greatest } else { least };
    let blocks_largest =
        if blocks.is_empty() { f32::NEG_INFINITY } else { bf16::from_bits(largest as u16).to_f32() };
    Portable.of_bf16(tail).max(blocks_largest)
}

#[target_feature(enable = "avx512f")]
fn reduce(running: [__m512; RUNNING]) -> f32 {
    let mut largest = running[0];
    for other in running {
        largest = _mm512_max_ps(largest, other);
    }
    _mm512_reduce_max_ps(largest)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_f32(lanes: &[f32; LANES]) -> __m512 {
    // SAFETY: reads the 64 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { _mm512_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_bf16(lanes: &[bf16; 2 * LANES]) -> __m512i {
    // SAFETY: reads the 64 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_of(bits: __m512i) -> [i16; 2 * LANES] {
    let mut lanes = [0; 2 * LANES];
    // SAFETY: writes the 64 bytes of `lanes`, which is ours alone; the store wants no alignment.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), bits) };
    lanes
}
