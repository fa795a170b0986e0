//! Which kernels a step launches: a function of its requests, its shape and the device, never of its logits.
//!
//! The choice is made when the rows change. A [`Graph`](crate::Graph) holds the launches for every choice, so
//! a replay runs the kernels that its rows need. A step in a graph that the host program captures holds one
//! choice only, that of a named [`StepVariant`](crate::StepVariant).

use gumball_spec::Kind;

use crate::abi::{Params, chains, features};
use crate::requests::logprob_params;

/// Which kernel finishes a step's rows, from the most specialised to the most general.
///
/// Each variant also handles the requests of all earlier ones, so the maximum over the rows handles the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Unfiltered sampling in small batches, where the survey has already scored every token.
    SurveyDraw,
    /// Greedy decoding, unfiltered sampling, and min-p as the only filter.
    Simple,
    /// Filter chains that begin with top-p, or with top-k up to 320, and usually leave a short candidate
    /// list.
    Candidates,
    /// Edits, bitmasks, and the emitted token's logprob (`raw`, `edited` or `tempered`), on what `Candidates`
    /// handles.
    CandidatesLogprob,
    /// Kept sets, the emitted token's logprob over its set, and its radius, on what `CandidatesLogprob`
    /// handles.
    CandidatesKept,
    /// Every request, including any filter chain, dynamic temperature, mirostat, adaptive-p and top-n
    /// logprobs.
    General,
}

impl Variant {
    /// All variants, in ascending order.
    pub const ALL: [Self; 6] = [
        Self::SurveyDraw,
        Self::Simple,
        Self::Candidates,
        Self::CandidatesLogprob,
        Self::CandidatesKept,
        Self::General,
    ];

    /// Returns whether its kernels try a candidate list.
    pub(crate) fn has_list(self) -> bool {
        matches!(self, Self::Candidates | Self::CandidatesLogprob | Self::CandidatesKept)
    }

    /// Returns the most specialised variant that handles a request.
    pub(crate) fn of(params: &Params) -> Self {
        let has = |bits: u32| params.features & bits != 0;
        let has_logprobs = has(features::LOGPROBS) && !has(features::TOKEN_LOGPROB_ONLY);
        match params.chain {
            chains::GENERAL => Self::General,
            _ if has_logprobs || has(features::DYNAMIC_TEMPERATURE) => Self::General,
            _ if logprob_params::needs_kept(params) || logprob_params::needs_radius(params) => {
                Self::CandidatesKept
            }
            _ if has(features::LOGPROBS | EDITS) => Self::CandidatesLogprob,
            _ if has(features::HISTORY_EDITS) => Self::Candidates,
            chains::NONE if !has(features::GREEDY) => Self::SurveyDraw,
            chains::NONE | chains::MIN_P => Self::Simple,
            _ => Self::Candidates,
        }
    }
}

/// The features of edits.
const EDITS: u32 = features::EDITS | features::BANNED_IDS;

/// The features that a step's kernels must support: the union over its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepFeatures {
    /// Whether the survey reads the logits under bitmasks or edits.
    pub edits: bool,
    /// Whether the kernel `history_edits` reads the histories, for edits or for what sections and loops
    /// force.
    pub history: bool,
    /// Whether the survey must sum weights, for a filter or for logprobs.
    pub sums: bool,
    /// Whether top-p acts first in a variant that tries a candidate list: a nucleus may then be too long for
    /// the list, and the blocks of a cluster search the row together.
    pub long_nucleus: bool,
    /// The most specialised variant that handles all rows.
    pub variant: Variant,
}

impl StepFeatures {
    /// The features of rows without a request.
    pub const NONE: Self =
        Self { edits: false, history: false, sums: false, long_nucleus: false, variant: Variant::SurveyDraw };

    /// Excludes [`Variant::SurveyDraw`], for steps of which the survey does not score every token.
    pub const SIMPLE: Self = Self { variant: Variant::Simple, ..Self::NONE };

    /// Features that support every request.
    pub const EVERYTHING: Self =
        Self { edits: true, history: true, sums: true, long_nucleus: false, variant: Variant::General };

    /// The features of rows with bitmasks.
    pub const MASKS: Self = Self { edits: true, variant: Variant::CandidatesLogprob, ..Self::NONE };

    /// The features of rows whose kept sets the workspace records: a long one is written by the blocks of a
    /// cluster together.
    pub const KEPT: Self =
        Self { sums: true, long_nucleus: true, variant: Variant::CandidatesKept, ..Self::NONE };

    /// The features of rows with known or judged tokens that report a kept set or a logprob over it: only the
    /// general kernel filters rows that draw nothing.
    pub const KEPT_OF_KNOWN: Self = Self { variant: Variant::General, ..Self::NONE };

    /// Returns whether a winner or a list of each rank decides rows of these features: rows of logits that
    /// need no mass of the whole row.
    pub fn are_decided_in_shards(self, kind: Kind) -> bool {
        kind == Kind::Logits && self.variant <= Variant::CandidatesLogprob && !self.sums
    }

    /// Returns the features that a request needs.
    pub fn of(params: &Params) -> Self {
        let has = |bits: u32| params.features & bits != 0;
        Self {
            edits: has(EDITS),
            history: has(features::HISTORY_EDITS),
            sums: has(features::FILTER_SUMS | features::LOGPROB_SUMS),
            long_nucleus: false,
            variant: Variant::of(params),
        }
        .with(params.chain == chains::NUCLEUS)
    }

    /// Returns these features with `long_nucleus` as given if the variant is one of those that try a
    /// candidate list; otherwise with `long_nucleus` cleared.
    fn with(self, long_nucleus: bool) -> Self {
        Self { long_nucleus: long_nucleus && self.variant.has_list(), ..self }
    }

    /// Returns all combinations that steps can need: each has the least variant that its other features take,
    /// or a later one.
    pub fn all() -> impl Iterator<Item = Self> {
        let edits = [(false, false), (false, true), (true, false), (true, true)];
        let sums = [(false, false), (true, false), (true, true)];
        let all = edits.into_iter().flat_map(move |(edits, history)| {
            sums.into_iter().flat_map(move |(sums, long_nucleus)| {
                Variant::ALL.map(|variant| Self { edits, history, sums, long_nucleus, variant })
            })
        });
        all.filter(|needs| needs.with(needs.long_nucleus) == *needs && needs.variant >= needs.least_variant())
    }

    /// Returns the most specialised variant whose kernels have these features.
    fn least_variant(self) -> Variant {
        match self {
            Self { edits: true, .. } => Variant::CandidatesLogprob,
            Self { history: true, .. } | Self { sums: true, .. } => Variant::Candidates,
            _ => Variant::SurveyDraw,
        }
    }

    /// Returns the union of the features of both.
    pub fn union(self, other: Self) -> Self {
        Self {
            edits: self.edits || other.edits,
            history: self.history || other.history,
            sums: self.sums || other.sums,
            long_nucleus: false,
            variant: self.variant.max(other.variant),
        }
        .with(self.long_nucleus || other.long_nucleus)
    }
}

#[cfg(test)]
mod tests {
    use gumball_spec::{LogprobMode, LogprobModes, LogprobsParams, SamplingParams};

    use super::*;
    use crate::Prepared;

    fn needs(params: SamplingParams) -> StepFeatures {
        StepFeatures::of(&Prepared::new(&params, 1000).unwrap().params)
    }

    fn variant(params: SamplingParams) -> Variant {
        needs(params).variant
    }

    #[test]
    fn the_union_of_features_is_one_of_all() {
        let all: Vec<StepFeatures> = StepFeatures::all().collect();
        for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (*one, *other))) {
            assert!(all.contains(&one.union(other)) && one.union(other) == other.union(one));
            assert_eq!(one.union(StepFeatures::EVERYTHING), StepFeatures::EVERYTHING);
            assert_eq!(one.union(one).union(StepFeatures::NONE), one);
        }
        for needs in [
            StepFeatures::NONE,
            StepFeatures::SIMPLE,
            StepFeatures::EVERYTHING,
            StepFeatures::MASKS,
            StepFeatures::KEPT,
        ] {
            assert!(all.contains(&needs));
        }
        let top_p = needs(SamplingParams { top_p: 0.9, ..Default::default() });
        let top_k = needs(SamplingParams { top_k: 50, top_p: 0.9, ..Default::default() });
        assert!(top_p.sums && top_p.long_nucleus && !top_k.sums && all.contains(&top_p));
        let joint = |top_k| {
            let order = gumball_spec::FilterOrder::Joint;
            needs(SamplingParams { top_k, top_p: 0.9, min_p: 0.1, order, ..Default::default() })
        };
        assert_eq!(
            joint(50),
            StepFeatures { sums: true, variant: Variant::Candidates, ..StepFeatures::NONE }
        );
        assert_eq!(joint(900), top_p);
        assert_eq!([joint(50).union(top_p), top_k.union(top_p)], [top_p; 2]);
        let logprob =
            needs(SamplingParams { logprobs: Some(LogprobsParams::default()), ..Default::default() });
        assert_eq!(
            logprob,
            StepFeatures { sums: true, variant: Variant::CandidatesLogprob, ..StepFeatures::NONE }
        );
        let edited = needs(SamplingParams { repetition_penalty: 1.5, ..Default::default() });
        assert_eq!(
            edited,
            StepFeatures { edits: true, variant: Variant::CandidatesLogprob, ..StepFeatures::NONE }
        );
        let ngram = needs(SamplingParams { no_repeat_ngram: 3, ..Default::default() });
        assert!(ngram.edits && ngram.history);
    }

    #[test]
    fn requests_take_the_least_variant() {
        let plain = SamplingParams::default;
        assert_eq!(variant(plain()), Variant::SurveyDraw);
        assert_eq!(variant(SamplingParams { temperature: 0.0, ..plain() }), Variant::Simple);
        assert_eq!(
            variant(SamplingParams { min_p: 0.1, temperature_last: true, ..plain() }),
            Variant::Simple
        );
        assert_eq!(variant(SamplingParams { min_p: 0.1, xtc_probability: 0.5, ..plain() }), Variant::General);
        let listed = SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.05, ..plain() };
        assert_eq!(variant(listed.clone()), Variant::Candidates);
        assert_eq!(variant(SamplingParams { top_p: 0.9, ..plain() }), Variant::Candidates);
        assert_eq!(variant(SamplingParams { top_k: 900, ..plain() }), Variant::General);
        assert_eq!(variant(SamplingParams { typical_p: 0.9, ..listed.clone() }), Variant::General);
        let edited = SamplingParams { repetition_penalty: 1.5, banned_ids: vec![4], ..listed };
        assert_eq!(variant(edited.clone()), Variant::CandidatesLogprob);
        assert_eq!(variant(SamplingParams { no_repeat_ngram: 3, ..plain() }), Variant::CandidatesLogprob);
        assert_eq!(variant(SamplingParams { top_k: 900, ..edited.clone() }), Variant::General);
        let with_logprobs = |mode: LogprobModes, top_n, ids| SamplingParams {
            logprobs: Some(LogprobsParams { mode, top_n, ids }),
            ..edited.clone()
        };
        for mode in [LogprobMode::Raw, LogprobMode::Edited, LogprobMode::Tempered].map(LogprobModes::from) {
            assert_eq!(variant(with_logprobs(mode, 0, vec![])), Variant::CandidatesLogprob);
            assert_eq!(variant(with_logprobs(mode, 1, vec![])), Variant::General);
            assert_eq!(variant(with_logprobs(mode, 0, vec![7])), Variant::General);
        }
        let radius = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Radius) };
        for mode in [LogprobMode::Processed.into(), radius] {
            assert_eq!(variant(with_logprobs(mode, 0, vec![])), Variant::CandidatesKept);
            assert_eq!(variant(with_logprobs(mode, 1, vec![])), Variant::General);
        }
    }
}
