//! The rules of edits: penalties and biases, DRY, bans and the bitmask, sections and loops.

pub mod bans;
pub mod dry;
pub mod loops;
pub mod penalties;
pub mod sections;
