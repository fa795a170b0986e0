//! The parts of the parameters that are more than a number.

/// Which part of the history a penalty counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Scope {
    /// The prompt alone.
    Prompt,
    /// What was generated, with the draft path.
    Output,
    /// Both.
    #[default]
    Both,
}

/// A filter, under its parameter's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum Filter {
    /// Keeps logits within n standard deviations of the best (arXiv:2411.07641).
    TopNSigma,
    /// Keeps the first k tokens.
    TopK,
    /// Keeps the tokens whose surprise is nearest to the entropy (arXiv:2202.00666).
    TypicalP,
    /// Keeps the shortest prefix of mass p: nucleus sampling (arXiv:1904.09751).
    TopP,
    /// Keeps what is at least `min_p` times as likely as the best (arXiv:2407.01082).
    MinP,
    /// Keeps probabilities of at least `top_a` times the square of the best one's.
    TopA,
    /// Keeps probabilities of at least the sum of the squares of all (arXiv:2509.23234).
    PLess,
    /// Keeps probabilities of at least epsilon (arXiv:2210.15191).
    EpsilonCutoff,
    /// Keeps probabilities of at least an entropy-dependent threshold (arXiv:2210.15191).
    EtaCutoff,
    /// Sometimes drops all likely tokens but the least likely of them: "exclude top choices".
    Xtc,
}

/// In which order the filters act, and on what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterOrder {
    /// top-n-sigma, top-k, typical-p, top-p, min-p, top-a, p-less, epsilon, eta, XTC, each on what the former left.
    #[default]
    Default,
    /// Each on the unfiltered row; the kept sets are intersected.
    Joint,
    /// The filters named, in this order, each on what the former left; an empty list is written `none`.
    List(Vec<Filter>),
}

/// Entropy-based temperature: certain rows get `min`, uncertain ones `max` (F7).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DynamicTemperature {
    /// The temperature of a row of entropy 0; in 0..=2^100.
    pub min: f32,
    /// The temperature of a flat row; in `min`..=2^100.
    pub max: f32,
    /// The power the normalised entropy is raised to; in (0, 2^16], 1 if left out.
    pub exponent: f32,
}

impl DynamicTemperature {
    /// Returns the range with an exponent of 1.
    #[must_use]
    pub fn new(min: f32, max: f32) -> Self {
        Self { min, max, exponent: Self::default_exponent() }
    }

    fn default_exponent() -> f32 {
        1.0
    }
}

/// Mirostat v2 (arXiv:2007.14966): keeps the surprise of the drawn tokens near `tau` (F6).
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Mirostat {
    /// The surprise aimed at, in bits; in (0, 2^16].
    pub tau: f32,
    /// How fast the limit follows; in 0..=2^16.
    pub eta: f32,
    /// The limit to start from, in bits; twice `tau` if absent.
    pub mu: Option<f32>,
}

/// The DRY repetition penalty: the longer the repeat a token would continue, the larger (E3).
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Dry {
    /// The penalty of a repeat of `allowed_length`; in 0..=2^16, 0 is off.
    pub multiplier: f32,
    /// By how much each further token multiplies it; in 1..=2^16.
    pub base: f32,
    /// The shortest repeat that is penalised; at least 1.
    pub allowed_length: u32,
    /// Ids that no repeat reaches across.
    pub breakers: Vec<u32>,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, breakers: Vec::new() }
    }
}

/// The distribution a logprob speaks of (L1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum LogprobMode {
    /// The row as it came, at temperature 1.
    #[default]
    Raw,
    /// After the edits, at temperature 1.
    Edited,
    /// After the edits and the temperature.
    Tempered,
    /// After the filters: the distribution the token was drawn from.
    Processed,
}

/// Which logprobs to report with the token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LogprobsParams {
    /// The distribution they speak of.
    pub mode: LogprobMode,
    /// How many of the most likely tokens to list; at most 2^20.
    pub top_n: u32,
    /// Ids to report besides; each in the vocabulary.
    pub ids: Vec<u32>,
}
