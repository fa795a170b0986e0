//! Steps and verifications over ranks, in each layout and on each rank.

use std::sync::Arc;
use std::time::Duration;

use gumball_cuda::{
    Assignment, DeviceSlice, DraftIds, DraftRule, Dtype, ExchangeLayout, IntType, RankRows, Rows, StepInput,
    Windows, Workspace, WorkspaceLimits,
};
use gumball_spec::SamplingParams;
use gumball_spec::layout::Widths;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::bench::{Bench, Cases, new_device, some};
use crate::golden::Golden;

/// The layouts of rows over ranks.
const LAYOUTS: [ExchangeLayout; 4] =
    [ExchangeLayout::Gather, ExchangeLayout::Swap, ExchangeLayout::Survey, ExchangeLayout::Replicated];

/// A rank of three, with the windows of all.
fn rank_of_three(rank: usize, limits: WorkspaceLimits) -> (Bench, Windows) {
    let mut bench = Bench::of(new_device(), limits);
    let workspace = || Workspace::new(Arc::clone(&bench.runtime), limits).unwrap();
    let mut ranks: Vec<Workspace> = (0..3).map(|_| workspace()).collect();
    let mut windows: Vec<Windows> = ranks
        .iter()
        .enumerate()
        .map(|(rank, workspace)| Windows::new(workspace, rank, 3, &LAYOUTS).unwrap())
        .collect();
    let handles: Vec<_> = windows.iter().map(|windows| windows.handle().unwrap()).collect();
    windows.iter_mut().for_each(|windows| windows.map(&handles, Duration::from_secs(1)).unwrap());
    bench.workspace = ranks.swap_remove(rank);
    (bench, windows.swap_remove(rank))
}

#[test]
fn windows_have_places_for_what_their_layouts_exchange_and_no_more() {
    let limits =
        WorkspaceLimits { vocab: 163_840, slots: 8, rows: 240, widths: Widths::default(), kept: false };
    let bench = Bench::of(new_device(), limits);
    let bytes = |layouts: &[ExchangeLayout]| {
        let [one, two] =
            [2, 8].map(|world| Windows::new(&bench.workspace, 0, world, layouts).unwrap().bytes() >> 20);
        (one, two)
    };
    // In MiB: rows of f32, in each row 10 KB of each rank for a survey.
    let of = LAYOUTS.map(|layout| bytes(&[layout]));
    assert_eq!(of, [(152, 152), (152, 152), (156, 170), (2, 2)]);
    assert_eq!(bytes(&LAYOUTS), of[2]);
}

#[test]
fn a_handle_of_a_rank_is_taken_only_if_it_is_another_ranks_window() {
    let of_rows =
        |rows| WorkspaceLimits { vocab: 9000, slots: 8, rows, widths: Widths::default(), kept: false };
    let bench = Bench::of(new_device(), of_rows(400));
    let small = Workspace::new(Arc::clone(&bench.runtime), of_rows(8)).unwrap();
    let of = |workspace: &Workspace, rank| Windows::new(workspace, rank, 2, &LAYOUTS).unwrap();
    let (mut own, other, short) = (of(&bench.workspace, 0), of(&bench.workspace, 1), of(&small, 1));
    let [ours, theirs, short] = [&own, &other, &short].map(|windows| windows.handle().unwrap());
    let withdrawn = of(&bench.workspace, 1).handle().unwrap();
    // An address behind that of the window, as a rank could send it.
    let mut moved = theirs;
    bytemuck::bytes_of_mut(&mut moved)[9] ^= 1;
    for (handle, said) in [
        (moved, "memory that this process does not share"),
        (withdrawn, "memory that this process does not share"),
        (short, "memory that this process does not share"),
        (ours, "a window that another rank has"),
    ] {
        let error = own.map(&[ours, handle], Duration::from_secs(1)).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    own.map(&[ours, theirs], Duration::from_secs(1)).unwrap();
}

pub fn add_ranks(golden: &mut Golden) {
    let vocab = 32_000;
    let limits = WorkspaceLimits { vocab, slots: 8, rows: 12, widths: Widths::default(), kept: false };
    // Parts of which two do not begin with a tile.
    let borders = [0, 10_700, 21_500, vocab];
    for (layout, rank) in LAYOUTS.into_iter().flat_map(|layout| [0, 1, 2].map(|rank| (layout, rank))) {
        let (mut bench, mut windows) = rank_of_three(rank, limits);
        let ids = borders[rank]..borders[rank + 1];
        let memory = bench.memory(Dtype::F32, 12, vocab);
        // Under `Replicated` a rank has its own rows, whole.
        let part = |first_rows: &[usize]| match layout {
            ExchangeLayout::Replicated => {
                Rows::of(&memory, Dtype::F32, 0, first_rows[rank + 1] - first_rows[rank], vocab, vocab)
                    .unwrap()
            }
            _ => Rows::of(&memory, Dtype::F32, 0, 6, ids.len(), ids.len()).unwrap(),
        };
        let mut names = vec!["plain", "greedy", "top-k", "top-p", "penalty, plain"];
        if layout == ExchangeLayout::Survey {
            names.extend(["n-gram, plain", "n-gram, top-p"]);
        }
        let some = some(&names);
        let mut cases = Cases::new();
        let first_rows = [0, 2, 3, 6];
        let spread =
            RankRows { layout, first_rows: &first_rows, first_requests: &first_rows, first_ids: &borders };
        for (name, params) in &some {
            bench.admit(params);
            let slots = [0, 1, 2, 3, 4, -1];
            bench.workspace.assign(&Assignment { slots: &slots, ..Assignment::default() }).unwrap();
            for (what, batch_rows) in [("", &[][..]), (", in another order", &[0, 3, 1, 2, 4, 5])] {
                windows.set_batch_rows(batch_rows).unwrap();
                let fix = |workspace: &Workspace| {
                    workspace.fix(&StepInput {
                        ranks: Some((&windows, &spread)),
                        ..StepInput::of(&part(&first_rows))
                    })
                };
                if what.is_empty() || name == "plain" {
                    cases.push((format!("{name}{what}"), bench.step(fix)));
                }
            }
        }
        golden.add(
            &format!("step over ranks, {layout:?}, rank {rank} of 3: 6 rows of 32000 logits, f32"),
            &cases,
            &bench.tap,
        );
        // Three requests, of which rank 0 has two and rank 1 has none.
        windows.set_batch_rows(&[]).unwrap();
        let (counts, first_rows, first_requests) = ([1, 2, 0], [0, 5, 5, 6], [0, 2, 2, 3]);
        let spread = RankRows {
            layout,
            first_rows: &first_rows,
            first_requests: &first_requests,
            first_ids: &borders,
        };
        let ids = bench.memory(Dtype::F32, 1, 3);
        let ids = DeviceSlice::of(&ids, IntType::I32).first(3).unwrap();
        let ids = DraftIds { ids, parents: None, links: None, probs: None };
        for (title, rule) in
            [("coupled", DraftRule::Coupled), ("by rejection", DraftRule::Judged(Judgement::Rejection))]
        {
            // How drafts are judged and where rows come from are kernels apart.
            if title != "coupled" && layout != ExchangeLayout::Swap {
                continue;
            }
            let launches = |(name, params): &(String, SamplingParams)| {
                bench.admit(params);
                bench.assign_drafts(&[0, 1, 2], &counts, rule);
                let fix = |workspace: &Workspace| {
                    workspace.fix(&StepInput {
                        drafts: Some(ids),
                        ranks: Some((&windows, &spread)),
                        ..StepInput::of(&part(&first_rows))
                    })
                };
                (name.clone(), bench.step(fix))
            };
            let cases: Cases = some.iter().map(launches).collect();
            let title = format!(
                "verification over ranks, {title}, {layout:?}, rank {rank} of 3: 3 requests, 3 drafts"
            );
            golden.add(&title, &cases, &bench.tap);
        }
    }
}
