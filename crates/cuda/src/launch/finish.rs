//! The kernels that finish a step's rows, and their grid.

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;
use crate::abi::kernels::{
    FINISH_CANDIDATES, FINISH_CANDIDATES_LOGPROB, FINISH_GENERAL, FINISH_SIMPLE, FINISH_SURVEY_DRAW, Kernel,
};
use crate::driver::runtime::{Grid, Runtime};
use crate::launch::work_sharing::WorkSharing;
use crate::requests::variant::Variant;

/// Returns the kernel that finishes a step's rows.
pub(crate) fn finish(kind: Kind, dtype: Dtype, variant: Variant) -> Kernel {
    let kernels = match variant {
        Variant::SurveyDraw => FINISH_SURVEY_DRAW,
        Variant::Simple => FINISH_SIMPLE,
        Variant::Candidates => FINISH_CANDIDATES,
        Variant::CandidatesLogprob => FINISH_CANDIDATES_LOGPROB,
        Variant::General => FINISH_GENERAL,
    };
    kernels.of(kind, dtype)
}

/// Returns the grid of the kernel that finishes rows.
///
/// While rows are no more than SMs, variants up to `CandidatesLogprob` get one thread per tile, because they
/// are bound by latency. That is at least 256 threads and at most twice `threads_per_row`.
/// `CandidatesLogprob` gets one more warp, which draws while the others compute logprobs. From two rows per
/// SM on, blocks wait for each other and have 256 threads. In all other cases a block has `threads_per_row`
/// threads. The candidate kernels take one block per SM while rows are no more than SMs, because two on one
/// SM take longer. All of this is measured.
pub(crate) fn finish_grid(
    runtime: &dyn Runtime,
    rows: u32,
    tiles: u32,
    variant: Variant,
    help: WorkSharing,
) -> Grid {
    let (usual, multiprocessors) = (runtime.threads_per_row(), runtime.multiprocessors());
    let of_many = usual.min(THREADS_OF_MANY);
    let threads = if rows >= 2 * multiprocessors {
        of_many
    } else if variant <= Variant::CandidatesLogprob && rows <= multiprocessors {
        let drawing = if variant == Variant::CandidatesLogprob { 32 } else { 0 };
        (tiles.next_multiple_of(32) + drawing).clamp(of_many, 2 * usual)
    } else {
        usual
    };
    let lists = matches!(variant, Variant::Candidates | Variant::CandidatesLogprob);
    Grid::new(rows + help.blocks, threads)
        .one_block_per_sm(lists && rows <= multiprocessors)
        .co_resident(help.blocks != 0)
}

/// Threads per block from two rows per SM on.
const THREADS_OF_MANY: u32 = 256;
