//! Filters, scopes, logprob modes and orders, and their names: the same in every language and on the command line.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Makes an enum of values with names; `what` says in errors what kind of name is not known.
macro_rules! named {
    ($what:literal, $(#[$about:meta])* $type:ident: $($(#[$of_one:meta])* $variant:ident = $name:literal,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $type {
            $($(#[$of_one])* $variant,)*
        }

        impl $type {
            /// All, in their order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Returns the name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Error;

            fn from_str(name: &str) -> Result<Self, Error> {
                Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| Error::Unknown {
                    parameter: $what,
                    name: name.to_owned(),
                    known: Self::ALL.map(Self::name).join(", "),
                })
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

named! { "filter",
    /// A filter, under its parameter's name. [`Filter::ALL`] is the default filter chain.
    Filter:
    /// Keeps logits within n standard deviations of the best (arXiv:2411.07641).
    TopNSigma = "top_n_sigma",
    /// Keeps the first k tokens.
    TopK = "top_k",
    /// Keeps the tokens whose surprise is nearest to the entropy (arXiv:2202.00666).
    TypicalP = "typical_p",
    /// Keeps the shortest prefix of mass p: nucleus sampling (arXiv:1904.09751).
    TopP = "top_p",
    /// Keeps what is at least `min_p` times as likely as the best (arXiv:2407.01082).
    MinP = "min_p",
    /// Keeps probabilities of at least `top_a` times the square of the best one's.
    TopA = "top_a",
    /// Keeps probabilities of at least the sum of the squares of all (arXiv:2509.23234).
    PLess = "p_less",
    /// Keeps probabilities of at least epsilon (arXiv:2210.15191).
    EpsilonCutoff = "epsilon_cutoff",
    /// Keeps probabilities of at least an entropy-dependent threshold (arXiv:2210.15191).
    EtaCutoff = "eta_cutoff",
    /// Sometimes drops all likely tokens but the least likely of them: "exclude top choices".
    Xtc = "xtc",
}

named! { "scope",
    /// Which part of the history a penalty counts.
    #[derive(Default)]
    Scope:
    /// The prompt alone.
    Prompt = "prompt",
    /// The generated tokens, with the draft path.
    Output = "output",
    /// Both.
    #[default]
    Both = "both",
}

named! { "logprob mode",
    /// The distribution a logprob speaks of (L1), in the order the stages make them.
    #[derive(Default)]
    LogprobMode:
    /// The row as it came, at temperature 1.
    #[default]
    Raw = "raw",
    /// After the edits, at temperature 1.
    Edited = "edited",
    /// After the edits and the temperature.
    Tempered = "tempered",
    /// After the filters: the distribution the token was drawn from.
    Processed = "processed",
}

/// In which order the filters act, and on what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterOrder {
    /// All filters in the order of [`Filter::ALL`], each on the tokens that the former left.
    #[default]
    Default,
    /// Each on the unfiltered row; the kept sets are intersected.
    Joint,
    /// The named filters in this order, each on the tokens that the former left; an empty list is written `none`.
    List(Vec<Filter>),
}

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
