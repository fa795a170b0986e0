//! Drafts as Python hands them in: their ids and trees, the drafter's probabilities, and the paths that drafts are drawn behind; for calls
//! over logits, over hidden states, and over the ranks of a group.

use gumball_engine::{Batch, Drafts, Error, Kind, Slot, Tree, VerifyMode};
use pyo3::prelude::*;

use crate::arrays::{self, Array, Location, Matrix};
use crate::errors::{InvalidValueError, to_py_err};
use crate::lists::integer_lists;

/// The drafts of all requests, and where in the trees they stand.
pub struct DraftLists {
    pub counts: Vec<u32>,
    pub ids: Vec<i32>,
    parents: Option<Vec<i32>>,
    /// The first children and the next siblings of all rows.
    links: Option<[Vec<i32>; 2]>,
}

impl DraftLists {
    /// Reads a list of drafts for each request and, if given, as many parents.
    pub fn read(drafts: &Bound<'_, PyAny>, parents: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let drafts = integer_lists::<i32>(drafts, "drafts")?;
        let parents = parents.map(|parents| integer_lists::<i32>(parents, "parents")).transpose()?;
        if let Some(parents) = &parents {
            let lengths = |lists: &[Vec<i32>]| lists.iter().map(Vec::len).collect::<Vec<_>>();
            let (found, wanted) = (lengths(parents), lengths(&drafts));
            if found.len() != wanted.len() {
                let wanted = format!("one list per list of drafts, {}", wanted.len());
                return Err(to_py_err(Error::length("parents", found.len(), wanted)));
            }
            if let Some(request) = (0..found.len()).find(|request| found[*request] != wanted[*request]) {
                let (found, wanted) = (found[request], wanted[request]);
                let text =
                    format!("parents[{request}] has length {found}, but must have one per draft, {wanted}");
                return Err(InvalidValueError::new_err(text));
            }
        }
        let counts = drafts.iter().map(|drafts| drafts.len() as u32).collect();
        Ok(Self {
            counts,
            ids: drafts.concat(),
            parents: parents.map(|parents| parents.concat()),
            links: None,
        })
    }

    /// Takes links between rows in the place of parents, if both are given.
    pub fn with_links(
        self,
        first_child: Option<&Bound<'_, PyAny>>,
        next_sibling: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (first_child, next_sibling) = match (first_child, next_sibling) {
            (None, None) => return Ok(self),
            (Some(first_child), Some(next_sibling)) => (first_child, next_sibling),
            _ => return Err(InvalidValueError::new_err("first_child and next_sibling come together")),
        };
        if self.parents.is_some() {
            let text = "parents cannot be combined with first_child: a tree is held one way or the other";
            return Err(InvalidValueError::new_err(text));
        }
        let first_child = integer_lists::<i32>(first_child, "first_child")?.concat();
        let next_sibling = integer_lists::<i32>(next_sibling, "next_sibling")?.concat();
        Ok(Self { links: Some([first_child, next_sibling]), ..self })
    }

    /// Returns the drafts as the engine takes them.
    pub fn with_probs<'a>(&'a self, probs: Option<gumball_engine::Matrix<'a>>) -> Drafts<'a> {
        let tree = match (&self.parents, &self.links) {
            (Some(parents), _) => Tree::Parents(parents.into()),
            (None, Some([first_child, next_sibling])) => {
                Tree::Links { first_child: first_child.into(), next_sibling: next_sibling.into() }
            }
            (None, None) => Tree::Chain,
        };
        Drafts { ids: (&self.ids).into(), tree, probs }
    }

    /// Returns how many rows `row_indices` name, if there are any.
    pub fn rows(&self, row_indices: &[u32]) -> PyResult<Option<usize>> {
        let (found, wanted) = (row_indices.len(), self.counts.len() + self.ids.len());
        if found != 0 && found != wanted {
            let wanted = format!("one per request and one per draft, {wanted}, or 0");
            return Err(to_py_err(Error::length("row_indices", found, wanted)));
        }
        Ok((found != 0).then_some(found))
    }
}

/// The drafter's probabilities, if there are some, in memory that this keeps alive. On the host they are float32 without gaps.
pub struct DraftProbs<'py>(Option<(Matrix, Array<'py>)>);

impl<'py> DraftProbs<'py> {
    /// Reads them, and checks them further by `check`.
    pub fn read(
        object: Option<&Bound<'py, PyAny>>,
        stream: Option<usize>,
        check: impl FnOnce(&Matrix) -> PyResult<()>,
    ) -> PyResult<Self> {
        let Some(object) = object else { return Ok(Self(None)) };
        let array = arrays::read(object, "draft_probs", stream)?;
        let matrix = array.matrix("draft_probs")?;
        if matrix.location == Location::Host {
            matrix.check_packed("draft_probs")?;
        }
        check(&matrix)?;
        Ok(Self(Some((matrix, array))))
    }

    /// Returns them where they lie.
    pub fn there(&self) -> PyResult<Option<gumball_engine::Matrix<'_>>> {
        let Some((matrix, _)) = &self.0 else { return Ok(None) };
        // SAFETY: `read` and its `check` found the elements to be float32. The array beside the matrix keeps them alive; Python's callers do
        // not write them during the call.
        let rows = unsafe { matrix.rows_there(Kind::Probabilities) };
        Ok(Some(rows.map_err(to_py_err)?.matrix()))
    }

    /// Returns the stream on which their owner writes them, if it names one.
    pub fn stream(&self) -> Option<usize> {
        self.0.as_ref().and_then(|(_, array)| array.stream)
    }
}

/// The drafts on the path to each row of a draft model.
pub struct PathLists {
    counts: Vec<u32>,
    pub ids: Vec<i32>,
}

impl PathLists {
    /// Reads a list of ids for each row; without `paths` every row stands behind its history.
    pub fn read(paths: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let lists = paths.map_or(Ok(Vec::new()), |paths| integer_lists::<i32>(paths, "paths"))?;
        Ok(Self { counts: lists.iter().map(|path| path.len() as u32).collect(), ids: lists.concat() })
    }

    /// Returns the batch of the rows that follow these paths.
    pub fn of_rows<'a>(&'a self, slots: &'a [Slot], mode: VerifyMode) -> Batch<'a> {
        Batch { counts: &self.counts, mode, ..Batch::of(slots) }
    }
}
