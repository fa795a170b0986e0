//! The names of filters, scopes and logprob modes, the same in every language and on the command line.

use std::fmt;
use std::str::FromStr;

use super::{Filter, FilterOrder, LogprobMode, Scope};
use crate::error::Error;

impl Filter {
    /// All filters, in the order of the default filter chain.
    pub const ALL: [Filter; 10] = [
        Filter::TopNSigma,
        Filter::TopK,
        Filter::TypicalP,
        Filter::TopP,
        Filter::MinP,
        Filter::TopA,
        Filter::PLess,
        Filter::EpsilonCutoff,
        Filter::EtaCutoff,
        Filter::Xtc,
    ];

    /// Returns the filter's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Filter::TopNSigma => "top_n_sigma",
            Filter::TopK => "top_k",
            Filter::TypicalP => "typical_p",
            Filter::TopP => "top_p",
            Filter::MinP => "min_p",
            Filter::TopA => "top_a",
            Filter::PLess => "p_less",
            Filter::EpsilonCutoff => "epsilon_cutoff",
            Filter::EtaCutoff => "eta_cutoff",
            Filter::Xtc => "xtc",
        }
    }
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 3] = [Scope::Prompt, Scope::Output, Scope::Both];

    /// Returns the scope's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scope::Prompt => "prompt",
            Scope::Output => "output",
            Scope::Both => "both",
        }
    }
}

impl LogprobMode {
    /// All modes, in the order the stages pass them.
    pub const ALL: [LogprobMode; 4] =
        [LogprobMode::Raw, LogprobMode::Edited, LogprobMode::Tempered, LogprobMode::Processed];

    /// Returns the mode's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LogprobMode::Raw => "raw",
            LogprobMode::Edited => "edited",
            LogprobMode::Tempered => "tempered",
            LogprobMode::Processed => "processed",
        }
    }
}

macro_rules! named {
    ($type:ident, $parameter:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(name: &str) -> Result<Self, Error> {
                Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| Error::Unknown {
                    parameter: $parameter,
                    name: name.to_owned(),
                    known: Self::ALL.map(Self::name).join(", "),
                })
            }
        }
    };
}

named!(Filter, "filter");
named!(Scope, "scope");
named!(LogprobMode, "logprob mode");

impl fmt::Display for FilterOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterOrder::Default => f.write_str("default"),
            FilterOrder::Joint => f.write_str("joint"),
            FilterOrder::List(list) if list.is_empty() => f.write_str("none"),
            FilterOrder::List(list) => {
                let names: Vec<_> = list.iter().map(|filter| filter.name()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for FilterOrder {
    type Err = Error;

    /// Reads `default`, `joint`, `none`, or filter names separated by commas.
    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "default" => Ok(FilterOrder::Default),
            "joint" => Ok(FilterOrder::Joint),
            "none" => Ok(FilterOrder::List(Vec::new())),
            list => list.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Self::List),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for filter in Filter::ALL {
            assert_eq!(filter.name().parse(), Ok(filter));
        }
        for text in ["default", "joint", "none", "top_p,top_k,xtc"] {
            assert_eq!(text.parse::<FilterOrder>().unwrap().to_string(), text);
        }
        assert_eq!("none".parse(), Ok(FilterOrder::List(Vec::new())));
    }

    #[test]
    fn an_unknown_filter_is_named_with_the_known_ones() {
        let error = "top_q".parse::<FilterOrder>().unwrap_err().to_string();
        assert!(error.contains("\"top_q\"") && error.contains("typical_p"), "{error}");
    }
}
