//! The rules of edits: penalties and biases, DRY, bans and the bitmask.

pub mod bans;
pub mod dry;
pub mod penalties;
