//! The rules of the draw: who wins, by which law, that neighbours and place do not matter, and watermarks.

pub mod adaptive;
pub mod laws;
pub mod marks;
pub mod neighbours;
pub mod race;
