//! The numbers of steps that a workspace has run, by finish kernel and by named variant.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::requests::step_features::Variant;
use crate::requests::step_variant::StepVariant;

/// The number of steps that each finish kernel has run, and each named variant has served.
#[derive(Debug, Default)]
pub(crate) struct StepCounters {
    pub run: [AtomicU64; Variant::ALL.len()],
    pub served: [AtomicU64; StepVariant::ALL.len()],
}

impl StepCounters {
    pub fn count(&self, run: Variant, served: StepVariant) {
        self.run[run as usize].fetch_add(1, Ordering::Relaxed);
        self.served[served as usize].fetch_add(1, Ordering::Relaxed);
    }
}
