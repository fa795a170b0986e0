//! Drafts verified by a pool, in a batch with requests that must not matter.

use gumball_engine::{
    Batch, Drafts, HostMasks, Masks, Matrix, Outputs, PADDING, RowHook, Rows, Slot, VerifyMode,
};
use gumball_spec::Result;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::Judgement;

use super::pools::{Feed, Pools};
use super::read_row::read_row;
use super::work::Work;
use crate::case::Dtype;
use crate::drafted::{Drafted, Walked};

/// Rows of the padding in front, whose drafts and logits are hostile.
const FIRST: usize = 3;

/// Verifies the drafts of the request in a slot, behind padding, and beside itself under another draw index.
///
/// # Errors
/// The errors of the oracle, under the same conditions.
pub fn verify(pool: &mut Pools, slot: Slot, drafted: &Drafted) -> Result<Walked> {
    let (drafts, parents) = drafted.tree();
    let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
    let is_block = drafted.judgement == Some(Judgement::Block);
    let checked = if is_block { tree.check_chain() } else { tree.check() };
    // Parents in the memory of a device are seen by kernels alone.
    if pool.feed != Feed::Host {
        checked.clone()?;
    }
    let (n, vocab, rows) = (drafts.len(), drafted.root.vocab(), drafted.rows());
    let all: Vec<usize> = (0..=n).chain(0..=n).collect();

    let mut data = vec![f32::NAN; FIRST * vocab];
    data.extend(all.iter().flat_map(|row| (0..vocab).map(|id| rows[*row].row.logit(id))));
    let forced: Vec<Option<u32>> =
        [None; FIRST].into_iter().chain(all.iter().map(|row| rows[*row].forced)).collect();
    let hooks: Vec<_> =
        all.iter().map(|row| drafted.hook(*row).map(|hook| move |z: &mut [f32]| hook.apply(z))).collect();
    let hooks: Vec<Option<RowHook<'_>>> = [None; FIRST]
        .into_iter()
        .chain(hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as RowHook<'_>)))
        .collect();
    // Words that are missing forbid, as the zeros do that lines are filled up with.
    let width = rows.iter().filter_map(|row| Some(row.mask?.len())).max().unwrap_or(0).max(1);
    let (mut words, mut present) = (vec![0; (FIRST + all.len()) * width], vec![false; FIRST]);
    for row in &all {
        let mask = rows[*row].mask;
        words[present.len() * width..][..mask.map_or(0, <[u32]>::len)].copy_from_slice(mask.unwrap_or(&[]));
        present.push(mask.is_some());
    }
    let masks = HostMasks::new(&words, present.len(), width, width)?.with_present(&present)?;
    // A batch without masks takes other kernels than one whose rows have none.
    let masks = if present.contains(&true) { Masks::Host(masks) } else { Masks::None };

    let ids = [&[0, 1], &drafts[..], &drafts[..]].concat();
    let all_parents = [&[9, i32::MIN], &parents[..], &parents[..]].concat();
    let counts = [FIRST - 1, n, n].map(|count| count as u32);
    // The drafter's rows of padding are hostile, too.
    let probs: Option<Vec<f32>> = drafted
        .draft_probs
        .as_ref()
        .map(|probs| [&vec![f32::NAN; FIRST * vocab], &probs[..], probs].concat());
    let matrix = |probs| Matrix::new(probs, present.len(), vocab);
    let probs = probs.as_deref().map(matrix).transpose()?;
    let given = Drafts { probs, ..Drafts::tree(&ids, &all_parents) };
    let mode = match drafted.judgement {
        Some(Judgement::Rejection) => VerifyMode::Rejection,
        Some(Judgement::Block) => VerifyMode::Block,
        Some(Judgement::Threshold { single, acc }) => VerifyMode::Threshold { single, acc },
        None if drafted.greedy => VerifyMode::Greedy,
        None => VerifyMode::Coupled,
    };
    let logits = Rows::of(Matrix::new(&data, present.len(), vocab)?, drafted.root.kind);
    let (mut out, other) = (Outputs::new(), pool.each(|pool| pool.fork(slot, 77))?);
    let slots = [PADDING, slot, other];
    let batch = Batch { counts: &counts, mode, masks, forced: &forced, hooks: &hooks, ..Batch::of(&slots) };
    let work = Work { rows: logits, dtype: Dtype::F32, batch, drafts: Some(given) };
    let verified = pool.call(&work, &mut out);
    pool.each(|pool| pool.release(other))?;
    // A batch names the request too.
    if let Err(error) = checked {
        assert!(verified.is_err(), "{error}");
        return Err(error);
    }
    verified?;

    assert!(out.request(0).tokens.is_empty() && out.request(0).rows.is_empty(), "padding yields nothing");
    let (mut walked, mut path) = (Walked::new(), Vec::new());
    for (row, place) in out.request(1).rows.iter().zip(out.request(1).places) {
        let row = *row as usize - FIRST;
        let seen = read_row(&drafted.case(row, &path), &out, place);
        path.extend(u32::try_from(seen.token));
        walked.push((row, seen));
    }
    assert_eq!(out.accepted()[1] as usize, walked.len() - 1);
    let sequence = pool.sequence(slot)?;
    assert_eq!(sequence.history().output(), [&drafted.root.output[..], &path].concat());
    assert_eq!(sequence.position(), drafted.root.position.wrapping_add(path.len() as u32));
    Ok(walked)
}
