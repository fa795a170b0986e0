//! Drafts accepted while they equal what would have been drawn without them (rule S3).
//!
//! Here the rows are walked one after the other; a backend may compute them side by side, since a row's
//! request is known from the drafts on the path to it.

use crate::error::{Error, Result};
use crate::oracle::{Outcome, sample};
use crate::params::SamplingParams;
use crate::request::{Forced, Request, check_forced};
use crate::row::{NONE, Row};

use super::tree::DraftTree;

/// A row of the target with its own mask and forced token.
#[derive(Clone, Copy, Debug)]
pub struct TargetRow<'a> {
    /// The logits or probabilities.
    pub row: Row<'a>,
    /// The grammar bitmask after the drafts on the path to the row, as [`Request::mask`].
    pub mask: Option<&'a [u32]>,
    /// The token to emit if the walk reaches the row, instead of the drawn one.
    pub forced: Option<u32>,
    /// Whether the caller edits the row.
    pub hooked: bool,
}

/// The caller's own edits of a row that says so, which is named by its number.
pub type RowEdits<'h> = &'h mut dyn FnMut(usize, &mut [f32]);

impl TargetRow<'_> {
    /// Samples this row, whose number is `number`, with the caller's edits if it has any.
    pub(super) fn sample(
        &self,
        number: usize,
        request: &Request<'_>,
        edits: &mut Option<RowEdits<'_>>,
    ) -> Result<Outcome> {
        match edits {
            Some(edits) if self.hooked => {
                sample(self.row, request, Some(&mut |z: &mut [f32]| edits(number, z)))
            }
            _ => sample(self.row, request, None),
        }
    }
}

/// The rows that a walk went through, in turn; one token is emitted from each.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The numbers of the rows: 0 first, then the rows of the accepted drafts.
    pub rows: Vec<usize>,
    /// The result of each.
    pub outcomes: Vec<Outcome>,
}

impl Walk {
    /// Returns how many drafts were accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.rows.len() - 1
    }

    /// Returns the emitted tokens; the last one is [`NONE`] if its row has none.
    #[must_use]
    pub fn tokens(&self) -> Vec<i32> {
        self.outcomes.iter().map(|outcome| outcome.token).collect()
    }
}

/// Checks that a request may have drafts: mirostat's limit and adaptive-p's mean at a row would depend on the
/// tokens drawn before it (F6, D3).
///
/// # Errors
/// - [`Error::Conflict`] for mirostat and for adaptive-p.
pub fn check_drafts(params: &SamplingParams, drafts: usize) -> Result<()> {
    match params.steered_by().filter(|_| drafts > 0) {
        None => Ok(()),
        Some(parameter) => {
            let reason =
                "its state moves with every token that is drawn; let the request step without drafts";
            Err(Error::Conflict { parameter, other: "drafts", reason })
        }
    }
}

/// Checks that the drafts of a request may be judged by probabilities: no rule says yet what is emitted in
/// the place of a draft at the end of a section or of a loop (B2, B5), and a mark has none (W3).
///
/// # Errors
/// - [`Error::Conflict`] for a section, for loops and for a watermark.
pub fn check_judged(params: &SamplingParams, drafts: usize) -> Result<()> {
    check_marked(params, drafts)?;
    let ends = [("section", params.section.is_some()), ("loops", params.loops.is_some())];
    match ends.into_iter().find(|(_, is_there)| *is_there && drafts > 0) {
        None => Ok(()),
        Some((parameter, _)) => {
            let reason = "beside drafts its end is forced in the modes coupled and greedy alone";
            Err(Error::Conflict { parameter, other: "mode", reason })
        }
    }
}

/// Checks that the drafts of a request may be judged by other words than the token's: a mark has none
/// (W3).
///
/// # Errors
/// - [`Error::Conflict`] for a watermark.
pub fn check_marked(params: &SamplingParams, drafts: usize) -> Result<()> {
    if params.watermark.own().is_some() && drafts > 0 {
        let reason = "beside drafts a text is marked in the mode coupled alone";
        return Err(Error::Conflict { parameter: "watermark", other: "mode", reason });
    }
    Ok(())
}

/// Walks from the root to the first token that no draft equals.
///
/// `request` is the state before the first draft; its `mask` and `forced` are not read, since every row has
/// its own.
///
/// # Errors
/// - The errors of [`DraftTree::check`] and [`check_drafts`].
/// - [`Error::Length`] if there is not a row for the root and one for each draft, of one vocabulary.
/// - The errors of [`sample`].
pub fn coupled(
    request: &Request<'_>,
    tree: &DraftTree<'_>,
    rows: &[TargetRow<'_>],
    mut edits: Option<RowEdits<'_>>,
) -> Result<Walk> {
    check(request, tree, rows)?;
    let mut output = request.output.to_vec();
    let mut walk = Walk { rows: Vec::new(), outcomes: Vec::new() };
    let mut next = Some(0);
    while let Some(row) = next {
        let depth = walk.rows.len() as u32;
        let TargetRow { mask, forced, .. } = rows[row];
        let position = request.position.wrapping_add(depth);
        let forced = forced.map(Forced::by_caller);
        let request = Request { output: &output, position, mask, forced, ..*request };
        let outcome = rows[row].sample(row, &request, &mut edits)?;
        next = row_after(tree, request.params, row, outcome.token);
        output.extend(u32::try_from(outcome.token));
        walk.rows.push(row);
        walk.outcomes.push(outcome);
    }
    Ok(walk)
}

/// Walks as [`coupled`] does, every row at temperature 0.
///
/// # Errors
/// The errors of [`coupled`].
pub fn greedy(
    request: &Request<'_>,
    tree: &DraftTree<'_>,
    rows: &[TargetRow<'_>],
    edits: Option<RowEdits<'_>>,
) -> Result<Walk> {
    let params = SamplingParams { temperature: 0.0, ..request.params.clone() };
    coupled(&Request { params: &params, ..*request }, tree, rows, edits)
}

/// Returns the row that the walk goes to after a token was emitted from a row: none after [`NONE`], after a
/// stop id, and where no draft is equal.
#[must_use]
pub fn row_after(tree: &DraftTree<'_>, params: &SamplingParams, row: usize, token: i32) -> Option<usize> {
    if token == NONE || stops(params, token) { None } else { tree.row_after(row, token) }
}

/// Returns whether a token is one of the stop ids.
#[must_use]
pub fn stops(params: &SamplingParams, token: i32) -> bool {
    u32::try_from(token).is_ok_and(|id| params.stop_ids.contains(&id))
}

pub(super) fn check(request: &Request<'_>, tree: &DraftTree<'_>, rows: &[TargetRow<'_>]) -> Result<()> {
    tree.check()?;
    check_drafts(request.params, tree.drafts.len())?;
    let n = tree.drafts.len();
    if rows.len() != n + 1 {
        return Err(Error::length("rows", rows.len(), format!("{} for {n} drafts", n + 1)));
    }
    let vocab = rows[0].row.vocab();
    for row in rows {
        if row.row.vocab() != vocab {
            return Err(Error::length("rows", row.row.vocab(), format!("{vocab} elements in each row")));
        }
        check_forced(row.forced, vocab)?;
    }
    Ok(())
}
