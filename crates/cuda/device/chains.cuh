// chains.cuh: chains of drafts: what they hand to their kernels, and which of their drafts stand (rule S4).
//
// Computes   for each draft whether it is accepted; where its chain ends, and what the last token is drawn from
// Traffic    a draft's id, and its two probabilities
// Twins      definition spec/src/verify.rs, src/abi.rs for the argument | why docs/stages/verify.md
// Requires   whole warps, all threads of the block
#pragma once

#include "arrival.cuh"
#include "warp.cuh"

// Bits of Chains::flags.
enum ChainFlags : u32 {
    // What has 64 bits instead of 32.
    CHAIN_WIDE_DRAFTS = 1,
    CHAIN_WIDE_TOKENS = 2,
    CHAIN_WIDE_SEEDS = 4,
    CHAIN_WIDE_POSITIONS = 8,
    CHAIN_WIDE_DRAWS = 16,
    // A chain's draw index is its own number.
    CHAIN_OWN_DRAWS = 32,
    // Counts are added to what is there.
    CHAIN_ADDS = 64,
    // Columns that have a number for each chain, and not one for all.
    CHAIN_EACH_SEED = 128,
    CHAIN_EACH_POSITION = 256,
    CHAIN_EACH_DRAW = 512,
    // The high words of positions move the seeds, as PREPARE_OFFSETS has it.
    CHAIN_OFFSETS = 1024,
    // A chain whose last row has no token ends with 0.
    CHAIN_ZERO_TOKENS = 2048,
};

// Chains of `length` drafts each. Strides are in elements: from chain to chain, and from row to row.
struct Chains {
    // [chains, length, vocab]
    const float* draft_probs;
    u64 draft_stride;
    u64 draft_row_stride;
    // [chains, length + 1, vocab]
    const float* target_probs;
    u64 target_stride;
    u64 target_row_stride;
    // [chains, length]
    const void* drafts;
    u64 drafts_stride;
    // [chains, length + 1]
    void* tokens;
    u64 tokens_stride;
    // [chains] each; null: nobody asks.
    u32* accepted;
    u32* emitted;
    u32* statuses;
    // [chains] or one number each; null: what follows is that of all.
    const void* seeds;
    const void* positions;
    const void* draws;
    u64 seed;
    u32 position;
    u32 draw;
    // [chains, tiles]
    Record* records;
    u32 length;
    u32 vocab;
    u32 tiles;
    u32 blocks_per_chain;
    // How many tiles a warp of the survey takes.
    u32 per_warp;
    u32 flags;
    // The number of the first chain.
    u32 first;
    u32 reserved;
};

// One of a column's numbers, or that of all chains.
DEVICE u64 number_of(const void* column, bool wide, u32 place, u64 of_all) {
    return !column ? of_all : wide ? ((const u64*)column)[place] : ((const u32*)column)[place];
}

// The draws of a chain, at the position of its first row.
DEVICE Stream stream_of(const Chains& chains, u32 chain) {
    u32 flags = chains.flags, draw = flags & CHAIN_OWN_DRAWS ? chains.first + chain : chains.draw;
    u32 seed = flags & CHAIN_EACH_SEED ? chain : 0, position = flags & CHAIN_EACH_POSITION ? chain : 0;
    u64 place = number_of(chains.positions, flags & CHAIN_WIDE_POSITIONS, position, chains.position);
    return Stream{number_of(chains.seeds, flags & CHAIN_WIDE_SEEDS, seed, chains.seed) +
                      (flags & CHAIN_OFFSETS ? seed_of_offset(place) : 0),
                  (u32)place,
                  (u32)number_of(chains.draws, flags & CHAIN_WIDE_DRAWS, flags & CHAIN_EACH_DRAW ? chain : 0, draw)};
}

DEVICE i64 draft_of(const Chains& chains, u32 chain, u32 j) {
    u64 place = chain * chains.drafts_stride + j;
    return chains.flags & CHAIN_WIDE_DRAFTS ? ((const i64*)chains.drafts)[place] : ((const int*)chains.drafts)[place];
}

DEVICE const float* draft_row(const Chains& chains, u32 chain, u32 j) {
    return chains.draft_probs + chain * chains.draft_stride + j * chains.draft_row_stride;
}

DEVICE const float* target_row(const Chains& chains, u32 chain, u32 j) {
    return chains.target_probs + chain * chains.target_stride + j * chains.target_row_stride;
}

// A probability as it counts in a difference: 0 for NaN and what is below it, the largest float for infinity (P1).
DEVICE float counted(float p) { return p > 0.0f ? fminf(p, LARGEST) : 0.0f; }

// The end of a chain whose drafts are all accepted by themselves.
#define ENDLESS 0xFFFFFFFFu

// Where a chain would end by a draft: twice its number, and 1 more if a token of the residual takes its place; ENDLESS if it is
// accepted.
DEVICE u32 end_by(const Chains& chains, const Stream& stream, u32 chain, u32 j) {
    i64 id = draft_of(chains, chain, j);
    if (id < 0 || id >= chains.vocab) {
        return 2 * j;
    }
    float q = counted(draft_row(chains, chain, j)[id]), p = counted(target_row(chains, chain, j)[id]);
    u32 word = philox(stream.seed, 0, stream.position + j, TAG_ACCEPT, stream.draw).w[0];
    float u = u64_to_float(2 * (u64)word + 1) * bits_float((127 - 33) << 23);
    if (q == 0.0f) {
        return 2 * j;
    }
    return (p >= q) | (u * q < p) ? ENDLESS : 2 * j + 1;
}

// What acceptance says of a chain.
struct Judged {
    // How many drafts would be accepted if each were judged by itself.
    u32 accepted;
    // How many drafts are emitted: the number of the row that the last token comes from.
    u32 emitted;
    bool rejected;
};

// Judges a chain; the same in every thread. Once a kernel.
DEVICE Judged judge(const Chains& chains, const Stream& stream, u32 chain) {
    __shared__ u32 ends[32], counts[32];
    u32 end = ENDLESS, accepted = 0, length = chains.length;
#pragma unroll 1
    for (u32 j = threadIdx.x; j - lane_id() < length; j += blockDim.x) {
        u32 own = j < length ? end_by(chains, stream, chain, j) : 2 * j;
        accepted += own == ENDLESS;
        end = own < end ? own : end;
    }
    end = __reduce_min_sync(ALL_LANES, end);
    accepted = __reduce_add_sync(ALL_LANES, accepted);
    if (lane_id() == 0) {
        ends[warp_id()] = end;
        counts[warp_id()] = accepted;
    }
    // Without it a warp reads what others have not said yet.
    __syncthreads();
    end = __reduce_min_sync(ALL_LANES, lane_id() < warps() ? ends[lane_id()] : ENDLESS);
    accepted = __reduce_add_sync(ALL_LANES, lane_id() < warps() ? counts[lane_id()] : 0);
    end = end < 2 * length ? end : 2 * length;
    return Judged{accepted, end / 2, (end & 1) != 0};
}

// The draws of the chain's last token.
DEVICE LastStream stream_of_last(const Stream& stream, const Judged& judged) {
    return LastStream{{stream.seed, stream.position + judged.emitted, stream.draw}, judged.rejected};
}
