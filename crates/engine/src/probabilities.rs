//! The route that makes a row of probabilities on the way, for engines that hold or must return one.
//!
//! Logits are edited, tempered and normalised into a row of f32 (rule P4, without filters); filters, draw and
//! logprobs then work on that row by P1. A row that holds probabilities already goes straight on. The draw is
//! the same race with the same arrivals, so the token is the token of the route
//! [`Route::Race`](crate::Route::Race) but where two scores, or a token and the end of a cut, lie within the
//! rounding of the probabilities of each other.

use gumball_cpu::{Chosen, History, Level, Output, Prepared, RowMut, Task, Workspace};
use gumball_spec::edit::Hook;
use gumball_spec::logprobs::Logprobs;
use gumball_spec::{Error, Kind, LogprobMode, Parameter, Parameters, Result, Row, SamplingParams, Stage};

use crate::stages::Stages;

/// The stages of the route, whose edits and softmax run on the host.
#[derive(Debug)]
pub(crate) struct ProbabilityStages {
    workspace: Workspace,
    nothing: History,
    /// The parameters of the last row, split.
    split: Option<Split>,
    /// The probabilities of the last row.
    row: Vec<f32>,
}

/// Parameters in two parts.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The steps that make probabilities of logits: edits and temperature.
    pub softmax: SamplingParams,
    /// What draws from them: filters and logprobs.
    pub draw: SamplingParams,
}

impl Parts {
    /// Splits parameters.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for a parameter that the route does not know.
    pub fn of(whole: &SamplingParams) -> Result<Self> {
        let conflict = |parameter, reason| Err(Error::Conflict { parameter, other: "route", reason });
        if let Some(filter) = whole.switched_on().find(|switch| switch.filter.is_some() && switch.of_logits) {
            return conflict(filter.name, "it speaks of logits; take the route race");
        }
        if whole.temperature_last && whole.temperature != 1.0 {
            return conflict(
                "temperature_last",
                "the route's filters see tempered probabilities; take the route race",
            );
        }
        let of_logits = |mode| !matches!(mode, LogprobMode::Tempered | LogprobMode::Processed);
        if whole.logprobs.as_ref().is_some_and(|logprobs| logprobs.mode.iter().any(of_logits)) {
            return conflict(
                "logprobs.mode",
                "the route knows tempered and processed ones; take the route race",
            );
        }
        let is_drawn = |parameter: &Parameter| matches!(parameter.stage, Stage::Filter | Stage::Logprobs);
        let draw = whole.only(is_drawn);
        let softmax = whole.only(|parameter| !is_drawn(parameter));
        Ok(Self { softmax, draw })
    }
}

/// Parameters and their two parts, prepared.
#[derive(Debug)]
struct Split {
    whole: SamplingParams,
    softmax: Prepared,
    draw: Prepared,
    /// The draw, greedily.
    greedy: Prepared,
}

impl Split {
    fn new(whole: &SamplingParams, vocab: usize) -> Result<Self> {
        let Parts { softmax, draw } = Parts::of(whole)?;
        let greedy = SamplingParams { temperature: 0.0, ..draw.clone() };
        Ok(Self {
            whole: whole.clone(),
            softmax: Prepared::new(softmax, vocab)?,
            draw: Prepared::new(draw, vocab)?,
            greedy: Prepared::new(greedy, vocab)?,
        })
    }
}

impl ProbabilityStages {
    pub fn new(level: Level) -> Result<Self> {
        let (workspace, nothing) = (Workspace::new(level)?, History::new(&[]));
        Ok(Self { workspace, nothing, split: None, row: Vec::new() })
    }
}

impl Stages for ProbabilityStages {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        if task.kind == Kind::Probabilities {
            return Stages::sample(&mut self.workspace, row, task, hook);
        }
        let (params, vocab) = (task.prepared.params(), task.prepared.vocab());
        let known = |split: &Split| split.whole == *params && split.softmax.vocab() == vocab;
        let split = match self.split.take().filter(known) {
            Some(split) => split,
            None => Split::new(params, vocab)?,
        };
        let split = self.split.insert(split);

        self.row.resize(vocab, 0.0);
        let softmax = Task { prepared: &split.softmax, ..*task };
        let out = RowMut::F32(&mut self.row);
        let written = self.workspace.write(row, &softmax, hook, Output::Probabilities, out)?;
        let prepared = if written.temperature == 0.0 { &split.greedy } else { &split.draw };
        let (kind, history, forced) = (Kind::Probabilities, &self.nothing, task.emitted());
        let draw = Task { kind, prepared, history, mask: None, forced, ..*task };
        let mut chosen = Stages::sample(&mut self.workspace, Row::F32(&self.row), &draw, None)?;
        chosen.status.insert(written.status);
        chosen.status.insert(task.forced_status());
        chosen.temperature = written.temperature;
        Ok(Chosen::unread(task).unwrap_or(chosen))
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.workspace.logprobs()
    }

    fn collect_kept(&mut self, on: bool) {
        self.workspace.collect_kept(on);
    }

    fn kept(&self) -> &[u32] {
        self.workspace.kept()
    }
}
