//! The layout of outputs: where each section lies in the one buffer of 32-bit words.
//!
//! Sections follow each other without gaps; each is a pure function of the number of rows and the [`Widths`].

use std::ops::Range;

use crate::error::{Error, Result};
use crate::params::LogprobsParams;
use crate::row::MAX_VOCAB;

/// How many logprobs there is room for in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Widths {
    /// The most likely tokens.
    pub top_n: usize,
    /// The ids a request names.
    pub ids: usize,
}

impl Widths {
    /// Returns the room that a request's logprobs need.
    #[must_use]
    pub fn of(params: Option<&LogprobsParams>) -> Self {
        params
            .map_or_else(Self::default, |params| Self { top_n: params.top_n as usize, ids: params.ids.len() })
    }

    /// Checks that both lie in 0..=2^20, as `logprobs.top_n` of a request does: there is nothing to report
    /// beyond.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if one is not.
    pub fn check(self) -> Result<()> {
        for (parameter, width) in [("top_n", self.top_n), ("ids", self.ids)] {
            if width > MAX_VOCAB {
                return Err(Error::out_of_range(parameter, width, "in 0..=2^20"));
            }
        }
        Ok(())
    }
}

/// Where each section lies, in words, for R rows, T = `top_n` and I = `ids`.
///
/// | section | first word | words | type | without a value |
/// | --- | --- | --- | --- | --- |
/// | `tokens` | 0 | R | i32 | -1 |
/// | `statuses` | R | R | u32, bits of [`Status`](crate::Status) | 0 |
/// | `logprobs` | 2R | R | f32, of the token | -inf |
/// | `ranks` | 3R | R | u32, of the token, from 1 | 0 |
/// | `temperatures` | 4R | R | f32, in use; 0 if greedy | 0 |
/// | `mirostat_mu` | 5R | R | f32, mirostat's limit after the row, bits, or the mean of adaptive-p | 0 |
/// | `second_logprobs` | 6R | R | f32, of the token in the second mode | -inf |
/// | `top_ids` | 7R | R T | i32, row by row | -1 |
/// | `top_logprobs` | 7R + RT | R T | f32, row by row | -inf |
/// | `id_logprobs` | 7R + 2RT | R I | f32, row by row, in the order of the request's ids | -inf |
/// | `id_ranks` | 7R + 2RT + RI | R I | u32, row by row | 0 |
///
/// "Without a value" are padding rows, logprobs that a request did not ask for, and places beyond the number
/// it asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of rows.
    pub rows: usize,
    /// The room for logprobs.
    pub widths: Widths,
}

/// The sections with one word a row.
const SINGLES: usize = 7;

impl Layout {
    /// Returns the number of words.
    ///
    /// # Panics
    /// In builds with overflow checks, if there are more than can be counted; [`Layout::checked_words`] finds
    /// out.
    #[must_use]
    pub fn words(self) -> usize {
        self.rows * (SINGLES + 2 * self.widths.top_n + 2 * self.widths.ids)
    }

    /// Returns the number of words, unless there are more than memory can hold.
    #[must_use]
    pub fn checked_words(self) -> Option<usize> {
        let Widths { top_n, ids } = self.widths;
        let words = top_n.checked_add(ids)?.checked_mul(2)?.checked_add(SINGLES)?.checked_mul(self.rows)?;
        words.checked_mul(size_of::<u32>()).filter(|bytes| isize::try_from(*bytes).is_ok())?;
        Some(words)
    }

    /// Returns the words of the section `tokens`.
    #[must_use]
    pub const fn tokens(self) -> Range<usize> {
        self.single(0)
    }

    /// Returns the words of the section `statuses`.
    #[must_use]
    pub const fn statuses(self) -> Range<usize> {
        self.single(1)
    }

    /// Returns the words of the section `logprobs`.
    #[must_use]
    pub const fn logprobs(self) -> Range<usize> {
        self.single(2)
    }

    /// Returns the words of the section `ranks`.
    #[must_use]
    pub const fn ranks(self) -> Range<usize> {
        self.single(3)
    }

    /// Returns the words of the section `temperatures`.
    #[must_use]
    pub const fn temperatures(self) -> Range<usize> {
        self.single(4)
    }

    /// Returns the words of the section `mirostat_mu`.
    #[must_use]
    pub const fn mirostat_mu(self) -> Range<usize> {
        self.single(5)
    }

    /// Returns the words of the section `second_logprobs`.
    #[must_use]
    pub const fn second_logprobs(self) -> Range<usize> {
        self.single(6)
    }

    /// Returns the words of the section `top_ids`.
    #[must_use]
    pub const fn top_ids(self) -> Range<usize> {
        section(SINGLES * self.rows, self.rows * self.widths.top_n)
    }

    /// Returns the words of the section `top_logprobs`.
    #[must_use]
    pub fn top_logprobs(self) -> Range<usize> {
        section(self.top_ids().end, self.rows * self.widths.top_n)
    }

    /// Returns the words of the section `id_logprobs`.
    #[must_use]
    pub fn id_logprobs(self) -> Range<usize> {
        section(self.top_logprobs().end, self.rows * self.widths.ids)
    }

    /// Returns the words of the section `id_ranks`.
    #[must_use]
    pub fn id_ranks(self) -> Range<usize> {
        section(self.id_logprobs().end, self.rows * self.widths.ids)
    }

    const fn single(self, index: usize) -> Range<usize> {
        section(index * self.rows, self.rows)
    }
}

const fn section(start: usize, words: usize) -> Range<usize> {
    start..start + words
}

/// Returns the ids of a bitmask, ascending: bit `id % 32` of word `id / 32` is 1 for an id that it holds.
pub fn set_ids(words: &[u32]) -> impl Iterator<Item = u32> {
    let held = words.iter().zip(0u32..).filter(|(word, _)| **word != 0);
    held.flat_map(|(word, index)| {
        let mut rest = *word;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros())?;
            rest &= rest - 1;
            Some(index * 32 + bit)
        })
    })
}

/// Returns whether a bitmask holds an id; words that are missing hold none.
#[must_use]
pub fn holds_id(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_bitmask_ascend_at_both_ends_of_words() {
        assert_eq!(set_ids(&[1 | 1 << 31, 0, u32::MAX]).take(4).collect::<Vec<_>>(), [0, 31, 64, 65]);
        assert_eq!(set_ids(&[0, 1 << 31, 0]).collect::<Vec<_>>(), [63]);
        assert_eq!(set_ids(&[]).count() + set_ids(&[0; 9]).count(), 0);
    }

    #[test]
    fn words_that_no_memory_holds_are_told_apart() {
        let words = |rows, top_n, ids| Layout { rows, widths: Widths { top_n, ids } }.checked_words();
        assert_eq!(words(3, 2, 1), Some(3 * 13));
        assert_eq!(words(3, 2, 1), Some(Layout { rows: 3, widths: Widths { top_n: 2, ids: 1 } }.words()));
        assert_eq!(words(1, usize::MAX, 1), None);
        assert_eq!(words(1, usize::MAX / 4 + 1, 0), None);
        assert_eq!(words(usize::MAX / 8 + 1, 0, 0), None);
    }

    #[test]
    fn widths_are_no_wider_than_a_request_can_ask_for() {
        assert_eq!(Widths { top_n: 1 << 20, ids: 1 << 20 }.check(), Ok(()));
        let error = Widths { top_n: (1 << 20) + 1, ids: 0 }.check().unwrap_err();
        assert_eq!(error.to_string(), "top_n is 1048577, but must be in 0..=2^20");
        let ids = usize::MAX / 4 + 1;
        let error = Widths { top_n: 0, ids }.check().unwrap_err();
        assert_eq!(error.to_string(), format!("ids is {ids}, but must be in 0..=2^20"));
    }
}
