//! A row of logits, its types and its status.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

/// Ids per tile; tiles are consecutive and start at id 0.
pub const TILE: usize = 256;

/// The largest vocabulary.
pub const MAX_VOCAB: usize = 1 << 20;

/// The token of a row that has none.
pub const NONE: i32 = -1;

/// The kind of a row's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Logits: a token weighs `exp(z / T)`.
    #[default]
    Logits,
    /// Probabilities, which need not sum to 1: a token weighs what its number says (P1).
    Probabilities,
}

/// One vocabulary of logits or probabilities, in the type the model left them in.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Truncated single precision.
    Bf16(&'a [bf16]),
    /// Half precision.
    F16(&'a [f16]),
}

impl<'a> Row<'a> {
    /// Returns the numbers in a range.
    ///
    /// # Panics
    /// If the range is not inside the row.
    #[must_use]
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Row::F32(row) => Row::F32(&row[range]),
            Row::Bf16(row) => Row::Bf16(&row[range]),
            Row::F16(row) => Row::F16(&row[range]),
        }
    }
}

impl Row<'_> {
    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match self {
            Row::F32(row) => row.len(),
            Row::Bf16(row) => row.len(),
            Row::F16(row) => row.len(),
        }
    }

    /// Returns the logit of an id, converted exactly, NaN and infinities as they are.
    #[must_use]
    pub fn logit(&self, id: usize) -> f32 {
        match self {
            Row::F32(row) => row[id],
            Row::Bf16(row) => row[id].to_f32(),
            Row::F16(row) => row[id].to_f32(),
        }
    }

    /// Returns all logits as they count: NaN as -inf, +inf as `f32::MAX`, -0.0 as +0.0 (N7).
    #[must_use]
    pub fn logits(&self) -> Vec<f32> {
        self.values(Kind::Logits)
    }

    /// Returns all numbers as they count.
    #[must_use]
    pub fn values(&self, kind: Kind) -> Vec<f32> {
        (0..self.vocab()).map(|id| kind.clean(self.logit(id))).collect()
    }
}

macro_rules! row_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a [$type]> for Row<'a> {
            fn from(row: &'a [$type]) -> Self {
                Row::$variant(row)
            }
        }

        impl<'a> From<&'a Vec<$type>> for Row<'a> {
            fn from(row: &'a Vec<$type>) -> Self {
                Row::$variant(row)
            }
        }

        impl<'a, const N: usize> From<&'a [$type; N]> for Row<'a> {
            fn from(row: &'a [$type; N]) -> Self {
                Row::$variant(row)
            }
        }
    )*};
}

row_from!(f32 => F32, bf16 => Bf16, f16 => F16);

impl Kind {
    /// Returns a number of a row as it counts; -inf if its token can never be drawn.
    ///
    /// Logits: NaN as -inf, +inf as `f32::MAX`, -0.0 as +0.0 (N7). Probabilities: NaN, 0 and less as -inf,
    /// +inf as `f32::MAX` (P1). So the tokens of either kind are those above -inf.
    #[must_use]
    pub fn clean(self, value: f32) -> f32 {
        match self {
            Kind::Probabilities if value <= 0.0 => f32::NEG_INFINITY,
            _ => clean(value),
        }
    }

    /// Returns the number that keeps a token from being drawn, as a masked row has it: -inf or 0.
    #[must_use]
    pub fn dropped(self) -> f32 {
        match self {
            Kind::Logits => f32::NEG_INFINITY,
            Kind::Probabilities => 0.0,
        }
    }

    /// Returns what a number of a row has to say about it: `NAN`, `INF` or nothing.
    #[must_use]
    pub fn status(self, value: f32) -> Status {
        if value.is_nan() || self == Kind::Probabilities && value < 0.0 {
            Status::NAN
        } else if value == f32::INFINITY {
            Status::INF
        } else {
            Status::default()
        }
    }
}

/// Returns a logit as it counts: NaN as -inf, +inf as `f32::MAX`, -0.0 as +0.0 (N7).
#[must_use]
pub fn clean(z: f32) -> f32 {
    if z.is_nan() { f32::NEG_INFINITY } else { z.min(f32::MAX) + 0.0 }
}

/// The status of a row's data; it concerns that row alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Status(pub u32);

impl Status {
    /// A logit that bans and bitmask allow was NaN, and counted as -inf; or a probability was NaN or
    /// negative, and counted as 0.
    pub const NAN: Status = Status(1);
    /// A number that bans and bitmask allow was +inf; it counted as `f32::MAX`.
    pub const INF: Status = Status(2);
    /// No token had a logit above -inf or a probability above 0; the token is [`NONE`].
    pub const EMPTY: Status = Status(4);
    /// The parents of the request's drafts, which only a device has read, are no tree; no draft was accepted
    /// (S3).
    pub const NO_TREE: Status = Status(8);
    /// A token whose logprob was asked for, and which only a device has read, is no id of the vocabulary
    /// (L1).
    pub const NO_ID: Status = Status(16);
    /// The token was forced by the end of its request's section (B2).
    pub const SECTION: Status = Status(32);
    /// Bans or bitmask forbid the token that the end of a section or of a loop forced (B2, B5).
    pub const FORBIDDEN: Status = Status(64);
    /// A loop was found at the row, or the token was forced because of one (B5).
    pub const LOOP: Status = Status(128);
    /// The caller forced the token.
    pub const FORCED: Status = Status(256);
    /// The row draws by the words of its request's watermark (W2).
    pub const MARKED: Status = Status(512);

    /// Returns whether all bits of `other` are set.
    #[must_use]
    pub fn contains(self, other: Status) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets the bits of `other`.
    pub fn insert(&mut self, other: Status) {
        self.0 |= other.0;
    }

    /// Returns the names of the bits that are set, in small letters.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names = [
            (Self::NAN, "nan"),
            (Self::INF, "inf"),
            (Self::EMPTY, "empty"),
            (Self::NO_TREE, "no_tree"),
            (Self::NO_ID, "no_id"),
            (Self::SECTION, "section"),
            (Self::FORBIDDEN, "forbidden"),
            (Self::LOOP, "loop"),
            (Self::FORCED, "forced"),
            (Self::MARKED, "marked"),
        ];
        names.into_iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| name)
    }
}

/// Names the bits that are set: `Status(EMPTY | FORCED)`; bits without a name are a number.
impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unnamed = (10..32).filter(|bit| self.0 >> bit & 1 == 1).map(|bit| format!("1 << {bit}"));
        let set: Vec<String> = self.names().map(str::to_uppercase).chain(unnamed).collect();
        write!(f, "Status({})", set.join(" | "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_its_bits() {
        let mut status = Status::default();
        assert_eq!(format!("{status:?}"), "Status()");
        for bit in [Status::EMPTY, Status::MARKED, Status(1 << 31)] {
            status.insert(bit);
        }
        assert_eq!(format!("{status:?}"), "Status(EMPTY | MARKED | 1 << 31)");
    }
}
