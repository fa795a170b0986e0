//! Random drafts over ranks, in every mode and under every layout that takes them, held to a pool on one
//! device with the whole rows.

use gumball_cuda::{DeviceSlice, IntType, Rows};
use gumball_engine::dist::LogitsLayout::{self, Replicated, Survey};
use gumball_engine::dist::StepKind;
use gumball_engine::{Batch as Requests, DeviceBuffer, Drafts, Outputs, Pool, Slot, VerifyMode, Work};

use super::hold_batch::{Batch, STEPS, upload};

/// The modes.
const MODES: [VerifyMode; 5] = [
    VerifyMode::Coupled,
    VerifyMode::Greedy,
    VerifyMode::Rejection,
    VerifyMode::Block,
    VerifyMode::Threshold { single: 0.3, acc: 0.9 },
];

/// Whether a batch's drafts are judged in the mode coupled alone, beside which texts may be marked and have
/// sections and loops.
fn is_coupled(batch: &Batch) -> bool {
    batch.seed.is_multiple_of(2)
}

/// How many of the batch's rows each request has beside its first one: as many requests as fit. One that may
/// have no drafts has none.
fn counts(batch: &Batch) -> Vec<u32> {
    let (mut counts, mut left) = (Vec::new(), batch.rows);
    while left > 0 {
        let params = batch.params(counts.len());
        let is_only_coupled =
            params.watermark.own().is_some() || params.section.is_some() || params.loops.is_some();
        let is_drafted = params.steered_by().is_none() && (is_coupled(batch) || !is_only_coupled);
        let most = if is_drafted { counts.len() % 5 } else { 0 };
        let drafts = most.min(left - 1);
        counts.push(drafts as u32);
        left -= drafts + 1;
    }
    counts
}

/// Verifies drafts on `many` and on `one`, each from the host's calls and then in a graph. Returns what
/// differs on this rank, if anything does.
///
/// `whole` and `part`: the batch's rows, and this rank's ids of them.
///
/// # Errors
/// What failed.
pub(super) fn hold_drafts<'b>(
    batch: &Batch,
    distinct: &[Vec<f32>],
    (one, many): (&mut Pool, &mut Pool),
    (slots, layouts): (&[Slot], &[LogitsLayout]),
    (whole, part): (Rows<'b>, Rows<'b>),
) -> gumball_spec::Result<Option<String>> {
    let (rank, counts) = (many.ranks().expect("it has ranks").group.rank(), counts(batch));
    let slots = &slots[..counts.len()];
    let mut starts = vec![0];
    counts.iter().for_each(|count| starts.push(starts[starts.len() - 1] + *count as usize + 1));
    // The best token of a row is often accepted after it.
    let best = |row: usize| {
        let values = distinct[batch.which(row)].iter().enumerate();
        values.max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id as i32)
    };
    let (mut ids, mut parents) = (Vec::new(), Vec::new());
    for (request, count) in counts.iter().enumerate() {
        for draft in 0..*count as usize {
            let parent =
                if (request + draft).is_multiple_of(3) { draft as i32 - 2 } else { draft as i32 - 1 };
            let parent = parent.max(-1);
            parents.push(parent);
            ids.push(best(starts[request] + (parent + 1) as usize));
        }
    }
    let runtime = one.device().expect("it is on a device").runtime().clone();
    let upload_ids = |ids: &[i32]| DeviceBuffer::of(&runtime, ids).map_err(gumball_spec::Error::from);
    let (id_memory, parent_memory) = (upload_ids(&ids)?, upload_ids(&parents)?);
    let column = |memory| DeviceSlice::of(memory, IntType::I32);
    let chains = Drafts::chain(column(&id_memory));
    let trees = Drafts::tree(column(&id_memory), column(&parent_memory));
    let all = layouts.iter().flat_map(|layout| MODES.map(|mode| (*layout, mode)));
    let is_served = |(layout, mode): &(LogitsLayout, VerifyMode)| {
        let is_allowed = !is_coupled(batch) || *mode == VerifyMode::Coupled;
        is_allowed && (*layout != Survey || mode.step_kind() == StepKind::Verify)
    };
    for (layout, mode) in all.filter(is_served) {
        let drafts = if mode == VerifyMode::Block { chains } else { trees };
        let plan = many
            .ranks()
            .expect("it has ranks")
            .planner
            .plan_as(layout, &many.shape(slots, 4, mode.step_kind())?);
        let own: Vec<usize> =
            plan.shares.of(rank).flat_map(|request| starts[request]..starts[request + 1]).collect();
        let owned = upload(&runtime, batch, distinct, &own, (0..batch.vocab, batch.vocab))?;
        let owned = Rows::of(&owned, batch.dtype, 0, own.len(), batch.vocab, batch.vocab)?;
        let rows = if layout == Replicated { owned } else { part };
        let told = |what: &str| Some(format!("rank {rank}, {layout:?}, {mode:?}: {what}"));
        let (mut found, mut wanted) = (Outputs::new(), Outputs::new());
        let requests = Requests { counts: &counts, mode, ..Requests::of(slots) };
        one.assign(&requests)?;
        one.enqueue(&[Work::verify(whole, drafts)])?;
        many.assign(&Requests { plan: Some(plan), ..requests })?;
        many.enqueue(&[Work::verify(rows, drafts)])?;
        one.fetch(&mut wanted)?;
        many.fetch(&mut found)?;
        if !is_same(&found, &wanted) {
            return Ok(told("a verification differs"));
        }
        if let Some(text) = batch.hold_trained(distinct, (&mut *many, slots), &found)? {
            return Ok(told(&text));
        }
        let graph = many.capture(&[Work::verify(rows, drafts); STEPS])?;
        many.replay(&graph)?;
        one.enqueue(&[Work::verify(whole, drafts); STEPS])?;
        one.fetch(&mut wanted)?;
        many.fetch(&mut found)?;
        if !is_same(&found, &wanted) {
            return Ok(told("the end of a graph differs"));
        }
        for slot in slots {
            if one.sequence(*slot)?.state() != many.sequence(*slot)?.state() {
                return Ok(told(&format!("the state of slot {slot} differs")));
            }
        }
    }
    Ok(None)
}

fn is_same(found: &Outputs, wanted: &Outputs) -> bool {
    let requests = 0..wanted.accepted().len();
    found.words() == wanted.words()
        && found.accepted() == wanted.accepted()
        && found.kept_sets() == wanted.kept_sets()
        && requests.into_iter().all(|request| found.request(request).rows == wanted.request(request).rows)
}
