//! The requests that rows make, by name.

use gumball_bench_protocol::Words;
use gumball_spec::{Dry, LogprobsParams, SamplingParams};

use crate::rows::Like;

/// A request that every row of a batch makes.
pub struct Request {
    pub name: &'static str,
    pub params: SamplingParams,
    /// Whether a bitmask forbids one token in eight.
    pub masked: bool,
}

/// Returns the requests over a vocabulary; their penalties count the ids of [`history`].
pub fn requests(vocab: usize) -> Vec<Request> {
    let plain = SamplingParams { temperature: 0.8, ..Default::default() };
    let filters = SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.05, ..plain.clone() };
    let penalised = |params: &SamplingParams| SamplingParams {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        logit_bias: (0..vocab as u32).step_by(vocab.div_ceil(64)).map(|id| (id, 0.5)).collect(),
        ..params.clone()
    };
    let full = SamplingParams { logprobs: Some(LogprobsParams::default()), ..penalised(&filters) };
    let dry = SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..penalised(&plain) };
    let request = |name, params| Request { name, params, masked: name == "full" };
    vec![
        request("greedy", SamplingParams { temperature: 0.0, ..Default::default() }),
        request("plain", plain.clone()),
        request("min-p", SamplingParams { min_p: 0.05, ..plain.clone() }),
        request("top-k-top-p", SamplingParams { min_p: 0.0, ..filters.clone() }),
        request("top-k-top-p-min-p", filters),
        request("top-p", SamplingParams { top_p: 0.9, ..plain.clone() }),
        request("top-k-5000", SamplingParams { top_k: 5000, ..plain.clone() }),
        request("penalties", penalised(&plain)),
        request("full", full),
        request("dry", dry),
    ]
}

/// Returns whether a request is timed if the command names none.
pub fn by_default(name: &str, like: Like) -> bool {
    match like {
        Like::Model => !matches!(name, "top-k-5000" | "dry"),
        Like::Bell | Like::Flat => matches!(name, "top-p" | "top-k-5000"),
    }
}

/// A long chat: ids spread over the vocabulary, few of them twice.
pub fn history(vocab: usize) -> Vec<u32> {
    (0..2048u64).map(|i| Words(i * 77).below(vocab) as u32).collect()
}

/// A grammar that forbids one token in eight.
pub fn grammar(vocab: usize) -> Vec<u32> {
    vec![0x7F7F_7F7F; vocab.div_ceil(32)]
}
