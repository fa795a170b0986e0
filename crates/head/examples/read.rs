//! Computes logits or their bounds and times nothing, for tools that count: `read KIND LEVEL STATES`, as in
//! `read int8 neon 3`.
//!
//! KIND is `exact`, the exact head's logits, or `int8`, the bounds of a certified head. The weights are 1024
//! x 576 in bf16, and each hidden state is a call of its own on one thread. The work before the first call is
//! the same for any number of them.

use std::error::Error;
use std::hint::black_box;

use gumball_head::{Bounds, Certified, Exact, HeadOptions, HostMatrix, Level, Spread, Widened};
use gumball_spec::num::philox4x32_10;
use half::bf16;

const VOCAB: usize = 1024;
const WIDTH: usize = 576;

/// Returns numbers of a bell's rough shape.
fn numbers(count: usize, seed: u64) -> impl Iterator<Item = f32> {
    (0..count as u32).map(move |i| {
        let words = philox4x32_10(seed, [i, 0, 9, 0]);
        words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 1.7
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, level, states] = &arguments[..] else { return Err("usage: read KIND LEVEL STATES".into()) };
    let (level, calls): (Level, usize) = (level.parse()?, states.parse()?);
    let weights: Vec<bf16> = numbers(VOCAB * WIDTH, 1).map(bf16::from_f32).collect();
    let options = HeadOptions { level: Some(level.check()?), ..Default::default() };
    let exact = Exact::new(&weights, VOCAB, WIDTH, options)?;
    let state: Vec<f32> = numbers(WIDTH, 2).collect();
    let states = Widened::of(HostMatrix::new(&state, 1, WIDTH)?);
    let certified = match &kind[..] {
        "exact" => {
            let mut logits = vec![0.0; VOCAB];
            for _ in 0..calls {
                exact.logits(&states, Spread::Caller, &mut logits)?;
                black_box(&mut logits);
            }
            println!("{calls} times the logits of {VOCAB} x {WIDTH} at level {level}");
            return Ok(());
        }
        "int8" => Certified::new(exact),
        _ => return Err(format!("{kind} is not known; known are exact, int8").into()),
    };
    let mut bounds = Bounds::default();
    for _ in 0..calls {
        certified.bound(&states, Spread::Caller, &mut bounds)?;
        black_box(&mut bounds);
    }
    println!("{calls} times the bounds ({kind}) of {VOCAB} x {WIDTH} at level {level}");
    Ok(())
}
