//! Sequences of a pool on a device: what the host knows of them, and how it learns the rest.

use gumball_cuda::{Prepared, Start};
use gumball_spec::{Error, NONE, Result};

use super::pool::DevicePool;
use crate::pool::Slot;
use crate::sequence::Sequence;

/// What the host knows of a sequence.
#[derive(Clone, Debug)]
pub(super) struct Mirror {
    /// The sequence as far as it is known, but for `fetched`.
    pub sequence: Sequence,
    /// Tokens that were fetched since, each with mirostat's limit after it.
    fetched: Vec<(u32, f32)>,
    /// How many steps it has taken since the last token that is known.
    pub behind: u64,
}

impl Mirror {
    pub fn new(sequence: Sequence) -> Self {
        Self { sequence, fetched: Vec::new(), behind: 0 }
    }

    /// Takes what the last step came to, if that is all that is missing.
    pub fn follow(&mut self, token: i32, mu: f32) {
        if self.behind == 1 {
            self.behind = 0;
            if token != NONE {
                self.fetched.push((token as u32, mu));
            }
        }
    }

    fn catch_up(&mut self) {
        self.fetched.drain(..).for_each(|(id, mu)| self.sequence.push(id, mu));
    }
}

impl DevicePool {
    /// Returns the state of a slot: seed, position, history, mirostat's limit.
    ///
    /// Waits for the device where the host does not know the last tokens yet.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    /// - [`Error::Unavailable`] if tokens are lost, because several steps were taken without fetching their outputs and
    ///   the request keeps no history on the device; or if the device fails.
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        if self.mirror(slot)?.behind > 0 {
            self.settle()?;
        }
        if self.mirror(slot)?.behind > 0 {
            self.read_back(slot)?;
        }
        let mirror = self.mirrors[slot as usize].as_mut().expect("just seen");
        mirror.catch_up();
        Ok(&mirror.sequence)
    }

    /// Returns what the host knows of a slot.
    pub(super) fn mirror(&self, slot: Slot) -> Result<&Mirror> {
        let place = usize::try_from(slot).ok().and_then(|slot| self.mirrors.get(slot));
        place.and_then(Option::as_ref).ok_or_else(|| Error::out_of_range("slot", slot, "an admitted slot"))
    }

    /// Reads the state of a slot that fell behind.
    fn read_back(&mut self, slot: Slot) -> Result<()> {
        let position = self.workspace.position(slot)?;
        let mirror = self.mirrors[slot as usize].as_mut().expect("just seen");
        mirror.catch_up();
        if mirror.sequence.position() == position {
            // No step yielded a token.
            mirror.behind = 0;
            return Ok(());
        }
        let missing = position.wrapping_sub(mirror.sequence.position());
        let reason = format!("{missing} tokens of slot {slot} are lost; fetch the outputs of each step");
        Err(Error::Unavailable { resource: "history", reason })
    }

    /// Writes a sequence to a slot of the device.
    pub(super) fn write(&mut self, slot: Slot, sequence: &Sequence) -> Result<()> {
        let prepared = Prepared::new(sequence.params(), self.config.vocab)?;
        let state = sequence.state();
        let start = Start {
            seed: state.seed,
            draw: state.draw,
            position: state.position,
            mu: state.mu,
            prompt: state.prompt,
            output: state.output,
            room: self.config.room,
        };
        self.workspace.admit(slot, &prepared, &start)
    }
}
