//! The softmax of batches.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{Buffer, ColumnType, DeviceSlice, Dtype, Gpu, PerRow, Rows, RowsOut, Runtime, Softmax};

use crate::time_operators::Calls;

/// The operators' names: to f32, to the logits' own type in other memory, in place, and to f32 with other
/// temperatures for neighbouring rows.
pub const NAMES: [&str; 4] = ["softmax", "softmax-narrow", "softmax-in-place", "softmax-mixed"];
/// The temperatures that the rows of `softmax-mixed` take in turn.
const MIXED: [f32; 6] = [0.3, 0.7, 0.8, 1.0, 1.3, 2.0];

/// Returns the calls of a softmax over batches, each to its own output, or in place in that output.
pub fn calls<'b>(
    gpu: &'b Arc<Gpu>,
    name: &'static str,
    batches: &'b [Rows<'b>],
) -> Result<Calls<'b>, Box<dyn Error>> {
    let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
    let mixed = name == NAMES[3];
    let dtype = if name == NAMES[0] || mixed { Dtype::F32 } else { batches[0].dtype() };
    let (rows, vocab) = (batches[0].rows(), batches[0].vocab());
    let mut out = Buffer::zeroed(&runtime, batches.len() * rows * vocab * dtype.bytes())?;
    // One temperature per row, as servers hold them.
    let temperatures: &[f32] = if mixed { &MIXED } else { &[0.8] };
    let temperatures: Vec<f32> = temperatures.iter().copied().cycle().take(rows).collect();
    let temperatures = Buffer::of(&runtime, &temperatures)?;
    let softmax = Softmax::new(runtime)?;
    let mut call = move |batch: usize, in_place: bool| {
        let out = RowsOut::of(&mut out, dtype, batch * rows * vocab, rows, vocab, vocab)?;
        let temperature = PerRow::Rows(DeviceSlice::of(&temperatures, ColumnType::F32));
        if in_place {
            return softmax.enqueue(None, &out, temperature, None);
        }
        softmax.enqueue(Some(&batches[batch]), &out, temperature, None)
    };
    let in_place = name == NAMES[2];
    if in_place {
        // Fills the memory of the in-place calls. Any numbers do, because none changes the time.
        (0..batches.len()).try_for_each(|batch| call(batch, false))?;
    }
    let bytes = rows * vocab * (batches[0].dtype().bytes() + dtype.bytes());
    Ok(Calls {
        gpu,
        name,
        rows: batches[0],
        count: batches.len(),
        bytes,
        call: Box::new(move |batch| call(batch, in_place)),
    })
}

/// Returns `count` batches of probabilities, one after the other, in the type of the logits. After the last
/// batch of logits, it begins again with the first.
pub fn probabilities(gpu: &Arc<Gpu>, batches: &[Rows<'_>], count: usize) -> Result<Buffer, Box<dyn Error>> {
    let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
    let (rows, vocab, dtype) = (batches[0].rows(), batches[0].vocab(), batches[0].dtype());
    let mut out = Buffer::zeroed(&runtime, count * rows * vocab * dtype.bytes())?;
    let softmax = Softmax::new(runtime)?;
    for (place, batch) in (0..count).zip(batches.iter().cycle()) {
        let out = RowsOut::of(&mut out, dtype, place * rows * vocab, rows, vocab, vocab)?;
        softmax.enqueue(Some(batch), &out, PerRow::All(0.8), None)?;
    }
    gpu.synchronize()?;
    Ok(out)
}
