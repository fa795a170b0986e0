//! A pool over ranks gives what a pool of one process gives, bit for bit, under every layout, with any split of the vocabulary, and
//! with any parameters.

#[path = "../../../cpu/tests/differential/cases.rs"]
mod cases;

mod batch;
mod bytes;
#[cfg(feature = "emulator")]
mod device_drafts;
#[cfg(feature = "emulator")]
mod device_failures;
#[cfg(feature = "emulator")]
mod device_turns;
#[cfg(feature = "emulator")]
mod devices;
mod failures;
mod faults;
#[cfg(unix)]
mod hostile;
mod processes;
mod steps;
mod verifications;
