//! A device as a route: its kernels draw from rows of the host, one at a time.
//!
//! This serves samplers, and tests that compare a device with the host. Each row copies its request's state
//! to the device, so a pool of the device is much faster.

use gumball_cpu::{Chosen, Level, Task};
use gumball_cuda::{
    Assignment, Buffer, InitialState, Outputs, Prepared, Rows, StepInput, Workspace, WorkspaceLimits,
};
use gumball_spec::edit::{Hook, edit};
use gumball_spec::layout::Widths;
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::num::key;
use gumball_spec::request::check_forced;
use gumball_spec::{Error, LogprobsParams, NONE, Request, Result, Row};

use super::Device;
use super::copy_up::copy_row_up;
use crate::probabilities::ProbabilityStages;
use crate::stages::Stages;

/// A route through a device, for [`Route::Device`](crate::Route::Device).
#[derive(Clone, Debug)]
pub struct DeviceRoute {
    name: String,
    device: Device,
    has_softmax: bool,
}

impl DeviceRoute {
    /// Makes a route with a name.
    #[must_use]
    pub fn new(name: &str, device: Device) -> Self {
        Self { name: name.to_owned(), device, has_softmax: false }
    }

    /// Returns this route by way of probabilities: the host edits each row and makes it probabilities, from
    /// which the device draws; no parameter is refused that the route
    /// [`Probabilities`](crate::Route::Probabilities) takes.
    #[must_use]
    pub fn through_probabilities(self) -> Self {
        Self { has_softmax: true, ..self }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the stages, those on the host at a level.
    ///
    /// # Errors
    /// - [`OutOfRange`](crate::Error::OutOfRange) if this machine lacks the level.
    pub fn open(&self, level: Level) -> Result<Box<dyn Stages>> {
        let stages = Box::new(DeviceStages {
            device: self.device.clone(),
            workspace: None,
            upload: None,
            logprobs: None,
            collects_kept: false,
            kept: Vec::new(),
        });
        if self.has_softmax { Ok(Box::new(ProbabilityStages::new(level, Some(stages))?)) } else { Ok(stages) }
    }
}

/// Buffers for one row, with the shape that the last row needed.
#[derive(Debug)]
struct DeviceStages {
    device: Device,
    workspace: Option<Workspace>,
    upload: Option<Buffer>,
    logprobs: Option<Logprobs>,
    collects_kept: bool,
    kept: Vec<u32>,
}

impl Stages for DeviceStages {
    fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        task.prepared.params().check_kind(task.kind)?;
        if hook.is_some() {
            let reason = "a hook runs on the host; take another route".to_owned();
            return Err(Error::Unavailable { resource: "hooks on a device", reason });
        }
        let (params, vocab) = (task.prepared.params(), task.prepared.vocab());
        if row.vocab() != vocab {
            return Err(Error::length("logits", row.vocab(), format!("{vocab} elements, the vocabulary")));
        }
        check_forced(task.forced, vocab)?;
        let prepared = Prepared::new(params, vocab)?;
        let asked = params.logprobs.as_ref();
        let widths = asked.map_or_else(Widths::default, |asked| Widths {
            top_n: asked.top_n as usize,
            ids: asked.ids.len(),
        });
        let limits = WorkspaceLimits { vocab, slots: 1, rows: 1, widths, kept: self.collects_kept };
        let mut workspace = match self.workspace.take().filter(|workspace| workspace.limits() == limits) {
            Some(workspace) => workspace,
            None => Workspace::new(self.device.runtime().clone(), limits)?,
        };

        let (prompt, output) = (task.history.prompt(), task.history.output());
        let Task { seed, position, draw, mu, .. } = *task;
        let start =
            InitialState { seed, draw, position, mu, prompt, output, history_growth: 1, keep_history: false };
        workspace.admit(0, &prepared, &start)?;
        let forced = [task.forced.map_or(NONE, |id| id as i32)];
        let masks = [task.mask];
        let masks = if task.mask.is_some() { &masks[..] } else { &[] };
        workspace.assign(&Assignment { slots: &[0], forced: &forced, masks, ..Assignment::default() })?;
        let (buffer, dtype) = copy_row_up(self.device.runtime(), &mut self.upload, row)?;
        let rows = Rows::of(buffer, dtype, 0, 1, vocab, vocab)?.with_kind(task.kind);
        workspace.enqueue(&workspace.fix(&StepInput::of(&rows))?)?;
        let outputs = workspace.results().outputs(1)?;
        self.workspace = Some(workspace);

        self.logprobs = asked.map(|asked| logprobs(asked, &outputs));
        self.kept.clear();
        if self.collects_kept {
            self.kept.extend(outputs.kept(0, vocab).unwrap_or_default());
            // The device returns the kept ids unordered; sorting them needs the edited row.
            let request = Request {
                prompt,
                output,
                position,
                draw,
                mu,
                mask: task.mask,
                kind: task.kind,
                ..Request::new(params, &[], seed)
            };
            let z = edit(row, &request, None).z;
            self.kept.sort_unstable_by_key(|id| std::cmp::Reverse(key(z[*id as usize], *id)));
        }
        let (token, status) = (outputs.token(0), outputs.status(0));
        Ok(Chosen { token, status, mu: outputs.mu(0), temperature: outputs.temperature(0) })
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.logprobs.as_ref()
    }

    fn collect_kept(&mut self, on: bool) {
        self.collects_kept = on;
    }

    fn kept(&self) -> &[u32] {
        &self.kept
    }
}

/// Converts the logprobs of a step with one row.
fn logprobs(asked: &LogprobsParams, outputs: &Outputs) -> Logprobs {
    let (layout, words) = (outputs.layout(), outputs.words());
    let member =
        |id: i32, logprob: u32, rank: u32| TokenLogprob { id, logprob: f32::from_bits(logprob), rank };
    let top = words[layout.top_ids()].iter().zip(&words[layout.top_logprobs()]).zip(1..);
    let ids = asked.ids.iter().zip(&words[layout.id_logprobs()]).zip(&words[layout.id_ranks()]);
    Logprobs {
        token: member(outputs.token(0), words[layout.logprobs()][0], words[layout.ranks()][0]),
        top: top
            .map(|((id, logprob), rank)| {
                member(*id as i32, *logprob, if *id as i32 == NONE { 0 } else { rank })
            })
            .collect(),
        ids: ids.map(|((id, logprob), rank)| member(*id as i32, *logprob, *rank)).collect(),
    }
}
