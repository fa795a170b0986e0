//! What a failed exchange leaves on devices of ranks: results of padding, and sequences as they were fetched.

use std::time::{Duration, Instant};

use gumball_engine::dist::LogitsLayout::{Survey, Swap};
use gumball_engine::dist::TransportKind::{Nccl, OneSided};
use gumball_engine::dist::{Ownership, Transport};
use gumball_engine::{
    Batch, DeviceBuffer, DeviceSlice, Drafts, IntType, Kind, Masks, Outputs, RanksError, SamplingParams,
    VerifyMode, Work,
};

use crate::batch::{part, planned, state, with_patience};
use crate::cases::Dice;
use crate::devices::{There, pool, small_batch, ways};

#[test]
fn sequences_that_were_shortened_stay_those_of_the_last_fetch_after_a_failure() {
    let mut batch = small_batch(2);
    batch.ownership = Ownership::Blocks;
    // A device keeps the history of a request only if its edits read it.
    batch.requests.iter_mut().for_each(|(params, _)| {
        *params = SamplingParams { seed: params.seed, ..Default::default() };
    });
    let whole = batch.rows(&mut Dice(9, 0), 3);
    let timeout = Duration::from_millis(1000);
    for devices in [OneSided, Nccl] {
        with_patience(2, Duration::from_secs(5), |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, timeout));
            let plan = planned(&pool, &slots, Swap, 0);
            let part = part(Swap, &batch.split, own, 0, &whole, &[]);
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let mut out = Outputs::new();
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out).unwrap();
            if own == 1 {
                // Takes no other step, and stays until the other one has given up.
                return std::thread::sleep(Duration::from_millis(2500));
            }
            let before: Vec<_> = slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect();
            let runtime = pool.device().unwrap().runtime().clone();
            let there = There::of(&pool, &batch, Swap, &whole, std::iter::empty());
            let ones = DeviceBuffer::of(&runtime, &[1i32; 3]).unwrap();
            // Behind two steps that the host has not seen only the device knows what is left.
            for _ in 0..2 {
                pool.assign(&Batch { plan: Some(plan), ..Batch::of(&slots) }).unwrap();
                pool.enqueue(&[Work::step(there.rows())]).unwrap();
            }
            pool.enqueue(&[Work::Shorten(DeviceSlice::of(&ones, IntType::I32).into())]).unwrap();
            let error = pool.fetch(&mut out).unwrap_err();
            assert_eq!(error, RanksError::TimedOut { rank: 1, waited: timeout }.into());
            for (slot, before) in slots.iter().zip(before) {
                assert_eq!(state(pool.sequence(*slot).unwrap()), before);
            }
        });
    }
}

#[test]
fn results_of_a_failed_verification_are_padding() {
    let batch = small_batch(2);
    let whole = batch.rows(&mut Dice(9, 0), 5);
    let timeout = Duration::from_millis(1000);
    for (devices, layout) in ways().filter(|(_, layout)| *layout != Survey) {
        with_patience(2, Duration::from_secs(5), |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, timeout));
            let plan = planned(&pool, &slots, layout, 2);
            let starts = [0, 1, 3, 5];
            let rows = plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]);
            let part = part(layout, &batch.split, own, 0, &whole, &rows.collect::<Vec<_>>());
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let (counts, drafts) = (&[0, 1, 1], Drafts::chain(&[1, 2]));
            let (options, mut out, mode) = (Batch::default(), Outputs::new(), VerifyMode::Coupled);
            pool.verify(
                logits,
                &Batch { slots: &slots, counts, mode, plan: Some(plan), ..options },
                &drafts,
                &mut out,
            )
            .unwrap();
            assert!((0..3).all(|request| !out.request(request).rows.is_empty()));
            if own == 1 {
                // Comes to no other verification, and stays until the other one has given up.
                return std::thread::sleep(Duration::from_millis(2500));
            }
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let error = pool
                .verify(
                    logits,
                    &Batch { slots: &slots, counts, mode, plan: Some(plan), ..options },
                    &drafts,
                    &mut out,
                )
                .unwrap_err();
            assert_eq!(
                error,
                RanksError::TimedOut { rank: 1, waited: timeout }.into(),
                "{devices:?}, {layout:?}"
            );

            // A graph of the host program reads the results where they lie, before anyone has fetched the failure.
            let there = pool.on_device().unwrap();
            let (results, requests) = (there.outputs_layout(), there.assigned(None).unwrap().requests);
            let address = there.outputs_address();
            assert_eq!((results.rows, requests), (5, 3));
            let mut words = vec![7u32; results.words() + results.rows + requests];
            let runtime = pool.device().unwrap().runtime();
            // SAFETY: the window has room for these results, and nothing is enqueued.
            unsafe { runtime.read(address, bytemuck::cast_slice_mut(&mut words)) }.unwrap();
            let (outputs, walks) = words.split_at(results.words());
            assert_eq!(
                walks,
                [u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0, 0, 0],
                "{devices:?}, {layout:?}"
            );
            let none = u32::MAX;
            assert!(outputs[results.tokens()].iter().all(|token| *token == none), "{devices:?}, {layout:?}");
            assert!(outputs[results.top_ids()].iter().all(|token| *token == none), "{devices:?}, {layout:?}");
            let absent = f32::NEG_INFINITY.to_bits();
            for section in [results.logprobs(), results.top_logprobs(), results.id_logprobs()] {
                assert!(outputs[section].iter().all(|logprob| *logprob == absent), "{devices:?}, {layout:?}");
            }
            for section in
                [results.statuses(), results.temperatures(), results.mirostat_mu(), results.ranks()]
            {
                assert!(outputs[section].iter().all(|word| *word == 0), "{devices:?}, {layout:?}");
            }
            assert!(outputs[results.id_ranks()].iter().all(|rank| *rank == 0), "{devices:?}, {layout:?}");
        });
    }
}

#[test]
fn ranks_whose_rows_have_other_types_or_kinds_are_told_so() {
    let mut batch = small_batch(2);
    batch.requests.iter_mut().for_each(|(params, _)| {
        *params = SamplingParams { seed: params.seed, ..Default::default() };
    });
    let whole = vec![vec![0.5; batch.vocab]; 3];
    for (devices, layout) in ways() {
        // Of rank 1; rank 0 has logits of f32.
        for (dtype, kind) in [(1, Kind::Logits), (2, Kind::Logits), (0, Kind::Probabilities)] {
            with_patience(2, Duration::from_secs(5), |rank| {
                let (own, timeout) = (rank.rank(), Duration::from_secs(2));
                let is_swapped = layout == Survey && kind == Kind::Probabilities;
                let (dtype, kind) = if own == 1 { (dtype, kind) } else { (0, Kind::Logits) };
                let (mut pool, slots) = pool(&batch, rank, (devices, timeout));
                let plan = planned(&pool, &slots, layout, 0);
                let rows: Vec<usize> = plan.shares.of(own).collect();
                let part = part(layout, &batch.split, own, dtype, &whole, &rows);
                let logits = part.numbers.logits(part.rows, part.columns, kind);
                let mut out = Outputs::new();
                let stepped = pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out);
                let error = stepped.unwrap_err();
                match error.of_ranks() {
                    Some(RanksError::Disagree {
                        what: "the type or kind of the rows", ours, theirs, ..
                    }) => {
                        assert_ne!(ours, theirs, "{devices:?}, {layout:?}");
                    }
                    // Messages of another size than is expected come never, and so do the digests after them.
                    Some(RanksError::Disagree { what: "the layout, type or mode of the step", .. })
                        if devices == Nccl => {}
                    // Probabilities are not surveyed but swapped, so only one of the ranks sends rows.
                    Some(RanksError::TimedOut { .. }) if is_swapped => {}
                    _ => panic!("{devices:?}, {layout:?}, {dtype}, {kind:?}: {error}"),
                }
            });
        }
    }
}

#[test]
fn a_rank_that_closes_its_pool_is_lost_to_the_others_at_once() {
    let batch = small_batch(2);
    let whole = batch.rows(&mut Dice(9, 0), 5);
    let forever = Duration::from_secs(600);
    for (devices, layout) in ways() {
        with_patience(2, forever, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, forever));
            if own == 1 {
                return;
            }
            let plan = planned(&pool, &slots, layout, 0);
            let rows: Vec<usize> = plan.shares.of(own).collect();
            let part = part(layout, &batch.split, own, 0, &whole[..3], &rows);
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let (options, mut out) = (Batch::default(), Outputs::new());
            let since = Instant::now();
            let error = pool
                .step(logits, &Batch { slots: &slots, plan: Some(plan), ..options }, &mut out)
                .unwrap_err();
            assert!(
                matches!(error.of_ranks(), Some(RanksError::Lost { rank: 1, .. })),
                "{devices:?}, {layout:?}: {error}"
            );
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let again = pool
                .step(logits, &Batch { slots: &slots, plan: Some(plan), ..options }, &mut out)
                .unwrap_err();
            assert_eq!(again, RanksError::Broken(Box::new(error)).into(), "{devices:?}, {layout:?}");
        });
    }
}

#[test]
fn ranks_that_differ_in_what_hosts_know_are_told_what_it_is() {
    let batch = small_batch(2);
    let whole = batch.rows(&mut Dice(9, 0), 3);
    let differences = [
        ("slots", "the slots of the step"),
        ("draw", "the seed or draw index of a request"),
        ("shortened", "the output or position of a request"),
        ("prompt", "the prompt of a request"),
        ("length", "the prompt of a request"),
        ("pushed", "the output or position of a request"),
        ("masks", "the masks of the step"),
        ("forced", "the forced tokens of the step"),
    ];
    for ((devices, layout), (differs, name)) in ways().flat_map(|way| differences.map(|it| (way, it))) {
        with_patience(2, Duration::from_secs(60), |rank| {
            let own = rank.rank();
            let (mut pool, mut slots) = pool(&batch, rank, (devices, Duration::from_secs(60)));
            let width = batch.vocab.div_ceil(32);
            let mut masks = vec![u32::MAX; 3 * width];
            let (mut options, mut forced) = (Batch::default(), [None; 3]);
            match differs {
                "prompt" | "length" => {
                    pool.release(slots[1]).unwrap();
                    let prompt = if differs == "length" { vec![1; 2 + own] } else { vec![own as u32, 1] };
                    slots[1] = pool.admit(batch.requests[1].0.clone(), &prompt).unwrap();
                }
                "slots" => slots.rotate_left(own),
                "draw" => {
                    let forked = pool.fork(slots[1], own as u32).unwrap();
                    pool.release(std::mem::replace(&mut slots[1], forked)).unwrap();
                }
                "shortened" => {
                    pool.push(slots[2], 1).unwrap();
                    pool.push(slots[2], 1).unwrap();
                    pool.shorten(&[slots[2]], &[1 + own]).unwrap();
                }
                "pushed" => {
                    pool.push(slots[2], own as u32).unwrap();
                    pool.push(slots[2], 1).unwrap();
                }
                "masks" => {
                    masks[2 * width] -= own as u32;
                    options.masks = Masks::new(&masks, 3, width, width).unwrap();
                }
                _ => {
                    forced[0] = Some(own as u32);
                    options.forced = &forced;
                }
            }
            let plan = planned(&pool, &slots, layout, 0);
            let part = part(layout, &batch.split, own, 0, &whole, &plan.shares.of(own).collect::<Vec<_>>());
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let error = pool
                .step(logits, &Batch { slots: &slots, plan: Some(plan), ..options }, &mut Outputs::new())
                .unwrap_err();
            let Some(RanksError::Disagree { what, ours, theirs, .. }) = error.of_ranks() else {
                panic!("{devices:?}, {layout:?}, {differs}: {error}")
            };
            assert_eq!(*what, name, "{devices:?}, {layout:?}, {differs}");
            assert!(
                ours != theirs && ours.contains(" in ") && theirs.contains(" in "),
                "{devices:?}, {layout:?}: {error}"
            );
        });
    }
}
