//! Times a request over batches: its steps in a graph, from the host, or one for a profiler.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::Profiler;
use gumball_cuda::{
    Assignment, Gpu, Graph, InitialState, Prepared, Rows, Runtime, Step, StepInput, Workspace,
    WorkspaceLimits, numeric_check,
};
use gumball_spec::Widths;

use crate::requests::{Request, grammar, history};
use crate::rows::Like;

/// The number of replays of a graph: `MOST_REPLAYS`, or `FEWEST_REPLAYS` once one takes longer than
/// `LONG_US`.
const MOST_REPLAYS: usize = 20;
const FEWEST_REPLAYS: usize = 12;
const LONG_US: f32 = 30_000.0;
/// Warm-up replays and warm-up steps, which do not count.
const WARM_REPLAYS: usize = 3;
const WARM_STEPS: usize = 10;
const EAGER_STEPS: usize = 60;
pub const CEILING_BYTES_PER_US: f64 = 4_576_000.0;

/// A request, and the batches whose rows make it.
pub struct Case<'b> {
    gpu: &'b Arc<Gpu>,
    request: Request,
    prepared: Vec<Prepared>,
    history: Vec<u32>,
    workspace: Workspace,
    slots: Vec<i32>,
    batches: &'b [Rows<'b>],
}

impl<'b> Case<'b> {
    /// kept: whether the steps write the kept sets, too.
    pub fn new(
        gpu: &'b Arc<Gpu>,
        request: Request,
        batches: &'b [Rows<'b>],
        kept: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let (rows, vocab) = (batches[0].rows(), batches[0].vocab());
        let limits = WorkspaceLimits { vocab, slots: rows, rows, widths: Widths::default(), kept };
        let workspace = Workspace::new(Arc::clone(gpu) as Arc<dyn Runtime>, limits)?;
        let prepared = request.params.iter().map(|params| Prepared::new(params, vocab));
        let (prepared, slots) = (prepared.collect::<Result<_, _>>()?, (0..rows as i32).collect());
        let mut case = Self { gpu, request, prepared, history: history(vocab), workspace, slots, batches };
        case.admit()?;
        let grammar = grammar(vocab);
        let masks = vec![Some(&grammar[..]); if case.request.masked { rows } else { 0 }];
        let assignment = Assignment { slots: &case.slots, masks: &masks, ..Assignment::default() };
        case.workspace.assign(&assignment)?;
        Ok(case)
    }

    /// Admits all requests again, so that each replay begins with equally long histories.
    fn admit(&mut self) -> gumball_spec::Result<()> {
        let history_growth = self.batches.len().max(WARM_STEPS + EAGER_STEPS);
        let start =
            InitialState { position: 9, prompt: &self.history, history_growth, ..InitialState::default() };
        let requests = self.prepared.iter().zip(&self.request.params).cycle();
        self.slots.iter().zip(requests).try_for_each(|(slot, (prepared, params))| {
            let start = InitialState { seed: *slot as u64, mu: params.initial_mu(), ..start };
            self.workspace.admit(*slot, prepared, &start)
        })
    }

    fn steps(&self) -> gumball_spec::Result<Vec<Step<'b>>> {
        self.batches.iter().map(|rows| self.workspace.fix(&StepInput::of(rows))).collect()
    }

    /// Times steps from the host, each with a synchronisation.
    fn eager(&mut self) -> Result<Times, Box<dyn Error>> {
        self.admit()?;
        let mut times = Vec::new();
        for step in self.steps()?.iter().cycle().take(WARM_STEPS + EAGER_STEPS) {
            let began = Instant::now();
            self.workspace.enqueue(step)?;
            self.gpu.synchronize()?;
            times.push(began.elapsed().as_secs_f32() * 1e6);
        }
        Ok(Times::new(times.split_off(WARM_STEPS), 1))
    }

    /// Captures a step over each batch.
    pub fn capture(&self) -> gumball_spec::Result<Graph<'b>> {
        self.workspace.capture(&self.steps()?)
    }

    /// Times a replay of a graph by CUDA events: microseconds a step.
    pub fn replay_us(&mut self, graph: &Graph<'b>) -> gumball_spec::Result<f32> {
        self.admit()?;
        Ok(self.gpu.elapsed_us(|| self.workspace.replay(graph))? / graph.steps() as f32)
    }

    /// Times replays of a graph of steps.
    fn replays(&mut self, steps: &[Step<'b>]) -> Result<Times, Box<dyn Error>> {
        let graph = self.workspace.capture(steps)?;
        let (mut times, mut count) = (Vec::new(), MOST_REPLAYS);
        while times.len() < WARM_REPLAYS + count {
            let time = self.replay_us(&graph)?;
            times.push(time);
            if time * steps.len() as f32 > LONG_US {
                count = FEWEST_REPLAYS;
            }
        }
        Ok(Times::new(times.split_off(WARM_REPLAYS), steps.len()))
    }

    /// Times replays of a graph of the steps' surveys, which advance no request.
    fn survey_replays(&self, steps: &[Step<'b>]) -> Result<Times, Box<dyn Error>> {
        let surveys: Vec<_> = steps.iter().cloned().map(Step::survey_only).collect();
        let graph = self.workspace.capture(&surveys)?;
        let replay = |_| self.gpu.elapsed_us(|| self.workspace.replay(&graph));
        let times = (0..WARM_REPLAYS + FEWEST_REPLAYS).map(replay).collect::<Result<Vec<_>, _>>()?;
        let times = times[WARM_REPLAYS..].iter().map(|time| time / steps.len() as f32).collect();
        Ok(Times::new(times, steps.len()))
    }

    pub fn print_row(&mut self, like: Like) -> Result<(), Box<dyn Error>> {
        let (rows, dtype) = (self.batches[0].rows(), self.batches[0].dtype());
        let steps = self.steps()?;
        let (survey, step) = (self.survey_replays(&steps)?, self.replays(&steps)?);
        let floor = (rows * self.batches[0].vocab() * dtype.bytes()) as f64 / CEILING_BYTES_PER_US;
        println!(
            "{:19} {:10} {:5} {rows:4} {floor:7.2} {:>16} {:>16} {:6.2}",
            self.request.name,
            like.name,
            dtype.name(),
            survey.text(),
            step.text(),
            f64::from(step.median_us) / floor
        );
        Ok(())
    }

    /// Prints results as `proof/bench/gpu` reads them: one JSON object each.
    pub fn print_results(&mut self, like: Like, eager: bool) -> Result<(), Box<dyn Error>> {
        let steps = self.steps()?;
        let eager = if eager { Some(("eager", self.eager()?)) } else { None };
        for (mode, times) in eager.into_iter().chain([("graph", self.replays(&steps)?)]) {
            let Times { median_us, p95_us, samples, calls } = times;
            print!(r#"{{"engine":"gumball","version":"{}","does":"step",{},"#, version(), self.which(like));
            print!(r#""mode":"{mode}","median_us":{median_us:.3},"p95_us":{p95_us:.3},"#);
            println!(r#""samples":{samples},"calls":{calls}}}"#);
        }
        Ok(())
    }

    /// Runs one step for a profiler, after a kernel that no step has and that marks its beginning.
    pub fn profile(&mut self, like: Like) -> Result<(), Box<dyn Error>> {
        let steps = self.steps()?;
        self.workspace.enqueue(&steps[0])?;
        self.gpu.synchronize()?;
        let runtime = Arc::clone(self.gpu) as Arc<dyn Runtime>;
        let profiler = Profiler::new()?;
        numeric_check::check(&runtime, 0, numeric_check::Inputs { from: 0, step: 1, count: 1 })??;
        self.workspace.enqueue(&steps[1])?;
        self.gpu.synchronize()?;
        drop(profiler);
        println!("{{{}}}", self.which(like));
        Ok(())
    }

    /// Returns the fields of a JSON object that identify what is timed.
    fn which(&self, like: Like) -> String {
        let (rows, dtype) = (self.batches[0].rows(), self.batches[0].dtype().name());
        let (task, vocab, like) = (&self.request.name, self.batches[0].vocab(), like.name);
        format!(r#""task":"{task}","vocab":{vocab},"dtype":"{dtype}","rows":{rows},"rows_like":"{like}""#)
    }
}

pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The statistics of a call's times, in microseconds.
pub struct Times {
    pub median_us: f32,
    pub p95_us: f32,
    pub samples: usize,
    pub calls: usize,
}

impl Times {
    pub fn new(mut times: Vec<f32>, calls: usize) -> Self {
        times.sort_by(f32::total_cmp);
        let samples = times.len();
        Self { median_us: times[samples / 2], p95_us: times[samples * 19 / 20], samples, calls }
    }

    pub fn text(&self) -> String {
        format!("{:.2} ({:.2})", self.median_us, self.p95_us)
    }
}
