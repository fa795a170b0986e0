//! The engines inside this program: the floor, and ours.
//!
//! They are run as programs of their own all the same (`gumball-bench engine NAME`), so that nothing
//! about being inside helps them.

mod floor;
pub mod ours;

use gumball_bench_protocol::Engine;

pub use floor::FLOOR;

/// Every engine inside this program, the floor first.
pub fn all() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(floor::Reading)];
    engines.extend(ours::engines());
    engines
}

/// The engine of a name.
pub fn named(name: &str) -> Option<Box<dyn Engine>> {
    all().into_iter().find(|engine| engine.identity().engine == name)
}
