//! Steps and verifications from hidden states, by each kind of head.

use std::sync::Arc;

use gumball_cuda::{
    Assignment, DeviceSlice, DraftIds, DraftRule, Dtype, Head, HeadScreen, IntType, Rows, Runtime, StepInput,
};
use gumball_spec::SamplingParams;
use gumball_spec::head::Scaling;
use gumball_spec::head::clusters::Clusters;
use gumball_spec::verify::by_probabilities::Judgement;
use half::bf16;

use crate::bench::{Bench, Cases, new_device, some};
use crate::golden::Golden;

/// Makes heads of each kind over weights of a type, with their names.
fn heads(
    runtime: &Arc<dyn Runtime>,
    dtype: Dtype,
    (rows, vocab, width): (usize, usize, usize),
) -> Vec<(&'static str, Head<'static>)> {
    let (long, short) = (vec![0.0f32; vocab * width], vec![bf16::ZERO; vocab * width]);
    let exact = || match dtype {
        Dtype::F32 => {
            Head::copied(runtime, (&long).into(), (vocab, width), None, Scaling::default(), rows).unwrap()
        }
        _ => Head::copied(runtime, (&short).into(), (vocab, width), None, Scaling::default(), rows).unwrap(),
    };
    let column = vec![1.0f32; vocab];
    let screen = HeadScreen {
        codes: &vec![0; vocab * width],
        padded: width,
        scales: &column,
        own: &column,
        code_norms: &column,
        mean: &column[..width],
        mean_norm: 1.0,
        unscreened: &[3],
    };
    let ids: Vec<u32> = (0..vocab as u32).collect();
    let centroids = vec![0.0; vocab.div_ceil(64) * width];
    let clusters = Clusters { maps: &ids, capacity: 64, centroids: &centroids, probes: 8, special_ids: &[2] };
    let mut heads = vec![
        ("exact head", exact()),
        ("certified head", exact().with_screen(&screen).unwrap().with_least_saved(0)),
        ("clustered head", exact().with_clusters(&clusters).unwrap()),
    ];
    if dtype != Dtype::F32 {
        heads.push(("fast head", exact().fast().unwrap()));
        heads.push(("fast clustered head", exact().with_clusters(&clusters).unwrap().fast().unwrap()));
    }
    heads
}

pub fn add_hidden(golden: &mut Golden) {
    let (vocab, width) = (4_000, 64);
    for (rows, dtype) in [(1, Dtype::F32), (8, Dtype::Bf16), (300, Dtype::Bf16)] {
        let mut bench = Bench::new(new_device(), rows, vocab);
        let hidden = bench.memory(dtype, rows, width);
        let hidden = Rows::of(&hidden, dtype, 0, rows, width, width).unwrap();
        let (slots, ids) = (bench.slots(), bench.memory(Dtype::F32, 1, 8));
        let ids = DeviceSlice::of(&ids, IntType::I32).first(6).unwrap();
        let ids = DraftIds { ids, parents: None, links: None, probs: None };
        let works = [
            ("step", None),
            ("verification coupled", Some(DraftRule::Coupled)),
            ("verification by rejection", Some(DraftRule::Judged(Judgement::Rejection))),
        ];
        for (kind, head) in &heads(&bench.runtime, dtype, (rows, vocab, width)) {
            for (work, rule) in works.into_iter().take(if rows == 8 { works.len() } else { 1 }) {
                let mut launches = |(name, params): (String, SamplingParams)| {
                    bench.admit(&params);
                    match rule {
                        None => bench
                            .workspace
                            .assign(&Assignment { slots: &slots, ..Assignment::default() })
                            .unwrap(),
                        Some(rule) => bench.assign_drafts(&[0, 1], &[3, 3], rule),
                    }
                    let ids = rule.map(|_| &ids);
                    (
                        name,
                        bench.step(|workspace| {
                            workspace.fix(&StepInput {
                                head: Some(head),
                                drafts: ids.copied(),
                                ..StepInput::of(&hidden)
                            })
                        }),
                    )
                };
                let some = some(&["plain", "top-p", "penalty, plain"]).into_iter();
                let cases: Cases = some.map(&mut launches).collect();
                let title =
                    format!("{work} by {kind}: {rows} hidden states of {width}, {dtype:?}, {vocab} ids");
                golden.add(&title, &cases, &bench.tap);
            }
        }
    }
}
