//! The named variants of a step that a host program captures in a graph of its own: which requests each one
//! serves, and which one a request needs.
//!
//! The host program replays its graph without this crate, so the kernels of a replay cannot follow the rows.
//! It captures a step once per variant instead, and picks the graph whose variant serves its rows. The names
//! are those that engines give such graphs. Each variant also serves the requests of all before it, so the
//! maximum over the rows serves the step.

use std::fmt;
use std::str::FromStr;

use gumball_spec::{Error, Filter, Result, SamplingParams};

use crate::abi::{Params, chains, filter_code};
use crate::requests::prepared::Prepared;
use crate::requests::step_features::{StepFeatures, Variant};

/// A named set of requests that a captured step serves, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepVariant {
    /// Greedy decoding, and sampling without filters.
    NoFilter,
    /// Min-p as the only filter. Its kernels are those of `NoFilter`.
    MinP,
    /// Filter chains that begin with top-k up to 320, without top-p. Other filters that kernels try on a list
    /// may follow.
    TopK,
    /// Filter chains that begin with top-k up to 320, and apply top-p to the tokens that it keeps. They run
    /// the kernels of `TopK`.
    TopKTopP,
    /// Filter chains that begin with top-p, and top-k and top-p that act jointly.
    TopP,
    /// Penalties of the whole history, biases, bans, bitmasks, and the emitted token's logprob (`raw`,
    /// `edited` or `tempered`), on what `TopP` serves.
    Edits,
    /// Every request.
    Full,
}

impl StepVariant {
    /// All variants, in ascending order.
    pub const ALL: [Self; 7] =
        [Self::NoFilter, Self::MinP, Self::TopK, Self::TopKTopP, Self::TopP, Self::Edits, Self::Full];

    /// Returns the smallest variant that serves a request.
    ///
    /// # Errors
    /// The errors of [`SamplingParams::validate`].
    pub fn of(params: &SamplingParams, vocab: usize) -> Result<Self> {
        Ok(Self::with_features(&Prepared::new(params, vocab)?.params).1)
    }

    /// Returns the features that a request needs, and the smallest variant that serves it.
    pub(crate) fn with_features(params: &Params) -> (StepFeatures, Self) {
        let needs = StepFeatures::of(params);
        let chain = (0..u64::BITS).step_by(4).map(|bit| params.filter_chain >> bit & 15);
        let has_top_p = chain.into_iter().any(|filter| filter == filter_code(Filter::TopP));
        let serves = |variant: &Self| match variant {
            Self::NoFilter if params.chain != chains::NONE => false,
            Self::TopK if has_top_p => false,
            _ => variant.features().union(needs) == variant.features(),
        };
        (needs, Self::ALL.into_iter().find(serves).unwrap_or(Self::Full))
    }

    /// Returns the features of a step of this variant.
    pub(crate) fn features(self) -> StepFeatures {
        let candidates = StepFeatures { variant: Variant::Candidates, ..StepFeatures::NONE };
        let top_p = StepFeatures { sums: true, long_nucleus: true, ..candidates };
        match self {
            Self::NoFilter | Self::MinP => StepFeatures::SIMPLE,
            Self::TopK | Self::TopKTopP => candidates,
            Self::TopP => top_p,
            Self::Edits => StepFeatures { edits: true, variant: Variant::CandidatesLogprob, ..top_p },
            Self::Full => StepFeatures::EVERYTHING,
        }
    }

    /// Returns the variant's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// Returns which requests the variant serves besides those of the variants before it, in words.
    #[must_use]
    pub fn serves(self) -> &'static str {
        self.words().1
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NoFilter => ("no_filter", "greedy decoding, and sampling without filters"),
            Self::MinP => ("min_p", "min-p as the only filter"),
            Self::TopK => ("top_k", "chains that begin with top-k up to 320, without top-p"),
            Self::TopKTopP => ("top_k_top_p", "chains that begin with top-k up to 320, then top-p"),
            Self::TopP => ("top_p", "chains that begin with top-p; top-k and top-p jointly"),
            Self::Edits => ("edits", "penalties, biases, bans, bitmasks, the token's logprob before filters"),
            Self::Full => ("full", "every request"),
        }
    }

    /// Returns an error unless this variant serves a row that needs `needed`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] with the names of the variants that serve the row.
    pub fn check(self, needed: Self, row: usize, slot: crate::Slot) -> Result<()> {
        if needed <= self {
            return Ok(());
        }
        let serving: Vec<_> = Self::ALL.iter().filter(|other| **other >= needed).map(|v| v.name()).collect();
        let allowed = format!("{}, for the request of row {row} in slot {slot}", serving.join(" or "));
        Err(Error::out_of_range("variant", self, allowed))
    }
}

impl fmt::Display for StepVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for StepVariant {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|variant| variant.name() == name);
        found.ok_or_else(|| Error::unknown("variant", name, Self::ALL.map(Self::name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use gumball_spec::{Dry, FilterOrder, LogprobMode, LogprobsParams, Mirostat};

    use super::*;

    const VOCAB: usize = 1000;

    #[test]
    fn a_request_takes_the_smallest_variant_that_serves_it() {
        let plain = SamplingParams::default;
        let logprobs =
            |mode: LogprobMode, top_n| Some(LogprobsParams { mode: mode.into(), top_n, ids: vec![] });
        let cases = [
            (plain(), StepVariant::NoFilter),
            (SamplingParams { temperature: 0.0, ..plain() }, StepVariant::NoFilter),
            // A greedy request's filters are off.
            (SamplingParams { temperature: 0.0, top_p: 0.9, ..plain() }, StepVariant::NoFilter),
            (SamplingParams { min_p: 0.1, ..plain() }, StepVariant::MinP),
            (SamplingParams { min_p: 0.1, temperature_last: true, ..plain() }, StepVariant::MinP),
            (SamplingParams { top_k: 50, ..plain() }, StepVariant::TopK),
            (SamplingParams { top_k: 50, min_p: 0.1, ..plain() }, StepVariant::TopK),
            (SamplingParams { top_k: 50, top_p: 0.9, ..plain() }, StepVariant::TopKTopP),
            (SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.1, ..plain() }, StepVariant::TopKTopP),
            (
                SamplingParams { top_k: 50, top_p: 0.9, order: FilterOrder::Joint, ..plain() },
                StepVariant::TopP,
            ),
            (SamplingParams { top_p: 0.9, ..plain() }, StepVariant::TopP),
            (SamplingParams { top_p: 0.9, min_p: 0.1, ..plain() }, StepVariant::TopP),
            (SamplingParams { repetition_penalty: 1.5, ..plain() }, StepVariant::Edits),
            (SamplingParams { logit_bias: vec![(3, 1.0)], top_p: 0.9, ..plain() }, StepVariant::Edits),
            (SamplingParams { banned_ids: vec![3], temperature: 0.0, ..plain() }, StepVariant::Edits),
            (SamplingParams { logprobs: logprobs(LogprobMode::Raw, 0), ..plain() }, StepVariant::Edits),
            (SamplingParams { logprobs: logprobs(LogprobMode::Raw, 1), ..plain() }, StepVariant::Full),
            (SamplingParams { logprobs: logprobs(LogprobMode::Processed, 0), ..plain() }, StepVariant::Edits),
            (
                SamplingParams { logprobs: logprobs(LogprobMode::Processed, 0), top_k: 5, ..plain() },
                StepVariant::Full,
            ),
            (SamplingParams { top_k: 900, ..plain() }, StepVariant::Full),
            (SamplingParams { min_p: 0.1, xtc_probability: 0.5, ..plain() }, StepVariant::Full),
            (SamplingParams { typical_p: 0.9, ..plain() }, StepVariant::Full),
            (SamplingParams { top_n_sigma: 1.0, ..plain() }, StepVariant::Full),
            (
                SamplingParams { mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }), ..plain() },
                StepVariant::Full,
            ),
            (SamplingParams { no_repeat_ngram: 3, ..plain() }, StepVariant::Full),
            (SamplingParams { repetition_penalty: 1.5, penalty_window: 64, ..plain() }, StepVariant::Full),
            // A window of nothing is none.
            (SamplingParams { penalty_window: 64, ..plain() }, StepVariant::NoFilter),
            (SamplingParams { logit_bias: vec![(3, 1.0)], penalty_window: 9, ..plain() }, StepVariant::Edits),
            // Nothing foresees these.
            (SamplingParams { min_keep: 2, ..plain() }, StepVariant::Full),
            (SamplingParams { min_keep: 2, temperature: 0.0, ..plain() }, StepVariant::Full),
            (SamplingParams { min_keep: 2, min_p: 0.1, ..plain() }, StepVariant::Full),
            (SamplingParams { min_keep: 2, top_k: 50, top_p: 0.9, ..plain() }, StepVariant::Full),
            (SamplingParams { dry: Dry { multiplier: 1.0, ..Dry::default() }, ..plain() }, StepVariant::Full),
        ];
        for (params, variant) in cases {
            assert_eq!(StepVariant::of(&params, VOCAB).unwrap(), variant, "{params:?}");
            let needs = StepFeatures::of(&Prepared::new(&params, VOCAB).unwrap().params);
            let serving = StepVariant::ALL.into_iter().filter(|other| *other >= variant);
            // Every later variant has what the request needs, too.
            serving.for_each(|other| assert_eq!(other.features().union(needs), other.features()));
        }
    }

    #[test]
    fn each_variant_holds_the_kernels_of_those_before_it() {
        let all: Vec<_> = StepFeatures::all().collect();
        for [smaller, larger] in StepVariant::ALL.array_windows() {
            assert_eq!(smaller.features().union(larger.features()), larger.features());
        }
        assert!(StepVariant::ALL.iter().all(|variant| all.contains(&variant.features())));
    }

    #[test]
    fn a_variant_is_found_by_its_name_and_names_those_that_serve_a_row() {
        for variant in StepVariant::ALL {
            assert_eq!(variant.to_string().parse::<StepVariant>().unwrap(), variant);
        }
        assert_eq!(
            "greedy".parse::<StepVariant>().unwrap_err().to_string(),
            "variant \"greedy\" is not known; known are: no_filter, min_p, top_k, top_k_top_p, top_p, edits, full"
        );
        assert!(StepVariant::TopP.check(StepVariant::TopK, 0, 0).is_ok());
        assert_eq!(
            StepVariant::TopK.check(StepVariant::TopP, 1, 7).unwrap_err().to_string(),
            "variant is top_k, but must be top_p or edits or full, for the request of row 1 in slot 7"
        );
    }
}
