//! Logprobs of given ids over given sets, with entropies and the gradient: the functions under
//! `gumball.torch.logprobs`.

use gumball_engine::{GivenLogprobs, GivenTokens, Kind, LossDerivatives, Masks, PerRow, WEIGHED_NUMBERS};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::columns::Value;
use super::input::{Input, rows_in, rows_in_out, words_out};
use super::run::run;
use crate::arguments::argument;
use crate::arrays::Matrix;
use crate::lists;

/// The tokens of a call, read.
struct Given {
    ids: Value<i32>,
    width: usize,
    ignored: i32,
    temperature: Value<f32>,
    kept: Option<Matrix>,
}

impl Given {
    fn read<'py>(
        input: &mut Input<'_, 'py>,
        ids: &Bound<'py, PyAny>,
        temperature: &Bound<'py, PyAny>,
        kept: Option<&Bound<'py, PyAny>>,
        ignored: &Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        let (_, width): (usize, usize) = ids.getattr("shape")?.extract()?;
        let shape = [input.matrix.rows, width];
        let kept = kept.map(|kept| {
            let array = input.beside(kept, "kept")?;
            let matrix = array.matrix("kept")?;
            matrix.check_words("kept")?;
            input.hold(kept, array);
            Ok::<_, PyErr>(matrix)
        });
        Ok(Self {
            kept: kept.transpose()?,
            ids: Value::flat(input, ids, "ids", shape)?,
            temperature: Value::read(input, temperature, "temperature")?,
            width,
            ignored: lists::extract_int(ignored, "ignore_index")?,
        })
    }

    /// Returns the tokens as the engine takes them.
    ///
    /// # Safety
    /// The words of `kept` lie on a device if `on_device`, otherwise on the host. For the result's life, on a
    /// device until the enqueued work is done, no code frees or writes them.
    unsafe fn tokens(&self, on_device: bool) -> gumball_engine::Result<GivenTokens<'_>> {
        let kept = match &self.kept {
            None => Masks::None,
            // SAFETY: the caller ensures that the words lie on the device, unchanged until the work is done.
            Some(kept) if on_device => unsafe { kept.device_masks() }?.into(),
            // SAFETY: the caller ensures that the words lie on the host, unchanged.
            Some(kept) => unsafe { kept.masks(&[]) }?,
        };
        let Self { ids, width, ignored, temperature, .. } = self;
        let (ids, temperature) = (ids.per_row(), temperature.per_row());
        Ok(GivenTokens { ids, width: *width, ignored: *ignored, temperature, kept })
    }
}

/// Returns (logprobs [rows, K], entropies [rows] or None, weighed [rows, 3]) of ids [rows, K], all float32;
/// see `gumball.torch.logprobs`. kept: a bitmask [rows, words]. weighed: an argument of logprobs_gradient.
#[pyfunction]
#[pyo3(signature = (logits, ids, temperature, kept, ignored, entropy))]
pub fn logprobs_of<'py>(
    logits: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    temperature: &Bound<'py, PyAny>,
    kept: Option<&Bound<'py, PyAny>>,
    ignored: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = argument)] entropy: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut input = Input::read(logits, "logits", None)?;
    let given = Given::read(&mut input, ids, temperature, kept, ignored)?;
    let (from, on_device, rows) = (input.matrix, input.is_on_device(), input.matrix.rows);
    let mut column = |shape: &[usize]| {
        let object = input.empty(shape, "float32")?;
        let matrix = input.written(&object, "out")?;
        Ok::<_, PyErr>((object, matrix))
    };
    let (logprobs, to_logprobs) = column(&[rows, given.width])?;
    let (weighed, to_weighed) = column(&[rows, WEIGHED_NUMBERS])?;
    let (entropies, to_entropies) = match entropy {
        true => column(&[rows]).map(|(object, matrix)| (Some(object), Some(matrix)))?,
        false => (None, None),
    };
    run(&input, |operators| {
        // SAFETY: `input` keeps the rows alive during the call; on a device their owners reuse memory in
        // stream order. The package's documentation forbids writes to them until the work is done.
        let rows = unsafe { rows_in(&from, on_device, Kind::Logits) }?;
        // SAFETY: as above, of the set.
        let tokens = unsafe { given.tokens(on_device) }?;
        // SAFETY: `column` allocated adjacent float32, and no other code has them yet.
        let [logprobs, weighed, entropies] = [Some(&to_logprobs), Some(&to_weighed), to_entropies.as_ref()]
            .map(|to| unsafe { words_out::<f32>(to, on_device) });
        let logprobs = logprobs?.expect("it was allocated");
        operators.logprobs(
            rows,
            &tokens,
            GivenLogprobs { logprobs, weighed: weighed?, entropies: entropies? },
        )
    })?;
    let entropies = entropies.unwrap_or_else(|| logits.py().None().into_bound(logits.py()));
    PyTuple::new(logits.py(), [logprobs, entropies, weighed])
}

/// Writes to out, of the shape of logits or logits itself, the derivatives of a loss by logits, from those by
/// the logprobs [rows, K] and by the entropies [rows], or None, that logprobs_of returned beside weighed.
#[pyfunction]
#[pyo3(signature = (logits, ids, temperature, kept, ignored, weighed, of_logprobs, of_entropies, out))]
#[expect(clippy::too_many_arguments, reason = "they are those of Python")]
pub fn logprobs_gradient<'py>(
    logits: &Bound<'py, PyAny>,
    ids: &Bound<'py, PyAny>,
    temperature: &Bound<'py, PyAny>,
    kept: Option<&Bound<'py, PyAny>>,
    ignored: &Bound<'py, PyAny>,
    weighed: &Bound<'py, PyAny>,
    of_logprobs: &Bound<'py, PyAny>,
    of_entropies: Option<&Bound<'py, PyAny>>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let mut input = Input::read(logits, "logits", None)?;
    let given = Given::read(&mut input, ids, temperature, kept, ignored)?;
    let mut numbers = |object: &Bound<'py, PyAny>, name| {
        let flat = object.call_method1("reshape", (-1,))?;
        Value::<f32>::read(&mut input, &flat, name)
    };
    let weighed = numbers(weighed, "weighed")?;
    let of_logprobs = numbers(of_logprobs, "of_logprobs")?;
    let of_entropies = of_entropies.map(|object| numbers(object, "of_entropies")).transpose()?;
    let to = input.rows_out(out)?;
    let (from, on_device) = (input.matrix, input.is_on_device());
    run(&input, |operators| {
        // SAFETY: `input` keeps the arrays alive during the call; on a device their owners reuse memory in
        // stream order. `rows_out` checked that the written rows are writable and the read rows or apart from
        // them.
        let rows = unsafe { rows_in_out(&from, to.as_ref(), on_device, Kind::Logits) }?;
        // SAFETY: as above, of the set.
        let tokens = unsafe { given.tokens(on_device) }?;
        let by = LossDerivatives {
            weighed: weighed.per_row(),
            of_logprobs: of_logprobs.per_row(),
            of_entropies: of_entropies
                .as_ref()
                .map(Value::<f32>::per_row as fn(&Value<f32>) -> PerRow<'_, f32>),
        };
        operators.logprobs_gradient(rows, &tokens, &by)
    })
}
