//! Ranks that differ in what their hosts know are told so, and one that closes its pool is lost to the others before any timeout.

use std::time::{Duration, Instant};

use gumball_engine::dist::{LogitsLayout, PlannerConfig, StepKind, VocabSplit};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Error, Masks, Outputs, Place, Pool, PoolConfig, Ranks,
    RanksError, Result, SamplingParams, Work,
};

use super::{Connect, PATIENCE};

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
}

/// Checks the error that each rank gets from each fault, under each layout. Returns the number of these pairs.
///
/// # Errors
/// A text with the layout, the fault, and the rank's outcome, if that is not the right one.
pub fn faults(device: &Device, connect: &dyn Connect) -> std::result::Result<usize, String> {
    let all = LogitsLayout::ALL.into_iter();
    let all =
        all.flat_map(|layout| [Fault::Prompt, Fault::Masks, Fault::Closes].map(|fault| (layout, fault)));
    let mut count = 0;
    for (layout, fault) in all {
        let since = Instant::now();
        let stepped = step(device, connect, LAST_GROUP - count, layout, fault);
        let told = stepped.as_ref().err().and_then(Error::of_ranks);
        let is_told = match (told, fault) {
            (Some(RanksError::Disagree { what, .. }), Fault::Prompt) => *what == "the prompt of a request",
            (Some(RanksError::Disagree { what, .. }), Fault::Masks) => *what == "the masks of the step",
            (Some(RanksError::Lost { .. }), Fault::Closes) => since.elapsed() < SOON,
            (None, Fault::Closes) => stepped == Ok(true),
            _ => false,
        };
        if !is_told {
            return Err(format!("{layout:?}, {fault:?}, after {:?}: {stepped:?}", since.elapsed()));
        }
        count += 1;
    }
    Ok(count)
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
    let layouts = LogitsLayout::ALL.to_vec();
    let planner = PlannerConfig { layouts, ..PlannerConfig::new(VocabSplit::even(VOCAB, world)?) };
    let mut pool = Pool::over(config, Ranks { planner, transport, timeout: PATIENCE })?;
    let prompt = [if fault == Fault::Prompt && is_last { 2 } else { 1 }, 3];
    let params = SamplingParams { seed: Some(5), ..Default::default() };
    let slots = (0..world).map(|_| pool.admit(params.clone(), &prompt)).collect::<Result<Vec<_>>>()?;
    if fault == Fault::Closes && is_last {
        return Ok(true);
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
