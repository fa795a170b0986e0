//! Every knob of a request, as plain data under the field's names.
//!
//! `SamplingParams::default()` is neutral: it draws from the row as it is, at temperature 1. What each
//! value means stands at its field. Names and ranges stand in the tables of `table.rs`, by which all surfaces read
//! parameters; [`SamplingParams::validate`] checks them.

#[cfg(feature = "serde")]
mod json;
mod names;
mod parts;
mod table;
mod validate;

pub use parts::{Dry, DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobsParams, Mirostat, Scope};
pub use table::{Field, Parameter, Parameters, Range};

/// Everything a request can ask of the way its tokens are chosen.
///
/// Plain data: build it with struct update syntax from `default()`, then hand it over; it is validated
/// where it is admitted. Read from JSON, a name that is not known is an error: a misspelt filter would be
/// a filter that is silently off.
///
/// ```
/// use gumball_spec::SamplingParams;
/// let params = SamplingParams { temperature: 0.8, top_k: 50, top_p: 0.9, ..Default::default() };
/// assert!(params.validate(32_000).is_ok());
/// let error = SamplingParams { min_p: 1.5, ..Default::default() }.validate(32_000).unwrap_err();
/// assert_eq!(error.to_string(), "min_p is 1.5, but must be in 0..=1 (0: off)");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy, as is anything below 2^-100; at most 2^100.
    pub temperature: f32,
    /// Replaces `temperature`, unless that is 0, by one that follows the row's entropy.
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// How many tokens to keep; at least 0, off if 0 or at least the vocabulary.
    pub top_k: i64,
    /// The mass to keep; in 0..=1, 1 is off.
    pub top_p: f32,
    /// The mass to keep around the entropy; in 0..=1, 1 is off.
    pub typical_p: f32,
    /// The least probability, relative to the best token's, that is kept; in 0..=1, 0 is off.
    pub min_p: f32,
    /// How many standard deviations below the best logit are kept; finite and at least 0, 0 is off.
    pub top_n_sigma: f32,
    /// The least probability that is kept, as a multiple of the square of the best token's; in 0..=1, 0 is off.
    pub top_a: f32,
    /// Whether tokens less likely than two draws are to be equal are dropped: p-less sampling.
    pub p_less: bool,
    /// The least probability that is kept; in 0..=1, 0 is off.
    pub epsilon_cutoff: f32,
    /// The entropy-dependent form of it; in 0..=1, 0 is off.
    pub eta_cutoff: f32,
    /// How often XTC acts; in 0..=1, 0 is off.
    pub xtc_probability: f32,
    /// The probability from which a token counts as a top choice; in (0, 1].
    pub xtc_threshold: f32,
    /// Mirostat v2, which stands alone: no filter beside it, and no drafts (F6).
    pub mirostat: Option<Mirostat>,
    /// Divides positive and multiplies negative logits of seen tokens; in (0, 2^16], 1 is off.
    pub repetition_penalty: f32,
    /// What the repetition penalty counts as seen.
    pub repetition_scope: Scope,
    /// Subtracted once per occurrence; in -2^16..=2^16, 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once if there is any occurrence; in -2^16..=2^16, 0 is off.
    pub presence_penalty: f32,
    /// What frequency and presence penalty count.
    pub penalty_scope: Scope,
    /// The DRY repetition penalty.
    pub dry: Dry,
    /// Bans every token that would complete an n-gram of this size a second time; 0 is off.
    pub no_repeat_ngram: u32,
    /// Added to logits; distinct ids in the vocabulary, finite or -inf (a ban).
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::write_biases"))]
    pub logit_bias: Vec<(u32, f32)>,
    /// If present, all other ids are banned; ids in the vocabulary.
    pub allowed_ids: Option<Vec<u32>>,
    /// Ids that are never drawn; in the vocabulary.
    pub banned_ids: Vec<u32>,
    /// Sequences that are never completed, each of at least one id.
    pub bad_words: Vec<Vec<u32>>,
    /// How many output tokens must exist before a stop id may be drawn.
    pub min_tokens: u32,
    /// The ids that end the output.
    pub stop_ids: Vec<u32>,
    /// The seed of all draws; absent: fresh entropy for each request, readable afterwards.
    pub seed: Option<u64>,
    /// Which logprobs to report; absent: none.
    pub logprobs: Option<LogprobsParams>,
    /// In which order the filters act.
    pub order: FilterOrder,
    /// Whether the filters see the row at temperature 1, and only the draw is tempered (F8).
    pub temperature_last: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            dynamic_temperature: None,
            top_k: 0,
            top_p: 1.0,
            typical_p: 1.0,
            min_p: 0.0,
            top_n_sigma: 0.0,
            top_a: 0.0,
            p_less: false,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: None,
            repetition_penalty: 1.0,
            repetition_scope: Scope::Both,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_scope: Scope::Output,
            dry: Dry::default(),
            no_repeat_ngram: 0,
            logit_bias: Vec::new(),
            allowed_ids: None,
            banned_ids: Vec::new(),
            bad_words: Vec::new(),
            min_tokens: 0,
            stop_ids: Vec::new(),
            seed: None,
            logprobs: None,
            order: FilterOrder::Default,
            temperature_last: false,
        }
    }
}

/// Temperatures below this are greedy (N6).
pub const MIN_TEMPERATURE: f32 = f32::from_bits((127 - 100) << 23);

impl SamplingParams {
    /// Returns whether a temperature means greedy: 0, or so small that nothing else could be drawn.
    #[must_use]
    pub fn is_greedy(temperature: f32) -> bool {
        temperature < MIN_TEMPERATURE
    }

    /// Returns whether a filter is set: its value is none that switches it off, though no row may lose a token by it.
    #[must_use]
    pub fn is_on(&self, filter: Filter, vocab: usize) -> bool {
        match filter {
            Filter::TopNSigma => self.top_n_sigma > 0.0,
            Filter::TopK => self.top_k > 0 && (self.top_k as u64) < vocab as u64,
            Filter::TypicalP => self.typical_p < 1.0,
            Filter::TopP => self.top_p < 1.0,
            Filter::MinP => self.min_p > 0.0,
            Filter::TopA => self.top_a > 0.0,
            Filter::PLess => self.p_less,
            Filter::EpsilonCutoff => self.epsilon_cutoff > 0.0,
            Filter::EtaCutoff => self.eta_cutoff > 0.0,
            Filter::Xtc => self.xtc_probability > 0.0,
        }
    }

    /// Returns the filters that are on, in the order they act.
    pub fn filters(&self, vocab: usize) -> impl Iterator<Item = Filter> + '_ {
        let listed: &[Filter] = match &self.order {
            FilterOrder::Default | FilterOrder::Joint => &Filter::ALL,
            FilterOrder::List(list) => list,
        };
        listed.iter().copied().filter(move |filter| self.is_on(*filter, vocab))
    }

    /// Returns mirostat's limit before the first token.
    #[must_use]
    pub fn initial_mu(&self) -> f32 {
        self.mirostat.map_or(0.0, |mirostat| mirostat.mu.unwrap_or(2.0 * mirostat.tau))
    }
}
