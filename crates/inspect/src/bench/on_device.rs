//! Steps on a device: launched one by one, replayed from a graph, and with their outputs brought home.
//!
//! The rows stay where they are from step to step, so as many as fit lie in the device's cache. What cold
//! rows cost, and rivals beside them, is the `bench` package's matter.

use std::io::Write;
use std::time::Instant;

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Error, Gpu, Outputs, Place, Pool, PoolConfig, Route,
    Slot, State, Widths, Work,
};
use serde::Serialize;

use super::Setting;
use crate::Result;
use crate::logits::Source;
use crate::text::{DIM, HEAD, Table};

/// Rows of a step.
const ROWS: [usize; 5] = [1, 8, 32, 128, 512];
/// Rows of a step on the emulated device.
const EMULATED_ROWS: [usize; 2] = [1, 3];
/// Rounds, the median of which counts, and steps in each.
const ROUNDS: usize = 15;
const STEPS: u32 = 60;

/// The times of one shape.
#[derive(Clone, Debug, Serialize)]
pub struct Measure {
    /// The device.
    pub device: String,
    /// The rows.
    pub source: String,
    /// The length of a row.
    pub vocab: usize,
    /// The type of a logit.
    pub dtype: &'static str,
    /// The setting.
    pub setting: String,
    /// The rows of a step.
    pub rows: usize,
    /// A step of a graph, in microseconds.
    pub graph_us: f64,
    /// A step that is launched by the host, in microseconds.
    pub eager_us: f64,
    /// A step whose outputs the host waits for, in microseconds.
    pub fetched_us: f64,
    /// The reading of the logits, in bytes a microsecond of the graph's step.
    pub bytes_per_us: f64,
}

/// Measures, and writes a table a source.
pub(super) fn run(
    (device, route): (&Device, &Route),
    sources: &[Source],
    settings: &dyn Fn(usize) -> Vec<Setting>,
    json: bool,
    out: &mut dyn Write,
) -> Result<()> {
    if !json {
        writeln!(
            out,
            "{HEAD}{}{HEAD:#}  {DIM}microseconds a step, medians; rows stay in place; route {route}{DIM:#}",
            device.name()
        )?;
    }
    let rows: &[usize] = if device.gpu().is_some() { &ROWS } else { &EMULATED_ROWS };
    let mut measures = Vec::new();
    for source in sources {
        let mut table = Table::new(&["setting", ">rows", ">graph", ">eager", ">with outputs", ">GB/s"]);
        for setting in settings(source.logits.vocab()) {
            for rows in rows {
                let measure = measure((device, route), source, &setting, *rows)?;
                table.row(vec![
                    setting.name.clone(),
                    rows.to_string(),
                    format!("{:.1}", measure.graph_us),
                    format!("{:.1}", measure.eager_us),
                    format!("{:.1}", measure.fetched_us),
                    format!("{:.0}", measure.bytes_per_us / 1e3),
                ]);
                measures.push(measure);
            }
        }
        if !json {
            writeln!(out, "\n{HEAD}{}{HEAD:#}", source.name)?;
            table.write(out)?;
            out.flush()?;
        }
    }
    if json {
        serde_json::to_writer_pretty(&mut *out, &measures).map_err(std::io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

fn measure(
    (device, route): (&Device, &Route),
    source: &Source,
    setting: &Setting,
    rows: usize,
) -> Result<Measure> {
    let vocab = source.logits.vocab();
    let logprobs = setting.params.logprobs.clone().unwrap_or_default();
    let widths = Widths { top_n: logprobs.top_n as usize, ids: logprobs.ids.len() };
    // Room for the steps of all rounds of the three ways, and those before them.
    let room = 3 * (ROUNDS + 1) * STEPS as usize;
    let place = Place::Device { device: device.clone(), rows, history_growth: room, keep_histories: false };
    let route = route.clone();
    let mut pool = Pool::new(PoolConfig { slots: rows, widths, route, place, ..PoolConfig::new(vocab) })?;
    let mu = setting.params.initial_mu();
    let admit = |row: usize| {
        let (seed, position) = (row as u64, setting.history.len() as u32);
        pool.resume(
            setting.params.clone(),
            State { output: &setting.history, seed, position, mu, ..State::default() },
        )
    };
    let slots: Vec<Slot> = (0..rows).map(admit).collect::<gumball_engine::Result<_>>()?;

    let (buffer, dtype) = upload(device, source, rows)?;
    let logits = DeviceMatrix::of(&buffer, dtype, 0, rows, vocab, vocab)?;
    pool.assign(&Batch::of(&slots))?;
    let graph = pool.capture(&[Work::step(logits)])?;
    let mut out = Outputs::new();
    let gpu = device.gpu();
    let steps = if gpu.is_some() { STEPS } else { 1 };
    let graph_us = timed(gpu, steps, || pool.replay(&graph))?;
    let enqueue = |pool: &mut Pool| {
        pool.assign(&Batch::of(&slots))?;
        pool.enqueue(&[Work::step(logits)])
    };
    let eager_us = timed(gpu, steps, || enqueue(&mut pool))?;
    let fetched_us = timed(None, steps, || {
        enqueue(&mut pool)?;
        pool.fetch(&mut out)
    })?;
    Ok(Measure {
        device: device.name(),
        source: source.name.clone(),
        vocab,
        dtype: source.logits.dtype(),
        setting: setting.name.clone(),
        rows,
        graph_us,
        eager_us,
        fetched_us,
        bytes_per_us: (rows * vocab * dtype.bytes()) as f64 / graph_us,
    })
}

/// Copies rows of the source to the device, in turn until there are `rows` of them.
fn upload(device: &Device, source: &Source, rows: usize) -> Result<(DeviceBuffer, Dtype)> {
    let dtype = match source.logits.dtype() {
        "f32" => Dtype::F32,
        "bf16" => Dtype::Bf16,
        _ => Dtype::F16,
    };
    let row_bytes = source.logits.vocab() * dtype.bytes();
    let mut buffer = DeviceBuffer::zeroed(device.runtime(), rows * row_bytes).map_err(Error::from)?;
    for row in 0..rows {
        let from = source.rows[row % source.rows.len()] * row_bytes;
        buffer.write(row * row_bytes, &source.logits.bytes()[from..from + row_bytes]).map_err(Error::from)?;
    }
    Ok((buffer, dtype))
}

/// Returns the median microseconds of a step: by the device's clock if there is one, else by the host's.
fn timed(gpu: Option<&Gpu>, steps: u32, mut step: impl FnMut() -> gumball_engine::Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let mut steps_of_a_round = || (0..steps).try_for_each(|_| step());
        let us = match gpu {
            Some(gpu) => f64::from(gpu.elapsed_us(steps_of_a_round)?),
            None => {
                let began = Instant::now();
                steps_of_a_round()?;
                began.elapsed().as_secs_f64() * 1e6
            }
        };
        times.push(us / f64::from(steps));
    }
    // The first round warms up.
    let mut times = times.split_off(1);
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
