//! Times steps on this host's GPU with rows that are not in cache: microseconds per call, median and p95.
//!
//! `replay [OPTION..] [VOCAB,..] [ROWS,..]`, by default 151936 and 1,8,32,128,512. If ROWS is `curve`, it
//! times every size up to 512, in graphs only; if it is `-`, it only compiles the kernels.
//!
//! | option | does |
//! | --- | --- |
//! | `--only NAME,..` | these of `requests.rs`, `softmax.rs`, `operators.rs`, `chains.rs` |
//! | `--type f32,bf16` | only these types |
//! | `--like model,bell,flat` | rows of these kinds (`rows.rs`); by default `model`, and with `--json` all |
//! | `--json` | prints what `bench/gpu` reads, including eager steps, instead of a table |
//! | `--profile` | runs one step each between marks, for `ci/gpu-profile`, and times nothing |
//!
//! A graph holds one step for each of many batches. Together these are far larger than the L2 cache, so no
//! step finds its rows there. `floor` is the time of reading the logits once at 4576 GB/s, the read-only
//! ceiling of one H200. `reads` is the time of a step in multiples of that. `survey` is the step without the
//! kernel that finishes rows.

mod chains;
mod operators;
mod requests;
mod rows;
mod softmax;
mod time_operators;
mod time_steps;

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{Cache, Dtype, Gpu, Kernel, Rows, Runtime};

use requests::{by_default, requests};
use rows::{Like, Pool};
use time_operators::Calls;
use time_steps::Case;

#[derive(Clone, Copy, PartialEq)]
enum Report {
    Table,
    Json,
    Profile,
}

struct Asked {
    report: Report,
    only: Option<Vec<String>>,
    types: Option<Vec<String>>,
    likes: Option<Vec<String>>,
    vocabs: Vec<usize>,
    sizes: Vec<usize>,
    /// Whether the results include steps from the host.
    eager: bool,
}

fn asked() -> Result<Asked, Box<dyn Error>> {
    let mut asked = Asked {
        report: Report::Table,
        only: None,
        types: None,
        likes: None,
        vocabs: vec![151_936],
        sizes: vec![1, 8, 32, 128, 512],
        eager: true,
    };
    let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let numbers = |text: &str| text.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
    let mut arguments = std::env::args().skip(1);
    let mut named = 0;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().map(|value| words(&value));
        match argument.as_str() {
            "--json" => asked.report = Report::Json,
            "--profile" => asked.report = Report::Profile,
            "--only" => asked.only = value(),
            "--type" => asked.types = value(),
            "--like" => asked.likes = value(),
            option if option.starts_with("--") => return Err(format!("{option} is not known").into()),
            vocabs if named == 0 => (named, asked.vocabs) = (1, numbers(vocabs)?),
            "-" => asked.sizes.clear(),
            "curve" => (asked.sizes, asked.eager) = ((1..=512).collect(), false),
            sizes => asked.sizes = numbers(sizes)?,
        }
    }
    Ok(asked)
}

/// Returns whether `names` contains a name; `None` if there are no names.
fn chosen(names: &Option<Vec<String>>, name: &str) -> Option<bool> {
    names.as_ref().map(|names| names.iter().any(|other| other == name))
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked = asked()?;
    let gpu = Arc::new(Gpu::new(0, &Cache::user())?);
    println!("{}", gpu.name());
    if asked.report == Report::Table {
        for (kernel, name) in Kernel::all() {
            let (registers, local) = gpu.resources(kernel)?;
            println!("{name:22} {registers:3} registers, {local} bytes of local memory");
        }
    }
    for vocab in &asked.vocabs {
        if asked.report == Report::Table {
            println!("vocab {vocab}, T 0.8, microseconds a call in a graph, cold: median (p95)");
            println!(
                "{:17} {:5} {:5} {:>4} {:>7} {:>16} {:>16} {:>6}",
                "request", "rows", "type", "rows", "floor", "survey", "step", "reads"
            );
        }
        for like in Like::ALL {
            let default = like == Like::Model || asked.report == Report::Json;
            if chosen(&asked.likes, like.name()).unwrap_or(default) {
                time(&gpu, &asked, *vocab, like)?;
            }
        }
    }
    Ok(())
}

type Make = for<'b> fn(&'b Arc<Gpu>, &'static str, &'b [Rows<'b>]) -> Result<Calls<'b>, Box<dyn Error>>;

/// Returns the operators on rows, each with the function that prepares its calls.
fn operators() -> impl Iterator<Item = (&'static str, Make)> {
    let softmaxes = softmax::NAMES.into_iter().map(|name| (name, softmax::calls as Make));
    let operators = operators::NAMES.into_iter().map(|name| (name, operators::calls as Make));
    softmaxes.chain(operators).chain([(chains::NAME, chains::calls as Make)])
}

/// Times all chosen requests and operators over rows of a kind.
fn time(gpu: &Arc<Gpu>, asked: &Asked, vocab: usize, like: Like) -> Result<(), Box<dyn Error>> {
    let runtime: Arc<dyn Runtime> = Arc::clone(gpu) as Arc<dyn Runtime>;
    for dtype in [Dtype::F32, Dtype::Bf16] {
        if asked.sizes.is_empty() || !chosen(&asked.types, dtype.name()).unwrap_or(true) {
            continue;
        }
        let pool = Pool::new(&runtime, like, vocab, dtype, &asked.sizes)?;
        for size in &asked.sizes {
            let batches = pool.batches(*size)?;
            for request in requests(vocab) {
                if chosen(&asked.only, request.name).unwrap_or(by_default(request.name, like)) {
                    let mut case = Case::new(gpu, &request, &batches)?;
                    match asked.report {
                        Report::Profile => case.profile(like)?,
                        Report::Json => case.print_results(like, asked.eager)?,
                        Report::Table => case.print_row(like)?,
                    }
                }
            }
            for (name, make) in operators() {
                if chosen(&asked.only, name).unwrap_or(false) {
                    let mut calls = make(gpu, name, &batches)?;
                    match asked.report {
                        Report::Json => calls.print_results(like, asked.eager)?,
                        Report::Table | Report::Profile => calls.print_row(like)?,
                    }
                }
            }
        }
    }
    Ok(())
}
