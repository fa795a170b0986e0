//! Ranks that differ in what their hosts know are told so; one that closes its pool or is killed is lost to
//! the others before any timeout, and one that hangs after it.

use std::time::{Duration, Instant};

use gumball_engine::dist::{LogitsLayout, PlannerConfig, StepKind, VocabSplit};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Error, Masks, Outputs, Place, Pool, PoolConfig,
    RanksError, Result, SamplingParams, Work,
};

use super::Connect;

const VOCAB: usize = 4096;

/// The numbers of the groups, from the last one down.
const LAST_GROUP: usize = usize::MAX - 1;

/// How soon a rank that has gone is noticed, at the latest.
const SOON: Duration = Duration::from_secs(10);

/// A fault of the last rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Prompt,
    Masks,
    Closes,
    Hangs,
    Killed,
}

/// How long devices wait for a rank that hangs.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

/// Checks the error that each rank gets from each fault, under each layout, and says how long each took.
/// Returns the number of these pairs.
///
/// # Errors
/// A text with the layout, the fault, and the rank's outcome, if that is not the right one.
pub fn faults(
    device: &Device,
    connect: &dyn Connect,
    say: &dyn Fn(String),
) -> std::result::Result<usize, String> {
    let all = connect.layouts().into_iter();
    let all = all.flat_map(|layout| {
        [Fault::Prompt, Fault::Masks, Fault::Closes, Fault::Hangs].map(|fault| (layout, fault))
    });
    let mut count = 0;
    for (layout, fault) in all {
        let since = Instant::now();
        let stepped = step(device, connect, LAST_GROUP - count, layout, fault);
        let told = stepped.as_ref().err().and_then(Error::of_ranks);
        let is_told = match (told, fault) {
            (Some(RanksError::Disagree { what, .. }), Fault::Prompt) => *what == "the prompt of a request",
            (Some(RanksError::Disagree { what, .. }), Fault::Masks) => *what == "the masks of the step",
            (Some(RanksError::Lost { .. }), Fault::Closes) => since.elapsed() < SOON,
            (Some(RanksError::Late { waited, .. }), Fault::Hangs) => {
                *waited == SHORT_PATIENCE && since.elapsed() < SOON
            }
            (None, Fault::Closes | Fault::Hangs) => stepped == Ok(true),
            _ => false,
        };
        if !is_told {
            return Err(format!("{layout:?}, {fault:?}, after {:?}: {stepped:?}", since.elapsed()));
        }
        say(format!("ranks: {layout:?}, {fault:?}: told after {:.1} s", since.elapsed().as_secs_f64()));
        count += 1;
    }
    Ok(count)
}

/// Kills the last rank while the others wait for it, and checks the error that they get.
///
/// # Errors
/// A text with the rank's outcome, if that is not the right one.
pub fn killed(device: &Device, connect: &dyn Connect, group: usize) -> std::result::Result<(), String> {
    let since = Instant::now();
    let stepped = step(device, connect, group, LogitsLayout::Swap, Fault::Killed);
    match stepped.as_ref().err().and_then(Error::of_ranks) {
        Some(RanksError::Lost { .. }) if since.elapsed() < SOON => Ok(()),
        _ => Err(format!("a rank was killed, after {:?}: {stepped:?}", since.elapsed())),
    }
}

/// Takes a step in a group of its own. Returns whether this rank closed its pool instead.
fn step(
    device: &Device,
    connect: &dyn Connect,
    group: usize,
    layout: LogitsLayout,
    fault: Fault,
) -> Result<bool> {
    let unconnected = |reason| RanksError::Unavailable { what: "connection".to_owned(), reason };
    let transport = connect.connect(group).map_err(unconnected)?;
    let (rank, world) = (transport.rank(), transport.world());
    let is_last = rank + 1 == world;
    let place = Place::device(device.clone(), world);
    let config = PoolConfig { slots: world, place, ..PoolConfig::new(VOCAB) };
    let layouts = connect.layouts();
    let planner = PlannerConfig { layouts, ..PlannerConfig::new(VocabSplit::even(VOCAB, world)?) };
    let mut ranks = connect.ranks(planner, transport);
    if fault == Fault::Hangs {
        ranks.timeout = SHORT_PATIENCE;
    }
    let mut pool = Pool::over(config, ranks)?;
    let prompt = [if fault == Fault::Prompt && is_last { 2 } else { 1 }, 3];
    let params = SamplingParams { seed: Some(5), ..Default::default() };
    let slots = (0..world).map(|_| pool.admit(params.clone(), &prompt)).collect::<Result<Vec<_>>>()?;
    if fault == Fault::Hangs && is_last {
        // Longer than the others wait, and then compare what they were at.
        std::thread::sleep(3 * SHORT_PATIENCE);
    }
    if [Fault::Closes, Fault::Hangs].contains(&fault) && is_last {
        return Ok(true);
    }
    if fault == Fault::Killed && is_last {
        std::process::abort();
    }
    let mut words = vec![u32::MAX; world * VOCAB / 32];
    words[0] -= u32::from(is_last);
    let masks = match fault {
        Fault::Masks => Masks::new(&words, world, VOCAB / 32, VOCAB / 32)?,
        _ => Masks::None,
    };
    let plan = pool
        .ranks()
        .expect("it has ranks")
        .planner
        .plan_as(layout, &pool.shape(&slots, 0, StepKind::Decode)?);
    let columns = if layout == LogitsLayout::Replicated {
        VOCAB
    } else {
        pool.ranks().expect("it has ranks").planner.split().ids(rank).len()
    };
    let rows = if layout == LogitsLayout::Replicated { plan.shares.of(rank).count() } else { world };
    let bytes = rows * columns * Dtype::F32.bytes();
    let buffer = DeviceBuffer::zeroed(device.runtime(), bytes)?;
    let logits = DeviceMatrix::of(&buffer, Dtype::F32, 0, rows, columns, columns)?;
    pool.assign(&Batch { masks, plan: Some(plan), ..Batch::of(&slots) })?;
    pool.enqueue(&[Work::step(logits)])?;
    pool.fetch(&mut Outputs::new()).map(|()| false)
}
