//! What a failed exchange leaves on devices of ranks: results of padding, and sequences as they were fetched.

use std::time::Duration;

use gumball_engine::dist::LogitsLayout::Swap;
use gumball_engine::dist::{Error as DistError, Ownership, StepKind, Transport};
use gumball_engine::{
    BatchOptions, DeviceBuffer, DeviceLogits, DeviceOptions, DeviceSlice, Dtype, IntType, Outputs,
};

use crate::batch::{Numbers, part, state, with_patience};
use crate::cases::Dice;
use crate::devices::{pool, small_batch};

#[test]
fn sequences_that_were_shortened_stay_those_of_the_last_fetch_after_a_failure() {
    let mut batch = small_batch(2);
    batch.ownership = Ownership::Blocks;
    // A device keeps the history of a request only if its edits read it.
    batch.requests.iter_mut().for_each(|(params, _)| {
        *params = gumball_engine::SamplingParams { seed: params.seed, ..Default::default() };
    });
    let whole = batch.rows(&mut Dice(9, 0), 3);
    let timeout = Duration::from_millis(300);
    with_patience(2, Duration::from_secs(5), |rank| {
        let own = rank.rank();
        let (mut pool, slots) = pool(&batch, rank, timeout);
        let plan = pool.planner().plan_as(Swap, &pool.shape(&slots, 0, StepKind::Decode).unwrap());
        let part = part(Swap, &batch.split, own, 0, &whole, &[]);
        let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
        let mut out = Outputs::new();
        pool.step(&plan, logits, &slots, &BatchOptions::default(), &mut out).unwrap();
        if own == 1 {
            // Takes no other step, and stays until the other one has given up.
            return std::thread::sleep(Duration::from_millis(900));
        }
        let before: Vec<_> = slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect();
        let runtime = pool.pool().device().runtime().clone();
        let Numbers::F32(numbers) = &part.numbers else { unreachable!("the batch has f32") };
        let buffer = DeviceBuffer::of(&runtime, numbers).unwrap();
        let rows = DeviceLogits::of(&buffer, Dtype::F32, 0, part.rows, part.columns, part.columns).unwrap();
        let rows = rows.with_kind(batch.kind);
        let ones = DeviceBuffer::of(&runtime, &[1i32; 3]).unwrap();
        // Behind two steps that the host has not seen only the device knows what is left.
        for _ in 0..2 {
            pool.enqueue(&plan, rows, &slots, &DeviceOptions::default()).unwrap();
        }
        pool.enqueue_shorten(&DeviceSlice::of(&ones, IntType::I32)).unwrap();
        let error = pool.fetch(&mut out).unwrap_err();
        assert_eq!(error, DistError::TimedOut { rank: 1, waited: timeout });
        for (slot, before) in slots.iter().zip(before) {
            assert_eq!(state(pool.sequence(*slot).unwrap()), before);
        }
    });
}
