//! Drafts drawn by a pool for a case, in a batch with requests that must not matter.

use gumball_engine::unstable::DraftWords;
use gumball_engine::{Batch, Masks, Matrix, PADDING, Proposals, RowHook, Rows, Slot, VerifyMode};
use gumball_spec::{NONE, Result};

use super::pools::Pools;
use super::steps::resume;
use super::work::Work;
use crate::case::{Case, Dtype};

/// Draws drafts for a case, if the pool has a verb for that: the last tokens of the output are the path.
pub(super) fn draft(
    pool: &mut Pools,
    case: &Case,
    words: DraftWords,
    count: usize,
) -> Option<Result<Vec<i32>>> {
    let (mode, depth) = match words {
        DraftWords::Position => (VerifyMode::Coupled, case.output.len().min(2)),
        DraftWords::Block { depth } => (VerifyMode::Block, depth as usize),
    };
    let before = case.output.len().checked_sub(depth)?;
    let (mut root, path) = (case.clone(), case.output[before..].iter().map(|id| *id as i32));
    root.output.truncate(before);
    root.position = case.position.wrapping_sub(depth as u32);
    let path: Vec<i32> = path.collect();
    // A path holds tokens, and only pools of the host have hooks.
    let is_token = |id: &i32| (0..case.vocab() as i32).contains(id);
    if case.hook.is_some() && !pool.hooks() || !path.iter().all(is_token) {
        return None;
    }
    let mut of = |root: &Case, mode| {
        let slot = resume(pool, root)?;
        let drafts = drafts(pool, slot, case, &path, mode, count);
        pool.each(|pool| pool.release(slot))?;
        drafts
    };
    let drafted = of(&root, mode);
    if words == DraftWords::Position && root.params.temperature == 0.0 {
        // `greedy` draws at any temperature as others do at 0.
        root.params.temperature = 1.0;
        assert_eq!(of(&root, VerifyMode::Greedy), drafted);
    }
    Some(drafted)
}

/// Draws drafts after a path, in a batch with padding, and with another path of the same request that must
/// not matter.
fn drafts(
    pool: &mut Pools,
    slot: Slot,
    case: &Case,
    path: &[i32],
    mode: VerifyMode,
    count: usize,
) -> Result<Vec<i32>> {
    let vocab = case.vocab();
    let row: Vec<f32> = (0..vocab).map(|id| case.logits.row().logit(id)).collect();
    let data = [&vec![f32::NAN; vocab][..], &row, &row].concat();
    let ids: Vec<i32> = path.iter().chain(&[0]).copied().collect();
    let counts = &[0, path.len() as u32, 1];
    let edit = case.hook.map(|hook| move |z: &mut [f32]| hook.apply(z));
    let hook = edit.as_ref().map(|edit| edit as RowHook<'_>);
    let words = case.mask.clone().unwrap_or_default().repeat(3);
    let masks = match &case.mask {
        Some(mask) => Masks::new(&words, 3, mask.len(), mask.len())?,
        None => Masks::None,
    };
    let (slots, forced, hooks) = ([PADDING, slot, slot], [case.forced; 3], [hook; 3]);
    let batch = Batch { counts, mode, masks, forced: &forced, hooks: &hooks, ..Batch::of(&slots) };
    let rows = Rows::of(Matrix::new(&data, 3, vocab)?, case.kind);
    let mut out = Proposals::new(count);
    pool.draft(&Work { rows, dtype: Dtype::F32, batch, drafts: None }, &ids, &mut out)?;
    assert!(out.row(0).iter().all(|draft| *draft == NONE), "padding has no drafts");
    Ok(out.row(1).to_vec())
}
