//! The task: what one row is drawn for.

use gumball_spec::request::{check_forced, check_mu};
use gumball_spec::{Error, Result, Row};

use crate::{History, Prepared};

/// Which of the independent draws: what a Philox counter holds besides its index and its tag.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The seed.
    pub seed: u64,
    /// The position.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// What a row is drawn for: a request's state at that row.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The parameters.
    pub prepared: &'a Prepared,
    /// Prompt and output so far.
    pub history: &'a History,
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the drawn one, modulo 2^32.
    pub position: u32,
    /// The index of the sample, for several draws from one row.
    pub draw: u32,
    /// Mirostat's limit, in bits; a number below +inf.
    pub mu: f32,
    /// The grammar bitmask: bit `id % 32` of word `id / 32` allows an id; missing words forbid.
    pub mask: Option<&'a [u32]>,
    /// The token to emit whatever is drawn.
    pub forced: Option<u32>,
}

impl Task<'_> {
    /// Returns what its random words depend on.
    pub(crate) fn stream(&self) -> Stream {
        Stream { seed: self.seed, position: self.position, draw: self.draw }
    }

    /// Checks what comes with the row.
    pub(crate) fn validate(&self, row: Row<'_>) -> Result<()> {
        let vocab = self.prepared.vocab();
        if row.vocab() != vocab {
            return Err(Error::length("logits", row.vocab(), format!("{vocab} ids")));
        }
        check_forced(self.forced, vocab)?;
        check_mu(self.mu)
    }
}
