//! The floor: one maximum over the row, as fast as this processor gives it.
//!
//! It reads every logit once and does as little with it as can be: what no engine that looks at every
//! logit can undercut. Every time in a record is also a multiple of the floor's, over the same rows
//! in the same run. It is no sampler: it answers with the bits of the maximum, not with a token.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
mod portable;

use std::rc::Rc;

use half::bf16;

use crate::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows};

/// The name of the floor's column.
pub const FLOOR: &str = "floor";

/// A maximum over a row, at one level of the processor.
trait Maximum: Copy + 'static {
    /// What it is, for the record.
    const DOES: &'static str;

    /// The largest of finite logits.
    fn of_f32(self, row: &[f32]) -> f32;

    /// The largest of finite logits, each widened to f32.
    fn of_bf16(self, row: &[bf16]) -> f32;
}

#[derive(Clone, Copy, Debug)]
enum Level {
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    Neon(neon::Neon),
    #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
    Portable(portable::Portable),
}

/// The engine that reads the row once.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    level: Level,
}

impl Floor {
    /// The floor at the best level this processor has.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(avx512) = avx512::Avx512::new() {
                return Self { level: Level::Avx512(avx512) };
            }
            if let Some(avx2) = avx2::Avx2::new() {
                return Self { level: Level::Avx2(avx2) };
            }
        }
        #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
        return Self { level: Level::Neon(neon::Neon) };
        #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
        Self { level: Level::Portable(portable::Portable) }
    }
}

impl Engine for Floor {
    fn identity(&self) -> Identity {
        Identity { engine: FLOOR.into(), version: env!("CARGO_PKG_VERSION").into() }
    }

    fn prepare(
        &mut self,
        _definition: &Definition,
        _parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        Ok(match self.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(level) => prepared(level, rows),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(level) => prepared(level, rows),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Level::Neon(level) => prepared(level, rows),
            #[cfg(not(all(target_arch = "aarch64", target_feature = "neon")))]
            Level::Portable(level) => prepared(level, rows),
        })
    }
}

/// Answers with the maximum's bits in place of a token: the floor chooses none.
fn prepared<M: Maximum>(level: M, rows: Rc<Rows>) -> Prepared {
    let draw = move |row| {
        let maximum = match rows.row(row) {
            Row::F32(logits) => level.of_f32(logits),
            Row::Bf16(logits) => level.of_bf16(logits),
        };
        i64::from(maximum.to_bits())
    };
    Prepared { does: M::DOES.into(), draw: Box::new(draw) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;

    /// Rows of every length around the block sizes, of both signs and of one, the maximum at every place.
    fn agrees_with_a_plain_loop(level: impl Maximum) {
        let mut words = Words(11);
        for vocab in [1, 2, 15, 16, 31, 32, 127, 128, 129, 255, 256, 257, 600] {
            for place in 0..vocab {
                let (below, peak) = if place % 3 == 0 { (0.0, 9.0) } else { (9.0, -1.0) };
                let mut row: Vec<f32> = (0..vocab).map(|_| words.bell() - below).collect();
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
