//! The task: the request that one row is drawn for.

use gumball_spec::draw::{TAGS, Tags};
use gumball_spec::request::{check_forced, check_hook, check_mu};
use gumball_spec::watermark::Words;
use gumball_spec::{Error, Forced, Kind, Result, Row};

use crate::{History, Prepared};

/// Which of the independent draws: the fields that a Philox counter holds besides its index and its tag.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The seed.
    pub seed: u64,
    /// The position.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
    /// The tags of tiles and of tokens.
    pub tags: Tags,
}

/// The request that a row is drawn for, with its state at that row.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The kind of the row's numbers.
    pub kind: Kind,
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
    /// Mirostat's limit, in bits, or the mean of adaptive-p; a number below +inf.
    pub mu: f32,
    /// The grammar bitmask: bit `id % 32` of word `id / 32` allows an id; missing words forbid.
    pub mask: Option<&'a [u32]>,
    /// The token that is emitted instead of the drawn one.
    pub forced: Option<Forced>,
}

impl Task<'_> {
    /// Returns what its random words depend on.
    pub(crate) fn stream(&self) -> Stream {
        let own = Words { seed: self.seed, position: self.position, draw: self.draw };
        let Words { seed, position, draw } = self.mark().unwrap_or(own);
        Stream { seed, position, draw, tags: TAGS }
    }

    /// Returns the words of its mark, if its token is drawn by these (W2).
    pub(crate) fn mark(&self) -> Option<Words> {
        let mark = self.prepared.mark(self.history.ids(), self.history.prompt().len());
        mark.filter(|_| self.emitted().is_none())
    }

    /// Returns the token that is emitted instead of the drawn one: the task's own, or the one that the end of
    /// a section or of a loop forces.
    #[must_use]
    pub fn emitted(&self) -> Option<Forced> {
        self.forced.or_else(|| self.history.ending(self.prepared).emitted())
    }

    /// Returns what a row of this kind is called where it is a parameter.
    fn row_name(&self) -> &'static str {
        match self.kind {
            Kind::Logits => "logits",
            Kind::Probabilities => "probabilities",
        }
    }

    /// Checks the length of a row.
    pub(crate) fn check_length(&self, parameter: &'static str, length: usize) -> Result<()> {
        match self.prepared.vocab() {
            vocab if length == vocab => Ok(()),
            vocab => Err(Error::length(parameter, length, format!("{vocab} ids"))),
        }
    }

    /// Checks what comes with the row.
    pub(crate) fn validate(&self, row: Row<'_>, hooked: bool) -> Result<()> {
        let vocab = self.prepared.vocab();
        self.check_length(self.row_name(), row.vocab())?;
        self.prepared.params().check_kind(self.kind)?;
        check_hook(self.kind, hooked)?;
        check_forced(self.forced.map(|forced| forced.id), vocab)?;
        check_mu(self.mu)
    }
}
