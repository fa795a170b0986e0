//! A captured step yields what an enqueued one yields, also for requests that are assigned after the capture.

use std::sync::Arc;

use gumball_cuda::{
    Assignment, Buffer, CapturedLaunches, DeviceSlice, DraftBatchId, DraftBatchLimits, DraftCounts, DraftIds,
    DraftRule, Dtype, InitialState, IntType, Outputs, Prepared, Recorded, Rows, Runtime, ShortenLaunch, Step,
    StepInput, StepVariant, Variant, Work, WorkTerms, Workspace, WorkspaceLimits,
};
use gumball_spec::{Error, LogprobsParams, SamplingParams, Widths};

use crate::runtime;

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
        workspace.results().outputs(rows).unwrap()
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
        let graph = captured.capture(&[captured.fix(&StepInput::of(&rows)).unwrap()]).unwrap();
        assign(&mut captured, &[1, slot]);
        assign(&mut fresh, &[1, slot]);
        let step = fresh.fix(&StepInput::of(&rows)).unwrap();
        let eager = three(&fresh, 2, |workspace| workspace.enqueue(&step).map(drop));
        assert_eq!(three(&captured, 2, |workspace| workspace.replay(&graph)), eager, "slot {slot}");
    }
}

/// Captures a step as a host program does: under a capture that it began itself.
fn capture_as_host(
    runtime: &Arc<dyn Runtime>,
    workspace: &Workspace,
    step: &Step<'_>,
) -> Box<dyn CapturedLaunches> {
    let mut enqueued = None;
    let captured = runtime.capture(&mut || {
        enqueued = Some(workspace.enqueue(step).unwrap());
        Ok(())
    });
    assert_eq!(enqueued, Some(false), "the step runs at its replays");
    captured.unwrap()
}

#[test]
fn a_host_programs_capture_holds_the_kernels_of_the_variant_that_it_names() {
    let Some(runtime) = runtime() else { return };
    let buffer = logits(&runtime);
    let rows = Rows::of(&buffer, Dtype::F32, 0, 2, VOCAB, VOCAB).unwrap();
    let slots = [0, 1, 2, 3, 4, 5];
    let needed = [
        StepVariant::NoFilter,
        StepVariant::TopKTopP,
        StepVariant::Full,
        StepVariant::Edits,
        StepVariant::Full,
        StepVariant::TopP,
    ];
    for variant in StepVariant::ALL {
        let [mut captured, mut fresh] = [(); 2].map(|()| workspace(&runtime));
        assign(&mut captured, &[-1, -1]);
        let step = captured.fix(&StepInput { variant: Some(variant), ..StepInput::of(&rows) }).unwrap();
        let graph = capture_as_host(&runtime, &captured, &step);
        let recorded = captured.recorded(vec![WorkTerms::Step(Box::new(step.terms().clone()))]);
        assert!(fresh.before_replay(&[&recorded]).is_err(), "of another workspace");
        for (slot, needed) in slots.into_iter().zip(needed) {
            assign(&mut captured, &[-1, slot]);
            assert_eq!(captured.rows().needed_variant(), needed);
            let served = captured.requests().steps_served(variant);
            if variant < needed {
                let error = captured.before_replay(&[&recorded]).unwrap_err();
                assert!(matches!(error, Error::OutOfRange { parameter: "variant", .. }), "{error}");
                let message = error.to_string();
                assert!(
                    message.starts_with(&format!("variant is {variant}, but must be {needed}")),
                    "{message}"
                );
                assert!(message.ends_with(&format!("of row 1 in slot {slot}")), "{message}");
                assert_eq!(captured.enqueue(&step).unwrap_err(), error);
                assert_eq!(captured.requests().steps_served(variant), served);
                assert_eq!(captured.requests().state(slot).unwrap().output_len, 0);
                continue;
            }
            assign(&mut fresh, &[-1, slot]);
            let eager = fresh.fix(&StepInput::of(&rows)).unwrap();
            let eager = three(&fresh, 2, |workspace| workspace.enqueue(&eager).map(drop));
            let replay = |workspace: &Workspace| {
                workspace.before_replay(&[&recorded])?;
                // SAFETY: the workspace whose buffers the launches use is alive, and so are the logits.
                Ok(unsafe { graph.replay() }?)
            };
            assert_eq!(three(&captured, 2, replay), eager, "{variant} for slot {slot}");
            assert_eq!(captured.requests().steps_served(variant), served + 3);
        }
        let total: u64 = StepVariant::ALL.map(|served| fresh.requests().steps_served(served)).iter().sum();
        assert_eq!(total, 3 * needed.iter().filter(|needed| **needed <= variant).count() as u64);
        assert_eq!(fresh.requests().steps_served(StepVariant::NoFilter), 3);
    }
}

#[test]
fn a_step_of_a_variant_runs_its_kernels_and_is_counted_under_its_name() {
    let Some(runtime) = runtime() else { return };
    let buffer = logits(&runtime);
    let rows = Rows::of(&buffer, Dtype::F32, 0, 1, VOCAB, VOCAB).unwrap();
    let [mut named, mut free] = [(); 2].map(|()| workspace(&runtime));
    assign(&mut named, &[0]);
    assign(&mut free, &[0]);
    let top_p = StepInput { variant: Some(StepVariant::TopP), ..StepInput::of(&rows) };
    let top_p = named.fix(&top_p).unwrap();
    let outputs = three(&named, 1, |workspace| workspace.enqueue(&top_p).map(drop));
    let step = free.fix(&StepInput::of(&rows)).unwrap();
    assert_eq!(outputs, three(&free, 1, |workspace| workspace.enqueue(&step).map(drop)));
    assert_eq!(
        [named.requests().steps_run(Variant::Candidates), named.requests().steps_served(StepVariant::TopP)],
        [3, 3]
    );
    assert_eq!(
        [free.requests().steps_run(Variant::SurveyDraw), free.requests().steps_served(StepVariant::NoFilter)],
        [3, 3]
    );
}

/// Drafts once for each of two requests, verifies that, and takes some of what came away again, all on the
/// device.
fn draft_and_verify(
    workspace: &mut Workspace,
    batch: DraftBatchId,
    drafter: &Rows<'_>,
    target: &Rows<'_>,
    gone: &DeviceSlice<'_>,
) -> (bool, Recorded) {
    let variant = Some(StepVariant::Full);
    let drafts = workspace.fix(&StepInput { of: Some(batch), variant, ..StepInput::of(drafter) }).unwrap();
    let runs = workspace.enqueue(&drafts).unwrap();
    let address = workspace.proposals(batch).unwrap().address();
    // SAFETY: the batch has two drafts there, and it lives as long as the workspace.
    let ids = unsafe { DeviceSlice::new(address, IntType::I32, 2) }.unwrap();
    let ids = DraftIds { ids, parents: None, links: None, probs: None };
    let step = workspace.fix(&StepInput { drafts: Some(ids), variant, ..StepInput::of(target) }).unwrap();
    assert_eq!(workspace.enqueue(&step).unwrap(), runs);
    let shorten = Work::Shorten(ShortenLaunch::new(workspace, gone).unwrap());
    if !runs {
        assert!(matches!(workspace.enqueue_work(&shorten, false), Err(Error::Conflict { .. })));
    }
    assert_eq!(workspace.enqueue_work(&shorten, true).unwrap(), runs);
    let work = [drafts, step].map(|step| WorkTerms::Step(Box::new(step.terms().clone())));
    (runs, workspace.recorded(work.into_iter().chain([shorten.terms()]).collect()))
}

fn column(gone: &Buffer) -> DeviceSlice<'_> {
    DeviceSlice::of(gone, IntType::I64)
}

#[test]
fn a_host_programs_graph_drafts_verifies_and_advances() {
    let Some(runtime) = runtime() else { return };
    let buffer = logits(&runtime);
    let rows =
        |first: usize, rows: usize| Rows::of(&buffer, Dtype::F32, first * VOCAB, rows, VOCAB, VOCAB).unwrap();
    // The drafts come from the rows that the requests' own first tokens come from, so they are accepted.
    let (drafter, target) = (rows(0, 2), rows(0, 4));
    let assign = |workspace: &mut Workspace, batch, slots: &[i32]| {
        let of = |counts| Some(DraftCounts { counts, rule: DraftRule::Coupled, batch_requests: &[] });
        let both = Assignment { slots, ..Assignment::default() };
        workspace.assign(&Assignment { of: Some(batch), drafts: of(&[0, 0]), ..both }).unwrap();
        workspace.assign(&Assignment { drafts: of(&[1, 1]), ..both }).unwrap();
    };
    let mut gone = Buffer::of(&runtime, &[0i64, 0]).unwrap();
    let limits = DraftBatchLimits { rows: 2, siblings: 1, probs: false };
    let [mut captured, mut fresh] = [(); 2].map(|()| workspace(&runtime));
    let [own, other] =
        [&mut captured, &mut fresh].map(|workspace| workspace.add_draft_batch(limits).unwrap());
    assign(&mut captured, own, &[-1, -1]);
    let mut recorded = None;
    let graph = runtime.capture(&mut || {
        let (runs, work) = draft_and_verify(&mut captured, own, &drafter, &target, &column(&gone));
        assert!(!runs, "it runs at its replays");
        recorded = Some(work);
        Ok(())
    });
    let (graph, recorded) = (graph.unwrap(), recorded.unwrap());
    for slots in [[0, 1], [3, 4], [2, 5], [4, 0]] {
        assign(&mut captured, own, &slots);
        assign(&mut fresh, other, &slots);
        for turn in 0..3 {
            gone.write(0, &[1i64, turn]).unwrap();
            captured.before_replay(&[&recorded]).unwrap();
            // SAFETY: the workspace whose buffers the launches use is alive, and so are the logits.
            unsafe { graph.replay() }.unwrap();
            assert!(draft_and_verify(&mut fresh, other, &drafter, &target, &column(&gone)).0);
            assert_eq!(captured.results().outputs(4).unwrap(), fresh.results().outputs(4).unwrap());
            let walks = [&captured, &fresh].map(|workspace| {
                let (mut path, mut accepted) = ([0; 4], [0; 2]);
                workspace.results().read_walks(&mut path, &mut accepted).unwrap();
                (path, accepted)
            });
            assert_eq!(walks[0], walks[1]);
            let mut drafts = [[0i32; 2]; 2];
            captured.proposals(own).unwrap().read(&mut drafts[0]).unwrap();
            fresh.proposals(other).unwrap().read(&mut drafts[1]).unwrap();
            assert_eq!(drafts[0], drafts[1]);
            for slot in slots {
                assert_eq!(captured.requests().state(slot).unwrap(), fresh.requests().state(slot).unwrap());
            }
            // The first row of the first request is the drafter's.
            assert_eq!(walks[0].1[0], 1);
        }
    }
}
