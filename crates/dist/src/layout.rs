//! Which layout the logits of a step have, decided before they exist.
//!
//! Head, graph and sampler must agree on it, and so must all ranks: it is a pure function of what all of them know.
//! Nothing is measured or sent to decide.

use gumball_spec::{Error, Filter, FilterOrder, Result, SamplingParams};

/// How the logits of a step lie on the ranks, and what is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogitsLayout {
    /// Each rank has a part of the vocabulary of all rows, gets the other parts, and samples all rows.
    Gather,
    /// Each rank has a part of the vocabulary of all rows, exchanges it for the whole vocabulary of its share of the rows, and
    /// samples those. What comes out is exchanged.
    Swap,
    /// Each rank keeps its part of the vocabulary, and only what decides is exchanged: maxima, masses, and the tokens that may win.
    Survey,
    /// Each rank has the whole vocabulary of its share of the rows, from a head of its own. Only what comes out is exchanged.
    Replicated,
}

impl LogitsLayout {
    /// All layouts.
    pub const ALL: [LogitsLayout; 4] = [Self::Gather, Self::Swap, Self::Survey, Self::Replicated];

    /// Returns the name that arguments and the environment know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Swap => "swap",
            Self::Survey => "survey",
            Self::Replicated => "replicated",
        }
    }

    /// Returns the layout of a name.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if there is none.
    pub fn of_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|layout| layout.name() == name).ok_or_else(|| Error::Unknown {
            parameter: "layout",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// What a step is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// The first token behind a prompt.
    Prefill,
    /// One token for each request.
    #[default]
    Decode,
    /// The drafts of each request are verified.
    Verify,
}

/// How much of a row decides its token, from little to all; of a batch, that of the row with the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Needs {
    /// The best token of each rank: greedy decoding, and sampling without filters or with min-p alone, without logprobs.
    #[default]
    Winner,
    /// The first tokens of each rank: filter chains that begin with top-k up to [`MOST_LISTED`], without logprobs of the whole row.
    List,
    /// Masses of the whole row, and then its first tokens or more of it.
    Mass,
    /// The row itself: hooks that change it, probabilities in place of logits.
    Whole,
}

/// The largest top-k for which a row needs no more than a list.
pub const MOST_LISTED: i64 = 256;

impl Needs {
    /// Returns what the rows of a request need in its steps.
    #[must_use]
    pub fn of(params: &SamplingParams, vocab: usize) -> Self {
        // A dynamic temperature stands in for any but 0 (F7).
        let is_fixed = params.dynamic_temperature.is_none() || params.temperature == 0.0;
        let greedy = is_fixed && SamplingParams::is_greedy(params.temperature);
        if params.logprobs.is_some() || params.mirostat.is_some() && !greedy {
            return Self::Mass;
        }
        if greedy {
            return Self::Winner;
        }
        if params.dynamic_temperature.is_some() {
            return Self::Mass;
        }
        let mut filters = params.filters(vocab);
        let joint = params.order == FilterOrder::Joint;
        match filters.next() {
            None => Self::Winner,
            Some(Filter::MinP) if filters.next().is_none() => Self::Winner,
            Some(Filter::TopK) if !joint && params.top_k <= MOST_LISTED => Self::List,
            _ => Self::Mass,
        }
    }
}

/// What a layout is decided by. All ranks must hand in the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// The number of requests.
    pub requests: usize,
    /// The number of drafts of each request, in a verification; the largest where requests differ.
    pub drafts: usize,
    /// What the step is for.
    pub kind: StepKind,
    /// What the rows need.
    pub needs: Needs,
    /// Whether each rank has the hidden states of its own requests only.
    pub data_parallel: bool,
    /// The number of requests, padding included, that the graph was captured for, if the step replays one.
    pub captured: Option<usize>,
}

impl StepShape {
    /// Returns the number of requests that decides: that of the graph, if there is one.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.captured.unwrap_or(self.requests)
    }

    /// Returns the number of rows of that many requests.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.batch() * (self.drafts + 1)
    }
}

/// From where on a layout is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thresholds {
    /// The least number of requests for which rows are swapped.
    pub swap_min_requests: usize,
    /// The least vocabulary for which rows are surveyed where they are.
    pub survey_min_vocab: usize,
    /// The least number of rows for which rows are surveyed where they are.
    pub survey_min_rows: usize,
}

impl Default for Thresholds {
    /// Returns thresholds by bytes alone: they were not measured on GPUs yet.
    fn default() -> Self {
        Self { swap_min_requests: 16, survey_min_vocab: 8192, survey_min_rows: 1 }
    }
}

impl Thresholds {
    /// Returns the thresholds with those that an environment names in their places: `GUMBALL_DIST_SWAP_MIN_REQUESTS`,
    /// `GUMBALL_DIST_SURVEY_MIN_VOCAB`, `GUMBALL_DIST_SURVEY_MIN_ROWS`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if one is no whole number.
    pub fn with_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        for (name, threshold) in [
            ("GUMBALL_DIST_SWAP_MIN_REQUESTS", &mut self.swap_min_requests),
            ("GUMBALL_DIST_SURVEY_MIN_VOCAB", &mut self.survey_min_vocab),
            ("GUMBALL_DIST_SURVEY_MIN_ROWS", &mut self.survey_min_rows),
        ] {
            if let Some(value) = variable(name) {
                let number = value.trim().parse();
                *threshold = number.map_err(|_| Error::out_of_range(name, value, "a whole number"))?;
            }
        }
        Ok(self)
    }
}

/// Returns the layout of a step: a pure function, so that all who ask it agree.
///
/// Prefill gathers. Data-parallel hidden states take a replicated head where there is one. Otherwise a step is surveyed where
/// that was configured and can serve its rows, and swapped where that was configured and there are requests enough; `Gather`
/// serves the rest and is always configured. A verification is not surveyed.
///
/// # Errors
/// - [`Error::OutOfRange`] for more requests than the graph was captured for.
pub fn decide(
    shape: &StepShape,
    vocab: usize,
    world: usize,
    configured: &[LogitsLayout],
    thresholds: &Thresholds,
) -> Result<LogitsLayout> {
    if shape.captured.is_some_and(|captured| captured < shape.requests) {
        let allowed = format!("in 0..={}, the batch that the graph was captured for", shape.batch());
        return Err(Error::out_of_range("requests", shape.requests, allowed));
    }
    let has = |layout| configured.contains(&layout);
    if shape.kind == StepKind::Prefill {
        return Ok(LogitsLayout::Gather);
    }
    if shape.data_parallel && has(LogitsLayout::Replicated) {
        return Ok(LogitsLayout::Replicated);
    }
    let Thresholds { swap_min_requests, survey_min_vocab, survey_min_rows } = *thresholds;
    let is_surveyed = world > 1
        && has(LogitsLayout::Survey)
        && shape.kind == StepKind::Decode
        && shape.needs < Needs::Whole
        && vocab >= survey_min_vocab
        && shape.rows() >= survey_min_rows;
    if is_surveyed {
        return Ok(LogitsLayout::Survey);
    }
    let is_swapped = world > 1 && has(LogitsLayout::Swap) && shape.batch() >= swap_min_requests;
    Ok(if is_swapped { LogitsLayout::Swap } else { LogitsLayout::Gather })
}

#[cfg(test)]
mod tests {
    use super::*;
    use LogitsLayout::{Gather, Replicated, Survey, Swap};
    use gumball_spec::{DynamicTemperature, LogprobsParams};

    fn of(shape: StepShape, configured: &[LogitsLayout]) -> LogitsLayout {
        decide(&shape, 128_256, 4, configured, &Thresholds::default()).unwrap()
    }

    #[test]
    fn prefill_gathers_whatever_is_configured() {
        let shape = StepShape { requests: 64, kind: StepKind::Prefill, ..Default::default() };
        assert_eq!(of(shape, &LogitsLayout::ALL), Gather);
    }

    #[test]
    fn a_replicated_head_serves_data_parallel_hidden_states() {
        let shape = StepShape { requests: 1, data_parallel: true, ..Default::default() };
        assert_eq!(of(shape, &LogitsLayout::ALL), Replicated);
        assert_eq!(of(shape, &[Gather]), Gather);
        let shape = StepShape { data_parallel: false, ..shape };
        assert_eq!(of(shape, &[Replicated]), Gather);
    }

    #[test]
    fn rows_that_need_little_are_surveyed_and_others_swapped() {
        for (needs, layout) in
            [(Needs::Winner, Survey), (Needs::List, Survey), (Needs::Mass, Survey), (Needs::Whole, Swap)]
        {
            let shape = StepShape { requests: 64, needs, ..Default::default() };
            assert_eq!(of(shape, &LogitsLayout::ALL), layout, "{needs:?}");
        }
        let verify = StepShape { requests: 64, drafts: 5, kind: StepKind::Verify, ..Default::default() };
        assert_eq!(of(verify, &LogitsLayout::ALL), Swap);
        let small = Thresholds { survey_min_vocab: 1 << 20, ..Default::default() };
        let shape = StepShape { requests: 64, ..Default::default() };
        assert_eq!(decide(&shape, 128_256, 4, &LogitsLayout::ALL, &small), Ok(Swap));
    }

    #[test]
    fn the_batch_of_the_graph_decides_and_not_the_requests_in_it() {
        let configured = [Gather, Swap];
        let layouts = [(15, None), (16, None), (3, Some(16)), (15, Some(15))].map(|(requests, captured)| {
            of(StepShape { requests, captured, ..Default::default() }, &configured)
        });
        assert_eq!(layouts, [Gather, Swap, Swap, Gather]);
        let shape = StepShape { requests: 17, captured: Some(16), ..Default::default() };
        let error = decide(&shape, 100, 2, &configured, &Thresholds::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "requests is 17, but must be in 0..=16, the batch that the graph was captured for"
        );
    }

    #[test]
    fn one_rank_exchanges_nothing() {
        let shape = StepShape { requests: 64, ..Default::default() };
        assert_eq!(decide(&shape, 128_256, 1, &LogitsLayout::ALL, &Thresholds::default()), Ok(Gather));
    }

    #[test]
    fn parameters_say_what_a_row_needs() {
        let needs = |params: SamplingParams| Needs::of(&params, 1000);
        let plain = SamplingParams::default;
        assert_eq!(needs(plain()), Needs::Winner);
        assert_eq!(needs(SamplingParams { min_p: 0.1, ..plain() }), Needs::Winner);
        assert_eq!(needs(SamplingParams { min_p: 0.1, top_p: 0.9, ..plain() }), Needs::Mass);
        assert_eq!(needs(SamplingParams { top_k: 50, top_p: 0.9, ..plain() }), Needs::List);
        assert_eq!(needs(SamplingParams { top_k: 257, ..plain() }), Needs::Mass);
        let joint = SamplingParams { top_k: 50, top_p: 0.9, order: FilterOrder::Joint, ..plain() };
        assert_eq!(needs(joint), Needs::Mass);
        assert_eq!(needs(SamplingParams { top_p: 0.9, ..plain() }), Needs::Mass);
        assert_eq!(needs(SamplingParams { temperature: 0.0, top_p: 0.9, ..plain() }), Needs::Winner);
        let logprobs = Some(LogprobsParams::default());
        assert_eq!(needs(SamplingParams { temperature: 0.0, logprobs, ..plain() }), Needs::Mass);
        let dynamic_temperature = Some(DynamicTemperature { min: 0.5, max: 1.0, exponent: 1.0 });
        for (temperature, wanted) in [(0.0, Needs::Winner), (1e-31, Needs::Mass), (1.0, Needs::Mass)] {
            assert_eq!(needs(SamplingParams { temperature, dynamic_temperature, ..plain() }), wanted);
        }
    }

    #[test]
    fn the_environment_overrides_thresholds() {
        let variable = |name: &str| (name == "GUMBALL_DIST_SWAP_MIN_REQUESTS").then(|| "3".to_owned());
        let thresholds = Thresholds::default().with_environment(variable).unwrap();
        assert_eq!(thresholds, Thresholds { swap_min_requests: 3, ..Default::default() });
        let error = Thresholds::default().with_environment(|_| Some("-1".to_owned())).unwrap_err();
        assert_eq!(error.to_string(), "GUMBALL_DIST_SWAP_MIN_REQUESTS is -1, but must be a whole number");
    }
}
