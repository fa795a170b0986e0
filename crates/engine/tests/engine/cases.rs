//! Rows and requests that the tests draw from.

use gumball_engine::{
    Batch, Dry, DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobModes, LogprobsParams, Mirostat,
    Outputs, Place, Pool, PoolConfig, Rows, SamplingParams, Scope, Slot, Widths,
};
use gumball_spec::num::philox4x32_10;

/// Three tiles and a part of a fourth.
pub const VOCAB: usize = 900;

/// Returns a row that looks like a model's: a bell with some peaks, in steps that make ties common.
pub fn row(seed: u64) -> Vec<f32> {
    let z = |id: u32| {
        let words = philox4x32_10(seed, [id, 0, 77, 0]);
        let bell: f32 = words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 6.0;
        let peak = if words[0].is_multiple_of(60) { 5.0 } else { 0.0 };
        ((bell + peak) * 8.0).round() / 8.0
    };
    (0..VOCAB as u32).map(z).collect()
}

/// Returns rows one after the other.
pub fn rows(seeds: impl IntoIterator<Item = u64>) -> Vec<f32> {
    seeds.into_iter().flat_map(row).collect()
}

/// How many kinds of request there are.
pub const KINDS: usize = 9;

/// Returns one kind of request; all ask for logprobs of one mode or two.
pub fn params(kind: usize, seed: u64) -> SamplingParams {
    let modes = LogprobMode::OF_LOGPROBS;
    let second = Some(modes[kind / 2 % 4]).filter(|mode| *mode != modes[kind % 4]);
    let mode = LogprobModes { first: modes[kind % 4], second };
    let logprobs = LogprobsParams { mode, top_n: 1 + kind as u32 % 3, ids: vec![5, 890] };
    let base = SamplingParams { seed: Some(seed), logprobs: Some(logprobs), ..Default::default() };
    match kind {
        0 => base,
        1 => SamplingParams { temperature: 0.0, repetition_penalty: 1.3, ..base },
        2 => SamplingParams { temperature: 0.8, top_k: 20, top_p: 0.9, ..base },
        3 => SamplingParams {
            min_p: 0.05,
            frequency_penalty: 0.7,
            presence_penalty: 0.4,
            penalty_window: 4,
            ..base
        },
        4 => SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.2, mu: None }), ..base },
        5 => SamplingParams {
            xtc_probability: 0.5,
            xtc_threshold: 0.02,
            typical_p: 0.8,
            order: FilterOrder::List(vec![Filter::Xtc, Filter::TypicalP]),
            ..base
        },
        6 => SamplingParams {
            dynamic_temperature: Some(DynamicTemperature { min: 0.3, max: 1.8, exponent: 0.7 }),
            top_n_sigma: 2.0,
            dry: Dry { multiplier: 0.8, window: 9, ..Default::default() },
            ..base
        },
        7 => SamplingParams {
            logit_bias: vec![(3, 4.0), (4, f32::NEG_INFINITY)],
            banned_ids: vec![10, 11],
            bad_words: vec![vec![3, 7], vec![9]],
            no_repeat_ngram: 2,
            repetition_scope: Scope::Output,
            repetition_penalty: 1.1,
            ..base
        },
        _ => SamplingParams { temperature: 1.5, top_p: 0.5, min_p: 0.1, order: FilterOrder::Joint, ..base },
    }
}

/// Returns the settings of a small pool with room for the logprobs of [`params`].
pub fn config(place: Place) -> PoolConfig {
    PoolConfig { slots: 16, place, widths: Widths { top_n: 3, ids: 2 }, ..PoolConfig::new(VOCAB) }
}

/// Returns a small pool of the host.
pub fn pool(threads: usize) -> Pool {
    Pool::new(config(Place::threads(threads))).unwrap()
}

/// Returns such a pool that keeps kept sets.
pub fn keeping(threads: usize) -> Pool {
    Pool::new(PoolConfig { kept: true, ..config(Place::threads(threads)) }).unwrap()
}

/// Returns the emulated device, or says why there is none.
#[cfg(feature = "emulator")]
pub fn device() -> Option<gumball_engine::Device> {
    gumball_bench_protocol::skipped::or_skip(gumball_engine::Device::emulated())
}

/// Returns a place in which histories have room for few tokens, so that they are moved often.
#[cfg(feature = "emulator")]
pub fn on_device(device: &gumball_engine::Device, keep_histories: bool) -> Place {
    Place::Device { device: device.clone(), rows: 200, history_growth: 2, keep_histories }
}

/// Returns the places whose pools do the same.
pub fn places() -> Vec<Place> {
    let host = [1, 2].map(Place::threads).into_iter();
    #[cfg(feature = "emulator")]
    let host = host.chain(device().map(|device| on_device(&device, false)));
    host.collect()
}

/// Returns a small pool of each place.
pub fn pools() -> impl Iterator<Item = Pool> {
    places().into_iter().map(|place| Pool::new(config(place)).unwrap())
}

/// Steps rows that follow each other.
pub fn step(pool: &mut Pool, data: &[f32], slots: &[Slot]) -> Outputs {
    let mut out = Outputs::new();
    let logits = Rows::logits(data, slots.len(), VOCAB).unwrap();
    pool.step(logits, &Batch::of(slots), &mut out).unwrap();
    out
}

/// Takes sequences back to their states after `output_len` output tokens.
pub fn back_to(pool: &mut Pool, slots: &[Slot], output_len: usize) {
    let count = |slot: &Slot| pool.sequence(*slot).unwrap().tokens_behind(output_len).unwrap();
    let counts: Vec<usize> = slots.iter().map(count).collect();
    pool.shorten(slots, &counts).unwrap();
}
