//! A pool on a GPU: one captured step serves requests that come and go. Says what is missing where there is
//! none.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Outputs, PADDING, Place, Pool, PoolConfig, Result,
    SamplingParams, Work,
};

const VOCAB: usize = 1000;
const ROWS: usize = 4;

fn main() -> Result<()> {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            println!("{error}");
            return Ok(());
        }
    };
    println!("{}", device.name());
    // Stands in for a model's logits on the device; a pointer of the host program's goes in by
    // `DeviceMatrix::new`.
    let bell = |i: usize| -0.01 * ((i % VOCAB) as f32 - (97 * (i / VOCAB)) as f32).abs();
    let logits = DeviceBuffer::of(device.runtime(), &(0..ROWS * VOCAB).map(bell).collect::<Vec<f32>>())?;
    let logits = DeviceMatrix::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB)?;

    let place = Place::device(device, 8);
    let mut pool = Pool::new(PoolConfig { slots: 8, place, ..PoolConfig::new(VOCAB) })?;
    let greedy = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[1, 2])?;
    let nucleus = pool.admit(SamplingParams { top_p: 0.9, ..Default::default() }, &[3])?;

    // Captured for four rows of any requests.
    pool.assign(&Batch::of(&[greedy, nucleus, PADDING, PADDING]))?;
    let graph = pool.capture(&[Work::step(logits)])?;
    let mut out = Outputs::new();
    for _ in 0..3 {
        pool.replay(&graph)?;
        pool.fetch(&mut out)?;
        println!("tokens {:?}", out.tokens());
    }

    // A request ends and another begins, under the same graph.
    pool.release(greedy)?;
    let plain = pool.admit(SamplingParams { seed: Some(7), ..Default::default() }, &[])?;
    pool.assign(&Batch::of(&[PADDING, nucleus, plain, PADDING]))?;
    pool.replay(&graph)?;
    pool.fetch(&mut out)?;
    println!("tokens {:?}, then {:?}", out.tokens(), pool.sequence(nucleus)?.history().output());
    Ok(())
}
