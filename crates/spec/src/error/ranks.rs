//! What can go wrong between ranks, besides a caller's mistake.

use std::time::Duration;

use super::{Error, quoted};

/// Why a group of ranks could not do what was asked. No sequence was changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RanksError {
    /// A rank ended, or its connection broke.
    #[error("rank {rank} is gone: {reason}")]
    Lost {
        /// The rank.
        rank: usize,
        /// The system's message.
        reason: String,
    },
    /// A rank did not answer in time.
    #[error("rank {rank} sent nothing for {waited:?}")]
    Late {
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
        /// The other rank's value.
        theirs: String,
    },
    /// The program wanted to wait no longer.
    #[error("the wait for other ranks was interrupted")]
    Interrupted,
    /// A rank sent what no rank of this version sends.
    #[error("rank {rank} sent {what}")]
    Corrupt {
        /// The rank.
        rank: usize,
        /// Its defect.
        what: String,
    },
    /// A transport or a layout cannot be used here.
    #[error("no {what}: {reason}")]
    Unavailable {
        /// The part that is unavailable.
        what: String,
        /// Why there is none, and what to do instead.
        reason: String,
    },
    /// An earlier exchange failed, and ranks may be at different steps since.
    #[error("this group broke at an earlier exchange: {0}")]
    Broken(Box<Error>),
}

impl RanksError {
    /// Makes a [`RanksError::Disagree`], with the other rank's value as [`quoted`] shows it.
    #[must_use]
    pub fn disagree(rank: usize, what: &'static str, ours: impl ToString, theirs: impl ToString) -> Self {
        let theirs = quoted(theirs.to_string().as_bytes(), MOST_QUOTED);
        Self::Disagree { rank, what, ours: ours.to_string(), theirs }
    }

    /// Returns the rank that an error of an exchange speaks of.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Lost { rank, .. } | Self::Late { rank, .. } => Some(*rank),
            Self::Disagree { rank, .. } | Self::Corrupt { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// The most characters of a rank's text that an error shows.
const MOST_QUOTED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_says_is_shown_without_control_characters_and_cut() {
        assert_eq!(quoted("[0, 5, 10] höher".as_bytes(), 64), "[0, 5, 10] höher");
        assert_eq!(quoted(b"race\0\x1b[2J\n", 64), "race\\u{0}\\u{1b}[2J\\u{a}");
        // Bytes that are no text, and characters that turn the text around.
        assert_eq!(quoted("\u{202e}".as_bytes(), 64), "\\u{202e}");
        assert_eq!(quoted(b"\xff", 64), "\\u{fffd}");
        let long = RanksError::disagree(1, "route", "race", "x".repeat(1 << 20)).to_string();
        assert_eq!(long, format!("rank 1 disagrees on route: it has {}.., this rank race", "x".repeat(64)));
    }

    #[test]
    fn the_texts_stay_as_they_are() {
        let lost = RanksError::Lost { rank: 1, reason: "it ended".to_owned() };
        let (ours, theirs) = ("race".to_owned(), "oracle".to_owned());
        let corrupt = RanksError::Corrupt { rank: 3, what: "outputs that are none".to_owned() };
        let unavailable =
            RanksError::Unavailable { what: "pool".to_owned(), reason: "it was closed".to_owned() };
        for (error, text) in [
            (lost.clone(), "rank 1 is gone: it ended"),
            (RanksError::Late { rank: 2, waited: Duration::from_millis(30) }, "rank 2 sent nothing for 30ms"),
            (
                RanksError::Disagree { rank: 1, what: "route", ours, theirs },
                "rank 1 disagrees on route: it has oracle, this rank race",
            ),
            (RanksError::Interrupted, "the wait for other ranks was interrupted"),
            (corrupt, "rank 3 sent outputs that are none"),
            (unavailable, "no pool: it was closed"),
            (
                RanksError::Broken(Box::new(lost.into())),
                "this group broke at an earlier exchange: rank 1 is gone: it ended",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
