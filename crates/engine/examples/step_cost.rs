//! The cost of a step on a GPU for the host: microseconds a step, medians.
//!
//! `step_cost [--json] [VOCAB] [ROWS,ROWS,..]`. For each request and number of rows:
//! - `enqueue`: [`Pool::enqueue`], the launches among it;
//! - `launches`: the same launches once more, one after the other, their arguments ready;
//! - `beside`: [`Pool::enqueue`] where a launch does nothing: what is done for a step besides them;
//! - `replay`: [`Pool::replay`] of one captured step;
//! - `step`, `graph`: the two with [`Pool::fetch`], which waits for the GPU and reads what the step came to;
//! - `device`: a step of a graph of many, by the device's clock.
//!
//! Steps take turns on batches of rows that are together far larger than the second-level cache.
//!
//! Without a GPU only `beside` is measured, where launches cannot be made either. With `--json` it prints
//! what `proof/bench/gpu` reads instead of the table.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use gumball_bench_protocol::generated::model_like;
use gumball_cuda::{Buffer, DeviceLimits, Dtype, Launch, Runtime, Tap};
use gumball_engine::{
    Batch, Device, DeviceMatrix, LogprobsParams, Outputs, Place, Pool, PoolConfig, SamplingParams, Work,
};

/// How many steps are enqueued before the device is waited for, and how often.
const STEPS: usize = 32;
const TIMES: usize = 41;
/// How many bytes the batches of rows have together, at least.
const COLD_BYTES: usize = 400 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Microseconds a call: the median, and the 95th percentile.
#[derive(Clone, Copy)]
struct Times {
    median: f64,
    p95: f64,
}

impl Times {
    fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self { median: times[times.len() / 2], p95: times[times.len() * 19 / 20] }
    }
}

/// Times calls, the device being waited for after every few of them, outside what is timed.
fn time(
    calls: usize,
    mut wait: impl FnMut() -> Outcome<()>,
    mut call: impl FnMut() -> Outcome<()>,
) -> Outcome<Times> {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let began = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        times.push(began.elapsed().as_secs_f64() * 1e6 / calls as f64);
        wait()?;
    }
    Ok(Times::new(times))
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    let json = arguments.next_if_eq("--json").is_some();
    let vocab: usize = arguments.next().map_or(Ok(151_936), |text| text.parse())?;
    let sizes = arguments.next().unwrap_or_else(|| "1,8,32,128,512".to_owned());
    let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let machine = match Device::cuda(0) {
        Ok(device) => Some(Arc::clone(device.runtime())),
        Err(error) => {
            println!("{error}");
            None
        }
    };
    let has_gpu = machine.is_some();
    let tap = Arc::new(machine.map_or_else(|| Tap::without_machine(DeviceLimits::new(132)), Tap::on));
    println!("{}, vocab {vocab}: microseconds of the host a step", tap.name());
    if !json {
        println!("request      rows  count  enqueue  launches  beside  replay    step   graph  device");
    }
    for rows in sizes {
        measure(&tap, has_gpu, vocab, rows, json)?;
    }
    Ok(())
}

/// Prints a line for each request, or with `json` one for each time.
fn measure(tap: &Arc<Tap>, has_gpu: bool, vocab: usize, rows: usize, json: bool) -> Outcome<()> {
    let machine: Arc<dyn Runtime> = Arc::clone(tap) as Arc<dyn Runtime>;
    let batch: Vec<f32> = (0..rows as u64).flat_map(|row| model_like(vocab, row)).collect();
    let batch_bytes = size_of_val(&batch[..]);
    let batches = if has_gpu { COLD_BYTES.div_ceil(batch_bytes).max(2) } else { 1 };
    let mut logits = Buffer::zeroed(&machine, batches * batch_bytes)?;
    (0..batches).try_for_each(|index| logits.write(index * batch_bytes, &batch))?;
    let work = (0..batches)
        .map(|index| {
            DeviceMatrix::of(&logits, Dtype::F32, index * batch.len(), rows, vocab, vocab).map(Work::step)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let plain = SamplingParams { temperature: 0.8, seed: Some(7), ..Default::default() };
    let filters = SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() };
    let edited = SamplingParams {
        repetition_penalty: 1.1,
        no_repeat_ngram: 3,
        logprobs: Some(LogprobsParams::default()),
        ..filters.clone()
    };
    for (name, params) in [("plain", plain), ("top-k-top-p", filters), ("edited", edited)] {
        let room = 8 * STEPS * TIMES + TIMES * batches;
        let device = Device::new(Arc::clone(&machine));
        let place = Place::Device { device, rows, history_growth: room, keep_histories: false };
        let mut pool = Pool::new(PoolConfig { slots: rows, place, ..PoolConfig::new(vocab) })?;
        let slots =
            (0..rows).map(|_| pool.admit(params.clone(), &[1, 2, 3])).collect::<Result<Vec<_>, _>>()?;
        let mut turns = work.iter().cycle();
        let mut enqueue = |pool: &mut Pool| {
            pool.assign(&Batch::of(&slots))?;
            Ok(pool.enqueue(&[*turns.next().expect("a circle has no end")])?)
        };
        let synchronise = || match tap.machine().and_then(|machine| machine.gpu()) {
            Some(gpu) => Ok(gpu.synchronize()?),
            None => Ok(()),
        };
        let mut out = Outputs::new();

        let taken = tap.launches_of(|| enqueue(&mut pool))?;
        tap.set_dry(true);
        let beside = time(STEPS, synchronise, || enqueue(&mut pool))?;
        if !has_gpu {
            println!("{name:12} {rows:4} {:6} {:26.2}", taken.len(), beside.median);
            continue;
        }
        tap.set_dry(false);
        let enqueued = time(STEPS, synchronise, || enqueue(&mut pool))?;
        let gpu = tap.machine().expect("there is one");
        let launches = time(STEPS, synchronise, || {
            for Launch { kernel, grid, argument, is_dependent } in &taken {
                let argument = bytemuck::cast_slice(argument);
                // SAFETY: the launch is one that the pool made; its memory lives, as do pool and logits.
                unsafe { gpu.launch(*kernel, *grid, argument, *is_dependent) }?;
            }
            Ok(())
        })?;
        let step = time(
            1,
            || Ok(()),
            || {
                enqueue(&mut pool)?;
                Ok(pool.fetch(&mut out)?)
            },
        )?;
        let graph = pool.capture(&work[..1])?;
        let replay = time(STEPS, synchronise, || Ok(pool.replay(&graph)?))?;
        let whole = time(
            1,
            || Ok(()),
            || {
                pool.replay(&graph)?;
                Ok(pool.fetch(&mut out)?)
            },
        )?;
        let graph = pool.capture(&work)?;
        let gpu = gpu.gpu().expect("it is a GPU");
        let mut device = Vec::new();
        for _ in 0..TIMES {
            let elapsed_us = gpu.elapsed_us(|| Outcome::Ok(pool.replay(&graph)?))?;
            device.push(f64::from(elapsed_us) / batches as f64);
        }
        let device = Times::new(device);
        if json {
            for (does, mode, times) in [
                ("Pool::step", "eager", step),
                ("Pool::replay", "eager", whole),
                ("Pool::replay", "graph", device),
                ("Pool::enqueue", "host", enqueued),
                ("Pool::enqueue, launches that do nothing", "host", beside),
                ("the launches of Pool::enqueue alone", "host", launches),
                ("Pool::replay", "host", replay),
            ] {
                let Times { median, p95 } = times;
                print!(
                    r#"{{"engine":"gumball","does":"{does}","task":"{name}","vocab":{vocab},"dtype":"f32","#
                );
                print!(r#""rows":{rows},"rows_like":"model","mode":"{mode}","median_us":{median:.3},"#);
                println!(r#""p95_us":{p95:.3},"samples":{TIMES}}}"#);
            }
            continue;
        }
        println!(
            "{name:12} {rows:4} {:6} {:8.2} {:9.2} {:7.2} {:7.2} {:7.2} {:7.2} {:7.2}",
            taken.len(),
            enqueued.median,
            launches.median,
            beside.median,
            replay.median,
            step.median,
            whole.median,
            device.median
        );
    }
    Ok(())
}
