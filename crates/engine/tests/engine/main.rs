//! What the engine promises about sequences, batches and outputs, one file a promise.

mod allocation;
mod cases;
mod invariance;
mod neighbours;
mod outputs;
mod routes;
mod samples;
mod score;
mod state;
mod validation;
