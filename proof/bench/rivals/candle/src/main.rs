//! Times candle-transformers' `LogitsProcessor`, unmodified.
//!
//! The logits are tensors before the clock starts, as they are in a model; a call is one
//! `LogitsProcessor::sample`. A bf16 row is a bf16 tensor, which the processor itself widens.
//! `Sampling::GumbelSoftmax`, its other plain draw, takes longer than `All` and stays out.

use std::rc::Rc;

use candle_core::{DType, Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows, Task, serve};

struct Candle;

impl Engine for Candle {
    fn identity(&self) -> Identity {
        Identity { engine: "candle".into(), version: "candle-transformers 0.11.1".into() }
    }

    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        let temperature = f64::from(parameters.temperature);
        let (k, p) = (parameters.top_k, f64::from(parameters.top_p));
        let (does, sampling) = match definition.task {
            Task::Greedy => ("Sampling::ArgMax", Sampling::ArgMax),
            Task::Plain => ("Sampling::All", Sampling::All { temperature }),
            Task::TopKTopP => ("Sampling::TopKThenTopP", Sampling::TopKThenTopP { k, p, temperature }),
            Task::TopP => ("Sampling::TopP", Sampling::TopP { p, temperature }),
            Task::MinP => return Err("has no min-p".into()),
            Task::Everything => return Err("has no min-p, mask, bias or logprobs".into()),
        };
        let tensors = tensors(&rows).map_err(|error| error.to_string())?;
        let mut processor = LogitsProcessor::from_sampling(0, sampling);
        let draw =
            move |row: usize| i64::from(processor.sample(&tensors[row]).expect("a valid row is sampled"));
        Ok(Prepared { does: does.into(), draw: Box::new(draw) })
    }
}

fn tensors(rows: &Rows) -> candle_core::Result<Vec<Tensor>> {
    let tensor = |row| match rows.row(row) {
        Row::F32(logits) => Tensor::new(logits, &Device::Cpu),
        Row::Bf16(logits) => {
            let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
            Tensor::from_raw_buffer(&bytes, DType::BF16, &[logits.len()], &Device::Cpu)
        }
    };
    (0..rows.count()).map(tensor).collect()
}

fn main() -> std::io::Result<()> {
    serve(&mut Candle)
}
