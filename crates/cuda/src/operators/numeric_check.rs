//! The device's numeric functions beside their definitions, for tests that both are equal bit for bit on any
//! device.

use std::sync::Arc;

use gumball_spec::num;
use gumball_spec::row::clean;
use gumball_spec::survey::Factor;
use half::f16;

use crate::abi::{NUMERIC_CHECK_THREADS, Sweep};
use crate::driver::runtime::{Grid, Runtime};
use crate::error::Result;
use crate::launch::Launch;
use crate::memory::buffer::Buffer;
use crate::programs::kernels::NUMERIC_CHECK;

/// A definition's result for an input, as bits; `None` if the input is outside its domain.
pub type Definition = fn(u64) -> Option<u64>;

/// Each function's name and definition, in the order of `numeric_check.cu`. Inputs are 64-bit words; a
/// function of a float reads it from the low 32 bits.
pub const NUMBERS: [(&str, Definition); 15] = [
    ("log2", |i| (float(i) == 0.0 || is_positive(float(i))).then(|| bits(num::log2(float(i))))),
    ("exp2", |i| (float(i) <= 0.0).then(|| bits(num::exp2(float(i))))),
    ("exp_of_u32", |i| Some(bits(num::exp_of_u32(i as u32)))),
    ("exp_of_u64", |i| Some(bits(num::exp_of_u64(i)))),
    ("ordered_bits", |i| Some(u64::from(num::ordered_bits(float(i))))),
    ("from_ordered_bits", |i| Some(bits(num::from_ordered_bits(i as u32)))),
    ("clean", |i| Some(bits(clean(float(i))))),
    ("half", |i| {
        let half = f16::from_bits(i as u16);
        (!half.is_nan()).then(|| bits(half.to_f32()))
    }),
    ("tile_mass", |i| {
        let factor = float(i);
        let ok = factor == 0.0 || (f32::MIN_POSITIVE..=1.0).contains(&factor);
        ok.then(|| Factor::new(factor).mass((i >> 32) * 15 + 1))
    }),
    ("philox", |i| {
        let word = i as u32;
        let words = num::philox4x32_10(i, [word, word ^ 5, word >> 7, !word]).map(u64::from);
        Some((words[0] << 32 | words[1]) ^ (words[2] << 32 | words[3]).wrapping_mul(3))
    }),
    ("key", |i| Some(num::key(float(i), i as u32 >> 12))),
    ("weight", |i| (float(i) <= 0.0).then(|| (num::exp2(float(i)) * 268_435_456.0).round_ties_even() as u64)),
    ("portions", |i| {
        let (p, of) = (float(i), float(i >> 32 ^ ONE));
        let inside = is_positive(of) && (0.0..=of).contains(&p);
        inside.then(|| (p / of * 268_435_456.0).round_ties_even() as u64)
    }),
    ("approx_quotient", |i| {
        // Divisors are in 1..=2^20: no row's weights, relative to its first token's, sum to more.
        let (d, divisor) = (float(i), float(ONE + (i >> 32) % (20 << 23)));
        let inside = (-126.0..=0.0).contains(&d) && num::exp2(d) / divisor >= f32::MIN_POSITIVE;
        inside.then_some(1)
    }),
    ("log2_parts", |i| {
        let parts = |(e, f): (i32, f32)| u64::from(e as u32) << 32 | bits(f);
        is_positive(float(i)).then(|| parts(num::log2_parts(float(i))))
    }),
];

/// The bits of 1.0. The divisor of `portions` is the high word of its input XOR these bits, so inputs below
/// 2^32 have the divisor 1.
const ONE: u64 = 0x3F80_0000;

fn bits(x: f32) -> u64 {
    u64::from(x.to_bits())
}

fn float(input: u64) -> f32 {
    f32::from_bits(input as u32)
}

fn is_positive(x: f32) -> bool {
    x > 0.0 && x.is_finite()
}

/// Inputs in an arithmetic sequence.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// The first input.
    pub from: u64,
    /// The difference between two neighbouring inputs, modulo 2^64.
    pub step: u64,
    /// The number of inputs.
    pub count: usize,
}

/// Inputs per launch.
const CHUNK: usize = 1 << 22;

/// Compares function `which` on a device with its definition. Returns the number of compared inputs, or a
/// message that names the first difference found.
///
/// Inputs outside the function's domain are not compared.
///
/// # Errors
/// The errors of the device.
///
/// # Panics
/// If `which` is not an index of [`NUMBERS`].
pub fn check(
    runtime: &Arc<dyn Runtime>,
    which: usize,
    inputs: Inputs,
) -> Result<std::result::Result<usize, String>> {
    let (name, definition) = NUMBERS[which];
    let chunk = CHUNK.min(inputs.count);
    let buffer = Buffer::zeroed(runtime, chunk * size_of::<u64>())?;
    let mut got = vec![0u64; chunk];
    let mut compared = 0;
    for start in (0..inputs.count).step_by(CHUNK) {
        let count = chunk.min(inputs.count - start);
        let from = inputs.from.wrapping_add(inputs.step.wrapping_mul(start as u64));
        let sweep = Sweep {
            from,
            step: inputs.step,
            count: count as u64,
            which: which as u64,
            out: buffer.address(),
        };
        let blocks = (count as u32).div_ceil(NUMERIC_CHECK_THREADS);
        let launch = Launch::new(NUMERIC_CHECK.kernel(), Grid::new(blocks, NUMERIC_CHECK_THREADS));
        // SAFETY: the kernel writes `count` words to `out`, whose buffer holds at least as many.
        unsafe { launch.enqueue(&**runtime, &sweep) }?;
        buffer.read(0, &mut got[..count])?;
        match compare(definition, from, inputs.step, &got[..count]) {
            Ok(inside) => compared += inside,
            Err(difference) => return Ok(Err(format!("{name} {difference}"))),
        }
    }
    Ok(Ok(compared))
}

/// Compares the device's results with the definition, on all of the host's threads.
fn compare(definition: Definition, from: u64, step: u64, got: &[u64]) -> std::result::Result<usize, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = got.len().div_ceil(threads).max(1);
    let work = |(part, got): (usize, &[u64])| {
        let mut compared = 0;
        for (i, got) in got.iter().enumerate() {
            let input = from.wrapping_add(step.wrapping_mul((part * share + i) as u64));
            if let Some(want) = definition(input) {
                if *got != want {
                    return Err(format!("of {input:#x} is {got:#x}, not {want:#x}"));
                }
                compared += 1;
            }
        }
        Ok(compared)
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            got.chunks(share).enumerate().map(|part| scope.spawn(move || work(part))).collect();
        parts.into_iter().map(|part| part.join().expect("a comparison does not panic")).sum()
    })
}
