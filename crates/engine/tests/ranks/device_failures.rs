//! The state after a failed exchange on devices of ranks: results of padding, and sequences as they were
//! fetched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gumball_cuda::{Runtime, Tap};
use gumball_engine::dist::LogitsLayout::{Gather, Replicated, Survey, Swap};
use gumball_engine::dist::TransportKind::{self, Nccl, OneSided};
use gumball_engine::dist::{Ownership, Transport};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceSlice, Drafts, Error, IntType, Kind, Outputs, RanksError,
    SamplingParams, VerifyMode, Work,
};

use crate::batch::{PATIENCE, part, planned, state, with_patience};
use crate::calls::{Call, Calls, Given, Saved, Stay, Taken, all_saved, device_place, hold_each};
use crate::cases::Dice;
use crate::devices::{There, pool, small_batch, ways};
use crate::faults::go_on;

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
        let stay = Stay::default();
        with_patience(2, PATIENCE, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, timeout));
            let plan = planned(&pool, &slots, Swap, 0);
            let part = part(Swap, &batch.split, own, 0, &whole, &[]);
            let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
            let mut out = Outputs::new();
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out).unwrap();
            if own == 1 {
                return stay.wait();
            }
            let _end = stay.end();
            let before: Vec<_> = slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect();
            let runtime = pool.device().unwrap().runtime().clone();
            let there = There::of(&pool, &batch, Swap, &whole, std::iter::empty());
            let ones = DeviceBuffer::of(&runtime, &[1i32; 3]).unwrap();
            // After two steps that the host has not seen only the device knows what is left.
            for _ in 0..2 {
                pool.assign(&Batch { plan: Some(plan), ..Batch::of(&slots) }).unwrap();
                pool.enqueue(&[Work::step(there.rows())]).unwrap();
            }
            pool.enqueue(&[Work::Shorten(DeviceSlice::of(&ones, IntType::I32).into())]).unwrap();
            let error = pool.fetch(&mut out).unwrap_err();
            assert_eq!(error, RanksError::Late { rank: 1, waited: timeout }.into());
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
    let mut plain = small_batch(2);
    plain.kind = Kind::Logits;
    plain.requests.iter_mut().for_each(|(params, _)| {
        *params = SamplingParams { seed: params.seed, ..Default::default() };
    });
    // A survey alone serves the last batch.
    let of_batches = ways().map(|way| (way, &batch)).chain([((OneSided, Survey), &plain)]);
    for ((devices, layout), batch) in of_batches {
        let stay = Stay::default();
        with_patience(2, PATIENCE, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(batch, rank, (devices, timeout));
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
                return stay.wait();
            }
            let _end = stay.end();
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
                RanksError::Late { rank: 1, waited: timeout }.into(),
                "{devices:?}, {layout:?}"
            );

            // A graph of the host program reads the results where they lie, before anyone has fetched the
            // failure.
            let there = pool.on_device().unwrap();
            let (outputs, requests) = (there.outputs(), there.assigned(None).unwrap().requests);
            let (results, address) = (outputs.layout, outputs.address);
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
    // Of rank 1; rank 0 has logits of f32.
    let others = [(1, Kind::Logits), (2, Kind::Logits), (0, Kind::Probabilities)];
    hold_each(ways().flat_map(|way| others.map(|other| (way, other))), |((devices, layout), other)| {
        with_patience(2, Duration::from_secs(20), |rank| {
            // Rows of another size never come, which takes the whole timeout.
            let (own, timeout) = (rank.rank(), Duration::from_secs(8));
            let (dtype, kind) = if own == 1 { other } else { (0, Kind::Logits) };
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
                    what: "the layout, type or mode of the step",
                    ours,
                    theirs,
                    ..
                }) => assert_ne!(ours, theirs, "{devices:?}, {layout:?}"),
                _ => panic!("{devices:?}, {layout:?}, {dtype}, {kind:?}: {error}"),
            }
        });
    });
}

/// The ways in which rows travel, each with each call that is served there.
fn cases() -> impl Iterator<Item = (TransportKind, Call)> {
    [OneSided, Nccl].into_iter().flat_map(|way| Call::all(Some(way)).into_iter().map(move |call| (way, call)))
}

/// What became of rank 0's call, whether its sequences stayed, what they go on from, and how many launches
/// the other rank made.
type Broken = (Result<Taken, Error>, bool, Vec<Saved>, usize);

/// Makes a call on two ranks, of which the last one's device breaks after so many launches.
fn broken_after(way: TransportKind, call: Call, launches: usize) -> Broken {
    let (calls, forever) = (Calls::new(2), Duration::from_secs(600));
    let mut ranks = with_patience(2, forever, |rank| {
        let is_last = rank.rank() == 1;
        let device = Device::emulated().expect("a C++ compiler");
        let tap = Arc::new(Tap::on(Arc::clone(device.runtime())));
        let device = if is_last { Device::new(Arc::clone(&tap) as Arc<dyn Runtime>) } else { device };
        let place = Some(device_place(device));
        let mut pool = calls.pool(call, (Some(way), forever), Some(Box::new(rank)), place).unwrap();
        let slots = calls.admit(&mut pool);
        let was = all_saved(&mut pool, &slots);
        tap.fail_after(launches);
        let (mut taken, given) = (None, Given::new(call, &slots));
        let made = tap.launches_of(|| {
            taken = Some(calls.take(&mut pool, &given));
            Ok::<_, ()>(())
        });
        let saved = if is_last { Vec::new() } else { all_saved(&mut pool, &slots) };
        (taken.unwrap(), saved == was, saved, made.unwrap().len())
    });
    let made = ranks[1].3;
    let (taken, is_unchanged, saved, _) = ranks.swap_remove(0);
    (taken, is_unchanged, saved, made)
}

#[test]
fn a_rank_whose_device_breaks_in_a_call_is_lost_to_the_others_at_once_which_go_on_in_a_new_group() {
    hold_each(cases(), |(way, call)| {
        let launches = broken_after(way, call, usize::MAX).3;
        let some = match call {
            Call::Step(Swap) | Call::Draft | Call::Score => 0..launches,
            Call::Kept(_) => launches - 1..launches,
            _ => launches / 2..launches / 2 + 1,
        };
        for after in some {
            let since = Instant::now();
            let (taken, is_unchanged, saved, _) = broken_after(way, call, after);
            let told = format!("{way:?}, {call:?}, after {after} of {launches}");
            match taken {
                // It had sent all that the others need.
                Ok(taken) => assert_eq!(taken, Calls::new(2).want(call), "{told}"),
                Err(error) => {
                    let is_lost = matches!(error.of_ranks(), Some(RanksError::Lost { rank: 1, .. }));
                    assert!(is_lost && is_unchanged, "{told}: {error}");
                    assert!(since.elapsed() < Duration::from_secs(60), "{told}");
                    go_on(call, Some(way), &saved);
                }
            }
        }
    });
}

#[test]
fn a_rank_that_is_done_is_not_lost_to_one_whose_device_has_other_work() {
    let calls = Calls::new(2);
    hold_each([Gather, Swap, Replicated].into_iter().map(Call::Kept), |call| {
        with_patience(2, PATIENCE, |rank| {
            let is_last = rank.rank() == 1;
            let tap = Arc::new(Tap::on(Arc::clone(Device::emulated().unwrap().runtime())));
            let place = Some(device_place(Device::new(Arc::clone(&tap) as Arc<dyn Runtime>)));
            let way = (Some(OneSided), PATIENCE);
            let mut pool = calls.pool(call, way, Some(Box::new(rank)), place).unwrap();
            let slots = calls.admit(&mut pool);
            if is_last {
                // Much longer than a device may go on once a rank has gone.
                tap.keep_busy_behind("send_results", Duration::from_millis(2_500));
            }
            // Under `Gather` the other rank has closed its pool by then, elsewhere it waits for this rank's
            // kept sets.
            assert_eq!(
                calls.take(&mut pool, &Given::new(call, &slots)).unwrap(),
                calls.want(call),
                "{call:?}"
            );
        });
    });
}

#[test]
fn a_rank_that_comes_to_no_call_is_an_error_in_time_and_sequences_stay() {
    let (calls, timeout) = (Calls::new(2), Duration::from_millis(1000));
    hold_each(cases(), |(way, call)| {
        let stay = Stay::default();
        with_patience(2, PATIENCE, |rank| {
            let own = rank.rank();
            let mut pool = calls.pool(call, (Some(way), timeout), Some(Box::new(rank)), None).unwrap();
            let slots = calls.admit(&mut pool);
            if own == 1 {
                return stay.wait();
            }
            let _end = stay.end();
            let began = Instant::now();
            let (given, was) = (Given::new(call, &slots), all_saved(&mut pool, &slots));
            let taken = [0, 1].map(|_| calls.take(&mut pool, &given).unwrap_err());
            assert!(began.elapsed() < timeout * 5, "{way:?}, {call:?}, {:?}", began.elapsed());
            let late = Error::from(RanksError::Late { rank: 1, waited: timeout });
            let broken = RanksError::Broken(Box::new(late.clone())).into();
            assert_eq!(taken, [late, broken], "{way:?}, {call:?}");
            assert_eq!(all_saved(&mut pool, &slots), was, "{way:?}, {call:?}");
        });
    });
}

#[test]
fn a_pool_whose_group_broke_is_closed_within_a_second_while_the_other_rank_stays() {
    let (calls, timeout) = (Calls::new(2), Duration::from_secs(8));
    hold_each([OneSided, Nccl].into_iter(), |way| {
        let (stay, call) = (Stay::default(), Call::Step(Swap));
        with_patience(2, PATIENCE, |rank| {
            let own = rank.rank();
            let mut pool = calls.pool(call, (Some(way), timeout), Some(Box::new(rank)), None).unwrap();
            let slots = calls.admit(&mut pool);
            if own == 1 {
                return stay.wait();
            }
            let _end = stay.end();
            let error = calls.take(&mut pool, &Given::new(call, &slots)).unwrap_err();
            assert_eq!(error, RanksError::Late { rank: 1, waited: timeout }.into(), "{way:?}");
            let began = Instant::now();
            drop(pool);
            // A busy machine takes a while; the timeout would be longer.
            assert!(began.elapsed() < Duration::from_secs(4), "{way:?}, {:?}", began.elapsed());
        });
    });
}
