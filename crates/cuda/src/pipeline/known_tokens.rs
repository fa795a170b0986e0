//! Known tokens: the logprobs of tokens that are already there, such as those of a prompt.
//!
//! A known token is a forced token: a step reports what it would report if it had drawn that token. If no
//! edit reads the history, one step takes many rows and does not advance the request. Otherwise each step
//! takes one row, and known tokens extend the history. Inside the prompt, the request is admitted again for
//! each row, because a step would count its token as output.

use gumball_spec::{Error, Result};

use crate::abi::Slot;
use crate::memory::rows::Rows;
use crate::pipeline::assignment::Assignment;
use crate::pipeline::outputs::Outputs;
use crate::pipeline::step::StepInput;
use crate::pipeline::workspace::Workspace;
use crate::requests::prepared::Prepared;
use crate::requests::request_table::InitialState;

/// A known sequence, and which of its tokens get logprobs: row i reports that of `ids[start + i]`, given all
/// ids before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KnownTokens<'a> {
    /// The ids of the prompt, then those of the output.
    pub ids: &'a [u32],
    /// The number of ids that are prompt.
    pub prompt_len: usize,
    /// The index in `ids` of the token that row 0 predicts.
    pub start: usize,
    /// The seed, which XTC reads; the draw index is 0.
    pub seed: u64,
    /// Mirostat's limit in bits, or the mean of adaptive-p, which every row uses.
    pub mu: f32,
}

impl<'a> KnownTokens<'a> {
    /// Checks that there is an id of the vocabulary for each of `rows` rows.
    ///
    /// # Errors
    /// - [`Error::Length`] if an id is missing.
    /// - [`Error::OutOfRange`] if an id is outside the vocabulary, or `prompt_len` exceeds the number of ids.
    pub fn check(&self, rows: usize, vocab: usize) -> Result<()> {
        self.targets(rows, vocab).map(drop)
    }

    fn targets(&self, rows: usize, vocab: usize) -> Result<Vec<i32>> {
        let KnownTokens { ids, prompt_len, start, .. } = *self;
        if prompt_len > ids.len() {
            return Err(Error::out_of_range("prompt_len", prompt_len, format!("in 0..={}", ids.len())));
        }
        let targets = start.checked_add(rows).and_then(|end| ids.get(start..end));
        let targets = targets.ok_or_else(|| {
            Error::length("ids", ids.len(), format!("an id for each of {rows} rows from {start} on"))
        })?;
        match targets.iter().find(|id| **id as usize >= vocab) {
            Some(id) => Err(Error::out_of_range("ids", id, format!("an id in 0..{vocab}"))),
            None => Ok(targets.iter().map(|id| *id as i32).collect()),
        }
    }

    /// Returns the logprobs of these tokens as `request` configures them, and all other outputs of steps in
    /// which these tokens are forced. Waits for the device.
    ///
    /// The call puts the request into `slot` and leaves it there in an unspecified state. The workspace's
    /// assignment is lost.
    ///
    /// # Shapes and units
    /// `rows`: logits or probabilities. `row_indices`: for each known token, the index of the row of `rows`
    /// that predicts it; if empty, row i predicts token i, which is `ids[start + i]`. `masks`: one
    /// per known token, or empty.
    ///
    /// # Errors
    /// - The errors of [`Workspace::admit`] and [`Workspace::fix`].
    /// - [`Error::Length`] if a known token or a mask is missing.
    /// - [`Error::OutOfRange`] if a known token is outside the vocabulary, or `prompt_len` exceeds the number
    ///   of ids.
    /// - [`Error::OutOfRange`] if the workspace has capacity for 0 rows.
    pub fn score(
        &self,
        workspace: &mut Workspace,
        slot: Slot,
        request: &Prepared,
        rows: &Rows<'_>,
        row_indices: &[u32],
        masks: &[Option<&[u32]>],
    ) -> Result<Outputs> {
        let count = if row_indices.is_empty() { rows.rows() } else { row_indices.len() };
        let targets = self.targets(count, workspace.limits.vocab)?;
        if !masks.is_empty() && masks.len() != targets.len() {
            let allowed = format!("one per row, {}, or 0", targets.len());
            return Err(Error::length("masks", masks.len(), allowed));
        }
        if workspace.limits.rows == 0 {
            return Err(Error::out_of_range("rows", 0, "at least 1, for a known token"));
        }
        let one_state = !request.reads_history();
        let mut all = workspace.results.zeros(targets.len())?;
        let mut row = 0;
        while row < targets.len() {
            let end = targets.len().min(row + if one_state { workspace.limits.rows } else { 1 });
            let index = self.start + row;
            // The first row needs an admission, and so does every row after a token of the prompt. If steps
            // do not advance the request, every step needs one.
            if one_state || row == 0 || index <= self.prompt_len {
                workspace.admit(slot, request, &self.state_before(index, one_state, targets.len() - row))?;
            }
            let slots = vec![slot; end - row];
            let masks = if masks.is_empty() { masks } else { &masks[row..end] };
            let (row_indices, rows) = match row_indices {
                [] => (row_indices, rows.part(row..end)),
                _ => (&row_indices[row..end], *rows),
            };
            let forced = &targets[row..end];
            let rows_of =
                Assignment { slots: &slots, forced, known: true, row_indices, masks, ..Default::default() };
            workspace.assign_rows(&rows_of)?;
            let step = workspace.fix(&StepInput::of(&rows))?;
            workspace.enqueue(&if one_state { step.with_known_tokens() } else { step })?;
            all.write_from(row, workspace.results.outputs(end - row)?);
            row = end;
        }
        Ok(all)
    }

    /// Returns the request's state before the id at `index`; without a history if `bare`.
    fn state_before(&self, index: usize, bare: bool, history_growth: usize) -> InitialState<'a> {
        let (prompt, output) = self.ids[..index].split_at(self.prompt_len.min(index));
        InitialState {
            seed: self.seed,
            draw: 0,
            position: index as u32,
            mu: self.mu,
            prompt: if bare { &[] } else { prompt },
            output: if bare { &[] } else { output },
            history_growth,
            keep_history: false,
        }
    }
}
