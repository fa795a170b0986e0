//! Runs the rules against a backend: `conformance list|run|golden|draws`.
//!
//! `list [FILTER]` names the bodies with their rules; `run [--backend NAME] [FILTER]` runs the bodies whose
//! rule or name contains the filter, on every backend of this machine unless one is named;
//! `run --backend NAME --part I/N` runs every N-th body from the I-th on, so that N processes share the work,
//! as `reduced NAME --part I/N` does; `golden [NAME|--bless]` compares the golden draws, on one backend if it
//! is named, or pins what the oracle draws now; `draws [--seed N] [COUNT]` spreads draws over small rows and
//! holds them to their law at the machine's best level, and with `draws-on NAME` on a device;
//! `verified-draws [--seed N] [COUNT]` does so with tokens of a pool's verified drafts, in every mode that
//! keeps the law, and with `verified-draws-on NAME` a device's pool, `cuda` or `cuda_emulated`;
//! `numbers [--every] NAME` holds the numbers of a device to the definition, on every 32-bit word if asked;
//! `batch NAME` holds large mixed batches on it to the CPU, `few-values NAME [ROWS] [SEED]` as many rows of
//! few distinct values; `softmax NAME` holds its softmax of random rows to the oracle's probabilities,
//! `operators NAME` its operators' draws and rows to the oracle, `selected NAME` its logprobs of tokens,
//! `given NAME` its logprobs of given ids over given sets and their gradient, `chains NAME` its chains of
//! drafts; `stream NAME [TOKENS]` decodes many requests with drafts and without on `pool`, `ranks`, `cuda` or
//! `cuda_emulated`, and compares the tokens; `trained NAME [TOKENS]` does so with kept sets, and holds each
//! token's logprob to the trainer's function over the edited row; `boundaries NAME` holds operators, steps
//! and softmaxes at the sizes where kernels take another path;
//! `ranks-on NAME WORLD [processes|threads] [ROWS] [PART,..]` spreads random rows over the devices of that
//! many ranks, holds them to one device, and times every layout (`steps`, `forty`, `drafts`, `mixed`,
//! `small`, `edited`, `edited-drafts`, `lists`, or all of them; `lists@32000` times a part over that many
//! ids, `lists@32000/3:1` where ranks have 3 : 1 of them); `hold-ranks-on` times nothing.
//! `GUMBALL_DIST_TRANSPORT` says how rows travel: `onesided`, or `nccl`; `reduced NAME` runs what reaches
//! every kernel and takes little, for tools that slow it down a hundredfold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gumball_conformance::backend::{Backend, available, by_name, device};
use gumball_conformance::batch::{self, Shape};
use gumball_conformance::boundaries::{self, Extent};
use gumball_conformance::draft_trees::chains;
use gumball_conformance::draws::{self, Setting};
use gumball_conformance::golden::{self, Set};
use gumball_conformance::ranks::{self, Work};
use gumball_conformance::rules::{self, Rule};
use gumball_conformance::statistics::{ChiSquare, FALSE_ALARM};
use gumball_conformance::stream::{self, Counted};
use gumball_conformance::verified_draws::{self, Place, WAYS};
use gumball_conformance::{few_values, given_logprobs, operators, selected_logprobs, softmax};
use gumball_cpu::Level;
use gumball_cuda::Runtime;
use gumball_cuda::numeric_check::{self, Inputs, NUMBERS};
use gumball_engine::Device;

const USAGE: &str = "usage: conformance list [FILTER] | run [--backend NAME [--part I/N]] [FILTER] | golden [NAME|--bless] \
    | draws [--seed N] [COUNT] \
    | draws-on NAME [COUNT] | numbers [--every] NAME | batch NAME | few-values NAME [ROWS] [SEED] | softmax NAME \
    | operators NAME | selected NAME | given NAME | chains NAME [COUNT] \
    | stream NAME [TOKENS] | trained NAME [TOKENS] | verified-draws [--seed N] [COUNT] | verified-draws-on NAME [COUNT] \
    | boundaries [--reduced] NAME | reduced NAME [--part I/N] \
    | ranks-on|hold-ranks-on NAME WORLD [processes|threads] [ROWS] [PART,..]";

/// The rows that are spread over ranks, if no number is given.
const RANK_ROWS: u64 = 200_000;

/// The seed and the number of draws, if none are given.
const DRAWS: (u64, u32) = (1, 1_000_000);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match act(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Does what the arguments say; returns whether all holds.
fn act(arguments: &[&str]) -> Result<bool, String> {
    let (command, rest) = arguments.split_first().ok_or(USAGE)?;
    match (*command, rest) {
        ("list", filter @ ([] | [_])) => list(filter.first().unwrap_or(&"")),
        ("run", ["--backend", name, "--part", part]) => run(Some(name), "", part.parse()?),
        ("run", ["--backend", name, filter @ ..]) if filter.len() < 2 => {
            run(Some(name), filter.first().unwrap_or(&""), Part::ALL)
        }
        ("run", filter @ ([] | [_])) => run(None, filter.first().unwrap_or(&""), Part::ALL),
        ("numbers", ["--every", name]) => numbers(name, true),
        ("numbers", [name]) => numbers(name, false),
        ("batch", [name]) => batches(name, &batch::shapes()),
        ("few-values", [name]) => few_values(name, 20_000, 1),
        ("few-values", [name, rows]) => few_values(name, number(rows)?, 1),
        ("few-values", [name, rows, seed]) => few_values(name, number(rows)?, number(seed)?),
        ("softmax", [name]) => each_seed(name, "softmax", 2_000, softmax::hold),
        ("operators", [name]) => each_seed(name, "operators", 4_000, operators::hold),
        ("selected", [name]) => each_seed(name, "selected logprobs", 3_000, selected_logprobs::hold),
        ("given", [name]) => each_seed(name, "given logprobs", 3_000, given_logprobs::hold),
        ("stream", [name, tokens @ ..]) => stream_of(name, number_or(tokens, 1_000_000)?, false),
        ("trained", [name, tokens @ ..]) => stream_of(name, number_or(tokens, 1_000_000)?, true),
        ("chains", [name, count @ ..]) => each_seed(name, "chains", number_or(count, 3_000)?, chains::hold),
        ("boundaries", ["--reduced", name]) => at_boundaries(name, Extent::Reduced),
        ("boundaries", [name]) => at_boundaries(name, Extent::Full),
        ("reduced", [name]) => reduced(name, Part::ALL),
        ("reduced", [name, "--part", part]) => reduced(name, part.parse()?),
        ("golden", []) => compare_golden(&available()),
        ("golden", ["--bless"]) => bless(),
        ("golden", [name]) => compare_golden(&[by_name(name).map_err(|error| error.to_string())?]),
        ("draws", ["--seed", seed, count @ ..]) => draw(number(seed)?, number_or(count, DRAWS.1)?),
        ("draws", count) => draw(DRAWS.0, number_or(count, DRAWS.1)?),
        ("draws-on", [name, count @ ..]) => draw_on(name, number_or(count, DRAWS.1)?),
        ("verified-draws", ["--seed", seed, count @ ..]) => {
            draw_verified(Place::HOST, number(seed)?, number_or(count, DRAWS.1)?)
        }
        ("verified-draws", count) => draw_verified(Place::HOST, DRAWS.0, number_or(count, DRAWS.1)?),
        ("verified-draws-on", [name, count @ ..]) => draw_verified_on(name, number_or(count, DRAWS.1)?),
        ("ranks-on" | "hold-ranks-on", _) => over_ranks(arguments),
        ("rank-of", [name, world, rank, folder, rows, timed, again]) => {
            let work = Work { rows: number(rows)?, timed, is_second: *again == "again" };
            ranks::as_process(name, number(world)?, number(rank)?, Path::new(folder), work).map(|()| true)
        }
        _ => Err(USAGE.to_owned()),
    }
}

/// Returns the number that is given, if one is.
fn number_or<T: FromStr>(given: &[&str], otherwise: T) -> Result<T, String> {
    match given {
        [] => Ok(otherwise),
        [text] => number(text),
        _ => Err(USAGE.to_owned()),
    }
}

/// Holds steps over ranks to one device, and times them if the command says so.
fn over_ranks(arguments: &[&str]) -> Result<bool, String> {
    let [command, name, world, rest @ ..] = arguments else { return Err(USAGE.to_owned()) };
    let (how, rest) = rest.split_first().unwrap_or((&"processes", &[]));
    let (rows, rest) = rest
        .split_first()
        .map_or(Ok((RANK_ROWS, rest)), |(rows, rest)| Ok::<_, String>((number(rows)?, rest)))?;
    let timed = match (*command, rest) {
        ("hold-ranks-on", []) => "",
        ("ranks-on", []) => "all",
        ("ranks-on", [parts]) => parts,
        _ => return Err(USAGE.to_owned()),
    };
    let world = number(world)?;
    match *how {
        "processes" => ranks::as_processes(name, world, &[rows.to_string(), timed.to_owned()])?,
        "threads" => ranks::as_threads(name, world, Work { rows, timed, is_second: false })?,
        _ => return Err(USAGE.to_owned()),
    }
    Ok(true)
}

fn chosen(filter: &str) -> impl Iterator<Item = &'static Rule> {
    rules::all().filter(move |rule| rule.rule == filter || rule.name.contains(filter))
}

fn list(filter: &str) -> Result<bool, String> {
    chosen(filter).for_each(|rule| println!("{rule:?}"));
    Ok(true)
}

/// Every `of`-th of the bodies, from the one with this number on.
#[derive(Clone, Copy)]
struct Part {
    number: usize,
    of: usize,
}

impl Part {
    const ALL: Self = Self { number: 1, of: 1 };
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number_text, of) = text.split_once('/').ok_or(format!("{text} is not I/N\n{USAGE}"))?;
        let part = Self { number: number(number_text)?, of: number(of)? };
        let is_there = (1..=part.of).contains(&part.number);
        is_there.then_some(part).ok_or(format!("{text} is not I/N with I in 1..=N\n{USAGE}"))
    }
}

/// Bodies that take longer are named with their time, so that parts of a run can be cut evenly.
const LONG: Duration = Duration::from_secs(20);

fn run(backend: Option<&str>, filter: &str, part: Part) -> Result<bool, String> {
    let backends: Vec<Box<dyn Backend>> = match backend {
        Some(name) => vec![by_name(name).map_err(|error| error.to_string())?],
        None => available(),
    };
    let (mut passed, mut failed) = (0u32, 0u32);
    for backend in &backends {
        let began = Instant::now();
        for rule in chosen(filter).skip(part.number - 1).step_by(part.of) {
            let body_began = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| rule.run(&**backend)));
            let seconds = body_began.elapsed();
            if seconds > LONG {
                println!("{}: {rule:?} took {:.0} s", backend.name(), seconds.as_secs_f32());
            }
            match done {
                Ok(()) => passed += 1,
                Err(_) => {
                    failed += 1;
                    println!("{}: {rule:?} FAILED", backend.name());
                }
            }
        }
        let seconds = began.elapsed().as_secs_f32();
        match backend.lacking() {
            0 => println!("{}: {seconds:.1} s", backend.name()),
            lacking => {
                println!("{}: {seconds:.1} s, {lacking} rows were left to the oracle", backend.name());
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number in range\n{USAGE}"))
}

fn draw(seed: u64, count: u32) -> Result<bool, String> {
    let level = Level::detect().map_err(|error| error.to_string())?;
    let run = |setting: &Setting, seed, draws| setting.run(level, seed, draws);
    spread(&level.to_string(), seed, count, &run)
}

fn draw_on(name: &str, count: u32) -> Result<bool, String> {
    let device = device(name).map_err(|error| error.to_string())?;
    spread(name, DRAWS.0, count, &|setting, seed, draws| setting.run_on(&device, seed << 32, draws))
}

/// Draws from a setting, under a seed, `draws` times.
type Run<'r> = &'r dyn Fn(&Setting, u64, u32) -> gumball_spec::Result<Vec<ChiSquare>>;

/// Spreads draws evenly over the settings, each with a seed of its own: equal kept sets would draw the same.
fn spread(place: &str, seed: u64, count: u32, run: Run<'_>) -> Result<bool, String> {
    let settings = draws::settings();
    let each = count / settings.len() as u32;
    let mut ok = true;
    println!("{place}, seeds from {seed}, {each} draws each, false-alarm rate of a test {FALSE_ALARM:e}\n");
    println!("| setting | chi-square | degrees of freedom | p-value |\n| --- | --- | --- | --- |");
    for (setting, seed) in settings.iter().zip(seed..) {
        for test in run(setting, seed, each).map_err(|error| error.to_string())? {
            ok &= test.p_value >= FALSE_ALARM;
            println!("| {} | {:.1} | {} | {:.3} |", setting.name, test.statistic, test.degrees, test.p_value);
        }
    }
    Ok(ok)
}

/// Returns the device of a name whose pools are tested by themselves, if it is not the host's.
fn device_of(name: &str) -> Result<Option<Device>, String> {
    let opened = match name {
        "pool" => return Ok(None),
        "cuda" | "cuda_emulated" => device(name),
        _ => return Err(format!("{name} has no pool; take pool, cuda or cuda_emulated\n{USAGE}")),
    };
    opened.map(Some).map_err(|error| error.to_string())
}

/// Spreads tokens of verified drafts of a device's pool evenly over modes and settings.
fn draw_verified_on(name: &str, count: u32) -> Result<bool, String> {
    let device = device_of(name)?;
    // An emulator takes long for a stream.
    let (streams, tokens) = if name == "cuda" { (1024, 64) } else { (8, 16) };
    draw_verified(Place { device: device.as_ref(), streams, tokens }, DRAWS.0, count)
}

/// Spreads tokens of verified drafts evenly over modes and settings.
fn draw_verified(place: Place<'_>, seed: u64, count: u32) -> Result<bool, String> {
    let began = Instant::now();
    let settings: Vec<Setting> = verified_draws::small_settings().collect();
    let each = count / (settings.len() * WAYS.len()) as u32;
    let mut ok = true;
    println!("seeds from {seed}, {each} tokens each, false-alarm rate of a test {FALSE_ALARM:e}\n");
    println!(
        "| drafts | setting | chi-square | degrees of freedom | p-value |\n| --- | --- | --- | --- | --- |"
    );
    let pairs = WAYS.iter().flat_map(|way| settings.iter().map(move |setting| (way, setting)));
    for ((way, setting), seed) in pairs.zip(seed..) {
        for test in way.run(place, setting, seed, each).map_err(|error| error.to_string())? {
            ok &= test.p_value >= FALSE_ALARM;
            let ChiSquare { statistic, degrees, p_value, .. } = test;
            println!("| {} | {} | {statistic:.1} | {degrees} | {p_value:.3} |", way.name, setting.name);
        }
    }
    let (verdict, seconds) = (if ok { "all tests hold" } else { "FAILED" }, began.elapsed().as_secs_f32());
    println!("verified draws: {verdict}, {seconds:.1} s");
    Ok(ok)
}

fn numbers(name: &str, every: bool) -> Result<bool, String> {
    let device = device(name).map_err(|error| error.to_string())?;
    let sweeps: &[Inputs] = if every {
        &[Inputs { from: 0, step: 1, count: 1 << 32 }]
    } else {
        &[
            Inputs { from: 0, step: 4099, count: 1 << 24 },
            Inputs { from: 0x0123_4567_89AB_CDEF, step: 0x9E37_79B9_7F4A_7C15, count: 1 << 24 },
        ]
    };
    let mut ok = true;
    for (which, (number, _)) in NUMBERS.iter().enumerate() {
        for sweep in sweeps {
            match numeric_check::check(device.runtime(), which, *sweep).map_err(|error| error.to_string())? {
                Ok(held) => println!("{number} equals the definition on {held} of {} inputs", sweep.count),
                Err(difference) => {
                    ok = false;
                    println!("FAILED: {difference}");
                }
            }
        }
    }
    println!("numbers: {}", if ok { "all equal" } else { "FAILED" });
    Ok(ok)
}

fn batches(name: &str, shapes: &[Shape]) -> Result<bool, String> {
    let device = device(name).map_err(|error| error.to_string())?;
    let mut failed = 0;
    for shape in shapes {
        let began = Instant::now();
        match batch::hold(&device, name.ends_with("_graph"), *shape) {
            Ok(()) => println!("{shape:?} equals the CPU, {:.1} s", began.elapsed().as_secs_f32()),
            Err(difference) => {
                failed += 1;
                println!("FAILED: {difference}");
            }
        }
    }
    println!("batches: {failed} of {} failed", shapes.len());
    Ok(failed == 0)
}

/// Holds batches of few distinct values, from a seed on, until as many rows are held.
fn few_values(name: &str, rows: usize, seed: u64) -> Result<bool, String> {
    let device = device(name).map_err(|error| error.to_string())?;
    // An emulator takes long for a tile.
    let extent = match name {
        "cuda" => few_values::Extent { tiles: 4096, elements: 1 << 23 },
        _ => few_values::Extent { tiles: 1024, elements: 1 << 19 },
    };
    let (mut held, mut failed) = (0, 0);
    for seed in seed << 32.. {
        if held >= rows {
            break;
        }
        if seed % 256 == 255 {
            println!("{held} rows");
        }
        match few_values::hold(&device, seed, extent) {
            Ok(rows) => held += rows,
            Err(text) => {
                failed += 1;
                println!("FAILED: {text}");
            }
        }
        if failed == 10 {
            break;
        }
    }
    println!("few values: {held} rows equal the CPU's, {failed} batches differ");
    Ok(failed == 0)
}

/// Bodies that together reach every kernel and every branch of one that rows choose.
const REDUCED: [&str; 13] = [
    "every_bf16_bit_pattern_has_its_place",
    "edits_come_in_their_order",
    "the_power_stops_growing_after_64_products",
    "an_ngram_is_not_completed_twice",
    "mask_and_bans_both_forbid",
    "typical_p_keeps_the_tokens_nearest_to_the_entropy",
    "top_k_on_a_tie_at_the_cut_keeps_the_lower_id",
    "mu_moves_by_the_surprise_within_the_kept_set",
    "dynamic_temperature_raises_to_its_exponent",
    "temperature_last_filters_at_one_and_draws_at_t",
    "ranks_follow_the_order_of_the_mode",
    "a_row_draws_the_same_in_any_batch",
    "any_request_with_drafts_is_the_definitions",
];

fn each_seed(
    name: &str,
    what: &str,
    count: u64,
    hold: fn(&Arc<dyn Runtime>, u64) -> Result<(), String>,
) -> Result<bool, String> {
    let device = device(name).map_err(|error| error.to_string())?;
    let differing = (0..count)
        .filter_map(|seed| hold(device.runtime(), seed).err())
        .inspect(|text| println!("FAILED: {text}"))
        .count();
    println!("{what}: {differing} of {count} differ");
    Ok(differing == 0)
}

fn at_boundaries(name: &str, extent: Extent) -> Result<bool, String> {
    match boundaries::hold(name, extent) {
        Ok(cases) => println!("boundaries: {cases} cases equal the oracle"),
        Err(text) => {
            println!("FAILED: {text}");
            return Ok(false);
        }
    }
    Ok(true)
}

fn stream_of(name: &str, tokens: usize, trained: bool) -> Result<bool, String> {
    let (device, ranks) = if name == "ranks" { (None, 3) } else { (device_of(name)?, 1) };
    let (requests, steps) = match name {
        "pool" | "ranks" => (64, 300),
        "cuda" => (512, 400),
        _ => (8, 30),
    };
    let began = Instant::now();
    match stream::hold(device.as_ref(), stream::Extent { requests, steps, tokens, trained, ranks }) {
        Ok(Counted { tokens, accepted, trained }) => {
            let seconds = began.elapsed().as_secs_f32();
            println!(
                "stream: {tokens} tokens are those without drafts, {accepted} of them were drafts; of {trained} the \
                 logprob over the kept set is the trainer's; {seconds:.1} s"
            );
            Ok(true)
        }
        Err(text) => {
            println!("FAILED: {text}");
            Ok(false)
        }
    }
}

fn reduced(name: &str, part: Part) -> Result<bool, String> {
    type Work<'w> = Box<dyn Fn() -> Result<bool, String> + 'w>;
    let mut works: Vec<Work<'_>> = vec![
        // Racecheck takes longest over these.
        Box::new(|| at_boundaries(name, Extent::Reduced)),
        Box::new(|| batches(name, &batch::small_shapes())),
        Box::new(|| each_seed(name, "softmax", 60, softmax::hold)),
        Box::new(|| each_seed(name, "operators", 120, operators::hold)),
        Box::new(|| each_seed(name, "selected logprobs", 60, selected_logprobs::hold)),
        Box::new(|| each_seed(name, "given logprobs", 60, given_logprobs::hold)),
        Box::new(|| each_seed(name, "chains", 60, chains::hold)),
    ];
    works.extend(REDUCED.map(|body| Box::new(move || run(Some(name), body, Part::ALL)) as Work<'_>));
    let mut chosen = works.iter().skip(part.number - 1).step_by(part.of);
    chosen.try_fold(true, |ok, work| Ok(work()? & ok))
}

fn compare_golden(backends: &[Box<dyn Backend>]) -> Result<bool, String> {
    let mut ok = true;
    for set in Set::ALL.into_iter().filter(|set| set.is_present()) {
        let pinned = set.pinned().map_err(|error| format!("{}: {error}", set.path().display()))?;
        for backend in backends {
            let changes = golden::changes(&pinned, &set.draw(&**backend));
            ok &= changes.is_empty();
            println!("{set:?} on {}: {} streams, {} changed", backend.name(), pinned.len(), changes.len());
            changes.iter().for_each(|change| println!("  {change}"));
        }
    }
    if !ok {
        println!("{}", golden::CHANGED);
    }
    Ok(ok)
}

fn bless() -> Result<bool, String> {
    for set in Set::ALL.into_iter().filter(|set| set.is_present()) {
        set.bless().map_err(|error| format!("{}: {error}", set.path().display()))?;
        println!("pinned {}", set.path().display());
    }
    Ok(true)
}
