//! Where a head's work goes: to the thread that asks, or over rayon's.

/// The threads that rows of weights go over. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// The thread that asks. Nothing is allocated.
    #[default]
    Caller,
    /// The rayon pool that the caller runs in, or the global one.
    Rayon,
}

/// How many bytes of weights a piece of work has, about: as many as a core's second-level cache holds beside
/// its hidden states.
const PIECE_BYTES: usize = 1 << 18;

/// Returns how many rows of weights make a piece of work.
pub(crate) fn rows_of_piece(row_bytes: usize) -> usize {
    (PIECE_BYTES / row_bytes.max(1)).clamp(4, 1 << 12).next_multiple_of(4)
}
