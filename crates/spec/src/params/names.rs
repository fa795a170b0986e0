//! Scopes, logprob modes, the macro of filters, and the text form of orders and of pairs of modes. Names are
//! the same in every language and on the command line.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use super::FilterOrder;
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
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::error::Error;

            fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
                Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
                    Self::Err::unknown($what, name, Self::ALL.map(Self::name).join(", "))
                })
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

/// Makes the filters, each a line of its meaning, its name, and what [`FilterKind`] says of it.
macro_rules! filters {
    ($(#[$about:meta])* $type:ident: $($(#[$of_one:meta])* $variant:ident = $name:literal
        $($word:ident $(($value:expr))?)*;)*) => {
        named! { "filter", $(#[$about])* $type: $($(#[$of_one])* $variant = $name,)* }

        impl $type {
            /// Returns what the filter's kept sets look like.
            #[must_use]
            pub const fn kind(self) -> FilterKind {
                match self {
                    $(Self::$variant => FilterKind {
                        $($word: crate::params::names::word!($($value)?),)* ..FilterKind::PLAIN
                    },)*
                }
            }
        }
    };
}

/// The value of a field of [`FilterKind`] that a line names.
macro_rules! word {
    () => {
        true
    };
    ($value:expr) => {
        Some($value)
    };
}
pub(super) use {filters, named, word};

/// What backends may rest on where they compute a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterKind {
    /// Keeps a prefix of the order. Joint filters of this kind keep the same tokens if they act one after the
    /// other, top-p first: no other one compares with the mass of its given set.
    pub prefix: bool,
    /// Where it keeps few tokens, a list of the first ones and the row's mass decide it.
    pub listed: bool,
    /// May drop the first tokens.
    pub interval: bool,
    /// If it looks at the first tokens of its given set and at no others, their number at most: its parameter
    /// may be a smaller number of tokens.
    pub counted: Option<usize>,
    /// Kernels have its number in units of 2^-32, rounded up (F1).
    pub share: bool,
    /// Kernels have L of its number (F2).
    pub log2: bool,
}

impl FilterKind {
    pub(super) const PLAIN: Self =
        Self { prefix: false, listed: false, interval: false, counted: None, share: false, log2: false };
}

named! { "scope",
    /// Which part of the history a penalty counts, or an n-gram stands in.
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

impl Scope {
    /// Returns the places of its ids in a history of `len` ids, of which the first `prompt_len` are prompt.
    #[must_use]
    pub fn part(self, prompt_len: usize, len: usize) -> Range<usize> {
        match self {
            Scope::Prompt => 0..prompt_len,
            Scope::Output => prompt_len..len,
            Scope::Both => 0..len,
        }
    }
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
    /// No distribution: in the place of the token's logprob the radius of its row (L7). Only a second mode.
    Radius = "radius",
}

impl LogprobMode {
    /// The modes that tell logprobs, and so may come first.
    pub const OF_LOGPROBS: [Self; 4] = [Self::Raw, Self::Edited, Self::Tempered, Self::Processed];
}

/// The modes of a request's logprobs: one, or two different ones (L1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogprobModes {
    /// The mode of all that is reported.
    pub first: LogprobMode,
    /// A mode of which the token's logprob is reported besides.
    pub second: Option<LogprobMode>,
}

impl LogprobModes {
    /// Returns the first mode, then the second one if there is one.
    pub fn iter(self) -> impl Iterator<Item = LogprobMode> {
        [self.first].into_iter().chain(self.second)
    }

    /// Returns whether a mode is one of them.
    #[must_use]
    pub fn contains(self, mode: LogprobMode) -> bool {
        self.first == mode || self.second == Some(mode)
    }
}

impl From<LogprobMode> for LogprobModes {
    fn from(first: LogprobMode) -> Self {
        Self { first, second: None }
    }
}

impl TryFrom<&[LogprobMode]> for LogprobModes {
    type Error = Error;

    fn try_from(modes: &[LogprobMode]) -> Result<Self, Error> {
        match *modes {
            [first] => Ok(first.into()),
            [first, second] => Ok(Self { first, second: Some(second) }),
            _ => Err(Error::length("logprobs.mode", modes.len(), "one mode or two")),
        }
    }
}

impl fmt::Display for LogprobModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.first.name())?;
        self.second.map_or(Ok(()), |second| write!(f, ",{second}"))
    }
}

impl FromStr for LogprobModes {
    type Err = Error;

    /// Reads a mode, or two separated by a comma.
    fn from_str(text: &str) -> Result<Self, Error> {
        let modes: Vec<LogprobMode> =
            text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>()?;
        modes.as_slice().try_into()
    }
}

/// Writes one mode as its name, two as a list.
#[cfg(feature = "serde")]
impl serde::Serialize for LogprobModes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.second {
            None => self.first.serialize(serializer),
            Some(second) => [self.first, second].serialize(serializer),
        }
    }
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
    use crate::params::Filter;

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
    fn one_mode_or_two_parse_back() {
        use LogprobMode::{Processed, Raw};
        for (text, modes) in
            [("raw", Raw.into()), ("raw,processed", LogprobModes { first: Raw, second: Some(Processed) })]
        {
            assert_eq!((text.parse(), modes.to_string()), (Ok(modes), text.to_owned()));
        }
        assert_eq!("processed , raw".parse::<LogprobModes>().unwrap().to_string(), "processed,raw");
        let error = "raw,edited,tempered".parse::<LogprobModes>().unwrap_err().to_string();
        assert_eq!(error, "logprobs.mode has length 3, but must have one mode or two");
    }

    #[test]
    fn an_unknown_filter_is_named_with_the_known_ones() {
        let error = "top_q".parse::<FilterOrder>().unwrap_err().to_string();
        assert!(error.contains("\"top_q\"") && error.contains("typical_p"), "{error}");
    }
}
