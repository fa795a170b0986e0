//! The rules of edits: penalties and biases, DRY, bans and the bitmask, sections.

pub mod bans;
pub mod dry;
pub mod penalties;
pub mod sections;
