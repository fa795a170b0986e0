//! Weights: a row for each id, in the type the model has them in, borrowed (from a mapped file, say) or
//! owned.

use std::borrow::Cow;
use std::ops::Range;

use gumball_spec::Row;
use half::{bf16, f16};

/// Rows of weights that follow each other.
#[derive(Clone, Debug)]
pub enum Weights<'w> {
    /// Single precision.
    F32(Cow<'w, [f32]>),
    /// Truncated single precision.
    Bf16(Cow<'w, [bf16]>),
    /// Half precision.
    F16(Cow<'w, [f16]>),
}

impl Weights<'_> {
    /// Returns all weights.
    #[must_use]
    pub fn all(&self) -> Row<'_> {
        match self {
            Weights::F32(all) => Row::F32(all),
            Weights::Bf16(all) => Row::Bf16(all),
            Weights::F16(all) => Row::F16(all),
        }
    }

    /// Returns some of the weights, by their places.
    pub(crate) fn part(&self, places: Range<usize>) -> Row<'_> {
        match self {
            Weights::F32(all) => Row::F32(&all[places]),
            Weights::Bf16(all) => Row::Bf16(&all[places]),
            Weights::F16(all) => Row::F16(&all[places]),
        }
    }

    /// Returns how many bytes an element has.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        match self {
            Weights::F32(_) => 4,
            Weights::Bf16(_) | Weights::F16(_) => 2,
        }
    }
}

macro_rules! weights_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'w> From<&'w [$type]> for Weights<'w> {
            fn from(all: &'w [$type]) -> Self {
                Weights::$variant(Cow::Borrowed(all))
            }
        }

        impl<'w> From<&'w Vec<$type>> for Weights<'w> {
            fn from(all: &'w Vec<$type>) -> Self {
                Weights::$variant(Cow::Borrowed(all))
            }
        }

        impl<'w, const N: usize> From<&'w [$type; N]> for Weights<'w> {
            fn from(all: &'w [$type; N]) -> Self {
                Weights::$variant(Cow::Borrowed(all))
            }
        }

        impl From<Vec<$type>> for Weights<'_> {
            fn from(all: Vec<$type>) -> Self {
                Weights::$variant(Cow::Owned(all))
            }
        }
    )*};
}

weights_from!(f32 => F32, bf16 => Bf16, f16 => F16);
