//! Heads as a pool takes them, what they have done, and the memory that it keeps for them.

use gumball_head::{Bounds, Certified, Contest, Decisive, Exact, Widened};

/// A head that [`Pool::step_hidden`](crate::Pool::step_hidden) takes, borrowed: several pools may share one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Head<'a> {
    /// Every logit is computed.
    Exact(&'a Exact<'a>),
    /// The logits that decide a row are computed, where that is possible.
    Certified(&'a Certified<'a>),
}

impl<'a> From<&'a Exact<'_>> for Head<'a> {
    fn from(head: &'a Exact<'_>) -> Self {
        Head::Exact(head)
    }
}

impl<'a> From<&'a Certified<'_>> for Head<'a> {
    fn from(head: &'a Certified<'_>) -> Self {
        Head::Certified(head)
    }
}

impl<'a> Head<'a> {
    pub(crate) fn exact(&self) -> &'a Exact<'a> {
        match self {
            Head::Exact(exact) => exact,
            Head::Certified(certified) => certified.exact(),
        }
    }
}

/// What a pool's heads have done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadCounts {
    /// Rows whose logits were all computed.
    pub whole_rows: u64,
    /// Rows that a certified head decided by a part of their logits.
    pub certified_rows: u64,
    /// How many logits that took, for all of these rows.
    pub certified_logits: u64,
}

/// What a pool keeps for its heads from step to step.
#[derive(Debug, Default)]
pub(crate) struct HeadBuffers {
    /// The hidden states of the rows that are screened.
    pub(crate) screened: Widened,
    /// Those of the rows whose logits are all computed.
    pub(crate) whole: Widened,
    /// The logits of the rows that have a sequence: those that are screened first.
    pub(crate) logits: Vec<f32>,
    /// For each row of the step its line of the logits; 0 for padding, which is not read.
    pub(crate) lines: Vec<u32>,
    pub(crate) bounds: Bounds,
    /// The rows that are screened, and then those that are not, by their numbers in the step.
    pub(crate) rows: Vec<usize>,
    pub(crate) decisive: Vec<Decisive>,
    /// How many logits decide each screened row; `None` if too many would.
    pub(crate) computed: Vec<Option<usize>>,
    /// Buffers that no thread is using.
    pub(crate) idle: std::sync::Mutex<Vec<Contest>>,
    pub(crate) counts: HeadCounts,
}
