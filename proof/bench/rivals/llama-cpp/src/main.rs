//! Times the sampler chain of llama.cpp, unmodified.
//!
//! A call does what `llama_sampler_sample` does once a model has its logits: fill the candidates, apply
//! the chain, accept the token. Chains are in llama.cpp's own order, the temperature after the
//! filters, which is also its fastest. A bf16 row is widened while candidates are filled.

mod chain;

use std::rc::Rc;

use chain::{Chain, Link};
use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows, Task, serve};

struct LlamaCpp;

impl Engine for LlamaCpp {
    fn identity(&self) -> Identity {
        Identity { engine: "llama-cpp".into(), version: "llama-cpp-sys-2 0.1.161".into() }
    }

    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        let Parameters { temperature, top_k, top_p, min_p, .. } = *parameters;
        let temperature = Link::Temperature(temperature);
        let (does, links) = match definition.task {
            Task::Greedy => ("greedy", vec![Link::Greedy]),
            Task::Plain => ("temp, dist", vec![temperature, Link::Draw]),
            Task::MinP => ("min_p, temp, dist", vec![Link::MinP(min_p), temperature, Link::Draw]),
            Task::TopKTopP => {
                let links = vec![Link::TopK(top_k), Link::TopP(top_p), temperature, Link::Draw];
                ("top_k, top_p, temp, dist", links)
            }
            Task::TopP => ("top_p, temp, dist", vec![Link::TopP(top_p), temperature, Link::Draw]),
            Task::Everything => return Err("has no mask and no logprobs".into()),
        };
        let mut chain = Chain::new(&links, rows.vocab());
        let draw = move |row: usize| match rows.row(row) {
            Row::F32(logits) => chain.sample(logits.iter().copied()),
            Row::Bf16(logits) => chain.sample(logits.iter().map(|logit| logit.to_f32())),
        };
        Ok(Prepared { does: does.into(), draw: Box::new(draw) })
    }
}

fn main() -> std::io::Result<()> {
    serve(&mut LlamaCpp)
}
