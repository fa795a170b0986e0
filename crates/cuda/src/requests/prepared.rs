//! Prepared requests: parameters that are validated and turned into the numbers that kernels read.

use std::sync::Arc;

use gumball_spec::section::{self, Place};
use gumball_spec::watermark;
use gumball_spec::{Error, Kind, Loops, Result, SamplingParams, Section};

use crate::abi::{Params, features};
use crate::requests::edit_params::EditLists;
use crate::requests::step_features::Variant;
use crate::requests::{edit_params, filter_params, logprob_params};

/// Parameters that are validated for a vocabulary, in the form that kernels read.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Without seed and draw index.
    pub(crate) params: Params,
    /// Parameters at temperature 0, by which greedy verification draws.
    pub(crate) greedy: Params,
    pub(crate) edits: Arc<EditLists>,
    pub(crate) logprob_ids: Vec<u32>,
    pub(crate) stop_ids: Vec<u32>,
    section: Option<Arc<Section>>,
    loops: Option<Arc<Loops>>,
    vocab: usize,
    /// The error for rows of probabilities, if these parameters are not allowed there (P2).
    pub(crate) refusal: Option<Error>,
}

impl Prepared {
    /// Validates and prepares parameters for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate`].
    pub fn new(params: &SamplingParams, vocab: usize) -> Result<Self> {
        params.validate(vocab)?;
        let mut edited = Params::default();
        let mut edits = edit_params::prepare(params, vocab, &mut edited);
        if let Some(watermark) = params.watermark.own() {
            edits.watermark = Some((watermark, watermark::key(watermark.key)?));
        }
        let [prepared, greedy] = [params.temperature, 0.0].map(|temperature| {
            let mut prepared = edited;
            filter_params::prepare(params, temperature, vocab, &mut prepared);
            if prepared.features & features::GREEDY != 0 {
                // What draws nothing is not marked (W2).
                prepared.features &= !features::WATERMARK;
            }
            logprob_params::prepare(params, temperature, vocab, &mut prepared);
            prepared
        });
        let stop_ids = params.stop_ids.clone();
        let logprob_ids = params.logprobs.as_ref().map_or_else(Vec::new, |logprobs| logprobs.ids.clone());
        let (section, loops) = (params.section.clone().map(Arc::new), params.loops.clone().map(Arc::new));
        let refusal = params.check_kind(Kind::Probabilities).err();
        let edits = Arc::new(edits);
        Ok(Self { params: prepared, greedy, edits, logprob_ids, stop_ids, section, loops, vocab, refusal })
    }

    /// Returns where a history stands in a section and in loops, if the request has any.
    pub(crate) fn place(&self, prompt: &[u32], output: &[u32]) -> Option<Place> {
        let (section, loops) = (self.section.as_deref(), self.loops.as_deref());
        (section.is_some() || loops.is_some()).then(|| section::place(section, loops, prompt, output))
    }

    /// Returns whether any edit depends on the history.
    pub(crate) fn reads_history(&self) -> bool {
        self.params.features & (features::TOKEN_COUNTS | features::HISTORY_EDITS) != 0
    }

    /// Returns whether a logprob over the kept set is reported.
    pub(crate) fn reports_kept(&self) -> bool {
        logprob_params::needs_kept(&self.params)
    }

    /// Returns the most specialised variant of a step that handles these parameters.
    #[must_use]
    pub fn variant(&self) -> Variant {
        Variant::of(&self.params)
    }

    /// Returns the vocabulary that the parameters were validated for.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }
}
