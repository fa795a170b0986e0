//! How long does a token take from a hidden state, by the exact head and by certified ones of both screens?
//! Printed as a table of Markdown, for a real model's hidden states.
//!
//! ```text
//! RAYON_NUM_THREADS=1 cargo run --release --package gumball-cli --example heads -- \
//!     [--model FILE] [--positions N] [--timed N] [--calibration N]
//! ```
//!
//! The weights are the model's output matrix, rounded to bf16. The hidden states are those of this
//! repository's documents and sources, in pieces of 1024 tokens: a position for each token, N in all (default
//! 10,000). The screen of two levels is calibrated on those of other documents and sources, or on none with
//! `--calibration 0`. All heads draw a token at each position, one position at a time, and the program ends
//! with an error if one token differs. Then batches of several positions are timed, over the first N
//! positions (`--timed`, default 512). The heads take turns; times are of a step.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gumball_cli::model::Model;
use gumball_engine::head::{Certified, Exact, HeadOptions, HostMatrix};
use gumball_engine::{Batch, Head, Outputs, Pool, PoolConfig, Rows, SamplingParams, Slot};
use half::bf16;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Texts whose hidden states are taken: prose, rules, code in three languages.
const TEXTS: [&str; 8] = [
    "README.md",
    "docs/semantics.md",
    "docs/architecture.md",
    "docs/performance.md",
    "crates/engine/src/pool.rs",
    "crates/cuda/kernels/verify.cu",
    "bindings/python/python/gumball/__init__.py",
    "CHANGELOG.md",
];

/// Texts whose hidden states the screen of two levels is calibrated on.
const OTHER_TEXTS: [&str; 5] = [
    "docs/numerics.md",
    "docs/glossary.md",
    "crates/cpu/src/workspace.rs",
    "bindings/python/python/gumball/params.py",
    "docs/python.md",
];

/// Rows that are timed together.
const BATCHES: [usize; 5] = [1, 4, 8, 16, 64];

/// How often the rows of a batch size are timed; the median counts.
const TURNS: usize = 5;

fn settings() -> [(&'static str, SamplingParams); 4] {
    let at = |temperature| SamplingParams { temperature, seed: Some(7), ..SamplingParams::default() };
    [
        ("greedy", at(0.0)),
        ("T 1", at(1.0)),
        ("T 0.8, min-p 0.05", SamplingParams { min_p: 0.05, ..at(0.8) }),
        ("T 0.8, top-k 50, top-p 0.9", SamplingParams { top_k: 50, top_p: 0.9, ..at(0.8) }),
    ]
}

fn main() -> Result<()> {
    let (mut model, mut positions, mut timed, mut calibration) = (None, 10_000, 512, 4096);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} wants a value"))?;
        match argument.as_str() {
            "--model" => model = Some(PathBuf::from(value)),
            "--positions" => positions = value.parse()?,
            "--timed" => timed = value.parse()?,
            "--calibration" => calibration = value.parse()?,
            _ => return Err(format!("unknown option {argument}").into()),
        }
    }
    if timed < 2 * BATCHES[4] || positions < timed {
        return Err(format!(
            "--timed is {timed}, but must be at least {} and at most --positions",
            2 * BATCHES[4]
        )
        .into());
    }
    let path = model.map_or_else(Model::default_path, Ok)?;
    let mut model = Model::load(&path)?;
    let (vocab, width) = (model.llama.vocab(), model.llama.config().hidden);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |texts: &[&str]| -> std::io::Result<Vec<String>> {
        texts.iter().map(|text| std::fs::read_to_string(root.join(text))).collect()
    };
    let hidden = model.hidden_states(&read(&TEXTS)?, positions)?;
    let of_others = model.hidden_states(&read(&OTHER_TEXTS)?, calibration)?;
    let positions = hidden.len() / width;
    let weights: Vec<bf16> = model.llama.head_matrix()?.into_iter().map(bf16::from_f32).collect();
    drop(model);
    let exact = Exact::new(&weights, vocab, width, HeadOptions::default())?;
    let int8 = Certified::new(exact.clone()).with_most_rows(usize::MAX);
    let calibration = of_others.len() / width;
    let states = HostMatrix::new(&of_others, calibration, width)?;
    let start = Instant::now();
    let two_level = Certified::two_level(exact.clone(), (calibration > 0).then_some(states))?;
    let two_level = two_level.with_most_rows(usize::MAX);
    let built = start.elapsed();
    let whole_bytes = (2 * weights.len()) as f64;

    println!(
        "{positions} positions, {calibration} for calibration, {vocab} x {width}, bf16, {} threads; the screen of two levels was made in {:.1} s\n",
        rayon::current_num_threads(),
        built.as_secs_f64()
    );
    println!("| setting | screen | logits a token | bounds lowered | bytes / exact | rows given up |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let certified = [("int8", &int8), ("two levels", &two_level)];
    for (name, params) in settings() {
        let run = |head: Head<'_>| Run::new(head, &params, &hidden, width, 1, positions);
        let by_exact = run((&exact).into())?;
        for (screen, head) in certified {
            let of_screen = run(head.into())?;
            if by_exact.tokens != of_screen.tokens {
                return Err(format!("{name}: the heads differ").into());
            }
            let a_token = |count: u64| count as f64 / positions as f64;
            let bytes = a_token(of_screen.rows) * head.screen_bytes() as f64
                + a_token(of_screen.lowered) * head.second_level_bytes() as f64
                + a_token(of_screen.logits) * (2 * width) as f64
                + a_token(of_screen.whole_rows) * whole_bytes;
            println!(
                "| {name} | {screen} | {:.1} | {:.1} | {:.3} | {} |",
                a_token(of_screen.logits),
                a_token(of_screen.lowered),
                bytes / whole_bytes,
                of_screen.whole_rows
            );
        }
    }
    println!(
        "\n| setting | rows | exact, us | int8, us | two levels, us | int8 / exact | two levels / exact |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (name, params) in settings() {
        for rows in BATCHES {
            let count = timed.min(positions) / rows * rows;
            let run = |head: Head<'_>| Run::new(head, &params, &hidden, width, rows, count);
            let mut times = [(); 3].map(|()| Vec::new());
            for _ in 0..TURNS {
                let heads = [Head::from(&exact), Head::from(&int8), Head::from(&two_level)];
                for (times, head) in times.iter_mut().zip(heads) {
                    times.push(run(head)?.time_of_step);
                }
            }
            let [of_exact, of_int8, of_two_levels] = times.map(median).map(micros);
            println!(
                "| {name} | {rows} | {of_exact:.0} | {of_int8:.0} | {of_two_levels:.0} | {:.2} | {:.2} |",
                of_int8 / of_exact,
                of_two_levels / of_exact
            );
        }
    }
    Ok(())
}

/// The tokens of some positions, and what they took.
struct Run {
    tokens: Vec<i32>,
    /// The mean over all steps but the first, in which memory is allocated.
    time_of_step: Duration,
    /// Rows that a part of their logits decided, and how many logits that took.
    rows: u64,
    logits: u64,
    /// Bounds that a second level lowered.
    lowered: u64,
    whole_rows: u64,
}

impl Run {
    /// Draws a token at each of the first `count` positions, `rows` at a time.
    fn new(
        head: Head<'_>,
        params: &SamplingParams,
        hidden: &[f32],
        width: usize,
        rows: usize,
        count: usize,
    ) -> Result<Self> {
        let vocab = match head {
            Head::Exact(exact) => exact.vocab(),
            Head::Certified(certified) => certified.exact().vocab(),
            _ => return Err("a head of another kind".into()),
        };
        let mut pool = Pool::new(PoolConfig { slots: rows, ..PoolConfig::new(vocab) })?;
        let slots: Vec<Slot> =
            (0..rows).map(|_| pool.admit(params.clone(), &[])).collect::<std::result::Result<_, _>>()?;
        let (mut out, mut tokens, mut time) = (Outputs::new(), Vec::new(), Duration::ZERO);
        for (step, states) in hidden[..count * width].chunks_exact(rows * width).enumerate() {
            let states = HostMatrix::new(states, rows, width)?;
            let start = Instant::now();
            pool.step(Rows::hidden(head, states), &Batch::of(&slots), &mut out)?;
            time += if step == 0 { Duration::ZERO } else { start.elapsed() };
            tokens.extend_from_slice(out.tokens());
        }
        let counts = pool.head_counts();
        Ok(Self {
            tokens,
            time_of_step: time / (count / rows - 1) as u32,
            rows: counts.certified_rows,
            logits: counts.certified_logits,
            lowered: counts.lowered_bounds,
            whole_rows: counts.whole_rows,
        })
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
