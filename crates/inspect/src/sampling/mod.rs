//! The sampling flags: every knob of [`SamplingParams`] under its own name.
//!
//! A flag that is absent leaves the value of `--params`, or the neutral one. Ranges are not checked here but
//! by [`SamplingParams::validate`], so that an error reads the same in every language.

mod file;
mod values;

use std::path::PathBuf;

use clap::Args;
use gumball_spec::{DynamicTemperature, FilterOrder, LogprobMode, Mirostat, SamplingParams, Scope};

pub use file::parse;
pub use values::{Bias, Ids};

use crate::Result;
pub use crate::settings::settings;

/// Sampling parameters, as flags.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Take parameters from a JSON file with the same names; flags go before it
    #[arg(long, value_name = "FILE")]
    pub params: Option<PathBuf>,
    /// Divide the logits by T; 0 is greedy
    #[arg(long, value_name = "T", value_parser = values::number)]
    pub temperature: Option<f32>,
    /// Let the temperature follow the entropy of the row, from MIN (certain) to MAX (flat)
    #[arg(long, value_name = "MIN,MAX[,EXP]", value_parser = values::dynamic_temperature)]
    pub dynamic_temperature: Option<DynamicTemperature>,
    /// Keep the K most likely tokens; 0 is off
    #[arg(long, value_name = "K")]
    pub top_k: Option<i64>,
    /// Keep the most likely tokens that together have probability P; 1 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely one; 0 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub min_p: Option<f32>,
    /// Keep the tokens of mass P whose surprise is nearest to the entropy; 1 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub typical_p: Option<f32>,
    /// Keep logits within N standard deviations of the best; 0 is off
    #[arg(long, value_name = "N", value_parser = values::number)]
    pub top_n_sigma: Option<f32>,
    /// Keep tokens of at least A times the square of the best probability; 0 is off
    #[arg(long, value_name = "A", value_parser = values::number)]
    pub top_a: Option<f32>,
    /// Keep tokens that are at least as likely as two draws are to be equal
    #[arg(long)]
    pub p_less: bool,
    /// Keep tokens of probability P and more; 0 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub epsilon_cutoff: Option<f32>,
    /// The same with a limit that falls with the entropy; 0 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub eta_cutoff: Option<f32>,
    /// How often XTC drops the top choices; 0 is off
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub xtc_probability: Option<f32>,
    /// The probability from which XTC calls a token a top choice
    #[arg(long, value_name = "P", value_parser = values::number)]
    pub xtc_threshold: Option<f32>,
    /// Mirostat v2: keep the surprise near TAU bits, following it at rate ETA
    #[arg(long, value_name = "TAU,ETA[,MU]", value_parser = values::mirostat)]
    pub mirostat: Option<Mirostat>,
    /// Divide positive and multiply negative logits of seen tokens by R; 1 is off
    #[arg(long, value_name = "R", value_parser = values::number)]
    pub repetition_penalty: Option<f32>,
    /// What the repetition penalty counts: prompt, output or both
    #[arg(long, value_name = "SCOPE")]
    pub repetition_scope: Option<Scope>,
    /// Subtract F for each occurrence of a token
    #[arg(long, value_name = "F", value_parser = values::number)]
    pub frequency_penalty: Option<f32>,
    /// Subtract F once from tokens that occur
    #[arg(long, value_name = "F", value_parser = values::number)]
    pub presence_penalty: Option<f32>,
    /// What frequency and presence penalty count: prompt, output or both
    #[arg(long, value_name = "SCOPE")]
    pub penalty_scope: Option<Scope>,
    /// The DRY penalty of a repeat of the allowed length; 0 is off
    #[arg(long, value_name = "M", value_parser = values::number)]
    pub dry_multiplier: Option<f32>,
    /// By how much each further repeated token multiplies it
    #[arg(long, value_name = "B", value_parser = values::number)]
    pub dry_base: Option<f32>,
    /// The shortest repeat that DRY penalises
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<u32>,
    /// Ids that no repeat reaches across
    #[arg(long, value_name = "IDS")]
    pub dry_breakers: Option<Ids>,
    /// Never repeat an n-gram of N ids; 0 is off
    #[arg(long, value_name = "N")]
    pub no_repeat_ngram: Option<u32>,
    /// Add V to the logit of an id, -inf bans it; may be repeated
    #[arg(long, value_name = "ID=V", value_delimiter = ',')]
    pub logit_bias: Vec<Bias>,
    /// Ban all other ids
    #[arg(long, value_name = "IDS")]
    pub allowed_ids: Option<Ids>,
    /// Never draw these ids
    #[arg(long, value_name = "IDS")]
    pub banned_ids: Option<Ids>,
    /// Never complete this sequence of ids; may be repeated
    #[arg(long, value_name = "IDS")]
    pub bad_words: Vec<Ids>,
    /// Ban the stop ids until N tokens are out
    #[arg(long, value_name = "N")]
    pub min_tokens: Option<u32>,
    /// The ids that end the output
    #[arg(long, value_name = "IDS")]
    pub stop_ids: Option<Ids>,
    /// The seed of all draws; chosen and printed if absent
    #[arg(long, value_name = "SEED", value_parser = values::seed)]
    pub seed: Option<u64>,
    /// Report logprobs: raw, edited, tempered or processed
    #[arg(long, value_name = "MODE")]
    pub logprobs: Option<LogprobMode>,
    /// Report the N most likely tokens besides
    #[arg(long, value_name = "N")]
    pub top_logprobs: Option<u32>,
    /// Report these ids besides
    #[arg(long, value_name = "IDS")]
    pub logprob_ids: Option<Ids>,
    /// Which filter acts on what: default, joint, or filter names in the order they act
    #[arg(long, value_name = "ORDER")]
    pub order: Option<FilterOrder>,
    /// Let the filters see the row at temperature 1
    #[arg(long)]
    pub temperature_last: bool,
}

/// Copies the flags that were given over the fields of the same name.
macro_rules! set {
    ($args:ident => $params:ident: $($field:ident),*) => {
        $(if let Some(value) = $args.$field.clone() { $params.$field = value.into(); })*
    };
}

impl SamplingArgs {
    /// Returns whether a flag was given that changes how tokens are drawn; the file, the seed, stop ids, `min_tokens` and logprobs do not.
    #[must_use]
    pub fn shapes(&self) -> bool {
        let others = Self {
            params: self.params.clone(),
            seed: self.seed,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            logprob_ids: self.logprob_ids.clone(),
            stop_ids: self.stop_ids.clone(),
            min_tokens: self.min_tokens,
            ..Self::default()
        };
        *self != others
    }

    /// Returns the parameters: those of `--params`, with the flags over them.
    ///
    /// # Errors
    /// - [`crate::Error::File`] if the file cannot be read, is no JSON, or has a name that is not known.
    pub fn to_params(&self) -> Result<SamplingParams> {
        let mut params = match &self.params {
            Some(path) => file::read(path)?,
            None => SamplingParams::default(),
        };
        set!(self => params: temperature, dynamic_temperature, top_k, top_p, min_p, typical_p, top_n_sigma,
            top_a, epsilon_cutoff, eta_cutoff, xtc_probability, xtc_threshold, mirostat, repetition_penalty,
            repetition_scope, frequency_penalty, presence_penalty, penalty_scope, no_repeat_ngram,
            min_tokens, stop_ids, seed, order, banned_ids);
        let dry = &mut params.dry;
        dry.multiplier = self.dry_multiplier.unwrap_or(dry.multiplier);
        dry.base = self.dry_base.unwrap_or(dry.base);
        dry.allowed_length = self.dry_allowed_length.unwrap_or(dry.allowed_length);
        if let Some(ids) = &self.dry_breakers {
            dry.breakers = ids.0.clone();
        }
        if !self.logit_bias.is_empty() {
            params.logit_bias = self.logit_bias.iter().map(|bias| (bias.id, bias.value)).collect();
        }
        if let Some(ids) = &self.allowed_ids {
            params.allowed_ids = Some(ids.0.clone());
        }
        if !self.bad_words.is_empty() {
            params.bad_words = self.bad_words.iter().map(|ids| ids.0.clone()).collect();
        }
        params.p_less |= self.p_less;
        params.temperature_last |= self.temperature_last;
        if self.logprobs.is_some() || self.top_logprobs.is_some() || self.logprob_ids.is_some() {
            let logprobs = params.logprobs.get_or_insert_default();
            logprobs.mode = self.logprobs.unwrap_or(logprobs.mode);
            logprobs.top_n = self.top_logprobs.unwrap_or(logprobs.top_n);
            if let Some(ids) = &self.logprob_ids {
                logprobs.ids = ids.0.clone();
            }
        }
        Ok(params)
    }
}
