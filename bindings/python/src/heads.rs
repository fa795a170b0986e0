//! LM heads over the weights of other libraries, exact or certified.
//!
//! Weights are borrowed where their rows follow each other in the host's memory, and copied where not. What keeps borrowed weights
//! alive is held: of a tensor of torch a second one with the same memory, so that another tensor's data in the first one's place do no harm.
//! A write to borrowed weights cannot be prevented; torch counts its own, and a count that has grown is an error.

use std::path::PathBuf;

use gumball_engine::head::{
    Artefact, ArtefactError, Certified, Exact, HeadOptions, HiddenStates, Scaling, Weights,
};
use gumball_engine::{Error, Head as EngineHead, Result, Row, certify};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::arrays::{self, Array, Matrix};
use crate::errors::{out_of_range, to_py_err};
use crate::hooks::caught;
use crate::lists::{extract_int, iterated, number, numbers};
use crate::modules;

/// What a panic leaves behind, for the message.
const UNMADE: &str = "no head was made";
const UNTOUCHED: &str = "nothing was computed";

/// An LM head: what makes logits of hidden states, by weights that it borrows where it can.
///
/// ::
///
///     head = Head(model.lm_head.weight, kind="certified")
///     out = pool.step_hidden(head, hidden, slots)
///
/// Every logit is a sum in float32 in one order, the same bits on every machine and in every batch. "exact" computes all of
/// them; "certified" has a copy of the weights in 8 bits, made here, and computes those that could decide a row: the same
/// tokens and logprobs, bit for bit, from about half of the bytes of bfloat16 weights. Pools take either; several may share one.
///
/// weights: [vocab, width] of float32, bfloat16 or float16 on the CPU, such as the weight of torch.nn.Linear, or an embedding that
/// is tied to it. Borrowed if each row follows the one before it; else copied. The head keeps borrowed memory alive, and nobody may write it
/// meanwhile: a certified head's copy would be of other weights. kind: "exact" or "certified". bias: [vocab] numbers. logit_scale,
/// softcap: what follows the product (0: no cap). level: the SIMD level; None: the machine's best. most_rows: for "certified" alone, how many rows of a
/// call are screened at most; in a call that has more, all rows take the exact product, which is faster then.
///
/// file: for "certified" alone, the path of a file that save, or the command `gumball head build`, wrote of these weights and this bias: it is mapped instead
/// of making the copy, and nobody may write it as long as the head lives.
///
/// Raises ValueError or TypeError for another shape, type or device, for a number outside its range, and for a file that is damaged, of
/// another version or of other weights; OSError for one that cannot be read.
#[pyclass(frozen, weakref, module = "gumball")]
#[derive(Debug)]
pub struct Head {
    head: Kind,
    dtype: &'static str,
    /// The owner of borrowed weights; `None` if they were copied.
    borrowed: Option<Borrowed>,
}

#[derive(Debug)]
enum Kind {
    Exact(Exact<'static>),
    Certified(Certified<'static>),
}

#[derive(Debug)]
struct Borrowed {
    owner: Py<PyAny>,
    _loan: Option<Py<PyAny>>,
    version: Option<i64>,
}

impl Borrowed {
    /// Holds what keeps an array's memory alive.
    fn of(object: &Bound<'_, PyAny>, array: Array<'_>) -> PyResult<Self> {
        let owner = match modules::torch_of(object)? {
            Some(_) => object.call_method0(intern!(object.py(), "detach"))?,
            None => object.clone(),
        };
        let version = version(&owner);
        Ok(Self { owner: owner.unbind(), _loan: array.into_loan(), version })
    }
}

/// Returns how many writes torch has counted to the memory of a tensor; `None` for other arrays, and for tensors without a count.
fn version(object: &Bound<'_, PyAny>) -> Option<i64> {
    object.getattr(intern!(object.py(), "_version")).ok()?.extract().ok()
}

/// Copies rows that do not follow each other.
fn packed(matrix: &Matrix) -> Weights<'static> {
    fn rows<T: Copy>(all: &[T], matrix: &Matrix) -> Vec<T> {
        (0..matrix.rows).flat_map(|row| &all[row * matrix.stride..][..matrix.width]).copied().collect()
    }
    // SAFETY: the elements lie on the host, as the caller checked, and the caller holds the array; Python's callers do not write it
    // during the call.
    match unsafe { matrix.floats() } {
        Row::F32(all) => rows(all, matrix).into(),
        Row::Bf16(all) => rows(all, matrix).into(),
        Row::F16(all) => rows(all, matrix).into(),
    }
}

impl Head {
    /// Returns the head as the engine takes it, unless its weights were written since it was made.
    pub fn get(&self, py: Python<'_>) -> PyResult<EngineHead<'_>> {
        if let Some(Borrowed { owner, version: Some(made), .. }) = &self.borrowed
            && version(owner.bind(py)).is_some_and(|now| now != *made)
        {
            return Err(PyRuntimeError::new_err(
                "the weights of the head were written since it was made; make a new one",
            ));
        }
        Ok(match &self.head {
            Kind::Exact(exact) => exact.into(),
            Kind::Certified(certified) => certified.into(),
        })
    }

    fn exact(&self) -> &Exact<'static> {
        match &self.head {
            Kind::Exact(exact) => exact,
            Kind::Certified(certified) => certified.exact(),
        }
    }
}

fn read_bias(object: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        return iterated(object, "bias", "a list or an array of numbers", |item| number(&item, "bias"));
    }
    let array = arrays::read(object, "bias", None)?;
    numbers(&array, object.py(), "bias")
}

/// Hidden states of an array, which must be kept alive.
pub struct Hidden<'py> {
    pub matrix: Matrix,
    _array: Array<'py>,
}

impl<'py> Hidden<'py> {
    /// Reads hidden states on the host.
    pub fn read(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let array = arrays::read(object, "hidden", None)?;
        let matrix = array.matrix("hidden")?;
        matrix.check_host("hidden")?;
        matrix.check_float_of("hidden")?;
        Ok(Self { matrix, _array: array })
    }

    /// Returns them as the engine takes them.
    pub fn states(&self) -> PyResult<HiddenStates<'_>> {
        let Matrix { rows, width, stride, .. } = self.matrix;
        // SAFETY: the elements lie on the host, and `_array` keeps them alive; Python's callers do not write them during the call.
        let data = unsafe { self.matrix.floats() };
        HiddenStates::strided(data, rows, width, stride).map_err(to_py_err)
    }
}

#[pymethods]
impl Head {
    #[new]
    #[pyo3(
        signature = (
            weights, *, kind="exact", bias=None, logit_scale=None, softcap=None, level=None, most_rows=None, file=None,
        ),
        text_signature = "(weights, *, kind='exact', bias=None, logit_scale=1.0, softcap=0.0, level=None, most_rows=8, \
                          file=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        kind: &str,
        bias: Option<&Bound<'_, PyAny>>,
        logit_scale: Option<&Bound<'_, PyAny>>,
        softcap: Option<&Bound<'_, PyAny>>,
        level: Option<&str>,
        most_rows: Option<&Bound<'_, PyAny>>,
        file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let is_certified = match kind {
            "exact" => false,
            "certified" => true,
            _ => return Err(out_of_range("kind", format!("{kind:?}"), "\"exact\" or \"certified\"")),
        };
        let of_certified = [("most_rows", most_rows.is_some()), ("file", file.is_some())];
        if let Some((name, _)) = of_certified.iter().find(|(_, is_set)| *is_set && !is_certified) {
            let text = format!("{name} is for kind=\"certified\", but kind is \"exact\"");
            return Err(PyValueError::new_err(text));
        }
        let most_rows = most_rows.map(|rows| extract_int::<usize>(rows, "most_rows")).transpose()?;
        let scaling = Scaling::default();
        let scaling = Scaling {
            logit_scale: logit_scale.map_or(Ok(scaling.logit_scale), |it| number(it, "logit_scale"))?,
            softcap: softcap.map_or(Ok(scaling.softcap), |it| number(it, "softcap"))?,
        };
        let bias = bias.map(read_bias).transpose()?.map(Into::into);
        let level = level.map(|level| level.parse().map_err(to_py_err)).transpose()?;

        let array = arrays::read(weights, "weights", None)?;
        let matrix = array.matrix("weights")?;
        matrix.check_host("weights")?;
        matrix.check_float_of("weights")?;
        let Matrix { rows, width, stride, dtype, .. } = matrix;
        let (borrowed, all) = if rows > 1 && stride != width {
            (None, packed(&matrix))
        } else {
            // SAFETY: the elements lie on the host. `borrowed` keeps them alive as long as the head; the class' documentation
            // forbids writing them.
            let all = match unsafe { matrix.floats() } {
                Row::F32(all) => Weights::from(all),
                Row::Bf16(all) => all.into(),
                Row::F16(all) => all.into(),
            };
            (Some(Borrowed::of(weights, array)?), all)
        };
        let made = py.detach(|| {
            caught(UNMADE, || -> std::result::Result<Kind, Unmade> {
                let exact = Exact::new(all, rows, width, HeadOptions { bias, scaling, level })?;
                if !is_certified {
                    return Ok(Kind::Exact(exact));
                }
                let certified = match &file {
                    Some(file) => Artefact::open(file).and_then(|artefact| artefact.certified(exact))?,
                    None => certify(exact),
                };
                let most_rows = most_rows.unwrap_or(certified.most_rows());
                Ok(Kind::Certified(certified.with_most_rows(most_rows)))
            })
        })?;
        let names = |error: Error| {
            error.with_parameter(|name| match name {
                "vocab" => "weights.shape[0]",
                "hidden.width" => "weights.shape[1]",
                name => name,
            })
        };
        let head = made.map_err(|error| match error {
            Unmade::Head(error) => to_py_err(names(error)),
            Unmade::File(error) => of_file("file", error),
        })?;
        Ok(Self { head, dtype: dtype.name(), borrowed })
    }

    /// The number of ids.
    #[getter]
    fn vocab(&self) -> usize {
        self.exact().vocab()
    }

    /// The number of elements of a hidden state.
    #[getter]
    fn width(&self) -> usize {
        self.exact().width()
    }

    /// "exact" or "certified".
    #[getter]
    fn kind(&self) -> &'static str {
        match self.head {
            Kind::Exact(_) => "exact",
            Kind::Certified(_) => "certified",
        }
    }

    /// The type of the weights: "float32", "bfloat16" or "float16".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype
    }

    /// The SIMD level in use.
    #[getter]
    fn level(&self) -> &'static str {
        self.exact().level().name()
    }

    /// Whether the weights are another library's memory; False if they were copied.
    #[getter]
    fn is_borrowed(&self) -> bool {
        self.borrowed.is_some()
    }

    /// How many rows of a call are screened at most; 0 for "exact".
    #[getter]
    fn most_rows(&self) -> usize {
        match &self.head {
            Kind::Exact(_) => 0,
            Kind::Certified(certified) => certified.most_rows(),
        }
    }

    /// How many bytes a call that screens rows reads before it reads weights; 0 for "exact".
    #[getter]
    fn screen_bytes(&self) -> usize {
        match &self.head {
            Kind::Exact(_) => 0,
            Kind::Certified(certified) => certified.screen_bytes(),
        }
    }

    /// The ids whose logits a certified head always computes, since a weight or the bias is not finite or very large: int64, ascending.
    #[getter]
    fn unscreened<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        modules::load_numpy(py)?;
        let ids: Vec<i64> = match &self.head {
            Kind::Exact(_) => Vec::new(),
            Kind::Certified(certified) => certified.unscreened().iter().map(|id| i64::from(*id)).collect(),
        };
        Ok(PyArray1::from_vec(py, ids))
    }

    /// Returns all logits of hidden states, [rows, vocab] float32, whichever kind the head is: the bits do not depend on the batch.
    ///
    /// hidden: [rows, width], or [width] for one row; float32, bfloat16 or float16 on the CPU; rows may be strided.
    ///
    /// Raises ValueError or TypeError for another shape, type or device.
    fn logits<'py>(&self, py: Python<'py>, hidden: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        modules::load_numpy(py)?;
        let (hidden, head) = (Hidden::read(hidden)?, self.get(py)?);
        let (states, vocab) = (hidden.states()?, self.vocab());
        let logits = py.detach(|| {
            caught(UNTOUCHED, || {
                let mut out = memory(states.rows(), vocab)?;
                head.logits(states, &mut out)?;
                Ok(out)
            })
        })?;
        let logits = PyArray1::from_vec(py, logits.map_err(to_py_err)?);
        Ok(logits.reshape([states.rows(), vocab])?.into_any())
    }

    /// Writes what a certified head has derived from its weights to a file, for Head(weights, kind="certified", file=path): its copy of them,
    /// with a checksum and the digest of the weights, which are not in it. The file appears when it is whole.
    ///
    /// path: where. name: what the tensor of weights is called; the file says it of itself.
    ///
    /// Raises ValueError for an exact head, OSError for a file that cannot be written.
    #[pyo3(signature = (path, *, name="lm_head.weight"))]
    fn save(&self, py: Python<'_>, path: PathBuf, name: &str) -> PyResult<()> {
        self.get(py)?;
        let Kind::Certified(certified) = &self.head else {
            return Err(PyValueError::new_err(
                "an exact head derives nothing from its weights; there is nothing to save",
            ));
        };
        let written = py.detach(|| caught(UNTOUCHED, || Artefact::write(certified, name, &path)))?;
        written.map_err(|error| of_file("path", error))
    }

    /// Puts a head in the place of a transformers model's output layer; see gumball.transformers.replace_head, whose
    /// result it returns.
    #[staticmethod]
    #[pyo3(signature = (model, **arguments))]
    fn replace<'py>(
        model: &Bound<'py, PyAny>,
        arguments: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = model.py();
        py.import("gumball.transformers")?.getattr("replace_head")?.call((model,), arguments)
    }

    fn __repr__(&self) -> String {
        let memory = if self.is_borrowed() { "borrowed" } else { "copied" };
        format!("Head([{}, {}] {} {memory}, kind={:?})", self.vocab(), self.width(), self.dtype, self.kind())
    }
}

/// Why a head was not made.
enum Unmade {
    Head(Error),
    File(ArtefactError),
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Self {
        Unmade::Head(error)
    }
}

impl From<ArtefactError> for Unmade {
    fn from(error: ArtefactError) -> Self {
        Unmade::File(error)
    }
}

/// Returns the exception for what is wrong with a file.
fn of_file(parameter: &str, error: ArtefactError) -> PyErr {
    match error {
        ArtefactError::Io { source, path } => {
            let kind = source.kind();
            PyErr::from(std::io::Error::new(kind, format!("{}: {source}", path.display())))
        }
        error => PyValueError::new_err(format!("{parameter} cannot be used: {error}")),
    }
}

/// Reserves memory for logits.
fn memory(rows: usize, vocab: usize) -> Result<Vec<f32>> {
    let count = rows.saturating_mul(vocab);
    let mut out = Vec::new();
    out.try_reserve_exact(count)
        .map_err(|error| Error::Unavailable { resource: "memory for logits", reason: error.to_string() })?;
    out.resize(count, 0.0);
    Ok(out)
}
