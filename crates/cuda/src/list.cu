// list.cu: filters on short sets, and the race among what they keep (rules F1, F2, F4, M4, D1); device functions of a
// block.
//
// Computes   what top-k or a small nucleus and the filters after it keep, and which of those tokens wins
// Never      reads a tile that holds no more of the list than its first token; never sorts by anything but keys, which
//            all differ
// Twins      CPU cpu/src/filter/{list,select}.rs | why docs/stages/filter.md
// Traffic    8 bytes per tile for a nucleus; the logits of the tiles that the list has several tokens of
// Requires   all threads of the block, whole warps
//
// Each token counts the tokens before it, which gives its place, and sums the weights of those in its tile, which
// gives what it adds to the mass of the prefix it ends. One warp does the rest.
#pragma once

#include "ending.cu"
#include "gather.cuh"

// The one list of a block.
DEVICE Gathered& block_list() {
    static_assert(sizeof(Gathered) <= LISTED * sizeof(u64), "the room for tokens on chip holds a list");
    return *(Gathered*)shared_list();
}

// What a chain of filters goes by, read once: each read of memory would make the block wait.
struct Chain {
    u32 filters;
    u32 top_k;
    u32 top_p;
    float min_p;
    float epsilon;
    float xtc_threshold;
    // Whether some of the filters ask for masses.
    bool weighs;
};

DEVICE bool weighs(u32 filters) {
    bool weighs = false;
#pragma unroll 1
    for (; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        weighs = weighs || filter == FILTER_TOP_P || filter == FILTER_EPSILON || filter == FILTER_XTC;
    }
    return weighs;
}

DEVICE Chain chain_of(const Params& params) {
    return Chain{params.chain, params.top_k, params.top_p, params.min_p, params.epsilon, params.xtc_threshold,
                 weighs(params.chain)};
}

// Says that the list came to nothing.
DEVICE bool not_listed() {
    // Without it others could use the room for something else while a slower warp still reads why.
    __syncthreads();
    return false;
}

// Asks `find_bar` for a number of tokens.
struct ByCount {
    u32 count;

    DEVICE_MEMBER u32 amount(float, u64) { return 1; }
    DEVICE_MEMBER u32 amount_of(float) const { return 1; }
    DEVICE_MEMBER bool gives_up(u32) const { return false; }
    DEVICE_MEMBER void add_up() {}
    DEVICE_MEMBER u32 goal() { return count; }
};

// Asks `find_bar` for a part of the row's mass, and adds that up on the way.
struct ByMass {
    float first;
    float s;
    u32 top_p;
    u64* scratch;
    u64 own;
    // About the row's mass.
    u64 mass;

    // In units of 2^-19 of the first token's weight, so that those of all tiles fit a word; rounded down.
    DEVICE_MEMBER u32 amount_of(float z) const { return (u32)(exp2_rule((z - first) * s) * 524288.0f); }
    DEVICE_MEMBER u32 amount(float maximum, u64 sum) {
        if (!(maximum > -INFINITE)) {
            return 0;
        }
        own += tile_mass(exp2_rule((maximum - first) * s), sum);
        return amount_of(maximum);
    }
    // So many tokens more than there is room for: few of them lie in one bin, and a search takes less than to find out.
    DEVICE_MEMBER bool gives_up(u32 count) const { return count > GATHERED + GATHERED / 4; }
    DEVICE_MEMBER void add_up() {
        own = warp_sum(own);
        if (lane_id() == 0) {
            scratch[warp_id()] = own;
        }
        own = 0;
    }
    // After a barrier; rounded up.
    DEVICE_MEMBER u32 goal() {
        mass = warp_sum(lane_id() < warps() ? scratch[lane_id()] : 0);
        u64 goal = (target_mass(top_p, most_of(mass)) >> 24) + 1;
        return goal >> 32 ? ~0u : (u32)goal;
    }
};

// Draws the arrivals of the listed tokens that are not the first of their tiles; by some threads, of which this is one.
DEVICE void draw_arrivals(Gathered& list, const Stream& stream, u32 thread, u32 threads) {
    u32 tops = list.top_count(), count = list.count();
#pragma unroll 1
    for (u32 i = tops + thread; i < count; i += threads) {
        u32 id = key_id(list.keys[i]), tile = id / TILE;
        First first = first_arrival(stream, tile);
        list.log_arrivals[i] = log2_of_normal(token_arrival(stream, first, tile, id % TILE));
    }
}

// Keys that are read at once.
struct alignas(16) Pair {
    u64 key[2];
};

// Puts the listed tokens in order; by the first warps, of `threads` threads. `first` is the row's first logit.
DEVICE void rank(Gathered& list, float first, float s, u32 threads) {
    const u32 WHOLE = 1 << 28;
    u32 tops = list.top_count(), count = list.count();
    // So many threads count for one token: as large a power of two as there are threads for.
    int shift = count <= threads ? leading_zeros(count) - leading_zeros(threads) : 0;
    shift -= shift > 0 && count << shift > threads;
    shift = shift < 5 ? shift : 5;
    u32 share = 1u << shift, part = threadIdx.x & (share - 1);
#pragma unroll 1
    for (u32 start = 0; start < count; start += threads >> shift) {
        u32 i = start + (threadIdx.x >> shift);
        bool is_other = i >= tops && i < count;
        u64 own = i < count ? list.keys[i] : ~0ull;
        float factor = i < count ? exp2_rule((list.maxima[i] - first) * s) : 0.0f;
        u32 before = 0;
#pragma unroll 1
        for (u32 j = 2 * part; j < count; j += 2 * share) {
            Pair pair = ((const Pair*)list.keys)[j / 2];
            before += pair.key[0] > own;
            before += j + 1 < count && pair.key[1] > own;
        }
#pragma unroll 1
        for (u32 apart = 1; apart < share; apart *= 2) {
            before += __shfl_xor_sync(ALL_LANES, before, (int)apart);
        }
        // The sum of the weights of the tokens before it in its tile, of which the tile's first is one; and its own.
        u64 q = 0;
        u32 weight = WHOLE;
        if (__any_sync(ALL_LANES, is_other)) {
#pragma unroll 1
            for (u32 j = tops + part; is_other && j < count; j += share) {
                u64 other = list.keys[j];
                q += (u32)(own ^ other) < TILE && other > own ? list.weights[j] : 0;
            }
#pragma unroll 1
            for (u32 apart = 1; apart < share; apart *= 2) {
                q += __shfl_xor_sync(ALL_LANES, q, (int)apart);
            }
            q += is_other ? WHOLE : 0;
            weight = is_other ? list.weights[i] : WHOLE;
        }
        if (i < count && part == 0) {
            list.ordered[before] = own;
            list.from[before] = (unsigned short)i;
            list.steps[before] = tile_mass(factor, q + weight) - (is_other ? tile_mass(factor, q) : 0);
        }
    }
}

// What the tokens of a list add to the mass becomes the masses of its prefixes; by a warp.
DEVICE void add_up(u64* steps, u32 count) {
    u32 each = (count + 31) / 32, start = lane_id() * each, end = start + each < count ? start + each : count;
    u64 own = 0;
#pragma unroll 1
    for (u32 i = start; i < end; i++) {
        own += steps[i];
    }
    u64 upto = own;
#pragma unroll
    for (u32 delta = 1; delta < 32; delta *= 2) {
        u64 other = __shfl_up_sync(ALL_LANES, upto, delta);
        upto += lane_id() >= delta ? other : 0;
    }
    upto -= own;
#pragma unroll 1
    for (u32 i = start; i < end; i++) {
        upto += steps[i];
        steps[i] = upto;
    }
    // Without it a lane would read what another has not added up yet.
    __syncwarp();
}

// How many of the first tokens of a list pass; by a warp.
template <class Passes>
DEVICE u32 passing(u32 count, Passes passes) {
    u32 passing = 0;
#pragma unroll 1
    for (u32 i = lane_id(); i < count; i += 32) {
        passing += passes(i);
    }
    return __reduce_add_sync(ALL_LANES, passing);
}

// Places in the list from `start` on and before `end`.
struct Places {
    u32 start;
    u32 end;
    // Whether the row's mass decides the same wherever it lies.
    bool sure;
};

// What a chain of filters keeps of a row whose first tokens are listed, by a warp. `mass` is about that of what the first
// filter is given, if that is not the list.
template <class XtcActs>
DEVICE Places filter_list(Gathered& list, const Chain& chain, float s, u64 mass, XtcActs xtc_acts) {
    Places kept{0, list.count(), true};
    if (chain.weighs) {
        add_up(list.steps, kept.end);
    }
    float first = key_logit(list.ordered[0]);
#pragma unroll 1
    for (u32 filters = chain.filters; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        float threshold = chain.min_p;
        if (filter == FILTER_TOP_K) {
            kept.end = kept.end < chain.top_k ? kept.end : chain.top_k;
            continue;
        }
        if (filter != FILTER_MIN_P) {
            bool about = filters == chain.filters && mass != 0;
            mass = about ? mass : list.steps[kept.end - 1];
            if (filter == FILTER_TOP_P) {
                u64 target = target_mass(chain.top_p, about ? most_of(mass) : mass);
                u32 before = passing(kept.end, [&](u32 i) INLINE { return list.steps[i] < target; });
                if (about) {
                    bool same = before == 0 || list.steps[before - 1] < target_mass(chain.top_p, least_of(mass));
                    kept.sure = before < kept.end && same;
                }
                kept.end = before < kept.end ? before + 1 : kept.end;
                continue;
            }
            threshold = (filter == FILTER_XTC ? chain.xtc_threshold : chain.epsilon) + log_mass(mass);
        }
        u32 reach = passing(kept.end, [&](u32 i) INLINE { return (key_logit(list.ordered[i]) - first) * s >= threshold; });
        if (filter != FILTER_XTC) {
            kept.end = reach > 1 ? reach : 1;
        } else if (reach > 1 && xtc_acts()) {
            // It is the last of its chain, or the chain would not be done on a list.
            kept.start = reach - 1;
        }
    }
    return kept;
}

// The winner of the race among listed tokens, by a warp; `place` in shared memory becomes its place.
DEVICE u32 race_listed(const Gathered& list, const Places& kept, float s, u32& place) {
    float first = key_logit(list.ordered[kept.start]);
    u64 leader = 0;
    u32 own_place = 0;
#pragma unroll 1
    for (u32 i = kept.start + lane_id(); i < kept.end; i += 32) {
        u64 key = list.ordered[i];
        u64 own = leader_of((key_logit(key) - first) * s - list.log_arrivals[list.from[i]], key_id(key));
        own_place = own > leader ? i : own_place;
        leader = own > leader ? own : leader;
    }
    u64 best = warp_max(leader);
    if (leader == best) {
        place = own_place;
    }
    return key_id(best);
}

// Lists the first tokens of a row, in order: at least all that the filters keep. The request must ask for a list, and it
// must have been cleared, with a barrier after that. Fails if what the filters keep may be long. In the first warp `mass`
// becomes about the row's, if it is known and the list is not the row.
template <class V>
DEVICE bool list_row(const Step& step, const Records& records, const V& view, const Chain& chain,
                     const Stream& stream, const Whole& whole, float s, u64& mass) {
    __shared__ u64 scratch[32];
    Gathered& list = block_list();
    float first = key_logit(whole.first), bar = -LARGEST;
    mass = 0;
    bool found = true;
    if (step.vocab <= GATHERED) {
        list_tops(list, records, bar);
        // Without it a warp would miss what others have not listed yet.
        __syncthreads();
    } else if ((chain.filters & 15) == FILTER_TOP_K) {
        ByCount want{chain.top_k};
        found = find_bar(list, records, first, whole.least, want, chain.top_k + chain.top_k / 4 + 16, bar);
    } else {
        ByMass want{first, s, chain.top_p, scratch, 0, 0};
        found = find_bar(list, records, first, whole.least, want, GATHERED / 4, bar);
        mass = want.mass;
    }
    if (!found || !gather_others(list, view, bar, s)) {
        return not_listed();
    }
    // Helpers leave while the list is worked on.
    need_no_help(step);
    // The last warps draw arrivals while the others put the tokens in order.
    u32 drawing = (list.others + 31) / 32 < warps() / 2 ? (list.others + 31) / 32 : warps() / 2;
    u32 ranking = blockDim.x - 32 * drawing;
    if (drawing == 0) {
        draw_arrivals(list, stream, threadIdx.x, blockDim.x);
    } else if (threadIdx.x >= ranking) {
        draw_arrivals(list, stream, threadIdx.x - ranking, 32 * drawing);
    }
    if (threadIdx.x < ranking) {
        rank(list, first, s, ranking);
    }
    // Without it the first warp would read places that others have not filled yet.
    __syncthreads();
    return true;
}

// What the filters keep of a row that is listed, and which token wins, if the list says so for sure.
struct Drawn {
    Given kept;
    u32 token;
    bool sure;
    // Of the token in the list.
    u32 place;
};

// The same, in every thread, by the first warp. `xtc_acts` says whether XTC acts on the row; all threads do `meanwhile` once
// they have no part in the draw.
template <class XtcActs, class Meanwhile>
DEVICE const Drawn& draw_listed(const Chain& chain, const Heat& heat, u64 mass, XtcActs xtc_acts, Meanwhile meanwhile) {
    __shared__ Drawn drawn;
    if (warp_id() == 0) {
        Gathered& list = block_list();
        Places places = filter_list(list, chain, heat.filter_s, mass, xtc_acts);
        u32 token = race_listed(list, places, heat.s, drawn.place);
        if (lane_id() == 0) {
            u64 from = list.ordered[places.start], to = list.ordered[places.end - 1];
            drawn.kept = Given{Cut{from, to}, key_logit(from), places.start == 0};
            drawn.token = token;
            drawn.sure = places.sure;
        }
    }
    meanwhile();
    // Without it the other warps would read what came of it too early.
    __syncthreads();
    return drawn;
}
