//! Heads as a pool takes them, and the memory that it keeps for them.

use gumball_head::{Exact, Widened};

/// A head that [`Pool::step_hidden`](crate::Pool::step_hidden) takes, borrowed: several pools may share one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Head<'a> {
    /// Every logit is computed.
    Exact(&'a Exact<'a>),
}

impl<'a> From<&'a Exact<'_>> for Head<'a> {
    fn from(head: &'a Exact<'_>) -> Self {
        Head::Exact(head)
    }
}

impl Head<'_> {
    pub(crate) fn exact(&self) -> &Exact<'_> {
        match self {
            Head::Exact(exact) => exact,
        }
    }
}

/// What a pool keeps for its heads from step to step.
#[derive(Debug, Default)]
pub(crate) struct HeadBuffers {
    pub(crate) states: Widened,
    /// The logits of the rows that have a sequence.
    pub(crate) logits: Vec<f32>,
    /// For each row of the step its line of the logits; 0 for padding, which is not read.
    pub(crate) lines: Vec<u32>,
}
