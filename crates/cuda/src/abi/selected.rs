//! The argument of the kernels around a step whose tokens are given, for their logprobs: `abi/selected.cuh`
//! is generated from this file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;
use crate::abi::step::Params;

shared! {
    /// the argument of the kernels of selected_logprobs.cu, and what these kernels and the host must agree
    /// on.
    ///
    /// Requires   pointers are aligned to their types
    header SELECTED = "abi/selected.cuh" includes "abi/step.cuh";

    constants {
        /// The threads of a block of select_tokens and of write_selected: one thread per row.
        SELECTED_THREADS: u32 = 128;

        /// The status of a row whose token is no id of the vocabulary.
        STATUS_NO_ID: u32 = gumball_spec::Status::NO_ID.0;
    }

    /// Bits of `SelectedTokens::flags`.
    bits selected_flags = SelectedFlags "SELECTED_" {
        /// Tokens have 64 bits instead of 32.
        TOKENS_I64 = 1 << 0;
        /// There is one token for all rows.
        ONE_TOKEN = 1 << 1;
    }

    /// The argument of select_tokens and write_selected: a token for each of `rows` rows.
    struct SelectedTokens align(16) {
        /// The parameters of every row's request.
        base: Params;
        /// `[rows]` or one.
        tokens: (const void*);
        /// `[rows]`: the requests that select_tokens writes and the step reads.
        params: (Params*);
        states: (State*);
        slots: (int*);
        forced: (int*);
        /// The outputs of the step over these rows.
        outputs: (const u32*);
        /// `[rows]` each; ranks and statuses may be null, and are not written then.
        logprobs: (float*);
        ranks: (u32*);
        statuses: (u32*);
        rows: u32;
        vocab: u32;
        flags: u32;
        reserved: [u32; 3];
    }
}
