//! Chunks: how many rows a step surveys and ends at a time, so that one chunk ends while the next is surveyed.
//!
//! A survey is bound by memory's bandwidth, the end of a row by its latency. So the launches of a step are S1 F1 S2 F2 and
//! so on, each begun as soon as all blocks of the one before have: S2's blocks fill the device as S1's leave it, beside F1's,
//! which are few and mostly wait.
//!
//! Who waits for whom: a kernel that waits, waits for the one launched before it, and no other. F1 waits for S1. S2 needs
//! nothing of F1 and begins beside it, but its last block ends after F1 has (`last_block_waits_for_previous`). So F2, which
//! waits for S2, is done only after F1 is, and what comes after F2 comes after all: on a stream and in a captured graph
//! alike, whose edges join neighbours only. S1 itself is launched plainly, after all of the step before. Nobody waits in
//! vain: S2 begins once all blocks of F1 run, and F1 once all of S1 do.

use crate::variant::Needs;

/// Returns how many rows a step takes at a time: a pure function of the device, the number of rows and what they need. All,
/// until it is measured what pays.
pub(crate) fn rows_at_a_time(multiprocessors: u32, rows: usize, needs: Needs) -> usize {
    let _ = (multiprocessors, needs);
    rows
}
