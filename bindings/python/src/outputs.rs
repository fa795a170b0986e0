//! Outputs: the results of a step or a verification, as numpy arrays over one buffer.

use std::borrow::Cow;
use std::cell::UnsafeCell;
use std::ops::Range;

use gumball_engine::{Layout, Logprobs, NONE, Outputs as EngineOutputs, Status, TokenLogprob};
use numpy::ndarray::{ArrayView1, ArrayView2};
use numpy::{Element, PyArray1, PyArray2};
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice};

use crate::errors::{not_a, out_of_range};
use crate::modules;

/// The results of a step or a verification with R rows, in the order of its rows.
///
/// A request with n drafts has n + 1 rows. The first ones hold its emitted tokens, each with the status,
/// logprobs and ranks of the row of logits that it comes from; the others are as of padding. request tells
/// them by request. The arrays are views of one buffer, which this object owns. No later step changes it.
///
/// ============== ===================== ============================================== =================
/// attribute      shape, dtype          what                                           without a value
/// ============== ===================== ============================================== =================
/// tokens         [R] int32             the tokens                                     -1
/// statuses       [R] uint32            bits of gumball.Status                         0
/// logprobs       [R] float32           of the tokens, natural                         -inf
/// ranks          [R] uint32            of the tokens, from 1                          0
/// temperatures   [R] float32           in use; 0 if greedy                            0
/// mirostat_mu    [R] float32           mirostat's limits in bits, adaptive-p's means  0
/// second_logprobs [R] float32          of the tokens, in the second mode              -inf
/// top_ids        [R, top_n] int32      the most likely ids                            -1
/// top_logprobs   [R, top_n] float32    their logprobs                                 -inf
/// id_logprobs    [R, ids] float32      of the ids that the request names              -inf
/// id_ranks       [R, ids] uint32       their ranks                                    0
/// ============== ===================== ============================================== =================
#[pyclass(frozen, module = "gumball", name = "Outputs")]
#[derive(Debug)]
pub struct Outputs {
    layout: Layout,
    /// Holders of arrays read and write the words. This file reads single words under the GIL and writes
    /// none.
    words: Box<[UnsafeCell<u32>]>,
    kept: Option<KeptSets>,
    is_approximate: bool,
    /// Of a verification of drafts.
    walks: Option<Walks>,
}

/// The kept sets of all rows: how many ids each row has, the ids, row after row, and where the ids of a row
/// end. Like the words of the outputs, the first two belong to the holders of arrays.
#[derive(Debug)]
struct KeptSets {
    lengths: Box<[UnsafeCell<u32>]>,
    ids: Box<[UnsafeCell<u32>]>,
    ends: Vec<usize>,
}

/// How many drafts of each request were accepted, the rows of the outputs that hold its tokens, and the rows
/// of logits that these come from.
#[derive(Debug)]
struct Walks {
    accepted: Vec<u32>,
    ranges: Vec<Range<usize>>,
    rows: Vec<Vec<u32>>,
}

/// Lengths and ids of kept sets.
type Sets<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

/// The results for a request.
#[pyclass(frozen, get_all, module = "gumball")]
#[derive(Debug)]
pub struct Emitted {
    /// The emitted tokens, [accepted + 1] int32: the accepted drafts and one more, which is -1 from a row
    /// without a token. None at all for padding.
    tokens: Py<PyArray1<i32>>,
    /// The rows of logits that the tokens come from, [accepted + 1] uint32: numbers of rows of the whole
    /// batch. These are also the rows whose keys and values a model's cache keeps.
    rows: Py<PyArray1<u32>>,
    /// How many drafts were accepted.
    accepted: u32,
    /// The slice of the rows of the Outputs that hold the tokens.
    places: Py<PySlice>,
}

#[pymethods]
impl Emitted {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Emitted(tokens={}, accepted={})", self.tokens.bind(py).str()?, self.accepted))
    }
}

// SAFETY: threads share the layout and the ends of kept sets, which never change. numpy gets the address of
// words, lengths and ids and, as for every array, leaves it to its users that no thread writes what another
// reads.
unsafe impl Sync for Outputs {}

impl Outputs {
    /// Copies the engine's outputs: some words per row.
    pub fn new(out: &EngineOutputs, kept: bool) -> Self {
        let layout = out.layout();
        Self {
            layout,
            words: out.words().iter().map(|word| UnsafeCell::new(*word)).collect(),
            kept: kept.then(|| KeptSets::of(out)),
            is_approximate: out.is_approximate(),
            walks: (out.accepted().len() != layout.rows).then(|| Walks::of(out)),
        }
    }

    /// Returns the number of requests.
    fn requests(&self) -> usize {
        self.walks.as_ref().map_or(self.layout.rows, |walks| walks.accepted.len())
    }

    /// Returns how many drafts of a request were accepted, the rows that hold its tokens, and the rows of
    /// logits that these come from.
    fn walk(&self, request: usize) -> (u32, Range<usize>, Cow<'_, [u32]>) {
        if let Some(walks) = &self.walks {
            let Walks { accepted, ranges, rows } = walks;
            return (accepted[request], ranges[request].clone(), Cow::Borrowed(&rows[request]));
        }
        // A row that was drawn without a token has a status.
        let is_padding = self.word(self.layout.tokens(), request).cast_signed() == NONE
            && self.word(self.layout.statuses(), request) == 0;
        let (range, rows) = if is_padding {
            (request..request, vec![])
        } else {
            (request..request + 1, vec![request as u32])
        };
        (0, range, Cow::Owned(rows))
    }

    /// Reads a word of a section, with the GIL.
    fn word(&self, section: Range<usize>, index: usize) -> u32 {
        // SAFETY: the cell belongs to `self.words`; holders of arrays write it only under the GIL, which
        // callers hold.
        unsafe { *self.words[section][index].get() }
    }

    /// Reads the index of a row.
    ///
    /// # Errors
    /// - `IndexError` if the index is outside 0..R; `TypeError` if the object is no integer.
    fn row_index(&self, row: &Bound<'_, PyAny>) -> PyResult<usize> {
        index_of(row, "row", self.layout.rows)
    }

    /// Returns how many rows there are.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Reads a row's token, its status, its list of the most likely tokens and the second number, with the
    /// GIL.
    pub fn reported(&self, row: usize) -> (i32, Status, Logprobs) {
        let (layout, width) = (&self.layout, self.layout.widths.top_n);
        let top = |place: usize| {
            let id = self.word(layout.top_ids(), row * width + place).cast_signed();
            listed(id, f32::from_bits(self.word(layout.top_logprobs(), row * width + place)))
        };
        let logprobs = Logprobs {
            token: listed(NONE, f32::NEG_INFINITY),
            top: (0..width).map(top).collect(),
            ids: Vec::new(),
            second: f32::from_bits(self.word(layout.second_logprobs(), row)),
        };
        let token = self.word(layout.tokens(), row).cast_signed();
        (token, Status(self.word(layout.statuses(), row)), logprobs)
    }

    /// Returns the kept sets.
    ///
    /// # Errors
    /// - `ValueError` unless the pool keeps them, and of scores.
    fn kept_sets_of(&self) -> PyResult<&KeptSets> {
        let kept = self.kept.as_ref();
        let allowed = "of a step or a verification of a pool that was made with kept=True; scores have none";
        kept.ok_or_else(|| out_of_range("kept", "absent", allowed))
    }

    /// Returns an array over words of these outputs.
    fn array<'py, T: Element>(
        slf: &Bound<'py, Self>,
        words: &[UnsafeCell<u32>],
    ) -> PyResult<Bound<'py, PyArray1<T>>> {
        modules::load_numpy(slf.py())?;
        // SAFETY: every word is a valid i32, u32 and f32.
        let view = unsafe { ArrayView1::from_shape_ptr(words.len(), words.as_ptr().cast::<T>().cast_mut()) };
        // SAFETY: the words are of `slf`, and do not move while it lives; the array keeps it alive.
        Ok(unsafe { PyArray1::borrow_from_array(&view, slf.clone().into_any()) })
    }

    fn matrix<'py, T: Element>(
        slf: &Bound<'py, Self>,
        section: Range<usize>,
        width: usize,
    ) -> PyResult<Bound<'py, PyArray2<T>>> {
        modules::load_numpy(slf.py())?;
        let address = slf.get().words[section].as_ptr().cast::<T>().cast_mut();
        // SAFETY: `address` points to the section's `rows * width` words; every word is a valid i32, u32 and
        // f32.
        let view = unsafe { ArrayView2::from_shape_ptr((slf.get().layout.rows, width), address) };
        // SAFETY: the words do not move while `slf` lives, and the array keeps `slf` alive.
        Ok(unsafe { PyArray2::borrow_from_array(&view, slf.clone().into_any()) })
    }
}

/// Returns a token of a list. Its place in the list is its rank, so the number is left 0.
pub fn listed(id: i32, logprob: f32) -> TokenLogprob {
    TokenLogprob { id, logprob, rank: 0 }
}

/// Reads an index below a length.
fn index_of(index: &Bound<'_, PyAny>, name: &str, length: usize) -> PyResult<usize> {
    let there = match index.extract::<i64>() {
        Ok(index) => usize::try_from(index).ok().filter(|index| *index < length),
        Err(error) if error.is_instance_of::<PyOverflowError>(index.py()) => None,
        Err(error) => return Err(not_a(error, name, "an integer", index)),
    };
    there.ok_or_else(|| PyIndexError::new_err(format!("{name} is {index}, but must be in 0..{length}")))
}

impl KeptSets {
    fn of(out: &EngineOutputs) -> Self {
        let (lengths, ids) = out.kept_sets();
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += *length as usize;
            end
        });
        Self { ends: ends.collect(), lengths: cells(lengths), ids: cells(ids) }
    }
}

/// Makes cells of words, in the same memory.
fn cells(words: Vec<u32>) -> Box<[UnsafeCell<u32>]> {
    words.into_iter().map(UnsafeCell::new).collect()
}

impl Walks {
    fn of(out: &EngineOutputs) -> Self {
        let requests = || (0..out.accepted().len()).map(|request| out.request(request));
        Self {
            accepted: out.accepted().to_vec(),
            ranges: requests().map(|request| request.places).collect(),
            rows: requests().map(|request| request.rows.to_vec()).collect(),
        }
    }
}

/// Makes a getter of each column: of one number a row, and of several, as many as a width says.
macro_rules! columns {
    ($($name:ident: $of:ty),*; $($wide:ident: $each:ty [$width:ident]),*) => {
        #[pymethods]
        impl Outputs {
            $(#[getter]
            fn $name<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<$of>>> {
                Self::array(slf, &slf.get().words[slf.get().layout.$name()])
            })*

            $(#[getter]
            fn $wide<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<$each>>> {
                Self::matrix(slf, slf.get().layout.$wide(), slf.get().layout.widths.$width)
            })*
        }
    };
}

columns!(
    tokens: i32, statuses: u32, logprobs: f32, ranks: u32, temperatures: f32, mirostat_mu: f32,
    second_logprobs: f32;
    top_ids: i32 [top_n], top_logprobs: f32 [top_n], id_logprobs: f32 [ids], id_ranks: u32 [ids]
);

#[pymethods]
impl Outputs {
    /// Whether the rows came from a clustered head: tokens, kept sets, logprobs and ranks follow from
    /// the logits that it computed, and approximate what all logits would give.
    #[getter]
    pub fn is_approximate(&self) -> bool {
        self.is_approximate
    }

    /// The tokens as a list of int, -1 where there is none. Needs no numpy.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, (0..self.layout.rows).map(|row| self.word(self.layout.tokens(), row).cast_signed()))
    }

    /// The ids that a row's filters kept, [K] uint32, ascending.
    ///
    /// Raises ValueError unless the pool was made with kept=True, and of scores; IndexError if the row is
    /// outside 0..R.
    fn kept<'py>(slf: &Bound<'py, Self>, row: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let kept = slf.get().kept_sets_of()?;
        let row = slf.get().row_index(row)?;
        let start = row.checked_sub(1).map_or(0, |before| kept.ends[before]);
        Self::array(slf, &kept.ids[start..kept.ends[row]])
    }

    /// The kept sets of all rows: how many ids each row has, [R] int32, and the ids, row after row, int32.
    /// gumball.torch.kept_bitmask takes both, as tensors.
    ///
    /// Raises ValueError unless the pool was made with kept=True, and of scores.
    fn kept_sets<'py>(slf: &Bound<'py, Self>) -> PyResult<Sets<'py>> {
        let kept = slf.get().kept_sets_of()?;
        Ok((Self::array(slf, &kept.lengths)?, Self::array(slf, &kept.ids)?))
    }

    /// How many drafts of each request were accepted, [requests] uint32; of a step 0.
    #[getter]
    fn accepted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        modules::load_numpy(py)?;
        Ok(match &self.walks {
            Some(walks) => PyArray1::from_slice(py, &walks.accepted),
            None => PyArray1::from_vec(py, vec![0; self.layout.rows]),
        })
    }

    /// The results for a request, by its number in the batch: an Emitted. Raises IndexError if there is no
    /// such request.
    fn request<'py>(slf: &Bound<'py, Self>, request: &Bound<'py, PyAny>) -> PyResult<Emitted> {
        let (py, this) = (slf.py(), slf.get());
        let request = index_of(request, "request", this.requests())?;
        modules::load_numpy(py)?;
        let (accepted, range, rows) = this.walk(request);
        let tokens = range.clone().map(|row| this.word(this.layout.tokens(), row).cast_signed());
        Ok(Emitted {
            tokens: PyArray1::from_vec(py, tokens.collect()).unbind(),
            rows: PyArray1::from_slice(py, &rows).unbind(),
            accepted,
            places: PySlice::new(py, range.start as isize, range.end as isize, 1).unbind(),
        })
    }

    /// The emitted tokens of each request, a list of lists of int. Needs no numpy.
    fn emitted(&self, _py: Python<'_>) -> Vec<Vec<i32>> {
        let tokens = |range: Range<usize>| {
            range.map(|row| self.word(self.layout.tokens(), row).cast_signed()).collect()
        };
        (0..self.requests()).map(|request| tokens(self.walk(request).1)).collect()
    }

    fn __len__(&self) -> usize {
        self.layout.rows
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Outputs(tokens={})", self.tolist(py)?.repr()?))
    }
}
