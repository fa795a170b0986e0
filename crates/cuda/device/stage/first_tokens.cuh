// first_tokens.cuh: lists the first k tokens of a row's order, for any row; by a block.
//
// Computes   a candidate list with at least the first k tokens, or with all if there are fewer
// Never      fails: rows with too many equal or nearly equal logits for find_threshold are searched
// Twins      none: any list that holds these tokens serves
// Traffic    as candidates.cuh; a search reads, in each of up to some 20 rounds, the tiles whose maximum reaches the
//            threshold
// Requires   1 <= k <= MAX_LISTED_TOP_K; a row with a token; all threads of the block, whole warps
#pragma once

#include "stage/candidate_filter.cuh"

// The bits of an id in a threshold of a search: a threshold is a key without the bits that all keys have alike.
#define THRESHOLD_ID_BITS 20
static_assert((u64)MAX_TILES * TILE <= 1u << THRESHOLD_ID_BITS, "a threshold has all bits of an id");

// Rounds that halve the range of all thresholds.
#define THRESHOLD_ROUNDS (32 + THRESHOLD_ID_BITS + 1)

DEVICE u64 key_at_threshold(u64 threshold) {
    const u32 id_bits = (1u << THRESHOLD_ID_BITS) - 1;
    return threshold >> THRESHOLD_ID_BITS << 32 | ~id_bits | ((u32)threshold & id_bits);
}

// Calls `visit(key)` for each of the thread's tokens whose key is at least `least`.
template <class V, class Visit>
DEVICE void for_each_from(const RowRecords& records, const V& view, u64 least, Visit visit) {
    const u32 lane = lane_id();
#pragma unroll 1
    for (u32 tile = warp_id(); tile < records.tiles; tile += warp_count()) {
        if (!(records.records[tile].maximum >= key_logit(least))) {
            continue;
        }
        float z[ITEMS_PER_LANE];
        u32 nonfinite_flags = 0;
        view.load(tile, lane, z, nonfinite_flags);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            const u64 key = make_key(clean(z[j]), tile * TILE + view.offset(lane, j));
            if (key >= least) {
                visit(key);
            }
        }
    }
}

// Lists the tokens down to a threshold that between k and MAX_CANDIDATES tokens reach, or all tokens if there are fewer
// than k. `count` is shared memory.
template <class V>
DEVICE void search_first_tokens(CandidateList& list, u32& count, const RowRecords& records, const V& view, float first,
                                u32 k) {
    // Too many tokens reach the first, unless there are fewer than k in all, and too few the second. Neighbouring
    // thresholds differ by a token at most.
    u64 low = (u64)MIN_TOKEN_ORDERED << THRESHOLD_ID_BITS, high = ((u64)ordered_bits(first) + 1) << THRESHOLD_ID_BITS;
    // Begins with the tokens of the largest logit: most of the rows that are searched have many equal logits.
    u64 threshold = (u64)ordered_bits(first) << THRESHOLD_ID_BITS;
    // Only a row that is written meanwhile takes all rounds.
    for (u32 round = 0; round <= THRESHOLD_ROUNDS; round++) {
        // WAR on count: all threads read the count of the round before, thread 0 clears it.
        __syncthreads();
        if (threadIdx.x == 0) {
            count = 0;
        }
        // RAW on count: thread 0 cleared it, all warps add to it.
        __syncthreads();
        u32 own = 0;
        for_each_from(records, view, key_at_threshold(threshold), [&](u64) INLINE { own++; });
        own = __reduce_add_sync(FULL_MASK, own);
        if (lane_id() == 0 && own != 0) {
            atomicAdd(&count, own);
        }
        // RAW on count: all warps added to it, all threads read it.
        __syncthreads();
        if (count <= MAX_CANDIDATES && (k <= count || threshold == low)) {
            break;
        }
        (count < k ? high : low) = threshold;
        threshold = low + (high - low) / 2;
    }
    if (threadIdx.x == 0) {
        list.packed_counts = 0;
        list.other_count = 0;
    }
    // RAW on the counts: thread 0 cleared them, all threads append tokens.
    __syncthreads();
    for_each_from(records, view, key_at_threshold(threshold), [&](u64 key) INLINE {
        const u32 at = atomicAdd(&list.other_count, 1u);
        if (at < MAX_CANDIDATES) {
            list.keys[at] = key;
        }
    });
    // RAW on the list: all threads appended tokens, all threads read them.
    __syncthreads();
    if (threadIdx.x == 0 && list.other_count > MAX_CANDIDATES) {
        list.other_count = MAX_CANDIDATES;
    }
    // RAW on the count: thread 0 bounded it, all threads read it.
    __syncthreads();
}

// Lists the first k tokens of a row, in order in `list.ordered`. The list must be cleared, with a barrier between.
// `count` and `reduce` are shared memory. Other fields of the list but the number of tokens mean nothing.
template <class V>
DEVICE void list_first_tokens(CandidateList& list, u32& count, ReduceStorage& reduce, const RowRecords& records,
                              const V& view, const RowSummary& summary, u32 vocab, u32 k, float log2e_over_t) {
    const float first = key_logit(summary.first_key);
    float threshold = MIN_TOKEN_VALUE;
    bool found = true;
    if (vocab <= MAX_CANDIDATES) {
        list_tile_firsts(list, records, threshold);
        // RAW on the list's keys, open tiles and counts: all warps appended to them, all warps read them.
        __syncthreads();
    } else {
        CountGoal goal{k};
        found = find_threshold(list, records, view, first, summary.least_maximum, goal, k + k / 4 + 16, threshold);
    }
    if (!found || !gather_others(list, view, threshold, first, log2e_over_t)) {
        search_first_tokens(list, count, records, view, first, k);
    }
    rank_candidates(reduce, list, first, blockDim.x);
    // RAW on ordered: all threads wrote elements, all threads read them.
    __syncthreads();
}
