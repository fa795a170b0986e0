//! The step that was enqueued last, and how the host's copies of sequences catch up with a device that is
//! ahead of them.
//!
//! The tokens of a step come with its outputs, once for each step. Where these were not read one by one, or
//! the device took tokens away, the state of the request is read back.

use std::sync::Arc;

use gumball_cuda::Workspace;
use gumball_spec::layout::Layout;
use gumball_spec::{Error, NONE, Result, Status};

use crate::ahead::Shortened;
use crate::assignment::Assignment;
use crate::slot::{PADDING, Slot};
use crate::slots::{Entry, Slots};

/// The step that was enqueued last.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    /// The assignment of its rows, in the order of its outputs.
    pub of: Arc<Assignment>,
    /// On the route `probabilities` the temperature of the softmax of each slot's rows.
    pub temperatures: Vec<Option<f32>>,
    /// Whether the host has read the step's outputs.
    pub observed: bool,
    /// Whether its rows had the logits of probed sets alone.
    pub is_approximate: bool,
}

impl Last {
    /// Adds to the outputs of a draw from probabilities the temperatures and the softmax's statuses. With
    /// drafts `path` has the row that each place of the outputs comes from. The statuses of rows with a
    /// forced token that are not read stay as they are (D2).
    pub fn add_softmax(
        &self,
        slots: &Slots,
        (layout, statuses): (Layout, &[u32]),
        path: Option<&[u32]>,
        words: &mut [u32],
    ) {
        for ((slot, places), temperature) in self.of.places().zip(&self.temperatures) {
            let Some(temperature) = temperature else { continue };
            let params = slots.admitted(slot).params();
            let is_unread = |own: u32| !params.reads_forced_rows() && Status(own).is_forced(params);
            for place in places {
                let row = path.map_or(place, |path| path[place] as usize);
                let Some(status) = statuses.get(row) else { continue };
                let own = &mut words[layout.statuses()][place];
                *own |= if is_unread(*own) { 0 } else { *status };
                // A greedy row has 0 already.
                let drawn_at = &mut words[layout.temperatures()][place];
                *drawn_at = if *drawn_at == 0 { 0 } else { temperature.to_bits() };
            }
        }
    }

    /// Returns the layout of its outputs.
    pub fn layout(&self, workspace: &Workspace) -> Layout {
        Layout { rows: self.of.rows(), widths: workspace.limits().widths }
    }

    /// Brings the host's copy of an admitted slot's sequence up to date, for which the device may have to be
    /// waited for.
    pub fn sync(&mut self, slots: &mut Slots, workspace: &mut Workspace, slot: Slot) -> Result<()> {
        if slots.entry_mut(slot).ahead.unseen > 0 {
            self.observe(slots, workspace)?;
        }
        let entry = slots.entry_mut(slot);
        if entry.ahead.unseen > 0 || entry.ahead.shortened == Shortened::Lost {
            read_back(entry, workspace, slot)?;
        }
        follow_shortened(entry, workspace, slot)
    }

    /// Reads the outputs, if the host has not done so yet.
    fn observe(&mut self, slots: &mut Slots, workspace: &mut Workspace) -> Result<()> {
        if !self.observed {
            let mut words = vec![0; self.layout(workspace).mirostat_mu().end];
            workspace.results().read(&mut words, &mut [])?;
            self.apply(slots, workspace, &words)?;
        }
        Ok(())
    }

    /// Updates the host's sequences from the outputs, once per step.
    pub fn apply(&mut self, slots: &mut Slots, workspace: &mut Workspace, words: &[u32]) -> Result<()> {
        if std::mem::replace(&mut self.observed, true) {
            return Ok(());
        }
        let layout = self.layout(workspace);
        let mut lengths = Vec::new();
        for (slot, places) in self.of.places().filter(|(slot, _)| *slot != PADDING) {
            let entry = slots.entry_mut(slot);
            // If several steps are missing, the tokens of the last one alone cannot complete the sequence.
            if entry.ahead.unseen != 1 || entry.ahead.shortened == Shortened::Lost {
                continue;
            }
            let [tokens, mus] =
                [layout.tokens(), layout.mirostat_mu()].map(|column| &words[column][places.clone()]);
            // After the emitted tokens there are none.
            let emitted = tokens.iter().zip(mus).filter(|(token, _)| **token as i32 != NONE);
            follow_before_step(entry, workspace, (slot, emitted.clone().count()))?;
            entry.ahead.unseen = 0;
            entry.ahead.fetched.extend(emitted.map(|(token, mu)| (*token, f32::from_bits(*mu))));
            follow_shortened(entry, workspace, slot)?;
            lengths.push((slot, entry.length()));
        }
        if self.of.verifies {
            workspace.note_lengths(lengths);
        }
        Ok(())
    }
}

/// Makes the host's copy of a sequence, which knows all tokens, as long as the device's, which lost some.
fn follow_shortened(entry: &mut Entry, workspace: &Workspace, slot: Slot) -> Result<()> {
    if entry.ahead.shortened != Shortened::Behind {
        return Ok(());
    }
    let state = workspace.requests().state(slot)?;
    entry.known().cut(state.output_len, state.mu);
    entry.ahead.shortened = Shortened::No;
    Ok(())
}

/// Makes the host's copy as long as the device's was before the last step, which emitted `emitted` tokens.
fn follow_before_step(
    entry: &mut Entry,
    workspace: &Workspace,
    (slot, emitted): (Slot, usize),
) -> Result<()> {
    if entry.ahead.shortened != Shortened::Before {
        return Ok(());
    }
    let state = workspace.requests().state(slot)?;
    let sequence = entry.known();
    sequence.cut(state.output_len.saturating_sub(emitted), sequence.mu());
    entry.ahead.shortened = Shortened::No;
    Ok(())
}

/// Reads the state of a slot whose copy on the host lacks tokens.
fn read_back(entry: &mut Entry, workspace: &Workspace, slot: Slot) -> Result<()> {
    let state = workspace.requests().state(slot)?;
    let is_shortened = entry.ahead.shortened != Shortened::No;
    let sequence = entry.known();
    let known = sequence.history().ids().len();
    let lost = (state.prompt_len + state.output_len).saturating_sub(known);
    match state.history {
        Some(ids) if is_shortened => {
            sequence.cut(0, state.mu);
            sequence.apply(&ids[state.prompt_len..], state.mu);
        }
        None if is_shortened => {
            let reason = format!(
                "tokens of slot {slot} were taken away on the device, which keeps no history of it; fetch the outputs of each step, \
                 or set keep_histories of the place"
            );
            return Err(Error::Unavailable { resource: "history", reason });
        }
        Some(ids) => sequence.apply(&ids[known..], state.mu),
        // The steps yielded no token.
        None if lost == 0 => {}
        None => {
            let reason = format!(
                "{lost} tokens of slot {slot} were not fetched and not kept; fetch the outputs of each step, or set \
                 keep_histories of the place"
            );
            return Err(Error::Unavailable { resource: "history", reason });
        }
    }
    entry.ahead.forget_unseen();
    Ok(())
}
