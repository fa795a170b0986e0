//! What pools have in common, whatever they run on.

use std::fmt;

use gumball_engine::{
    BatchOptions, Drafts, Logits, Outputs, Paths, Proposals, SamplingParams, Sequence, Slot, State,
    Verification, VerifyMode,
};
use gumball_spec::Result;

use crate::head_case::{ClusterCase, HeadCase};

/// The verbs that pools have in common, whatever they run on.
pub trait Verbs: fmt::Debug + Send + Sized {
    /// Takes up a sequence.
    ///
    /// # Errors
    /// The pool's.
    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot>;

    /// Returns the state of a slot.
    ///
    /// # Errors
    /// The pool's.
    fn sequence(&mut self, slot: Slot) -> Result<&Sequence>;

    /// Takes a step.
    ///
    /// # Errors
    /// The pool's.
    fn step(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()>;

    /// Ends a sequence.
    ///
    /// # Errors
    /// The pool's.
    fn release(&mut self, slot: Slot) -> Result<()>;

    /// Copies a sequence under another draw index.
    ///
    /// # Errors
    /// The pool's.
    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot>;

    /// Verifies drafts.
    ///
    /// # Errors
    /// The pool's.
    fn verify(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()>;

    /// Whether the caller's edits of a row are for it.
    const HOOKS: bool;

    /// By how much fewer draws are made where a law would like many.
    const SLOWNESS: u32 = 1;

    /// Whether the pool draws drafts.
    const PROPOSES: bool = false;

    /// Takes a head whose hidden states are the rows of calls that follow, in turn, beside their logits; a pool without heads takes the
    /// logits.
    fn give_head(&mut self, _head: Option<&HeadCase>) {}

    /// Takes clusters, by which the head that was given makes the rows of steps; a pool without heads takes the logits.
    fn give_clusters(&mut self, _clusters: Option<&ClusterCase>) {}

    /// Draws drafts. Only for pools that do.
    ///
    /// # Errors
    /// The pool's.
    fn propose(
        &mut self,
        _logits: Logits<'_>,
        _slots: &[Slot],
        _paths: &Paths<'_>,
        _mode: VerifyMode,
        _options: &BatchOptions<'_>,
        _out: &mut Proposals,
    ) -> Result<()> {
        unreachable!("a pool that draws no drafts is not asked for some")
    }
}
