//! What must be read of a request's rows, and by which short way its filters can be taken: the one answer
//! that all backends match on.
//!
//! Both are made once, when a request is admitted, by lists of the parameters and filters that they serve. A
//! parameter of which its line in `table.rs` does not say that it is foreseen here, and a filter that no list
//! names, take the general way: every logit, every kernel. So a new parameter is right before it is fast.
//!
//! ```text
//! parameters, filters         Reading::of     which logits choose the token
//! hooks, kept sets, logprobs  Reading::with   which logits a pool or a step needs besides
//! filters                     Chain::of       the kernels that serve them
//! ```
//!
//! Backends differ in two places. A GPU sorts joint filters that keep prefixes and lets them act one after
//! the other, so that it hands in another order; hosts hand in the order as it is. And a GPU reads a row with
//! min-p alone as [`Reading::Likely`], where hosts have [`Reading::Race`].

use super::{Filter, LogprobMode, LogprobModes, Parameter, Parameters, SamplingParams};

/// The most first tokens of a row that are listed.
pub const MOST_LISTED: usize = 320;

/// Why a request needs every logit of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WholeRow {
    /// The caller's own edit may change any logit.
    Hook,
    /// The kept set was asked for, and no filter bounds it.
    KeptSet,
    /// Logprobs of a mode whose members are all tokens.
    Logprobs(LogprobMode),
    /// The temperature depends on the row's entropy.
    DynamicTemperature,
    /// Mirostat's limit compares with the row's mass.
    Mirostat,
    /// This filter acts first, on the whole row's mass or deviation.
    Filter(Filter),
    /// Several filters act on the whole row.
    Joint,
    /// Drafts are judged by the probabilities of all tokens.
    Judged,
    /// Only the routes `race` and `oracle` are known to read no more than the logits that decide. No
    /// [`Reading`] has this reason.
    Route,
    /// No short way foresees the parameter of this name.
    Parameter(&'static str),
}

impl WholeRow {
    /// Returns its name: the name of the filter or parameter, `logprobs` for any mode, else `hook`, `kept`,
    /// `joint`, `judged` or `route`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WholeRow::Hook => "hook",
            WholeRow::KeptSet => "kept",
            WholeRow::Logprobs(_) => "logprobs",
            WholeRow::DynamicTemperature => "dynamic_temperature",
            WholeRow::Mirostat => "mirostat",
            WholeRow::Filter(filter) => filter.name(),
            WholeRow::Joint => "joint",
            WholeRow::Judged => "judged",
            WholeRow::Route => "route",
            WholeRow::Parameter(name) => name,
        }
    }
}

/// Which tokens' logits decide a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// The logit of the first token.
    First,
    /// The logits of the first `k` tokens.
    Top(usize),
    /// The logits of the tokens that min-p keeps.
    Likely(f32),
    /// The logits of the tokens that min-p keeps with this parameter (0: all tokens) and that could win the
    /// race.
    Race(f32),
    /// All of them, for a mass of the whole row at a scale that its request fixes.
    Mass(WholeRow),
    /// All of them, for anything.
    Whole(WholeRow),
}

/// The outputs of a row that a pool or a step wants besides the token that its request draws.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The caller's own edit.
    pub hooked: bool,
    /// The kept set, or more draws from it than the request's own.
    pub kept_set: bool,
    /// Logprobs of one mode or two.
    pub logprobs: Option<LogprobModes>,
    /// How many drafts the row has; a greedy request's are the first tokens, kept or not (S8).
    pub siblings: usize,
}

impl Reading {
    /// Returns which logits choose the token at a temperature, which may stand in for the request's own.
    /// `filters` are on, in the order in which they act; `joint`: on the whole row, each of them.
    #[must_use]
    pub fn of(params: &SamplingParams, temperature: f32, filters: &[Filter], joint: bool) -> Self {
        if let Some(parameter) = params.unforeseen() {
            return Self::Whole(WholeRow::Parameter(parameter.name));
        }
        if params.dynamic_temperature.is_some() && temperature != 0.0 {
            return Self::Whole(WholeRow::DynamicTemperature);
        }
        match filters {
            _ if SamplingParams::is_greedy(temperature) => Self::First,
            _ if params.mirostat.is_some() => Self::Whole(WholeRow::Mirostat),
            [_, _, ..] if joint => Self::Mass(WholeRow::Joint),
            [] => Self::Race(0.0),
            [Filter::MinP] => Self::Race(params.min_p),
            [Filter::MinP, ..] => Self::Likely(params.min_p),
            [filter, ..] => match params.counted(*filter) {
                Some(count) => Self::Top(count),
                None => Self::Mass(WholeRow::Filter(*filter)),
            },
        }
    }

    /// Returns which logits choose the token and give the other outputs that are wanted.
    #[must_use]
    pub fn with(self, wanted: &Wanted) -> Self {
        let Some(modes) = wanted.logprobs else { return self.with_mode(wanted, None) };
        match modes.iter().fold(self, |reading, mode| reading.with_mode(wanted, Some(mode))) {
            // Two modes may have a mass each.
            Self::Mass(reason) if modes.second.is_some() => Self::Whole(reason),
            reading => reading,
        }
    }

    fn with_mode(self, wanted: &Wanted, mode: Option<LogprobMode>) -> Self {
        use LogprobMode::{Processed, Radius, Tempered};
        match (self, mode) {
            _ if wanted.hooked => Self::Whole(WholeRow::Hook),
            (Self::Whole(WholeRow::DynamicTemperature | WholeRow::Parameter(_)), _) => self,
            (_, Some(Radius)) => Self::Whole(WholeRow::Logprobs(Radius)),
            // A greedy row's only member is its token.
            (Self::First, None | Some(Processed | Tempered)) if wanted.siblings > 1 => {
                Self::Top(wanted.siblings)
            }
            (Self::First, None | Some(Processed | Tempered)) => self,
            (_, Some(mode)) if mode != Processed => Self::Mass(WholeRow::Logprobs(mode)),
            (Self::Race(min_p), mode) if wanted.kept_set || mode.is_some() => match mode {
                _ if min_p > 0.0 => Self::Likely(min_p),
                Some(mode) if !wanted.kept_set => Self::Mass(WholeRow::Logprobs(mode)),
                _ => Self::Mass(WholeRow::KeptSet),
            },
            _ => self,
        }
    }

    /// Returns why every logit is needed, if it is.
    #[must_use]
    pub fn whole(self) -> Option<WholeRow> {
        match self {
            Self::Mass(reason) | Self::Whole(reason) => Some(reason),
            _ => None,
        }
    }
}

/// By which short way kernels can take a request's filters. As a number, it is the code that kernels read;
/// the least is right for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chain {
    /// By none: mirostat, filters that need the whole row, and parameters that are not foreseen.
    General,
    /// By a list of the first k tokens and the mass of the whole row: top-k up to [`MOST_LISTED`], and top-p
    /// beside it.
    Joint,
    /// By a list and the mass of the whole row: top-p, and what keeps few of its tokens.
    Nucleus,
    /// By a list of the first tokens: a filter that looks at up to [`MOST_LISTED`] alone, such as top-k, and
    /// what keeps few of them.
    ShortList,
    /// By the first token's logit: min-p alone.
    MinP,
    /// There are none.
    None,
}

impl Chain {
    /// Returns the short way of filters in the order in which they act. `joint`: on the whole row, each of
    /// them; if all keep prefixes, top-k is the first and top-p the second.
    #[must_use]
    pub fn of(reading: Reading, params: &SamplingParams, filters: &[Filter], joint: bool) -> Self {
        let kinds = || filters.iter().map(|filter| filter.kind());
        let is_listed = kinds().all(|kind| kind.listed)
            && !(joint && kinds().any(|kind| !kind.prefix))
            // No filter may follow one that leaves a set without the first tokens.
            && kinds().rev().skip(1).all(|kind| !kind.interval);
        let counted = filters.first().and_then(|filter| params.counted(*filter));
        match filters {
            _ if reading == Reading::First => Self::None,
            // A dynamic temperature is the reason of a row that has both.
            _ if params.mirostat.is_some() => Self::General,
            _ if matches!(reading, Reading::Whole(WholeRow::Parameter(_))) => Self::General,
            [] => Self::None,
            [Filter::MinP] => Self::MinP,
            _ if is_listed && counted.is_some_and(|count| count <= MOST_LISTED) => {
                if joint {
                    Self::Joint
                } else {
                    Self::ShortList
                }
            }
            // The mass is one at a scale that must not depend on the row.
            [Filter::TopP, ..] if is_listed && params.dynamic_temperature.is_none() => Self::Nucleus,
            _ => Self::General,
        }
    }

    /// Returns whether few tokens are usually kept, so that a list of candidates is tried first.
    #[must_use]
    pub fn has_list(self) -> bool {
        matches!(self, Self::Joint | Self::Nucleus | Self::ShortList)
    }

    /// Returns whether filters need the mass of the whole row.
    #[must_use]
    pub fn has_mass(self) -> bool {
        matches!(self, Self::Joint | Self::Nucleus)
    }

    /// Returns the filter against which the winner of a race over what precedes it can be tested: top-p, by a
    /// mass, or where there is none a top-k that is `long`, above [`MOST_LISTED`], by a number of tokens.
    /// Each filter before it keeps the first tokens of its given set, and no filter but top-k and min-p
    /// follows.
    #[must_use]
    pub fn tested(reading: Reading, filters: &[Filter], long: bool) -> Option<Filter> {
        let place = |of: Filter| filters.iter().position(|filter| *filter == of);
        let at = place(Filter::TopP).or_else(|| place(Filter::TopK).filter(|_| long))?;
        let is_tested = reading != Reading::First
            && !matches!(reading, Reading::Whole(WholeRow::Parameter(_)))
            && filters[..at].iter().all(|filter| !filter.kind().interval)
            && filters[at + 1..].iter().all(|filter| matches!(filter, Filter::TopK | Filter::MinP));
        is_tested.then_some(filters[at])
    }
}

impl SamplingParams {
    /// Returns the first parameter that is not neutral and that nothing here foresees.
    pub(crate) fn unforeseen(&self) -> Option<&'static Parameter> {
        fn of<P: Parameters>(params: &P) -> Option<&'static Parameter> {
            let mut table = P::TABLE.iter().enumerate();
            let found = table.find(|(place, line)| !line.is_foreseen && params.differs_at(*place));
            found.map(|(_, line)| line)
        }
        let of_parts = of(&self.dry).or_else(|| self.section.as_ref().and_then(of));
        let of_parts = of_parts.or_else(|| self.loops.as_ref().and_then(of));
        let of_parts = of_parts.or_else(|| self.watermark.own().as_ref().and_then(of));
        of(self).or(of_parts).or_else(|| self.logprobs.as_ref().and_then(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{DynamicTemperature, FilterOrder, LogprobsParams, Mirostat};
    use crate::radius::Edits;

    fn ways(params: &SamplingParams) -> (Reading, Chain, Option<Filter>) {
        let (filters, joint) = (Vec::from_iter(params.filters(1000)), params.order == FilterOrder::Joint);
        let reading = Reading::of(params, params.temperature, &filters, joint);
        (
            reading,
            Chain::of(reading, params, &filters, joint),
            Chain::tested(reading, &filters, params.top_k as usize > MOST_LISTED),
        )
    }

    #[test]
    fn a_parameter_that_nothing_foresees_takes_the_general_way() {
        let plain = SamplingParams::default;
        let known = [
            (plain(), Reading::Race(0.0), Chain::None, None),
            (SamplingParams { temperature: 0.0, top_p: 0.9, ..plain() }, Reading::First, Chain::None, None),
            (SamplingParams { min_p: 0.1, ..plain() }, Reading::Race(0.1), Chain::MinP, None),
            (
                SamplingParams { top_k: 50, top_p: 0.9, ..plain() },
                Reading::Top(50),
                Chain::ShortList,
                Some(Filter::TopP),
            ),
            (SamplingParams { top_k: 50, ..plain() }, Reading::Top(50), Chain::ShortList, None),
            (
                SamplingParams { top_k: 900, min_p: 0.1, ..plain() },
                Reading::Top(900),
                Chain::General,
                Some(Filter::TopK),
            ),
            (
                SamplingParams { top_k: 900, top_p: 0.9, ..plain() },
                Reading::Top(900),
                Chain::General,
                Some(Filter::TopP),
            ),
            (
                SamplingParams { top_p: 0.9, min_p: 0.1, ..plain() },
                Reading::Mass(WholeRow::Filter(Filter::TopP)),
                Chain::Nucleus,
                Some(Filter::TopP),
            ),
            (
                SamplingParams { top_k: 50, top_p: 0.9, order: FilterOrder::Joint, ..plain() },
                Reading::Mass(WholeRow::Joint),
                Chain::Joint,
                Some(Filter::TopP),
            ),
        ];
        for (params, reading, chain, tested) in known {
            assert_eq!(ways(&params), (reading, chain, tested));
            let general = (Reading::Whole(WholeRow::Parameter("imaginary")), Chain::General, None);
            let with_it = SamplingParams { imaginary: true, ..params.clone() };
            assert_eq!(ways(&with_it), general);
            let has_radius = |params: &SamplingParams| Edits::of(params, params.temperature, 1000).is_some();
            assert_eq!([&params, &with_it].map(has_radius), [true, params.temperature == 0.0]);
            let logprobs = Some(LogprobMode::Processed.into());
            let wanted = Wanted { logprobs, siblings: 4, kept_set: true, hooked: false };
            assert_eq!(general.0.with(&wanted), general.0);
        }
        // A row has one reason to be read whole, and mirostat may be another one.
        let dynamic_temperature = Some(DynamicTemperature { min: 0.2, max: 2.0, exponent: 0.3 });
        let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
        let both = SamplingParams { dynamic_temperature, mirostat, ..plain() };
        let reading = Reading::Whole(WholeRow::DynamicTemperature);
        assert_eq!(ways(&SamplingParams { mirostat: None, ..both.clone() }), (reading, Chain::None, None));
        assert_eq!(ways(&both), (reading, Chain::General, None));
        let logprobs = LogprobsParams { mode: LogprobMode::Tempered.into(), top_n: 3, ids: vec![4] };
        let params = SamplingParams { logprobs: Some(logprobs), repetition_penalty: 1.5, ..plain() };
        assert_eq!(ways(&params).0, Reading::Race(0.0));
    }
}
