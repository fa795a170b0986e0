//! Drafts and paths of direct calls: their ids and trees, and the drafter's probabilities.

use gumball_engine::{
    DeviceSlice, Drafts as EngineDrafts, Error, Ids, IntType, Matrix as EngineMatrix, Tree,
};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

use crate::arrays::{self, Array, Dtype, Location, Matrix};
use crate::errors::{InvalidValueError, to_py_err};
use crate::lists::{integer_lists, integers};
use crate::values::Drafts;

/// Integers: a list on the host, or an array in the memory of a device.
pub enum GivenInts {
    List(Vec<i32>),
    There(DeviceSlice<'static>),
}

impl GivenInts {
    pub fn ids(&self) -> Ids<'_> {
        match self {
            Self::List(list) => list.into(),
            Self::There(column) => (*column).into(),
        }
    }
}

/// Drafts, read. They keep no array alive: the caller has `arrays`.
pub struct GivenDrafts {
    /// How many each request has, if the lists say it.
    pub counts: Option<Vec<u32>>,
    ids: GivenInts,
    tree: GivenTree,
    /// The drafter's probabilities, and whether they lie on the device.
    probs: Option<(Matrix, bool)>,
}

enum GivenTree {
    Chain,
    Parents(GivenInts),
    Links([GivenInts; 2]),
}

/// Reads arrays of a call, and keeps them.
pub struct Reader<'py> {
    /// The memory of the pool's device, in which arrays are read where they lie; `None`: all are lists of the
    /// host.
    pub there: Option<Location>,
    pub stream: Option<usize>,
    pub arrays: Vec<Array<'py>>,
}

impl<'py> Reader<'py> {
    /// Reads drafts, or their ids alone.
    pub fn drafts(&mut self, drafts: &Bound<'py, PyAny>) -> PyResult<GivenDrafts> {
        let py = drafts.py();
        let Ok(value) = drafts.cast::<Drafts>() else {
            let (counts, ids) = self.ints(drafts, "drafts")?;
            return Ok(GivenDrafts { counts, ids, tree: GivenTree::Chain, probs: None });
        };
        let Drafts { ids, parents, first_child, next_sibling, probs } = value.get();
        let (counts, ids) = self.ints(ids.bind(py), "drafts")?;
        let mut of = |given: &Py<PyAny>, name| self.ints(given.bind(py), name);
        let tree = match (parents, first_child, next_sibling) {
            (None, None, None) => GivenTree::Chain,
            (Some(parents), None, None) => {
                let (found, parents) = of(parents, "parents")?;
                check_lengths(counts.as_deref(), found.as_deref())?;
                GivenTree::Parents(parents)
            }
            (None, Some(first_child), Some(next_sibling)) => {
                GivenTree::Links([of(first_child, "first_child")?.1, of(next_sibling, "next_sibling")?.1])
            }
            (Some(_), Some(_), Some(_)) => {
                let reason = "a tree is held one way or the other";
                return Err(to_py_err(Error::Conflict {
                    parameter: "parents",
                    other: "first_child",
                    reason,
                }));
            }
            _ => return Err(InvalidValueError::new_err("first_child and next_sibling come together")),
        };
        let probs = probs.as_ref().map(|probs| self.probs(probs.bind(py))).transpose()?;
        Ok(GivenDrafts { counts, ids, tree, probs })
    }

    /// Reads the drafter's probabilities: on the host float32 without gaps.
    fn probs(&mut self, probs: &Bound<'py, PyAny>) -> PyResult<(Matrix, bool)> {
        let array = arrays::read(probs, "probs", self.stream)?;
        let matrix = array.matrix("probs")?;
        matrix.check_f32("probs")?;
        let is_there = self.there == Some(matrix.location);
        if !is_there {
            matrix.check_host("probs")?;
            matrix.check_packed("probs")?;
        }
        self.arrays.push(array);
        Ok((matrix, is_there))
    }

    /// Reads integers: lists of the host with their lengths if they are lists of lists or have two
    /// dimensions, or an array on the device.
    pub fn ints(
        &mut self,
        object: &Bound<'py, PyAny>,
        name: &str,
    ) -> PyResult<(Option<Vec<u32>>, GivenInts)> {
        let first = match (object.cast::<PyList>(), object.cast::<PyTuple>()) {
            (Ok(list), _) => Some(list.get_item(0).ok()),
            (_, Ok(tuple)) => Some(tuple.get_item(0).ok()),
            _ => None,
        };
        let is_flat = match first {
            // An object without a length is a number, of numpy perhaps.
            Some(first) => first.is_some_and(|first| first.is_instance_of::<PyInt>() || first.len().is_err()),
            None => match arrays::read(object, name, self.stream) {
                Ok(array) if self.there == Some(array.location) => {
                    return Ok((None, self.column(array, name)?));
                }
                Ok(array) => array.ndim == 1,
                Err(_) => false,
            },
        };
        if is_flat {
            return Ok((None, GivenInts::List(integers(object, name)?)));
        }
        let lists = integer_lists::<i32>(object, name)?;
        let counts = lists.iter().map(|list| list.len() as u32).collect();
        Ok((Some(counts), GivenInts::List(lists.concat())))
    }

    /// Takes an array as integers on the device.
    fn column(&mut self, array: Array<'py>, name: &str) -> PyResult<GivenInts> {
        let array = array.flat();
        let dtype = int_type(&array, name)?;
        if array.ndim != 1 || (array.shape[0] > 1 && array.strides[0] != 1) {
            let text = format!("{name} must have one dimension, or two, without gaps");
            return Err(InvalidValueError::new_err(text));
        }
        // SAFETY: the array has as many numbers of this type. The caller keeps it alive; its owner reuses
        // memory in stream order, and the methods' documentation forbids other writes until the work is done.
        let column = unsafe { DeviceSlice::new(array.address as u64, dtype, array.shape[0]) };
        self.arrays.push(array);
        Ok(GivenInts::There(column.map_err(to_py_err)?))
    }
}

/// Returns the type of integers on a device.
pub fn int_type(array: &Array<'_>, name: &str) -> PyResult<IntType> {
    match array.dtype {
        Dtype::I32 => Ok(IntType::I32),
        Dtype::I64 => Ok(IntType::I64),
        other => Err(other.wrong(name, "int32 or int64")),
    }
}

/// Checks that there are as many parents as drafts of each request.
fn check_lengths(drafts: Option<&[u32]>, parents: Option<&[u32]>) -> PyResult<()> {
    let (Some(drafts), Some(parents)) = (drafts, parents) else { return Ok(()) };
    if drafts.len() != parents.len() {
        let wanted = format!("one list per list of drafts, {}", drafts.len());
        return Err(to_py_err(Error::length("parents", parents.len(), wanted)));
    }
    match drafts.iter().zip(parents).position(|(drafts, parents)| drafts != parents) {
        None => Ok(()),
        Some(request) => {
            let (found, wanted) = (parents[request], drafts[request]);
            let text =
                format!("parents[{request}] has length {found}, but must have one per draft, {wanted}");
            Err(InvalidValueError::new_err(text))
        }
    }
}

impl GivenDrafts {
    /// Returns the drafts as the engine takes them.
    ///
    /// # Safety
    /// No code frees or writes the drafter's probabilities for `'a`, nor the ones of a device while work that
    /// reads them runs.
    pub unsafe fn engine<'a>(&'a self) -> gumball_engine::Result<EngineDrafts<'a>> {
        let tree = match &self.tree {
            GivenTree::Chain => Tree::Chain,
            GivenTree::Parents(parents) => Tree::Parents(parents.ids()),
            GivenTree::Links([first_child, next_sibling]) => {
                Tree::Links { first_child: first_child.ids(), next_sibling: next_sibling.ids() }
            }
        };
        let probs = self.probs.map(|(probs, is_there)| match is_there {
            // SAFETY: `Reader::probs` found float32 on the device; the rest is the caller's.
            true => unsafe { probs.device_logits() }.map(EngineMatrix::from),
            // SAFETY: `Reader::probs` found float32 on the host; the rest is the caller's.
            false => unsafe { probs.logits() }.map(Into::into),
        });
        Ok(EngineDrafts { ids: self.ids.ids(), tree, probs: probs.transpose()? })
    }

    /// Returns whether all of it lies where a graph finds it: in the memory of the device.
    pub fn is_there(&self) -> bool {
        let there = |ints: &GivenInts| matches!(ints, GivenInts::There(_));
        let tree = match &self.tree {
            GivenTree::Chain => true,
            GivenTree::Parents(parents) => there(parents),
            GivenTree::Links(links) => links.iter().all(there),
        };
        there(&self.ids) && tree && self.probs.is_none_or(|(_, is_there)| is_there)
    }
}
