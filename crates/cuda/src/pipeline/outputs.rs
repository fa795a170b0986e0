//! The outputs of a step, read back in one copy.

use std::ops::Range;

use gumball_spec::layout::Layout;
use gumball_spec::{Result, Status, memory};

/// All outputs of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    pub(crate) layout: Layout,
    pub(crate) words: Vec<u32>,
    /// The kept ids of each row, ascending; empty unless the workspace records kept sets.
    pub(crate) kept: Vec<Vec<u32>>,
}

impl Outputs {
    /// Makes outputs of zeros, with places for kept sets or without.
    pub(crate) fn zeros(layout: Layout, kept: bool) -> Result<Self> {
        const OUTPUTS: &str = "memory for outputs";
        let words = layout.checked_words().unwrap_or(usize::MAX);
        Ok(Self {
            layout,
            words: memory::filled(OUTPUTS, 0, words)?,
            kept: memory::filled(OUTPUTS, Vec::new(), if kept { layout.rows } else { 0 })?,
        })
    }

    /// Moves the outputs of a step to the places of row `row` and the rows after it.
    pub(crate) fn write_from(&mut self, row: usize, mut part: Outputs) {
        let rows = part.layout.rows;
        for (to, from) in sections(self.layout).into_iter().zip(sections(part.layout)) {
            let width = from.len() / rows;
            self.words[to][row * width..][..from.len()].copy_from_slice(&part.words[from]);
        }
        if !part.kept.is_empty() {
            self.kept[row..][..rows].swap_with_slice(&mut part.kept);
        }
    }

    /// Returns the offsets of the sections.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns all 32-bit words, in the layout of [`Layout`].
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Returns a row's token; [`gumball_spec::NONE`] if the row has none.
    #[must_use]
    pub fn token(&self, row: usize) -> i32 {
        self.words[self.layout.tokens()][row] as i32
    }

    /// Returns a row's status bits.
    #[must_use]
    pub fn status(&self, row: usize) -> Status {
        Status(self.words[self.layout.statuses()][row])
    }

    /// Returns the temperature that a row was drawn at; 0 if greedy.
    #[must_use]
    pub fn temperature(&self, row: usize) -> f32 {
        f32::from_bits(self.words[self.layout.temperatures()][row])
    }

    /// Returns mirostat's limit, in bits, or the mean of adaptive-p after a row.
    #[must_use]
    pub fn mu(&self, row: usize) -> f32 {
        f32::from_bits(self.words[self.layout.mirostat_mu()][row])
    }

    /// Returns a row's kept ids, ascending; `None` unless the workspace records kept sets.
    #[must_use]
    pub fn kept(&self, row: usize) -> Option<&[u32]> {
        self.kept.get(row).map(Vec::as_slice)
    }
}

/// Returns the ranges of all sections, in words.
fn sections(layout: Layout) -> [Range<usize>; 11] {
    [
        layout.tokens(),
        layout.statuses(),
        layout.logprobs(),
        layout.ranks(),
        layout.temperatures(),
        layout.mirostat_mu(),
        layout.second_logprobs(),
        layout.top_ids(),
        layout.top_logprobs(),
        layout.id_logprobs(),
        layout.id_ranks(),
    ]
}
