//! Rows of probabilities: their order and mass, filters on them, refusals, and rows that are written.

pub mod filters;
pub mod measure;
pub mod min_p;
pub mod outputs;
pub mod refusals;
