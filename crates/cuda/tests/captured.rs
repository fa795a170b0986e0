//! A captured step yields what an enqueued one yields, also for requests that are assigned after the capture.
#![cfg(feature = "emulator")]

use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, Cache, Dtype, Emulator, InitialState, Outputs, Prepared, Rows, Runtime, Workspace,
    WorkspaceLimits,
};
use gumball_spec::{LogprobsParams, SamplingParams, Widths};

const VOCAB: usize = 700;
const ROWS: usize = 6;

/// Requests of every variant; the last one needs sums of weights.
fn requests() -> [SamplingParams; ROWS] {
    let plain = SamplingParams { temperature: 0.7, ..Default::default() };
    [
        plain.clone(),
        SamplingParams { top_k: 20, top_p: 0.8, ..plain.clone() },
        SamplingParams { typical_p: 0.9, logprobs: Some(LogprobsParams::default()), ..plain.clone() },
        SamplingParams { repetition_penalty: 1.5, ..plain.clone() },
        SamplingParams { no_repeat_ngram: 2, ..plain.clone() },
        SamplingParams { top_p: 0.9, ..plain },
    ]
}

fn runtime() -> Option<Arc<dyn Runtime>> {
    match Emulator::new(&Cache::user()) {
        Ok(emulator) => Some(Arc::new(emulator)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

fn logits(runtime: &Arc<dyn Runtime>) -> Buffer {
    let logit = |place: usize| ((place * 7919 + place / VOCAB * 31) % 1009) as f32 / 70.0;
    Buffer::of(runtime, &(0..ROWS * VOCAB).map(logit).collect::<Vec<f32>>()).unwrap()
}

/// Returns a workspace with one request in each slot and no assignment.
fn workspace(runtime: &Arc<dyn Runtime>) -> Workspace {
    let limits =
        WorkspaceLimits { vocab: VOCAB, slots: ROWS, rows: ROWS, widths: Widths::default(), kept: false };
    let mut workspace = Workspace::new(Arc::clone(runtime), limits).unwrap();
    for (slot, params) in requests().iter().enumerate() {
        let prepared = Prepared::new(params, VOCAB).unwrap();
        let start = InitialState {
            seed: slot as u64,
            prompt: &[1, 2, 3, 1],
            history_growth: 50,
            ..InitialState::default()
        };
        workspace.admit(slot as i32, &prepared, &start).unwrap();
    }
    workspace
}

fn assign(workspace: &mut Workspace, slots: &[i32]) {
    workspace.assign(&Assignment { slots, ..Assignment::default() }).unwrap();
}

/// Takes three steps and returns the outputs of each.
fn three(
    workspace: &Workspace,
    rows: usize,
    step: impl Fn(&Workspace) -> gumball_spec::Result<()>,
) -> Vec<Outputs> {
    let take = |_| {
        step(workspace).unwrap();
        workspace.outputs(rows).unwrap()
    };
    (0..3).map(take).collect()
}

#[test]
fn a_captured_step_serves_rows_that_ask_for_more_than_those_it_was_captured_for() {
    let Some(runtime) = runtime() else { return };
    let buffer = logits(&runtime);
    let rows = Rows::of(&buffer, Dtype::F32, 0, 2, VOCAB, VOCAB).unwrap();
    for slot in [0, 2, 3, 4, 5] {
        let [mut captured, mut fresh] = [(); 2].map(|()| workspace(&runtime));
        assign(&mut captured, &[1, -1]);
        let graph = captured.capture(&[captured.step(&rows).unwrap()]).unwrap();
        assign(&mut captured, &[1, slot]);
        assign(&mut fresh, &[1, slot]);
        let step = fresh.step(&rows).unwrap();
        let eager = three(&fresh, 2, |workspace| workspace.enqueue(&step).map(drop));
        assert_eq!(three(&captured, 2, |workspace| workspace.replay(&graph)), eager, "slot {slot}");
    }
}
