//! The sampler: one sequence, its state and its stages in one value.

use std::fmt::Debug;

use gumball_cpu::{Chosen, History, Level, Task, Workspace};
use gumball_spec::edit::Hook;
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::request::{check_forced, check_mask_width};
use gumball_spec::{Error, Kind, Result, Row, SamplingParams, Status, memory};

use crate::batch::StepOptions;
use crate::route::Route;
use crate::sequence::Sequence;
use crate::stages::Stages;
use crate::state::State;

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// The id; `None` if no token of the row was above -inf and none was forced.
    pub id: Option<u32>,
    /// The status of the row's data.
    pub status: Status,
    /// The temperature in use; 0 if greedy.
    pub temperature: f32,
    /// The id's logprob and rank, if the parameters ask for logprobs.
    pub logprob: Option<TokenLogprob>,
}

/// Chooses the tokens of one sequence, and keeps its history.
///
/// Each [`sample`](Sampler::sample) appends the token to the history and advances the position; an empty row
/// changes nothing. Neither the tokens nor their logprobs depend on the machine.
#[derive(Debug)]
pub struct Sampler {
    sequence: Sequence,
    route: Route,
    open: fn(&Route, Level) -> Result<Box<dyn Chooses>>,
    level: Level,
    /// None after a panic in the stages, which may have left them in any state: the next call opens new ones.
    stages: Option<Box<dyn Chooses>>,
    collects_kept: bool,
}

/// The stages as a sampler calls them. A program whose samplers take no other route than the default has no
/// other one in it, nor the calls that only pools make.
trait Chooses: Debug + Send {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen>;
    fn logprobs(&self) -> Option<&Logprobs>;
    fn collect_kept(&mut self, on: bool);
    fn kept(&self) -> &[u32];
}

/// Implements it by [`Stages`].
macro_rules! chooses {
    ($($stages:ty),*) => {$(
        impl Chooses for $stages {
            fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
                Stages::sample(&mut **self, row, task, hook)
            }
            fn logprobs(&self) -> Option<&Logprobs> {
                Stages::logprobs(&**self)
            }
            fn collect_kept(&mut self, on: bool) {
                Stages::collect_kept(&mut **self, on);
            }
            fn kept(&self) -> &[u32] {
                Stages::kept(&**self)
            }
        }
    )*};
}

chooses!(Box<Workspace>, Box<dyn Stages>);

impl Sampler {
    /// Makes a sampler for rows of `vocab` logits, with the default route and the machine's best level.
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate`].
    /// - [`Error::Unavailable`] if no seed is given and the system has no entropy.
    /// - [`Error::Unknown`] or [`Error::OutOfRange`] if the environment asks for a level that is not there.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self> {
        let sequence = Sequence::new(params, vocab, &[])?;
        let open = |_: &Route, level| Ok(Box::new(Box::new(Workspace::new(level)?)) as _);
        Self {
            sequence,
            route: Route::Race,
            open,
            level: Level::detect()?,
            stages: None,
            collects_kept: false,
        }
        .reopen()
    }

    /// Puts a prompt before the output, which starts empty.
    #[must_use]
    pub fn with_prompt(mut self, prompt: &[u32]) -> Self {
        self.reset(prompt);
        self
    }

    /// Takes up a sequence where another sampler or pool left it.
    ///
    /// The seed is the state's. With mirostat or adaptive-p, the sequence cannot be shortened to before the
    /// state.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the state's `mu` is NaN or +inf.
    pub fn with_state(mut self, state: State<'_>) -> Result<Self> {
        self.sequence.set_state(state)?;
        Ok(self)
    }

    /// Sets the draw index, which tells sequences of the same seed and history apart; 0 if not set.
    #[must_use]
    pub fn with_draw(mut self, draw: u32) -> Self {
        self.sequence.set_draw(draw);
        self
    }

    /// Takes a route.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for a parameter that the route does not know.
    /// - The errors of [`Route::open`].
    pub fn with_route(mut self, route: Route) -> Result<Self> {
        route.check(self.sequence.params())?;
        self.route = route;
        self.open = |route, level| Ok(Box::new(route.open(level)?));
        self.reopen()
    }

    /// Takes a SIMD level; the tokens stay the same.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if this machine lacks it.
    pub fn with_level(mut self, level: Level) -> Result<Self> {
        self.level = level.check()?;
        self.reopen()
    }

    /// Returns a sampler with the same state and another draw index.
    ///
    /// # Errors
    /// The errors of opening the route once more.
    pub fn fork(&self, draw: u32) -> Result<Self> {
        let (sequence, route) = (self.sequence.fork(draw), self.route.clone());
        Self { sequence, route, stages: None, ..*self }.reopen()
    }

    /// Draws the next token from a row, f32, bf16 or f16, and appends it.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary; nothing was changed.
    pub fn sample<'r>(&mut self, logits: impl Into<Row<'r>>) -> Result<Token> {
        self.sample_with(logits, StepOptions::default())
    }

    /// Draws the next token from a row of probabilities, f32, bf16 or f16, which need not sum to 1, and
    /// appends it.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary.
    /// - The errors of [`SamplingParams::validate_for`]: what speaks of logits must be off.
    ///
    /// Nothing was changed then.
    pub fn sample_probabilities<'r>(&mut self, probabilities: impl Into<Row<'r>>) -> Result<Token> {
        self.sample_with(probabilities, StepOptions { kind: Kind::Probabilities, ..StepOptions::default() })
    }

    /// Draws the next token with the options of this row, and appends it.
    ///
    /// A forced token is emitted and appended even if it is banned or the row is empty; its logprob is that
    /// which it would have had, and `mu` stays.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary.
    /// - [`Error::OutOfRange`] if the forced token is outside it, or the mask has a word for each id.
    /// - For a row of probabilities the errors of [`SamplingParams::validate_for`], and [`Error::Conflict`]
    ///   if there is a hook.
    ///
    /// Nothing was changed then.
    pub fn sample_with<'r>(&mut self, logits: impl Into<Row<'r>>, options: StepOptions<'_>) -> Result<Token> {
        let row = self.check(logits.into(), options.forced)?;
        if let Some(mask) = options.mask {
            check_mask_width("mask's words", mask.len(), self.sequence.vocab())?;
        }
        let mut stages = self.take_stages()?;
        let task = self.sequence.task(options.kind, options.mask, options.forced);
        let chosen = stages.sample(row, &task, options.hook);
        let stages = self.stages.insert(stages);
        let chosen = chosen?;
        let token = token(chosen, &**stages);
        if let Some(id) = token.id {
            self.sequence.push(id, chosen.mu);
        }
        Ok(token)
    }

    /// Draws `n` tokens from one row, under the draw indices 0..n, and appends none of them.
    ///
    /// They are the tokens that `n` sequences would draw: independent, repeats included. To go on with one,
    /// [`push`](Sampler::push) it or [`fork`](Sampler::fork) under its draw index. Logprobs and kept set are
    /// the ones of the last draw afterwards.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary.
    /// - [`Error::Unavailable`] if the system refuses the memory of `n` tokens.
    pub fn sample_n<'r>(&mut self, logits: impl Into<Row<'r>>, n: u32) -> Result<Vec<Token>> {
        let mut tokens = memory::with_capacity("memory for tokens", n as usize)?;
        self.sample_each(logits, n, &mut |token| {
            tokens.push(token);
            true
        })?;
        Ok(tokens)
    }

    /// Draws the tokens of [`Sampler::sample_n`] and hands each to `take` as it comes, which returns whether
    /// to go on.
    ///
    /// # Errors
    /// - [`Error::Length`] if the row is not as long as the vocabulary.
    pub fn sample_each<'r>(
        &mut self,
        logits: impl Into<Row<'r>>,
        n: u32,
        take: &mut dyn FnMut(Token) -> bool,
    ) -> Result<()> {
        let row = self.check(logits.into(), None)?;
        let mut stages = self.take_stages()?;
        let drawn = (0..n).try_for_each(|draw| {
            let task = Task { draw, ..self.sequence.task(Kind::Logits, None, None) };
            let chosen = stages.sample(row, &task, None).map_err(Some)?;
            // `Err(None)` ends the loop without an error: `take` wants no more tokens.
            if take(token(chosen, &*stages)) { Ok(()) } else { Err(None) }
        });
        self.stages = Some(stages);
        drawn.or_else(|error: Option<Error>| error.map_or(Ok(()), Err))
    }

    /// Appends a token that was chosen elsewhere; `mu` stays.
    pub fn push(&mut self, id: u32) {
        self.sequence.push(id, self.sequence.mu());
    }

    /// Takes back the last `count` output tokens, and `mu` with them.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there are fewer.
    pub fn shorten(&mut self, count: usize) -> Result<()> {
        self.sequence.shorten(count)
    }

    /// Starts over after a prompt, with the same parameters, seed and draw index.
    pub fn reset(&mut self, prompt: &[u32]) {
        self.sequence.reset(prompt);
    }

    /// Returns what the next token depends on besides its row.
    #[must_use]
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Returns the parameters as they were given.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        self.sequence.params()
    }

    /// Returns the seed in use: the parameters' seed, or the fresh one that was drawn in its place.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.sequence.seed()
    }

    /// Returns the number of tokens before the next one, prompt and output, modulo 2^32.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.sequence.position()
    }

    /// Returns the ids of prompt and output with their counts.
    #[must_use]
    pub fn history(&self) -> &History {
        self.sequence.history()
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the route in use.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// Returns the logprobs of the last row, if the parameters ask for them.
    #[must_use]
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.stages.as_ref()?.logprobs()
    }

    /// Asks for the kept set of every row from now on, or for none; it costs a sort of that set.
    pub fn collect_kept(&mut self, on: bool) {
        self.collects_kept = on;
        if let Some(stages) = &mut self.stages {
            stages.collect_kept(on);
        }
    }

    /// Returns the ids that the filters kept of the last row, in the order of tokens, if
    /// [`collect_kept`](Sampler::collect_kept) asked for them before it; their number is the slice's length.
    ///
    /// One id if greedy; none if the row was empty.
    #[must_use]
    pub fn kept(&self) -> &[u32] {
        self.stages.as_ref().map_or(&[], |stages| stages.kept())
    }

    fn reopen(mut self) -> Result<Self> {
        self.stages = Some(self.open()?);
        Ok(self)
    }

    fn open(&self) -> Result<Box<dyn Chooses>> {
        let mut stages = (self.open)(&self.route, self.level)?;
        stages.collect_kept(self.collects_kept);
        Ok(stages)
    }

    /// Takes the stages, to be put back when they are done with a row.
    fn take_stages(&mut self) -> Result<Box<dyn Chooses>> {
        match self.stages.take() {
            Some(stages) => Ok(stages),
            None => self.open(),
        }
    }

    fn check<'r>(&self, row: Row<'r>, forced: Option<u32>) -> Result<Row<'r>> {
        let vocab = self.sequence.vocab();
        if row.vocab() != vocab {
            return Err(Error::length("logits", row.vocab(), format!("{vocab} elements, the vocabulary")));
        }
        check_forced(forced, vocab)?;
        Ok(row)
    }
}

fn token(chosen: Chosen, stages: &dyn Chooses) -> Token {
    Token {
        id: u32::try_from(chosen.token).ok(),
        status: chosen.status,
        temperature: chosen.temperature,
        logprob: stages.logprobs().map(|logprobs| logprobs.token),
    }
}
