//! Which tokens' logits a request needs to choose its token: those of a few tokens with large logits, or those of the whole row.

use gumball_spec::{Filter, FilterOrder, LogprobMode, SamplingParams};

use crate::Prepared;

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
    /// Only the routes `race` and `oracle` are known to read no more than the logits that decide. [`decisive`] does not return this.
    Route,
}

impl WholeRow {
    /// Returns its name: that of the filter or parameter it is about, `logprobs` for any mode, else `hook`, `kept`, `joint` or `route`.
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
            WholeRow::Route => "route",
        }
    }
}

/// Which tokens decide a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decisive {
    /// The first one.
    First,
    /// The first `k`.
    Top(usize),
    /// Those that min-p keeps.
    Likely(f32),
    /// Those that could win the race, of those that min-p keeps with this parameter; 0 if it is off.
    Race(f32),
}

/// Returns which tokens decide a request's rows, or why all of them do.
///
/// # Errors
/// - The reason, if every logit is needed.
pub fn decisive(
    prepared: &Prepared,
    hooked: bool,
    keep_ids: bool,
) -> std::result::Result<Decisive, WholeRow> {
    let mode = prepared.params().logprobs.as_ref().map(|logprobs| logprobs.mode);
    of_mode(prepared, hooked, keep_ids, mode)
}

/// Returns which tokens decide the drafts that a request's race draws from a row (S8); `None` if all of them do.
///
/// `siblings`: how many drafts the row has. `races`: whether the tokens' own words draw them, and nothing but the drafts is wanted: neither
/// drafts of a block, which have other words, nor probabilities.
#[must_use]
pub fn decisive_of_drafts(
    prepared: &Prepared,
    hooked: bool,
    siblings: usize,
    races: bool,
) -> Option<Decisive> {
    match of_mode(prepared, hooked, false, None).ok()? {
        // The first tokens of the order, kept or not.
        Decisive::First if siblings > 1 => Some(Decisive::Top(siblings)),
        Decisive::Race(min_p) if siblings > 1 || !races => (min_p > 0.0).then_some(Decisive::Likely(min_p)),
        decisive => Some(decisive),
    }
}

fn of_mode(
    prepared: &Prepared,
    hooked: bool,
    keep_ids: bool,
    mode: Option<LogprobMode>,
) -> std::result::Result<Decisive, WholeRow> {
    let params = prepared.params();
    if hooked {
        return Err(WholeRow::Hook);
    }
    if params.dynamic_temperature.is_some() && params.temperature != 0.0 {
        return Err(WholeRow::DynamicTemperature);
    }
    let greedy = SamplingParams::is_greedy(params.temperature);
    match mode {
        // A greedy row's only member is its token.
        Some(LogprobMode::Processed) | None => {}
        Some(LogprobMode::Tempered) if greedy => {}
        Some(mode) => return Err(WholeRow::Logprobs(mode)),
    }
    if greedy {
        return Ok(Decisive::First);
    }
    if params.mirostat.is_some() {
        return Err(WholeRow::Mirostat);
    }
    let filters = prepared.filters();
    if params.order == FilterOrder::Joint && filters.len() > 1 {
        return Err(WholeRow::Joint);
    }
    match filters {
        [] if keep_ids => Err(WholeRow::KeptSet),
        [] => mode.map_or(Ok(Decisive::Race(0.0)), |mode| Err(WholeRow::Logprobs(mode))),
        [Filter::TopK, ..] => Ok(Decisive::Top(params.top_k as usize)),
        [Filter::MinP] if !keep_ids && mode.is_none() => Ok(Decisive::Race(params.min_p)),
        [Filter::MinP, ..] => Ok(Decisive::Likely(params.min_p)),
        [filter, ..] => Err(WholeRow::Filter(*filter)),
    }
}
