//! The bench: its records and their pages, the paths that it writes to, whole runs, and the tests of its part
//! in Python.

mod gpu;
#[cfg(unix)]
#[path = "../../../../crates/cpu/tests/places/mod.rs"]
mod paths;
#[cfg(unix)]
mod places;
mod record;
#[cfg(unix)]
mod run;
