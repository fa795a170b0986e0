//! Steps over ranks in graphs, timed beside steps of one device.

use std::time::Instant;

use gumball_cuda::{Dtype, Graph, Rows};
use gumball_engine::dist::{LogitsLayout, PlannerConfig, StepKind, VocabSplit};
use gumball_engine::{
    Batch, Device, DeviceBuffer, Place, Pool, PoolConfig, Ranks, RanksError, SamplingParams, Slot, Work,
};
use serde_json::json;

use super::{Connect, PATIENCE};
use crate::rows::model_like;

/// What is timed.
#[derive(Clone, Copy, Debug)]
struct Extent {
    vocab: usize,
    rows: &'static [usize],
    /// The rows that lie in a device's memory; the steps of a graph read them in turn, so that caches do not hold them.
    resident: usize,
    replays: usize,
}

const FULL: Extent = Extent { vocab: 151_936, rows: &[1, 32, 128, 512], resident: 1024, replays: 21 };

/// What an emulated device is timed by, to see that it runs.
const REDUCED: Extent = Extent { vocab: 3000, rows: &[1, 5], resident: 10, replays: 1 };

/// The most steps of a graph.
const MOST_STEPS: usize = 64;

/// Distinct rows of logits.
const DISTINCT: usize = 24;

/// The requests that are timed, by name: a batch takes them in turn.
fn requests() -> Vec<(&'static str, Vec<SamplingParams>)> {
    let plain = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let greedy = SamplingParams { temperature: 0.0, ..plain.clone() };
    let min_p = SamplingParams { min_p: 0.05, ..plain.clone() };
    let listed = SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() };
    let nucleus = SamplingParams { top_p: 0.9, ..plain.clone() };
    let mixture = vec![greedy.clone(), plain.clone(), listed.clone(), min_p.clone(), nucleus];
    vec![
        ("greedy", vec![greedy]),
        ("plain", vec![plain]),
        ("min-p 0.05", vec![min_p.clone()]),
        ("top-k 50, top-p 0.9", vec![listed]),
        ("mixture", mixture),
    ]
}

/// Copies rows of some ids to the device, the distinct ones in turn.
fn upload(
    device: &Device,
    distinct: &[Vec<f32>],
    count: usize,
    ids: std::ops::Range<usize>,
) -> gumball_spec::Result<DeviceBuffer> {
    let rows = (0..count).flat_map(|row| &distinct[row % distinct.len()][ids.clone()]);
    Ok(DeviceBuffer::of(device.runtime(), &rows.copied().collect::<Vec<f32>>())?)
}

/// A pool whose graphs are timed.
trait Timed {
    fn replay_once(&mut self, graph: &Graph<'_>) -> gumball_spec::Result<()>;
}

impl Timed for Pool {
    fn replay_once(&mut self, graph: &Graph<'_>) -> gumball_spec::Result<()> {
        self.replay(graph)
    }
}

/// Returns the median and the least time of a step in microseconds, over replays of a graph. A replay before each timed one lets the
/// ranks begin together.
fn time(
    device: &Device,
    pool: &mut dyn Timed,
    graph: &Graph<'_>,
    replays: usize,
) -> gumball_spec::Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..replays {
        pool.replay_once(graph)?;
        let elapsed = match device.gpu() {
            Some(gpu) => f64::from(gpu.elapsed_us(|| pool.replay_once(graph))?),
            None => {
                let began = Instant::now();
                pool.replay_once(graph)?;
                began.elapsed().as_secs_f64() * 1e6
            }
        };
        times.push(elapsed / graph.steps() as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[0]))
}

/// Times steps over ranks under every layout, and steps of one device. Returns a line of JSON for each.
///
/// # Errors
/// A text that says what failed.
pub fn times(device: &Device, connect: &dyn Connect) -> Result<Vec<String>, String> {
    let extent = if device.gpu().is_some() { FULL } else { REDUCED };
    let lines = of_layouts(device, connect, extent).map_err(|error| error.to_string())?;
    Ok(lines)
}

/// Times steps of one device that has whole rows of a vocabulary. Returns the median and the least.
fn time_one(
    device: &Device,
    of: &dyn Fn(usize) -> SamplingParams,
    (logits, vocab): (&DeviceBuffer, usize),
    (rows, steps): (usize, usize),
    replays: usize,
) -> gumball_spec::Result<(f64, f64)> {
    let place = Place::device(device.clone(), rows);
    let mut one = Pool::new(PoolConfig { slots: rows, place, ..PoolConfig::new(vocab) })?;
    let slots = (0..rows).map(|row| one.admit(of(row), &[])).collect::<gumball_spec::Result<Vec<Slot>>>()?;
    one.assign(&Batch::of(&slots))?;
    let batch = |step: usize| Rows::of(logits, Dtype::F32, step * rows * vocab, rows, vocab, vocab);
    let inputs = (0..steps).map(|step| batch(step).map(Work::step));
    let graph = one.capture(&inputs.collect::<gumball_spec::Result<Vec<_>>>()?)?;
    time(device, &mut one, &graph, replays)
}

fn of_layouts(device: &Device, connect: &dyn Connect, extent: Extent) -> gumball_spec::Result<Vec<String>> {
    let Extent { vocab, resident, replays, .. } = extent;
    // Groups of `hold` have smaller numbers.
    let mut group = 1 << 20;
    let distinct: Vec<Vec<f32>> = (0..DISTINCT as u64).map(|seed| model_like(vocab, seed)).collect();
    let whole = upload(device, &distinct, resident, 0..vocab)?;
    let mut part = None;
    let mut lines = Vec::new();
    for rows in extent.rows.iter().copied() {
        for (name, params) in requests() {
            let place = Place::device(device.clone(), rows);
            let config = PoolConfig { slots: rows, place, ..PoolConfig::new(vocab) };
            let steps = (resident / rows).min(MOST_STEPS);
            let mut line = |layout: &str, world: usize, (median, least): (f64, f64)| {
                lines.push(
                    json!({
                        "layout": layout, "world": world, "rows": rows, "vocab": vocab, "dtype": "f32", "requests": name,
                        "median_us": (median * 100.0).round() / 100.0, "least_us": (least * 100.0).round() / 100.0,
                        "steps": steps, "replays": replays,
                    })
                    .to_string(),
                );
            };
            let of =
                |row: usize| SamplingParams { seed: Some(row as u64), ..params[row % params.len()].clone() };

            line("one device", 1, time_one(device, &of, (&whole, vocab), (rows, steps), replays)?);
            let transport = connect
                .connect(group)
                .map_err(|reason| RanksError::Unavailable { what: "group".to_owned(), reason })?;
            group += 1;
            let (rank, world) = (transport.rank(), transport.world());
            let split = VocabSplit::even(vocab, world)?;
            let (ids, width) = (split.ids(rank), split.ids(rank).len());
            if part.is_none() {
                part = Some(upload(device, &distinct, resident, ids)?);
            }
            let part = part.as_ref().expect("just made");
            // What the time of a survey is compared with.
            line("one device, its part", 1, time_one(device, &of, (part, width), (rows, steps), replays)?);
            let planner = PlannerConfig { layouts: LogitsLayout::ALL.to_vec(), ..PlannerConfig::new(split) };
            let mut many = Pool::over(config, Ranks { planner, transport, timeout: PATIENCE })?;
            let slots =
                (0..rows).map(|row| many.admit(of(row), &[])).collect::<gumball_spec::Result<Vec<Slot>>>()?;
            for layout in LogitsLayout::ALL {
                let plan = many
                    .ranks()
                    .expect("it has ranks")
                    .planner
                    .plan_as(layout, &many.shape(&slots, 0, StepKind::Decode)?);
                many.assign(&Batch { plan: Some(plan), ..Batch::of(&slots) })?;
                let own = plan.shares.of(rank).count();
                let batch = |step: usize| match layout {
                    LogitsLayout::Replicated => {
                        Rows::of(&whole, Dtype::F32, step * own * vocab, own, vocab, vocab)
                    }
                    _ => Rows::of(part, Dtype::F32, step * rows * width, rows, width, width),
                };
                let inputs = (0..steps).map(|step| batch(step).map(Work::step));
                let graph = many.capture(&inputs.collect::<gumball_spec::Result<Vec<_>>>()?)?;
                let taken = time(device, &mut many, &graph, replays)?;
                // An exchange that failed shows here.
                many.fetch(&mut gumball_engine::Outputs::new())?;
                line(layout.name(), world, taken);
            }
        }
    }
    Ok(lines)
}
