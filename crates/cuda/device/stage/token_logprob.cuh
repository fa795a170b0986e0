// token_logprob.cuh: the logprob and the rank of a row's token alone (rules L1 to L3): in a mode whose members the
// survey summed, and over the kept set; device functions of a block.
//
// Computes   the row's mass, from the survey's sums; the logits and ranks of all tokens of a candidate list, while
//            another warp draws from it; the logprob and rank of any one token
// Never      reads a tile unless the rank of the row's token depends on it, or the kept set is on no list
// Twins      logprobs.cuh for every request
// Traffic    16 bytes per tile; the tiles of which several tokens may come before the row's token; the tiles of a kept
//            set that is on no list
// Requires   the survey's sums for logprobs; whole warps
#pragma once

#include "block/candidates.cuh"
#include "block/mass.cuh"
#include "stage/logprobs.cuh"

// How many listed tokens a lane ranks in one pass over the tiles, and room for the ranks of whole passes.
#define TOKENS_AT_ONCE 3
#define RANKS_CAPACITY ((MAX_CANDIDATES + 32 * TOKENS_AT_ONCE - 1) / (32 * TOKENS_AT_ONCE) * (32 * TOKENS_AT_ONCE))

// The shared memory of a token's logprob: the block's results about the mode's row and its tokens.
struct TokenLogprobStorage {
    ReduceStorage reduce;
    // Per warp, the largest maximum of the tiles that its threads read, as ordered bits.
    u32 warp_maxima[32];
    // The mass of the tiles that have been added so far, and the number of warps that have added theirs.
    u64 mass;
    u32 warps_done;
    // The number of tokens before the one that `write_token_logprob` ranks.
    u32 before;
    LogprobTerms terms;
    // The token whose rank in the kept set `write_kept_logprob` counts.
    RankQueries queries;
    // By index in the ordered list: the number of tokens before the listed one in the mode's row, RANK_UNKNOWN or more
    // if tiles must be read to complete it; and the token's logit in that row.
    u32 ranks[RANKS_CAPACITY];
    float logits[MAX_CANDIDATES];
};

// Added to a listed token's count for each tile that must be read to complete it. The count itself is at most 4096
// tiles.
#define RANK_UNKNOWN 0x10000u
static_assert(MAX_TILES < RANK_UNKNOWN && MAX_TILES * (RANK_UNKNOWN + 1ull) < 1ull << 32, "a word counts both");

// Clears the counts. A barrier must follow before they are used.
DEVICE void clear(TokenLogprobStorage& storage) {
#pragma unroll 1
    for (u32 i = threadIdx.x; i < MAX_CANDIDATES; i += blockDim.x) {
        storage.ranks[i] = 0;
    }
    if (threadIdx.x == 0) {
        storage.mass = 0;
        storage.warps_done = 0;
        storage.before = 0;
    }
}

// Finds the largest maximum of the tiles that each warp's threads read, in the mode's row. A barrier must follow before
// `prepare_candidate_logprobs`.
DEVICE void store_warp_maxima(TokenLogprobStorage& storage, const Step& step, u32 row) {
    const u32 most = __reduce_max_sync(FULL_MASK, summed_maxima(step, row).own_bits());
    if (lane_id() == 0) {
        storage.warp_maxima[warp_id()] = most;
    }
}

// Returns an upper bound of a tile's logits except its first token's. The first token weighs 2^28, so the others weigh
// tile.sum - 2^28 together, and none of them more. An integer weight is off by up to one half. Exponentials and
// roundings add an error below 2^-17 of the weight.
DEVICE float others_upper_bound(const TileSum& tile, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    float most = u64_to_float(tile.sum - (1u << 28) + 1) * bits_float((127 - 28) << 23);
    return (tile.maximum * most) * (1.0f + 4.8e-7f) + MIN_TOKEN_VALUE;
#else
    float below = (log2_of_normal(u64_to_float(tile.sum - (1u << 28) + 1)) - (28.0f - 0.0001f)) / log2e_over_t;
    return tile.maximum + below + (fabsf(tile.maximum) - below) * 4.8e-7f;
#endif
}

// Returns whether the summed mode refers to the row before its edits.
DEVICE bool is_raw(const Params& params) { return summed_logprob_mode(params) == MODE_RAW; }

// Returns the temperature of the summed mode: 1 for `raw` and `edited`.
DEVICE float logprob_temperature(const Params& params) {
    bool tempered = !is_raw(params) && summed_logprob_mode(params) != MODE_EDITED;
    return tempered ? params.effective_temperature : 1.0f;
}

// Computes what the logprob of any listed token takes: their logits in the mode's row, the tokens before them, and the
// row's mass; by `all` warps, of which this one is number `own`. A barrier must follow before the results are read.
//
//     for each group of 96 listed tokens, three per lane:
//         for each of this warp's tiles, one per lane:
//             add the tile's mass, in the first group
//             if its maximum reaches a token of the group (mode raw; each lane compares its three tokens):
//                 count 1 for the tile's first token, if that precedes the listed one
//                 add RANK_UNKNOWN if another token of the tile may reach the listed one
//     add the warp's mass to the block's; the last warp to do so computes the logprob terms
//
// In the other modes the list is a prefix of the mode's row, so a token's index is the number of tokens before it.
template <class T>
DEVICE void prepare_candidate_logprobs(TokenLogprobStorage& storage, const CandidateList& list, const Step& step,
                                       u32 row, const Params& params, const LogitsRow<T>& logits, u32 own, u32 all) {
    u32 lane = lane_id(), count = list.count();
    const TileSum* logprob_sums = step.logprob_sums + (u64)row * step.tiles;
    bool raw = is_raw(params);
    float log2e_over_t = params.logprob_log2e_over_t;
    float first = from_ordered_bits(__reduce_max_sync(FULL_MASK, lane < warp_count() ? storage.warp_maxima[lane] : 0));
    u64 mass = 0;
#pragma unroll 1
    for (u32 from = 0; from < count; from += 32 * TOKENS_AT_ONCE) {
        u32 id[TOKENS_AT_ONCE];
        float z[TOKENS_AT_ONCE];
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            u64 key = i < count ? list.ordered[i] : make_key(INF_F32, 0);
            id[k] = key_id(key);
            z[k] = raw && i < count ? logits.logit(id[k]) : key_logit(key);
        }
#pragma unroll 1
        for (u32 start = 32 * own; start < step.tiles; start += 32 * all) {
            u32 tile = start + lane;
            TileSum tile_sum = tile < step.tiles ? logprob_sums[tile] : TileSum{0, -INF_F32, 0};
            bool any = tile_sum.maximum > MASKED_VALUE;
            if (from == 0) {
                mass += any ? tile_mass(tile_factor(tile_sum.maximum, first, log2e_over_t), tile_sum.sum) : 0;
            }
            u32 least = ~0u;
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                u32 bits = ordered_bits(z[k]);
                least = bits < least ? bits : least;
            }
            least = __reduce_min_sync(FULL_MASK, least);
            u32 left = __ballot_sync(FULL_MASK, raw && any && ordered_bits(tile_sum.maximum) >= least);
            if (left == 0) {
                continue;
            }
            float others = any ? others_upper_bound(tile_sum, log2e_over_t) : -INF_F32;
            u32 before[TOKENS_AT_ONCE] = {};
#pragma unroll 1
            for (; left != 0; left &= left - 1) {
                int source_lane = __ffs((int)left) - 1;
                float top = __shfl_sync(FULL_MASK, tile_sum.maximum, source_lane),
                      rest = __shfl_sync(FULL_MASK, others, source_lane);
#pragma unroll
                for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                    // Of equal logits the one with the smaller id precedes; tiles are ranges of ids.
                    bool comes = top > z[k] || (top == z[k] && start + source_lane < id[k] / TILE);
                    before[k] += (comes ? 1 : 0) + (top >= z[k] && rest >= z[k] ? RANK_UNKNOWN : 0);
                }
            }
#pragma unroll
            for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
                if (before[k] != 0) {
                    atomicAdd(&storage.ranks[from + 32 * k + lane], before[k]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < TOKENS_AT_ONCE; k++) {
            u32 i = from + 32 * k + lane;
            if (own == 0 && i < count) {
                storage.logits[i] = z[k];
                if (!raw) {
                    // The list is a prefix of the mode's row.
                    storage.ranks[i] = i;
                }
            }
        }
    }
    mass = warp_sum(mass);
    u32 done = 0;
    if (lane == 0) {
        atomicAdd(&storage.mass, mass);
        // RAW on mass: each warp added its share, the last one reads the sum. This fence orders the share before the
        // count.
        __threadfence_block();
        done = atomicAdd(&storage.warps_done, 1u);
        if (done + 1 == all) {
            // This fence orders the count before the read of the sum.
            __threadfence_block();
            storage.terms.set(first, logprob_temperature(params), *(volatile u64*)&storage.mass);
        }
    }
}

// Writes the logprob and the rank of a token that was not ranked on a list, or whose rank needs a read of tiles. Not
// inlined, because rows with lists seldom need it. All threads call it.
//
//     mass = the mass of the mode's row, from the survey's sums
//     before = 1 per tile whose first token precedes the token, if no other token of the tile can
//              plus the tokens that precede it in each other tile whose maximum reaches it, read one tile per warp
//     a barrier; thread 0 writes the logprob and the rank before + 1, unless the token is no member
template <class T>
DEVICE_NOINLINE void write_token_logprob(const Step& step, u32 row, int slot, u32 id, TokenLogprobStorage& storage) {
    const Params& params = step.params[slot];
    const TileSum* logprob_sums = step.logprob_sums + (u64)row * step.tiles;
    EditedRow<T, true> edited_row(step, row, slot);
    EditedRow<T, false> raw_row(step, row, slot);
    bool raw = is_raw(params);
    float z = raw ? raw_row.logit(id) : edited_row.logit(id), log2e_over_t = params.logprob_log2e_over_t;
    float first = from_ordered_bits((u32)block_max(storage.reduce, summed_maxima(step, row).own_bits()));
    u64 mass =
        row_mass(storage.reduce, step.tiles, first, log2e_over_t, [&](u32 tile) INLINE { return logprob_sums[tile]; });
    u64 key = make_key(z, id);
    u32 before = 0;
    for (u32 start = 32 * warp_id(); start < step.tiles; start += 32 * warp_count()) {
        u32 tile = start + lane_id();
        TileSum tile_sum = tile < step.tiles ? logprob_sums[tile] : TileSum{0, -INF_F32, 0};
        bool reaches = tile_sum.maximum > MASKED_VALUE && tile_sum.maximum >= z;
        bool alone = reaches && others_upper_bound(tile_sum, log2e_over_t) < z;
        before += alone && (tile_sum.maximum > z || tile < id / TILE);
        for (u32 open = __ballot_sync(FULL_MASK, reaches && !alone); open != 0; open &= open - 1) {
            u32 open_tile = start + __ffs((int)open) - 1;
            float own[ITEMS_PER_LANE];
            if (raw) {
                raw_row.load(open_tile, lane_id(), own);
            } else {
                edited_row.load(open_tile, lane_id(), own);
            }
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                before += make_key(own[j], open_tile * TILE + raw_row.offset(lane_id(), j)) > key;
            }
        }
    }
    before = __reduce_add_sync(FULL_MASK, before);
    if (lane_id() == 0) {
        atomicAdd(&storage.before, before);
    }
    // RAW on before: all warps added their counts, thread 0 reads the sum.
    // WAR on the token counts: all warps read logits edited by them, the caller then counts the token.
    __syncthreads();
    if (threadIdx.x == 0 && z > MASKED_VALUE) {
        LogprobTerms terms;
        terms.set(first, logprob_temperature(params), mass);
        set_token_logprob(LogprobSections{step, row}, params, summed_logprob_mode(params), terms.of(z),
                          storage.before + 1);
    }
}

// Writes the logprob and the rank, in the mode processed, of a token of a candidate list of which all kept tokens are
// the first; by one thread.
DEVICE void write_listed_logprob(const Step& step, u32 row, const Params& params, const CandidateList& list, u32 index,
                                 u32 end, float temperature) {
    LogprobTerms terms;
    terms.set(key_logit(list.ordered[0]), temperature, list.masses[end - 1]);
    set_token_logprob(LogprobSections{step, row}, params, MODE_PROCESSED, terms.of(key_logit(list.ordered[index])),
                      index + 1);
}

// Writes the logprob and the rank, in the mode processed, of a token of its row's kept set. Not inlined, because rows
// with lists seldom need it. All threads call it.
template <class T>
DEVICE_NOINLINE void write_kept_logprob(const Step& step, u32 row, int slot, u32 id, float temperature, GivenSet kept,
                                        TokenLogprobStorage& storage, RowReduceStorage& reduce) {
    const LogprobSections sections{step, row};
    const Params& params = step.params[slot];
    if (kept.cut.first == kept.cut.last) {
        // The only token has all of the probability.
        if (threadIdx.x == 0) {
            set_token_logprob(sections, params, MODE_PROCESSED, 0.0f, 1);
        }
        return;
    }
    const EditedRow<T, true> view(step, row, slot);
    const RowBlocks alone = RowBlocks::alone(reduce);
    const Maxima maxima = maxima_of_set(step, row, alone, view, kept);
    const u64 mass = mass_of_set(alone, view, maxima, kept, kept.cut, log2_e() / temperature).mass;
    const float z = view.logit(id);
    if (threadIdx.x == 0) {
        storage.queries.keys[0] = make_key(z, id);
    }
    // The last barrier inside also lets the caller count the token (WAR on the token counts).
    count_before(view, SetWithMaxima{kept, maxima}, kept.cut, storage.queries, 1);
    if (threadIdx.x == 0) {
        LogprobTerms terms;
        terms.set(kept.first_value, temperature, mass);
        set_token_logprob(sections, params, MODE_PROCESSED, terms.of(z), storage.queries.before[0] + 1);
    }
}
