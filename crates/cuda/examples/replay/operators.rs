//! Rows masked, over batches. Parameters are columns, one value a row, as servers hold them.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{Buffer, Gpu, IntType, Integers, Machine, Operators, RowParams, Rows, RowsMut};
use gumball_spec::SamplingParams;

use crate::calls::Calls;

pub const NAMES: [&str; 1] = ["top-k-mask"];

/// Returns an operator over batches of logits.
pub fn calls<'b>(
    gpu: &'b Arc<Gpu>,
    name: &'static str,
    batches: &'b [Rows<'b>],
) -> Result<Calls<'b>, Box<dyn Error>> {
    let machine = Arc::clone(gpu) as Arc<dyn Machine>;
    let (rows, vocab, dtype) = (batches[0].rows(), batches[0].vocab(), batches[0].dtype());
    let out_bytes = rows * vocab * dtype.bytes();
    let mut out = Buffer::zeroed(&machine, out_bytes * batches.len())?;
    let top_k = Buffer::of(&machine, &vec![50i32; rows])?;
    let (common, mut operators) = (SamplingParams::default(), Operators::new(machine)?);
    let call = move |batch: usize| {
        let top_k = Some(Integers::of(&top_k, IntType::I32));
        let out = RowsMut::of(&mut out, dtype, batch * rows * vocab, rows, vocab, vocab)?;
        operators.mask(&batches[batch], &RowParams { top_k, ..RowParams::new(&common) }, &out, None)
    };
    let (count, bytes) = (batches.len(), 2 * out_bytes);
    Ok(Calls { gpu, name, rows: batches[0], count, bytes, call: Box::new(call) })
}
