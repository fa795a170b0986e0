//! The argument of the kernels that compute logprobs of given ids over given sets, and their gradient:
//! `abi/given.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use gumball_spec::logprobs::gradient;

use crate::abi::header::shared;

shared! {
    /// the argument of the kernels of given_logprobs.cu, and the numbers that these kernels share with the
    /// host.
    ///
    /// Requires   pointers are aligned to their types
    header GIVEN = "abi/given.cuh" includes "abi/operators.cuh";

    constants {
        /// The most threads of a block: a block takes a row.
        GIVEN_THREADS: u32 = 256;
        /// The most ids that a call asks for in a row.
        MAX_GIVEN_IDS: u32 = gradient::MAX_GIVEN_IDS as u32;
        /// The weights of a row's members are three numbers: the largest logit, the mass and the mean
        /// distance.
        WEIGHED_NUMBERS: u32 = gradient::WEIGHED_NUMBERS as u32;
        /// Bytes of dynamic shared memory for each tile of a row: two sums and a maximum.
        GIVEN_TILE_BYTES: u32 = 20;
    }

    /// Bits of `GivenArgs::flags`.
    bits given_flags = GivenFlags "GIVEN_" {
        /// Ids have 64 bits instead of 32.
        IDS_I64 = 1 << 0;
        /// There is one id for all rows.
        ONE_ID = 1 << 1;
    }

    /// The argument of given_logprobs and given_gradient.
    struct GivenArgs {
        logits: (const void*);
        /// For the gradient: at the logits' address (in place), or in memory that does not overlap the
        /// logits.
        out: (void*);
        /// Elements from the start of a row to the start of the next.
        stride: u64;
        out_stride: u64;
        /// `[rows, width]`, or one.
        ids: (const void*);
        /// `[rows, kept_words]`: the sets as bitmasks, `kept_stride` words apart; null: all ids.
        kept: (const u32*);
        kept_stride: u64;
        /// `[rows]`, `temperature_stride` elements apart; one for all rows if that is 0. Null: `temperature`
        /// applies to all rows.
        temperatures: (const float*);
        /// `[rows, width]`, `[rows]`, which may be null, and `[rows, WEIGHED_NUMBERS]`.
        logprobs: (float*);
        entropies: (float*);
        weighed: (float*);
        /// `[rows, width]` and `[rows]`: derivatives of a loss by logprobs and entropies; the latter may be
        /// null: 0.
        of_logprobs: (const float*);
        of_entropies: (const float*);
        vocab: u32;
        tiles: u32;
        width: u32;
        kept_words: u32;
        ignored: i32;
        flags: u32;
        temperature: f32;
        temperature_stride: u32;
    }
}
