//! Verify: which drafts stand, and which token follows them.

pub mod by_probabilities;
pub mod coupled;
pub mod draft;
pub mod edges;
pub mod judged;
pub mod rejection;
