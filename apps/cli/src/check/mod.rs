//! Statistical validation: does a backend draw what the definition says it draws?
//!
//! A subject is drawn from many times and compared with two references: the oracle, which it must equal
//! token for token, and probabilities in f64, computed here from the logits by the textbook, which share
//! no number with the engine. Draws are fixed by their seeds, so a verdict never changes from run to run;
//! the stated false-alarm rate is the chance that a right engine and another seed would have failed.

mod exact;
mod item;
mod on_device;
mod settings;
mod subject;

pub use exact::Exact;
pub use gumball_bench_protocol::{ChiSquare, chi_square};
pub use item::{Check, Item};
pub use on_device::OnDevice;
pub use settings::{Setting, suite};
pub use subject::{Draw, Engine, Opened, Subject};

/// The chance that a test of the distribution fails a right engine.
pub const FALSE_ALARM_RATE: f64 = 1e-6;
