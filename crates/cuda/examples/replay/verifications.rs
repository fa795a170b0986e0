//! Times a verification of drafts beside a step over as many rows of as many requests.
//!
//! `--drafts N,..` gives each request a chain of N drafts, `--tree` a binary tree of them. A verification
//! draws a token from each of a request's N + 1 rows, as a step over these rows does, and runs one small
//! kernel before and one after it. It is timed twice: with drafts of which the walk accepts none, and with
//! chains of which it accepts all. `--judged` judges the drafts by probabilities, for which no chain is known
//! beforehand that is accepted.
//!
//! With `--json` it prints what `proof/bench/gpu` reads. A task is then named after request and drafts, as
//! `verify-plain-chain-3`, and `rows` is the number of requests.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, DeviceSlice, DraftCounts, DraftIds, DraftRule, Gpu, InitialState, IntType, Prepared,
    Rows, Runtime, Step, StepInput, Workspace, WorkspaceLimits,
};
use gumball_spec::Widths;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::requests::{Request, grammar, history, requests};
use crate::rows::{COLD_BYTES, DISTINCT, Like, Pool};
use crate::time_steps::{Case, Times, version};
use crate::{Asked, Report};

const WARM_REPLAYS: usize = 3;
const REPLAYS: usize = 20;
const POSITION: u32 = 9;

/// The shape of a request's drafts.
#[derive(Clone, Copy)]
struct Shape {
    drafts: usize,
    is_tree: bool,
    rule: DraftRule,
}

impl Shape {
    fn kind(self) -> &'static str {
        if self.is_tree { "tree" } else { "chain" }
    }
}

/// Times the chosen requests over rows of a family: `asked.sizes` are numbers of requests.
pub fn time(gpu: &Arc<Gpu>, asked: &Asked, vocab: usize, like: Like) -> Result<(), Box<dyn Error>> {
    let runtime: Arc<dyn Runtime> = Arc::clone(gpu) as Arc<dyn Runtime>;
    let rows = like.rows(vocab, DISTINCT);
    let rule = asked.judged.map_or(DraftRule::Coupled, DraftRule::Judged);
    let chosen: Vec<Request> =
        requests(vocab).into_iter().filter(|request| asked.takes(request, like)).collect();
    if let Some(folder) = &asked.write_rows {
        like.write(folder, vocab, &rows)?;
    }
    if asked.report != Report::Json {
        println!(
            "vocab {vocab}, microseconds in a graph, cold: a step, a verification that accepts no draft, one that accepts all"
        );
        println!(
            "{:19} {:10} {:5} {:>8} {:>6} {:>5} {:>9} {:>9} {:>9}",
            "request", "rows", "type", "requests", "drafts", "shape", "step", "none", "all"
        );
    }
    for dtype in asked.types() {
        for drafts in &asked.drafts {
            let shape = Shape { drafts: *drafts, is_tree: asked.tree, rule };
            for size in &asked.sizes {
                let pool = Pool::new(&runtime, vocab, dtype, &[size * (drafts + 1)], COLD_BYTES)?;
                pool.fill(&rows)?;
                let batches = pool.batches(size * (drafts + 1))?;
                for request in chosen.iter().flat_map(|request| request.at(*size)) {
                    let found = Found::new(gpu, &request, shape, &batches)?;
                    match asked.report {
                        Report::Json => found.print_results(&request, like, &batches),
                        _ => found.print_row(&request, like, &batches),
                    }
                }
            }
        }
    }
    Ok(())
}

/// The times of a step and of verifications over as many rows.
struct Found {
    shape: Shape,
    requests: usize,
    step: Times,
    /// None of the drafts is accepted, or all of them are, where it is known how to make them.
    none: Times,
    all: Option<Times>,
}

impl Found {
    fn new(
        gpu: &Arc<Gpu>,
        request: &Request,
        shape: Shape,
        batches: &[Rows<'_>],
    ) -> Result<Self, Box<dyn Error>> {
        let requests = batches[0].rows() / (shape.drafts + 1);
        let mut step = Case::new(gpu, spread(request, shape, requests), batches, false)?;
        let graph = step.capture()?;
        let times = (0..WARM_REPLAYS + REPLAYS).map(|_| step.replay_us(&graph));
        let step = counted(times.collect::<Result<_, _>>()?, batches.len());
        let mut verification = Verification::new(gpu, request, shape, batches)?;
        let mut drafts = Drafts::new(gpu, shape, requests, batches)?;
        let none = verification.replays(&drafts)?;
        // No two siblings have the same token, so a walk through a tree accepts only some drafts.
        let all = if shape.is_tree || shape.rule != DraftRule::Coupled {
            None
        } else {
            verification.accept_all(&mut drafts)?;
            Some(verification.replays(&drafts)?)
        };
        Ok(Self { shape, requests, step, none, all })
    }

    fn print_row(&self, request: &Request, like: Like, batches: &[Rows<'_>]) {
        let (dtype, Shape { drafts, .. }) = (batches[0].dtype().name(), self.shape);
        let all = self.all.as_ref().map_or_else(|| "-".to_owned(), |times| format!("{:.2}", times.median_us));
        println!(
            "{:19} {:10} {dtype:5} {:8} {drafts:6} {:>5} {:9.2} {:9.2} {all:>9}",
            request.name,
            like.name,
            self.requests,
            self.shape.kind(),
            self.step.median_us,
            self.none.median_us
        );
    }

    fn print_results(&self, request: &Request, like: Like, batches: &[Rows<'_>]) {
        let rule = match self.shape.rule {
            DraftRule::Judged(Judgement::Block) => "block",
            DraftRule::Judged(_) => "rejection",
            _ => "coupled",
        };
        let named = [
            ("a step over as many rows".to_owned(), Some(&self.step)),
            (format!("{rule}, no draft accepted"), Some(&self.none)),
            (format!("{rule}, every draft accepted"), self.all.as_ref()),
        ];
        let (vocab, dtype, like) = (batches[0].vocab(), batches[0].dtype().name(), like.name);
        let (name, kind, Shape { drafts, .. }) = (&request.name, self.shape.kind(), self.shape);
        for (does, times) in named {
            let Some(Times { median_us, p95_us, samples, calls }) = times else { continue };
            print!(r#"{{"engine":"gumball","version":"{}","does":"{does}","#, version());
            print!(r#""task":"verify-{name}-{kind}-{drafts}","vocab":{vocab},"dtype":"{dtype}","#);
            print!(r#""rows":{},"rows_like":"{like}","mode":"graph","#, self.requests);
            print!(r#""median_us":{median_us:.3},"p95_us":{p95_us:.3},"#);
            println!(r#""samples":{samples},"calls":{calls}}}"#);
        }
    }
}

/// Returns what the rows of a step ask for, if the rows of a request's drafts ask for what the request does.
fn spread(request: &Request, shape: Shape, size: usize) -> Request {
    let params = request.params.iter().cycle().take(size);
    let params = params.flat_map(|params| vec![params.clone(); shape.drafts + 1]);
    Request { params: params.collect(), ..request.clone() }
}

/// Returns the times of a call, without those of replays that only warm up.
fn counted(mut times: Vec<f32>, calls: usize) -> Times {
    Times::new(times.split_off(WARM_REPLAYS), calls)
}

/// Requests with drafts, and batches of their rows.
struct Verification<'b> {
    gpu: &'b Arc<Gpu>,
    prepared: Vec<Prepared>,
    request: &'b Request,
    shape: Shape,
    history: Vec<u32>,
    workspace: Workspace,
    slots: Vec<i32>,
    batches: &'b [Rows<'b>],
}

/// The drafts of all batches, in device memory.
struct Drafts {
    ids: Buffer,
    parents: Buffer,
}

impl Drafts {
    /// Makes drafts of ids that hardly any row draws.
    fn new(gpu: &Arc<Gpu>, shape: Shape, size: usize, batches: &[Rows<'_>]) -> gumball_cuda::Result<Self> {
        let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
        let vocab = batches[0].vocab();
        let ids = (0..batches.len() * size * shape.drafts).map(|draft| (draft % vocab) as i32);
        let parents = (0..shape.drafts as i32).map(|draft| if draft < 2 { -1 } else { draft / 2 - 1 });
        let parents: Vec<i32> = (0..size).flat_map(|_| parents.clone()).collect();
        let ids = Buffer::of(&runtime, &ids.collect::<Vec<i32>>())?;
        Ok(Self { ids, parents: Buffer::of(&runtime, &parents)? })
    }
}

impl<'b> Verification<'b> {
    fn new(
        gpu: &'b Arc<Gpu>,
        request: &'b Request,
        shape: Shape,
        batches: &'b [Rows<'b>],
    ) -> Result<Self, Box<dyn Error>> {
        let (rows, vocab) = (batches[0].rows(), batches[0].vocab());
        let size = rows / (shape.drafts + 1);
        let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
        let limits = WorkspaceLimits { vocab, slots: size, rows, widths: Widths::default(), kept: false };
        let workspace = Workspace::new(Arc::clone(&runtime), limits)?;
        let prepared = request.params.iter().map(|params| Prepared::new(params, vocab));
        let prepared = prepared.collect::<Result<_, _>>()?;
        let (history, slots) = (history(vocab), (0..size as i32).collect());
        let mut verification = Self { gpu, prepared, request, shape, history, workspace, slots, batches };
        verification.admit()?;
        verification.assign()?;
        Ok(verification)
    }

    fn admit(&mut self) -> gumball_spec::Result<()> {
        let history_growth = (self.batches.len() + 1) * (self.shape.drafts + 1);
        let start = InitialState {
            position: POSITION,
            prompt: &self.history,
            history_growth,
            ..InitialState::default()
        };
        let requests = self.prepared.iter().zip(&self.request.params).cycle();
        self.slots.iter().zip(requests).try_for_each(|(slot, (prepared, params))| {
            let start = InitialState { seed: *slot as u64, mu: params.initial_mu(), ..start };
            self.workspace.admit(*slot, prepared, &start)
        })
    }

    fn assign(&mut self) -> gumball_spec::Result<()> {
        let counts = vec![self.shape.drafts as u32; self.slots.len()];
        let vocab = self.batches[0].vocab();
        let grammar = grammar(vocab);
        let masks = vec![Some(&grammar[..]); if self.request.masked { self.batches[0].rows() } else { 0 }];
        let drafts = Some(DraftCounts { counts: &counts, rule: self.shape.rule, batch_requests: &[] });
        let assignment = Assignment { slots: &self.slots, masks: &masks, drafts, ..Assignment::default() };
        self.workspace.assign(&assignment)
    }

    fn steps<'d>(&self, drafts: &'d Drafts) -> gumball_spec::Result<Vec<Step<'d>>>
    where
        'b: 'd,
    {
        let count = self.slots.len() * self.shape.drafts;
        let step = |(batch, rows): (usize, &Rows<'b>)| {
            let address = drafts.ids.address() + (batch * count * size_of::<i32>()) as u64;
            // SAFETY: the buffer holds the drafts of all batches and is borrowed as long as the steps live,
            // so that nobody writes to it.
            let ids = unsafe { DeviceSlice::new(address, IntType::I32, count)? };
            let parents = self.shape.is_tree.then(|| DeviceSlice::of(&drafts.parents, IntType::I32));
            self.workspace.fix(&StepInput {
                drafts: Some(DraftIds { ids, parents, links: None, probs: None }),
                ..StepInput::of(rows)
            })
        };
        self.batches.iter().enumerate().map(step).collect()
    }

    /// Times replays of a graph with a verification of each batch.
    fn replays(&mut self, drafts: &Drafts) -> Result<Times, Box<dyn Error>> {
        let graph = self.workspace.capture(&self.steps(drafts)?)?;
        let mut times = Vec::new();
        for _ in 0..WARM_REPLAYS + REPLAYS {
            self.admit()?;
            times.push(self.gpu.elapsed_us(|| self.workspace.replay(&graph))? / self.batches.len() as f32);
        }
        Ok(counted(times, self.batches.len()))
    }

    /// Makes the drafts of each batch what its rows draw. The row after a draft is drawn from as if the
    /// draft were accepted, so every draft takes a verification of its own, after all batches before.
    fn accept_all(&mut self, drafts: &mut Drafts) -> Result<(), Box<dyn Error>> {
        let (count, rows) = (self.shape.drafts, self.batches[0].rows());
        for batch in 0..self.batches.len() {
            let mut ids = vec![0i32; self.slots.len() * count];
            for known in 0..count {
                self.admit()?;
                let steps = self.steps(drafts)?;
                steps[..=batch].iter().try_for_each(|step| self.workspace.enqueue(step).map(drop))?;
                drop(steps);
                let outputs = self.workspace.results().outputs(rows)?;
                for (request, ids) in ids.chunks_exact_mut(count).enumerate() {
                    ids[known] = outputs.token(request * (count + 1) + known);
                }
                drafts.ids.write(batch * size_of_val(&ids[..]), &ids)?;
            }
        }
        Ok(())
    }
}
