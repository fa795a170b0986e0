//! Layouts of the logits of a step, and the shape that decides one before they exist.
//!
//! Head, graph and sampler must agree on it, and so must all ranks: it is a pure function of what all of them
//! know. Nothing is measured or sent to decide.

use gumball_spec::{Error, LogprobMode, MOST_LISTED, Reading, Result, SamplingParams};

/// How the logits of a step lie on the ranks, and which data is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogitsLayout {
    /// Each rank has a part of the vocabulary of all rows, gets the other parts, and samples all rows.
    Gather,
    /// Each rank has a part of the vocabulary of all rows, exchanges it for the whole vocabulary of its share
    /// of the rows, and samples these. The results are exchanged.
    Swap,
    /// Each rank keeps its part of the vocabulary, and only what decides is exchanged: maxima, masses, and
    /// the tokens that may win.
    Survey,
    /// Each rank has the whole vocabulary of its share of the rows, from a head of its own. Only what comes
    /// out is exchanged.
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
        Self::ALL
            .into_iter()
            .find(|layout| layout.name() == name)
            .ok_or_else(|| Error::unknown("layout", name, Self::ALL.map(Self::name).join(", ")))
    }
}

/// The purpose of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// The first token after a prompt.
    Prefill,
    /// One token for each request.
    #[default]
    Decode,
    /// The drafts of each request are compared with the tokens that their rows draw: modes coupled and
    /// greedy.
    Verify,
    /// The drafts of each request are judged by the probabilities of their rows, which takes whole rows: all
    /// other modes.
    Judge,
}

/// How much of a row decides its token, from little to all; of a batch, the reading of the row with the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Needs {
    /// The best token of each rank: greedy decoding, and sampling without filters or with min-p alone,
    /// without logprobs.
    #[default]
    Winner,
    /// The first tokens of each rank, [`StepShape::listed`] at most: filter chains of which up to
    /// [`MOST_LISTED`] first tokens decide, without logprobs of the whole row.
    List,
    /// Masses of the whole row, and then its first tokens or more of it.
    Mass,
    /// The row itself: hooks that change it, probabilities in place of logits, a radius, adaptive-p.
    Whole,
}

impl Needs {
    /// Returns what the rows of a request need in its steps, if these logits choose their tokens.
    #[must_use]
    pub fn of(params: &SamplingParams, reading: Reading) -> Self {
        let modes = params.logprobs.as_ref().map(|logprobs| logprobs.mode);
        match reading {
            _ if params.is_adaptive() && reading != Reading::First => Self::Whole,
            _ if modes.is_some_and(|modes| modes.contains(LogprobMode::Radius)) => Self::Whole,
            _ if modes.is_some() => Self::Mass,
            Reading::First | Reading::Race(_) => Self::Winner,
            Reading::Top(k) if k <= MOST_LISTED => Self::List,
            _ => Self::Mass,
        }
    }
}

/// The shape of a step, which decides its layout. All ranks must hand in the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// The number of requests.
    pub requests: usize,
    /// The number of drafts of each request, in a verification; the largest where requests differ.
    pub drafts: usize,
    /// The purpose of the step.
    pub kind: StepKind,
    /// What the rows need; of a device, the rows that its surveys do not swap.
    pub needs: Needs,
    /// How many first tokens decide the rows that need lists, at most.
    pub listed: usize,
    /// Whether rows have edits or bitmasks.
    pub edits: bool,
    /// The number of requests whose rows a survey swaps.
    pub swapped: usize,
    /// Whether each rank has the hidden states of its own requests only.
    pub data_parallel: bool,
    /// The number of requests, padding included, that the graph was captured for, if the step replays one.
    pub captured: Option<usize>,
}

impl StepShape {
    /// Takes in a request of the batch, whose rows lie on the host or on devices. `reading`: of the request
    /// in this step.
    pub fn add(&mut self, params: &SamplingParams, reading: Reading, on_device: bool) {
        self.edits |= params.edits();
        let needs = Needs::of(params, reading);
        if on_device && needs >= Needs::Mass {
            self.swapped += 1;
            return;
        }
        self.needs = self.needs.max(needs);
        if let (Needs::List, Reading::Top(k)) = (needs, reading) {
            self.listed = self.listed.max(k);
        }
    }

    /// Returns the number of requests that decides: the graph's, if there is one.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.captured.unwrap_or(self.requests)
    }

    /// Returns the number of rows of that many requests, if each had the most drafts.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.batch() * (self.drafts + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_cpu::Prepared;
    use gumball_spec::{DynamicTemperature, FilterOrder, LogprobsParams};

    #[test]
    fn parameters_say_what_a_row_needs() {
        let needs = |params: SamplingParams| {
            let prepared = Prepared::new(params, 1000).unwrap();
            Needs::of(prepared.params(), prepared.reading())
        };
        let plain = SamplingParams::default;
        assert_eq!(needs(plain()), Needs::Winner);
        assert_eq!(needs(SamplingParams { min_p: 0.1, ..plain() }), Needs::Winner);
        assert_eq!(needs(SamplingParams { min_p: 0.1, top_p: 0.9, ..plain() }), Needs::Mass);
        assert_eq!(needs(SamplingParams { top_k: 50, top_p: 0.9, ..plain() }), Needs::List);
        assert_eq!(needs(SamplingParams { top_k: MOST_LISTED as i64 + 1, ..plain() }), Needs::Mass);
        let joint = SamplingParams { top_k: 50, top_p: 0.9, order: FilterOrder::Joint, ..plain() };
        assert_eq!(needs(joint), Needs::Mass);
        assert_eq!(needs(SamplingParams { top_p: 0.9, ..plain() }), Needs::Mass);
        assert_eq!(needs(SamplingParams { top_k: 50, min_keep: 2, ..plain() }), Needs::Mass);
        assert_eq!(needs(SamplingParams { temperature: 0.0, top_p: 0.9, ..plain() }), Needs::Winner);
        let logprobs = Some(LogprobsParams::default());
        assert_eq!(needs(SamplingParams { temperature: 0.0, logprobs, ..plain() }), Needs::Mass);
        let dynamic_temperature = Some(DynamicTemperature { min: 0.5, max: 1.0, exponent: 1.0 });
        for (temperature, wanted) in [(0.0, Needs::Winner), (1e-31, Needs::Mass), (1.0, Needs::Mass)] {
            assert_eq!(needs(SamplingParams { temperature, dynamic_temperature, ..plain() }), wanted);
        }
    }
}
