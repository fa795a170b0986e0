//! Kept sets, packed where they lie.

use pyo3::prelude::*;

use super::input::{Input, words_out};
use super::run::run;
use crate::arrays;

/// Returns kept sets, given as bitmasks [rows, words] of 32 bits, packed in a new array [rows, 1 + words] of
/// int32, whose elements are one row after the other: how many ids each row has comes first, then the ids of
/// each row, ascending, without gaps; of a row with more ids than words its words. What is behind is not
/// written.
///
/// On a GPU, where words are a multiple of 4, it launches kernels on torch's current stream and waits for
/// nothing.
#[pyfunction]
pub fn pack_kept<'py>(sets: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let array = arrays::read(sets, "sets", None)?;
    let mut input = Input::of_any(sets, "sets", array, None)?;
    let (from, on_device) = (input.matrix, input.is_on_device());
    from.check_words("sets")?;
    let packed = input.empty(&[from.rows, 1 + from.width], "int32")?;
    let to = input.written(&packed, "packed")?;
    run(&input, |operators| {
        let sets = match on_device {
            // SAFETY: `input` keeps the words alive during the call, and their owners reuse memory in stream
            // order. The package's documentation forbids writes to them until the work is done.
            true => unsafe { from.device_masks() }?.into(),
            // SAFETY: as above, in the memory of the host.
            false => unsafe { from.masks(&[]) }?,
        };
        // SAFETY: the array was allocated above, without gaps, and no other code has it yet.
        let to = unsafe { words_out::<u32>(Some(&to), on_device) }?.expect("it was given");
        operators.pack_kept(sets, to)
    })?;
    Ok(packed)
}
