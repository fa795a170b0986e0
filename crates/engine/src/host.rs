//! What computes rows on the host: threads with the stages of a route, and memory for heads and for work in
//! order.

use gumball_cpu::Level;
use gumball_spec::Result;
use gumball_spec::layout::Widths;

use crate::config::PoolConfig;
use crate::in_order::InOrder;
use crate::lm_head::HeadBuffers;
use crate::workers::{Threads, Workers};

/// What computes rows on the host. The table of sequences is the pool's.
#[derive(Debug)]
pub(crate) struct Host {
    pub vocab: usize,
    pub widths: Widths,
    pub workers: Workers,
    pub head: HeadBuffers,
    pub in_order: InOrder,
}

impl Host {
    pub fn new(config: &PoolConfig, threads: Option<usize>, level: Option<Level>) -> Result<Self> {
        let PoolConfig { vocab, widths, kept, ref route, .. } = *config;
        Threads::check(threads)?;
        widths.check()?;
        let level = level.map_or_else(Level::detect, Level::check)?;
        let workers = Workers::new(route.clone(), level, threads)?;
        let in_order = InOrder::new(kept, widths)?;
        Ok(Self { vocab, widths, workers, head: HeadBuffers::default(), in_order })
    }
}
