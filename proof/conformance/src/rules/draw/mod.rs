//! The rules of the draw: who wins, by which law, and that neighbours and place do not matter.

pub mod laws;
pub mod neighbours;
pub mod race;
