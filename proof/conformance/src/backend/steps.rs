//! A step of cases in a pool: each is resumed in a slot, stepped in a batch with padding and hostile gaps,
//! and looked at afterwards.

use gumball_engine::{
    Batch, HostMasks, HostMatrix, Masks, Outputs, PADDING, RowHook, Rows, Slot, State, bf16, f16,
};
use gumball_spec::{NONE, Result, Row};

use super::pools::Pools;
use super::read_row::read_row;
use super::work::Work;
use crate::case::Case;
use crate::observed::Observed;

/// Elements between rows, which hold what would win every draw.
const GAP: usize = 13;

/// Steps cases together, each in front of a row of padding.
pub(super) fn step_in(pool: &mut Pools, cases: &[&Case], kept: bool) -> Result<Vec<Result<Observed>>> {
    let admitted: Vec<Result<Slot>> = cases.iter().map(|case| resume(pool, case)).collect();
    let rows = cases.iter().zip(&admitted).filter_map(|(case, slot)| Some((*case, *slot.as_ref().ok()?)));
    let rows: Vec<_> = rows.flat_map(|row| [Some(row), None]).collect();
    let seen = take_step(pool, &rows, kept, |pool, batch, out| step(pool, &rows, batch, out))?;
    let mut seen = seen.into_iter().flatten();
    Ok(admitted.into_iter().map(|slot| slot.map(|_| seen.next().expect("stepped"))).collect())
}

/// Resumes a case in a slot of its own.
pub(super) fn resume(pool: &mut Pools, case: &Case) -> Result<Slot> {
    let state = State {
        prompt: &case.prompt,
        output: &case.output,
        seed: case.seed,
        position: case.position,
        draw: case.draw,
        mu: case.mu,
    };
    let slot = pool.each(|pool| pool.resume(case.params.clone(), state))?;
    assert_eq!(pool.sequence(slot)?.state(), state, "a state comes back as it was given");
    Ok(slot)
}

/// A row of a step: a case and its slot, or padding.
pub(super) type OfRow<'a> = Option<(&'a Case, Slot)>;

/// Takes a step of rows by their batch, reads what each case's row says, holds padding to nothing, and
/// releases the slots.
pub(super) fn take_step(
    pool: &mut Pools,
    rows: &[OfRow<'_>],
    kept: bool,
    take: impl FnOnce(&mut Pools, Batch<'_>, &mut Outputs) -> Result<()>,
) -> Result<Vec<Option<Observed>>> {
    let mut out = Outputs::new();
    let seen = with_batch(rows, |batch| take(pool, batch, &mut out)).map(|()| {
        let mut observe = |(row, of): (usize, &OfRow<'_>)| {
            let Some((case, slot)) = of else {
                assert_eq!((out.tokens()[row], out.statuses()[row]), (NONE, 0), "padding yields nothing");
                assert!(out.kept(row).is_empty(), "padding keeps nothing");
                return None;
            };
            let seen = read_row(case, &out, row);
            follows(pool, *slot, case, &seen);
            Some(Observed { kept: seen.kept.filter(|_| kept), ..seen })
        };
        rows.iter().enumerate().map(&mut observe).collect()
    });
    for (_, slot) in rows.iter().flatten() {
        pool.each(|pool| pool.release(*slot))?;
    }
    seen
}

/// Lends the batch of rows, with their forced tokens, hooks and masks.
fn with_batch<T>(rows: &[OfRow<'_>], work: impl FnOnce(Batch<'_>) -> Result<T>) -> Result<T> {
    let slots: Vec<Slot> = rows.iter().map(|of| of.map_or(PADDING, |(_, slot)| slot)).collect();
    let cases = || rows.iter().map(|of| of.map(|(case, _)| case));
    let forced: Vec<Option<u32>> = cases().map(|case| case?.forced).collect();

    let hooks: Vec<_> =
        cases().map(|case| case?.hook.map(|hook| move |z: &mut [f32]| hook.apply(z))).collect();
    let hooks: Vec<Option<RowHook<'_>>> =
        hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as RowHook<'_>)).collect();

    // Words that are missing forbid, as the zeros do that lines are filled up with.
    let masks: Vec<_> = cases().map(|case| case?.mask.as_deref()).collect();
    let present: Vec<bool> = masks.iter().map(Option::is_some).collect();
    let has_masks = present.contains(&true);
    let width = masks.iter().flatten().map(|mask| mask.len()).max().unwrap_or(0).max(1);
    let mut words = vec![0; slots.len() * width];
    for (line, mask) in words.chunks_mut(width).zip(masks) {
        let mask = mask.unwrap_or(&[]);
        line[..mask.len()].copy_from_slice(mask);
    }
    let masks = HostMasks::new(&words, slots.len(), width, width)?.with_present(&present)?;
    let masks = if has_masks { Masks::Host(masks) } else { Masks::None };
    work(Batch { masks, forced: &forced, hooks: &hooks, ..Batch::of(&slots) })
}

/// Steps rows, of which padding and the gaps between rows are hostile.
fn step(pool: &mut Pools, rows: &[OfRow<'_>], batch: Batch<'_>, out: &mut Outputs) -> Result<()> {
    let Some((first, _)) = rows.iter().flatten().next() else { return Ok(()) };
    let (vocab, stride) = (first.vocab(), first.vocab() + GAP);
    macro_rules! step {
        ($dtype:ident, $hostile:expr) => {{
            let mut data = Vec::with_capacity(rows.len() * stride);
            for of in rows {
                let end = data.len() + stride;
                if let Some((case, _)) = of {
                    let Row::$dtype(row) = case.logits.row() else { unreachable!("one type a step") };
                    data.extend_from_slice(row);
                }
                data.resize(end, $hostile);
            }
            let rows = Rows::of(HostMatrix::strided(&data, rows.len(), vocab, stride)?, first.kind);
            pool.call(&Work { rows, dtype: first.logits.dtype(), batch, drafts: None }, out)
        }};
    }
    match first.logits.row() {
        Row::F32(_) => step!(F32, f32::INFINITY),
        Row::Bf16(_) => step!(Bf16, bf16::INFINITY),
        Row::F16(_) => step!(F16, f16::INFINITY),
    }
}

/// Holds a sequence to have taken its token.
fn follows(pool: &mut Pools, slot: Slot, case: &Case, seen: &Observed) {
    let sequence = pool.sequence(slot).expect("not yet released");
    let taken = usize::from(seen.token != NONE);
    let output = sequence.history().output();
    assert_eq!(output.len(), case.output.len() + taken, "a token joins the output");
    if taken == 1 {
        assert_eq!(output.last().copied(), Some(seen.token as u32), "the token joins the output");
        assert_eq!(sequence.mu().to_bits(), seen.mu.to_bits(), "the limit moves with the token");
    }
    assert_eq!(sequence.position(), case.position.wrapping_add(taken as u32), "the position moves by one");
}
