//! The name of a batch of rows of a draft model, as a pool on a device hands it out.

use gumball_cuda::{DraftBatchId, DraftBatchLimits};

/// A batch of rows of a draft model in a [`Pool`](crate::Pool) on a device, which made it and keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftBatch {
    pub(super) id: DraftBatchId,
    pub(super) limits: DraftBatchLimits,
}

impl DraftBatch {
    /// Returns its capacity.
    #[must_use]
    pub fn limits(&self) -> DraftBatchLimits {
        self.limits
    }
}
