//! Which steps over devices of ranks count as taken: those that run.

use gumball_engine::dist::Transport;
use gumball_engine::{Batch, Outputs, SamplingParams, StepVariant, Work};

use crate::batch::{Numbers, PATIENCE, on_ranks, planned};
use crate::cases::Dice;
use crate::devices::{There, pool, small_batch, ways};

#[test]
fn a_captured_step_counts_only_when_it_is_replayed() {
    let batch = small_batch(2);
    let whole = batch.rows(&mut Dice(8, 0), 3);
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
            let runtime = pool.device().unwrap().runtime().clone();
            let (plan, fewer) = (planned(&pool, &slots, layout, 0), planned(&pool, &slots[..2], layout, 0));
            let of_all = There::of(&pool, &batch, layout, &whole, plan.shares.of(own));
            let of_fewer = There::of(&pool, &batch, layout, &whole[..2], fewer.shares.of(own));
            let [all_rows, fewer_rows] = [of_all.rows(), of_fewer.rows()];
            let options = Batch::default();
            let (mut out, mut again) = (Outputs::new(), Outputs::new());
            pool.assign(&Batch { slots: &slots, plan: Some(plan), ..options }).unwrap();
            pool.enqueue(&[Work::step(all_rows)]).unwrap();
            pool.fetch(&mut out).unwrap();
            let served = pool.ranks().unwrap().planner.served().clone();

            // The host program captures a smaller step: nothing runs, so the last step is still that of three rows.
            pool.assign(&Batch { slots: &slots[..2], plan: Some(fewer), ..options }).unwrap();
            let captured = runtime.capture(&mut || {
                let recorded = pool.on_device().unwrap().record(&[Work::step(fewer_rows)], StepVariant::Full);
                assert_eq!(recorded.unwrap().steps(), 1);
                Ok(())
            });
            drop(captured.unwrap());
            assert_eq!(*pool.ranks().unwrap().planner.served(), served, "{devices:?}, {layout:?}");
            pool.fetch(&mut again).unwrap();
            assert_eq!(again.words(), out.words(), "{devices:?}, {layout:?}");

            // Two steps of a graph count as two.
            pool.assign(&Batch { slots: &slots, plan: Some(plan), ..options }).unwrap();
            let graph = pool.capture(&[Work::step(all_rows); 2]).unwrap();
            assert_eq!(*pool.ranks().unwrap().planner.served(), served, "{devices:?}, {layout:?}");
            pool.replay(&graph).unwrap();
            assert_eq!(pool.ranks().unwrap().planner.served()[&(layout, 3)], 3, "{devices:?}, {layout:?}");
        });
    }
}

#[test]
fn each_variant_that_serves_the_rows_draws_what_one_process_does() {
    let mut batch = small_batch(2);
    batch.requests.iter_mut().for_each(|(params, _)| {
        *params = SamplingParams { seed: params.seed, top_k: 5, ..Default::default() };
    });
    let whole = batch.rows(&mut Dice(8, 1), 3);
    let variants = || StepVariant::ALL.into_iter().filter(|variant| *variant >= StepVariant::TopK);
    let (mut one, slots) = batch.pool();
    let numbers = Numbers::new(0, &whole.concat());
    let mut take = |_| {
        let mut out = Outputs::new();
        one.step(numbers.logits(3, batch.vocab, batch.kind), &Batch::of(&slots), &mut out).unwrap();
        out.tokens().to_vec()
    };
    let wanted: Vec<_> = variants().map(&mut take).collect();
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
            let runtime = pool.device().unwrap().runtime().clone();
            let plan = planned(&pool, &slots, layout, 0);
            let part = There::of(&pool, &batch, layout, &whole, plan.shares.of(own));
            let work = [Work::step(part.rows())];
            let mut out = Outputs::new();
            for (variant, wanted) in variants().zip(&wanted) {
                pool.assign(&Batch { plan: Some(plan), ..Batch::of(&slots) }).unwrap();
                let mut there = pool.on_device().unwrap();
                assert_eq!(there.needed_variant(), StepVariant::TopK);
                there.record(&work, StepVariant::MinP).unwrap_err();
                let mut recorded = None;
                let graph = runtime.capture(&mut || {
                    recorded = Some(there.record(&work, variant).unwrap());
                    Ok(())
                });
                there.before_replay(&[recorded.as_ref().unwrap()]).unwrap();
                // SAFETY: the pool and the rows outlive the replay.
                unsafe { graph.unwrap().replay() }.unwrap();
                pool.fetch(&mut out).unwrap();
                assert_eq!(out.tokens(), wanted, "{layout:?}, {variant}");
            }
        });
    }
}
