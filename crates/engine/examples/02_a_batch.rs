//! A batch: requests of different parameters share steps, and one of them asks for two answers.

use gumball_engine::{
    Batch, LogprobsParams, Outputs, PADDING, Pool, PoolConfig, Result, Rows, SamplingParams, Scored, Widths,
};

const VOCAB: usize = 1000;

/// Stands in for a model: a batch of rows, each a bell around some id.
fn model(step: usize, rows: usize) -> Vec<f32> {
    let z = |row: usize, id: usize| -0.01 * (id as f32 - (97 * row + 13 * step) as f32).abs();
    (0..rows).flat_map(|row| (0..VOCAB).map(move |id| z(row, id))).collect()
}

fn main() -> Result<()> {
    let widths = Widths { top_n: 3, ids: 0 };
    let mut pool = Pool::new(PoolConfig { slots: 8, widths, ..PoolConfig::new(VOCAB) })?;

    let greedy = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[1, 2])?;
    let logprobs = Some(LogprobsParams { top_n: 3, ..Default::default() });
    let nucleus = SamplingParams { top_p: 0.9, seed: Some(5), logprobs, ..Default::default() };
    let first = pool.admit(nucleus.clone(), &[1, 2, 3])?;
    let second = pool.fork(first, 1)?;

    // The first step after prefill: both answers read the same row.
    let mut out = Outputs::new();
    let data = model(0, 2);
    let slots = [greedy, first, second];
    let batch = Batch { row_indices: &[0, 1, 1], ..Batch::of(&slots) };
    pool.step(Rows::logits(&data, 2, VOCAB)?, &batch, &mut out)?;
    println!("tokens {:?}", out.tokens());

    // Then each has a row of its own; the batch is padded to four.
    for step in 1..4 {
        let data = model(step, 4);
        let logits = Rows::logits(&data, 4, VOCAB)?;
        pool.step(logits, &Batch::of(&[greedy, first, second, PADDING]), &mut out)?;
        println!("tokens {:?}  top of row 1 {:?}", out.tokens(), out.top_ids(1));
    }

    // What the first answer would have scored, all at once.
    let ids = pool.sequence(first)?.history().ids().to_vec();
    let data = model(0, 4);
    let scored = Scored { params: &nucleus, ids: &ids, prompt_len: 3, start: 3, chunk_rows: None };
    pool.score(Rows::logits(&data, 4, VOCAB)?, &Batch::default(), &scored, &mut out)?;
    println!("logprobs {:?}  ranks {:?}", out.logprobs(), out.ranks());

    for slot in [greedy, first, second] {
        pool.release(slot)?;
    }
    Ok(())
}
