//! The argument of the kernels that begin and end a step of drafts: `device/abi/drafts.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;
use crate::abi::step::Step;

shared! {
    /// the argument of the kernels of drafts.cu, and what these kernels and the host must agree on.
    ///
    /// Requires   pointers are aligned to their types
    header DRAFTS = "abi/drafts.cuh" includes "abi/step.cuh";

    constants {
        /// The most drafts of a request.
        MAX_DRAFTS: usize = gumball_spec::verify::MAX_DRAFTS;

        /// The most threads of a block of begin_drafts, which copies lists, and the threads of a block of end_drafts.
        BEGIN_DRAFTS_THREADS: u32 = 512;
        END_DRAFTS_THREADS: u32 = 128;

        /// In `DraftStep::path`: a row that no token was emitted for.
        NO_ROW: u32 = u32::MAX;
    }

    /// A request of a step of drafts. The host writes it when it assigns the request to rows.
    struct DraftRequest align(16) {
        /// The request's stop ids.
        stop_ids: (const u32*);
        stop_count: u32;
        /// The request's first row, which stands at the end of its history, and how many drafts have a row behind it.
        first_row: u32;
        draft_count: u32;
        reserved: [u32; 3];
    }

    /// A row of a step of drafts. The host writes it together with the row's `DraftRequest`.
    struct DraftRow align(16) {
        /// Memory for what the row has of its own of those lists of its request that the tokens on its path change: see
        /// `share_entries` and `copy_lists` in drafts.cu. Null if there are none.
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
    }

    /// The argument of begin_drafts and end_drafts.
    struct DraftStep {
        /// The step over the rows: begin_drafts makes what its `slots`, `params`, `requests` and `states` point to, which
        /// are indexed by row. Its rows do not advance their requests.
        step: Step;
        /// The drafts of all requests, one request after the other.
        ids: (const void*);
        /// The parent of each draft, counted within its request. Null: each draft follows the one before it.
        parents: (const void*);
        /// `[requests]`
        requests: (const DraftRequest*);
        /// `[requests]`: the slot of each; -1 is padding.
        slots: (const int*);
        /// `[requests]`: parameters at temperature 0, without seed and draw index. Null: rows take those of the slots.
        greedy_params: (const Params*);
        /// `[rows]`
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
        /// `[rows]`: the rows that a request's emitted tokens come from, at its first rows; `NO_ROW` at the others.
        path: (u32*);
        /// `[requests]`: how many drafts were accepted.
        accepted: (u32*);
        flags: u32;
        reserved: u32;
    }
}
