//! Hostile inputs, a test a finding: files, flags, caches and surroundings that once ended the command by a
//! signal or a panic, kept it busy for ever, filled the memory, or were taken for something they are not.
//!
//! Large inputs are made here; none lies in the repository. `fuzz` goes on from there with random
//! bytes.

#[path = "../command/made.rs"]
mod made;
#[cfg(unix)]
#[path = "../../../../crates/cpu/tests/places/mod.rs"]
mod places;
#[path = "../command/support.rs"]
#[allow(dead_code, reason = "the other tests of the command use it")]
mod support;

mod caches;
mod files;
mod flags;
mod fuzz;
mod grammars;
mod models;
mod outputs;
mod surroundings;
mod templates;
#[path = "../command/tiny.rs"]
mod tiny;
#[path = "../command/wheel.rs"]
mod wheel;
mod zeros;
