//! The part of a file of logits that is read: the chosen rows, and the bounds that each kind of file has in
//! common.

use gumball_spec::MAX_VOCAB;

use super::{Data, Logits};
use crate::machine::size;

/// The most bytes of rows that are held.
pub(super) const MOST_BYTES: u64 = 4 << 30;

/// Rows of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The chosen rows, each once, in the order of the file.
    pub logits: Logits,
    /// The number in the file of each of them.
    pub numbers: Vec<usize>,
    /// Which of them are meant, in the order named.
    pub rows: Vec<usize>,
}

impl Chosen {
    /// Takes rows that all are held.
    pub(super) fn all(logits: Logits, rows: Vec<usize>) -> Self {
        Self { numbers: (0..logits.rows()).collect(), logits, rows }
    }
}

/// How the rows of a file lie in it.
pub(super) struct Layout {
    /// Without elements.
    pub data: Data,
    pub shape: Vec<usize>,
    /// Where the first one begins.
    pub start: u64,
}

/// Checks the length of rows, also against that which was named.
pub(super) fn check_vocab(found: usize, vocab: Option<usize>) -> Result<(), String> {
    if !(1..=MAX_VOCAB).contains(&found) {
        return Err(format!("a row has {found} logits; Gumball takes 1 to 2^20 of them"));
    }
    match vocab {
        Some(vocab) if vocab != found => Err(format!("its rows have {found} logits, but --vocab is {vocab}")),
        _ => Ok(()),
    }
}

/// Says that rows are too many to be held.
pub(super) fn too_many(bytes: u64) -> String {
    format!(
        "its rows take {}, more than the {} that are read; choose some by --rows",
        size(bytes),
        size(MOST_BYTES)
    )
}
