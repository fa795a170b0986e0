//! Drafts: verified, drawn from rows of a draft model, copied, and taken away again.

use gumball_cuda::{
    Assignment, Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftBatchLimits, DraftCopyLaunch,
    DraftCounts, DraftIds, DraftRule, Dtype, IntType, Rows, ShortenLaunch, StepInput, Work,
};
use gumball_spec::SamplingParams;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::bench::{Bench, Cases, FEW, new_device, requests, some};
use crate::golden::Golden;

pub fn add_verifications(golden: &mut Golden) {
    let judged = DraftRule::Judged;
    for (title, rule) in [
        ("coupled", DraftRule::Coupled),
        ("greedy", DraftRule::Greedy),
        ("by rejection", judged(Judgement::Rejection)),
        ("as a block", judged(Judgement::Block)),
        ("by a threshold", judged(Judgement::Threshold { single: 0.5, acc: 0.25 })),
    ] {
        let mut bench = Bench::new(new_device(), 16, 32_000);
        let (counts, vocab) = ([3, 0, 5, 1], 32_000);
        let [logits, probs] = [(); 2].map(|()| bench.memory(Dtype::F32, 13, vocab));
        let [logits, probs] =
            [&logits, &probs].map(|rows| Rows::of(rows, Dtype::F32, 0, 13, vocab, vocab).unwrap());
        let columns: [Buffer; 4] = std::array::from_fn(|_| bench.memory(Dtype::F32, 2, 16));
        let column =
            |index: usize, of_type, rows| DeviceSlice::of(&columns[index], of_type).first(rows).unwrap();
        let chains =
            |of_type| DraftIds { ids: column(0, of_type, 9), parents: None, links: None, probs: None };
        let short = chains(IntType::I32);
        let links = [2, 3].map(|index| column(index, IntType::I32, 13));
        let forms = [
            ("chains", short),
            ("chains of i64", chains(IntType::I64)),
            ("parents", DraftIds { parents: Some(column(1, IntType::I32, 9)), ..short }),
            ("links", DraftIds { links: Some(links), ..short }),
            ("chains with probabilities", DraftIds { probs: Some(probs), ..short }),
        ];
        for (form, ids) in forms {
            // Where drafts come from and how they are judged are kernels apart.
            let reads = matches!(rule, DraftRule::Judged(Judgement::Rejection | Judgement::Block));
            let is_here = match form {
                "chains" => true,
                "chains with probabilities" => reads,
                _ => matches!(title, "coupled" | "by rejection"),
            };
            if !is_here {
                continue;
            }
            let requests = match (title, form) {
                ("coupled", "chains") => requests(),
                (_, "chains") => some(&FEW),
                _ => some(&["plain", "n-gram, logprob"]),
            };
            let launches = |(name, params): (String, SamplingParams)| {
                bench.admit(&params);
                bench.assign_drafts(&[0, 1, -1, 2], &counts, rule);
                (
                    name,
                    bench.step(|workspace| {
                        workspace.fix(&StepInput { drafts: Some(ids), ..StepInput::of(&logits) })
                    }),
                )
            };
            let cases: Cases = requests.into_iter().map(launches).collect();
            let title = format!("verification {title}, {form}: 4 requests, 9 drafts, 32000 logits, f32");
            golden.add(&title, &cases, &bench.tap);
        }
    }
}

pub fn add_drafts(golden: &mut Golden) {
    let (rows, vocab) = (4, 32_000);
    let shapes = [(1, false), (4, false), (1, true)];
    for (siblings, probs) in shapes {
        let mut bench = Bench::new(new_device(), 8, vocab);
        let batch = bench.workspace.add_draft_batch(DraftBatchLimits { rows, siblings, probs }).unwrap();
        let logits = bench.memory(Dtype::F32, rows, vocab);
        let logits = Rows::of(&logits, Dtype::F32, 0, rows, vocab, vocab).unwrap();
        let [paths, mut to] = [(); 2].map(|()| bench.memory(Dtype::F32, rows, 16));
        let slots = [0, 1, -1, 0];
        let mut cases = Cases::new();
        for (name, params) in some(&FEW) {
            bench.admit(&params);
            for (what, rule, counts, ids) in [
                ("no paths", DraftRule::Coupled, [0; 4], None),
                ("paths", DraftRule::Coupled, [2, 1, 0, 2], Some(IntType::I32)),
                ("paths of i64", DraftRule::Coupled, [2, 1, 0, 2], Some(IntType::I64)),
                ("greedy", DraftRule::Greedy, [0; 4], None),
                ("for blocks", DraftRule::Judged(Judgement::Block), [0; 4], None),
            ] {
                if !["plain", "n-gram, logprob"].contains(&&*name)
                    && !["no paths", "for blocks"].contains(&what)
                {
                    continue;
                }
                let drafts = Some(DraftCounts { counts: &counts, rule, batch_requests: &[] });
                let of = Some(batch);
                let assignment = Assignment { of, slots: &slots, drafts, ..Assignment::default() };
                bench.workspace.assign(&assignment).unwrap();
                let paths = ids.map(|ids| DeviceIntMatrix::of(&paths, ids, 0, rows, 2, 3).unwrap());
                let drafts = bench
                    .workspace
                    .fix(&StepInput { of: Some(batch), paths, ..StepInput::of(&logits) })
                    .unwrap();
                let Bench { tap, workspace, .. } = &mut bench;
                let launches = tap.launches_of(|| workspace.enqueue(&drafts).map(drop)).unwrap();
                cases.push((format!("{name}, {what}"), launches));
            }
        }
        for ids in [IntType::I32, IntType::I64] {
            let to = DeviceIntMatrixMut::of(&mut to, ids, 0, rows, 5, 6).unwrap();
            let copy = Work::CopyDrafts(DraftCopyLaunch::new(&bench.workspace, batch, &to, 1).unwrap());
            let launches = bench.tap.launches_of(|| bench.workspace.enqueue_work(&copy, false).map(drop));
            cases.push((format!("copied to {ids:?}"), launches.unwrap()));
        }
        let with = if probs { ", with probabilities" } else { "" };
        golden.add(
            &format!("drafts: 4 rows of 32000 logits, f32, {siblings} of each{with}"),
            &cases,
            &bench.tap,
        );
    }
}

pub fn add_shorten(golden: &mut Golden) {
    let mut bench = Bench::new(new_device(), 8, 700);
    bench.admit(&SamplingParams::default());
    bench.workspace.assign(&Assignment { slots: &[0, 1, -1], ..Assignment::default() }).unwrap();
    let counts = bench.memory(Dtype::F32, 3, 2);
    let cases = [IntType::I32, IntType::I64].map(|ids| {
        let counts = DeviceSlice::of(&counts, ids).first(3).unwrap();
        let launches = bench.tap.launches_of(|| {
            let shorten = Work::Shorten(ShortenLaunch::new(&bench.workspace, &counts)?);
            bench.workspace.enqueue_work(&shorten, false).map(drop)
        });
        (format!("counts of {ids:?}"), launches.unwrap())
    });
    golden.add("shorten: 3 requests", &cases, &bench.tap);
}
