//! Rows: the matrix that a call reads, its kind, and its head.

use crate::error::{Result, refuse};
use crate::ffi::{Caller, WhatNumber, constant, require};
use crate::head_config::Head;
use crate::matrix::Matrix;

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    GUMBALL_LOGITS = 0,
    /// They need not sum to 1. An id of probability 0 is never drawn; NaN and negative numbers count as 0 and
    /// set GUMBALL_STATUS_NAN. Parameters that speak of logits must be off.
    GUMBALL_PROBABILITIES = 1,
    GUMBALL_HIDDEN = 2,
}

/// The rows of a call. A row of logits or of probabilities has an element for each id, a hidden state as many
/// as its head is wide. A sequence may change from one kind to another.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// In direct calls a pool on a device takes rows in the memory of the host, too.
    pub matrix: Matrix,
    /// For hidden states the head that makes logits of them, of the pool's vocabulary and on the pool's
    /// device; else NULL.
    pub head: *const Head,
    pub what: WhatNumber,
}

impl Rows {
    pub(crate) fn what(&self) -> Result<What> {
        let all = [What::GUMBALL_LOGITS, What::GUMBALL_PROBABILITIES, What::GUMBALL_HIDDEN];
        constant("what", self.what, &all.map(|what| (what, what)))
    }

    /// Refuses a head beside rows that are logits or probabilities, and not hidden states.
    pub(crate) fn refuse_head(&self) -> Result<()> {
        let is_set = !self.head.is_null() && self.what()? != What::GUMBALL_HIDDEN;
        refuse([("head", is_set)], "what", "only hidden states have a head; leave it NULL")
    }

    pub(crate) fn get<'a>(&self, c: Caller<'a>) -> Result<gumball_engine::Rows<'a>> {
        let what = self.what()?;
        let head = c.handle(self.head);
        self.refuse_head()?;
        let parameter = if what == What::GUMBALL_HIDDEN { "hidden" } else { "logits" };
        let matrix = self.matrix.get(c, parameter)?;
        Ok(match what {
            What::GUMBALL_LOGITS => gumball_engine::Rows::Logits(matrix),
            What::GUMBALL_PROBABILITIES => gumball_engine::Rows::Probabilities(matrix),
            What::GUMBALL_HIDDEN => gumball_engine::Rows::hidden(require("head", head)?.get(), matrix),
        })
    }
}
