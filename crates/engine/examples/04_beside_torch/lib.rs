//! A pool on a host program's stream and in its memory: a library with C functions for the script beside it,
//! which drives them from Python with torch. Each function returns a number below 0 where it fails, and
//! prints why.
//!
//! The same requests are in a pool on the host, so that the script can compare.

use gumball_engine::unstable::Recorded;
use gumball_engine::{
    Batch, Device, DeviceMatrix, Dtype, Outputs, Place, Pool, PoolConfig, Result, Rows, SamplingParams, Work,
};

/// The two pools that the host program compares, and their outputs.
#[derive(Debug)]
pub struct Host {
    device: Pool,
    host: Pool,
    out: Outputs,
    vocab: usize,
    /// The work that the script has recorded in a graph of torch's.
    recorded: Option<Recorded>,
}

fn or_failed(result: Result<i64>) -> i64 {
    result.unwrap_or_else(|error| {
        eprintln!("{error}");
        -1
    })
}

fn open(stream: usize, vocab: usize, rows: usize) -> Result<Host> {
    let device = Device::cuda(0)?;
    let gpu = device.gpu().expect("a CUDA device is a GPU");
    // SAFETY: the script hands in a stream of torch, which lives in the primary context until the process
    // ends.
    unsafe { gpu.use_stream(stream) }?;
    let config = PoolConfig { slots: rows, ..PoolConfig::new(vocab) };
    Ok(Host {
        host: Pool::new(config.clone())?,
        device: Pool::new(PoolConfig { place: Place::device(device, rows), ..config })?,
        out: Outputs::new(),
        vocab,
        recorded: None,
    })
}

/// Opens device 0 on a stream of the program (a `cudaStream_t`); null if that fails.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_open(stream: usize, vocab: usize, rows: usize) -> Option<Box<Host>> {
    open(stream, vocab, rows).map(Box::new).inspect_err(|error| eprintln!("{error}")).ok()
}

/// Admits a request to both pools and returns its slot.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_admit(
    host: &mut Host,
    seed: u64,
    temperature: f32,
    top_k: i64,
    top_p: f32,
    min_p: f32,
) -> i64 {
    let params = SamplingParams { seed: Some(seed), temperature, top_k, top_p, min_p, ..Default::default() };
    or_failed(host.device.admit(params.clone(), &[]).and_then(|slot| {
        assert_eq!(host.host.admit(params, &[])?, slot, "both pools fill their slots in the same order");
        Ok(i64::from(slot))
    }))
}

/// Says that row i of the next steps is of slot i.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_assign(host: &mut Host, rows: usize) -> i64 {
    let slots: Vec<i32> = (0..rows as i32).collect();
    or_failed(host.device.assign(&Batch::of(&slots)).map(|()| 0))
}

/// Enqueues a step over rows of torch's, on the stream that its caller opened: launches and nothing else, so
/// torch may be capturing a graph there, which then holds only the kernels that the assigned rows need.
/// `dtype`: 0 for f32, 1 for bf16, 2 for f16; `stride` in elements.
///
/// # Safety
/// The rows are memory of the device until the step is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_enqueue(
    host: &mut Host,
    logits: u64,
    dtype: u32,
    rows: usize,
    stride: usize,
) -> i64 {
    let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][dtype as usize];
    // SAFETY: as the caller vouches.
    let rows = unsafe { DeviceMatrix::new(logits, dtype, rows, host.vocab, stride) };
    or_failed(rows.and_then(|rows| {
        let mut device = host.device.on_device()?;
        let variant = device.needed_variant();
        host.recorded = Some(device.record(&[Work::step(rows)], variant)?);
        Ok(0)
    }))
}

/// Prepares the pool for a replay of the graph of torch's that holds the last step.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_before_replay(host: &mut Host) -> i64 {
    let Host { device, recorded, .. } = host;
    let recorded = recorded.as_ref().expect("the script captures first");
    or_failed(device.on_device().and_then(|mut device| device.before_replay(&[recorded]).map(|()| 0)))
}

/// Returns where the tokens of the last step lie on the device, an i32 a row; the address stays.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_tokens(host: &mut Host) -> u64 {
    host.device.on_device().expect("it is on a device").outputs().address
}

/// Takes the same step in the pool on the host, over a copy of the logits as f32, and writes its tokens.
///
/// # Safety
/// `logits` points to `rows` rows without gaps, `tokens` to as many words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_host_step(
    host: &mut Host,
    logits: *const f32,
    rows: usize,
    tokens: *mut i32,
) -> i64 {
    // SAFETY: as the caller vouches.
    let logits = unsafe { std::slice::from_raw_parts(logits, rows * host.vocab) };
    // SAFETY: the same.
    let tokens = unsafe { std::slice::from_raw_parts_mut(tokens, rows) };
    let slots: Vec<i32> = (0..rows as i32).collect();
    let logits = Rows::logits(logits, rows, host.vocab);
    let stepped = logits.and_then(|logits| {
        host.host.step(logits, &Batch::of(&slots), &mut host.out)?;
        tokens.copy_from_slice(host.out.tokens());
        Ok(0)
    });
    or_failed(stepped)
}
