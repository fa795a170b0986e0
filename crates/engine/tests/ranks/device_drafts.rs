//! Verifications over the emulated devices of several ranks give what one process gives, whichever rank owns
//! a request.

use gumball_engine::dist::LogitsLayout::{Gather, Survey, Swap};
use gumball_engine::dist::TransportKind::OneSided;
use gumball_engine::dist::{Ownership, Transport};
use gumball_engine::unstable::DraftBatchLimits;
use gumball_engine::{
    Batch, DeviceBuffer, DeviceIntMatrixMut, DeviceSlice, Drafts, IntType, Masks, Outputs, Proposals, Tree,
    VerifyMode, Work,
};

use crate::batch::{Numbers, PATIENCE, Requests, on_ranks, planned, state};
use crate::cases::Dice;
use crate::devices::{There, pool, small_batch, ways};

#[test]
fn replays_of_a_captured_verification_over_ranks_equal_one_process() {
    let batch = small_batch(2);
    let mut dice = Dice(8, 0);
    // The first request has two drafts, the second three as a tree, the third none.
    let (ids, parents) = ([1, 0, 2, 1, 3], [-1, 0, -1, -1, 0]);
    let counts = [[2, 3, 0], [2, 0, 3]];
    let whole = batch.rows(&mut dice, 8);
    let values: Vec<f32> = whole.concat();
    let numbers = Numbers::new(batch.dtype, &values);
    for mode in [VerifyMode::Coupled, VerifyMode::Greedy, VerifyMode::Rejection] {
        let (mut one, slots) = batch.pool();
        let mut want = Vec::new();
        for turn in 0..4 {
            let counts = &counts[usize::from(turn == 3)];
            let mut out = Outputs::new();
            let drafts = Drafts::tree(&ids, &parents);
            let logits = numbers.logits(8, batch.vocab, batch.kind);
            one.verify(logits, &Batch { counts, mode, ..Batch::of(&slots) }, &drafts, &mut out).unwrap();
            want.push((
                out,
                slots.iter().map(|slot| state(one.sequence(*slot).unwrap())).collect::<Vec<_>>(),
            ));
        }
        for (devices, layout) in ways().filter(|(_, of)| *of != Survey || mode != VerifyMode::Rejection) {
            on_ranks(2, |rank| {
                let own = rank.rank();
                let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
                let plan = planned(&pool, &slots, layout, 3);
                let starts = [0, 3, 7, 8];
                let rows = plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]);
                let part = There::of(&pool, &batch, layout, &whole, rows);
                let (runtime, rows) = (pool.device().unwrap().runtime().clone(), part.rows());
                let id_memory = DeviceBuffer::of(&runtime, &ids.map(i64::from)).unwrap();
                let parent_memory = DeviceBuffer::of(&runtime, &parents).unwrap();
                let drafts = Drafts::tree(
                    DeviceSlice::of(&id_memory, IntType::I64),
                    DeviceSlice::of(&parent_memory, IntType::I32),
                );
                let options = Batch::default();
                // Once as it is, then replayed.
                let mut found = Outputs::new();
                pool.assign(&Batch { slots: &slots, counts: &counts[0], mode, plan: Some(plan), ..options })
                    .unwrap();
                pool.enqueue(&[Work::verify(rows, drafts)]).unwrap();
                let graph = pool.capture(&[Work::verify(rows, drafts)]).unwrap();
                for (turn, (want, states)) in want.iter().enumerate() {
                    if turn == 3 {
                        // Other numbers of drafts: only under gather, where all ranks have all rows, may they
                        // move between requests.
                        pool.assign(&Batch {
                            slots: &slots,
                            counts: &counts[1],
                            mode,
                            plan: Some(plan),
                            ..options
                        })
                        .unwrap();
                        if layout != Gather {
                            let error = pool.replay(&graph).unwrap_err();
                            assert!(error.to_string().contains("captured with another layout"), "{error}");
                            return;
                        }
                    }
                    if turn > 0 {
                        pool.replay(&graph).unwrap();
                    }
                    pool.fetch(&mut found).unwrap();
                    let told = format!("{devices:?}, {layout:?}, {mode:?}, turn {turn}");
                    assert_eq!(found.words(), want.words(), "{told}");
                    assert_eq!(found.accepted(), want.accepted(), "{told}");
                    for (request, slot) in slots.iter().enumerate() {
                        assert_eq!(found.request(request).rows, want.request(request).rows, "{told}");
                        assert_eq!(state(pool.sequence(*slot).unwrap()), states[request], "{told}");
                    }
                }
            });
        }
    }
}

#[test]
fn links_of_trees_are_read_on_the_rank_that_owns_them() {
    let mut dice = Dice(12, 0);
    let (first_child, next_sibling) = ([1, -1, -1, 1, 2, -1, -1], [-1, 2, -1, -1, -1, -1, -1]);
    let (counts, ids) = ([2, 2, 0], [1, 2, 0, 3]);
    // The first request goes on by the second of two siblings, which no chain has there.
    let forced = [Some(2), None, None, None, None, None, None];
    let mut batch = small_batch(2);
    batch.ownership = Ownership::Modulo;
    let whole = batch.rows(&mut dice, 7);
    let numbers = Numbers::new(batch.dtype, &whole.concat());
    let (mut one, slots) = batch.pool();
    let mut want = Outputs::new();
    let tree = Tree::Links { first_child: (&first_child).into(), next_sibling: (&next_sibling).into() };
    let drafts = Drafts { tree, ..Drafts::chain(&ids) };
    let logits = numbers.logits(7, batch.vocab, batch.kind);
    let of = Batch { counts: &counts, forced: &forced, ..Batch::of(&slots) };
    one.verify(logits, &of, &drafts, &mut want).unwrap();
    assert_eq!(want.request(0).rows[..2], [0, 2]);
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
            let plan = planned(&pool, &slots, layout, 2);
            let starts = [0, 3, 6, 7];
            let rows = plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]);
            let part = There::of(&pool, &batch, layout, &whole, rows);
            let (runtime, rows) = (pool.device().unwrap().runtime().clone(), part.rows());
            let memory = [&ids[..], &first_child[..], &next_sibling[..]]
                .map(|column| DeviceBuffer::of(&runtime, column).unwrap());
            let [ids, first_child, next_sibling] =
                [0, 1, 2].map(|i: usize| DeviceSlice::of(&memory[i], IntType::I32));
            let tree = Tree::Links { first_child: first_child.into(), next_sibling: next_sibling.into() };
            let drafts = Drafts { tree, ..Drafts::chain(ids) };
            let of = Batch { counts: &counts, forced: &forced, ..Batch::of(&slots) };
            pool.assign(&Batch { plan: Some(plan), ..of }).unwrap();
            pool.enqueue(&[Work::verify(rows, drafts)]).unwrap();
            let mut found = Outputs::new();
            pool.fetch(&mut found).unwrap();
            assert_eq!(found.words(), want.words(), "{devices:?}, {layout:?}");
            assert_eq!(found.accepted(), want.accepted(), "{devices:?}, {layout:?}");
        });
    }
}

#[test]
fn one_graph_over_ranks_drafts_verifies_and_takes_tokens_away() {
    let mut dice = Dice(13, 0);
    let mut batch = Requests { ownership: Ownership::Blocks, ..small_batch(2) };
    batch.requests.iter_mut().for_each(|(params, _)| params.mirostat = None);
    let (vocab, kind, mode) = (batch.vocab, batch.kind, VerifyMode::Coupled);
    // After the histories and after the first drafts a draft model has the rows of the target.
    let target = batch.rows(&mut dice, 9);
    let drafter = [0, 1].map(|depth| [0, 1, 2].map(|request| target[3 * request + depth].clone()));
    let (mut one, slots) = batch.pool();
    let mut want = Vec::new();
    for _ in 0..4 {
        let (mut paths, mut out) = ([Vec::new(), Vec::new(), Vec::new()], Proposals::new(1));
        for (depth, rows) in drafter.iter().enumerate() {
            let numbers = Numbers::new(0, &rows.concat());
            let of = Batch { counts: &[depth as u32; 3], mode, ..Batch::of(&slots) };
            one.draft(numbers.logits(3, vocab, kind), &of, &paths.concat(), &mut out).unwrap();
            paths.iter_mut().zip(out.ids()).for_each(|(path, id)| path.push(*id));
        }
        let (numbers, mut out) = (Numbers::new(0, &target.concat()), Outputs::new());
        let of = Batch { counts: &[2; 3], mode, ..Batch::of(&slots) };
        one.verify(numbers.logits(9, vocab, kind), &of, &Drafts::chain(&paths.concat()), &mut out).unwrap();
        one.shorten(&slots[..1], &[1]).unwrap();
        let states: Vec<_> = slots.iter().map(|slot| state(one.sequence(*slot).unwrap())).collect();
        want.push((out, states));
    }
    assert!(want.iter().flat_map(|(out, _)| out.accepted()).sum::<u32>() > 4);
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
            let runtime = pool.device().unwrap().runtime().clone();
            let plan = planned(&pool, &slots, layout, 2);
            let parts =
                drafter.each_ref().map(|rows| There::of(&pool, &batch, Gather, rows, std::iter::empty()));
            let owned = plan.shares.of(own).flat_map(|request| 3 * request..3 * request + 3);
            let of_target = There::of(&pool, &batch, layout, &target, owned);
            let batches = [0, 1].map(|depth| {
                let limits = DraftBatchLimits { rows: 3, siblings: 1, probs: false };
                let drawn = pool.on_device().unwrap().add_draft_batch(limits).unwrap();
                pool.assign(&Batch { counts: &[depth; 3], mode, of: Some(drawn), ..Batch::of(&slots) })
                    .unwrap();
                drawn
            });
            pool.assign(&Batch { counts: &[2; 3], mode, plan: Some(plan), ..Batch::of(&slots) }).unwrap();
            let mut chains = DeviceBuffer::of(&runtime, &[-1i32; 6]).unwrap();
            let taken = DeviceBuffer::of(&runtime, &[1i32, 0, 0]).unwrap();
            let to = DeviceIntMatrixMut::of(&mut chains, IntType::I32, 0, 3, 2, 2).unwrap();
            let work = [
                Work::Draft(batches[0], parts[0].rows(), Masks::None, None),
                Work::CopyDrafts(batches[0], to, 0),
                Work::Draft(batches[1], parts[1].rows(), Masks::None, Some(*to.ids())),
                Work::CopyDrafts(batches[1], to, 1),
                Work::verify(of_target.rows(), Drafts::chain(to.ids().flat().unwrap())),
                Work::Shorten(DeviceSlice::of(&taken, IntType::I32).into()),
            ];
            // Once as it is, then replayed.
            pool.enqueue(&work).unwrap();
            let graph = pool.capture(&work).unwrap();
            let mut found = Outputs::new();
            for (turn, (want, states)) in want.iter().enumerate() {
                if turn > 0 {
                    pool.replay(&graph).unwrap();
                }
                pool.fetch(&mut found).unwrap();
                let told = format!("{devices:?}, {layout:?}, turn {turn}");
                assert_eq!(found.words(), want.words(), "{told}");
                assert_eq!(found.accepted(), want.accepted(), "{told}");
                for (request, slot) in slots.iter().enumerate() {
                    assert_eq!(state(pool.sequence(*slot).unwrap()), states[request], "{told}");
                }
            }
        });
    }
}

#[test]
fn drafts_over_devices_that_are_judged_are_not_surveyed() {
    let (batch, devices) = (small_batch(1), OneSided);
    on_ranks(1, |rank| {
        let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
        let mode = VerifyMode::Rejection;
        let shape = pool.shape(&slots, 1, mode.step_kind()).unwrap();
        assert_ne!(pool.plan(&shape).unwrap().layout, Survey);
        let plan = pool.ranks().unwrap().planner.plan_as(Survey, &shape);
        let options = Batch::default();
        let error = pool
            .assign(&Batch { slots: &slots, counts: &[0; 3], mode, plan: Some(plan), ..options })
            .unwrap_err();
        let said = "layout cannot be combined with drafts: drafts are judged by probabilities of whole rows, which are not \
                    surveyed where they are; plan for judge, or take gather or swap";
        assert_eq!(error.to_string(), said);
        // A count too many, and one too few.
        let plan = pool.ranks().unwrap().planner.plan_as(Swap, &shape);
        for counts in [&[0; 4][..], &[0; 2]] {
            let error = pool
                .assign(&Batch {
                    slots: &slots,
                    counts,
                    mode: VerifyMode::Coupled,
                    plan: Some(plan),
                    ..options
                })
                .unwrap_err();
            assert_eq!(error.of_ranks(), None, "{error}");
        }
    });
}
