//! Verify: which drafts stand, and what comes after them.

pub mod coupled;
pub mod rejection;
