//! Only steps that run count as taken, over devices of ranks.

use gumball_engine::dist::{Transport, VocabSplit};
use gumball_engine::unstable::StepVariant;
use gumball_engine::{Batch, Kind, Outputs, SamplingParams, Work};

use crate::batch::{Numbers, PATIENCE, Requests, on_ranks, planned, state};
use crate::cases::Dice;
use crate::devices::{There, pool, pool_of_growth, small_batch, ways};

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

            // The host program captures a smaller step: nothing runs, so the last step is still that of three
            // rows.
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

/// Returns three requests with the same parameters but seeds.
fn alike(params: &SamplingParams) -> Requests {
    let mut batch = small_batch(2);
    let of = |(own, _): &mut (SamplingParams, _)| *own = SamplingParams { seed: own.seed, ..params.clone() };
    batch.requests.iter_mut().for_each(of);
    batch.kind = Kind::Logits;
    batch
}

#[test]
fn each_variant_that_serves_the_rows_draws_what_one_process_does() {
    let listed = SamplingParams { top_k: 5, ..Default::default() };
    let penalised =
        SamplingParams { repetition_penalty: 1.5, logit_bias: vec![(600, 3.0)], ..listed.clone() };
    let matched = SamplingParams { no_repeat_ngram: 1, ..penalised.clone() };
    each_variant_draws(&listed, StepVariant::TopK, StepVariant::MinP);
    each_variant_draws(&penalised, StepVariant::Edits, StepVariant::TopP);
    each_variant_draws(&matched, StepVariant::Full, StepVariant::Edits);
}

/// Holds each variant from one on, `needed`, to one process; `less` serves no such rows.
fn each_variant_draws(params: &SamplingParams, needed: StepVariant, less: StepVariant) {
    let batch = alike(params);
    let whole = batch.rows(&mut Dice(8, 1), 3);
    let variants = || StepVariant::ALL.into_iter().filter(|variant| *variant >= needed);
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
                assert_eq!(there.needed_variant(), needed);
                there.record(&work, less).unwrap_err();
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

#[test]
fn histories_that_grow_edit_the_rows_of_each_rank() {
    // Each token falls below others by its penalty, and these lie on all ranks.
    let params = SamplingParams {
        temperature: 0.0,
        frequency_penalty: 0.03,
        no_repeat_ngram: 2,
        ..Default::default()
    };
    let batch = alike(&params);
    let row = |of: usize| (0..batch.vocab).map(move |id| ((id + of) * 149 % 700) as f32 / 100.0).collect();
    steps_equal_one_process(&batch, &[0, 1, 2].map(row), 2);
}

#[test]
fn flat_rows_are_raced_under_the_edits_of_each_rank() {
    // More tiles may hold the winner than a block has warps.
    let vocab = 20_000;
    let logit_bias = (0..vocab as u32).filter(|id| id % 3 == 1 || *id > 13_000).map(|id| (id, -1.5));
    let params = SamplingParams { logit_bias: logit_bias.collect(), ..Default::default() };
    let alike = alike(&params);
    let batch = Requests { vocab, split: VocabSplit::even(vocab, 2).unwrap(), ..alike };
    let row = |of: usize| (0..vocab).map(|id| ((id + of) % 7) as f32 / 1e3).collect();
    steps_equal_one_process(&batch, &[0, 1, 2].map(row), 4096);
}

/// Takes ten steps of rows under each layout, of histories that grow by so many tokens, and holds them to one
/// process.
fn steps_equal_one_process(batch: &Requests, whole: &[Vec<f32>], history_growth: usize) {
    let numbers = Numbers::new(0, &whole.concat());
    let (mut one, slots) = batch.pool();
    let mut take = |_| {
        let mut out = Outputs::new();
        one.step(numbers.logits(3, batch.vocab, batch.kind), &Batch::of(&slots), &mut out).unwrap();
        (out, slots.iter().map(|slot| state(one.sequence(*slot).unwrap())).collect::<Vec<_>>())
    };
    let wanted: Vec<_> = (0..10).map(&mut take).collect();
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool_of_growth(batch, rank, (devices, PATIENCE), history_growth);
            let plan = planned(&pool, &slots, layout, 0);
            let part = There::of(&pool, batch, layout, whole, plan.shares.of(own));
            let mut out = Outputs::new();
            for (step, (wanted, states)) in wanted.iter().enumerate() {
                pool.step(part.rows(), &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out).unwrap();
                assert_eq!(out.words(), wanted.words(), "{devices:?}, {layout:?}, step {step}");
                let found: Vec<_> = slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect();
                assert_eq!(found, *states, "{devices:?}, {layout:?}, step {step}");
            }
        });
    }
}
