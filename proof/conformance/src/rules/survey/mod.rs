//! The rules of the order and of masses.

pub mod mass;
pub mod order;
