//! The argument of the kernels that pack the kept sets of a step: `abi/kept.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;

shared! {
    /// the argument of the kernels of pack_kept.cu.
    ///
    /// Requires   pointers are aligned to their types, `bits` to 16 bytes
    header KEPT = "abi/kept.cuh" includes "platform/portability.cuh";

    constants {
        /// The threads of a block: a block takes a row.
        PACK_KEPT_THREADS: u32 = 256;
    }

    /// The argument of count_kept and pack_kept.
    struct PackKept {
        /// `[rows, stride]`: the sets, a bit per id. Words of a row from `words` to the next multiple of 4
        /// are 0.
        bits: (const u32*);
        /// `[rows]`: how many ids each row has.
        lengths: (u32*);
        /// Of each row its ids, or, if these are more than `words`, its first `words` of `bits`.
        packed: (u32*);
        /// A multiple of 4.
        stride: u32;
        words: u32;
    }
}
