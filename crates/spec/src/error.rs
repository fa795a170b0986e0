//! Errors as data: a caller's mistake with the parameter, its value, and the allowed values; the part that a
//! machine lacks; what failed between ranks.

mod ranks;

use crate::near::hint;

pub use ranks::RanksError;

/// Why a call did nothing: no sequence was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value lies outside the range of its parameter (NaN included).
    #[error("{parameter} is {value}, but must be {allowed}")]
    OutOfRange {
        /// The parameter, under the name it has everywhere.
        parameter: &'static str,
        /// The value given.
        value: String,
        /// The allowed range, in words or as an interval.
        allowed: String,
    },
    /// Two parameters exclude each other.
    #[error("{parameter} cannot be combined with {other}: {reason}")]
    Conflict {
        /// The parameter that was set.
        parameter: &'static str,
        /// The one it conflicts with.
        other: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// A buffer or list has the wrong length.
    #[error("{parameter} has length {length}, but must have {allowed}")]
    Length {
        /// The parameter, under the name it has everywhere.
        parameter: &'static str,
        /// The length given, in elements.
        length: usize,
        /// The allowed length.
        allowed: String,
    },
    /// A name is not known.
    #[error("{parameter} \"{name}\" is not known{}; known are: {known}", hint(name, known))]
    Unknown {
        /// The kind of thing that was named.
        parameter: &'static str,
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// The machine lacks something: no mistake of the caller's, and nothing was changed either.
    #[error("no {resource}: {reason}")]
    Unavailable {
        /// The missing part.
        resource: &'static str,
        /// The machine's message, and the remedy.
        reason: String,
    },
    /// A device is lost, with all that lies on it: a kernel read or wrote where it must not, or the device
    /// failed. Each later call in this process gets the same error.
    #[error("the device is lost: {reason}")]
    DeviceLost {
        /// What failed first, what may have caused it, and the remedy.
        reason: String,
    },
    /// Something failed between the ranks of a group: no mistake of the caller's.
    #[error(transparent)]
    Ranks(Box<RanksError>),
}

impl From<RanksError> for Error {
    fn from(error: RanksError) -> Self {
        Self::Ranks(Box::new(error))
    }
}

/// A result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an [`Error::OutOfRange`], with the value as [`shown_of`] shows it.
    pub fn out_of_range(parameter: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::OutOfRange {
            parameter,
            value: shown_of(parameter, &value.to_string()),
            allowed: allowed.into(),
        }
    }

    /// Makes an [`Error::Unknown`], with the name as [`shown`] shows it.
    pub fn unknown(parameter: &'static str, name: &str, known: impl Into<String>) -> Self {
        Self::Unknown { parameter, name: shown(name), known: known.into() }
    }

    /// Makes an [`Error::Length`].
    pub fn length(parameter: &'static str, length: usize, allowed: impl Into<String>) -> Self {
        Self::Length { parameter, length, allowed: allowed.into() }
    }

    /// Returns the error with other names of its parameters, for a caller who knows them by those.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Fn(&'static str) -> &'static str) -> Self {
        match &mut self {
            Self::Conflict { parameter, other, .. } => (*parameter, *other) = (name(parameter), name(other)),
            Self::OutOfRange { parameter, .. }
            | Self::Length { parameter, .. }
            | Self::Unknown { parameter, .. } => *parameter = name(parameter),
            Self::Unavailable { .. } | Self::DeviceLost { .. } | Self::Ranks(_) => {}
        }
        self
    }

    /// Returns what failed between ranks, if it was that.
    #[must_use]
    pub fn of_ranks(&self) -> Option<&RanksError> {
        match self {
            Self::Ranks(error) => Some(error),
            _ => None,
        }
    }
}

/// The most characters that an error shows of a caller's text.
const MOST_SHOWN: usize = 120;

/// What an error shows in the place of what may be a secret key.
pub const HIDDEN: &str = "a value that is not shown";

/// Returns a caller's text, or a value as text, for an error, as [`quoted`] does: of a long one the first
/// characters, and of one with a secret key nothing.
#[must_use]
pub fn shown(text: &str) -> String {
    if has_key(text) { HIDDEN.to_owned() } else { quoted(text.as_bytes(), MOST_SHOWN) }
}

/// Returns a parameter's value for an error, as [`shown`] does. Of a parameter that takes the number of a
/// key, only a number is shown: the key itself may have been given.
#[must_use]
pub fn shown_of(parameter: &str, value: &str) -> String {
    let is_number = || value.parse::<u32>().is_ok() || value.parse::<bool>().is_ok();
    if takes_key_number(parameter) && !is_number() { HIDDEN.to_owned() } else { shown(value) }
}

/// Returns whether a parameter takes the number of a key, or a mark with one.
pub(crate) fn takes_key_number(parameter: &str) -> bool {
    ["watermark", "watermark.key", "watermark_key", "keys"].contains(&parameter)
}

/// Returns whether a text has a word as keys are written: 32 hexadecimal digits, or `0x` and 13 to 16, more
/// than addresses have.
#[must_use]
pub fn has_key(text: &str) -> bool {
    let mut words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| {
        let (digits, lengths) = match word.strip_prefix("0x") {
            Some(digits) => (digits, 13..=16),
            None => (word, 32..=32),
        };
        lengths.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Returns a text of somebody else's for an error: at most `most` characters, with escapes for characters
/// that a terminal acts on.
#[must_use]
pub fn quoted(said: &[u8], most: usize) -> String {
    // A character has 4 bytes at most.
    let said_first = String::from_utf8_lossy(&said[..said.len().min(4 * most)]);
    let escaped = |c: char| -> String {
        let is_plain = !c.is_control() && (c.is_ascii() || c.is_alphanumeric());
        if is_plain { c.to_string() } else { c.escape_unicode().to_string() }
    };
    let mut shown = String::new();
    for (place, c) in said_first.chars().enumerate() {
        if place == most {
            return shown + "..";
        }
        shown += &escaped(c);
    }
    shown
}
