//! The maximum where no vector unit is known: many running maxima that the compiler may vectorise.

use half::bf16;

use super::Maximum;

const LANES: usize = 64;

/// Any processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portable;

impl Maximum for Portable {
    const DOES: &'static str = "one maximum over the row, portable";

    fn of_f32(self, row: &[f32]) -> f32 {
        maximum(row, |logit| logit)
    }

    fn of_bf16(self, row: &[bf16]) -> f32 {
        maximum(row, |logit| f32::from_bits(u32::from(logit.to_bits()) << 16))
    }
}

fn maximum<T: Copy>(row: &[T], widen: impl Fn(T) -> f32) -> f32 {
    let (blocks, tail) = row.as_chunks::<LANES>();
    let mut running = [f32::NEG_INFINITY; LANES];
    for block in blocks {
        for (largest, &logit) in running.iter_mut().zip(block) {
            *largest = larger(*largest, widen(logit));
        }
    }
    let tail = tail.iter().map(|&logit| widen(logit));
    running.into_iter().chain(tail).fold(f32::NEG_INFINITY, larger)
}

fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
