//! LM heads over the weights of other libraries: auto or clustered.
//!
//! Weights are borrowed or copied (`head_weights`). A clustered head has a copy of the rows, or permutes the
//! caller's where they lie, if the caller says so; where its clusters come from stands in `clusters`.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use gumball_engine::head::{
    Artefact, Auto, Certified, Clustered, ClusteredOptions, Exact, HeadOptions, HostMatrix, Scaling,
};
use gumball_engine::unstable::head::Level;
use gumball_engine::{Error, Head as EngineHead, HeadCounts, Result};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

use crate::arguments::argument;
use crate::arrays::{self, Array, Matrix};
use crate::clusters::{ClusterArguments, Source};
use crate::errors::{CallError, InvalidValueError, of_file, to_py_err};
use crate::head_weights::{Borrowed, borrowed_or_packed, check_movable};
use crate::hooks::caught;
use crate::lists::{extract_int, integers, iterated, number, numbers};
use crate::modules;
use crate::signals::Listener;

/// The state after a panic, for the message.
pub const UNMADE: &str = "no head was made";
const UNTOUCHED: &str = "nothing was computed";

/// How many rows of logits are computed between two looks for signals.
const TOGETHER: usize = 64;

/// An LM head: makes logits of hidden states, by weights that it borrows where it can.
///
/// ::
///
///     head = Head.auto(model.lm_head.weight)
///     out = pool.step(Hidden(head, hidden), slots)
///
/// Every logit is a sum in float32 in one order, the same bits on every machine and in every batch. Head.auto
/// gives the tokens and logprobs that follow from all logits. Where that is faster it computes only the
/// logits that could decide a row, which a screen finds: a copy of the weights in 8 bits. Head.clustered has
/// the ids in clusters, and computes the logits of the clusters whose centroids look likeliest, all others
/// being -inf: an approximation. Pools take each kind; several may share one.
///
/// weights: [vocab, width] of float32, bfloat16 or float16 on the CPU, such as the weight of torch.nn.Linear,
/// or an embedding that is tied to it. Borrowed if each row follows the one before it; else copied. The head
/// keeps borrowed memory alive, and no code may write it meanwhile: a screen would be of other weights. A
/// clustered head always copies, in the order of its clusters, unless in_place says otherwise. bias: [vocab]
/// numbers. logit_scale, softcap: what follows the product (0: no cap). level: the SIMD level; None: the
/// machine's best.
///
/// Raises ValueError or TypeError for another shape, type or device, and for a number outside its range.
#[pyclass(frozen, weakref, module = "gumball")]
#[derive(Debug)]
pub struct Head {
    head: Kind,
    /// The type of the weights: "float32", "bfloat16" or "float16".
    #[pyo3(get)]
    pub dtype: &'static str,
    /// The owner of borrowed weights; `None` if they were copied.
    borrowed: Option<Borrowed>,
}

#[derive(Debug)]
enum Kind {
    Auto(Auto<'static>),
    /// Locked by calls as long as they use it, and to set how many clusters are probed.
    Clustered(Box<RwLock<Clustered<'static>>>),
}

/// A head that a call uses; how many clusters it probes cannot change meanwhile.
pub enum InUse<'a> {
    Auto(&'a Auto<'static>),
    Clustered(RwLockReadGuard<'a, Clustered<'static>>),
}

impl InUse<'_> {
    /// Returns the head as the engine takes it.
    pub fn head(&self) -> EngineHead<'_> {
        match self {
            InUse::Auto(auto) => (*auto).into(),
            InUse::Clustered(clustered) => (&**clustered).into(),
        }
    }

    fn level(&self) -> Level {
        match self {
            InUse::Auto(auto) => auto.exact().level(),
            InUse::Clustered(clustered) => clustered.level(),
        }
    }
}

/// Makes a clustered head: of a copy of the rows, or of the rows themselves, which are permuted then.
fn clustered(
    py: Python<'_>,
    matrix: &Matrix,
    head: HeadOptions<'static>,
    source: Source<'_>,
    options: &ClusteredOptions,
    in_place: bool,
) -> PyResult<Clustered<'static>> {
    let Matrix { rows, width, .. } = *matrix;
    let (_, all) = borrowed_or_packed(matrix);
    let exact = Exact::new(all, rows, width, head.clone()).map_err(own_names).map_err(to_py_err)?;
    let clusters = source.clusters(py, &exact, options)?;
    clusters.check_shape(rows, width).map_err(own_names).map_err(to_py_err)?;
    if !in_place {
        let made = py.detach(|| caught(UNMADE, || Clustered::new(&exact, clusters, options)))?;
        return made.map_err(own_names).map_err(to_py_err);
    }
    // No code reads the rows any more.
    drop(exact);
    // SAFETY: the elements lie on the host, and the caller keeps them alive as long as the head; the class'
    // documentation leaves it to Python's callers that no code else uses them meanwhile.
    let all = unsafe { matrix.weights_mut() };
    let made = py.detach(|| caught(UNMADE, || Clustered::in_place(all, head, clusters, options)))?;
    made.map_err(own_names).map_err(to_py_err)
}

/// Replaces the names of Rust's arguments in an error by the names of Python's.
pub fn own_names(error: Error) -> Error {
    error.with_parameter(|name| match name {
        "vocab" => "weights.shape[0]",
        "hidden.width" => "weights.shape[1]",
        name => name,
    })
}

/// Returns how many rows heads have computed, and how many logits of rows that were computed in part, by
/// name.
pub fn named_counts<'py>(py: Python<'py>, counts: &HeadCounts) -> PyResult<Bound<'py, PyDict>> {
    [
        ("whole_rows", counts.whole_rows),
        ("certified_rows", counts.certified_rows),
        ("certified_logits", counts.certified_logits),
        ("clustered_rows", counts.clustered_rows),
        ("clustered_logits", counts.clustered_logits),
    ]
    .into_py_dict(py)
}

/// Returns ids, or places, as an array.
fn ids_of<'py>(py: Python<'py>, ids: &[u32]) -> PyResult<Bound<'py, PyArray1<i64>>> {
    modules::load_numpy(py)?;
    Ok(PyArray1::from_vec(py, ids.iter().map(|id| i64::from(*id)).collect()))
}

impl Head {
    /// Returns the head for a call, unless its weights were written since it was made.
    pub fn get(&self, py: Python<'_>) -> PyResult<InUse<'_>> {
        self.borrowed.as_ref().map_or(Ok(()), |borrowed| borrowed.check(py))?;
        Ok(self.in_use())
    }

    fn in_use(&self) -> InUse<'_> {
        match &self.head {
            Kind::Auto(auto) => InUse::Auto(auto),
            // No call waits to write it, so a hook of a call may read it again.
            Kind::Clustered(clustered) => {
                InUse::Clustered(clustered.read().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Returns what a head with a screen says, or what stands for it with other heads.
    fn of_screen<R>(&self, otherwise: R, of: impl FnOnce(&Certified<'static>) -> R) -> R {
        match &self.head {
            Kind::Auto(Auto::Certified(certified)) => of(certified),
            _ => otherwise,
        }
    }

    /// Returns what a clustered head says, or what stands for it with other heads.
    fn of_clustered<R>(&self, otherwise: R, of: impl FnOnce(&Clustered<'static>) -> R) -> R {
        match self.in_use() {
            InUse::Clustered(clustered) => of(&clustered),
            _ => otherwise,
        }
    }
}

/// Reads what a head adds to its weights.
pub fn read_head_options(
    bias: Option<&Bound<'_, PyAny>>,
    logit_scale: Option<&Bound<'_, PyAny>>,
    softcap: Option<&Bound<'_, PyAny>>,
    level: Option<&str>,
) -> PyResult<HeadOptions<'static>> {
    let scaling = Scaling::default();
    let scaling = Scaling {
        logit_scale: logit_scale.map_or(Ok(scaling.logit_scale), |it| number(it, "logit_scale"))?,
        softcap: softcap.map_or(Ok(scaling.softcap), |it| number(it, "softcap"))?,
    };
    let bias = bias.map(read_bias).transpose()?.map(Into::into);
    let level = level.map(|level| level.parse().map_err(to_py_err)).transpose()?;
    Ok(HeadOptions { bias, scaling, level })
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
        let (_array, matrix) = arrays::host_floats(object, "hidden")?;
        Ok(Self { matrix, _array })
    }

    /// Returns them as the engine takes them.
    pub fn states(&self) -> PyResult<HostMatrix<'_>> {
        let Matrix { rows, width, stride, .. } = self.matrix;
        // SAFETY: the elements lie on the host, and `_array` keeps them alive; Python's callers do not write
        // them during the call.
        let data = unsafe { self.matrix.floats() };
        let states = HostMatrix::strided(data, rows, width, stride);
        let named = |name| if name == "width" { "hidden.width" } else { name };
        states.map_err(|error| to_py_err(error.with_parameter(named)))
    }
}

/// Makes a read-only attribute of each thing that a head says of itself.
macro_rules! attributes {
    ($($(#[$about:meta])* $name:ident: $of:ty = |$head:ident, $py:ident| $says:expr;)*) => {
        #[pymethods]
        impl Head {
            $($(#[$about])*
            #[getter]
            fn $name<'py>(&self, $py: Python<'py>) -> PyResult<$of> {
                let $head = self;
                $says
            })*
        }
    };
}

attributes! {
    /// The number of ids.
    vocab: usize = |head, _py| Ok(head.in_use().head().vocab());

    /// The number of elements of a hidden state.
    width: usize = |head, _py| Ok(head.in_use().head().width());

    /// The SIMD level in use.
    level: &'static str = |head, _py| Ok(head.in_use().level().name());

    /// Whether the weights are another library's memory; False if they were copied.
    is_borrowed: bool = |head, _py| Ok(head.borrowed.is_some());

    /// Whether logits are left out, so that tokens, kept sets and logprobs may be others, as a clustered
    /// head's.
    is_approximate: bool = |head, _py| Ok(head.in_use().head().is_approximate());

    /// How many bytes a call that screens rows reads before it reads weights; 0 without a screen.
    screen_bytes: usize = |head, _py| Ok(head.of_screen(0, Certified::screen_bytes));

    /// The ids whose logits a head with a screen always computes, since a weight or the bias is not finite or
    /// very large: int64, ascending.
    unscreened: Bound<'py, PyArray1<i64>> = |head, py| head.of_screen(ids_of(py, &[]), |it| ids_of(py, it.unscreened()));

    /// The ids that a clustered head always computes: int64, ascending.
    special_ids: Bound<'py, PyArray1<i64>> = |head, py| head.of_clustered(ids_of(py, &[]), |it| ids_of(py, it.special_ids()));

    /// How many ids a cluster has at most; 0 except for "clustered".
    capacity: usize = |head, _py| Ok(head.of_clustered(0, |it| it.clusters().capacity()));

    /// For each id the row of the permuted weights that is its own: int64, [vocab]; empty except for
    /// "clustered".
    places: Bound<'py, PyArray1<i64>> = |head, py| head.of_clustered(ids_of(py, &[]), |it| ids_of(py, it.places()));

    /// How many bytes of centroids a call reads; 0 except for "clustered".
    centroid_bytes: usize = |head, _py| Ok(head.of_clustered(0, Clustered::centroid_bytes));
}

#[pymethods]
impl Head {
    /// Makes a head that gives the tokens and logprobs that follow from all logits, bit for bit.
    ///
    /// screen: whether it has a copy of the weights in 8 bits, made here or read from a file, which takes a
    /// byte of memory for each weight. By it, calls of up to 8 rows compute the logits that could decide a
    /// row, from about half of the bytes of bfloat16 weights. file: the path of a file that save, or the
    /// command `gumball head build`, wrote of these weights and this bias; the head maps it instead of making
    /// the copy, and no code may write it as long as the head lives. The class explains the others.
    ///
    /// Raises ValueError for a file that is damaged, of another version or of other weights, or without a
    /// screen; OSError for one that cannot be read.
    #[staticmethod]
    #[pyo3(
        signature = (weights, *, bias=None, logit_scale=None, softcap=None, level=None, screen=true, file=None),
        text_signature = "(weights, *, bias=None, logit_scale=1.0, softcap=0.0, level=None, screen=True, file=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn auto(
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        bias: Option<&Bound<'_, PyAny>>,
        logit_scale: Option<&Bound<'_, PyAny>>,
        softcap: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] level: Option<&str>,
        #[pyo3(from_py_with = argument)] screen: bool,
        #[pyo3(from_py_with = argument)] file: Option<PathBuf>,
    ) -> PyResult<Self> {
        if !screen && file.is_some() {
            return Err(InvalidValueError::new_err("file is for a head with a screen, but screen is False"));
        }
        let options = read_head_options(bias, logit_scale, softcap, level)?;
        let (array, matrix) = arrays::host_floats(weights, "weights")?;
        let Matrix { rows, width, dtype, .. } = matrix;
        let (is_borrowed, all) = borrowed_or_packed(&matrix);
        let borrowed = is_borrowed.then(|| Borrowed::of(weights, array)).transpose()?;
        let exact = Exact::new(all, rows, width, options).map_err(own_names).map_err(to_py_err)?;
        let made = py.detach(|| {
            caught(UNMADE, || match &file {
                Some(file) => Auto::open(exact, file),
                None => Ok(if screen { Auto::new(exact) } else { Auto::Exact(exact) }),
            })
        })?;
        let head = Kind::Auto(made.map_err(|error| of_file("file", error))?);
        Ok(Self { head, dtype: dtype.name(), borrowed })
    }

    /// Makes a head with the ids in clusters, which computes the logits of clusters whose centroids look
    /// likeliest, all others being -inf.
    ///
    /// Its clusters come from a file, or from vocab_maps, [clusters, capacity] of integers with each id of
    /// the vocabulary once and -1 after the ids of a cluster with fewer, or a list of ids for each
    /// cluster, and centroids, [clusters, width]. If neither is given they are built, with capacity ids each
    /// (the last one may have fewer), in up to iterations assignments of all ids, which may take minutes.
    /// progress(iteration, iterations, done, of): called meanwhile by the thread that makes the head, with
    /// the assignment, from 0, of how many, and the ids done of all ids; an exception stops the build. file:
    /// the path of a file that save or `gumball head build` wrote of these weights and this bias, or of a
    /// safetensors file with the tensors vocab_maps and centroids, of the shapes and types above. probes: how
    /// many clusters a hidden state probes; None: an eighth of them. special_ids: ids that are always
    /// computed, such as ends of text. most_rows: how many rows of a call are computed in part at most; in a
    /// call that has more, all logits of all rows are computed, and most left out. None: 16 if more than a
    /// sixth of the clusters are probed, else no number. in_place: the head permutes the rows of weights in
    /// the caller's memory and borrows them, instead of copying them. An embedding that is tied to them must
    /// then read the row of an id at places[id]. The class explains the others.
    ///
    /// Raises the errors of auto, and ValueError for arguments that exclude each other. No row was moved
    /// then.
    #[staticmethod]
    #[pyo3(
        signature = (
            weights, *, bias=None, logit_scale=None, softcap=None, level=None, most_rows=None, file=None, vocab_maps=None,
            centroids=None, capacity=None, iterations=None, progress=None, probes=None, special_ids=None, in_place=false,
        ),
        text_signature = "(weights, *, bias=None, logit_scale=1.0, softcap=0.0, level=None, most_rows=None, file=None, vocab_maps=None, \
                          centroids=None, capacity=16, iterations=10, progress=None, probes=None, special_ids=(), in_place=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn clustered(
        py: Python<'_>,
        weights: &Bound<'_, PyAny>,
        bias: Option<&Bound<'_, PyAny>>,
        logit_scale: Option<&Bound<'_, PyAny>>,
        softcap: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] level: Option<&str>,
        most_rows: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] file: Option<PathBuf>,
        vocab_maps: Option<&Bound<'_, PyAny>>,
        centroids: Option<&Bound<'_, PyAny>>,
        capacity: Option<&Bound<'_, PyAny>>,
        iterations: Option<&Bound<'_, PyAny>>,
        progress: Option<&Bound<'_, PyAny>>,
        probes: Option<&Bound<'_, PyAny>>,
        special_ids: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] in_place: bool,
    ) -> PyResult<Self> {
        let options = read_head_options(bias, logit_scale, softcap, level)?;
        let of_clusters = ClusteredOptions {
            probes: probes.map(|probes| extract_int(probes, "probes")).transpose()?,
            special_ids: special_ids.map_or(Ok(Vec::new()), |ids| integers(ids, "special_ids"))?,
            most_rows: most_rows.map(|rows| extract_int(rows, "most_rows")).transpose()?,
        };
        let (array, matrix) = arrays::host_floats(weights, "weights")?;
        let given = ClusterArguments { vocab_maps, centroids, capacity, iterations, progress };
        let source = given.source(file, (matrix.rows, matrix.width))?;
        if in_place {
            check_movable(&array, &matrix)?;
        }
        // Holds the array while its rows are read, also where they are copied.
        let held = Borrowed::of(weights, array)?;
        let clustered = clustered(py, &matrix, options, source, &of_clusters, in_place)?;
        let head = Kind::Clustered(Box::new(RwLock::new(clustered)));
        Ok(Self { head, dtype: matrix.dtype.name(), borrowed: in_place.then(|| held.written_here(weights)) })
    }

    /// "auto" or "clustered".
    #[getter]
    pub fn kind(&self) -> &'static str {
        match self.head {
            Kind::Auto(_) => "auto",
            Kind::Clustered(_) => "clustered",
        }
    }

    /// How many rows of a call are computed in part at most, None where it does not matter how many there
    /// are; 0 except for "clustered".
    #[getter]
    fn most_rows(&self) -> Option<usize> {
        self.of_clustered(Some(0), |it| Some(it.most_rows()).filter(|rows| *rows < usize::MAX))
    }

    /// How many clusters a hidden state probes; 0 except for "clustered", where it may be set between calls.
    ///
    /// Setting it raises ValueError for a number outside 1..=clusters and for another kind of head,
    /// RuntimeError while a call uses the head.
    #[getter]
    fn probes(&self) -> usize {
        self.of_clustered(0, Clustered::probes)
    }

    #[setter]
    fn set_probes(&self, probes: &Bound<'_, PyAny>) -> PyResult<()> {
        let Kind::Clustered(clustered) = &self.head else {
            let text = format!("probes is of a clustered head, but this one is {}", self.kind());
            return Err(InvalidValueError::new_err(text));
        };
        let probes = extract_int(probes, "probes")?;
        let mut clustered = clustered.try_write().map_err(|_| {
            CallError::new_err("a call is using the head; set its probes before or after calls")
        })?;
        clustered.set_probes(probes).map_err(to_py_err)
    }

    /// The ids of each cluster, and -1 after the ids of a cluster with fewer: int64, [clusters, capacity]; no
    /// rows except for "clustered". A copy.
    #[getter]
    fn vocab_maps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<i64>>> {
        modules::load_numpy(py)?;
        let (count, capacity, maps) = self.of_clustered((0, 0, Vec::new()), |clustered| {
            let clusters = clustered.clusters();
            // No id is u32::MAX there.
            let signed = clusters.maps().iter().map(|id| i64::from(id.cast_signed()));
            (clusters.count(), clusters.capacity(), signed.collect())
        });
        PyArray1::from_vec(py, maps).reshape([count, capacity])
    }

    /// The centroids of the clusters: float32, [clusters, width]; no rows except for "clustered". A copy.
    #[getter]
    fn centroids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        modules::load_numpy(py)?;
        let centroids = self.of_clustered(Vec::new(), |clustered| clustered.clusters().centroids().to_vec());
        let width = self.in_use().head().width();
        PyArray1::from_slice(py, &centroids).reshape([centroids.len() / width, width])
    }

    /// Returns all logits of hidden states, [rows, vocab] float32, whichever kind the head is: the bits do
    /// not depend on the batch.
    ///
    /// hidden: [rows, width], or [width] for one row; float32, bfloat16 or float16 on the CPU; rows may be
    /// strided.
    ///
    /// Raises ValueError or TypeError for another shape, type or device.
    fn logits<'py>(&self, py: Python<'py>, hidden: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        modules::load_numpy(py)?;
        let (hidden, in_use) = (Hidden::read(hidden)?, self.get(py)?);
        let (states, head) = (hidden.states()?, in_use.head());
        let (vocab, mut signals) = (head.vocab(), Listener::new());
        let logits = py.detach(|| {
            caught(UNTOUCHED, || -> Result<PyResult<Vec<f32>>> {
                let mut out = memory(states.rows(), vocab)?;
                let mut done = 0;
                loop {
                    let next = (done + TOGETHER).min(states.rows());
                    head.logits(states.part(done..next), &mut out[done * vocab..next * vocab])?;
                    done = next;
                    if done == states.rows() {
                        return Ok(Ok(out));
                    }
                    if let Err(error) = signals.listen() {
                        return Ok(Err(error));
                    }
                }
            })
        })?;
        let logits = PyArray1::from_vec(py, logits.map_err(to_py_err)??);
        Ok(logits.reshape([states.rows(), vocab])?.into_any())
    }

    /// Writes what a head has derived from its weights to a file, for file=path of the same constructor: its
    /// screen, or a clustered head's clusters and centroids, with a checksum and the digest of the weights in
    /// the order of ids, which are not in it. The file appears when it is whole.
    ///
    /// path: the file's. name: the name of the tensor of weights, which the file has.
    ///
    /// Raises ValueError for a head without a screen or clusters, OSError for a file that cannot be written.
    #[pyo3(signature = (path, *, name="lm_head.weight"))]
    fn save(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] path: PathBuf,
        #[pyo3(from_py_with = argument)] name: &str,
    ) -> PyResult<()> {
        let in_use = self.get(py)?;
        let head = in_use.head();
        let written = py.detach(|| {
            caught(UNTOUCHED, || match head {
                EngineHead::Certified(certified) => Some(Artefact::write(certified, name, &path)),
                EngineHead::Clustered(clustered) => Some(Artefact::write_clustered(clustered, name, &path)),
                _ => None,
            })
        })?;
        let nothing = "the head has no screen, and no clusters; there is nothing to save";
        let written = written.ok_or_else(|| InvalidValueError::new_err(nothing))?;
        written.map_err(|error| of_file("path", error))
    }

    fn __repr__(&self) -> String {
        let memory = if self.borrowed.is_some() { "borrowed" } else { "copied" };
        let (vocab, width) = (self.in_use().head().vocab(), self.in_use().head().width());
        format!("Head([{vocab}, {width}] {} {memory}, kind={:?})", self.dtype, self.kind())
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
