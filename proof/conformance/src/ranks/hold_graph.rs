//! Graphs over ranks that draft, verify under bitmasks of the device and take tokens away, and steps of heads
//! that are split over the ranks, each held to a pool on one device.

use gumball_cuda::{DeviceIntMatrixMut, DeviceSlice, DraftBatchLimits, IntType, MaskRows, Rows};
use gumball_engine::dist::{LogitsLayout, Ownership, StepKind};
use gumball_engine::head::{Exact, HeadOptions, HostMatrix};
use gumball_engine::{
    Batch as Requests, DeviceBuffer, DeviceHead, Drafts, Outputs, Pool, Rows as EngineRows, Slot, VerifyMode,
    Work,
};

use super::hold_batch::{Batch, STEPS, upload};
use crate::rows::Words;

/// The elements of a hidden state.
const WIDTH: usize = 64;

/// Drafts in chains of two, verifies them and takes a token of the first request away, in one graph. Returns
/// what differs on this rank, if anything does.
///
/// # Errors
/// What failed.
pub(super) fn hold_graph(
    batch: &Batch,
    distinct: &[Vec<f32>],
    (one, many): (&mut Pool, &mut Pool),
    (slots, layouts): (&[Slot], &[LogitsLayout]),
) -> gumball_spec::Result<Option<String>> {
    let may_have_drafts = |row: &usize| batch.params(*row).steered_by().is_none();
    let requests: Vec<usize> = (0..batch.rows).filter(may_have_drafts).take(batch.rows / 3).collect();
    let slots: Vec<Slot> = requests.iter().map(|row| slots[*row]).collect();
    let (count, mode) = (slots.len(), VerifyMode::Coupled);
    if count == 0 {
        return Ok(None);
    }
    let runtime = one.device().expect("it is on a device").runtime().clone();
    let ranks = many.ranks().expect("it has ranks");
    let (rank, ids) = (ranks.group.rank(), batch.split.ids(ranks.group.rank()));
    let all = (0..batch.vocab, batch.vocab);
    // The rows of the draft model are the target's.
    let of_target: Vec<usize> = (0..3 * count).collect();
    let of_drafter = [0, 1].map(|depth| (0..count).map(|request| 3 * request + depth).collect::<Vec<_>>());
    let counts = vec![2; count];
    let (words, mut dice) = (batch.vocab.div_ceil(32), Words(batch.seed));
    let masks: Vec<u32> = (0..3 * count * words).map(|_| (dice.word() | dice.word()) as u32).collect();
    let masks = DeviceBuffer::of(&runtime, &masks)?;
    let masks = MaskRows::of(&masks, 3 * count, words, words)?;
    let mut taken = vec![0i32; count];
    taken[0] = 1;
    let taken = DeviceBuffer::of(&runtime, &taken)?;
    let (mut wanted, mut found) = (Outputs::new(), Outputs::new());
    // Masks and counts are the batch's, in whose order requests in blocks are assigned.
    let in_blocks = batch.ownership == Ownership::Blocks;
    let layouts = layouts.iter().filter(|layout| in_blocks || **layout == LogitsLayout::Gather);
    for layout in layouts.copied() {
        let ranks = many.ranks().expect("it has ranks");
        let plan = ranks.planner.plan_as(layout, &many.shape(&slots, 2, StepKind::Verify)?);
        let own: Vec<usize> = plan.shares.of(rank).flat_map(|request| 3 * request..3 * request + 3).collect();
        let part = (ids.clone(), batch.split.width());
        for (pool, plan, out) in [(&mut *one, None, &mut wanted), (&mut *many, Some(plan), &mut found)] {
            let columns = if plan.is_some() { &part } else { &all };
            let of = |rows: &[usize], columns: &(std::ops::Range<usize>, usize)| {
                upload(&runtime, batch, distinct, rows, columns.clone())
            };
            let (rows, target) = match (&plan, layout) {
                (Some(_), LogitsLayout::Replicated) => (own.len(), of(&own, &all)?),
                _ => (3 * count, of(&of_target, columns)?),
            };
            let width =
                if plan.is_some() && layout != LogitsLayout::Replicated { columns.1 } else { batch.vocab };
            let target = Rows::of(&target, batch.dtype, 0, rows, width, width)?;
            let drafter = [of(&of_drafter[0], columns)?, of(&of_drafter[1], columns)?];
            let drafter = drafter
                .each_ref()
                .map(|memory| Rows::of(memory, batch.dtype, 0, count, columns.1, columns.1));
            let [first, second] = drafter;
            let limits = DraftBatchLimits { rows: count, siblings: 1, probs: false };
            let mut batches = Vec::new();
            for depth in [0, 1] {
                let drawn = pool.on_device()?.add_draft_batch(limits)?;
                let counts = vec![depth; count];
                pool.assign(&Requests { counts: &counts, mode, of: Some(drawn), ..Requests::of(&slots) })?;
                batches.push(drawn);
            }
            pool.assign(&Requests { counts: &counts, mode, plan, ..Requests::of(&slots) })?;
            let mut chains = DeviceBuffer::of(&runtime, &vec![-1i32; 2 * count])?;
            let to = DeviceIntMatrixMut::of(&mut chains, IntType::I32, 0, count, 2, 2)?;
            let none = gumball_engine::Masks::None;
            let work = [
                Work::Draft(batches[0], first?.into(), none, None),
                Work::CopyDrafts(batches[0], to, 0),
                Work::Draft(batches[1], second?.into(), none, Some(*to.ids())),
                Work::CopyDrafts(batches[1], to, 1),
                Work::Verify(target.into(), masks.into(), Drafts::chain(to.ids().flat()?)),
                Work::Shorten(DeviceSlice::of(&taken, IntType::I32).into()),
            ];
            let graph = pool.capture(&work)?;
            for _ in 0..STEPS {
                pool.replay(&graph)?;
            }
            pool.fetch(out)?;
            for drawn in batches {
                pool.on_device()?.remove_draft_batch(drawn)?;
            }
        }
        if found.words() != wanted.words() || found.accepted() != wanted.accepted() {
            return Ok(Some(format!("rank {rank}, {layout:?}: a graph of drafts differs")));
        }
        for slot in &slots {
            if one.sequence(*slot)?.state() != many.sequence(*slot)?.state() {
                return Ok(Some(format!(
                    "rank {rank}, {layout:?}: slot {slot} differs behind a graph of drafts"
                )));
            }
        }
    }
    Ok(None)
}

/// Takes steps from hidden states. Returns what differs on this rank, if anything does.
///
/// # Errors
/// What failed.
pub(super) fn hold_heads(
    batch: &Batch,
    (one, many): (&mut Pool, &mut Pool),
    (slots, layouts): (&[Slot], &[LogitsLayout]),
) -> gumball_spec::Result<Option<String>> {
    let ranks = many.ranks().expect("it has ranks");
    let rank = ranks.group.rank();
    let mut splits = (0..ranks.group.world()).map(|rank| batch.split.ids(rank));
    if batch.ownership != Ownership::Blocks || splits.any(|ids| ids.is_empty()) {
        return Ok(None);
    }
    let mut dice = Words(batch.seed ^ 0x4EAD);
    let mut numbers =
        |count: usize| -> Vec<f32> { (0..count).map(|_| dice.below(4096) as f32 / 1024.0 - 2.0).collect() };
    let (weights, hidden) = (numbers(batch.vocab * WIDTH), numbers(batch.rows * WIDTH));
    let device = one.device().expect("it is on a device").clone();
    let head = |ids: std::ops::Range<usize>| {
        let weights = &weights[ids.start * WIDTH..ids.end * WIDTH];
        let exact = Exact::new(weights, ids.len(), WIDTH, HeadOptions::default())?;
        DeviceHead::new(&device, &exact, batch.rows)
    };
    let (whole, part) = (head(0..batch.vocab)?, head(batch.split.ids(rank))?);
    let (mut wanted, mut found) = (Outputs::new(), Outputs::new());
    for layout in layouts.iter().copied() {
        let ranks = many.ranks().expect("it has ranks");
        let plan = ranks.planner.plan_as(layout, &many.shape(slots, 0, StepKind::Decode)?);
        let own: Vec<f32> = match layout {
            LogitsLayout::Replicated => {
                plan.shares.of(rank).flat_map(|row| hidden[row * WIDTH..][..WIDTH].to_vec()).collect()
            }
            _ => hidden.clone(),
        };
        let head = if layout == LogitsLayout::Replicated { &whole } else { &part };
        for _ in 0..STEPS {
            let rows = HostMatrix::new(&hidden, batch.rows, WIDTH)?;
            one.step(EngineRows::hidden(&whole, rows), &Requests::of(slots), &mut wanted)?;
            let rows = EngineRows::hidden(head, HostMatrix::new(&own, own.len() / WIDTH, WIDTH)?);
            many.step(rows, &Requests { plan: Some(plan), ..Requests::of(slots) }, &mut found)?;
            if found.words() != wanted.words() {
                return Ok(Some(format!("rank {rank}, {layout:?}: a step of a head that is split differs")));
            }
        }
    }
    Ok(None)
}
