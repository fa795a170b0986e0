//! Times the sampler chain of llm-samplers, unmodified.
//!
//! A call fills `Logits` from the row, then runs the chain. With a top-k, the row is filled through
//! `try_from_iter_top_k`, which is the crate's fast way; every other chain sorts the row. Filters
//! stand before the temperature, as the crate's examples have them: fewer tokens are divided.

use std::rc::Rc;

use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows, Task, serve};
use llm_samplers::prelude::{
    Logits, SampleGreedy, SampleMinP, SampleRandDistrib, SampleTemperature, SampleTopP, Sampler,
    SamplerChain, SimpleSamplerResources,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;

struct LlmSamplers;

impl Engine for LlmSamplers {
    fn identity(&self) -> Identity {
        Identity { engine: "llm-samplers".into(), version: "llm-samplers 0.0.7".into() }
    }

    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        let (k, p, min_p) = (parameters.top_k, parameters.top_p, parameters.min_p);
        let temperature = SampleTemperature::new(parameters.temperature);
        let chain = SamplerChain::new();
        let (does, mut chain) = match definition.task {
            Task::Greedy => ("greedy", chain + SampleGreedy::new()),
            Task::Plain => ("temperature, draw", chain + temperature + SampleRandDistrib::new()),
            Task::MinP => (
                "min-p, temperature, draw",
                chain + SampleMinP::new(min_p, 1) + temperature + SampleRandDistrib::new(),
            ),
            Task::TopKTopP => (
                "filled by top-k, top-p, temperature, draw",
                chain + SampleTopP::new(p, 1) + temperature + SampleRandDistrib::new(),
            ),
            Task::TopP => (
                "top-p, temperature, draw",
                chain + SampleTopP::new(p, 1) + temperature + SampleRandDistrib::new(),
            ),
            Task::Everything => return Err("has no mask and no logprobs".into()),
        };
        let mut resources = SimpleSamplerResources::new(Some(Box::new(SmallRng::seed_from_u64(0))), None);
        let draw = move |row: usize| {
            let mut logits = match rows.row(row) {
                Row::F32(logits) => fill(logits.iter().copied(), k),
                Row::Bf16(logits) => fill(logits.iter().map(|logit| logit.to_f32()), k),
            };
            let token = chain.sample_token(&mut resources, &mut logits).expect("a valid row is sampled");
            token.map_or(-1, i64::from)
        };
        Ok(Prepared { does: does.into(), draw: Box::new(draw) })
    }
}

fn fill(logits: impl Iterator<Item = f32>, top_k: usize) -> Logits {
    let filled = match top_k {
        0 => Logits::try_from_iter(logits),
        k => Logits::try_from_iter_top_k(logits, k),
    };
    filled.expect("the row has no NaN")
}

fn main() -> std::io::Result<()> {
    serve(&mut LlmSamplers)
}
