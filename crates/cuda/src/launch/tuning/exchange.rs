//! How many blocks exchange rows and results between devices.

use gumball_spec::layout::{Layout, Widths};

use crate::abi::{
    DIGEST_DRAFTS_THREADS, DIGEST_RUN_WORDS, DigestDrafts, SEND_RESULTS_THREADS, SEND_ROWS_MOST_BLOCKS,
    SEND_ROWS_THREADS, SendResults, SendRows,
};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Grid;
use crate::launch::Launch;
use crate::launch::tuning::WARP;
use crate::programs::kernels::{DIGEST_DRAFTS, SEND_RESULTS, SEND_ROWS};

/// The blocks of `send_rows` on a multiprocessor.
const BLOCKS_PER_SM: usize = 4;

/// The bytes of a row that a block of `send_rows` sends at a time. A thread has at most 64 of them in flight,
/// and 16 at least.
const CHUNK_BYTES: [usize; 3] = [4096, 8192, 16384];

/// The words of results that a thread of `send_results` copies, before there are more blocks; and the most
/// blocks.
const WORDS_PER_THREAD: usize = 4;
const MOST_RESULT_BLOCKS: usize = 32;

/// The most blocks of `digest_drafts` that a request has.
const MOST_DIGEST_BLOCKS: usize = 32;

/// Returns how many blocks of `digest_drafts` a request has: a warp reads a few runs of each row of
/// probabilities.
pub(crate) fn digest_blocks(vocab: usize, runs_apart: u32) -> u32 {
    let runs = vocab.div_ceil((DIGEST_RUN_WORDS * runs_apart) as usize);
    let warps = DIGEST_DRAFTS_THREADS as usize / WARP;
    runs.div_ceil(warps).clamp(1, MOST_DIGEST_BLOCKS) as u32
}

/// Returns the launch of `digest_drafts`, before all other kernels of the step.
pub(crate) fn digest_drafts(requests: usize, argument: &DigestDrafts) -> Launch<DigestDrafts> {
    let grid = Grid::new(requests as u32 * argument.blocks, DIGEST_DRAFTS_THREADS);
    Launch::dependent(DIGEST_DRAFTS.kernel(), grid)
}

/// Returns the bytes of a row that a block sends at a time: few enough that all blocks have some, if rows are
/// few.
pub(crate) fn chunk_bytes(limits: &DeviceLimits, rows: usize, row_bytes: usize) -> usize {
    let [.., most] = CHUNK_BYTES;
    let fits = |bytes: &usize| rows * row_bytes.div_ceil(*bytes) <= most_blocks(limits);
    CHUNK_BYTES.into_iter().find(fits).unwrap_or(most)
}

/// Returns the launch of `send_rows`: a block for each chunk, as long as they fit the device. After messages
/// it begins once these have travelled, otherwise by waiting for the kernel before it, whichever that is.
pub(crate) fn send_rows(
    limits: &DeviceLimits,
    argument: &SendRows,
    after_messages: bool,
) -> Launch<SendRows> {
    let chunks = argument.rows as usize * argument.chunks_per_row as usize;
    let grid = Grid::new(chunks.clamp(1, most_blocks(limits)) as u32, SEND_ROWS_THREADS);
    Launch::new(SEND_ROWS.kernel(), grid).dependent_if(!after_messages)
}

fn most_blocks(limits: &DeviceLimits) -> usize {
    (BLOCKS_PER_SM * limits.multiprocessors).clamp(1, SEND_ROWS_MOST_BLOCKS as usize)
}

/// Returns how many words the results of a row have.
pub(crate) fn result_words_per_row(argument: &SendResults) -> usize {
    let widths = Widths { top_n: argument.step.top_n_width as usize, ids: argument.step.ids_width as usize };
    Layout { rows: 1, widths }.words() + usize::from(argument.requests != 0)
}

/// Returns the launch of `send_results`, with the same grid on all ranks: it depends on the rank with the
/// most rows. The kernel follows those of the step, or messages, which have travelled once it begins.
pub(crate) fn send_results(argument: &SendResults, after_messages: bool) -> Launch<SendResults> {
    let words = argument.most_rows as usize * result_words_per_row(argument);
    let blocks = words.div_ceil(WORDS_PER_THREAD * SEND_RESULTS_THREADS as usize);
    let grid = Grid::new(blocks.clamp(1, MOST_RESULT_BLOCKS) as u32, SEND_RESULTS_THREADS);
    Launch::new(SEND_RESULTS.kernel(), grid).dependent_if(!after_messages)
}
