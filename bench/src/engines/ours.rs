//! The seam where `gumball-cpu` is timed.
//!
//! Whoever fills it implements [`Engine`] over the CPU engine and returns it from [`engines`]: one
//! value for the best level of the machine, named [`OURS`], and one for each level that is to be compared
//! (`gumball-avx2`, `gumball-scalar`). The runner lists, starts and tables whatever is returned.
//!
//! What is timed must be what a caller pays for a token: `prepare` builds what a request builds once,
//! the call does one step with the next position each time, so that draws differ.

use gumball_bench_protocol::Engine;

/// The name of our engine at the machine's best level: the one that rivals are divided by.
pub const OURS: &str = "gumball";

/// Our engines, the machine's best level first; none until the CPU engine is there.
pub fn engines() -> Vec<Box<dyn Engine>> {
    Vec::new()
}
