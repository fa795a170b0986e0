//! The floor: one maximum over the row, as fast as this processor gives it.
//!
//! It reads every logit once and does as little with it as can be: what no engine that looks at every
//! logit can undercut. It is no stage: programs that time draws divide by it.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
mod portable;

use gumball_spec::Row;
use half::bf16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// A maximum over a row, at one level of the processor.
trait Maximum: Copy + 'static {
    /// The operation and the instructions, in words.
    const DOES: &'static str;

    /// The largest of finite logits.
    fn of_f32(self, row: &[f32]) -> f32;

    /// The largest of finite logits, each widened to f32.
    fn of_bf16(self, row: &[bf16]) -> f32;
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    Neon(neon::Neon),
    #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
    Portable(portable::Portable),
}

/// The reading of a row at one level of the processor.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    unit: Unit,
}

impl Floor {
    /// Returns the reading at the best level that this processor has.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(avx512) = avx512::Avx512::new() {
                return Self { unit: Unit::Avx512(avx512) };
            }
            if let Some(avx2) = avx2::Avx2::new() {
                return Self { unit: Unit::Avx2(avx2) };
            }
        }
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        return Self { unit: Unit::Neon(neon::Neon) };
        #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
        Self { unit: Unit::Portable(portable::Portable) }
    }

    /// Says what a reading does, in words.
    #[must_use]
    pub fn does(self) -> &'static str {
        match self.unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512(_) => avx512::Avx512::DOES,
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2(_) => avx2::Avx2::DOES,
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Unit::Neon(_) => neon::Neon::DOES,
            #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
            Unit::Portable(_) => portable::Portable::DOES,
        }
    }

    /// Returns the largest of a row's logits, all of which are finite. A row in f16 is read as if it were in
    /// bf16: as many bytes, and no maximum.
    #[must_use]
    pub fn read(self, row: Row<'_>) -> f32 {
        match self.unit {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512(unit) => largest(unit, row),
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2(unit) => largest(unit, row),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Unit::Neon(unit) => largest(unit, row),
            #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
            Unit::Portable(unit) => largest(unit, row),
        }
    }
}

fn largest(unit: impl Maximum, row: Row<'_>) -> f32 {
    match row {
        Row::F32(logits) => unit.of_f32(logits),
        Row::Bf16(logits) => unit.of_bf16(logits),
        Row::F16(logits) => unit.of_bf16(logits.reinterpret_cast().reinterpret_cast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of every length around the block sizes, of both signs and of one, the maximum at every place.
    fn agrees_with_a_plain_loop(level: impl Maximum) {
        for vocab in [1, 2, 15, 16, 31, 32, 127, 128, 129, 255, 256, 257, 600] {
            for place in 0..vocab {
                let (below, peak) = if place % 3 == 0 { (0.0, 9.0) } else { (9.0, -1.0) };
                let mut row: Vec<f32> = (0..vocab)
                    .map(|id| ((id * 7919 + place * 31) % 1001) as f32 / 83.5 - 6.0 - below)
                    .collect();
                row[place] = peak - (place as f32) / 512.0;
                let narrow: Vec<bf16> = row.iter().map(|&logit| bf16::from_f32(logit)).collect();
                let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let largest_narrow =
                    narrow.iter().map(|logit| logit.to_f32()).fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(level.of_f32(&row), largest, "f32 {place} of {vocab}");
                assert_eq!(level.of_bf16(&narrow), largest_narrow, "bf16 {place} of {vocab}");
            }
        }
    }

    #[test]
    fn the_portable_maximum_is_the_maximum() {
        agrees_with_a_plain_loop(portable::Portable);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_avx2_maximum_is_the_maximum() {
        if let Some(level) = avx2::Avx2::new() {
            agrees_with_a_plain_loop(level);
        }
    }

    #[test]
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    fn the_neon_maximum_is_the_maximum() {
        agrees_with_a_plain_loop(neon::Neon);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_avx512_maximum_is_the_maximum() {
        if let Some(level) = avx512::Avx512::new() {
            agrees_with_a_plain_loop(level);
        }
    }
}
