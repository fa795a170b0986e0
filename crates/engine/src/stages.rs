//! The stages of a route carry one row at a time, in buffers that they keep from row to row. The route `race`
//! opens a workspace of `gumball-cpu`, the route `oracle` the naive stages of `gumball-spec`.

use std::fmt;

use gumball_cpu::{Chosen, FloatEnv, Output, RowMut, Task, Workspace};
use gumball_spec::edit::Hook;
use gumball_spec::logprobs::Logprobs;
use gumball_spec::verify::draft::{DraftWords, draft};
use gumball_spec::{Error, Request, Result, Row, oracle};

/// The stages of a route, with the buffers that they keep from row to row.
pub trait Stages: fmt::Debug + Send {
    /// Chooses the next token of a row: [`Task::emitted`](crate::unstable::Task::emitted), or else the drawn
    /// one. A row's result depends on no row before it.
    ///
    /// # Errors
    /// - [`Length`](crate::Error::Length) if the row is not as long as the vocabulary of the parameters.
    /// - [`OutOfRange`](crate::Error::OutOfRange) if the forced token is outside it.
    /// - For a row of probabilities the errors of
    ///   [`SamplingParams::validate_for`](crate::SamplingParams::validate_for), and
    ///   [`Conflict`](crate::Error::Conflict) if there is a hook.
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen>;

    /// Writes the probabilities that the token of a row would be drawn by, f32 numbers (rule P4), which
    /// [`Pool::verify`](crate::Pool::verify) judges drafts by in some modes. A forced token does not matter.
    ///
    /// # Errors
    /// - The errors of [`Stages::sample`].
    /// - [`Unavailable`](crate::Error::Unavailable) if the route knows none, as it is unless a route
    ///   implements this.
    fn probabilities(
        &mut self,
        _row: Row<'_>,
        _task: &Task<'_>,
        _hook: Option<Hook<'_>>,
        _out: &mut [f32],
    ) -> Result<()> {
        let reason = "verify coupled, or take the route race".to_owned();
        Err(Error::Unavailable { resource: "probabilities of rows on this route", reason })
    }

    /// Draws as many drafts from the row of a drafter as there are places for, [`NONE`](crate::NONE) where
    /// there are no more (rule S8), for [`Pool::draft`](crate::Pool::draft). A route that does not implement
    /// this draws one draft, by the words of its position.
    ///
    /// # Errors
    /// - The errors of [`Stages::sample`].
    /// - [`Unavailable`](crate::Error::Unavailable) for a row that a route cannot draw.
    fn draft(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        words: DraftWords,
        drafts: &mut [i32],
    ) -> Result<()> {
        let ([draft], DraftWords::Position) = (drafts, words) else {
            let reason = "draft one a row, for another mode than block, or take the route race".to_owned();
            return Err(Error::Unavailable {
                resource: "siblings and drafts of blocks on this route",
                reason,
            });
        };
        *draft = self.sample(row, task, hook)?.token;
        Ok(())
    }

    /// Returns the logprobs of the last row, if its parameters asked for them.
    fn logprobs(&self) -> Option<&Logprobs>;

    /// Asks for the kept set of every row from now on, or for none.
    fn collect_kept(&mut self, on: bool);

    /// Returns the kept set of the last row, in the order of tokens, if it was asked for before that row;
    /// empty if the row was.
    fn kept(&self) -> &[u32];
}

impl Stages for Workspace {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        Workspace::sample(self, row, task, hook)
    }

    fn probabilities(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        out: &mut [f32],
    ) -> Result<()> {
        self.write(row, task, hook, Output::Probabilities, RowMut::F32(out)).map(drop)
    }

    fn draft(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        words: DraftWords,
        drafts: &mut [i32],
    ) -> Result<()> {
        Workspace::draft(self, row, task, hook, words, drafts)
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        Workspace::logprobs(self)
    }

    fn collect_kept(&mut self, on: bool) {
        Workspace::collect_kept(self, on);
    }

    fn kept(&self) -> &[u32] {
        Workspace::kept(self)
    }
}

/// Returns a task as the oracle takes it.
fn request<'a>(task: &Task<'a>) -> Request<'a> {
    Request {
        params: task.prepared.params(),
        kind: task.kind,
        prompt: task.history.prompt(),
        output: task.history.output(),
        seed: task.seed,
        position: task.position,
        draw: task.draw,
        mu: task.mu,
        mask: task.mask,
        forced: task.forced,
        mark: None,
    }
}

#[derive(Debug, Default)]
pub(crate) struct OracleStages {
    outcome: Option<oracle::Outcome>,
    collects_kept: bool,
}

impl Stages for OracleStages {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        let _env = FloatEnv::enter();
        let outcome = self.outcome.insert(oracle::sample(row, &request(task), hook)?);
        Ok(Chosen {
            token: outcome.token,
            status: outcome.status,
            mu: outcome.mu,
            temperature: outcome.temperature,
        })
    }

    fn probabilities(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        out: &mut [f32],
    ) -> Result<()> {
        let _env = FloatEnv::enter();
        out.copy_from_slice(&oracle::sample(row, &request(task), hook)?.probabilities());
        Ok(())
    }

    fn draft(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        words: DraftWords,
        drafts: &mut [i32],
    ) -> Result<()> {
        let _env = FloatEnv::enter();
        drafts.copy_from_slice(&draft(row, &request(task), words, drafts.len(), hook)?);
        Ok(())
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.outcome.as_ref()?.logprobs.as_ref()
    }

    fn collect_kept(&mut self, on: bool) {
        self.collects_kept = on;
    }

    fn kept(&self) -> &[u32] {
        let outcome = self.outcome.as_ref().filter(|_| self.collects_kept);
        outcome.map_or(&[], |outcome| outcome.kept_ids())
    }
}
