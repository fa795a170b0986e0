//! The engine's promises about sequences, batches and outputs, one file each.

mod allocation;
mod cases;
#[cfg(feature = "emulator")]
mod device;
#[cfg(feature = "emulator")]
mod device_draft;
#[cfg(feature = "emulator")]
mod device_graph;
#[cfg(feature = "emulator")]
mod device_hidden;
#[cfg(feature = "emulator")]
mod device_operators;
#[cfg(feature = "emulator")]
mod device_shorten;
#[cfg(feature = "emulator")]
mod device_verify;
mod draft;
mod draft_trees;
mod edited;
mod hidden;
mod hidden_clustered;
mod hidden_drafts;
mod in_order;
mod invariance;
mod limits;
mod masks;
mod operators;
mod outputs;
mod panics;
#[cfg(feature = "emulator")]
mod pool_routes;
mod pool_slots;
#[cfg(feature = "emulator")]
mod recorded;
mod routes;
mod samples;
mod score;
mod selected_logprobs;
mod state;
mod threads;
mod validation;
#[cfg(feature = "emulator")]
mod variants;
mod verify;
