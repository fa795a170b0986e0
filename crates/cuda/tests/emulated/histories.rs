//! A step appends its token to the history, and never beyond the history's capacity.

use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, Dtype, InitialState, Prepared, Rows, StepInput, Variant, Workspace, WorkspaceLimits,
};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, SamplingParams};

use crate::runtime;

const VOCAB: usize = 300;

/// Returns parameters of a greedy request that emits no id twice.
fn no_repeats() -> SamplingParams {
    SamplingParams { temperature: 0.0, no_repeat_ngram: 1, ..Default::default() }
}

/// Runs a test on rows of falling logits, so that a greedy request without repeats counts up from 0.
fn on_rows(rows: usize, test: impl FnOnce(&mut Workspace, &Rows<'_>)) {
    let Some(runtime) = runtime() else { return };
    let limits = WorkspaceLimits { vocab: VOCAB, slots: 4, rows, widths: Widths::default(), kept: false };
    let mut workspace = Workspace::new(Arc::clone(&runtime), limits).unwrap();
    let logits: Vec<f32> = (0..rows * VOCAB).map(|place| -((place % VOCAB) as f32)).collect();
    let buffer = Buffer::of(&runtime, &logits).unwrap();
    let rows = Rows::of(&buffer, Dtype::F32, 0, rows, VOCAB, VOCAB).unwrap();
    test(&mut workspace, &rows);
}

fn admit(
    workspace: &mut Workspace,
    slot: i32,
    params: &SamplingParams,
    prompt: &[u32],
    history_growth: usize,
) {
    let prepared = Prepared::new(params, VOCAB).unwrap();
    let position = prompt.len() as u32;
    workspace
        .admit(slot, &prepared, &InitialState { position, prompt, history_growth, ..InitialState::default() })
        .unwrap();
}

fn assign(workspace: &mut Workspace, slots: &[i32]) {
    workspace.assign(&Assignment { slots, ..Assignment::default() }).unwrap();
}

#[test]
fn a_full_history_is_refused_before_anything_is_launched() {
    on_rows(2, |workspace, rows| {
        admit(workspace, 1, &no_repeats(), &[9, 1], 3);
        admit(workspace, 2, &SamplingParams::default(), &[], 0);
        assign(workspace, &[1, 2]);
        let step = workspace.fix(&StepInput::of(rows)).unwrap();
        let graph = workspace.capture(&[step.clone(), step.clone()]).unwrap();
        workspace.replay(&graph).unwrap();
        let message = workspace.replay(&graph).unwrap_err().to_string();
        assert!(message.starts_with("history_growth is 1, but must be at least 2"), "{message}");
        assert!(matches!(
            workspace.before_replay(&[graph.recorded()]),
            Err(Error::OutOfRange { parameter: "history_growth", .. })
        ));
        workspace.enqueue(&step).unwrap();
        assert!(matches!(
            workspace.enqueue(&step),
            Err(Error::OutOfRange { parameter: "history_growth", .. })
        ));
        let state = workspace.requests().state(1).unwrap();
        assert_eq!((state.position, state.history), (5, Some(vec![9, 1, 0, 2, 3])));
        assert_eq!(workspace.requests().state(2).unwrap().position, 3);
        // Once the full history is no longer assigned, steps advance the other request.
        assign(workspace, &[-1, 2]);
        (0..9).for_each(|_| assert!(workspace.enqueue(&step).unwrap()));
    });
}

#[test]
fn a_slot_stands_in_an_assignment_once() {
    on_rows(2, |workspace, rows| {
        admit(workspace, 1, &SamplingParams::default(), &[], 0);
        admit(workspace, 2, &SamplingParams::default(), &[], 0);
        assign(workspace, &[2, 1]);
        for slots in [[1, 1], [2, 2]] {
            let error = workspace.assign(&Assignment { slots: &slots, ..Assignment::default() }).unwrap_err();
            let message =
                format!("slots is {} twice, but must be a slot that stands in a step once", slots[0]);
            assert_eq!(error.to_string(), message);
        }
        // The former assignment is still in force. Padding may occur several times.
        let step = workspace.fix(&StepInput::of(rows)).unwrap();
        workspace.enqueue(&step).unwrap();
        assert_eq!([1, 2].map(|slot| workspace.requests().state(slot).unwrap().output_len), [1, 1]);
        assign(workspace, &[-1, -1]);
    });
}

#[test]
fn an_extended_history_goes_on_as_one_with_more_room_from_the_start() {
    on_rows(2, |workspace, rows| {
        let params = SamplingParams { repetition_penalty: 1.5, frequency_penalty: 7.0, ..no_repeats() };
        let params = SamplingParams { no_repeat_ngram: 3, logit_bias: vec![(40, 35.5)], ..params };
        admit(workspace, 0, &params, &[5, VOCAB as u32], 2);
        admit(workspace, 3, &params, &[5, VOCAB as u32], 30);
        assign(workspace, &[0, 3]);
        let step = workspace.fix(&StepInput::of(rows)).unwrap();
        for _ in 0..15 {
            (0..2).for_each(|_| assert!(workspace.enqueue(&step).unwrap()));
            assert!(workspace.enqueue(&step).is_err());
            workspace.extend(0, 2).unwrap();
        }
        assert_eq!(workspace.requests().state(0).unwrap(), workspace.requests().state(3).unwrap());
        assert_eq!(workspace.requests().state(0).unwrap().output_len, 30);
    });
}

#[test]
fn a_step_takes_the_kernels_of_whatever_is_assigned_when_it_is_enqueued() {
    on_rows(1, |workspace, rows| {
        admit(workspace, 0, &SamplingParams::default(), &[], 0);
        admit(workspace, 1, &no_repeats(), &[], 9);
        assign(workspace, &[0]);
        let step = workspace.fix(&StepInput::of(rows)).unwrap();
        let graph = workspace.capture(std::slice::from_ref(&step)).unwrap();
        workspace.enqueue(&step).unwrap();
        workspace.replay(&graph).unwrap();
        assert_eq!(workspace.requests().steps_run(Variant::SurveyDraw), 2);
        assign(workspace, &[1]);
        workspace.replay(&graph).unwrap();
        workspace.enqueue(&step).unwrap();
        workspace.replay(&graph).unwrap();
        assert_eq!(workspace.requests().steps_run(Variant::CandidatesLogprob), 3);
        assert_eq!(workspace.requests().state(1).unwrap().history, Some(vec![0, 1, 2]));
        // The slot's next request has no edits and no history, so the first one's lists are freed.
        workspace.release(1).unwrap();
        workspace.replay(&graph).unwrap();
        assert_eq!(workspace.results().outputs(1).unwrap().token(0), -1, "the row became padding");
        admit(workspace, 1, &SamplingParams { temperature: 0.0, ..Default::default() }, &[], 0);
        assign(workspace, &[1]);
        (0..3).for_each(|_| workspace.replay(&graph).unwrap());
        assert_eq!(
            (
                workspace.results().outputs(1).unwrap().token(0),
                workspace.requests().state(1).unwrap().history
            ),
            (0, None)
        );
        assert_eq!(Variant::ALL.map(|variant| workspace.requests().steps_run(variant)), [3, 3, 0, 3, 0, 0]);
    });
}

#[test]
fn a_slot_used_again_keeps_nothing_of_its_last_request() {
    on_rows(1, |workspace, rows| {
        let long: Vec<u32> = (0..VOCAB as u32 - 1).collect();
        admit(workspace, 2, &no_repeats(), &long, 1);
        assign(workspace, &[2]);
        let step = workspace.fix(&StepInput::of(rows)).unwrap();
        workspace.enqueue(&step).unwrap();
        assert_eq!(workspace.results().outputs(1).unwrap().token(0), VOCAB as i32 - 1);
        admit(workspace, 2, &no_repeats(), &[1], 2);
        (0..2).for_each(|_| assert!(workspace.enqueue(&step).unwrap()));
        assert_eq!(workspace.requests().state(2).unwrap().history, Some(vec![1, 0, 2]));
    });
}
