//! The way to the tokens: which route of the engine, at which SIMD level.

use std::sync::Arc;

use clap::Args;
use gumball_engine::{Level, RACE, Route, routes};

use crate::Result;

/// A route and a level. Every exact route gives the same tokens at every level.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// The way from logits to a token, by its name
    #[arg(long, value_name = "NAME", default_value = RACE)]
    pub route: String,
    /// The SIMD level: scalar, avx2 or avx512; the best if absent
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,
}

impl EngineArgs {
    /// Returns the route.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unknown`] if there is none of that name.
    pub fn route(&self) -> Result<Arc<dyn Route>> {
        Ok(routes().get(&self.route)?)
    }

    /// Returns the level.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if this machine lacks it.
    pub fn level(&self) -> Result<Level> {
        Ok(self.level.map_or_else(Level::detect, Level::check)?)
    }
}
