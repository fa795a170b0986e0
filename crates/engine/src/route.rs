//! Routes: the ways from logits to a token.
//!
//! A route opens its stages; the stages own the buffers for a row, so each thread opens its own.

use std::fmt;
use std::str::FromStr;

use gumball_cpu::{Level, Workspace};
use gumball_spec::{Error, Result, SamplingParams};

use crate::probabilities::{Parts, ProbabilityStages};
use crate::stages::{OracleStages, Stages};

/// A way from logits to a token. The routes of [`Route::ALL`] can be parsed from their names.
///
/// Every route draws the tokens of [`Route::Oracle`], except [`Route::Probabilities`], where a rounding of
/// the probabilities may decide between two tokens that are nearly equal.
#[derive(Clone, Debug, Default)]
pub enum Route {
    /// An exponential race over SIMD lanes.
    #[default]
    Race,
    /// A softmax, then filters and race on its probabilities.
    Probabilities,
    /// The definition itself, naive and slow.
    Oracle,
    /// A name, and the stages that a test opens under it.
    #[doc(hidden)]
    Of(&'static str, fn(Level) -> Result<Box<dyn Stages>>),
}

impl Route {
    /// The routes that need no device.
    pub const ALL: [Self; 3] = [Self::Race, Self::Probabilities, Self::Oracle];

    /// Returns the name, in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Race => "race",
            Self::Probabilities => "probabilities",
            Self::Oracle => "oracle",
            Self::Of(name, _) => name,
        }
    }

    /// Returns what it does, in a sentence for a list of routes.
    #[must_use]
    pub fn about(&self) -> &str {
        match self {
            Self::Race => "an exponential race over SIMD lanes: one pass over the row for most parameters",
            Self::Probabilities => {
                "a softmax in f32, then filters and race on its probabilities: for rows that must be probabilities anyway"
            }
            Self::Oracle => "the definition itself, every stage naive and slow: to check others against",
            Self::Of(..) => "a test's own",
        }
    }

    /// Checks that the route can draw the tokens of a request.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for a parameter that the route does not know.
    pub(crate) fn check(&self, params: &SamplingParams) -> Result<()> {
        if let Self::Probabilities = self { Parts::of(params).map(drop) } else { Ok(()) }
    }

    /// Opens the stages for one thread.
    ///
    /// # Errors
    /// - [`OutOfRange`](crate::Error::OutOfRange) if this machine lacks the level.
    pub fn open(&self, level: Level) -> Result<Box<dyn Stages>> {
        Ok(match self {
            Self::Race => Box::new(Workspace::new(level)?),
            Self::Probabilities => Box::new(ProbabilityStages::new(level)?),
            Self::Oracle => Box::new(OracleStages::default()),
            Self::Of(_, open) => open(level)?,
        })
    }
}

/// Routes of one name are one.
impl PartialEq for Route {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Route {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|route| route.name() == name);
        found.ok_or_else(|| {
            Error::unknown("route", name, Self::ALL.map(|route| route.name().to_owned()).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_read_from_its_name_and_an_unknown_one_is_named_with_the_known_ones() {
        for route in Route::ALL {
            assert_eq!(route.name().parse::<Route>().unwrap(), route);
        }
        let error = "rase".parse::<Route>().unwrap_err();
        let said =
            "route \"rase\" is not known (do you mean \"race\"?); known are: race, probabilities, oracle";
        assert_eq!(error.to_string(), said);
    }
}
