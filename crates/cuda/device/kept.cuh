// kept.cuh: what is kept of a row that is to be written, and how its numbers are written.
//
// Twins      src/abi.rs
// Requires   kept [rows]
#pragma once

#include "cut.cuh"
#include "softmax.cuh"

// Bits of Kept::flags.
enum KeptFlags : u32 {
    // Nothing is kept.
    KEPT_NOTHING = 1,
    // The first token takes all, as at temperature 0.
    KEPT_CERTAIN = 2,
    // The first token kept is the row's.
    KEPT_PREFIX = 4,
    // What is kept is written, and so is all else.
    KEPT_WRITTEN = 8,
};

// What is kept of a row.
struct alignas(16) Kept {
    u64 first;
    u64 last;
    // Relative to the first token kept, at the scale; where probabilities are written.
    u64 mass;
    float s;
    u32 flags;
};

// What a row's kept tokens share out among them, in units of the first one's weight.
DEVICE float sum_of(const Kept& kept) { return u64_to_float(kept.mass) * bits_float((127 - 43) << 23); }

// The probability of a kept token, by its clean number (P4).
DEVICE float probability_of(float z, const Kept& kept) {
    if (kept.flags & KEPT_CERTAIN) {
        return 1.0f;
    }
#if GUMBALL_PROBABILITIES
    return (z / key_logit(kept.first)) / sum_of(kept);
#else
    return exp2_rule((z - key_logit(kept.first)) * kept.s) / sum_of(kept);
#endif
}

// Rows to be found out about. Where the survey filled the rows to be written, those are written at once whose kept tokens are listed.
struct Keep {
    Step step;
    Kept* kept;
    // Whether rows are masked, so that nobody asks for the mass.
    u32 masks;
    u32 reserved;
};

// Rows to be written, once it is known what is kept of them.
struct Emit {
    const void* logits;
    void* out;
    // In elements, between rows.
    u64 stride;
    u64 out_stride;
    const Record* records;
    const Kept* kept;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Into how many blocks a row is cut, and how many tiles each of them has at most.
    u32 blocks_per_row;
    u32 share;
    u32 masks;
};
