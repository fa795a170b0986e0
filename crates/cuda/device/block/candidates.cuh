// candidates.cuh: gathers the first tokens of a row's order in shared memory (docs/stages/filter.md); by a block.
//
// Computes   a threshold that the wanted number or mass of tokens reaches, and not many tokens more; all tokens that
//            reach it
// Never      reads a tile of which at most the first token reaches the threshold, as the survey knows that token; only
//            to count all tokens it reads each tile that has several
// Twins      CPU cpu/src/filter/select.rs | why docs/stages/filter.md
// Traffic    the logits of the tiles of which several tokens may reach the threshold; where all tokens count, before
//            that the logits of the tiles with several tokens, once in each round
// Requires   all threads of the block, whole warps; results are in every thread
//
// A tile's first token, in the order, has the tile's maximum. If k maxima reach a threshold, at least k tokens do, and
// the first k tokens are among those. If the maxima miss the goal, or list too many tokens, each tile's second token
// counts as well: two heavy tokens in one tile are no reason to search a row. A row of few tiles, or with tokens in few
// of them, has too few of both for a number of tokens: then all of its tokens count. The threshold decides how long the
// rest takes, and never the result. Where most first tokens have one logit, no threshold divides them: tied_tokens.cuh.
//
//     find_threshold:
//         range = the logits from the least tile maximum, or RELEVANT_SPAN below the first token, up to the first token
//         up to MAX_ROUNDS times:
//             add the amounts of the tiles' first tokens, and of the other ones that count, to the range's 256 bins
//             if the bins reach the goal:
//                 threshold = just below the bin that reaches it; list the first tokens that reach the threshold
//                 if the list is short enough: success; if it is hopelessly long, or most first tokens are equal: fail
//                 if all tokens count, and the first ones are more than the list holds: fail
//                 if the first two count, and the goal is a mass: fail if they are far too many, or if the range is a
//                     neighbourhood already
//                 if all tokens count already, or the goal is a mass and the first two count: range = the neighbourhood
//                     of that bin
//                 otherwise, if the first two count: from now on all tokens of the open tiles count, from this
//                     threshold up
//             otherwise, if the second tokens count already or cannot suffice:
//                 extend the range down to the least maximum; if it is there: list all first tokens, or fail
//                 if the tiles may hold too many others: from now on all tokens count, first down to the least maximum,
//                     then as far as RELEVANT_SPAN
//             from now on the second tokens count, unless the range was extended
//     gather_others: read the open tiles, and list their other tokens that reach the threshold
#pragma once

#include "math/record.cuh"
#include "warp/edited_row.cuh"
#include "block/records.cuh"

// Capacity of the candidate list, and of its list of open tiles.
#define MAX_CANDIDATES 416

// How many equal parts the range of the maxima has, and log2 of that.
#define BINS 256
#define LOG_BINS 8

// How many other tokens an open tile is taken to have, before second tokens are counted.
#define OTHERS_OF_OPEN 4

// How many thresholds find_threshold tries at most.
#define MAX_ROUNDS 6

// The end of a list: it has all tokens of higher logits, and of this logit those up to an id.
struct Threshold {
    float logit;
    u32 last_id;

    DEVICE_MEMBER Threshold(float logit, u32 last_id = ~0u) : logit(logit), last_id(last_id) {}
    DEVICE_MEMBER bool is_reached(float z, u32 id) const { return (z > logit) | ((z == logit) & (id <= last_id)); }
};

// Which tokens of the tiles `find_threshold` counts: the first of each, the first two, or all.
enum Counted { COUNTS_FIRSTS, COUNTS_SECONDS, COUNTS_ALL };

// The candidates, in shared memory: the first tokens of tiles, then the other tokens.
struct CandidateList {
    alignas(16) u64 keys[MAX_CANDIDATES];
    // The amount that each token adds to the mass of the prefix that it ends (M4).
    alignas(16) u64 gains[MAX_CANDIDATES];
    // log2 of the tokens' arrivals. The survey knows the arrivals of the tiles' first tokens.
    float log2_arrivals[MAX_CANDIDATES];
    // Low half: how many first tokens are listed. High half: how many of their tiles are open.
    u32 packed_counts;
    u32 other_count;
    // The bin that holds the threshold: of the goal, and of the count goal if there is one.
    u32 bin;
    u32 count_bin;
    // The first token's logit of a tile in the middle of the row.
    float middle;
    union {
        struct {
            // The keys of the first tokens of open tiles: tiles of which other tokens may reach the threshold.
            u64 open[MAX_CANDIDATES];
            // The sum of the amounts in each bin, the bin of the highest logits first. rank_in_bins uses it and
            // `weights` once more while it writes `ordered` and `from`, which overlap neither.
            alignas(16) u32 bins[BINS];
            union {
                // The weights of the other tokens, by their index in `keys`.
                u32 weights[MAX_CANDIDATES];
                // The number of tokens in each bin, if there is a count goal. No other tokens are listed by then.
                alignas(16) u32 count_bins[BINS];
            };
        };
        // Once all candidates are listed and ranked: the keys in order, the masses of the prefixes that they end, and
        // their indices in `keys`.
        struct {
            u64 ordered[MAX_CANDIDATES];
            u64 masses[MAX_CANDIDATES];
            unsigned short from[MAX_CANDIDATES];
        };
    };

    static_assert(MAX_TILES <= 0xFFFF, "a half word counts the tiles");
    static_assert(MAX_CANDIDATES <= 1 << 16, "a half word has an index in the list");
    static_assert(BINS == 1 << LOG_BINS && BINS % (4 * 32) == 0, "each lane of a warp has whole quads of bins");

    DEVICE_MEMBER u32 first_count() const { return packed_counts & 0xFFFF; }
    DEVICE_MEMBER u32 open_count() const { return packed_counts >> 16; }
    DEVICE_MEMBER u32 count() const { return first_count() + other_count; }
};

static_assert(OFFSET_OF(CandidateList, ordered) + sizeof(CandidateList::ordered) <= OFFSET_OF(CandidateList, bins) &&
                  OFFSET_OF(CandidateList, weights) + sizeof(CandidateList::weights) <= OFFSET_OF(CandidateList, from),
              "rank_in_bins reads the bins and the weights while it writes what is ordered");

// Clears the bins and the counts. A barrier must follow before they are used.
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

// Clears the bins and the counts between barriers: threads may read them before, and add to them afterwards.
DEVICE void clear_between_barriers(CandidateList& candidates) {
    // WAR on the bins and counts: slower warps still read them, all threads clear a part.
    __syncthreads();
    clear(candidates);
    // RAW on the bins and counts: all threads cleared a part, all threads add to them.
    __syncthreads();
}

// Returns, in every lane, the first bin at which the sum from bin 0 on reaches a goal; by one warp. Returns BINS if
// no bin does, and BINS + 1 if all bins together are below half of the goal.
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
    upto = warp_scan(upto);
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

// Writes the result of `find_bin` to `out`, in shared memory; by one warp.
DEVICE void store_bin(const u32* bins, u32 goal, u32& out) {
    const u32 bin = find_bin(bins, goal);
    if (lane_id() == 0) {
        out = bin;
    }
}

// Lists the first tokens that reach a threshold, up to the capacity, and the ones whose tiles are open. Counts
// go on beyond the capacity. A barrier must follow before the lists are read.
DEVICE void list_tile_firsts(CandidateList& candidates, const RowRecords& records, const Threshold& threshold) {
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        const u32 id = tile * TILE + (record.packed & 255);
        if (!threshold.is_reached(record.maximum, id)) {
            return;
        }
        bool opens = record_others_bound(record) >= threshold.logit;
        // Few lanes pass: an atomic in each of them takes less time than finding out by a ballot which do.
        u32 to = atomicAdd(&candidates.packed_counts, opens ? 0x10001u : 1u), index = to & 0xFFFF,
            open_index = to >> 16;
        u64 key = make_key(record.maximum, id);
        if (index < MAX_CANDIDATES) {
            candidates.keys[index] = key;
            candidates.log2_arrivals[index] = record.log2_max_arrival;
        }
        if (opens && open_index < MAX_CANDIDATES) {
            candidates.open[open_index] = key;
        }
    });
}

// Calls `visit(z, id)` for the tokens of the first `open` open tiles but the first of each; a warp takes a tile.
template <class V, class Visit>
DEVICE void for_each_other(const CandidateList& candidates, const V& view, u32 open, Visit visit) {
#pragma unroll 1
    for (u32 index = warp_id(); index < open; index += warp_count()) {
        const u32 first = key_id(candidates.open[index]), tile = first / TILE;
        float z[ITEMS_PER_LANE];
        u32 nonfinite_flags = 0;
        view.load(tile, lane_id(), z, nonfinite_flags);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            const u32 id = tile * TILE + view.offset(lane_id(), j);
            if (id != first) {
                visit(clean(z[j]), id);
            }
        }
    }
}

// Whether a list can take this many first tokens. There are none only if the row is written meanwhile.
DEVICE bool can_list(u32 firsts) { return firsts - 1 < MAX_CANDIDATES; }

// Returns, in every lane, the sum of the bins up to one; by a warp.
DEVICE u32 sum_upto(const u32* bins, u32 last) {
    u32 own = 0;
#pragma unroll 1
    for (u32 bin = lane_id(); bin <= last; bin += 32) {
        own += bins[bin];
    }
    return __reduce_add_sync(FULL_MASK, own);
}

// The largest power of two whose product with x is at most 2^power; x is from 1e-20 to 1e38.
DEVICE float power_of_two_scale(float x, u32 power) {
    return bits_float((2 * 127 - 1 + power - (float_bits(x) - 1 >> 23)) << 23);
}

// A range of heights, from `low` up, in BINS equal bins, the bin of the highest first.
struct HeightBins {
    float low;
    float scale;

    DEVICE_MEMBER HeightBins(float low, float width)
        : low(low), scale(power_of_two_scale(max_f32(width, 1e-20f), LOG_BINS)) {}

    // The height of a bin: 1 / scale.
    DEVICE_MEMBER float part() const { return power_of_two_scale(scale, 0); }

    // The bin of a height, BINS below the range. Each step is monotone, so a lower height has no earlier bin.
    DEVICE_MEMBER u32 bin(float height) const {
        const float position = (height - low) * scale;
        return position >= 0.0f ? BINS - 1 - (u32)fminf(position, BINS - 1) : BINS;
    }

    // Where a bin ends, in bins above `low`: below every height that is in the bin, however its position was rounded.
    DEVICE_MEMBER float end(u32 bin) const { return int_to_float((int)(BINS - 1 - bin)) - 0.0625f; }
};

// Whether most of a row's tiles begin with tokens of one logit, `candidates.middle`, and less than `count` with larger
// ones, as far as each thread's first tile shows.
DEVICE bool begin_alike(CandidateList& candidates, const RowRecords& records, u32 count) {
    const u32 tiles = records.tiles < blockDim.x ? records.tiles : blockDim.x;
    if (threadIdx.x == tiles / 2) {
        candidates.middle = records.first_record.maximum;
    }
    // RAW on middle: a thread wrote it, all threads read it.
    __syncthreads();
    const float middle = candidates.middle, own = records.first_record.maximum;
    const u32 alike = (u32)__syncthreads_count(own == middle), above = (u32)__syncthreads_count(own > middle);
    return 2 * alike > tiles && above < count && middle > MASKED_VALUE;
}

// About how many tokens besides the tiles' first ones reach a logit, if two or more do in `open` of the tiles: in a row
// of many tiles within a tenth of what random tiles have, up to three tokens a tile.
DEVICE u32 tokens_beyond_first(u32 open, u32 tiles) {
    const u32 beyond_second = open * open / tiles;
    return open + beyond_second + beyond_second * open / tiles;
}

// Finds a threshold at which the amounts of tokens reach a goal. Lists the tiles' first tokens that reach it, if
// possible at most `limit`. A tile's first token has the amount `goal_policy.amount(maximum, sum)`. Its second token
// has the amount `goal_policy.other_amount(logit)`, if second tokens count. If all amounts together miss the goal,
// fails unless `Goal::ACCEPTS_ALL`; then lists all first tokens, or counts all tokens. Fails as well if too many tokens
// reach the threshold. With `Goal::HAS_COUNT_GOAL`, a number of tokens is a second goal, `goal_policy.count_goal()`,
// and the higher threshold counts. `first` and `least` are the row's first logit and its least tile maximum;
// `candidates` must be cleared. On success at most MAX_CANDIDATES first tokens are listed, for any `limit` that the
// caller derived from its parameters.
template <class V, class Goal>
DEVICE bool find_threshold(CandidateList& candidates, const RowRecords& records, const V& view, float first,
                           float least, Goal& goal_policy, u32 limit, float& threshold) {
    limit = limit < MAX_CANDIDATES ? limit : MAX_CANDIDATES;
    const HeightScale height_scale(first);
    const float top = height_scale.height(first);
    float widest = max_f32(height_scale.height(least), top - 1e37f);
    // Further below the first token, rows hold hardly any tokens except the ones that masks leave there.
    float low = max_f32(height_scale.height(least), top - RELEVANT_SPAN), width = top - low;
    Counted counted = COUNTS_FIRSTS;
    // How many tiles are listed as open.
    u32 open = 0;
    // Whether the bins divide the neighbourhood of the threshold.
    bool is_fine = false;
    u32* const token_bins = Goal::HAS_COUNT_GOAL ? candidates.count_bins : candidates.bins;
    // Whether a number of tokens is to be found by their ids, which is known before all tokens count.
    auto are_alike = [&](Counted counted) INLINE {
        if constexpr (Goal::ACCEPTS_ALL) {
            return counted != COUNTS_ALL && begin_alike(candidates, records, goal_policy.count);
        } else {
            return false;
        }
    };
#pragma unroll 1
    for (u32 round = 1; round <= MAX_ROUNDS; round++) {
        const HeightBins range(low, width);
        const float part = range.part();
        records.for_each_with_sum([&](u32, const TileRecord& record, u64 sum) INLINE {
            auto add = [&](float z, u32 amount) INLINE {
                const u32 bin = range.bin(height_scale.height(z));
                if (bin < BINS) {
                    atomicAdd(&candidates.bins[bin], amount);
                    if constexpr (Goal::HAS_COUNT_GOAL) {
                        atomicAdd(&candidates.count_bins[bin], 1u);
                    }
                }
            };
            add(record.maximum, goal_policy.amount(record.maximum, sum));
            if (counted == COUNTS_SECONDS) {
                float second = record_others_lower_bound(record);
                add(second, goal_policy.other_amount(second));
            }
        });
        if constexpr (Goal::ACCEPTS_ALL) {
            for_each_other(candidates, view, counted == COUNTS_ALL ? open : 0, [&](float z, u32) INLINE {
                const u32 bin = range.bin(height_scale.height(z));
                if (bin < BINS) {
                    atomicAdd(&token_bins[bin], 1u);
                }
            });
        }
        goal_policy.publish_mass();
        // RAW on the bins and the policy's masses: all warps added to them, one warp reads them for each goal.
        __syncthreads();
        // One warp searches the bins: if all did, they would wait for each other's instructions.
        if (warp_id() == 0) {
            store_bin(candidates.bins, goal_policy.goal(), candidates.bin);
        }
        if constexpr (Goal::HAS_COUNT_GOAL) {
            if (warp_id() == warp_count() - 1) {
                store_bin(candidates.count_bins, goal_policy.count_goal(), candidates.count_bin);
            }
        }
        // RAW on candidates.bin and count_bin: one lane wrote each of them, all threads read them.
        __syncthreads();
        u32 bin = candidates.bin;
        if constexpr (Goal::HAS_COUNT_GOAL) {
            bin = candidates.count_bin < bin ? candidates.count_bin : bin;
        }
        if (bin < BINS && goal_policy.exceeds(MAX_CANDIDATES)) {
            return false;
        }
        if (bin < BINS) {
            const float lowest = range.end(bin);
            threshold = max_f32(height_scale.at(low + lowest * part), MIN_TOKEN_VALUE);
            list_tile_firsts(candidates, records, threshold);
            u32 count = counted == COUNTS_ALL ? sum_upto(token_bins, bin) : 0, most = MAX_CANDIDATES;
            // RAW on packed_counts: all threads listed tokens, all threads read the counts. WAR on the bins: all warps
            // read them, weights that are gathered overwrite them.
            __syncthreads();
            const u32 firsts = candidates.first_count();
            open = candidates.open_count();
            if (counted == COUNTS_ALL && !can_list(firsts)) {
                // The threshold lies below its bin, so first tokens are listed that no bin counted.
                return false;
            }
            if (counted == COUNTS_FIRSTS) {
                // Many open tiles hold many others.
                count = firsts;
                most = firsts + OTHERS_OF_OPEN * open <= MAX_CANDIDATES ? limit : 0;
            } else if (counted == COUNTS_SECONDS) {
                // The more open tiles there are, the more of them hold third tokens.
                count = firsts + (Goal::ACCEPTS_ALL ? 2 * open : tokens_beyond_first(open, records.tiles));
            }
            const bool is_short = count <= most || (round == MAX_ROUNDS && firsts <= MAX_CANDIDATES);
            if (is_short && (counted == COUNTS_FIRSTS || !Goal::ACCEPTS_ALL)) {
                return true;
            }
            if (are_alike(counted) || (!Goal::ACCEPTS_ALL && first == least && firsts > MAX_CANDIDATES)) {
                // No threshold divides the first tokens.
                return false;
            }
            if (is_short) {
                return true;
            }
            if (counted == COUNTS_SECONDS && goal_policy.gives_up(count, is_fine)) {
                return false;
            }
            if (Goal::ACCEPTS_ALL && counted == COUNTS_SECONDS && firsts <= MAX_CANDIDATES) {
                // Enough tokens reach this threshold, all of them in the listed tiles.
                counted = COUNTS_ALL;
                low += (lowest - 0.5f) * part;
                width = top - low;
            } else if (counted != COUNTS_FIRSTS) {
                // Most of the tokens lie in one bin: the next round divides its neighbourhood more finely.
                low += (lowest - 0.5f) * part;
                width = 2.0f * part;
                is_fine = true;
            } else {
                counted = COUNTS_SECONDS;
            }
        } else if (bin == BINS && counted == COUNTS_FIRSTS) {
            // The bins hold at least half of the goal, and the second tokens may add the rest.
            counted = COUNTS_SECONDS;
        } else if (low > widest) {
            low = widest;
            width = top - low;
        } else if (Goal::ACCEPTS_ALL && !are_alike(counted)) {
            // Either the row has too few tokens for the goal, or few tiles hold them.
            threshold = MIN_TOKEN_VALUE;
            list_tile_firsts(candidates, records, threshold);
            // RAW on packed_counts: all threads listed tokens, all threads read the counts.
            __syncthreads();
            open = candidates.open_count();
            if (candidates.first_count() > MAX_CANDIDATES) {
                return false;
            }
            if (counted == COUNTS_ALL || candidates.first_count() + open * (TILE - 1) <= MAX_CANDIDATES) {
                return true;
            }
            counted = COUNTS_ALL;
            // Usually few more tokens than the goal reach the least of the first ones, and each adds to a bin.
            low = max_f32(widest, top - RELEVANT_SPAN);
            widest = top - RELEVANT_SPAN;
            width = top - low;
        } else {
            return false;
        }
        clear_between_barriers(candidates);
    }
    return false;
}

// The weight of a tile's first token relative to itself, in units of 2^-28 (M3).
#define MAX_WEIGHT (1u << 28)

// Gathers the tokens of an open tile that reach the threshold, except its first, and the gain of each in mass; by
// one warp. `top` is the key of the tile's first token.
template <class V>
DEVICE void gather_tile(CandidateList& candidates, const V& view, const Threshold& threshold, float first,
                        float log2e_over_t, u64 top) {
    float z[ITEMS_PER_LANE];
    u32 firsts = candidates.first_count(), lane = lane_id(), id = key_id(top), tile = id / TILE, nonfinite_flags = 0;
    view.load(tile, lane, z, nonfinite_flags, threshold.logit);
    // The factor needs no logits of the tile, so it is computed while they load.
    float maximum = key_logit(top), factor = tile_factor(maximum, first, log2e_over_t);
    const TokenWeights token_weights(maximum, log2e_over_t);
    u32 passing = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const u32 own = tile * TILE + view.offset(lane, j);
        passing |= threshold.is_reached(z[j], own) & (own != id) ? 1u << j : 0;
    }
    u32 count = __reduce_add_sync(FULL_MASK, __popc(passing));
    if (count == 0) {
        return;
    }
    // The tile's tokens get consecutive indices, so that the warp finds them again below.
    u32 start = firsts + __shfl_sync(FULL_MASK, lane == 0 ? atomicAdd(&candidates.other_count, count) : 0, 0),
        end = start + count;
    if (end > MAX_CANDIDATES) {
        // The list has failed.
        return;
    }
    // A lane has one of these tokens, if any.
#pragma unroll 1
    for (u32 at = start; at < end;) {
        u32 having = __ballot_sync(FULL_MASK, passing != 0), to = at + __popc(having & ((1u << lane) - 1));
        if (passing != 0) {
            u32 j = __ffs((int)passing) - 1;
            float own = clean(select_item(z, j));
            candidates.keys[to] = make_key(own, tile * TILE + view.offset(lane, j));
            candidates.weights[to] = token_weights.of(own);
        }
        passing &= passing - 1;
        at += __popc(having);
    }
    // RAW on keys and weights: all lanes wrote tokens of the tile, each lane reads all of them.
    __syncwarp();
#pragma unroll 1
    for (u32 i = start + lane; i < end; i += 32) {
        u64 own = candidates.keys[i], q = MAX_WEIGHT;
#pragma unroll 4
        for (u32 j = start; j < end; j++) {
            q += candidates.keys[j] > own ? candidates.weights[j] : 0;
        }
        candidates.gains[i] = tile_mass(factor, q + candidates.weights[i]) - tile_mass(factor, q);
    }
}

// Gathers the other tokens of the open tiles that reach the threshold. Computes what each candidate adds to the mass
// at a scale. Returns false if there are more candidates than MAX_CANDIDATES.
template <class V>
DEVICE bool gather_others(CandidateList& candidates, const V& view, const Threshold& threshold, float first,
                          float log2e_over_t) {
    u32 firsts = candidates.first_count(), open = candidates.open_count();
    if (!can_list(firsts)) {
        return false;
    }
#pragma unroll 1
    for (u32 index = warp_id(); index < open; index += warp_count()) {
        gather_tile(candidates, view, threshold, first, log2e_over_t, candidates.open[index]);
    }
    // Tokens are dealt out from the last thread on, because the first warps wait for logits of open tiles.
#pragma unroll 1
    for (u32 i = blockDim.x - 1 - threadIdx.x; i < firsts; i += blockDim.x) {
        candidates.gains[i] = tile_mass(tile_factor(key_logit(candidates.keys[i]), first, log2e_over_t), MAX_WEIGHT);
    }
    // RAW on the candidates: all warps wrote keys, gains and counts, all threads read them.
    __syncthreads();
    return candidates.count() <= MAX_CANDIDATES;
}
