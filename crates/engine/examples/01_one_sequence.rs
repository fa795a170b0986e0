//! One sequence: parameters in, tokens and logprobs out, and the seed to repeat the run with.

use gumball_engine::{LogprobsParams, Result, Sampler, SamplingParams, StepOptions};

/// Stands in for a model: likes the ids after the last one.
fn model(last: u32) -> Vec<f32> {
    (0..VOCAB).map(|id| -0.7 * (id + VOCAB - last - 1).rem_euclid(VOCAB) as f32).collect()
}

const VOCAB: u32 = 32;
const EOS: u32 = 0;

fn main() -> Result<()> {
    let params = SamplingParams {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.2,
        stop_ids: vec![EOS],
        min_tokens: 4,
        logprobs: Some(LogprobsParams { top_n: 2, ..Default::default() }),
        ..Default::default()
    };
    let mut sampler = Sampler::new(params, VOCAB as usize)?.with_prompt(&[7]);
    sampler.collect_kept(true);
    println!("seed {}", sampler.seed());

    let mut last = 7;
    while sampler.history().output().len() < 12 {
        let token = sampler.sample(&model(last))?;
        let (Some(id), Some(logprob)) = (token.id, token.logprob) else { break };
        println!(
            "id {id:2}  logprob {:7.3}  rank {}  kept {}",
            logprob.logprob,
            logprob.rank,
            sampler.kept().len()
        );
        if id == EOS {
            break;
        }
        last = id;
    }

    // What comes with a single row: here a mask that leaves ids 0 and 1.
    let options = StepOptions { mask: Some(&[0b11]), ..Default::default() };
    println!("masked: {:?}", sampler.sample_with(&model(last), options)?.id);
    Ok(())
}
