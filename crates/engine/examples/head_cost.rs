//! The cost of a step from hidden states on a GPU: microseconds a step in a graph, by the device's clock.
//!
//! `head_cost [VOCAB] [WIDTH] [ROWS,ROWS,..]` prints a line of JSON for each head, request and number of
//! rows, and compares the tokens with those of the exact head: a certified head's must be the same, those of
//! others are counted. `HEAD_KINDS` names the heads, if not all of
//! `exact,certified,fast,clustered,clustered_f32,fast_clustered,clustered_apart,fast_clustered_apart`. The
//! clustered ones probe 256 clusters of 19 ids, with centroids in bf16, `clustered_f32` in f32. A cluster has
//! neighbouring ids, and of a head named `.._apart` ids far apart, whatever their weights, so these tokens
//! mean nothing. Weights are bf16 and normal; with the `decay` of the environment variable `HEAD_DECAY` the
//! i-th element of weights and hidden states has the deviation i^-decay, as the spectra of real heads fall.
//! Hidden states have the length at which logits deviate by 3 from their mean.
//!
//! With `HEAD_PROFILE` it times nothing and enqueues three steps of each: for a profiler that lists kernels.
//!
//! Weights are far larger than the second-level cache, so every step reads them from memory.

use std::collections::HashMap;
use std::error::Error;

use gumball_engine::head::{Certified, ClusteredOptions, Clusters, Exact, HeadOptions};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceHead, DeviceMatrix, Dtype, Head, Outputs, Place, Pool, PoolConfig,
    Rows, SamplingParams, Work,
};
use half::bf16;
use rayon::prelude::*;

/// How many steps a graph has, each on hidden states of its own, and how often it is replayed.
const STEPS: usize = 16;
const REPLAYS: usize = 15;

/// How far logits deviate from their mean.
const DEVIATION: f32 = 3.0;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A generator of normal numbers (SplitMix64, and the sum of twelve uniform ones).
struct Normal(u64);

impl Normal {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn next(&mut self) -> f32 {
        let mut sum = 0.0;
        for _ in 0..3 {
            let word = self.word();
            sum += (0..4).map(|i| (word >> (16 * i) & 0xFFFF) as f32 / 65_536.0).sum::<f32>();
        }
        sum - 6.0
    }
}

/// Ids of a cluster, and clusters that a hidden state probes.
const CAPACITY: usize = 19;
const PROBES: usize = 256;

/// Makes the clusters of a head of this name: their centroids are the rows of their first ids, or a little
/// longer so that bf16 does not hold them.
fn clusters(weights: &[bf16], width: usize, name: &str) -> Outcome<Clusters> {
    let vocab = weights.len() / width;
    let longer = if name == "clustered_f32" { 1.0001 } else { 1.0 };
    let members: Vec<u32> = if name.ends_with("_apart") {
        let apart = vocab.div_ceil(CAPACITY);
        (0..apart).flat_map(|first| (first..vocab).step_by(apart)).map(|id| id as u32).collect()
    } else {
        (0..vocab as u32).collect()
    };
    let first_rows = members.iter().step_by(CAPACITY).map(|id| &weights[*id as usize * width..][..width]);
    let centroids = first_rows.flat_map(|row| row.iter().map(|w| w.to_f32() * longer)).collect();
    Ok(Clusters::new(members, CAPACITY, centroids, (vocab, width))?)
}

fn requests() -> Vec<(&'static str, Vec<SamplingParams>)> {
    let base = SamplingParams::default();
    let top = SamplingParams { top_k: 50, top_p: 0.9, ..base.clone() };
    let penalised = SamplingParams { repetition_penalty: 1.1, ..top.clone() };
    vec![
        ("greedy", vec![SamplingParams { temperature: 0.0, ..base.clone() }]),
        ("plain", vec![base.clone()]),
        ("min-p 0.05", vec![SamplingParams { min_p: 0.05, ..base.clone() }]),
        ("top-k 50, top-p 0.9", vec![top.clone()]),
        (
            "a mixture of these, one with penalties",
            vec![
                SamplingParams { temperature: 0.0, ..base.clone() },
                base.clone(),
                SamplingParams { min_p: 0.05, ..base },
                penalised,
            ],
        ),
    ]
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |place: usize, usual: usize| words.get(place).map_or(Ok(usual), |word| word.parse::<usize>());
    let (vocab, width) = (number(0, 151_936)?, number(1, 4096)?);
    let rows_of: Vec<usize> = match words.get(2) {
        Some(list) => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        None => vec![1, 2, 4, 8, 16],
    };
    let is_profiled = std::env::var_os("HEAD_PROFILE").is_some();
    let decay: f32 = std::env::var("HEAD_DECAY").ok().map_or(Ok(0.0), |word| word.parse())?;
    let deviation = |i: usize| ((i + 1) as f32).powf(-decay);
    let squares: f32 = (0..width).map(|i| deviation(i).powi(4)).sum();
    // A product of two elements deviates by the square of theirs.
    let scale = DEVIATION / squares.sqrt();

    let mut weights = vec![bf16::ZERO; vocab * width];
    weights.par_chunks_mut(width).enumerate().for_each(|(id, row)| {
        let mut normal = Normal(id as u64 * 77 + 5);
        row.iter_mut().enumerate().for_each(|(i, w)| *w = bf16::from_f32(normal.next() * deviation(i)));
    });
    let exact = Exact::new(&weights[..], vocab, width, HeadOptions::default())?;
    let began = std::time::Instant::now();
    let certified = Certified::new(exact.clone());
    eprintln!("screened {vocab} x {width} in {:.1} s", began.elapsed().as_secs_f32());

    let device = Device::cuda(0)?;
    let gpu = device.gpu().ok_or("a GPU")?;
    let most = rows_of.iter().copied().max().unwrap_or(1);
    let mut normal = Normal(3);
    let hidden: Vec<bf16> = (0..STEPS * most)
        .flat_map(|_| {
            (0..width).map(|i| bf16::from_f32(normal.next() * deviation(i) * scale)).collect::<Vec<_>>()
        })
        .collect();
    let hidden = DeviceBuffer::of(device.runtime(), &hidden)?;
    let mut seen: HashMap<(&str, usize), Vec<i32>> = HashMap::new();
    let kinds = [
        ("exact", Head::Exact(&exact)),
        ("certified", Head::Certified(&certified)),
        ("fast", Head::Exact(&exact)),
        ("clustered", Head::Exact(&exact)),
        ("clustered_f32", Head::Exact(&exact)),
        ("fast_clustered", Head::Exact(&exact)),
        ("clustered_apart", Head::Exact(&exact)),
        ("fast_clustered_apart", Head::Exact(&exact)),
    ];
    let asked = std::env::var("HEAD_KINDS").unwrap_or_default();
    for (name, head) in
        kinds.into_iter().filter(|(name, _)| asked.is_empty() || asked.split(',').any(|asked| asked == *name))
    {
        let head = DeviceHead::new(&device, head, most)?;
        let probes = PROBES.min(vocab.div_ceil(CAPACITY));
        let options = ClusteredOptions { probes: Some(probes), ..ClusteredOptions::default() };
        let head = if name.contains("clustered") {
            head.with_clusters(&clusters(&weights, width, name)?, &options)?
        } else {
            head
        };
        let head = if name.starts_with("fast") { head.fast()? } else { head };
        for (request, params) in requests() {
            for rows in &rows_of {
                let place = Place::device(device.clone(), most);
                let mut pool = Pool::new(PoolConfig { place, slots: *rows, ..PoolConfig::new(vocab) })?;
                let slots = (0..*rows)
                    .map(|row| {
                        let params =
                            SamplingParams { seed: Some(row as u64), ..params[row % params.len()].clone() };
                        pool.admit(params, &[1, 2, 3])
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                let work = (0..STEPS)
                    .map(|step| {
                        let start = step * most * width;
                        let states = DeviceMatrix::of(&hidden, Dtype::Bf16, start, *rows, width, width)?;
                        Ok(Work::step(Rows::hidden(&head, states)))
                    })
                    .collect::<Outcome<Vec<_>>>()?;
                pool.assign(&Batch::of(&slots))?;
                if is_profiled {
                    pool.enqueue(&work[..3])?;
                    pool.fetch(&mut Outputs::new())?;
                    continue;
                }
                let before = head.counts()?;
                let graph = pool.capture(&work)?;
                let (mut times, mut tokens, mut out) = (Vec::new(), Vec::new(), Outputs::new());
                for _ in 0..REPLAYS {
                    times.push(gpu.elapsed_us(|| Outcome::Ok(pool.replay(&graph)?))? / STEPS as f32);
                    pool.fetch(&mut out)?;
                    tokens.extend_from_slice(out.tokens());
                }
                times.sort_by(f32::total_cmp);
                let of_exact = seen.entry((request, *rows)).or_insert_with(|| tokens.clone());
                let same = of_exact.iter().zip(&tokens).filter(|(token, other)| token == other).count();
                if same != tokens.len() && name == "certified" {
                    return Err(format!("{request}, {rows} rows: the heads draw other tokens").into());
                }
                let after = head.counts()?;
                let certified_rows = after.certified_rows - before.certified_rows;
                let done = after.since(before);
                let part_rows = done.certified_rows + done.clustered_rows;
                let logits = (done.certified_logits + done.clustered_logits) as f64 / part_rows.max(1) as f64;
                println!(
                    "{{\"head\":\"{name}\",\"request\":\"{request}\",\"vocab\":{vocab},\"width\":{width},\"rows\":{rows},\"decay\":{decay},\
                     \"median_us\":{:.1},\"least_us\":{:.1},\"certified_rows\":{certified_rows},\"logits_a_row\":{logits:.1},\
                     \"whole_rows\":{},\"compared_tokens\":{},\"same_tokens\":{same}}}",
                    times[times.len() / 2],
                    times[0],
                    after.whole_rows - before.whole_rows,
                    tokens.len(),
                );
            }
        }
    }
    Ok(())
}
