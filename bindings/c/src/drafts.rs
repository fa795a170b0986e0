//! Drafts that a call verifies, and drafts that it draws.

use std::mem::MaybeUninit;

use gumball_engine::{Error, Tree};

use crate::error::Result;
use crate::ffi::{Caller, require};
use crate::matrix::{Ints, Matrix};
use crate::versioned::versioned;

/// The drafts of a batch of requests, request by request; n is the sum of the batch's `counts`. Lists that
/// are left zero say nothing. A request whose drafts in a device's memory are no tree takes a step, with
/// GUMBALL_STATUS_NO_TREE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    pub struct_size: usize,
    /// n ids. One outside the vocabulary, such as -1, is never accepted.
    pub ids: Ints,
    /// n parents: -1 for the end of the history, or the number of an earlier draft of the request, from 0.
    /// Without parents and links drafts are chains.
    pub parents: Ints,
    /// The trees as links between rows, as SGLang holds them, instead of `parents`: for each row, a request's
    /// first one included, the row of its first child, counted from the request's first row, or -1. A link
    /// leads to a row after its own, and one link to each draft's row.
    pub first_child: Ints,
    /// For each row that of its next sibling, or -1; with `first_child`, and only then.
    pub next_sibling: Ints,
    /// The probabilities that the drafts were drawn from, float: a row for each row of the batch, of which
    /// rows without a draft after them are not used; in the memory of the host without gaps. For
    /// GUMBALL_REJECTION and GUMBALL_BLOCK.
    pub probs: Matrix,
}

versioned!(Drafts, "gumball_drafts", probs: Matrix);

impl Drafts {
    pub(crate) fn has_probs(&self) -> bool {
        !self.probs.data.is_null() || self.probs.rows > 0
    }
}

pub(crate) fn read_drafts<'a>(c: Caller<'a>, drafts: *const Drafts) -> Result<gumball_engine::Drafts<'a>> {
    let given = c.read("drafts", drafts)?;
    let list = |ints: &Ints, name| ints.list(c, name);
    let links = !given.first_child.is_absent() || !given.next_sibling.is_absent();
    let tree = match (given.parents.is_absent(), links) {
        (true, false) => Tree::Chain,
        (false, false) => Tree::Parents(list(&given.parents, "parents")?),
        (false, true) => {
            let reason = "a tree is held one way or the other";
            return Err(Error::Conflict { parameter: "parents", other: "first_child", reason }.into());
        }
        (true, true) => {
            let there = |ints: &Ints| (!ints.is_absent()).then_some(());
            require("first_child", there(&given.first_child))?;
            require("next_sibling", there(&given.next_sibling))?;
            Tree::Links {
                first_child: list(&given.first_child, "first_child")?,
                next_sibling: list(&given.next_sibling, "next_sibling")?,
            }
        }
    };
    let probs = given.has_probs().then(|| given.probs.get(c, "probs")).transpose()?;
    Ok(gumball_engine::Drafts { ids: list(&given.ids, "ids")?, tree, probs })
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Proposals {
    /// The drafts of each row: 1 for chains.
    pub siblings: usize,
    /// Memory for `siblings` ids for each row, -1 where there are no more.
    pub ids: *mut i32,
    /// Memory for `vocab` floats for each row, the probabilities that its drafts are drawn from, as in
    /// gumball_drafts; NULL: they are not told.
    pub probs: *mut f32,
}

/// Drafts that the engine draws, and the memory of C that they are copied to.
pub(crate) struct Drawn<'a> {
    pub inner: gumball_engine::Proposals,
    ids: &'a mut [MaybeUninit<i32>],
    probs: &'a mut [MaybeUninit<f32>],
}

impl Proposals {
    /// Returns what takes the drafts of `rows` rows over `vocab` ids.
    pub(crate) fn places<'a>(&self, c: Caller<'a>, rows: usize, vocab: usize) -> Result<Drawn<'a>> {
        let ids = c.out_slice("ids", self.ids, rows.saturating_mul(self.siblings))?;
        let (inner, places) = match self.probs.is_null() {
            true => (gumball_engine::Proposals::new(self.siblings), 0),
            false => (gumball_engine::Proposals::with_probs(self.siblings), rows.saturating_mul(vocab)),
        };
        let probs = c.out_slice("probs", self.probs, places)?;
        Ok(Drawn { inner, ids, probs })
    }
}

impl Drawn<'_> {
    pub fn write(self) {
        self.ids.write_copy_of_slice(self.inner.ids());
        self.probs.write_copy_of_slice(self.inner.probs());
    }
}
