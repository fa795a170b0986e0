//! The routes of a pool on a device: which one the pool was made for, and what the route `probabilities` makes of a
//! request there.

use std::fmt;
use std::str::FromStr;

use gumball_spec::{Error, Parameter, Result, SamplingParams, Stage};

use crate::probabilities::Parts;

/// How the steps of a pool on a device get from logits to tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolRoute {
    /// A race over the logits, as on the route [`Route::Race`](crate::Route::Race) of the host.
    #[default]
    Race,
    /// A softmax in f32, then filters and race on its probabilities, as on the route [`Route::Probabilities`](crate::Route::Probabilities) of the host.
    ///
    /// The softmax edits nothing: penalties, biases, bans, bitmasks, row indices and dynamic temperature are
    /// refused, and so are rows that hold probabilities already. The pool takes memory for `rows` rows of f32.
    Probabilities,
}

impl PoolRoute {
    /// Both routes.
    pub const ALL: [Self; 2] = [Self::Race, Self::Probabilities];

    /// Returns the route's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Race => "race",
            Self::Probabilities => "probabilities",
        }
    }
}

impl fmt::Display for PoolRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PoolRoute {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|route| route.name() == name);
        found.ok_or_else(|| Error::Unknown {
            parameter: "route",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// Returns the error for what the softmax of a device cannot take into account.
pub(super) fn refused(parameter: &'static str) -> Error {
    let reason = "on a device the softmax of the route probabilities takes logits as they are; take the route race, or \
                  a pool of the host";
    Error::Conflict { parameter, other: "route", reason }
}

/// Returns the parameters with which a request draws from the probabilities that its temperature makes of logits.
///
/// # Errors
/// - [`Error::Conflict`] for a parameter that the route does not know, or that acts on logits.
pub(super) fn drawing_params(whole: &SamplingParams) -> Result<SamplingParams> {
    let Parts { draw, .. } = Parts::of(whole)?;
    let acts_on_logits = |switch: &&Parameter| match switch.name {
        "min_tokens" => !whole.stop_ids.is_empty(),
        _ => matches!(switch.stage, Stage::Edit | Stage::Temperature),
    };
    if let Some(switch) = whole.switched_on().find(acts_on_logits) {
        return Err(refused(switch.name));
    }
    let temperature = if SamplingParams::is_greedy(whole.temperature) { 0.0 } else { 1.0 };
    // They end walks through drafts, and ban nothing without `min_tokens`.
    let stop_ids = whole.stop_ids.clone();
    Ok(SamplingParams { temperature, stop_ids, ..draw })
}
