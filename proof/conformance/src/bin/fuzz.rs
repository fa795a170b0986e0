//! Runs fuzz bodies for a bounded time, on stable Rust, from a seed.
//!
//! `fuzz [--body NAME] [--seconds N] [--seed N] [--input HEX]`: without a body each gets N seconds. An input
//! that fails is made smaller by cutting and zeroing, and printed as hex.

use std::panic::{catch_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gumball_conformance::fuzz::{BODIES, Body};
use gumball_conformance::rows::Words;
use gumball_spec::hex::{hex, unhex};

struct Options {
    body: Option<String>,
    seconds: f64,
    seed: u64,
    input: Option<Vec<u8>>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { body: None, seconds: 5.0, seed: 1, input: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{name} is {value}, but must be a number"));
        match &*name {
            "--body" => options.body = Some(value),
            "--seconds" => options.seconds = number()?,
            "--seed" => options.seed = number()? as u64,
            "--input" => options.input = Some(unhex(&value).ok_or("--input must be pairs of hex digits")?),
            _ => return Err(format!("{name} is not known; known are --body, --seconds, --seed, --input")),
        }
    }
    Ok(options)
}

fn fails(body: Body, data: &[u8]) -> bool {
    catch_unwind(|| (body.1)(data)).is_err()
}

/// Makes a failing input shorter and blanker while it still fails.
fn minimise(body: Body, mut data: Vec<u8>) -> Vec<u8> {
    let mut step = data.len().div_ceil(2);
    while step > 0 {
        while data.len() >= step && fails(body, &data[..data.len() - step]) {
            data.truncate(data.len() - step);
        }
        step /= 2;
    }
    for place in 0..data.len() {
        let before = std::mem::take(&mut data[place]);
        if before != 0 && !fails(body, &data) {
            data[place] = before;
        }
    }
    data
}

/// Makes an input: random bytes, or zeros with a few bytes set, which are tamer.
fn input(words: &mut Words) -> Vec<u8> {
    let len = words.below(400);
    if words.below(3) > 0 {
        return (0..len).map(|_| words.word() as u8).collect();
    }
    let mut data = vec![0; len];
    for _ in 0..len / 8 {
        let place = words.below(len);
        data[place] = words.word() as u8;
    }
    data
}

fn run(body: Body, options: &Options) -> bool {
    let start = Instant::now();
    let mut words = Words(options.seed);
    let mut runs = 0u64;
    while start.elapsed() < Duration::from_secs_f64(options.seconds) {
        let data = input(&mut words);
        runs += 1;
        if fails(body, &data) {
            let least = minimise(body, data);
            println!("{}: FAILED after {runs} runs, seed {}", body.0, options.seed);
            println!("  again: fuzz --body {} --input {}", body.0, hex(&least));
            return false;
        }
    }
    println!("{}: {runs} runs, seed {}, ok", body.0, options.seed);
    true
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let bodies: Vec<Body> = BODIES
        .iter()
        .copied()
        .filter(|(name, _)| options.body.as_deref().is_none_or(|body| body == *name))
        .collect();
    if bodies.is_empty() {
        let known: Vec<_> = BODIES.iter().map(|(name, _)| *name).collect();
        eprintln!("no such body; known are {}", known.join(", "));
        return ExitCode::from(2);
    }
    if let Some(data) = &options.input {
        bodies.iter().for_each(|(_, body)| body(data));
        println!("ok");
        return ExitCode::SUCCESS;
    }
    // The text of every attempt to make an input smaller would bury the one that counts.
    let loud = take_hook();
    set_hook(Box::new(|_| {}));
    let ok = bodies.iter().filter(|body| !run(**body, &options)).count() == 0;
    set_hook(loud);
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
