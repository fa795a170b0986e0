//! A request's parameters, validated once and made ready for many rows.

use std::sync::Arc;

use gumball_spec::watermark::{self, Key, Words};
use gumball_spec::{Filter, FilterOrder, Loops, Reading, Result, SamplingParams, Section, TILE, Wanted};

use crate::tiles::MASK_WORDS;

/// Parameters that were validated for a vocabulary.
#[derive(Clone, Debug)]
pub struct Prepared {
    params: SamplingParams,
    vocab: usize,
    filters: Vec<Filter>,
    reading: Reading,
    is_edited: bool,
    allowed: Option<Vec<u32>>,
    bias: Vec<(u32, f32)>,
    section: Option<Arc<Section>>,
    loops: Option<Arc<Loops>>,
    key: Option<Key>,
}

impl Prepared {
    /// Validates parameters for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// The errors of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self> {
        params.validate(vocab)?;
        let allowed = params.allowed_ids.as_ref().map(|ids| {
            let mut words = vec![0; vocab.div_ceil(TILE) * MASK_WORDS];
            for id in ids {
                words[*id as usize / 32] |= 1 << (id % 32);
            }
            words
        });
        let filters: Vec<Filter> = params.filters(vocab).collect();
        let joint = params.order == FilterOrder::Joint;
        let reading = Reading::of(&params, params.temperature, &filters, joint);
        let is_edited = params.edits();
        let mut bias = params.logit_bias.clone();
        bias.sort_unstable_by_key(|(id, _)| *id);
        let (section, loops) = (params.section.clone().map(Arc::new), params.loops.clone().map(Arc::new));
        let key = params.watermark.own().map(|watermark| watermark::key(watermark.key)).transpose()?;
        Ok(Self { params, vocab, filters, reading, is_edited, allowed, bias, section, loops, key })
    }

    /// Returns the parameters as they were given.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the vocabulary they were validated for.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the filters that are on, in the order they act.
    #[must_use]
    pub fn filters(&self) -> &[Filter] {
        &self.filters
    }

    /// Returns which logits choose a token.
    #[must_use]
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Returns whether the rows may be edited, by more than a bitmask.
    #[must_use]
    pub fn is_edited(&self) -> bool {
        self.is_edited
    }

    /// Returns which logits choose a token and give the logprobs and the kept set that the request, its pool
    /// or its step wants.
    #[must_use]
    pub fn reading_with(&self, hooked: bool, kept_set: bool) -> Reading {
        let logprobs = self.params.logprobs.as_ref().map(|logprobs| logprobs.mode);
        self.reading.with(&Wanted { hooked, kept_set, logprobs, siblings: 1 })
    }

    /// Returns the allowed ids as a bitmask over whole tiles.
    pub(crate) fn allowed(&self) -> Option<&[u32]> {
        self.allowed.as_deref()
    }

    /// Returns the section of the text that has a budget.
    pub(crate) fn section(&self) -> Option<&Arc<Section>> {
        self.section.as_ref()
    }

    /// Returns what ends an output that repeats itself.
    pub(crate) fn loops(&self) -> Option<&Arc<Loops>> {
        self.loops.as_ref()
    }

    /// Returns the words of the mark of a row that draws after these ids, if it has one (W2).
    pub(crate) fn mark(&self, ids: &[u32], prompt_len: usize) -> Option<Words> {
        self.key.and_then(|key| self.params.mark_by(key, ids, prompt_len))
    }

    /// Returns the biases, by id.
    pub(crate) fn bias(&self) -> &[(u32, f32)] {
        &self.bias
    }
}
