//! The argument of the kernels that begin and end a step of drafts: `abi/drafts.cuh` is generated from this
//! file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;
use crate::abi::step::Step;

// 32 bits number the words of a request's rows.
const _: () = assert!((MAX_DRAFTS as u64 + 1) * (8 + 4 * gumball_spec::MAX_VOCAB as u64) < 1 << 32);

shared! {
    /// the argument of the kernels of drafts.cu, and what these kernels and the host must agree on.
    ///
    /// Requires   pointers are aligned to their types
    header DRAFTS = "abi/drafts.cuh" includes "abi/operators.cuh";

    constants {
        /// The most drafts of a request.
        MAX_DRAFTS: usize = gumball_spec::verify::MAX_DRAFTS;

        /// The most threads of a block of begin_drafts, which copies lists, and the threads of a block of
        /// end_drafts.
        BEGIN_DRAFTS_THREADS: u32 = 512;
        END_DRAFTS_THREADS: u32 = 128;

        /// The threads of a block of parents_of_links: at least one for each row of a request.
        PARENTS_OF_LINKS_THREADS: u32 = 96;

        /// The most threads of a block of draft_race.
        DRAFT_RACE_THREADS: u32 = 512;

        /// The threads of a block of shorten_requests.
        SHORTEN_THREADS: u32 = 128;

        /// The threads of a block of copy_drafts.
        COPY_DRAFTS_THREADS: u32 = 128;

        /// The threads of a block of edit_rows.
        EDIT_ROWS_THREADS: u32 = 256;

        /// In `DraftStep::path`: a row that no token was emitted for.
        NO_ROW: u32 = u32::MAX;
    }

    /// A request of a step of drafts. The host writes it when it assigns the request to rows.
    struct DraftRequest align(16) {
        /// The request's stop ids.
        stop_ids: (const u32*);
        stop_count: u32;
        /// The request's first row, which stands at the end of its history, and how many drafts have a row
        /// after it.
        first_row: u32;
        draft_count: u32;
        /// Where the request's drafts begin among those of the batch, and its rows among links and the
        /// drafter's rows: the batch may have its requests in another order than the assignment.
        first_draft: u32;
        batch_row: u32;
        reserved: u32;
    }

    /// A row of a step of drafts. The host writes it together with the row's `DraftRequest`.
    struct DraftRow align(16) {
        /// Memory for what the row has of its own of those lists of its request that the tokens on its path
        /// change: see `share_entries` and `copy_lists` in drafts.cu. Null if there are none.
        lists: (TokenEntry*);
        /// The index of the row's request.
        request: u32;
        reserved: u32;
    }

    /// Bits of `DraftStep::flags`.
    bits draft_flags = DraftFlags "DRAFTS_" {
        /// Elements have 64 bits instead of 32.
        IDS_I64 = 1 << 0;
        PARENTS_I64 = 1 << 1;
        /// Drafts are judged by probabilities: rows that judge_requests made padding are not on the walk.
        JUDGED = 1 << 2;
        /// They are judged as a block: they must be chains, and rows after stop ids are read as well.
        BLOCK = 1 << 3;
        /// Rows are those of a draft model, and drafts are drawn from them: each row has a request of its own
        /// and follows all of that one's drafts, of which the row r finds its own from element
        /// `r * path_stride` on.
        PROPOSED = 1 << 4;
        /// The outputs that end_drafts reads are those of the whole batch, in its order, and ranks wrote
        /// them: a row may be missing.
        IN_BATCH = 1 << 5;
        /// The survey sums the rows' weights at their own temperature: they are judged by their logits.
        SUMMED = 1 << 6;
    }

    /// Bits of `DraftLinks::flags`.
    bits link_flags = LinkFlags "LINKS_" {
        /// Elements have 64 bits instead of 32.
        FIRST_CHILD_I64 = 1 << 0;
        NEXT_SIBLING_I64 = 1 << 1;
    }

    /// Bits of `ShortenRequests::flags`.
    bits shorten_flags = ShortenFlags "SHORTEN_" {
        /// Counts have 64 bits instead of 32.
        COUNTS_I64 = 1 << 0;
    }

    /// The argument of shorten_requests.
    struct ShortenRequests {
        /// `[requests]`: the slot of each; -1 is padding.
        slots: (const int*);
        /// `[requests]`: how many output tokens to take away.
        counts: (const void*);
        /// Indexed by slot.
        slot_params: (const Params*);
        slot_requests: (const Request*);
        slot_states: (State*);
        /// `[requests]`: how many were taken away.
        taken: (u32*);
        flags: u32;
        reserved: u32;
    }

    /// Bits of `DraftCopy::flags`.
    bits copy_flags = CopyFlags "COPY_" {
        /// The ids that are written have 64 bits instead of 32.
        IDS_I64 = 1 << 0;
    }

    /// The argument of copy_drafts.
    struct DraftCopy {
        /// `[rows, siblings]`
        drafts: (const int*);
        /// The first id to write of the first row; rows are `stride` ids apart.
        to: (void*);
        stride: u64;
        rows: u32;
        siblings: u32;
        flags: u32;
        reserved: u32;
    }

    /// The argument of parents_of_links.
    struct DraftLinks {
        /// `[rows]`: the row of its request that is the first child of a row, and the next sibling; -1 for
        /// none.
        first_child: (const void*);
        next_sibling: (const void*);
        /// `[requests]`: those whose links are read.
        requests: (const DraftRequest*);
        /// The parent of each draft, as in `DraftStep::parents`; -2 for all drafts of a request whose links
        /// are no tree.
        parents: (int*);
        flags: u32;
        reserved: u32;
    }

    /// The argument of begin_drafts and end_drafts.
    struct DraftStep {
        /// The step over the rows: begin_drafts makes what its `slots`, `params`, `requests` and `states`
        /// point to, which are indexed by row. Its rows do not advance their requests. It may be over a part
        /// of the assigned rows, whole requests of them: then it numbers its rows, and its requests in
        /// `accepted`, from 0.
        step: Step;
        /// The drafts of all requests, one request after the other.
        ids: (const void*);
        /// The parent of each draft, counted within its request. Null: each draft follows the one before it.
        parents: (const void*);
        /// `[assigned requests]`
        requests: (const DraftRequest*);
        /// `[assigned requests]`: the slot of each; -1 is padding, which end_drafts makes of requests whose
        /// walk lacks a row.
        slots: (int*);
        /// `[assigned requests]`: parameters at temperature 0, without seed and draw index. Null: rows take
        /// those of the slots.
        greedy_params: (const Params*);
        /// `[assigned rows]`
        rows: (const DraftRow*);
        /// Indexed by slot.
        slot_params: (const Params*);
        slot_requests: (const Request*);
        slot_states: (State*);
        /// `[rows]`: those that `step` reads.
        row_slots: (int*);
        row_params: (Params*);
        row_requests: (Request*);
        row_states: (State*);
        /// `[rows]`: the row itself where drafts are judged by its probabilities, else -1. Null if none are
        /// judged so.
        judged_slots: (int*);
        /// `[rows]`: the rows that a request's emitted tokens come from, at its first rows; `NO_ROW` at the
        /// others.
        path: (u32*);
        /// `[requests]`: how many drafts were accepted. It is in the order of the batch where the outputs
        /// are.
        accepted: (u32*);
        flags: u32;
        /// Elements from the path of a row to that of the next, with `PROPOSED`.
        path_stride: u32;
        /// The first of the assigned rows, and of the assigned requests, that the step is over.
        first_row: u32;
        first_request: u32;
    }
    /// The argument of draft_race, which draws drafts from the rows of a draft model.
    struct DraftRace {
        /// The step over the rows; the kernels before have made their requests and records.
        step: Step;
        /// `[rows]`
        requests: (const DraftRequest*);
        /// `[rows, siblings]`: the drafts of each row, the first to arrive first; -1 where there are no more.
        drafts: (int*);
        siblings: u32;
        /// Whether the drafts are to be judged as a block, so that they are drawn by words of their own: 0 or
        /// 1.
        are_of_blocks: u32;
    }

    /// The argument of edit_rows, which writes the rows of a step under their edits.
    struct EditRows {
        /// Rows without a slot are not written.
        step: Step;
        /// `[rows, vocab]`, with rows that begin at multiples of 16 bytes.
        out: (float*);
        /// Elements from the start of a row to the start of the next.
        out_stride: u64;
        /// Blocks of a row, and the most tiles that each of them has.
        blocks_per_row: u32;
        tiles_per_block: u32;
    }

    /// The argument of judge_requests.
    struct JudgeRequests {
        /// `step.forced` is the address of `forced` below.
        drafts: DraftStep;
        /// `[rows, vocab]`: the target's rows of the step, probabilities or logits as `target` says. Of
        /// logits the survey has written the records, `step.records`.
        target_rows: (const void*);
        /// `[rows]`: the cuts of rows of logits. Null: the rows have no filters, and the survey has summed
        /// their weights for `step.logprob_sums`.
        cuts: (const RowCut*);
        /// `[rows of the batch, vocab]`: the drafter's; null if it has none.
        draft_probs: (const float*);
        /// Elements from the start of a row to the start of the next.
        target_stride: u64;
        draft_stride: u64;
        /// `[rows]`: the tokens that the caller forces, -1 for none.
        caller_forced: (const int*);
        /// `[rows]`: the tokens to emit.
        forced: (int*);
        /// Scratch memory of 16 bytes an element, `scratch_stride` for each row of the step. A request with
        /// drafts has two rows at least, and takes the records of its first row, and from its first row on
        /// two sums for each tile.
        records: (TileRecord*);
        tile_sums: (TileSum*);
        scratch_stride: u64;
        /// In units of 2^-32.
        threshold_acc: u64;
        threshold_single: f32;
        /// One of JudgeRule.
        rule: u32;
        /// One of JudgeTarget.
        target: u32;
        reserved: u32;
    }
}
