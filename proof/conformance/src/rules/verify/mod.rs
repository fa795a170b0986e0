//! Verify: which drafts stand, and what comes after them.

pub mod by_probabilities;
pub mod coupled;
pub mod draft;
pub mod edges;
pub mod judged;
pub mod rejection;
