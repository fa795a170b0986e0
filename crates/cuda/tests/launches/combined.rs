//! Parts of the list of launches together: drafts with options, behind a softmax and in graphs; and rows of
//! logits that several rows read.

use gumball_cuda::{
    Assignment, Buffer, DeviceIntMatrixMut, DeviceLimits, DeviceSlice, DraftBatchLimits, DraftCopyLaunch,
    DraftCounts, DraftIds, DraftRule, Dtype, IntType, MaskRows, Rows, StepInput, Work,
};
use gumball_spec::Kind;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::bench::{Bench, Cases, FEW, new_device, some};
use crate::golden::Golden;

const VOCAB: usize = 32_000;
const SLOTS: [i32; 4] = [0, 1, -1, 2];
/// Nine drafts, so thirteen rows.
const COUNTS: [u32; 4] = [3, 0, 5, 1];
/// Which of two rows of logits each row reads.
const LINES: [u32; 13] = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0];
const RULES: [(&str, DraftRule); 2] =
    [("coupled", DraftRule::Coupled), ("by rejection", DraftRule::Judged(Judgement::Rejection))];

fn logits(buffer: &Buffer, rows: usize) -> Rows<'_> {
    Rows::of(buffer, Dtype::F32, 0, rows, VOCAB, VOCAB).unwrap()
}

/// Chains of `count` drafts together.
fn chains(buffer: &Buffer, count: usize) -> DraftIds<'_> {
    let ids = DeviceSlice::of(buffer, IntType::I32).first(count).unwrap();
    DraftIds { ids, parents: None, links: None, probs: None }
}

fn of_slots(counts: &[u32], rule: DraftRule) -> Assignment<'_> {
    let drafts = Some(DraftCounts { counts, rule, batch_requests: &[] });
    Assignment { slots: &SLOTS, drafts, ..Assignment::default() }
}

pub fn add_verifications(golden: &mut Golden) {
    for (title, rule) in RULES {
        let mut bench = Bench::new(new_device(), 16, VOCAB);
        let memory =
            [(13, VOCAB), (2, VOCAB), (13, 1_000), (2, 16)].map(|of| bench.memory(Dtype::F32, of.0, of.1));
        let (all, few, ids) = (logits(&memory[0], 13), logits(&memory[1], 2), chains(&memory[3], 9));
        let (on_device, words) = (MaskRows::of(&memory[2], 13, 1_000, 1_000).unwrap(), [u32::MAX; 1_000]);
        let mut on_host = [None; 13];
        on_host[1] = Some(&words[..]);
        let of_slots = of_slots(&COUNTS, rule);
        let verified = |rows: &_| StepInput { drafts: Some(ids), ..StepInput::of(rows) };
        let options = [
            ("rows by index", Assignment { row_indices: &LINES, ..of_slots }, verified(&few)),
            ("masks of the host", Assignment { masks: &on_host, ..of_slots }, verified(&all)),
            ("masks on the device", of_slots, StepInput { masks: Some(on_device), ..verified(&all) }),
        ];
        let mut cases = Cases::new();
        for (name, params) in some(&FEW) {
            bench.admit(&params);
            for (what, assignment, input) in &options {
                bench.workspace.assign(assignment).unwrap();
                cases.push((format!("{name}, {what}"), bench.step(|workspace| workspace.fix(input))));
            }
        }
        let title_of =
            |how: &str| format!("verification {title} {how}: 4 requests, 9 drafts, 32000 logits, f32");
        golden.add(&title_of("with options"), &cases, &bench.tap);

        bench.workspace = bench.workspace.with_softmax().unwrap();
        let mut cases = Cases::new();
        for (name, params) in some(&["plain", "top-p", "greedy"]) {
            bench.admit(&params);
            bench.workspace.assign(&of_slots).unwrap();
            cases.push((name, bench.step(|workspace| workspace.fix(&verified(&all)))));
        }
        golden.add(&title_of("behind a softmax"), &cases, &bench.tap);
    }
}

/// On a device with few multiprocessors a row of logits that many rows read is surveyed once.
pub fn add_shared_rows(golden: &mut Golden) {
    let mut bench = Bench::new(DeviceLimits::new(4), 16, VOCAB);
    let (few, ids) = (bench.memory(Dtype::F32, 2, VOCAB), bench.memory(Dtype::F32, 2, 16));
    let (few, ids) = (logits(&few, 2), chains(&ids, 9));
    let mut cases = Cases::new();
    for (name, params) in some(&FEW) {
        bench.admit(&params);
        let (slots, row_indices) = (&[0, 1, 2, 3, 4, 5, 6, 7], &LINES[..8]);
        bench.workspace.assign(&Assignment { slots, row_indices, ..Assignment::default() }).unwrap();
        cases.push((format!("{name}, step"), bench.step(|workspace| workspace.fix(&StepInput::of(&few)))));
        for (title, rule) in RULES {
            bench.workspace.assign(&Assignment { row_indices: &LINES, ..of_slots(&COUNTS, rule) }).unwrap();
            let input = StepInput { drafts: Some(ids), ..StepInput::of(&few) };
            let launches = bench.step(|workspace| workspace.fix(&input));
            cases.push((format!("{name}, verification {title}"), launches));
        }
    }
    let title = "rows that several rows read, 2 of 32000 logits, f32: 8 rows, 4 requests with 9 drafts";
    golden.add(title, &cases, &bench.tap);
}

pub fn add_drafts(golden: &mut Golden) {
    let mut bench = Bench::new(new_device(), 8, VOCAB);
    let limits = DraftBatchLimits { rows: 4, siblings: 1, probs: false };
    let batch = bench.workspace.add_draft_batch(limits).unwrap();
    let of = Some(batch);
    let memory = [(4, VOCAB), (1, VOCAB), (4, 1_000), (7, VOCAB), (1, 16)]
        .map(|of| bench.memory(Dtype::F32, of.0, of.1));
    let (all, few, target) = (logits(&memory[0], 4), logits(&memory[1], 1), logits(&memory[3], 7));
    let (on_device, words) = (MaskRows::of(&memory[2], 4, 1_000, 1_000).unwrap(), [u32::MAX; 1_000]);
    let on_host = [Some(&words[..]), None, None, None];
    let of_batch = Assignment { of, ..of_slots(&[0; 4], DraftRule::Coupled) };
    let drawn = |rows: &_| StepInput { of, ..StepInput::of(rows) };
    let options = [
        ("rows by index", Assignment { row_indices: &[0; 4], ..of_batch }, drawn(&few)),
        ("masks of the host", Assignment { masks: &on_host, ..of_batch }, drawn(&all)),
        ("masks on the device", of_batch, StepInput { masks: Some(on_device), ..drawn(&all) }),
        ("probabilities", of_batch, drawn(&all.with_kind(Kind::Probabilities))),
    ];
    let mut cases = Cases::new();
    for (name, params) in some(&FEW) {
        bench.admit(&params);
        for (what, assignment, input) in &options {
            // Penalties are of logits.
            if *what == "probabilities" && !["plain", "top-p"].contains(&&*name) {
                continue;
            }
            bench.workspace.assign(assignment).unwrap();
            let drafts = bench.workspace.fix(input).unwrap();
            let launches = bench.tap.launches_of(|| bench.workspace.enqueue(&drafts).map(drop)).unwrap();
            cases.push((format!("{name}, {what}"), launches));
        }
    }
    golden.add("drafts with options: 4 rows of 32000 logits, f32, 1 of each", &cases, &bench.tap);

    let (mut to, mut cases) = (bench.memory(Dtype::F32, 4, 16), Cases::new());
    for (name, params) in some(&FEW) {
        bench.admit(&params);
        bench.workspace.assign(&of_batch).unwrap();
        bench.workspace.assign(&of_slots(&[1, 1, 0, 1], DraftRule::Coupled)).unwrap();
        let columns = DeviceIntMatrixMut::of(&mut to, IntType::I32, 0, 4, 1, 1).unwrap();
        let verified = StepInput { drafts: Some(chains(&memory[4], 3)), ..StepInput::of(&target) };
        let step = |input: &_| Work::Step(Box::new(bench.workspace.fix(input).unwrap()));
        let copy = DraftCopyLaunch::new(&bench.workspace, batch, &columns, 0).unwrap();
        let work = vec![step(&drawn(&all)), Work::CopyDrafts(copy), step(&verified)];
        let graph = bench.workspace.capture_work(work).unwrap();
        cases.push((name, bench.tap.launches_of(|| bench.workspace.replay(&graph)).unwrap()));
    }
    let title = "graph of drafts, a copy and a verification: 4 rows, 3 drafts, 32000 logits, f32";
    golden.add(title, &cases, &bench.tap);
}
