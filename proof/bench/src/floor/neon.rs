//! The maximum by NEON, which every aarch64 has: eight running maxima of 4 lanes each, so that none waits for
//! another.

use std::arch::aarch64::*;

use half::bf16;

use super::{Maximum, portable::Portable};

/// f32 lanes of a vector.
const LANES: usize = 4;
/// Running maxima.
const RUNNING: usize = 8;

/// The level: what this is compiled for has NEON.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon;

impl Maximum for Neon {
    const DOES: &'static str = "one maximum over the row, NEON";

    fn of_f32(self, row: &[f32]) -> f32 {
        // SAFETY: the function wants only NEON, with which this is compiled.
        unsafe { max_f32(row) }
    }

    fn of_bf16(self, row: &[bf16]) -> f32 {
        // SAFETY: the function wants only NEON, with which this is compiled.
        unsafe { max_bf16(row) }
    }
}

#[target_feature(enable = "neon")]
fn max_f32(row: &[f32]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut running = [vdupq_n_f32(f32::NEG_INFINITY); RUNNING];
    for block in blocks {
        for (largest, lanes) in running.iter_mut().zip(block.as_chunks().0) {
            *largest = vmaxq_f32(*largest, load_f32(lanes));
        }
    }
    let mut largest = running[0];
    for other in running {
        largest = vmaxq_f32(largest, other);
    }
    Portable.of_f32(tail).max(vmaxvq_f32(largest))
}

/// Finds the largest by its bits, as `avx512.rs` explains.
#[target_feature(enable = "neon")]
fn max_bf16(row: &[bf16]) -> f32 {
    let (blocks, tail) = row.as_chunks::<{ LANES * RUNNING }>();
    let mut greatest = [vdupq_n_s16(i16::MIN); RUNNING / 2];
    let mut least = [vdupq_n_s16(i16::MAX); RUNNING / 2];
    for block in blocks {
        for (place, lanes) in block.as_chunks().0.iter().enumerate() {
            let bits = load_bf16(lanes);
            greatest[place] = vmaxq_s16(greatest[place], bits);
            least[place] = vminq_s16(least[place], bits);
        }
    }
    let (mut over, mut under) = (greatest[0], least[0]);
    for (&high, &low) in greatest.iter().zip(&least) {
        over = vmaxq_s16(over, high);
        under = vminq_s16(under, low);
    }
    let (greatest, least) = (vmaxvq_s16(over), vminvq_s16(under));
    let largest = if greatest >= 0 { greatest } else { least };
    let blocks_largest =
        if blocks.is_empty() { f32::NEG_INFINITY } else { bf16::from_bits(largest as u16).to_f32() };
    Portable.of_bf16(tail).max(blocks_largest)
}

#[inline]
#[target_feature(enable = "neon")]
fn load_f32(lanes: &[f32; LANES]) -> float32x4_t {
    // SAFETY: reads the 16 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { vld1q_f32(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_bf16(lanes: &[bf16; 2 * LANES]) -> int16x8_t {
    // SAFETY: reads the 16 bytes of `lanes`, which is borrowed; the load wants no alignment.
    unsafe { vld1q_s16(lanes.as_ptr().cast()) }
}
