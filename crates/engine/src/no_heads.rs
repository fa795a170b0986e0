//! Stands in for heads in a build without them: a type without values, so that what would work on hidden
//! states is left out.

use std::convert::Infallible;
use std::marker::PhantomData;

use gumball_spec::{HostMatrix, Result};

use crate::host::Host;
use crate::matrix::Matrix;
use crate::outputs::Outputs;
use crate::slots::Slots;

/// A head. There is none in this build, which lacks the feature `heads`.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a>(Infallible, PhantomData<&'a ()>);

/// The memory that a pool keeps for its heads: none.
#[derive(Debug, Default)]
pub(crate) struct HeadBuffers {}

impl Head<'_> {
    pub(crate) fn vocab(self) -> usize {
        match self.0 {}
    }

    pub(crate) fn rows(self) -> usize {
        match self.0 {}
    }

    pub(crate) fn is_approximate(self) -> bool {
        match self.0 {}
    }

    pub(crate) fn logits(self, _: HostMatrix<'_>, _: &mut [f32]) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn check_width(self, _: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn states(self, _: Matrix<'_>) -> Result<HostMatrix<'_>> {
        match self.0 {}
    }
}

/// Calls from hidden states, with any options.
impl Host {
    pub fn compute_hidden<A>(
        &self,
        _: &Slots,
        head: Head<'_>,
        _: HostMatrix<'_>,
        _: A,
        _: &mut Outputs,
    ) -> Result<()> {
        match head.0 {}
    }

    pub fn judge_hidden<A, B>(
        &self,
        _: &Slots,
        head: Head<'_>,
        _: HostMatrix<'_>,
        _: A,
        _: B,
        _: &mut Outputs,
    ) -> Result<()> {
        match head.0 {}
    }

    pub fn propose_hidden<A, B, C>(
        &self,
        _: &Slots,
        head: Head<'_>,
        _: HostMatrix<'_>,
        _: A,
        _: B,
        _: C,
    ) -> Result<()> {
        match head.0 {}
    }

    pub fn score_hidden<A, B>(&self, head: Head<'_>, _: HostMatrix<'_>, _: A, _: B) -> Result<()> {
        match head.0 {}
    }
}
