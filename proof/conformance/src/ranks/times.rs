//! Steps and verifications over ranks in graphs, timed under every layout beside one device.

use std::time::Instant;

use gumball_cuda::{DeviceSlice, Dtype, Graph, IntType, Rows};
use gumball_engine::dist::{LogitsLayout, PlannerConfig, StepKind, StepShape};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Drafts, HostMasks, Masks, Outputs, Place, Pool, PoolConfig,
    RanksError, Result, SamplingParams, Slot, Work, bf16,
};
use serde_json::json;

use super::Connect;
use super::cells::{Asked, PARTS, Part};
use crate::rows::{Words, model_like};

/// The rows that lie in a device's memory; the steps of a graph read them in turn, so that caches hold few of
/// them.
const RESIDENT: usize = 1024;

/// The most steps of a graph.
const MOST_STEPS: usize = 32;

/// Replays that are timed, of each order of the layouts.
const REPLAYS: usize = 7;

/// Distinct rows of logits.
const DISTINCT: usize = 24;

/// By how many tokens a history may grow: more than a batch is timed by.
const GROWTH: usize = 1 << 15;

/// Of each layout a step's microseconds, in either order of the layouts.
type Times = Vec<(LogitsLayout, [f64; 2])>;

/// Rows of some ids in a device's memory, the distinct ones in turn.
struct Resident {
    memory: DeviceBuffer,
    dtype: Dtype,
    width: usize,
}

impl Resident {
    fn new(
        device: &Device,
        dtype: Dtype,
        distinct: &[Vec<f32>],
        count: usize,
        ids: std::ops::Range<usize>,
    ) -> Result<Self> {
        let width = ids.len();
        let rows = (0..count).flat_map(|row| &distinct[row % distinct.len()][ids.clone()]);
        let memory = if dtype == Dtype::F32 {
            DeviceBuffer::of(device.runtime(), &rows.copied().collect::<Vec<f32>>())?
        } else {
            DeviceBuffer::of(device.runtime(), &rows.map(|logit| bf16::from_f32(*logit)).collect::<Vec<_>>())?
        };
        Ok(Self { memory, dtype, width })
    }

    /// Returns the rows of a step.
    fn rows(&self, step: usize, rows: usize) -> Result<Rows<'_>> {
        Rows::of(&self.memory, self.dtype, step * rows * self.width, rows, self.width, self.width)
    }
}

/// What all batches of a part and a type read.
struct Inputs {
    distinct: Vec<Vec<f32>>,
    /// Whole rows, and this rank's ids of them.
    whole: Resident,
    part: Resident,
    /// Probabilities of as many rows as a step has.
    probs: Option<DeviceBuffer>,
}

impl Inputs {
    fn new(device: &Device, part: &Part, dtype: Dtype, ids: std::ops::Range<usize>) -> Result<Self> {
        let distinct: Vec<Vec<f32>> = (0..DISTINCT as u64).map(|seed| model_like(part.vocab, seed)).collect();
        let count = if device.gpu().is_some() { RESIDENT } else { 64 };
        let whole = Resident::new(device, dtype, &distinct, count, 0..part.vocab)?;
        let probs = if part.asked.iter().any(|asked| asked.has_probs) {
            let softmax = |row: &Vec<f32>| -> Vec<f32> {
                let weights: Vec<f32> = row.iter().map(|logit| (logit / 0.8).exp()).collect();
                let sum: f32 = weights.iter().sum();
                weights.into_iter().map(|weight| weight / sum).collect()
            };
            let rows: Vec<Vec<f32>> = distinct.iter().map(softmax).collect();
            let most = part.requests.iter().max().map_or(0, |requests| requests * (part.drafts + 1));
            Some(Resident::new(device, Dtype::F32, &rows, most, 0..part.vocab)?.memory)
        } else {
            None
        };
        Ok(Self { whole, part: Resident::new(device, dtype, &distinct, count, ids)?, probs, distinct })
    }
}

/// A batch that is timed.
struct Cell<'a> {
    device: &'a Device,
    inputs: &'a Inputs,
    asked: &'a Asked,
    vocab: usize,
    requests: usize,
    drafts: usize,
    steps: usize,
    /// The drafts of each step: the best token of every row but the last of a request.
    ids: Vec<DeviceBuffer>,
    counts: Vec<u32>,
    /// A bitmask of each row, if rows have some.
    masks: Vec<u32>,
}

impl<'a> Cell<'a> {
    fn new(
        device: &'a Device,
        inputs: &'a Inputs,
        part: &Part,
        asked: &'a Asked,
        requests: usize,
    ) -> Result<Self> {
        let (rows, drafts) = (requests * (part.drafts + 1), part.drafts);
        let steps = if device.gpu().is_some() { (RESIDENT / rows).min(MOST_STEPS) } else { 2 };
        let best = |row: &Vec<f32>| {
            row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as i32)
        };
        let best: Vec<i32> = inputs.distinct.iter().map(best).collect();
        let ids_of = |step: usize| {
            let drafted = (0..rows).filter(|row| row % (drafts + 1) < drafts);
            let ids: Vec<i32> = drafted.map(|row| best[(step * rows + row) % best.len()]).collect();
            DeviceBuffer::of(device.runtime(), &ids)
        };
        let verified = if drafts == 0 { 0 } else { steps };
        let ids = (0..verified).map(ids_of).collect::<std::result::Result<_, _>>()?;
        let counts = vec![drafts as u32; if drafts == 0 { 0 } else { requests }];
        let (vocab, mut words) = (part.vocab, Words(1));
        let masked = if asked.masked { rows * vocab.div_ceil(32) } else { 0 };
        let masks = (0..masked).map(|_| words.word() as u32).collect();
        Ok(Self { device, inputs, asked, vocab, requests, drafts, steps, ids, counts, masks })
    }

    fn rows(&self) -> usize {
        self.requests * (self.drafts + 1)
    }

    fn kind(&self) -> StepKind {
        if self.drafts == 0 { StepKind::Decode } else { self.asked.mode.step_kind() }
    }

    fn config(&self) -> PoolConfig {
        let (device, rows) = (self.device.clone(), self.rows());
        let place = Place::Device { device, rows, history_growth: GROWTH, keep_histories: false };
        PoolConfig { slots: self.requests, place, ..PoolConfig::new(self.vocab) }
    }

    fn admit(&self, pool: &mut Pool) -> Result<Vec<Slot>> {
        let params = &self.asked.params;
        let of = |row: usize| SamplingParams { seed: Some(row as u64), ..params[row % params.len()].clone() };
        let prompt: Vec<u32> =
            (1..=self.asked.prompt).map(|place| place * 7919 % self.vocab as u32).collect();
        (0..self.requests).map(|row| pool.admit(of(row), &prompt)).collect()
    }

    fn batch<'s>(&'s self, slots: &'s [Slot]) -> Result<Batch<'s>> {
        let words = self.vocab.div_ceil(32);
        let masks = match &self.masks[..] {
            [] => Masks::None,
            masks => HostMasks::new(masks, self.rows(), words, words)?.into(),
        };
        Ok(Batch { masks, counts: &self.counts, mode: self.asked.mode, ..Batch::of(slots) })
    }

    /// Captures all steps, each over as many of some rows.
    fn capture<'s>(&'s self, pool: &Pool, from: &'s Resident, rows: usize) -> Result<Graph<'s>> {
        let work = (0..self.steps).map(|step| {
            let logits = from.rows(step, rows)?;
            let Some(ids) = self.ids.get(step) else { return Ok(Work::step(logits)) };
            let drafts = Drafts::chain(DeviceSlice::of(ids, IntType::I32));
            let probs = self.inputs.probs.as_ref().filter(|_| self.asked.has_probs);
            let probs = probs.map(|probs| {
                DeviceMatrix::of(probs, Dtype::F32, 0, self.rows(), self.vocab, self.vocab).map(Into::into)
            });
            Ok(Work::verify(logits, Drafts { probs: probs.transpose()?, ..drafts }))
        });
        pool.capture(&work.collect::<Result<Vec<_>>>()?)
    }

    /// Returns the median time of a step in microseconds, over replays of a graph. A replay before each timed
    /// one lets the ranks begin together.
    fn time(&self, pool: &mut Pool, graph: &Graph<'_>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..REPLAYS {
            pool.replay(graph)?;
            let elapsed = match self.device.gpu() {
                Some(gpu) => f64::from(gpu.elapsed_us(|| pool.replay(graph))?),
                None => {
                    let began = Instant::now();
                    pool.replay(graph)?;
                    began.elapsed().as_secs_f64() * 1e6
                }
            };
            times.push(elapsed / graph.steps() as f64);
        }
        // An exchange that failed shows here.
        pool.fetch(&mut Outputs::new())?;
        times.sort_by(f64::total_cmp);
        Ok((times[times.len() / 2] * 100.0).round() / 100.0)
    }

    /// Times one device that has the whole rows.
    fn time_one(&self, pool: &mut Pool) -> Result<f64> {
        let slots = self.admit(pool)?;
        pool.assign(&self.batch(&slots)?)?;
        let graph = self.capture(pool, &self.inputs.whole, self.rows())?;
        let time = self.time(pool, &graph)?;
        slots.into_iter().try_for_each(|slot| pool.release(slot))?;
        Ok(time)
    }

    /// Times each layout in turn, and then the other way round.
    fn time_layouts(&self, pool: &mut Pool) -> Result<(StepShape, Times)> {
        let slots = self.admit(pool)?;
        let (shape, mut graphs) = (pool.shape(&slots, self.drafts, self.kind())?, Vec::new());
        let layouts = LogitsLayout::ALL.into_iter();
        for layout in
            layouts.filter(|layout| self.kind() != StepKind::Judge || *layout != LogitsLayout::Survey)
        {
            let ranks = pool.ranks().expect("it has ranks");
            if ranks.planner.check(layout).is_err() {
                continue;
            }
            let (plan, rank) = (ranks.planner.plan_as(layout, &shape), ranks.group.rank());
            let batch = Batch { plan: Some(plan), ..self.batch(&slots)? };
            pool.assign(&batch)?;
            let graph = match layout {
                LogitsLayout::Replicated => {
                    let own = plan.shares.of(rank).count() * (self.drafts + 1);
                    self.capture(pool, &self.inputs.whole, own)?
                }
                _ => self.capture(pool, &self.inputs.part, self.rows())?,
            };
            graphs.push((layout, batch, graph));
        }
        let mut timed = |(layout, batch, graph): &(LogitsLayout, Batch<'_>, Graph<'_>)| {
            pool.assign(batch)?;
            Ok((*layout, self.time(pool, graph)?))
        };
        let first = graphs.iter().map(&mut timed).collect::<Result<Vec<_>>>()?;
        let again = graphs.iter().rev().map(&mut timed).collect::<Result<Vec<_>>>()?;
        drop(graphs);
        slots.iter().try_for_each(|slot| pool.release(*slot))?;
        let again = again.iter().rev();
        let times = first.iter().zip(again).map(|((layout, first), (_, again))| (*layout, [*first, *again]));
        Ok((StepShape { edits: shape.edits || self.asked.masked, ..shape }, times.collect()))
    }
}

/// Times parts, which are named with commas between them, or all. Says a line of JSON for each batch: of each
/// layout the median of microseconds a step when the layouts are taken in turn, and the other way round.
///
/// # Errors
/// A text that says what failed.
pub fn times(
    device: &Device,
    connect: &dyn Connect,
    parts: &str,
    say: &dyn Fn(String),
) -> std::result::Result<(), String> {
    let names = if parts == "all" { PARTS.to_vec() } else { parts.split(',').collect() };
    // Groups of `hold` have smaller numbers.
    let mut group = 1 << 20;
    for name in names {
        let part = Part::of_text(name)?;
        let part = if device.gpu().is_some() { part } else { part.reduced() };
        for dtype in part.dtypes {
            time_part(device, connect, (name, &part, *dtype), &mut group, say)
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn time_part(
    device: &Device,
    connect: &dyn Connect,
    (name, part, dtype): (&str, &Part, Dtype),
    group: &mut usize,
    say: &dyn Fn(String),
) -> Result<()> {
    let mut inputs = None;
    for requests in part.requests.iter().copied() {
        let transport = connect
            .connect(*group)
            .map_err(|reason| RanksError::Unavailable { what: "group".to_owned(), reason })?;
        *group += 1;
        let (rank, world) = (transport.rank(), transport.world());
        let split = part.split(world)?;
        if inputs.is_none() {
            inputs = Some(Inputs::new(device, part, dtype, split.ids(rank))?);
        }
        let inputs = inputs.as_ref().expect("just made");
        let config = Cell::new(device, inputs, part, &part.asked[0], requests)?.config();
        let planner = PlannerConfig { layouts: connect.layouts(), ..PlannerConfig::new(split.clone()) };
        let mut one = Pool::new(config.clone())?;
        let mut many = Pool::over(config, connect.ranks(planner, transport))?;
        for asked in &part.asked {
            let cell = Cell::new(device, inputs, part, asked, requests)?;
            let alone = cell.time_one(&mut one)?;
            let mut us = json!({ "one device": alone });
            let (shape, layouts) = cell.time_layouts(&mut many)?;
            for (layout, times) in layouts {
                us[layout.name()] = json!(times);
            }
            let sizes: Vec<usize> = (0..world).map(|rank| split.ids(rank).len()).collect();
            // The other fields of a step's shape.
            let StepShape { needs, listed, edits, swapped, .. } = shape;
            say(json!({
                "part": name, "transport": many.ranks().map(|ranks| ranks.transport), "world": world, "vocab": part.vocab, "sizes": sizes, "dtype": dtype.name(),
                "rows": cell.rows(), "drafts": part.drafts, "asked": asked.name, "needs": format!("{needs:?}"), "listed": listed, "edits": edits,
                "swapped": swapped, "us": us,
            })
            .to_string());
        }
    }
    Ok(())
}
