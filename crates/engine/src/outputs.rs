//! Outputs: all that a step or a verification says about its rows, in one buffer, and which drafts were
//! accepted.
//!
//! One buffer is one copy to wherever it is wanted; [`Layout`] says where its sections lie.

use std::ops::Range;

use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::{Error, LogprobsParams, NONE, Result, Status, memory};

use crate::sink::RowsMut;
use gumball_spec::layout::Layout;

/// All outputs of a step or a verification, in one buffer that is reused from call to call. A step is a
/// verification without drafts.
///
/// A request with n drafts has n + 1 rows, of which the first ones hold its emitted tokens, each with the
/// status, logprobs and ranks of the row of logits that it comes from. The others are as of padding. Memory
/// is allocated only when a call needs more than any before it.
///
/// ```
/// # use gumball_engine::*;
/// let mut pool = Pool::new(PoolConfig::new(2))?;
/// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
/// let mut out = Outputs::new();
/// // The request draws 1, and not 0.
/// let batch = Batch { slots: &[slot], counts: &[2], ..Batch::default() };
/// let rows = Rows::logits(&[0.0f32, 1.0, 0.0, 1.0, 0.0, 1.0], 3, 2)?;
/// pool.verify(rows, &batch, &Drafts::chain(&[1, 0]), &mut out)?;
/// assert_eq!(out.tokens(), [1, 1, NONE]);
/// assert_eq!((out.request(0).tokens, out.request(0).accepted), (&[1, 1][..], 1));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    layout: Layout,
    words: Vec<u32>,
    with_kept: bool,
    kept: Vec<Vec<u32>>,
    is_approximate: bool,
    /// The first row of each request of a verification, and the end of the last one's; empty if each has one
    /// row.
    starts: Vec<usize>,
    accepted: Vec<u32>,
    /// For each row of outputs the row of logits that it comes from.
    rows: Vec<u32>,
}

/// The outputs of a request.
#[derive(Clone, Debug)]
pub struct Emitted<'a> {
    /// The accepted drafts and one token more, which is [`NONE`] from an empty row; none for padding.
    pub tokens: &'a [i32],
    /// The rows of logits that these come from, as a batch counts them. They are also the rows whose keys and
    /// values a model's cache keeps.
    pub rows: &'a [u32],
    /// How many drafts were accepted.
    pub accepted: u32,
    /// Which rows of the outputs say more of these tokens.
    pub places: Range<usize>,
}

/// The row of a row of outputs that no token was emitted for.
pub(crate) const PADDED: u32 = u32::MAX;

impl Outputs {
    /// Makes empty outputs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns where the sections lie.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns whether the rows came from a clustered head: tokens, kept sets, logprobs and ranks are those
    /// of the ids that it computed, and approximate the outputs of the exact head.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.is_approximate
    }

    /// Says by what kind of head the rows were made; rows that are written again are exact ones until it is
    /// said.
    pub(crate) fn mark_approximate(&mut self, is_approximate: bool) {
        self.is_approximate = is_approximate;
    }

    /// Returns the buffer, in the layout of [`Layout`].
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words[..self.layout.words()]
    }

    /// Returns the token of each row, [`NONE`] where there is none.
    #[must_use]
    pub fn tokens(&self) -> &[i32] {
        bytemuck::cast_slice(&self.words[self.layout.tokens()])
    }

    /// Returns the bits of each row's [`Status`].
    #[must_use]
    pub fn statuses(&self) -> &[u32] {
        &self.words[self.layout.statuses()]
    }

    /// Returns the status of a row.
    #[must_use]
    pub fn status(&self, row: usize) -> Status {
        Status(self.statuses()[row])
    }

    /// Returns the logprob of each row's token; -inf if it was not asked for.
    #[must_use]
    pub fn logprobs(&self) -> &[f32] {
        self.floats(self.layout.logprobs())
    }

    /// Returns the rank of each row's token, from 1; 0 if it was not asked for, or is no member.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.words[self.layout.ranks()]
    }

    /// Returns the temperature in use in each row; 0 if greedy.
    #[must_use]
    pub fn temperatures(&self) -> &[f32] {
        self.floats(self.layout.temperatures())
    }

    /// Returns mirostat's limit, in bits, or the mean of adaptive-p after each row; 0 without both.
    #[must_use]
    pub fn mirostat_mu(&self) -> &[f32] {
        self.floats(self.layout.mirostat_mu())
    }

    /// Returns the logprob of each row's token in the second of two modes; -inf if none was asked for.
    #[must_use]
    pub fn second_logprobs(&self) -> &[f32] {
        self.floats(self.layout.second_logprobs())
    }

    /// Returns the most likely ids of a row, `top_n` of them, [`NONE`] where there are no more.
    #[must_use]
    pub fn top_ids(&self, row: usize) -> &[i32] {
        let width = self.layout.widths.top_n;
        let ids: &[i32] = bytemuck::cast_slice(&self.words[self.layout.top_ids()]);
        &ids[row * width..][..width]
    }

    /// Returns the logprobs of [`Outputs::top_ids`].
    #[must_use]
    pub fn top_logprobs(&self, row: usize) -> &[f32] {
        let width = self.layout.widths.top_n;
        &self.floats(self.layout.top_logprobs())[row * width..][..width]
    }

    /// Returns the logprobs of the ids that a row's request names, in its order.
    #[must_use]
    pub fn id_logprobs(&self, row: usize) -> &[f32] {
        let width = self.layout.widths.ids;
        &self.floats(self.layout.id_logprobs())[row * width..][..width]
    }

    /// Returns the ranks of the ids that a row's request names, in its order.
    #[must_use]
    pub fn id_ranks(&self, row: usize) -> &[u32] {
        let width = self.layout.widths.ids;
        &self.words[self.layout.id_ranks()][row * width..][..width]
    }

    /// Returns the logprobs of a row whose request asked for these.
    #[must_use]
    pub fn logprobs_of(&self, row: usize, asked: &LogprobsParams) -> Logprobs {
        let of = |((id, logprob), rank): ((i32, &f32), u32)| TokenLogprob { id, logprob: *logprob, rank };
        let top = self.top_ids(row).iter().copied().zip(self.top_logprobs(row)).zip(1..);
        let ids = asked.ids.iter().map(|id| *id as i32).zip(self.id_logprobs(row));
        Logprobs {
            token: of(((self.tokens()[row], &self.logprobs()[row]), self.ranks()[row])),
            top: top
                .take(asked.top_n as usize)
                .map(|(told, rank)| of((told, if told.0 == NONE { 0 } else { rank })))
                .collect(),
            ids: ids.zip(self.id_ranks(row).iter().copied()).map(of).collect(),
            second: self.second_logprobs()[row],
        }
    }

    /// Returns how many drafts of each request were accepted.
    #[must_use]
    pub fn accepted(&self) -> &[u32] {
        &self.accepted
    }

    /// Returns for each row of a verification the row of the logits that it comes from, [`u32::MAX`] where no
    /// token was emitted; empty for a step.
    #[must_use]
    pub fn path(&self) -> &[u32] {
        if self.starts.is_empty() { &[] } else { &self.rows }
    }

    /// Returns what came out for a request, by its number in the batch.
    ///
    /// # Panics
    /// If there is no such request: there are as many as [`Outputs::accepted`] has numbers.
    #[must_use]
    pub fn request(&self, request: usize) -> Emitted<'_> {
        let start = self.starts.get(request).copied().unwrap_or(request);
        let accepted = self.accepted[request];
        let is_padding = match self.starts.is_empty() {
            // A row of a step that was drawn without a token has a status.
            true => self.tokens()[start] == NONE && self.statuses()[start] == 0,
            false => self.rows[start] == PADDED,
        };
        let places = start..start + if is_padding { 0 } else { accepted as usize + 1 };
        let (tokens, rows) = (&self.tokens()[places.clone()], &self.rows[places.clone()]);
        Emitted { tokens, rows, accepted, places }
    }

    /// Says which row of the logits each row of a verification comes from, [`PADDED`] for none. `starts`: the
    /// first row of each request, and the end of the last one's.
    pub(crate) fn note_walks(&mut self, starts: &[usize], rows: Vec<u32>) {
        let emitted = |places: Range<usize>| rows[places].iter().take_while(|row| **row != PADDED).count();
        let accepted = |[start, end]: &[usize; 2]| emitted(*start..*end).saturating_sub(1) as u32;
        self.accepted.clear();
        self.accepted.extend(starts.array_windows().map(accepted));
        self.starts.clear();
        self.starts.extend_from_slice(starts);
        self.rows = rows;
    }

    /// Returns the row of the logits that a row comes from, [`PADDED`] for none.
    pub(crate) fn row_of_logits(&self, row: usize) -> u32 {
        self.rows[row]
    }

    /// Returns the ids that a row's filters kept, ascending, on the host as on a device; its length is their
    /// count. [`Sampler::kept`](crate::Sampler::kept) has them in the order of tokens.
    ///
    /// Empty for an empty row, for padding, and unless the pool keeps them
    /// ([`PoolConfig::kept`](crate::PoolConfig::kept)). Kept sets vary in length, so they do not lie in the
    /// buffer.
    #[must_use]
    pub fn kept(&self, row: usize) -> &[u32] {
        self.kept.get(row).map_or(&[], Vec::as_slice)
    }

    /// Returns the kept sets of all rows in one list: how many ids each row has, and the ids of
    /// [`Outputs::kept`], row after row.
    ///
    /// Both are empty unless the pool keeps them.
    #[must_use]
    pub fn kept_sets(&self) -> (Vec<u32>, Vec<u32>) {
        let sets = &self.kept[..if self.with_kept { self.layout.rows } else { 0 }];
        (sets.iter().map(|ids| ids.len() as u32).collect(), sets.concat())
    }

    /// Returns the most words that [`Outputs::pack`] appends for a row.
    pub(crate) fn most_packed(&self, vocab: usize) -> usize {
        let words: usize = sections(self.layout).iter().map(|(_, width)| width).sum();
        words + if self.with_kept { 1 + vocab } else { 0 }
    }

    /// Appends all that is said of a row to a message, as words in the order of [`Layout`]; last, if kept
    /// sets are collected, the length of the row's and its ids.
    pub(crate) fn pack(&self, row: usize, to: &mut Vec<u32>) {
        for (section, width) in sections(self.layout) {
            to.extend_from_slice(&self.words[section.start + row * width..][..width]);
        }
        if self.with_kept {
            to.push(self.kept[row].len() as u32);
            to.extend_from_slice(&self.kept[row]);
        }
    }

    /// Takes what [`Outputs::pack`] wrote off the front of a message, as a row of its own; `None` where the
    /// message ends before.
    pub(crate) fn unpack(&mut self, row: usize, from: &mut &[u32]) -> Option<()> {
        for (section, width) in sections(self.layout) {
            let words = from.split_off(..width)?;
            self.words[section.start + row * width..][..width].copy_from_slice(words);
        }
        if self.with_kept {
            let count = *from.split_off_first()? as usize;
            let kept = &mut self.kept[row];
            kept.clear();
            kept.extend_from_slice(from.split_off(..count)?);
        }
        Some(())
    }

    fn floats(&self, words: Range<usize>) -> &[f32] {
        bytemuck::cast_slice(&self.words[words])
    }

    /// Takes a shape; the content of the buffer is unspecified then.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system refuses the memory; nothing was changed.
    fn resize(&mut self, layout: Layout) -> Result<()> {
        self.reserve(layout)?;
        self.layout = layout;
        self.is_approximate = false;
        // After a step of as many rows they are what they shall be.
        if !self.starts.is_empty() || self.rows.len() != layout.rows {
            self.starts.clear();
            self.accepted.clear();
            self.accepted.resize(layout.rows, 0);
            self.rows.clear();
            self.rows.extend(0..layout.rows as u32);
        }
        if self.words.len() < layout.words() {
            self.words.resize(layout.words(), 0);
        }
        self.kept.iter_mut().for_each(Vec::clear);
        if self.with_kept && self.kept.len() < layout.rows {
            self.kept.resize_with(layout.rows, Vec::new);
        }
        Ok(())
    }

    /// Reserves memory for a shape, and keeps what is there.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system refuses the memory.
    pub(crate) fn reserve(&mut self, layout: Layout) -> Result<()> {
        let Some(words) = layout.checked_words() else {
            let reason = format!("{} rows of {:?} fit no memory; ask for fewer", layout.rows, layout.widths);
            return Err(Error::Unavailable { resource: OUTPUTS, reason });
        };
        memory::reserve(OUTPUTS, &mut self.words, words)?;
        memory::reserve(OUTPUTS, &mut self.accepted, layout.rows)?;
        memory::reserve(OUTPUTS, &mut self.rows, layout.rows)?;
        let kept = if self.with_kept { layout.rows } else { 0 };
        memory::reserve(OUTPUTS, &mut self.kept, kept)
    }

    /// Copies other outputs.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system refuses the memory.
    pub(crate) fn copy_from(&mut self, other: &Self) -> Result<()> {
        self.with_kept = other.with_kept;
        let (words, kept) = self.whole(other.layout)?;
        words.copy_from_slice(other.words());
        kept.iter_mut().zip(&other.kept).for_each(|(to, from)| to.clone_from(from));
        self.is_approximate = other.is_approximate;
        self.starts.clone_from(&other.starts);
        self.accepted.clone_from(&other.accepted);
        self.rows.clone_from(&other.rows);
        Ok(())
    }

    /// Says whether the rows that are written next come with their kept sets.
    pub(crate) fn collect_kept(&mut self, with_kept: bool) {
        self.with_kept = with_kept;
    }

    /// Returns whether rows come with their kept sets.
    pub(crate) fn collects_kept(&self) -> bool {
        self.with_kept
    }

    /// Takes a shape and returns the buffer to be written, and a list of kept ids a row if they are
    /// collected.
    pub(crate) fn whole(&mut self, layout: Layout) -> Result<(&mut [u32], &mut [Vec<u32>])> {
        self.resize(layout)?;
        let kept = if self.with_kept { layout.rows } else { 0 };
        Ok((&mut self.words[..layout.words()], &mut self.kept[..kept]))
    }

    /// Takes a shape and returns the rows to be written.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the system refuses the memory; nothing was changed.
    pub(crate) fn reshape(&mut self, layout: Layout) -> Result<RowsMut<'_>> {
        self.resize(layout)?;

        let mut rest = &mut self.words[..layout.words()];
        let mut next =
            |section: Range<usize>| rest.split_off_mut(..section.len()).expect("inside the layout");
        Ok(RowsMut {
            first: 0,
            widths: layout.widths,
            tokens: bytemuck::cast_slice_mut(next(layout.tokens())),
            statuses: next(layout.statuses()),
            logprobs: bytemuck::cast_slice_mut(next(layout.logprobs())),
            ranks: next(layout.ranks()),
            temperatures: bytemuck::cast_slice_mut(next(layout.temperatures())),
            mirostat_mu: bytemuck::cast_slice_mut(next(layout.mirostat_mu())),
            second_logprobs: bytemuck::cast_slice_mut(next(layout.second_logprobs())),
            top_ids: bytemuck::cast_slice_mut(next(layout.top_ids())),
            top_logprobs: bytemuck::cast_slice_mut(next(layout.top_logprobs())),
            id_logprobs: bytemuck::cast_slice_mut(next(layout.id_logprobs())),
            id_ranks: next(layout.id_ranks()),
            kept: if self.with_kept { &mut self.kept[..layout.rows] } else { &mut [] },
        })
    }
}

/// Returns the sections of a layout, each with its number of words a row.
fn sections(layout: Layout) -> [(Range<usize>, usize); 11] {
    let (top_n, ids) = (layout.widths.top_n, layout.widths.ids);
    [
        (layout.tokens(), 1),
        (layout.statuses(), 1),
        (layout.logprobs(), 1),
        (layout.ranks(), 1),
        (layout.temperatures(), 1),
        (layout.mirostat_mu(), 1),
        (layout.second_logprobs(), 1),
        (layout.top_ids(), top_n),
        (layout.top_logprobs(), top_n),
        (layout.id_logprobs(), ids),
        (layout.id_ranks(), ids),
    ]
}

/// The resource that errors name if there is no memory for so many outputs.
const OUTPUTS: &str = "memory for outputs";
