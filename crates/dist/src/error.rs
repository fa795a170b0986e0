//! What can go wrong between ranks, besides a caller's mistake.

use std::time::Duration;

/// Why a group of ranks could not do what was asked. No sequence was changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A caller's mistake, found before anything was sent.
    #[error(transparent)]
    Call(#[from] gumball_spec::Error),
    /// A rank ended, or its connection broke.
    #[error("rank {rank} is gone: {reason}")]
    Lost {
        /// The rank.
        rank: usize,
        /// What the system said.
        reason: String,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} sent nothing for {waited:?}")]
    TimedOut {
        /// The first rank that is late.
        rank: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A rank was started differently, or is at another step.
    #[error("rank {rank} disagrees on {what}: it has {theirs}, this rank {ours}")]
    Disagree {
        /// The rank.
        rank: usize,
        /// What differs.
        what: &'static str,
        /// What this rank has.
        ours: String,
        /// What the other rank has.
        theirs: String,
    },
    /// A rank sent what no rank of this version sends.
    #[error("rank {rank} sent {what}")]
    Corrupt {
        /// The rank.
        rank: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A transport or a layout cannot be used here.
    #[error("no {what}: {reason}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why there is none, and what to do instead.
        reason: String,
    },
    /// An earlier exchange failed, and ranks may be at different steps since.
    #[error("this group broke at an earlier exchange: {0}")]
    Broken(Box<Error>),
}

/// A result of an exchange between ranks.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an [`Error::Disagree`].
    pub(crate) fn disagree(
        rank: usize,
        what: &'static str,
        ours: impl ToString,
        theirs: impl ToString,
    ) -> Self {
        Self::Disagree { rank, what, ours: ours.to_string(), theirs: theirs.to_string() }
    }
}
