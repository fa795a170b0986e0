//! A request's parameters, validated once and made ready for many rows.

use gumball_spec::{Result, SamplingParams};

/// Parameters that were validated for a vocabulary.
#[derive(Clone, Debug)]
pub struct Prepared {
    params: SamplingParams,
    vocab: usize,
}

impl Prepared {
    /// Validates parameters for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// Those of [`SamplingParams::validate`].
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self> {
        params.validate(vocab)?;
        Ok(Self { params, vocab })
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
}
