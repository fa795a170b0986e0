//! The workspace: one row at a time through all stages, in buffers that are kept between rows.

use gumball_spec::edit::Hook;
use gumball_spec::logprobs::Logprobs;
use gumball_spec::{Error, Request, Result, Row, Status, oracle};

use crate::{History, Level, Prepared};

/// What a row is drawn for: a request's state at that row.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The parameters.
    pub prepared: &'a Prepared,
    /// Prompt and output so far.
    pub history: &'a History,
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the drawn one, modulo 2^32.
    pub position: u32,
    /// The index of the sample, for several draws from one row.
    pub draw: u32,
    /// Mirostat's limit, in bits.
    pub mu: f32,
    /// The grammar bitmask: bit `id % 32` of word `id / 32` allows an id; missing words forbid.
    pub mask: Option<&'a [u32]>,
    /// The token to emit whatever is drawn.
    pub forced: Option<u32>,
}

/// What came out of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token, or [`gumball_spec::NONE`].
    pub token: i32,
    /// What the row's data had to say.
    pub status: Status,
    /// Mirostat's limit after this row.
    pub mu: f32,
    /// The temperature in use; 0 if greedy. That of the parameters in an empty row.
    pub temperature: f32,
}

/// Buffers for one row at a time; grows to what the rows need and then allocates no more.
#[derive(Debug)]
pub struct Workspace {
    level: Level,
    outcome: Option<oracle::Outcome>,
}

impl Workspace {
    /// Makes an empty workspace for a level of this machine.
    ///
    /// # Errors
    /// Those of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Ok(Self { level: level.check()?, outcome: None })
    }

    /// Returns the level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Chooses the next token of a row.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary of the parameters.
    /// - [`Error::OutOfRange`] if the forced token is outside the vocabulary.
    pub fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        if row.vocab() != task.prepared.vocab() {
            return Err(Error::length("logits", row.vocab(), format!("{} ids", task.prepared.vocab())));
        }
        let request = Request {
            params: task.prepared.params(),
            prompt: task.history.prompt(),
            output: task.history.output(),
            seed: task.seed,
            position: task.position,
            draw: task.draw,
            mu: task.mu,
            mask: task.mask,
            forced: task.forced,
        };
        let outcome = oracle::sample(row, &request, hook)?;
        let chosen = Chosen {
            token: outcome.token,
            status: outcome.status,
            mu: outcome.mu,
            temperature: outcome.temperature,
        };
        self.outcome = Some(outcome);
        Ok(chosen)
    }

    /// Returns the logprobs of the last row, if its request asked for them.
    #[must_use]
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.outcome.as_ref()?.logprobs.as_ref()
    }

    /// Writes the kept set of the last row, in the order of tokens; empty if the row was.
    pub fn kept(&mut self, ids: &mut Vec<u32>) {
        ids.clear();
        ids.extend(self.outcome.iter().flat_map(|outcome| outcome.kept_ids()));
    }
}
