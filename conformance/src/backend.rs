//! Backends: places where the stages run, behind one interface.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use gumball_cpu::{History, Level, Prepared, Task, Workspace};
use gumball_spec::edit::Hook;
use gumball_spec::logprobs::Logprobs;
use gumball_spec::{Error, Result, Status, oracle};

use crate::case::Case;

/// What came out of a row.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The token, or [`gumball_spec::NONE`].
    pub token: i32,
    /// What the row's data had to say.
    pub status: Status,
    /// The temperature in use; 0 if greedy.
    pub temperature: f32,
    /// Mirostat's limit after the row.
    pub mu: f32,
    /// The kept ids, in order; absent if the backend does not report them.
    pub kept: Option<Vec<u32>>,
    /// The logprobs, if they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// A place where the stages run.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns its name.
    fn name(&self) -> String;

    /// Passes one row through all stages.
    ///
    /// # Errors
    /// Those of the oracle, under the same conditions.
    fn sample(&self, case: &Case) -> Result<Observed>;

    /// Passes rows through all stages as one batch.
    fn sample_batch(&self, cases: &[Case]) -> Vec<Result<Observed>> {
        cases.iter().map(|case| self.sample(case)).collect()
    }
}

/// The definition itself: what every other backend is held to.
#[derive(Clone, Copy, Debug)]
pub struct Oracle;

impl Backend for Oracle {
    fn name(&self) -> String {
        "oracle".to_owned()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        let mut edit = |z: &mut [f32]| case.hook.into_iter().for_each(|hook| hook.apply(z));
        let hook: Option<Hook<'_>> = if case.hook.is_some() { Some(&mut edit) } else { None };
        let outcome = oracle::sample(case.logits.row(), &case.request(), hook)?;
        Ok(Observed {
            token: outcome.token,
            status: outcome.status,
            temperature: outcome.temperature,
            mu: outcome.mu,
            kept: Some(outcome.kept_ids().to_vec()),
            logprobs: outcome.logprobs,
        })
    }
}

/// The CPU at one level. One workspace serves all rows, so that whatever a row leaves behind meets the next.
#[derive(Debug)]
pub struct Cpu {
    workspace: Mutex<Workspace>,
    level: Level,
}

impl Cpu {
    /// Makes a backend of a level of this machine.
    ///
    /// # Errors
    /// Those of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Ok(Self { workspace: Mutex::new(Workspace::new(level)?), level })
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        self.level.to_string()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        let prepared = Prepared::new(case.params.clone(), case.vocab())?;
        let mut history = History::new(&case.prompt);
        case.output.iter().for_each(|id| history.push(*id));
        let task = Task {
            prepared: &prepared,
            history: &history,
            seed: case.seed,
            position: case.position,
            draw: case.draw,
            mu: case.mu,
            mask: case.mask.as_deref(),
            forced: case.forced,
        };
        let mut edit = |z: &mut [f32]| case.hook.into_iter().for_each(|hook| hook.apply(z));
        let hook: Option<Hook<'_>> = if case.hook.is_some() { Some(&mut edit) } else { None };
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = workspace.sample(case.logits.row(), &task, hook)?;
        let logprobs = workspace.logprobs().cloned();
        let mut kept = Vec::new();
        workspace.kept(&mut kept);
        Ok(Observed {
            token: chosen.token,
            status: chosen.status,
            temperature: chosen.temperature,
            mu: chosen.mu,
            kept: Some(kept),
            logprobs,
        })
    }
}

/// Returns the backends of this machine, the oracle first.
#[must_use]
pub fn available() -> Vec<Box<dyn Backend>> {
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Oracle)];
    for level in Level::available() {
        backends.push(Box::new(Cpu::new(level).expect("the level is available")));
    }
    backends
}

/// Returns a backend of this machine by its name.
///
/// # Errors
/// - [`Error::Unknown`] if no backend has the name.
/// - [`Error::OutOfRange`] if this machine lacks it.
pub fn by_name(name: &str) -> Result<Box<dyn Backend>> {
    if name == "oracle" {
        return Ok(Box::new(Oracle));
    }
    let level = name.parse().map_err(|_| Error::Unknown {
        parameter: "backend",
        name: name.to_owned(),
        known: format!("oracle, {}", Level::ALL.map(Level::name).join(", ")),
    })?;
    Ok(Box::new(Cpu::new(level)?))
}
