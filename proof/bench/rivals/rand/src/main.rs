//! Times what many small programs do: a softmax by hand, then `WeightedIndex` of rand.
//!
//! The weights live in one buffer that is used again; `WeightedIndex` makes its own.

use std::rc::Rc;

use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows, Task, serve};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;

struct Rand;

impl Engine for Rand {
    fn identity(&self) -> Identity {
        Identity { engine: "rand".into(), version: "rand 0.10.3".into() }
    }

    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String> {
        if definition.task != Task::Plain {
            return Err("has no filters; its draw is the plain one".into());
        }
        let temperature = parameters.temperature;
        let mut rng = SmallRng::seed_from_u64(0);
        let mut weights: Vec<f32> = Vec::with_capacity(rows.vocab());
        let draw = move |row: usize| {
            weights.clear();
            match rows.row(row) {
                Row::F32(logits) => weights.extend_from_slice(logits),
                Row::Bf16(logits) => weights.extend(logits.iter().map(|logit| logit.to_f32())),
            }
            exponentials(&mut weights, temperature);
            let index = WeightedIndex::new(&weights).expect("weights are positive and finite");
            index.sample(&mut rng) as i64
        };
        Ok(Prepared { does: "softmax, WeightedIndex".into(), draw: Box::new(draw) })
    }
}

/// Turns logits into weights; dividing by their sum is left out, since `WeightedIndex` needs none.
fn exponentials(weights: &mut [f32], temperature: f32) {
    let scale = temperature.recip();
    let largest = weights.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b });
    weights.iter_mut().for_each(|z| *z = ((*z - largest) * scale).exp());
}

fn main() -> std::io::Result<()> {
    serve(&mut Rand)
}
