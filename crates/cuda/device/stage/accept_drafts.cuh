// accept_drafts.cuh: judges the drafts of a chain (rule S4); device functions of a block.
//
// Computes   for each draft whether it is accepted; the row that ends the chain, and whether the last token is drawn
//            from that row's residual
// Traffic    per draft its id and two probabilities
// Twins      definition spec/src/verify.rs | the kernels' argument src/abi/operators.rs | why docs/stages/verify.md
// Requires   whole warps, all threads of the block
#pragma once

#include "abi/operators.cuh"
#include "math/arrival.cuh"
#include "warp/reduce.cuh"

// Returns a column's number at `index`, or `of_all` if there is no column.
DEVICE u64 column_value(const void* column, bool is_u64, u32 index, u64 of_all) {
    return !column ? of_all : is_u64 ? ((const u64*)column)[index] : ((const u32*)column)[index];
}

// Returns a chain's random stream, at the position of the chain's first row.
DEVICE RngStream chain_stream(const Chains& chains, u32 chain) {
    u32 flags = chains.flags, draw = flags & CHAIN_DRAW_IS_INDEX ? chains.first_chain + chain : chains.draw;
    u32 seed = flags & CHAIN_SEED_PER_CHAIN ? chain : 0, position = flags & CHAIN_POSITION_PER_CHAIN ? chain : 0;
    u64 first_position = column_value(chains.positions, flags & CHAIN_POSITIONS_U64, position, chains.position);
    return RngStream{
        column_value(chains.seeds, flags & CHAIN_SEEDS_U64, seed, chains.seed) +
            (flags & CHAIN_OFFSETS ? seed_from_offset(first_position) : 0),
        (u32)first_position,
        (u32)column_value(chains.draws, flags & CHAIN_DRAWS_U64, flags & CHAIN_DRAW_PER_CHAIN ? chain : 0, draw)};
}

DEVICE i64 draft_id(const Chains& chains, u32 chain, u32 j) {
    u64 index = chain * chains.drafts_stride + j;
    return chains.flags & CHAIN_DRAFTS_I64 ? ((const i64*)chains.drafts)[index] : ((const int*)chains.drafts)[index];
}

DEVICE const float* draft_row(const Chains& chains, u32 chain, u32 j) {
    return chains.draft_probs + chain * chains.draft_stride + j * chains.draft_row_stride;
}

DEVICE const float* target_row(const Chains& chains, u32 chain, u32 j) {
    return chains.target_probs + chain * chains.target_stride + j * chains.target_row_stride;
}

// Cleans a probability before it enters a difference: NaN and negative numbers become 0, +inf the largest float (P1).
DEVICE float clean_probability(float p) { return p > 0.0f ? fminf(p, MAX_F32) : 0.0f; }

// What chain_end_at returns for an accepted draft.
#define NO_END 0xFFFFFFFFu

// Judges draft j by itself (S4). Returns
//     NO_END     if it is accepted
//     2 j + 1    if it is rejected: if the chain ends here, the last token comes from the residual of row j
//     2 j        if it cannot have come from the drafter's row: the last token then comes from the target's row j
DEVICE u32 chain_end_at(const Chains& chains, const RngStream& rng, u32 chain, u32 j) {
    i64 id = draft_id(chains, chain, j);
    if (id < 0 || id >= chains.vocab) {
        return 2 * j;
    }
    float q = clean_probability(draft_row(chains, chain, j)[id]),
          p = clean_probability(target_row(chains, chain, j)[id]);
    u32 word = philox(rng.seed, 0, rng.position + j, TAG_ACCEPT, rng.draw).w[0];
    float u = u64_to_float(2 * (u64)word + 1) * bits_float((127 - 33) << 23);
    if (q == 0.0f) {
        return 2 * j;
    }
    return (p >= q) | (u * q < p) ? NO_END : 2 * j + 1;
}

// The judgement of a chain.
struct Acceptance {
    // The number of accepted drafts, which is also the index of the row that the last token comes from.
    u32 accepted;
    // The number of drafts that are accepted when each is judged by itself, those after the chain's end included.
    u32 accepted_alone;
    // Whether the last token comes from that row's residual.
    bool rejected;
};

// The shared memory of `accept_drafts`: per warp, the first end that it found and how many drafts it accepted.
struct AcceptanceStorage {
    u32 ends[32];
    u32 counts[32];
};

// Judges a chain; every thread returns the result. A kernel calls it once: a second call could overwrite the storage
// while slower warps still read it.
DEVICE Acceptance accept_drafts(AcceptanceStorage& storage, const Chains& chains, const RngStream& rng, u32 chain) {
    u32 end = NO_END, alone = 0, length = chains.draft_count;
#pragma unroll 1
    for (u32 j = threadIdx.x; j - lane_id() < length; j += blockDim.x) {
        u32 own = j < length ? chain_end_at(chains, rng, chain, j) : 2 * j;
        alone += own == NO_END;
        end = own < end ? own : end;
    }
    end = __reduce_min_sync(FULL_MASK, end);
    alone = __reduce_add_sync(FULL_MASK, alone);
    if (lane_id() == 0) {
        storage.ends[warp_id()] = end;
        storage.counts[warp_id()] = alone;
    }
    // RAW on ends, counts: lane 0 of each warp wrote its warp's, all warps read all of them.
    __syncthreads();
    end = __reduce_min_sync(FULL_MASK, lane_id() < warp_count() ? storage.ends[lane_id()] : NO_END);
    alone = __reduce_add_sync(FULL_MASK, lane_id() < warp_count() ? storage.counts[lane_id()] : 0);
    end = end < 2 * length ? end : 2 * length;
    return Acceptance{end / 2, alone, (end & 1) != 0};
}

// Returns the random stream of the chain's last token, at the position of the row that it comes from.
DEVICE LastTokenStream last_token_stream(const RngStream& rng, const Acceptance& acceptance) {
    return LastTokenStream{{rng.seed, rng.position + acceptance.accepted, rng.draw}, acceptance.rejected};
}

// Stores a chain's count, or with CHAIN_ADD_COUNTS adds it to the count in memory; nothing if `counts` is null.
DEVICE void write_count(const Chains& chains, u32* counts, u32 chain, u32 count) {
    if (counts) {
        counts[chain] = chains.flags & CHAIN_ADD_COUNTS ? counts[chain] + count : count;
    }
}

// Writes what became of a chain or tree; by a block. `token`: the last one. `row_at(j)`: the row that the token of
// index j comes from.
template <class RowAt>
DEVICE void write_judgement(const Chains& chains, u32 chain, u32 accepted, int token, u32 status, RowAt row_at) {
    const int last = token < 0 && chains.flags & CHAIN_ZERO_FOR_NONE ? 0 : token;
#pragma unroll 1
    for (u32 j = threadIdx.x; j <= chains.draft_count; j += blockDim.x) {
        i64 id = j < accepted ? draft_id(chains, chain, row_at(j + 1) - 1) : j == accepted ? last : NO_TOKEN;
        u64 offset = chain * chains.tokens_stride + j;
        if (chains.flags & CHAIN_TOKENS_I64) {
            ((i64*)chains.tokens)[offset] = id;
        } else {
            ((int*)chains.tokens)[offset] = (int)id;
        }
        if (chains.rows) {
            chains.rows[chain * chains.rows_stride + j] = j <= accepted ? (int)row_at(j) : -1;
        }
    }
    if (threadIdx.x == 0) {
        write_count(chains, chains.accepted, chain, accepted);
        if (chains.statuses) {
            chains.statuses[chain] = status;
        }
    }
}
