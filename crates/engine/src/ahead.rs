//! How far a device is ahead of the host's copy of a sequence: by steps that were not seen, and by tokens
//! that it took away.

/// The changes of a device to a sequence that the host's copy does not show.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Tokens that were fetched but not yet appended, each with `mu` after it.
    pub fetched: Vec<(u32, f32)>,
    /// The number of steps since the last token that the host knows.
    pub unseen: u64,
    pub shortened: Shortened,
}

/// Whether the device took output tokens of a sequence away that the host's copy still has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shortened {
    /// It did not.
    #[default]
    No,
    /// After the last step.
    Behind,
    /// Before the last step, whose outputs the host has not seen.
    Before,
    /// The host has not seen the outputs of a step in front of it, or of several after it: only the device
    /// knows the sequence.
    Lost,
}

impl Ahead {
    /// Notes that tokens are taken away, after the steps that were noted.
    pub fn note_shorten(&mut self) {
        self.shortened = match (self.shortened, self.unseen) {
            (Shortened::No | Shortened::Behind, 0 | 1) => Shortened::Behind,
            _ => Shortened::Lost,
        };
    }

    /// Notes `steps` steps.
    pub fn note_steps(&mut self, steps: u64) {
        self.shortened = match (self.shortened, self.unseen) {
            (known, _) if steps == 0 => known,
            (Shortened::No, _) => Shortened::No,
            (Shortened::Behind, 0) if steps == 1 => Shortened::Before,
            _ => Shortened::Lost,
        };
        self.unseen = self.unseen.saturating_add(steps);
    }

    /// Takes the host's copy for equal to the device's.
    pub fn forget_unseen(&mut self) {
        (self.unseen, self.shortened) = (0, Shortened::No);
    }
}
