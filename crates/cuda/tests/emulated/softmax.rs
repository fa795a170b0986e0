//! The errors of the softmax, after which nothing has changed. `conformance` tests its results.

use std::sync::Arc;

use gumball_cuda::{
    Buffer, ColumnType, DeviceSlice, Dtype, IntType, PerRow, Rows, RowsOut, Runtime, Softmax,
};
use gumball_spec::Error;

use crate::runtime;

const ROWS: usize = 3;
const VOCAB: usize = 300;

/// Returns the error of a softmax of `ROWS` rows; panics unless there is one and nothing was written.
fn refused(
    runtime: &Arc<dyn Runtime>,
    out: (Dtype, usize, usize),
    temperature: Result<f32, usize>,
    statuses: usize,
) -> String {
    let softmax = Softmax::new(Arc::clone(runtime)).expect("memory");
    let logits = Buffer::zeroed(runtime, ROWS * VOCAB * 2).expect("memory");
    let mut probabilities = Buffer::of(runtime, &vec![7u32; 2 * ROWS * VOCAB]).expect("memory");
    let temperatures = Buffer::zeroed(runtime, temperature.err().unwrap_or(1) * 4).expect("memory");
    let seen = Buffer::of(runtime, &vec![7u32; statuses]).expect("memory");
    let rows = Rows::of(&logits, Dtype::Bf16, 0, ROWS, VOCAB, VOCAB).expect("rows");
    let (dtype, count, vocab) = out;
    let to = RowsOut::of(&mut probabilities, dtype, 0, count, vocab, vocab).expect("rows");
    let temperature =
        temperature.map_or(PerRow::Rows(DeviceSlice::of(&temperatures, ColumnType::F32)), PerRow::All);
    let result = softmax.enqueue(Some(&rows), &to, temperature, Some(&DeviceSlice::of(&seen, IntType::U32)));
    let mut after = vec![0u32; 2 * ROWS * VOCAB];
    probabilities.read(0, &mut after).expect("memory");
    let changed = after.iter().any(|word| *word != 7);
    match result {
        Err(error @ (Error::OutOfRange { .. } | Error::Length { .. })) if !changed => error.to_string(),
        other => panic!("{other:?}, {changed}"),
    }
}

#[test]
fn mistakes_are_named_and_nothing_is_changed() {
    let Some(runtime) = runtime() else { return };
    let right = (Dtype::F32, ROWS, VOCAB);
    for (out, temperature, statuses, says) in [
        (right, Ok(f32::NAN), ROWS, "temperature is NaN, but must be in 0..=2^100"),
        (right, Ok(-1.0), ROWS, "temperature is -1, but must be in 0..=2^100"),
        (right, Ok(2e30), ROWS, "temperature is"),
        (right, Err(ROWS + 1), ROWS, "temperatures has length 4, but must have one for each of 3 rows"),
        (right, Ok(1.0), ROWS - 1, "statuses has length 2, but must have one for each of 3 rows"),
        ((Dtype::F16, ROWS, VOCAB), Ok(1.0), ROWS, "out.dtype is f16, but must be f32 or bf16, as the input"),
        (
            (Dtype::F32, ROWS + 1, VOCAB),
            Ok(1.0),
            ROWS,
            "out has length 4, but must have one for each of 3 rows",
        ),
        ((Dtype::F32, ROWS, VOCAB + 1), Ok(1.0), ROWS, "out.vocab is 301, but must be 300, as the input"),
    ] {
        let text = refused(&runtime, out, temperature, statuses);
        assert!(text.starts_with(says), "{text}");
    }
}
