//! Times steps on this host's GPU with rows that are not in cache: microseconds per call, median and p95.
//!
//! `replay [OPTION..] [VOCAB,..] [ROWS,..]`, by default 151936 and 1,8,32,128,512. If ROWS is `curve`, it
//! times every size up to 512, in graphs only; if it is `-`, it only compiles the kernels.
//!
//! | option | does |
//! | --- | --- |
//! | `--only NAME,..` | these of `requests.rs`, `softmax.rs`, `operators.rs`, `draft_chains.rs`; `headline`, `other`, `strength`: groups of requests |
//! | `--type f32,bf16,f16` | these types; by default the first two |
//! | `--like model,bell,..` | rows of these families (`rows.rs`); by default `model`, and with `--json` or `--worst` all |
//! | `--worst` | prints for each request the median and the worst over the families (`worst.rs`); by default of `headline` and `other` |
//! | `--drafts 3,5` | times verifications of 3 drafts a request, then of 5, beside steps over as many rows; ROWS are then numbers of requests |
//! | `--tree` | with `--drafts`: the drafts of a request are a binary tree, not a chain |
//! | `--kept` | the steps write the kept sets, too |
//! | `--judged rejection` | with `--drafts`: judges them by probabilities, or with `block` as whole chains |
//! | `--json` | prints what `proof/bench/gpu` reads, including eager steps, instead of a table |
//! | `--graphs` | with `--json`: no eager steps |
//! | `--write-rows FOLDER` | writes the distinct rows of each family to a file there, as f32, before it times them |
//! | `--profile` | runs one step each between marks, for `ci/gpu profile`, and times nothing |
//!
//! A graph holds one step for each of many batches. Together these are far larger than the L2 cache, so no
//! step finds its rows there. `floor` is the time of reading the logits once at 4576 GB/s, the read-only
//! ceiling of one H200. `reads` is the time of a step in multiples of that. `survey` is the step without the
//! kernel that finishes rows.

mod draft_chains;
mod operators;
mod requests;
mod rows;
mod softmax;
mod time_operators;
mod time_steps;
mod verifications;
mod worst;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use gumball_cuda::{Cache, Dtype, Gpu, Kernel, Rows, Runtime};
use gumball_spec::verify::by_probabilities::Judgement;

use requests::{Group, Request, by_default, requests};
use rows::{COLD_BYTES, DISTINCT, LIKES, Like, Pool};
use time_operators::Calls;
use time_steps::Case;

#[derive(Clone, Copy, PartialEq)]
enum Report {
    Table,
    Json,
    Profile,
    Worst,
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
    /// The numbers of drafts whose verification is timed.
    drafts: Vec<usize>,
    tree: bool,
    judged: Option<Judgement>,
    kept: bool,
    write_rows: Option<PathBuf>,
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
        drafts: Vec::new(),
        tree: false,
        judged: None,
        kept: false,
        write_rows: None,
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
            "--graphs" => asked.eager = false,
            "--worst" => asked.report = Report::Worst,
            "--tree" => asked.tree = true,
            "--judged" => {
                asked.judged = match arguments.next().as_deref() {
                    Some("rejection") => Some(Judgement::Rejection),
                    Some("block") => Some(Judgement::Block),
                    _ => return Err("--judged takes rejection or block".into()),
                }
            }
            "--kept" => asked.kept = true,
            "--drafts" => {
                let counts = arguments.next().ok_or("--drafts takes numbers of drafts")?;
                asked.drafts = numbers(&counts)?;
            }
            "--write-rows" => asked.write_rows = arguments.next().map(PathBuf::from),
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
    let unknown = |name: &&String| LIKES.iter().all(|like| like.name != *name);
    if let Some(name) = asked.likes.iter().flatten().find(unknown) {
        let known = LIKES.map(|like| like.name).join(", ");
        return Err(format!("--like {name} is not known; known are {known}").into());
    }
    Ok(asked)
}

/// Returns whether `names` contains a name; `None` if there are no names.
fn chosen(names: &Option<Vec<String>>, name: &str) -> Option<bool> {
    names.as_ref().map(|names| names.iter().any(|other| other == name))
}

impl Asked {
    /// Returns whether a request is to be timed over rows of a family.
    fn takes(&self, request: &Request, like: Like) -> bool {
        let [by_name, by_group] = [&*request.name, request.group.name()].map(|name| chosen(&self.only, name));
        by_name.zip(by_group).map_or_else(|| by_default(request, like), |(name, group)| name || group)
    }

    fn types(&self) -> impl Iterator<Item = Dtype> {
        let takes = |dtype: &Dtype| chosen(&self.types, dtype.name()).unwrap_or(*dtype != Dtype::F16);
        [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().filter(takes)
    }

    fn likes(&self) -> impl Iterator<Item = Like> {
        let all = matches!(self.report, Report::Json | Report::Worst);
        LIKES
            .into_iter()
            .filter(move |like| chosen(&self.likes, like.name).unwrap_or(all || like.name == "model"))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked = asked()?;
    let gpu = Arc::new(Gpu::new(0, &Cache::user())?);
    println!("{}", gpu.name());
    if asked.only.is_none() && asked.report == Report::Table {
        for (kernel, name) in Kernel::all() {
            let (registers, local) = gpu.resources(kernel)?;
            println!("{name:22} {registers:3} registers, {local} bytes of local memory");
        }
    }
    if asked.sizes.is_empty() {
        return Ok(());
    }
    for vocab in &asked.vocabs {
        if asked.report == Report::Worst {
            worst(&gpu, &asked, *vocab)?;
            continue;
        }
        if !asked.drafts.is_empty() {
            asked.likes().try_for_each(|like| verifications::time(&gpu, &asked, *vocab, like))?;
            continue;
        }
        if asked.report == Report::Table {
            println!("vocab {vocab}, microseconds a call in a graph, cold: median (p95)");
            println!(
                "{:19} {:10} {:5} {:>4} {:>7} {:>16} {:>16} {:>6}",
                "request", "rows", "type", "rows", "floor", "survey", "step", "reads"
            );
        }
        for like in asked.likes() {
            time(&gpu, &asked, *vocab, like)?;
        }
    }
    Ok(())
}

type Make = for<'b> fn(&'b Arc<Gpu>, &'static str, &'b [Rows<'b>]) -> Result<Calls<'b>, Box<dyn Error>>;

/// Returns the operators on rows that are to be timed, each with the function that prepares its calls.
fn operators(asked: &Asked) -> Vec<(&'static str, Make)> {
    let softmaxes = softmax::NAMES.into_iter().map(|name| (name, softmax::calls as Make));
    let operators = operators::NAMES.into_iter().map(|name| (name, operators::calls as Make));
    let all = softmaxes.chain(operators).chain([(draft_chains::NAME, draft_chains::calls as Make)]);
    all.filter(|(name, _)| chosen(&asked.only, name).unwrap_or(false)).collect()
}

/// Times all chosen requests and operators over rows of all chosen families, and reports the worst.
fn worst(gpu: &Arc<Gpu>, asked: &Asked, vocab: usize) -> Result<(), Box<dyn Error>> {
    let takes = |request: &Request| match asked.only {
        None => request.group != Group::Strength,
        Some(_) => asked.takes(request, LIKES[0]),
    };
    let requests: Vec<Request> = requests(vocab).into_iter().filter(takes).collect();
    let (operators, likes) = (operators(asked), asked.likes().collect::<Vec<_>>());
    let timed = worst::Timed { requests: &requests, operators: &operators, likes: &likes };
    asked.types().try_for_each(|dtype| worst::report(gpu, &timed, vocab, dtype, &asked.sizes))
}

/// Times all chosen requests and operators over rows of a family.
fn time(gpu: &Arc<Gpu>, asked: &Asked, vocab: usize, like: Like) -> Result<(), Box<dyn Error>> {
    let runtime: Arc<dyn Runtime> = Arc::clone(gpu) as Arc<dyn Runtime>;
    let requests: Vec<Request> =
        requests(vocab).into_iter().filter(|request| asked.takes(request, like)).collect();
    let operators = operators(asked);
    if requests.is_empty() && operators.is_empty() {
        return Ok(());
    }
    let rows = like.rows(vocab, DISTINCT);
    if let Some(folder) = &asked.write_rows {
        like.write(folder, vocab, &rows)?;
    }
    for dtype in asked.types() {
        let pool = Pool::new(&runtime, vocab, dtype, &asked.sizes, COLD_BYTES)?;
        pool.fill(&rows)?;
        for size in &asked.sizes {
            let batches = pool.batches(*size)?;
            for request in requests.iter().flat_map(|request| request.at(*size)) {
                let mut case = Case::new(gpu, request, &batches, asked.kept)?;
                match asked.report {
                    Report::Profile => case.profile(like)?,
                    Report::Json => case.print_results(like, asked.eager)?,
                    Report::Table | Report::Worst => case.print_row(like)?,
                }
            }
            for (name, make) in &operators {
                let mut calls = make(gpu, name, &batches)?;
                match asked.report {
                    Report::Json => calls.print_results(like, asked.eager)?,
                    _ => calls.print_row(like)?,
                }
            }
        }
    }
    Ok(())
}
