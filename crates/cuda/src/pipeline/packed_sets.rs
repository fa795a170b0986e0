//! Packed sets: the kept sets of a step as they travel to the host, their lengths first, then of each row its
//! ids, or its bitmask where that has fewer words.
//!
//! A fetch launches the kernels that pack, after the step and before the host waits. A step
//! whose sets are read on the device, or not at all, does not pay for them.

use gumball_spec::layout::set_ids;

use crate::pipeline::row_lists::mask_words;

/// How many words of sets travel with the lengths, before these are known: of each row, and at least.
const FIRST_WORDS_PER_ROW: usize = 32;
const FIRST_WORDS: usize = 1024;

/// The sizes of packed sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedSets {
    pub rows: usize,
    /// The words of a set's bitmask.
    pub words: usize,
}

impl PackedSets {
    /// Returns the sizes for rows of a vocabulary.
    pub fn new(rows: usize, vocab: usize) -> Self {
        Self { rows, words: vocab.div_ceil(32) }
    }

    /// Returns the most words that they have.
    pub fn most_words(vocab: usize) -> usize {
        1 + mask_words(vocab)
    }

    /// Returns how many words are read before the lengths are known.
    pub fn first_words(self) -> usize {
        let sets = (self.rows * FIRST_WORDS_PER_ROW).max(FIRST_WORDS);
        self.rows + sets.min(self.rows * self.words)
    }

    /// Returns how many words there are by the lengths, which come first.
    pub fn all_words(self, first: &[u32]) -> usize {
        self.rows + first[..self.rows].iter().map(|length| self.words_of(*length)).sum::<usize>()
    }

    /// Appends the ids of each row to its list.
    pub fn unpack(self, packed: &[u32], to: &mut [Vec<u32>]) {
        let (lengths, mut sets) = packed.split_at(self.rows);
        for (length, ids) in lengths.iter().zip(to) {
            let set = sets.split_off(..self.words_of(*length)).expect("as many words as the lengths say");
            ids.reserve(*length as usize);
            if *length as usize > self.words { ids.extend(set_ids(set)) } else { ids.extend_from_slice(set) }
        }
    }

    /// Returns how many words a set travels as, from the number of its ids.
    fn words_of(self, length: u32) -> usize {
        self.words.min(length as usize)
    }
}
