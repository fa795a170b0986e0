//! Requests, and a workspace on a device that takes launches down.

use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, DeviceLimits, DraftCounts, DraftRule, Dtype, InitialState, Launch, Prepared, Runtime,
    Step, Tap, Workspace, WorkspaceLimits,
};
use gumball_spec::layout::Widths;
use gumball_spec::{FilterOrder, LogprobsParams, Result, SamplingParams};

pub type Cases = Vec<(String, Vec<Launch>)>;

/// A device like an H200, and one without bulk copies and clusters.
pub fn new_device() -> DeviceLimits {
    DeviceLimits {
        shared_memory_per_block: 232_448,
        dynamic_smem_per_block: 232_448,
        clusters: [132, 66, 44, 30, 26, 22, 18, 15, 14, 13, 12, 11, 10, 9, 8, 7],
        ..DeviceLimits::new(132)
    }
}

pub fn old_device() -> DeviceLimits {
    DeviceLimits::new(108)
}

/// Requests for each kernel that finishes rows: without edits, with edits by id and with edits by history,
/// with sums of weights and without.
pub fn requests() -> Vec<(String, SamplingParams)> {
    let plain = SamplingParams::default;
    let logprobs = |top_n| Some(LogprobsParams { top_n, ..Default::default() });
    let joint = FilterOrder::Joint;
    let filters = [
        ("plain", plain()),
        ("greedy", SamplingParams { temperature: 0.0, ..plain() }),
        ("min-p", SamplingParams { min_p: 0.1, ..plain() }),
        ("top-k", SamplingParams { top_k: 50, ..plain() }),
        ("top-k of many", SamplingParams { top_k: 900, ..plain() }),
        ("top-k and top-p", SamplingParams { top_k: 50, top_p: 0.9, ..plain() }),
        ("joint", SamplingParams { top_k: 50, top_p: 0.9, order: joint, ..plain() }),
        ("top-p", SamplingParams { top_p: 0.9, ..plain() }),
        ("typical-p", SamplingParams { typical_p: 0.9, ..plain() }),
        ("logprob", SamplingParams { logprobs: logprobs(0), ..plain() }),
        ("logprob, top-p", SamplingParams { logprobs: logprobs(0), top_p: 0.9, ..plain() }),
        ("top logprobs", SamplingParams { logprobs: logprobs(2), ..plain() }),
    ];
    let edited = ["penalty", "n-gram"].into_iter().flat_map(|edit| {
        let of = |filter: &str, params: SamplingParams| {
            let (repetition_penalty, no_repeat_ngram) = if edit == "penalty" { (1.5, 0) } else { (1.0, 3) };
            let params = SamplingParams { repetition_penalty, no_repeat_ngram, ..params };
            (format!("{edit}, {filter}"), params)
        };
        [
            of("plain", plain()),
            of("top-k of many", SamplingParams { top_k: 900, ..plain() }),
            of("logprob", SamplingParams { logprobs: logprobs(0), ..plain() }),
            of("top-p", SamplingParams { top_p: 0.9, ..plain() }),
            of("typical-p", SamplingParams { typical_p: 0.9, logprobs: logprobs(0), ..plain() }),
        ]
    });
    filters.into_iter().map(|(name, params)| (name.to_owned(), params)).chain(edited).collect()
}

/// Some of these requests, by their names.
pub fn some(names: &[&str]) -> Vec<(String, SamplingParams)> {
    requests().into_iter().filter(|(name, _)| names.contains(&&**name)).collect()
}

/// The requests for work whose launches follow features as a step's do.
pub const FEW: [&str; 5] = ["plain", "top-p", "top-k of many", "penalty, plain", "n-gram, logprob"];

/// A device that takes launches down, and a workspace there.
pub struct Bench {
    pub tap: Arc<Tap>,
    pub runtime: Arc<dyn Runtime>,
    pub workspace: Workspace,
    pub limits: WorkspaceLimits,
}

impl Bench {
    pub fn new(device: DeviceLimits, rows: usize, vocab: usize) -> Self {
        let widths = Widths { top_n: 2, ids: 0 };
        Self::of(device, WorkspaceLimits { vocab, slots: 8, rows, widths, kept: false })
    }

    pub fn of(device: DeviceLimits, limits: WorkspaceLimits) -> Self {
        let tap = Arc::new(Tap::without_machine(device));
        let runtime: Arc<dyn Runtime> = Arc::clone(&tap) as _;
        let workspace = Workspace::new(Arc::clone(&runtime), limits).unwrap();
        Self { tap, runtime, workspace, limits }
    }

    /// Puts a request into slot 0, and an unfiltered one into the others.
    pub fn admit(&mut self, params: &SamplingParams) {
        for slot in 0..self.limits.slots as i32 {
            let params = if slot == 0 { params.clone() } else { SamplingParams::default() };
            let prepared = Prepared::new(&params, self.limits.vocab).unwrap();
            let start = InitialState { prompt: &[1, 2], history_growth: 1000, ..InitialState::default() };
            self.workspace.admit(slot, &prepared, &start).unwrap();
        }
    }

    /// Returns memory for elements of rows.
    pub fn memory(&self, dtype: Dtype, rows: usize, width: usize) -> Buffer {
        Buffer::zeroed(&self.runtime, rows * width * dtype.bytes()).unwrap()
    }

    /// Returns the slots of a batch: the first are 0 to 7, and padding follows.
    pub fn slots(&self) -> Vec<i32> {
        (0..self.limits.rows as i32)
            .map(|row| if row < self.limits.slots as i32 { row } else { -1 })
            .collect()
    }

    /// Assigns requests with drafts.
    pub fn assign_drafts(&mut self, slots: &[i32], counts: &[u32], rule: DraftRule) {
        let drafts = Some(DraftCounts { counts, rule, batch_requests: &[] });
        self.workspace.assign(&Assignment { slots, drafts, ..Assignment::default() }).unwrap();
    }

    /// Returns the launches of a step that is enqueued. A graph of this crate holds the same.
    pub fn step<'b>(&self, fix: impl Fn(&Workspace) -> Result<Step<'b>>) -> Vec<Launch> {
        let step = fix(&self.workspace).unwrap();
        let eager = self.tap.launches_of(|| self.workspace.enqueue(&step).map(drop)).unwrap();
        let graph = self.workspace.capture(&[step]).unwrap();
        let replayed = self.tap.launches_of(|| self.workspace.replay(&graph)).unwrap();
        assert_eq!(format!("{eager:?}"), format!("{replayed:?}"), "a graph launches what a step does");
        eager
    }
}
