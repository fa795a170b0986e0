//! How rows are spread over ranks, what a step over them exchanges, and why an exchange fails.

use crate::abi::{self, MAX_RANKS};
use crate::pipeline::messages::Mail;

/// The most ranks that take steps under [`ExchangeLayout::Survey`].
pub const MAX_SURVEYED_RANKS: usize = abi::MAX_SURVEYED_RANKS;

/// Which rows the ranks have before a step, and which they sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeLayout {
    /// Each rank has a part of each row, and samples all rows.
    Gather,
    /// Each rank has a part of each row, and samples its own rows.
    Swap,
    /// Each rank has a part of each row, and looks for what decides there. Rows that this does not serve are
    /// swapped.
    Survey,
    /// Each rank has its own rows, whole, and samples them.
    Replicated,
}

/// How the rows of a batch are spread over the ranks.
#[derive(Clone, Copy, Debug)]
pub struct RankRows<'a> {
    /// What the ranks have and sample.
    pub layout: ExchangeLayout,
    /// The first of the assigned rows that each rank owns, and the number of rows: one more than there are
    /// ranks, ascending.
    pub first_rows: &'a [usize],
    /// The first of the assigned requests of each rank, and the number of requests. In a step each row is a
    /// request.
    pub first_requests: &'a [usize],
    /// The first id of each rank's part, and the size of the vocabulary.
    pub first_ids: &'a [usize],
}

/// Why an exchange failed. No later one of these windows succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeFailure {
    /// A rank did not signal within the timeout.
    TimedOut {
        /// The rank.
        rank: usize,
    },
    /// The host has given a rank up that had gone.
    GivenUp {
        /// The rank.
        rank: usize,
    },
    /// A rank sent a token outside the vocabulary, or the walk of a verification that is none.
    Corrupt {
        /// The rank.
        rank: usize,
    },
    /// A rank takes another step.
    OtherStep {
        /// The rank.
        rank: usize,
        /// The digest of this rank's step.
        ours: u32,
        /// That of the other rank's.
        theirs: u32,
    },
}

/// What a step exchanges: the arguments of the kernels.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub layout: ExchangeLayout,
    /// The first of the assigned rows of each rank, and the end of the last's.
    pub first_rows: [u32; MAX_RANKS + 1],
    /// None if no rows travel, or they do in messages.
    pub rows: Option<abi::SendRows>,
    pub results: abi::SendResults,
    /// What travels in messages, if devices do not write each other's windows.
    pub mail: Option<Box<Mail>>,
    /// The argument of the kernels of `shards.cu`, under `Survey`. If these kernels end all rows of the step,
    /// no other kernel is launched.
    pub shards: Option<abi::ShardStep>,
}
