//! Drafts of a batch of requests: chains and trees, in the memory of the host or of a device.

use std::borrow::Cow;
use std::ops::Range;

use gumball_spec::verify::by_probabilities::{Judgement, check_draft_probs};
use gumball_spec::verify::{DraftTree, MAX_DRAFTS, parents_of};
use gumball_spec::{Error, Result, Row};

use crate::batch::Batch;
use crate::device::DeviceSlice;
use crate::matrix::Matrix;
use crate::slot::{PADDING, Slot};

/// Integers that a call reads: ids of drafts, their places in trees, or counts.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Ids<'a> {
    /// In the memory of the host.
    Host(&'a [i32]),
    /// In the memory of a device, of 32 or 64 bits.
    Device(DeviceSlice<'a>),
}

impl<'a> Ids<'a> {
    /// Returns the integers, which must lie in the memory of the host.
    pub(crate) fn on_host(self, parameter: &'static str) -> Result<&'a [i32]> {
        match self {
            Self::Host(ids) => Ok(ids),
            Self::Device(_) => Err(crate::matrix::on_a_device(parameter)),
        }
    }
}

impl Default for Ids<'_> {
    fn default() -> Self {
        Self::Host(&[])
    }
}

impl<'a> From<&'a [i32]> for Ids<'a> {
    fn from(ids: &'a [i32]) -> Self {
        Self::Host(ids)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for Ids<'a> {
    fn from(ids: &'a [i32; N]) -> Self {
        Self::Host(ids)
    }
}

impl<'a> From<&'a Vec<i32>> for Ids<'a> {
    fn from(ids: &'a Vec<i32>) -> Self {
        Self::Host(ids)
    }
}

impl<'a> From<DeviceSlice<'a>> for Ids<'a> {
    fn from(ids: DeviceSlice<'a>) -> Self {
        Self::Device(ids)
    }
}

/// The drafts of a batch of requests, request after request;
/// [`Batch::counts`](crate::Batch::counts) says how many each has. Ids and trees lie in one memory.
///
/// ```
/// # use gumball_engine::*;
/// // After the history of the only request: 1 or 2; after 1: 3.
/// let drafts = Drafts::tree(&[1, 2, 3], &[-1, -1, 0]);
/// assert!(matches!(drafts.tree, Tree::Parents(_)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Drafts<'a> {
    /// The draft tokens. One outside the vocabulary, [`NONE`](crate::NONE) included, is never accepted.
    pub ids: Ids<'a>,
    /// What each draft follows.
    pub tree: Tree<'a>,
    /// The probabilities that the drafts were drawn from, f32 numbers without gaps: a row of the vocabulary
    /// for each row of logits, of which rows without a draft after them are not read. `None`: the drafter
    /// has none, or the mode is neither [`Rejection`](crate::VerifyMode::Rejection) nor
    /// [`Block`](crate::VerifyMode::Block), which alone read them.
    pub probs: Option<Matrix<'a>>,
}

/// How each draft's parent is given. A chain is a tree without siblings.
#[derive(Clone, Copy, Debug, Default)]
pub enum Tree<'a> {
    /// Each draft follows the one before it.
    #[default]
    Chain,
    /// For each draft its parent in the tree of its request: -1 for the end of the history, or the number of
    /// a draft of the same request before it, counted from 0.
    Parents(Ids<'a>),
    /// Links between the rows of each request, as SGLang and TokenSpeed hold them. A request with n drafts
    /// has n + 1 rows, counted from 0, its root's first. Both lists have an element for each row of each
    /// request: a later row of the same request, or -1.
    Links {
        /// The row of the first draft after a row.
        first_child: Ids<'a>,
        /// The row of the next draft after the same row.
        next_sibling: Ids<'a>,
    },
}

impl<'a> Drafts<'a> {
    /// Makes chains, without probabilities of the drafter.
    #[must_use]
    pub fn chain(ids: impl Into<Ids<'a>>) -> Self {
        Self { ids: ids.into(), ..Self::default() }
    }

    /// Makes [trees](Tree::Parents), without probabilities of the drafter.
    #[must_use]
    pub fn tree(ids: impl Into<Ids<'a>>, parents: impl Into<Ids<'a>>) -> Self {
        Self { ids: ids.into(), tree: Tree::Parents(parents.into()), probs: None }
    }

    /// Checks what can be checked without the requests, which have `counts` drafts each, and makes parents of
    /// links.
    pub(crate) fn read(&self, drafted: &Drafted<'_>, vocab: usize) -> Result<ReadDrafts<'a>> {
        drafted.check()?;
        let Drafted { requests, counts, judgement } = *drafted;
        let total: usize = counts.iter().map(|count| *count as usize).sum();
        let one_per_draft = |name, ids: Ids<'a>| {
            let list = ids.on_host(name)?;
            if list.len() == total {
                return Ok(list);
            }
            Err(Error::length(name, list.len(), format!("{total}, the sum of the counts")))
        };
        let parents = match self.tree {
            Tree::Chain => None,
            Tree::Parents(parents) => Some(Cow::Borrowed(one_per_draft("drafts.parents", parents)?)),
            Tree::Links { first_child, next_sibling } => {
                let (first_child, next_sibling) =
                    (first_child.on_host("first_child")?, next_sibling.on_host("next_sibling")?);
                Some(Cow::Owned(parents_of_links(counts, first_child, next_sibling)?))
            }
        };
        let ids = one_per_draft("drafts.ids", self.ids)?;
        let probs = match self.probs {
            None => None,
            Some(probs) => {
                check_draft_probs("drafts.probs", judgement)?;
                Some(dense_f32(probs, requests + total, vocab)?)
            }
        };
        Ok(ReadDrafts { ids, parents, probs, starts: starts(counts) })
    }
}

/// How many drafts requests have, and how they are judged.
#[derive(Default)]
pub(crate) struct Drafted<'a> {
    pub(crate) requests: usize,
    pub(crate) counts: &'a [u32],
    pub(crate) judgement: Option<Judgement>,
}

impl<'a> Drafted<'a> {
    /// Returns what a batch says of drafts.
    pub(crate) fn of(batch: &Batch<'a>) -> Self {
        let judgement = batch.mode.judgement();
        Self { requests: batch.slots.len(), counts: batch.counts, judgement }
    }

    /// Checks that each request has a number of drafts, and none has too many.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { requests, counts, .. } = *self;
        if counts.len() != requests {
            let wanted = format!("one per request, {requests}");
            return Err(Error::length("counts", counts.len(), wanted));
        }
        match counts.iter().enumerate().find(|(_, count)| **count as usize > MAX_DRAFTS) {
            Some((request, count)) => {
                let value = format!("{count} in request {request}");
                Err(Error::out_of_range("counts", value, format!("in 0..={MAX_DRAFTS}")))
            }
            None => Ok(()),
        }
    }
}

/// Drafts that were checked as far as their requests do not matter.
pub(crate) struct ReadDrafts<'a> {
    pub(crate) ids: &'a [i32],
    pub(crate) parents: Option<Cow<'a, [i32]>>,
    /// The drafter's rows of the batch.
    pub(crate) probs: Option<&'a [f32]>,
    /// The first row of each request, and the end of the last one's.
    pub(crate) starts: Vec<usize>,
}

impl ReadDrafts<'_> {
    /// Returns the number of rows of all requests.
    pub(crate) fn rows(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the rows that have drafts after them, whose probabilities judge these.
    /// Drafts of padding are not read; trees of the other requests must have been checked.
    pub(crate) fn judging_rows(&self, slots: &[Slot]) -> impl Iterator<Item = usize> {
        let mut judges = vec![false; self.rows()];
        for request in (0..slots.len()).filter(|request| slots[*request] != PADDING) {
            let (start, tree) = (self.starts[request], self.tree(request));
            let parent = |draft: usize| tree.parents.map_or(draft as i32 - 1, |parents| parents[draft]);
            (0..tree.drafts.len()).for_each(|draft| judges[start + (parent(draft) + 1) as usize] = true);
        }
        (0..self.rows()).filter(move |row| judges[*row])
    }

    /// Returns the rows of a request.
    pub(crate) fn places(&self, request: usize) -> Range<usize> {
        self.starts[request]..self.starts[request + 1]
    }

    /// Returns the tree of a request. In front of its rows each request has one row that is no draft's.
    pub(crate) fn tree(&self, request: usize) -> DraftTree<'_> {
        let drafts = self.starts[request] - request..self.starts[request + 1] - request - 1;
        let parents = self.parents.as_ref().map(|parents| &parents[drafts.clone()]);
        DraftTree { drafts: &self.ids[drafts.clone()], parents }
    }
}

/// Returns the drafter's rows, which must be f32 numbers of the host without gaps.
fn dense_f32(probs: Matrix<'_>, rows: usize, vocab: usize) -> Result<&[f32]> {
    let probs = probs.on_host("drafts.probs")?;
    let (Row::F32(data), stride) = probs.data() else {
        return Err(Error::out_of_range("drafts.probs", "a matrix of 16-bit numbers", "f32 numbers"));
    };
    if probs.rows() != rows || probs.width() != vocab {
        let wanted = format!("{}, a row for each row of logits", rows.saturating_mul(vocab));
        return Err(Error::length("drafts.probs", probs.rows() * probs.width(), wanted));
    }
    if rows > 1 && stride != vocab {
        return Err(Error::out_of_range("drafts.probs.stride", stride, format!("{vocab}, without gaps")));
    }
    Ok(data)
}

/// Returns the parents of trees that are held as links.
///
/// # Errors
/// - [`Error::Length`] if a shape is not so.
/// - [`Error::OutOfRange`] for a link that is neither -1 nor a later row, a row that two links lead to or
///   none, and a sibling of a root. So cycles and orphans are refused.
fn parents_of_links(counts: &[u32], first_child: &[i32], next_sibling: &[i32]) -> Result<Vec<i32>> {
    let rows: usize = counts.iter().map(|count| *count as usize + 1).sum();
    for (name, links) in [("first_child", first_child), ("next_sibling", next_sibling)] {
        if links.len() != rows {
            let allowed = format!("one per request and one per draft, {rows}");
            return Err(Error::length(name, links.len(), allowed));
        }
    }
    let (mut parents, mut start) = (Vec::with_capacity(rows - counts.len()), 0);
    for (request, count) in counts.iter().enumerate() {
        let rows = start..start + *count as usize + 1;
        start = rows.end;
        let tree = parents_of(&first_child[rows.clone()], &next_sibling[rows]);
        parents.extend(tree.map_err(|error| in_request(error, request))?);
    }
    Ok(parents)
}

/// Returns the first row of each of several requests with drafts, and the end of the last one's.
pub(crate) fn starts(counts: &[u32]) -> Vec<usize> {
    let mut end = 0;
    let ends = counts.iter().map(|count| {
        end += *count as usize + 1;
        end
    });
    std::iter::once(0).chain(ends).collect()
}

/// Says in an error which request it is about.
pub(crate) fn in_request(error: Error, request: usize) -> Error {
    match error {
        Error::OutOfRange { parameter, value, allowed } => {
            Error::OutOfRange { parameter, value: format!("{value} of request {request}"), allowed }
        }
        error => error,
    }
}
