//! `gumball bench`: how long a token takes on this machine.
//!
//! One thread, rows in cache, every level, as a multiple of the floor: one reading of the row. With
//! `--device`, steps of several rows on a GPU. Rivals and records are the `bench` package's matter.

mod on_device;
mod timing;

use std::io::Write;
use std::path::Path;

use gumball_engine::{History, Level, Prepared, Stages, Task};
use gumball_spec::{LogprobsParams, SamplingParams};
use serde::Serialize;

use self::timing::{Reading, Spread, doubt, in_turns};
use crate::Result;
use crate::engine::EngineArgs;
use crate::logits::{Fallback, Kind, LogitsArgs, Source};
use crate::machine::Machine;
use crate::output::say;
use crate::sampling::SamplingArgs;
use crate::text::{DIM, HEAD, Table, WARN};

/// What to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The rows; model-like and flat ones if none are named.
    #[command(flatten)]
    pub logits: LogitsArgs,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// The way to the tokens; every level of the machine if none is named.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// The parameters; a few common settings if none are given.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// One time.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// The rows.
    pub rows: String,
    /// The length of a row.
    pub vocab: usize,
    /// The type of a logit.
    pub dtype: &'static str,
    /// The setting.
    pub setting: String,
    /// The SIMD level.
    pub level: &'static str,
    /// One token, in microseconds: the median of the rounds.
    pub token_us: f64,
    /// Its quartiles.
    pub token_us_quartiles: [f64; 2],
    /// One reading of the row, in microseconds, taken in turns with it: the median of the rounds.
    pub floor_us: f64,
    /// Its quartiles.
    pub floor_us_quartiles: [f64; 2],
    /// The first over the second.
    pub ratio: f64,
}

/// Parameters under a name, and the history they look back on.
struct Setting {
    name: String,
    params: SamplingParams,
    history: Vec<u32>,
}

/// Measures, and writes a table a kind of rows; `kernels` is the folder of compiled kernels that the program
/// brings, if any.
///
/// # Errors
/// A file that cannot be used, or a parameter outside its range.
pub fn run(args: &Args, kernels: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let params = args.sampling.to_params()?;
    let levels: Vec<Level> = match args.engine.level {
        Some(_) => vec![args.engine.level()?],
        None => Level::available().collect::<Vec<_>>().into_iter().rev().collect(),
    };
    if let Some(device) = args.engine.device(kernels)? {
        let settings = |vocab| settings_of(&params, vocab);
        let route = args.engine.pool_route()?;
        return on_device::run((&device, &route), &sources(&args.logits)?, &settings, args.json, out);
    }
    let route = args.engine.route(kernels)?;
    if !args.json {
        let cpu = Machine::ask().cpu;
        writeln!(out, "{HEAD}{cpu}{HEAD:#}  {DIM}one thread, rows in cache, route {}{DIM:#}", route.name())?;
    }
    let mut measures = Vec::new();
    for source in sources(&args.logits)? {
        let vocab = source.logits.vocab();
        let settings = settings_of(&params, vocab);
        let mut reading = Reading::of(&source.logits);
        let mut found: Vec<Measure> = Vec::new();
        for setting in &settings {
            for level in &levels {
                let mut stages = route.open(*level)?;
                found.push(measure(setting, *level, stages.as_mut(), &source, &mut reading)?);
            }
        }
        if !args.json {
            table(&source, &found, &levels, reading.does(), out)?;
        }
        measures.extend(found);
    }
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &measures).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    let spreads: Vec<Spread> = measures.iter().flat_map(Measure::spreads).collect();
    if let Some(doubt) = doubt(&spreads) {
        out.flush()?;
        say(format_args!("{WARN}{doubt}{WARN:#}"));
    }
    Ok(())
}

impl Measure {
    fn spreads(&self) -> [Spread; 2] {
        let spread = |median, [low, high]: [f64; 2]| Spread { low, median, high };
        [spread(self.token_us, self.token_us_quartiles), spread(self.floor_us, self.floor_us_quartiles)]
    }
}

/// Returns the rows asked for; model-like and flat ones where none are.
fn sources(args: &LogitsArgs) -> Result<Vec<Source>> {
    let load = |kind| args.load(Fallback { kind: Some(kind), rows: 1, vocab: 128_256 });
    if args.file.is_some() || args.kind.is_some() {
        return Ok(vec![load(Kind::ModelLike)?]);
    }
    Ok(vec![load(Kind::ModelLike)?, load(Kind::Flat)?])
}

/// Returns the setting that was given, or a few common ones if none was.
fn settings_of(params: &SamplingParams, vocab: usize) -> Vec<Setting> {
    if (SamplingParams { seed: None, ..params.clone() }) == SamplingParams::default() {
        return settings(vocab);
    }
    vec![Setting { name: "as given".to_owned(), params: params.clone(), history: Vec::new() }]
}

fn settings(vocab: usize) -> Vec<Setting> {
    let neutral = || SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let plain = |name: &str, params| Setting { name: name.to_owned(), params, history: Vec::new() };
    let everything = SamplingParams {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        logit_bias: (0..32).map(|i| (i * 97 % vocab as u32, 1.0)).collect(),
        top_k: 50,
        top_p: 0.95,
        min_p: 0.02,
        logprobs: Some(LogprobsParams { top_n: 5, ..Default::default() }),
        ..neutral()
    };
    let history = (0..2000).map(|i| (i as u32).wrapping_mul(7919) % vocab as u32).collect();
    vec![
        plain("greedy", SamplingParams { temperature: 0.0, ..neutral() }),
        plain("plain", neutral()),
        plain("min-p 0.05", SamplingParams { min_p: 0.05, ..neutral() }),
        plain("top-k 50, top-p 0.9", SamplingParams { top_k: 50, top_p: 0.9, ..neutral() }),
        plain("top-p 0.9", SamplingParams { top_p: 0.9, ..neutral() }),
        Setting { name: "everything".to_owned(), params: everything, history },
    ]
}

fn measure(
    setting: &Setting,
    level: Level,
    stages: &mut dyn Stages,
    source: &Source,
    reading: &mut Reading<'_>,
) -> Result<Measure> {
    let vocab = source.logits.vocab();
    let prepared = Prepared::new(setting.params.clone(), vocab)?;
    let mut history = History::default();
    setting.history.iter().for_each(|id| history.push(*id));
    let mut task = Task {
        kind: gumball_spec::Kind::Logits,
        prepared: &prepared,
        history: &history,
        seed: prepared.params().seed.unwrap_or(1),
        position: setting.history.len() as u32,
        draw: 0,
        mu: prepared.params().initial_mu(),
        mask: None,
        forced: None,
    };
    let row = |position: u32| source.logits.row(source.rows[position as usize % source.rows.len()]);
    stages.sample(row(0), &task, None)?;
    let token = || {
        task.position = task.position.wrapping_add(1);
        let chosen = stages.sample(row(task.position), &task, None);
        std::hint::black_box(chosen.expect("the first call went well"));
    };
    let (token, floor) = in_turns(token, || reading.read());
    Ok(Measure {
        rows: source.name.clone(),
        vocab,
        dtype: source.logits.dtype(),
        setting: setting.name.clone(),
        level: level.name(),
        token_us: token.median,
        token_us_quartiles: [token.low, token.high],
        floor_us: floor.median,
        floor_us_quartiles: [floor.low, floor.high],
        ratio: token.median / floor.median,
    })
}

fn table(
    source: &Source,
    found: &[Measure],
    levels: &[Level],
    does: &str,
    out: &mut dyn Write,
) -> Result<()> {
    let mut floors: Vec<f64> = found.iter().map(|measure| measure.floor_us).collect();
    floors.sort_by(f64::total_cmp);
    let floor = floors[floors.len() / 2];
    writeln!(out, "\n{HEAD}{}{HEAD:#}  {DIM}floor {floor:.1} us: {does}{DIM:#}", source.name)?;
    let headings: Vec<String> = levels
        .iter()
        .flat_map(|level| [format!(">{level}, us"), ">quartiles".to_owned(), ">x floor".to_owned()])
        .collect();
    let mut table =
        Table::new(&[&["setting"], &headings.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    for measures in found.chunks(levels.len()) {
        let cells = measures.iter().flat_map(|measure| {
            let [low, high] = measure.token_us_quartiles;
            [
                format!("{:.1}", measure.token_us),
                format!("{low:.1}-{high:.1}"),
                format!("{:.2}", measure.ratio),
            ]
        });
        table.row(std::iter::once(measures[0].setting.clone()).chain(cells).collect());
    }
    table.write(out)?;
    Ok(out.flush()?)
}
