//! Random batches over ranks, under every layout, held to a pool on one device with the whole rows.

use gumball_cuda::Variant;
use gumball_cuda::{Dtype, Rows, Runtime};
use gumball_engine::dist::{LogitsLayout, Ownership, PlannerConfig, StepKind, VocabSplit};
use gumball_engine::{
    Device, DeviceBuffer, DeviceDistPool, DeviceOptions, DevicePool, DevicePoolConfig, FilterOrder, Kind,
    Masks, Outputs, SamplingParams, Slot, bf16, f16,
};
use std::sync::Arc;

use super::{Connect, PATIENCE};
use crate::batch::{WIDTHS, distinct, params};
use crate::rows::Words;

/// Steps of a layout: each from the host, then as many in one graph.
const STEPS: usize = 3;

/// A batch, the same on all ranks.
#[derive(Debug)]
struct Batch {
    vocab: usize,
    rows: usize,
    dtype: Dtype,
    split: VocabSplit,
    ownership: Ownership,
    /// The variant that serves the requests.
    ends: Variant,
    /// Whether some rows have bitmasks, and whether all filter chains begin with top-k.
    masked: bool,
    listed: bool,
    seed: u64,
}

impl Batch {
    fn new(index: usize, world: usize) -> gumball_spec::Result<Self> {
        let mut words = Words(index as u64 ^ 0xA5A5_0000);
        let mut below = |end: usize| words.below(end);
        let vocab = [257, 1000, 5000, 9000, 32_000, 40_123, 151_936][below(7)];
        let rows = 1 + below(if vocab > 100_000 { 24 } else { 256 });
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][below(3)];
        let ownership = [Ownership::Blocks, Ownership::Modulo][below(2)];
        let ends = [Variant::SurveyDraw, Variant::Simple, Variant::Candidates, Variant::General][below(4)];
        let split = match below(3) {
            0 => VocabSplit::even(vocab, world)?,
            kind => {
                // Borders anywhere, or such that bytes can be copied 16 at a time.
                let unit = if kind == 1 { 1 } else { 16 };
                let mut borders: Vec<usize> = (1..world).map(|_| below(vocab + 1) / unit * unit).collect();
                borders.sort_unstable();
                borders.push(vocab);
                let mut start = 0;
                let size = |end: usize| end - std::mem::replace(&mut start, end);
                VocabSplit::of_sizes(&borders.into_iter().map(size).collect::<Vec<_>>())?
            }
        };
        let (masked, listed) = (below(2) == 0, below(2) == 0);
        Ok(Self { vocab, rows, dtype, split, ownership, ends, masked, listed, seed: index as u64 })
    }

    /// Returns the parameters of a row's request.
    fn params(&self, row: usize) -> SamplingParams {
        let seed = Some(self.seed << 20 | row as u64);
        let own = SamplingParams { seed, ..params(Kind::Logits, row, self.vocab, self.ends) };
        if !self.listed {
            return own;
        }
        let top_k = 1 + (row * 7 % self.vocab.min(256)) as i64;
        SamplingParams { top_k, order: FilterOrder::default(), ..own }
    }

    /// Returns which of the distinct rows each row has.
    fn which(&self, row: usize) -> usize {
        (row + self.seed as usize) % DISTINCT
    }
}

/// Distinct rows of a batch.
const DISTINCT: usize = 24;

/// Copies some ids of some rows to a device, each row filled up with NaN to a width.
fn upload(
    runtime: &Arc<dyn Runtime>,
    batch: &Batch,
    distinct: &[Vec<f32>],
    rows: &[usize],
    (ids, width): (std::ops::Range<usize>, usize),
) -> gumball_spec::Result<DeviceBuffer> {
    let mut values = Vec::with_capacity(rows.len() * width);
    for row in rows {
        values.extend_from_slice(&distinct[batch.which(*row)][ids.clone()]);
        values.resize(values.len() + width - ids.len(), f32::NAN);
    }
    let buffer = match batch.dtype {
        Dtype::F32 => DeviceBuffer::of(runtime, &values),
        Dtype::Bf16 => {
            DeviceBuffer::of(runtime, &values.iter().map(|z| bf16::from_f32(*z)).collect::<Vec<_>>())
        }
        Dtype::F16 => {
            DeviceBuffer::of(runtime, &values.iter().map(|z| f16::from_f32(*z)).collect::<Vec<_>>())
        }
    };
    Ok(buffer?)
}

/// Holds batches of `rows` rows in total to one device. Returns how many there were.
///
/// # Errors
/// A text that says what differs, or what failed.
pub fn hold(device: &Device, connect: &dyn Connect, rows: u64) -> Result<u64, String> {
    let (mut held, mut index) = (0, 0);
    while held < rows {
        held += hold_batch(device, connect, index)?;
        index += 1;
    }
    Ok(held)
}

fn hold_batch(device: &Device, connect: &dyn Connect, index: usize) -> Result<u64, String> {
    let transport = connect.connect(index)?;
    let (rank, world) = (transport.rank(), transport.world());
    let batch = Batch::new(index, world).map_err(|error| error.to_string())?;
    let told = |error: &dyn std::fmt::Display| format!("{batch:?}: {error}");
    let config = DevicePoolConfig {
        slots: batch.rows,
        rows: batch.rows,
        widths: WIDTHS,
        keep_histories: true,
        ..DevicePoolConfig::new(batch.vocab)
    };
    let planner = PlannerConfig {
        ownership: batch.ownership,
        layouts: LogitsLayout::ALL.to_vec(),
        ..PlannerConfig::new(batch.split.clone())
    };
    let distinct: Vec<Vec<f32>> = (0..DISTINCT as u64).map(|seed| distinct(batch.vocab, seed)).collect();
    let run = || -> Result<Option<String>, gumball_engine::dist::Error> {
        let mut one = DevicePool::new(device.clone(), config)?;
        let mut many = DeviceDistPool::new(device.clone(), config, planner, transport, PATIENCE)?;
        let mut slots: Vec<Slot> = Vec::new();
        for row in 0..batch.rows {
            let (params, prompt) = (batch.params(row), [row as u32 % batch.vocab as u32, 0, 1]);
            slots.push(one.admit(params.clone(), &prompt)?);
            many.admit(params, &prompt)?;
        }
        let (runtime, split) = (device.runtime(), &batch.split);
        let all: Vec<usize> = (0..batch.rows).collect();
        let whole = upload(runtime, &batch, &distinct, &all, (0..batch.vocab, batch.vocab))?;
        let whole = Rows::of(&whole, batch.dtype, 0, batch.rows, batch.vocab, batch.vocab)?;
        let part = upload(runtime, &batch, &distinct, &all, (split.ids(rank), split.width()))?;
        let part = Rows::of(&part, batch.dtype, 0, batch.rows, split.width(), split.width())?;
        let mask_words = batch.vocab.div_ceil(32);
        let mut words = Words(batch.seed);
        let masks: Vec<u32> =
            (0..batch.rows * mask_words).map(|_| (words.word() | words.word()) as u32).collect();
        let present: Vec<bool> = all.iter().map(|row| row % 6 == 5).collect();
        let masks = Masks::new(&masks, batch.rows, mask_words, mask_words)?.with_present(&present)?;
        let masks = if batch.masked { masks } else { Masks::NONE };
        let forced: Vec<_> = all.iter().map(|row| (row % 11 == 10).then_some(*row as u32 % 200)).collect();
        let options = DeviceOptions { masks, forced: &forced, row_indices: &[] };
        for layout in LogitsLayout::ALL {
            let plan = many.planner().plan_as(layout, &many.shape(&slots, 0, StepKind::Decode)?);
            let own: Vec<usize> = plan.shares.of(rank).collect();
            let owned = upload(runtime, &batch, &distinct, &own, (0..batch.vocab, batch.vocab))?;
            let rows = match layout {
                LogitsLayout::Replicated => {
                    Rows::of(&owned, batch.dtype, 0, own.len(), batch.vocab, batch.vocab)?
                }
                _ => part,
            };
            let (mut found, mut wanted) = (Outputs::new(), Outputs::new());
            let differs = |what: &str, found: &Outputs, wanted: &Outputs| {
                let differing = found.words().iter().zip(wanted.words()).position(|(a, b)| a != b);
                differing.map(|word| {
                    let (row, a, b) = (word % batch.rows, found.words()[word], wanted.words()[word]);
                    format!("rank {rank}, {layout:?}, {what}: word {word}, of row {row} or so, is {a:08x} and not {b:08x}")
                })
            };
            for step in 0..STEPS {
                one.enqueue(whole, &slots, &options)?;
                many.enqueue(&plan, rows, &slots, &options)?;
                one.fetch(&mut wanted)?;
                many.fetch(&mut found)?;
                if let Some(text) = differs(&format!("step {step}"), &found, &wanted) {
                    return Ok(Some(text));
                }
            }
            let unmasked = DeviceOptions::default();
            one.assign(&slots, &unmasked)?;
            many.assign(&plan, &slots, &unmasked)?;
            let graph = many.capture(&[rows; STEPS])?;
            many.replay(&graph)?;
            (0..STEPS).try_for_each(|_| one.enqueue_assigned(whole))?;
            one.fetch(&mut wanted)?;
            many.fetch(&mut found)?;
            if let Some(text) = differs("the end of a graph", &found, &wanted) {
                return Ok(Some(text));
            }
            for slot in &slots {
                if one.sequence(*slot)?.state() != many.sequence(*slot)?.state() {
                    return Ok(Some(format!("rank {rank}, {layout:?}: the state of slot {slot} differs")));
                }
            }
        }
        Ok(None)
    };
    match run().map_err(|error| told(&error))? {
        None => Ok((batch.rows * LogitsLayout::ALL.len() * 2 * STEPS) as u64),
        Some(text) => Err(told(&text)),
    }
}
