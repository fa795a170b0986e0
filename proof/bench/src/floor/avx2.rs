//! The maximum by AVX2: eight running maxima of 8 lanes each, so that none waits for another.

use std::arch::x86_64::*;

use half::bf16;

use super::{Maximum, portable::Portable};

/// f32 lanes of a vector.
const LANES: usize = 8;
/// Running maxima.
const RUNNING: usize = 8;

/// Proof that this processor has AVX2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    /// The level, if the processor has it.
    pub(super) fn new() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }
}

impl Maximum for Avx2 {
    const DOES: &'static str = "one maximum over the row, AVX2";

    fn of_f32(self, row: &[f32]) -> f32 {
        // SAFETY: the function wants only AVX2, which `self` proves: `new` alone makes one.
        unsafe { max_f32(row) }
    }

    fn of_bf16(self, row: &[bf16]) -> f32 {
        // SAFETY: the function wants only AVX2, which `self` proves: `new` alone makes one.
        unsafe { max_bf16(row) }
    }
}

#[target_feature(enable = "avx2")]
fn max_f32(row: &[f32]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut running = [_mm256_set1_ps(f32::NEG_INFINITY); RUNNING];
    for block in blocks {
        for (largest, lanes) in running.iter_mut().zip(block.as_chunks().0) {
            *largest = _mm256_max_ps(*largest, load_f32(lanes));
        }
    }
    Portable.of_f32(tail).max(reduce(running))
}

/// Finds the largest by its bits, as `avx512.rs` explains.
#[target_feature(enable = "avx2")]
fn max_bf16(row: &[bf16]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut greatest = [_mm256_set1_epi16(i16::MIN); RUNNING / 2];
    let mut least = [_mm256_set1_epi16(i16::MAX); RUNNING / 2];
    for block in blocks {
        for (place, lanes) in block.as_chunks().0.iter().enumerate() {
            let bits = load_bf16(lanes);
            greatest[place] = _mm256_max_epi16(greatest[place], bits);
            least[place] = _mm256_min_epi16(least[place], bits);
        }
    }
    let (mut over, mut under) = (greatest[0], least[0]);
    for (&high, &low) in greatest.iter().zip(&least) {
        over = _mm256_max_epi16(over, high);
        under = _mm256_min_epi16(under, low);
    }
    let greatest = lanes_of(over).into_iter().fold(i16::MIN, i16::max);
    let least = lanes_of(under).into_iter().fold(i16::MAX, i16::min);
    let largest = if greatest >= 0 { greatest } else { least };
    let blocks_largest =
        if blocks.is_empty() { f32::NEG_INFINITY } else { bf16::from_bits(largest as u16).to_f32() };
    Portable.of_bf16(tail).max(blocks_largest)
}

#[target_feature(enable = "avx2")]
fn reduce(running: [__m256; RUNNING]) -> f32 {
    let mut largest = running[0];
    for other in running {
        largest = _mm256_max_ps(largest, other);
    }
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // SAFETY: writes the 32 bytes of `lanes`, which is ours alone; the store wants no alignment.
    unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), largest) };
    Portable.of_f32(&lanes)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_f32(lanes: &[f32; LANES]) -> __m256 {
    // SAFETY: reads the 32 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_bf16(lanes: &[bf16; 2 * LANES]) -> __m256i {
    // SAFETY: reads the 32 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes_of(bits: __m256i) -> [i16; 2 * LANES] {
    let mut lanes = [0; 2 * LANES];
    // SAFETY: writes the 32 bytes of `lanes`, which is ours alone; the store wants no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), bits) };
    lanes
}
