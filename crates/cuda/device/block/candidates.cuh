// candidates.cuh: the upper part of a row, into shared memory (docs/stages/filter.md); by a block.
//
// Computes   a bar that so many tile maxima reach and not many more, and all tokens that reach it
// Never      reads a tile that has no more of them than its first token, which the survey knows
// Twins      CPU cpu/src/filter/select.rs | why docs/stages/filter.md
// Traffic    the logits of the tiles that may have several tokens that reach the bar
// Requires   all threads of the block, whole warps; results are in every thread
//
// A tile's maximum is a token too: if k maxima reach a bar, so do at least k tokens, and the first k are among
// those that do. Where they do not, or bring too many others with them, each tile's second token is looked at as well: two heavy
// tokens in one tile are no reason to search a row. Where the bar lies decides how long the rest takes and never what comes out.
#pragma once

#include "math/record.cuh"
#include "warp/edited_row.cuh"
#include "block/records.cuh"

// How many tokens can be gathered, and from how many tiles.
#define MAX_CANDIDATES 416

// How many parts the range of the maxima is cut into.
#define BINS 256
#define LOG_BINS 8

// How often a bar may be moved.
#define MAX_ROUNDS 6

// What is gathered, in shared memory: the first tokens of tiles, then the others.
struct CandidateList {
    alignas(16) u64 keys[MAX_CANDIDATES];
    // What each adds to the mass of the prefix that it ends.
    alignas(16) u64 gains[MAX_CANDIDATES];
    // log2 of the tokens' arrivals: the survey knows those of the tiles' first.
    float log2_arrivals[MAX_CANDIDATES];
    // How many first tokens there are; in the high half how many of their tiles are open.
    u32 packed_counts;
    u32 other_count;
    // The bin in which the bar lies; by number too, where the goals are two.
    u32 bin;
    u32 count_bin;
    union {
        struct {
            // The keys of the first tokens of tiles that may have others.
            u64 open[MAX_CANDIDATES];
            // What the maxima in each part of their range come to, the highest part first.
            alignas(16) u32 bins[BINS];
            union {
                // The weights of the other tokens, by place.
                u32 weights[MAX_CANDIDATES];
                // How many maxima lie in each part, where the goals are two: there are no others yet.
                alignas(16) u32 count_bins[BINS];
            };
        };
        // Once all are there: the tokens in order, the masses of the prefixes that they end, and their places above.
        struct {
            u64 ordered[MAX_CANDIDATES];
            u64 masses[MAX_CANDIDATES];
            unsigned short from[MAX_CANDIDATES];
        };
    };

    DEVICE_MEMBER u32 first_count() const { return packed_counts & 0xFFFF; }
    DEVICE_MEMBER u32 open_count() const { return packed_counts >> 16; }
    DEVICE_MEMBER u32 count() const { return first_count() + other_count; }
};

// Empties the bins and the lists. A barrier must follow before they are used.
DEVICE void clear(CandidateList& candidates) {
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        candidates.bins[i] = 0;
        candidates.count_bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        candidates.packed_counts = 0;
        candidates.other_count = 0;
    }
}

// The first bin by which the bins reach a goal, by a warp, in every lane; BINS if they do not, and more if not by half.
DEVICE u32 find_bin(const u32* bins, u32 goal) {
    const u32 BINS_PER_LANE = BINS / 32;
    u32 lane = lane_id(), own[BINS_PER_LANE], upto = 0;
#pragma unroll
    for (u32 i = 0; i < BINS_PER_LANE / 4; i++) {
        U32x4 quad = ((const U32x4*)bins)[lane * (BINS_PER_LANE / 4) + i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            upto += quad.word[j];
            own[4 * i + j] = upto;
        }
    }
#pragma unroll
    for (u32 delta = 1; delta < 32; delta *= 2) {
        u32 other = __shfl_up_sync(FULL_MASK, upto, delta);
        upto += lane >= delta ? other : 0;
    }
    u32 reached = __ballot_sync(FULL_MASK, upto >= goal);
    u32 before = upto - own[BINS_PER_LANE - 1], bin = lane * BINS_PER_LANE;
#pragma unroll
    for (u32 i = 0; i + 1 < BINS_PER_LANE; i++) {
        bin += before + own[i] < goal;
    }
    bin = __shfl_sync(FULL_MASK, bin, __ffs((int)reached) - 1);
    u32 total = __shfl_sync(FULL_MASK, upto, 31);
    return reached ? bin : BINS + (total < goal / 2);
}

// Lists the first tokens that reach a bar, as far as there is room, and which of their tiles may have others. A barrier must
// follow before the lists are read.
DEVICE void list_tile_firsts(CandidateList& candidates, const RowRecords& records, float threshold) {
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        if (!(record.maximum >= threshold)) {
            return;
        }
        bool opens = record_others_bound(record) >= threshold;
        // A few lanes pass: that each adds for itself takes less than to find out which do.
        u32 to = atomicAdd(&candidates.packed_counts, opens ? 0x10001u : 1u), index = to & 0xFFFF,
            open_index = to >> 16;
        u64 key = make_key(record.maximum, tile * TILE + (record.packed & 255));
        if (index < MAX_CANDIDATES) {
            candidates.keys[index] = key;
            candidates.log2_arrivals[index] = record.log2_max_arrival;
        }
        if (opens && open_index < MAX_CANDIDATES) {
            candidates.open[open_index] = key;
        }
    });
}

// The largest power of two of which x, 1e-20 to 1e38, is not more than so many: how many of them as a power of two.
DEVICE float power_of_two_scale(float x, u32 power) {
    return bits_float((2 * 127 - 1 + power - (float_bits(x) - 1 >> 23)) << 23);
}

// Finds a bar at which what the maxima come to reaches a goal, and lists the first tokens that pass it, if possible at
// most `limit`: `goal_policy.amount(maximum, sum)` of each, and `goal_policy.other_amount(logit)` of the second ones if they are looked at. Where all
// together do not reach the goal, it lists all if `Goal::ACCEPTS_ALL`, and fails if not; so it does if too many pass. With
// `Goal::HAS_COUNT_GOAL` their number may reach `goal_policy.count_goal()` instead, whichever is sooner. The gathered must be cleared.
// Where it succeeds, at most MAX_CANDIDATES tokens are listed, whatever `limit` the caller derived from its parameters.
template <class Goal>
DEVICE bool find_threshold(CandidateList& candidates, const RowRecords& records, float first, float least,
                           Goal& goal_policy, u32 limit, float& threshold) {
    limit = limit < MAX_CANDIDATES ? limit : MAX_CANDIDATES;
    const HeightScale height_scale(first);
    const float top = height_scale.height(first);
    float widest = max_f32(height_scale.height(least), top - 1e37f);
    // Far below the first token there is nothing but what masks leave.
    float low = max_f32(height_scale.height(least), top - RELEVANT_SPAN), width = top - low;
    bool seconds = false;
#pragma unroll 1
    for (u32 round = 1; round <= MAX_ROUNDS; round++) {
        float scale = power_of_two_scale(max_f32(width, 1e-20f), LOG_BINS), part = power_of_two_scale(scale, 0);
        records.for_each_with_sum([&](u32, const TileRecord& record, u64 sum) INLINE {
            auto add = [&](float z, u32 amount) INLINE {
                // A higher logit's place is no lower, as each step is monotone.
                float position = (height_scale.height(z) - low) * scale;
                if (position >= 0.0f) {
                    u32 bin = BINS - 1 - (u32)fminf(position, BINS - 1);
                    atomicAdd(&candidates.bins[bin], amount);
                    if constexpr (Goal::HAS_COUNT_GOAL) {
                        atomicAdd(&candidates.count_bins[bin], 1u);
                    }
                }
            };
            add(record.maximum, goal_policy.amount(record.maximum, sum));
            if (seconds) {
                float second = record_others_lower_bound(record);
                add(second, goal_policy.other_amount(second));
            }
        });
        goal_policy.publish_mass();
        // Without it a warp would miss what others have not added yet.
        __syncthreads();
        // By one warp: all of them would wait for each other's instructions.
        if (warp_id() == 0) {
            u32 bin = find_bin(candidates.bins, goal_policy.goal());
            if (lane_id() == 0) {
                candidates.bin = bin;
            }
        }
        if constexpr (Goal::HAS_COUNT_GOAL) {
            if (warp_id() == warp_count() - 1) {
                u32 bin = find_bin(candidates.count_bins, goal_policy.count_goal());
                if (lane_id() == 0) {
                    candidates.count_bin = bin;
                }
            }
        }
        // Without it the other warps would read the bin before it is found.
        __syncthreads();
        u32 bin = candidates.bin;
        if constexpr (Goal::HAS_COUNT_GOAL) {
            bin = candidates.count_bin < bin ? candidates.count_bin : bin;
        }
        if (bin < BINS && goal_policy.exceeds(MAX_CANDIDATES)) {
            return false;
        }
        if (bin < BINS) {
            // Less than any maximum in the bin, however its place was rounded.
            float lowest = int_to_float((int)(BINS - 1 - bin)) - 0.0625f;
            threshold = height_scale.at(low + lowest * part);
            list_tile_firsts(candidates, records, threshold);
            // Without it a warp would miss what others have not listed yet.
            __syncthreads();
            u32 count = candidates.first_count() + (seconds ? candidates.open_count() : 0);
            if (count <= (!seconds ? limit : MAX_CANDIDATES) ||
                (round == MAX_ROUNDS && candidates.first_count() <= MAX_CANDIDATES)) {
                return true;
            }
            if (seconds && goal_policy.gives_up(count)) {
                return false;
            }
            if (seconds) {
                // Most of them lie in one bin, which is looked at more closely.
                low += (lowest - 0.5f) * part;
                width = 2.0f * part;
            }
            seconds = true;
        } else if (bin == BINS && !seconds) {
            // As many again may do.
            seconds = true;
        } else if (low > widest) {
            low = widest;
            width = top - low;
        } else if (Goal::ACCEPTS_ALL) {
            // There are no more tokens than that, or few tiles have them.
            threshold = MIN_TOKEN_VALUE;
            list_tile_firsts(candidates, records, threshold);
            // Without it a warp would miss what others have not listed yet.
            __syncthreads();
            return candidates.first_count() <= MAX_CANDIDATES;
        } else {
            return false;
        }
        // Without it bins would be emptied that a slower warp still reads.
        __syncthreads();
        clear(candidates);
        // Without it a warp could add to bins that others empty after that.
        __syncthreads();
    }
    return false;
}

// The weight of a tile's first token.
#define MAX_WEIGHT (1u << 28)

// Gathers the other tokens of an open tile that reach the bar, and what they add to the mass; by a warp.
template <class V>
DEVICE void gather_tile(CandidateList& candidates, const V& view, float threshold, float first, float log2e_over_t,
                        u64 top) {
    float z[ITEMS_PER_LANE];
    u32 firsts = candidates.first_count(), lane = lane_id(), id = key_id(top), tile = id / TILE, nonfinite_flags = 0;
    view.load(tile, lane, z, nonfinite_flags, threshold);
    // While they fly.
    float maximum = key_logit(top), factor = tile_factor(maximum, first, log2e_over_t);
    const TokenWeights token_weights(maximum, log2e_over_t);
    u32 passing = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        passing |= (z[j] >= threshold) & (view.offset(tile, lane, j) != id % TILE) ? 1u << j : 0;
    }
    u32 count = __reduce_add_sync(FULL_MASK, __popc(passing));
    if (count == 0) {
        return;
    }
    // Next to each other, so that the warp finds them again.
    u32 start = firsts + __shfl_sync(FULL_MASK, lane == 0 ? atomicAdd(&candidates.other_count, count) : 0, 0),
        end = start + count;
    end = end < MAX_CANDIDATES ? end : MAX_CANDIDATES;
    // A lane has one, if any.
#pragma unroll 1
    for (u32 at = start; at < end;) {
        u32 having = __ballot_sync(FULL_MASK, passing != 0), to = at + __popc(having & ((1u << lane) - 1));
        if (passing != 0 && to < end) {
            u32 j = __ffs((int)passing) - 1;
            float own = clean(select_item(z, j));
            candidates.keys[to] = make_key(own, tile * TILE + view.offset(tile, lane, j));
            candidates.weights[to] = token_weights.of(own);
        }
        passing &= passing - 1;
        at += __popc(having);
    }
    // Without it a lane would miss what others have written.
    __syncwarp();
#pragma unroll 1
    for (u32 i = start + lane; i < end; i += 32) {
        u64 own = candidates.keys[i], q = MAX_WEIGHT;
#pragma unroll 1
        for (u32 j = start; j < end; j++) {
            q += candidates.keys[j] > own ? candidates.weights[j] : 0;
        }
        candidates.gains[i] = tile_mass(factor, q + candidates.weights[i]) - tile_mass(factor, q);
    }
}

// Gathers the other tokens of the open tiles that reach the bar, and what all tokens add to the mass, at a scale. Fails if there
// are too many.
template <class V>
DEVICE bool gather_others(CandidateList& candidates, const V& view, float threshold, float first, float log2e_over_t) {
    u32 firsts = candidates.first_count(), open = candidates.open_count();
#pragma unroll 1
    for (u32 index = warp_id(); index < open; index += warp_count()) {
        gather_tile(candidates, view, threshold, first, log2e_over_t, candidates.open[index]);
    }
    // From the last thread on: the first warps wait for logits.
#pragma unroll 1
    for (u32 i = blockDim.x - 1 - threadIdx.x; i < firsts; i += blockDim.x) {
        candidates.gains[i] = tile_mass(tile_factor(key_logit(candidates.keys[i]), first, log2e_over_t), MAX_WEIGHT);
    }
    // Without it a warp would miss what others have not added yet.
    __syncthreads();
    return candidates.count() <= MAX_CANDIDATES;
}
