//! A request's parameters, validated once and made ready for many rows.

use gumball_spec::{Filter, Result, SamplingParams, TILE};

use crate::tiles::MASK_WORDS;

/// Parameters that were validated for a vocabulary.
#[derive(Clone, Debug)]
pub struct Prepared {
    params: SamplingParams,
    vocab: usize,
    filters: Vec<Filter>,
    allowed: Option<Vec<u32>>,
    bias: Vec<(u32, f32)>,
}

impl Prepared {
    /// Validates parameters for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// Those of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self> {
        params.validate(vocab)?;
        let allowed = params.allowed_ids.as_ref().map(|ids| {
            let mut words = vec![0; vocab.div_ceil(TILE) * MASK_WORDS];
            for id in ids {
                words[*id as usize / 32] |= 1 << (id % 32);
            }
            words
        });
        let filters = params.filters(vocab).collect();
        let mut bias = params.logit_bias.clone();
        bias.sort_unstable_by_key(|(id, _)| *id);
        Ok(Self { params, vocab, filters, allowed, bias })
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

    /// Returns the allowed ids as a bitmask over whole tiles.
    pub(crate) fn allowed(&self) -> Option<&[u32]> {
        self.allowed.as_deref()
    }

    /// Returns the biases, by id.
    pub(crate) fn bias(&self) -> &[(u32, f32)] {
        &self.bias
    }
}
