//! Steps: of each request, shape and type, with options, in a host program's graph; and scores.

use gumball_cuda::{
    Assignment, Dtype, KnownTokens, MaskRows, Prepared, Rows, StepInput, StepVariant, WorkspaceLimits,
};
use gumball_spec::layout::Widths;
use gumball_spec::{Kind, SamplingParams};

use crate::bench::{Bench, Cases, FEW, new_device, old_device, requests, some};
use crate::golden::Golden;

/// Returns the launches of a step of each request, over rows of a type and kind.
fn steps(bench: &mut Bench, requests: &[(String, SamplingParams)], dtype: Dtype, kind: Kind) -> Cases {
    let WorkspaceLimits { vocab, rows, .. } = bench.limits;
    let logits = bench.memory(dtype, rows, vocab);
    let logits = Rows::of(&logits, dtype, 0, rows, vocab, vocab).unwrap().with_kind(kind);
    let slots = bench.slots();
    let launches = |(name, params): &(String, SamplingParams)| {
        bench.admit(params);
        bench.workspace.assign(&Assignment { slots: &slots, ..Assignment::default() }).unwrap();
        (name.clone(), bench.step(|workspace| workspace.fix(&StepInput::of(&logits))))
    };
    requests.iter().map(launches).collect()
}

pub fn add_steps(golden: &mut Golden) {
    for (rows, vocab) in [(1, 1_000), (8, 32_000), (300, 128_256)] {
        let mut bench = Bench::new(new_device(), rows, vocab);
        let cases = steps(&mut bench, &requests(), Dtype::F32, Kind::Logits);
        golden.add(&format!("step: {rows} rows of {vocab} logits, f32"), &cases, &bench.tap);
    }
    for (dtype, kind) in
        [(Dtype::Bf16, Kind::Logits), (Dtype::F16, Kind::Logits), (Dtype::F32, Kind::Probabilities)]
    {
        let mut bench = Bench::new(new_device(), 8, 32_000);
        // Penalties are of logits.
        let named = if kind == Kind::Logits {
            &FEW
        } else {
            &["plain", "top-p", "top-k of many", "greedy", "logprob"]
        };
        let cases = steps(&mut bench, &some(named), dtype, kind);
        golden.add(&format!("step: 8 rows of 32000 {kind:?}, {dtype:?}"), &cases, &bench.tap);
    }
    let mut bench = Bench::new(old_device(), 8, 32_000);
    let cases = steps(&mut bench, &requests(), Dtype::F32, Kind::Logits);
    golden.add("step: 8 rows of 32000 logits, f32, on an older device", &cases, &bench.tap);

    let widths = Widths { top_n: 2, ids: 0 };
    let kept = WorkspaceLimits { vocab: 32_000, slots: 8, rows: 8, widths, kept: true };
    let mut bench = Bench::of(new_device(), kept);
    let cases = steps(&mut bench, &some(&FEW), Dtype::F32, Kind::Logits);
    golden.add("step with kept sets: 8 rows of 32000 logits, f32", &cases, &bench.tap);

    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut bench = Bench::new(new_device(), 8, 32_000);
        bench.workspace = bench.workspace.with_softmax().unwrap();
        let cases = steps(&mut bench, &some(&["plain", "top-p", "greedy"]), dtype, Kind::Logits);
        golden.add(&format!("step by probabilities: 8 rows of 32000 logits, {dtype:?}"), &cases, &bench.tap);
    }
}

pub fn add_options(golden: &mut Golden) {
    let mut bench = Bench::new(new_device(), 8, 32_000);
    let [all, few, masks] =
        [(8, 32_000), (2, 32_000), (8, 1_000)].map(|(rows, width)| bench.memory(Dtype::F32, rows, width));
    let [all, few] = [(&all, 8), (&few, 2)]
        .map(|(buffer, rows)| Rows::of(buffer, Dtype::F32, 0, rows, 32_000, 32_000).unwrap());
    let on_device = MaskRows::of(&masks, 8, 1_000, 1_000).unwrap();
    let slots = bench.slots();
    let of_slots = Assignment { slots: &slots, ..Assignment::default() };
    let words = [u32::MAX; 1_000];
    let on_host = [Some(&words[..]), None, None, None, None, None, None, None];
    let mut cases = Cases::new();
    for (name, params) in some(&FEW) {
        bench.admit(&params);
        let mut add = |what: &str, rows: &Assignment<'_>, logits: &Rows<'_>, masks: Option<&MaskRows<'_>>| {
            bench.workspace.assign(rows).unwrap();
            let launches = bench.step(|workspace| {
                workspace.fix(&StepInput { masks: masks.copied(), ..StepInput::of(logits) })
            });
            cases.push((format!("{name}, {what}"), launches));
        };
        add(
            "forced tokens",
            &Assignment { forced: &[3, -1, -1, -1, -1, -1, -1, -1], ..of_slots },
            &all,
            None,
        );
        add("rows by index", &Assignment { row_indices: &[0, 1, 0, 1, 0, 1, 0, 1], ..of_slots }, &few, None);
        add("masks of the host", &Assignment { masks: &on_host, ..of_slots }, &all, None);
        add("masks on the device", &of_slots, &all, Some(&on_device));
        bench.workspace.assign(&of_slots).unwrap();
        bench.workspace.set_searching(true);
        let launches = bench.step(|workspace| workspace.fix(&StepInput::of(&all)));
        bench.workspace.set_searching(false);
        cases.push((format!("{name}, searched"), launches));
    }
    bench.workspace.assign(&Assignment { slots: &[-1; 8], ..Assignment::default() }).unwrap();
    cases.push(("padding alone".to_owned(), bench.step(|workspace| workspace.fix(&StepInput::of(&all)))));
    golden.add("step with options: 8 rows of 32000 logits, f32", &cases, &bench.tap);

    // A host program's capture holds the kernels of the variant that it names, for any assignment.
    let mut cases = Cases::new();
    for variant in StepVariant::ALL {
        let step = bench.workspace.fix(&StepInput { variant: Some(variant), ..StepInput::of(&all) }).unwrap();
        let capture = || {
            let captured = bench.runtime.capture(&mut || {
                assert!(!bench.workspace.enqueue(&step).unwrap(), "it runs when it is replayed");
                Ok(())
            })?;
            // SAFETY: a tap without a machine runs no kernel.
            unsafe { captured.replay() }
        };
        cases.push((variant.to_string(), bench.tap.launches_of(capture).unwrap()));
    }
    golden.add("step in a host program's graph: 8 rows of 32000 logits, f32", &cases, &bench.tap);
}

pub fn add_scores(golden: &mut Golden) {
    let mut bench = Bench::new(new_device(), 8, 32_000);
    let logits = bench.memory(Dtype::F32, 3, 32_000);
    let logits = Rows::of(&logits, Dtype::F32, 0, 3, 32_000, 32_000).unwrap();
    let cases = some(&FEW).into_iter().map(|(name, params)| {
        let prepared = Prepared::new(&params, 32_000).unwrap();
        let known = KnownTokens { ids: &[5, 6, 7, 8], prompt_len: 2, start: 1, ..KnownTokens::default() };
        let Bench { tap, workspace, .. } = &mut bench;
        let score = || known.score(workspace, 0, &prepared, &logits, &[], &[]).map(drop);
        (name, tap.launches_of(score).unwrap())
    });
    let cases: Cases = cases.collect();
    golden.add("score: 3 rows of 32000 logits, f32", &cases, &bench.tap);
}
