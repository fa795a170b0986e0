//! Times a step in a CUDA graph, its rows cold: microseconds a call, median and p95 of 20 replays.
//!
//! `replay [--json] [--only REQUEST,..] [--type f32|bf16] [--flat] [VOCAB] [ROWS,ROWS,..]`. A graph holds one step for each of many buffers, together far larger than the
//! second-level cache, so no step finds its rows there. `floor` is reading the logits once at 4576 GB/s, the
//! read-only ceiling of one H200. Rows are like a model's: a bell of deviation 2 and twenty peaks raised by 6 to 14;
//! with `--flat` without the peaks, so that a nucleus has a third of the vocabulary. With no sizes (`-`) kernels are
//! only compiled. With `--json` it also prints what `bench/gpu/run` reads, eager steps of one row among it.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use gumball_cuda::{
    Assignment, Buffer, Cache, Dtype, Gpu, Kernel, Machine, Prepared, Room, Rows, Start, Step, Workspace,
};
use gumball_spec::{Dry, LogprobsParams, SamplingParams, Widths};
use half::bf16;

const REPLAYS: usize = 20;
const EAGER_STEPS: usize = 70;
const CEILING_BYTES_PER_US: f64 = 4_576_000.0;
/// How much memory the buffers of a graph take together, at least.
const COLD_BYTES: usize = 400 << 20;
/// How many tokens of a row stand out.
const PEAKS: usize = 20;
/// Distinct rows; buffers repeat them.
const DISTINCT: usize = 64;

fn word(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn model_like(vocab: usize, seed: u64, peaks: usize) -> Vec<f32> {
    let mut state = seed;
    let sum = |state: &mut u64| {
        (0..3).map(|_| word(state)).flat_map(|w| (0..4).map(move |i| w >> (16 * i) & 0xFFFF)).sum::<u64>()
    };
    let mut row: Vec<f32> = (0..vocab).map(|_| (sum(&mut state) as f32 - 393_210.0) / 32_768.0).collect();
    for _ in 0..peaks {
        let id = (word(&mut state) % vocab as u64) as usize;
        row[id] += 6.0 + 8.0 * ((word(&mut state) >> 40) as f32 / 16_777_216.0);
    }
    row
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let json = arguments.next_if_eq("--json").is_some();
    let only = arguments.next_if_eq("--only").and_then(|_| arguments.next());
    let only_type = arguments.next_if_eq("--type").and_then(|_| arguments.next());
    let peaks = if arguments.next_if_eq("--flat").is_some() { 0 } else { PEAKS };
    let vocab: usize = arguments.next().map_or(Ok(151_936), |text| text.parse())?;
    let sizes = arguments.next().unwrap_or_else(|| "1,8,32,128,512".to_owned());
    let sizes = sizes.split(',').filter(|size| *size != "-").map(str::parse);
    let sizes = sizes.collect::<Result<Vec<usize>, _>>()?;
    let chosen =
        |only: &Option<String>, name| only.as_ref().is_none_or(|only| only.split(',').any(|o| o == name));

    let gpu = Arc::new(Gpu::new(0, &Cache::user())?);
    println!("{}", gpu.name());
    for kernel in Kernel::all() {
        let (registers, local) = gpu.resources(Kernel::named(kernel))?;
        println!("{kernel:16} {registers:3} registers, {local} bytes of local memory");
    }
    let rows: Vec<Vec<f32>> = (0..DISTINCT as u64).map(|seed| model_like(vocab, seed, peaks)).collect();
    let plain = SamplingParams { temperature: 0.8, ..Default::default() };
    let penalties = SamplingParams {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        logit_bias: (0..vocab as u32).step_by(vocab.div_ceil(64)).map(|id| (id, 0.5)).collect(),
        ..plain.clone()
    };
    let requests = [
        ("greedy", SamplingParams { temperature: 0.0, ..Default::default() }),
        ("plain", plain.clone()),
        ("min-p", SamplingParams { min_p: 0.05, ..plain.clone() }),
        ("top-k-top-p", SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.9, ..plain.clone() }),
        ("full", SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.05, ..plain.clone() }),
        ("penalties", penalties.clone()),
        (
            "everything",
            SamplingParams {
                top_k: 50,
                top_p: 0.9,
                min_p: 0.05,
                logprobs: Some(LogprobsParams::default()),
                ..penalties.clone()
            },
        ),
        ("dry", SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..penalties }),
    ];
    // A long chat: ids spread over the vocabulary, few of them twice.
    let history: Vec<u32> = (0..2048u64).map(|i| (word(&mut (i * 77)) % vocab as u64) as u32).collect();
    // A grammar that forbids one token in eight.
    let grammar = vec![0x7F7F_7F7Fu32; vocab.div_ceil(32)];
    println!("vocab {vocab}, T 0.8, microseconds a call in a graph, cold: median (p95)");
    println!("{:12} {:5} {:>5} {:>8} {:>16} {:>16}", "request", "type", "rows", "floor", "survey", "step");
    for dtype in [Dtype::F32, Dtype::Bf16].into_iter().filter(|dtype| chosen(&only_type, dtype.name())) {
        for count in &sizes {
            let batch_bytes = count * vocab * dtype.bytes();
            let batches = COLD_BYTES.div_ceil(batch_bytes).max(2);
            let buffers = fill(&gpu, dtype, &rows, *count, batches)?;
            for (name, params) in requests.iter().filter(|(name, _)| chosen(&only, name)) {
                let machine: Arc<dyn Machine> = Arc::clone(&gpu) as Arc<dyn Machine>;
                let mut workspace = Workspace::new(machine, room(vocab, *count))?;
                let prepared = Prepared::new(params, vocab)?;
                let slots: Vec<i32> = (0..*count as i32).collect();
                let admit = |workspace: &mut Workspace| -> gumball_spec::Result<()> {
                    let (prompt, room) = (&history[..], buffers.len().max(EAGER_STEPS));
                    slots.iter().try_for_each(|slot| {
                        let start =
                            Start { seed: *slot as u64, position: 9, prompt, room, ..Start::default() };
                        workspace.admit(*slot, &prepared, &start)
                    })
                };
                admit(&mut workspace)?;
                let masks = vec![Some(&grammar[..]); if *name == "everything" { *count } else { 0 }];
                workspace.assign(&Assignment { slots: &slots, masks: &masks, ..Assignment::default() })?;
                if json && *count == 1 {
                    let steps = buffers
                        .iter()
                        .map(|buffer| workspace.step(&Rows::of(buffer, dtype, 0, *count, vocab, vocab)?));
                    let mut times =
                        eager(&gpu, &workspace, &steps.collect::<gumball_spec::Result<Vec<_>>>()?)?;
                    say(name, (vocab, dtype, *count), "eager", 1, &mut times);
                }
                let mut figures = Vec::new();
                for whole in [false, true] {
                    let steps = buffers.iter().map(|buffer| {
                        let rows = Rows::of(buffer, dtype, 0, *count, vocab, vocab)?;
                        let step = workspace.step(&rows)?;
                        Ok(if whole { step } else { step.survey_only() })
                    });
                    let steps = steps.collect::<gumball_spec::Result<Vec<_>>>()?;
                    let graph = workspace.capture(&steps)?;
                    let mut times = Vec::new();
                    for _ in 0..3 + REPLAYS {
                        // Anew, so that histories are as long in each replay.
                        admit(&mut workspace)?;
                        times.push(gpu.elapsed_us(|| workspace.replay(&graph))? / steps.len() as f32);
                    }
                    times.drain(..3);
                    times.sort_by(f32::total_cmp);
                    if json && whole {
                        say(name, (vocab, dtype, *count), "graph", steps.len(), &mut times);
                    }
                    figures.push(format!("{:.2} ({:.2})", times[REPLAYS / 2], times[REPLAYS * 19 / 20]));
                }
                let floor = batch_bytes as f64 / CEILING_BYTES_PER_US;
                let (survey, step) = (&figures[0], &figures[1]);
                println!("{name:12} {:5} {count:5} {floor:8.2} {survey:>16} {step:>16}", dtype.name());
            }
        }
    }
    Ok(())
}

fn room(vocab: usize, rows: usize) -> Room {
    Room { vocab, slots: rows, rows, widths: Widths::default(), kept: false }
}

/// Times steps from the host, each with a synchronisation, after some that do not count.
fn eager(gpu: &Gpu, workspace: &Workspace, steps: &[Step<'_>]) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut times = Vec::new();
    for step in steps.iter().cycle().take(EAGER_STEPS) {
        let began = Instant::now();
        workspace.enqueue(step)?;
        gpu.stream().synchronize()?;
        times.push(began.elapsed().as_secs_f32() * 1e6);
    }
    Ok(times.split_off(10))
}

/// Prints microseconds a call as `bench/gpu` reads them: one JSON object.
fn say(task: &str, (vocab, dtype, rows): (usize, Dtype, usize), mode: &str, calls: usize, times: &mut [f32]) {
    times.sort_by(f32::total_cmp);
    let (samples, version, dtype) = (times.len(), env!("CARGO_PKG_VERSION"), dtype.name());
    let (median, p95) = (times[samples / 2], times[samples * 19 / 20]);
    print!(r#"{{"engine":"gumball","version":"{version}","task":"{task}","does":"step","vocab":{vocab},"#);
    print!(r#""dtype":"{dtype}","rows":{rows},"mode":"{mode}","median_us":{median:.3},"p95_us":{p95:.3},"#);
    println!(r#""samples":{samples},"calls":{calls}}}"#);
}

/// Fills buffers with batches of rows, each beginning at another of the distinct ones.
fn fill(
    gpu: &Arc<Gpu>,
    dtype: Dtype,
    rows: &[Vec<f32>],
    count: usize,
    batches: usize,
) -> Result<Vec<Buffer>, Box<dyn Error>> {
    let machine: Arc<dyn Machine> = Arc::clone(gpu) as Arc<dyn Machine>;
    let mut buffers = Vec::new();
    for batch in 0..batches {
        let chosen = (0..count).map(|row| &rows[(batch * 7 + row) % rows.len()]);
        buffers.push(if dtype == Dtype::F32 {
            Buffer::of(&machine, &chosen.flatten().copied().collect::<Vec<f32>>())?
        } else {
            let values = chosen.flatten().map(|z| bf16::from_f32(*z));
            Buffer::of(&machine, &values.collect::<Vec<bf16>>())?
        });
    }
    Ok(buffers)
}
