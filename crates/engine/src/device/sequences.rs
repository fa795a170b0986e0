//! Sequences of a pool on a device: the host's copies, and how they catch up with the device.

use gumball_cuda::{InitialState, Prepared};
use gumball_spec::{Error, NONE, Result};

use super::pool::DevicePool;
use super::pool_route::{PoolRoute, drawing_params};
use crate::sequence::Sequence;
use crate::slot::Slot;

/// Whether the device took output tokens of a sequence away that the host's copy still has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortened {
    /// It did not.
    No,
    /// Behind the last step.
    Behind,
    /// Before the last step, whose outputs the host has not seen.
    Before,
    /// The host has not seen the outputs of a step in front of it, or of several behind it: only the device knows the sequence.
    Lost,
}

impl Shortened {
    /// Notes that tokens are taken away, while the outputs of `steps_unseen` steps have not been seen.
    pub fn note_shorten(&mut self, steps_unseen: u64) {
        *self = match (*self, steps_unseen) {
            (Self::No | Self::Behind, 0 | 1) => Self::Behind,
            _ => Self::Lost,
        };
    }

    /// Notes `steps` steps, with `steps_unseen` before them.
    pub fn note_steps(&mut self, steps: u64, steps_unseen: u64) {
        *self = match (*self, steps_unseen) {
            (known, _) if steps == 0 => known,
            (Self::No, _) => Self::No,
            (Self::Behind, 0) if steps == 1 => Self::Before,
            _ => Self::Lost,
        };
    }
}

/// The host's copy of a sequence.
#[derive(Clone, Debug)]
pub(super) struct HostSequence {
    /// The sequence without the tokens in `fetched`.
    pub sequence: Sequence,
    /// Tokens that were fetched but not yet appended, each with mirostat's limit after it.
    fetched: Vec<(u32, f32)>,
}

impl HostSequence {
    pub fn new(sequence: Sequence) -> Self {
        Self { sequence, fetched: Vec::new() }
    }

    /// Records the token and mirostat's limit of a fetched step.
    pub fn apply(&mut self, token: i32, mu: f32) {
        if token != NONE {
            self.fetched.push((token as u32, mu));
        }
    }

    /// Returns the number of ids in the history, those of `fetched` included.
    pub fn length(&self) -> usize {
        self.sequence.history().ids().len() + self.fetched.len()
    }

    fn catch_up(&mut self) {
        self.fetched.drain(..).for_each(|(id, mu)| self.sequence.push(id, mu));
    }
}

impl DevicePool {
    /// Returns the state of a slot: seed, position, history, mirostat's limit.
    ///
    /// Waits for the device if the host does not know the last tokens yet.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    /// - [`Error::Unavailable`] if the device fails, or if tokens are lost. They are lost when several steps
    ///   ran without a fetch of their outputs and the device keeps no history of the request.
    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.host_sequence(slot)?;
        if self.steps_unseen[slot as usize] > 0 {
            self.observe_last_step()?;
        }
        if self.steps_unseen[slot as usize] > 0 || self.shortened[slot as usize] == Shortened::Lost {
            self.read_back(slot)?;
        }
        self.follow_shortened(slot)?;
        Ok(self.known_sequence(slot))
    }

    /// Returns the host's copy of an admitted slot's sequence, with all tokens that were fetched.
    pub(super) fn known_sequence(&mut self, slot: Slot) -> &mut Sequence {
        let host_sequence = self.host_sequences[slot as usize].as_mut().expect("an admitted slot");
        host_sequence.catch_up();
        &mut host_sequence.sequence
    }

    /// Returns the host's copy of a slot's sequence, which may be behind the device.
    pub(super) fn host_sequence(&self, slot: Slot) -> Result<&HostSequence> {
        let place = usize::try_from(slot).ok().and_then(|slot| self.host_sequences.get(slot));
        place.and_then(Option::as_ref).ok_or_else(|| Error::out_of_range("slot", slot, "an admitted slot"))
    }

    /// Reads the state of a slot whose copy is behind.
    fn read_back(&mut self, slot: Slot) -> Result<()> {
        let state = self.workspace.requests().state(slot)?;
        let host_sequence = self.host_sequences[slot as usize].as_mut().expect("just seen");
        host_sequence.catch_up();
        let known = host_sequence.sequence.history().ids().len();
        let is_shortened = self.shortened[slot as usize] != Shortened::No;
        let lost = (state.prompt_len + state.output_len).saturating_sub(known);
        match state.history {
            Some(ids) if is_shortened => {
                host_sequence.sequence.cut(0, state.mu);
                host_sequence.sequence.apply(&ids[state.prompt_len..], state.mu);
            }
            None if is_shortened => {
                let reason = format!(
                    "tokens of slot {slot} were taken away on the device, which keeps no history of it; fetch the outputs of each step, \
                     or set DevicePoolConfig::keep_histories"
                );
                return Err(Error::Unavailable { resource: "history", reason });
            }
            Some(ids) => host_sequence.sequence.apply(&ids[known..], state.mu),
            // The steps yielded no token.
            None if lost == 0 => {}
            None => {
                let reason = format!(
                    "{lost} tokens of slot {slot} were not fetched and not kept; fetch the outputs of each step, or set \
                     DevicePoolConfig::keep_histories"
                );
                return Err(Error::Unavailable { resource: "history", reason });
            }
        }
        self.steps_unseen[slot as usize] = 0;
        self.shortened[slot as usize] = Shortened::No;
        Ok(())
    }

    /// Writes a sequence to its slot on the device.
    pub(super) fn write(&mut self, slot: Slot, sequence: &Sequence) -> Result<()> {
        let vocab = self.config.vocab;
        let prepared = match self.config.route {
            PoolRoute::Race => Prepared::new(sequence.params(), vocab)?,
            PoolRoute::Probabilities => Prepared::new(&drawing_params(sequence.params())?, vocab)?,
        };
        let state = sequence.state();
        let start = InitialState {
            seed: state.seed,
            draw: state.draw,
            position: state.position,
            mu: state.mu,
            prompt: state.prompt,
            output: state.output,
            history_growth: self.config.history_growth,
            keep_history: self.config.keep_histories,
        };
        self.workspace.admit(slot, &prepared, &start)
    }
}
