//! Requests made ready for kernels: validated, turned into the numbers that kernels read, and refused if they ask
//! for what no kernel does yet.

use gumball_spec::{Error, Result, SamplingParams};

use crate::abi::{Params, asks};
use crate::{edit, filter, logprobs};

/// Parameters that were validated for a vocabulary, as kernels read them.
#[derive(Clone, Debug)]
pub struct Prepared {
    params: Params,
    logprob_ids: Vec<u32>,
    vocab: usize,
}

impl Prepared {
    /// Validates parameters for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// - Those of [`SamplingParams::validate`].
    /// - [`Error::Unavailable`] for an option that has no kernel yet.
    pub fn new(params: &SamplingParams, vocab: usize) -> Result<Self> {
        params.validate(vocab)?;
        edit::check(params)?;
        let mut prepared = Params::default();
        filter::prepare(params, vocab, &mut prepared);
        logprobs::prepare(params, &mut prepared);
        let logprob_ids = params.logprobs.as_ref().map_or_else(Vec::new, |logprobs| logprobs.ids.clone());
        Ok(Self { params: prepared, logprob_ids, vocab })
    }

    /// Returns the parameters as kernels read them, but for the seed.
    pub(crate) fn params(&self) -> Params {
        self.params
    }

    /// Returns whether any edit depends on the history.
    pub(crate) fn reads_history(&self) -> bool {
        self.params.asks & (asks::EDITS | asks::SEARCH) != 0
    }

    /// Returns the ids whose logprobs are to be reported.
    pub(crate) fn logprob_ids(&self) -> &[u32] {
        &self.logprob_ids
    }

    /// Returns the vocabulary they were validated for.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}

/// Refuses an option that is set but has no kernel yet.
pub(crate) fn refuse(option: &'static str, set: bool) -> Result<()> {
    if !set {
        return Ok(());
    }
    Err(Error::Unavailable {
        resource: "CUDA kernel",
        reason: format!("{option} is not there on this backend yet; run the request on the CPU"),
    })
}
