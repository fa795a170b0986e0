//! Verifications: the drafts of requests that lie on several ranks.

use gumball_engine::dist::LogitsLayout::{Gather, Replicated, Survey, Swap};
use gumball_engine::dist::StepKind;
use gumball_engine::{Batch, Drafts, Outputs, PADDING, Slot, Tree, VerifyMode};

use crate::batch::{Numbers, Requests, on_ranks, part, state};
use crate::cases::Dice;

#[test]
fn drafts_are_verified_as_by_one_process() {
    for seed in 0..100 {
        let mut dice = Dice(7000 + seed, 0);
        let world = 1 + seed as usize % 8;
        let mut batch = Requests::new(&mut dice, world, 6);
        batch.requests.iter_mut().for_each(|(params, _)| params.mirostat = None);
        let mode = dice.pick(&[
            VerifyMode::Coupled,
            VerifyMode::Coupled,
            VerifyMode::Greedy,
            VerifyMode::Rejection,
            VerifyMode::Block,
        ]);
        let layout = dice.pick(&[Gather, Swap, Swap, Replicated]);
        let (mut pool, slots) = batch.pool();
        let slots: Vec<Slot> =
            slots.iter().map(|slot| if dice.one_in(8) { PADDING } else { *slot }).collect();
        let counts: Vec<u32> = slots.iter().map(|_| dice.below(4) as u32).collect();
        let starts: Vec<usize> = std::iter::once(0)
            .chain(counts.iter().scan(0, |end, count| {
                *end += *count as usize + 1;
                Some(*end)
            }))
            .collect();
        let drafts: usize = counts.iter().map(|count| *count as usize).sum();
        let ids: Vec<i32> = (0..drafts).map(|_| dice.below(batch.vocab.min(4)) as i32).collect();
        let is_chain = mode == VerifyMode::Block || dice.one_in(2);
        let parents: Vec<i32> = counts
            .iter()
            .flat_map(|count| (0..*count as usize).map(|i| dice.below(i + 1) as i32 - 1).collect::<Vec<_>>())
            .collect();
        // Few ids are likely, so that drafts are accepted.
        let mut whole = batch.rows(&mut dice, starts[slots.len()]);
        for row in whole.iter_mut().filter(|_| dice.one_in(2)) {
            row.iter_mut().skip(4).for_each(|z| *z = if *z > 0.0 { 0.0 } else { *z });
        }
        let parents = (!is_chain).then_some(&parents[..]);
        let (counts, drafts) = (
            &counts,
            Drafts {
                tree: parents.map_or(Tree::Chain, |parents| Tree::Parents(parents.into())),
                ..Drafts::chain(&ids)
            },
        );
        let values: Vec<f32> = whole.iter().flatten().copied().collect();
        let numbers = Numbers::new(batch.dtype, &values);
        let mut want = Outputs::new();
        let logits = numbers.logits(starts[slots.len()], batch.vocab, batch.kind);
        let options = Batch::default();
        pool.verify(logits, &Batch { slots: &slots, counts, mode, ..options }, &drafts, &mut want).unwrap();
        let states: Vec<_> = slots.iter().map(|slot| pool.sequence(*slot).ok().map(state)).collect();

        on_ranks(world, |rank| {
            let own = gumball_engine::dist::Transport::rank(&rank);
            let (mut dist, _) = batch.dist_pool(rank);
            let shape = dist.shape(&slots, 3, StepKind::Verify).unwrap();
            let plan = dist.ranks().unwrap().planner.plan_as(layout, &shape);
            let rows: Vec<usize> =
                plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]).collect();
            let part = part(layout, &batch.split, own, batch.dtype, &whole, &rows);
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let mut out = Outputs::new();
            dist.verify(
                logits,
                &Batch { slots: &slots, counts, mode, plan: Some(plan), ..options },
                &drafts,
                &mut out,
            )
            .unwrap();
            let told = || format!("seed {seed}, rank {own} of {world}, {layout:?}, {mode:?}, {batch:?}");
            assert_eq!(out.words(), want.words(), "{}", told());
            assert_eq!(out.accepted(), want.accepted(), "{}", told());
            for (request, slot) in slots.iter().enumerate() {
                assert_eq!(out.request(request).rows, want.request(request).rows, "{}", told());
                assert_eq!(out.request(request).tokens, want.request(request).tokens, "{}", told());
                for place in want.request(request).range {
                    assert_eq!(out.kept(place), want.kept(place), "{}", told());
                }
                let after = dist.sequence(*slot).ok().map(state);
                assert_eq!(after, states[request], "{}", told());
            }
        });
    }
}

#[test]
fn a_verification_is_not_surveyed() {
    let batch = Requests::new(&mut Dice(3, 0), 1, 0);
    on_ranks(1, |rank| {
        let (mut pool, _) = batch.dist_pool(rank);
        let shape = pool.shape(&[], 0, StepKind::Verify).unwrap();
        assert_ne!(pool.plan(&shape).unwrap().layout, Survey);
        let plan = pool.ranks().unwrap().planner.plan_as(Survey, &shape);
        let numbers = Numbers::new(0, &[]);
        let logits = numbers.logits(0, batch.vocab, batch.kind);
        let (options, mut out) = (Batch::default(), Outputs::new());
        let error = pool
            .verify(logits, &Batch { slots: &[], plan: Some(plan), ..options }, &Drafts::default(), &mut out)
            .unwrap_err();
        let said = "layout cannot be combined with drafts: rows of drafts are not surveyed where they are; take gather \
                    or swap";
        assert_eq!(error.to_string(), said);
    });
}
