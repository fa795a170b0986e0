// list.cu: filters on short sets, and the race among what they keep (rules F1, F2, F4, M4, D1); device functions of a
// block.
//
// Computes   what top-k or a small nucleus and the filters after it keep, and which of those tokens wins
// Never      reads a tile that holds no token of the list; never sorts by anything but keys, which all differ
// Twins      CPU cpu/src/filter/{list,select}.rs | why docs/stages/filter.md
// Traffic    16 bytes per tile, 8 more for a nucleus; the logits of the tiles that the list's tokens lie in
// Requires   all threads of the block, whole warps; results are in every thread
//
// Each token counts the tokens before it, which gives its place, and sums the weights of those in its tile, which
// gives what it adds to the mass of the prefix it ends. One warp does the rest.
#pragma once

#include "ending.cu"
#include "gather.cuh"

// Tokens in the order, and what is known of them, in shared memory.
struct Listed {
    Gathered gathered;
    // By place among the gathered.
    u32 weights[GATHERED];
    float factors[GATHERED];
    // By place in the order: the key, what the token adds to the mass, and its place among the gathered.
    u64 keys[GATHERED];
    u64 steps[GATHERED];
    unsigned short gathered_as[GATHERED];
};

// The one list of a block.
DEVICE Listed& block_list() {
    static_assert(sizeof(Listed) <= LISTED * sizeof(u64), "the room for tokens on chip holds a list");
    return *(Listed*)shared_list();
}

// What a chain of filters goes by, read once: each read of memory would make the block wait.
struct Chain {
    u32 filters;
    u32 top_k;
    u32 top_p;
    float min_p;
    float epsilon;
    float xtc_threshold;
};

DEVICE Chain chain_of(const Params& params) {
    return Chain{params.chain, params.top_k, params.top_p, params.min_p, params.epsilon, params.xtc_threshold};
}

// What the list came to.
struct Drawn {
    Given kept;
    u32 token;
    // Whether the list said what the filters keep.
    bool found;
};

// Says that the list came to nothing.
DEVICE bool not_listed() {
    // Without it others could use the room for something else while a slower warp still reads why.
    __syncthreads();
    return false;
}

// Whether some of the filters ask for masses.
DEVICE bool weighs(u32 filters) {
    bool weighs = false;
    for (; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        weighs = weighs || filter == FILTER_TOP_P || filter == FILTER_EPSILON || filter == FILTER_XTC;
    }
    return weighs;
}

// Weighs the listed tokens, which are the first of the row.
DEVICE void weigh_listed(Listed& list, u32 count, const Record* records, float first, float s) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = list.gathered.keys[i];
        float maximum = records[key_id(key) / TILE].maximum;
        list.weights[i] = weight((key_logit(key) - maximum) * s);
        list.factors[i] = exp2_rule((maximum - first) * s);
    }
}

// Draws the arrivals of the listed tokens; by some threads, of which this is one.
DEVICE void draw_arrivals(Listed& list, u32 count, const Stream& stream, u32 thread, u32 threads) {
    for (u32 i = thread; i < count; i += threads) {
        u32 id = key_id(list.gathered.keys[i]), tile = id / TILE;
        First first = first_arrival(stream, tile);
        list.gathered.log_arrivals[i] = log2_of_normal(token_arrival(stream, first, tile, id % TILE));
    }
}

// Puts the listed tokens in order; by the first warps, of `threads` threads.
DEVICE void rank(Listed& list, u32 count, u32 threads) {
    const u32 RANK = 44;
    // So many threads count for one token.
    u32 share = 1;
    while (share < 32 && 2 * share * count <= threads) {
        share *= 2;
    }
    u32 part = threadIdx.x % share;
    for (u32 start = 0; start < count; start += threads / share) {
        u32 i = start + threadIdx.x / share;
        u64 own = i < count ? list.gathered.keys[i] : ~0ull;
        // The number of tokens before this one, and the sum of the weights of those in its tile.
        u64 before = 0;
#pragma unroll 4
        for (u32 j = part; j < count; j += share) {
            u64 other = list.gathered.keys[j];
            bool same_tile = (u32)(own ^ other) < TILE;
            before += other > own ? (1ull << RANK) + (same_tile ? list.weights[j] : 0) : 0;
        }
        for (u32 apart = 1; apart < share; apart *= 2) {
            before += __shfl_xor_sync(ALL_LANES, before, (int)apart);
        }
        if (i < count && part == 0) {
            u32 place = (u32)(before >> RANK);
            u64 q = before & ((1ull << RANK) - 1);
            list.keys[place] = own;
            list.gathered_as[place] = (unsigned short)i;
            list.steps[place] = tile_mass(list.factors[i], q + list.weights[i]) - tile_mass(list.factors[i], q);
        }
    }
}

// A list over the lanes of a warp: each has as many tokens that follow each other.
struct Spread {
    const Listed& list;
    u32 each;
    u32 start;
    // The mass of the tokens before the lane's own, and with them.
    u64 before;
    u64 upto;

    DEVICE_MEMBER Spread(const Listed& list, u32 count, bool weighs)
        : list(list), each((count + 31) / 32), start(lane_id() * each), before(0), upto(0) {
        if (!weighs) {
            return;
        }
        u64 own = 0;
        for (u32 i = start; i < start + each && i < count; i++) {
            own += list.steps[i];
        }
        upto = own;
#pragma unroll
        for (u32 delta = 1; delta < 32; delta *= 2) {
            u64 other = __shfl_up_sync(ALL_LANES, upto, delta);
            upto += lane_id() >= delta ? other : 0;
        }
        before = upto - own;
    }

    // The mass of the first `count` tokens, at least one.
    DEVICE_MEMBER u64 mass(u32 count) const {
        u64 mass = before;
        for (u32 i = start; i < start + each && i < count; i++) {
            mass += list.steps[i];
        }
        return __shfl_sync(ALL_LANES, mass, (int)((count - 1) / each));
    }

    // How many of the first `count` tokens first reach a mass, at least one; more than `count` if they do not.
    DEVICE_MEMBER u32 reaching(u64 target, u32 count) const {
        u32 lanes = __ballot_sync(ALL_LANES, upto >= target);
        if (lanes == 0) {
            return count + 1;
        }
        u32 place = start;
        u64 mass = before;
        for (u32 i = 0; i < each; i++) {
            mass += start + i < count ? list.steps[start + i] : 0;
            place += mass < target;
        }
        return __shfl_sync(ALL_LANES, place, __ffs((int)lanes) - 1) + 1;
    }

    // How many of the first `count` tokens have a y of at least `threshold`.
    DEVICE_MEMBER u32 at_least(float threshold, float s, u32 count) const {
        float first = key_logit(list.keys[0]);
        u32 passing = 0;
        for (u32 i = lane_id(); i < count; i += 32) {
            passing += (key_logit(list.keys[i]) - first) * s >= threshold;
        }
        return __reduce_add_sync(ALL_LANES, passing);
    }
};

// Places in the list from `start` on and before `end`; none if the list does not say.
struct Places {
    u32 start;
    u32 end;
};

// Bounds of a mass.
struct Bounds {
    u64 least;
    u64 most;
};

// What a chain of filters keeps of a row whose first `count` tokens are listed, by a warp. `all` says whether that is the
// row; if it is not and the first filter asks for the row's mass, `total` bounds it.
template <class XtcActs>
DEVICE Places filter_list(const Listed& list, u32 count, bool all, const Chain& chain, float s, const Bounds& total,
                          XtcActs xtc_acts) {
    Places kept{0, count};
    Spread spread(list, count, weighs(chain.filters));
    for (u32 filters = chain.filters; filters != 0; filters >>= 4, all = true) {
        u32 filter = filters & 15, end = kept.end;
        float threshold = chain.min_p;
        if (filter == FILTER_TOP_K) {
            kept.end = end < chain.top_k ? end : chain.top_k;
            continue;
        }
        if (filter != FILTER_MIN_P) {
            u64 mass = all ? spread.mass(end) : total.least;
            if (filter == FILTER_TOP_P) {
                kept.end = spread.reaching(target_mass(chain.top_p, mass), end);
                // If all masses within the bounds have the token found in common, it is the one.
                bool sure = all || (kept.end <= end && spread.mass(kept.end) >= target_mass(chain.top_p, total.most));
                if (!sure) {
                    return Places{0, 0};
                }
                continue;
            }
            threshold = (filter == FILTER_XTC ? chain.xtc_threshold : chain.epsilon) + log_mass(mass);
        }
        u32 passing = spread.at_least(threshold, s, end);
        if (filter != FILTER_XTC) {
            kept.end = passing > 1 ? passing : 1;
        } else if (passing > 1 && xtc_acts()) {
            // It is the last of its chain, or the chain would not be done on a list.
            kept.start = passing - 1;
        }
    }
    return kept;
}

// The winner of the race among listed tokens, by a warp.
DEVICE u32 race_listed(const Listed& list, const Places& kept, float s) {
    float first = key_logit(list.keys[kept.start]);
    u64 leader = 0;
    for (u32 i = kept.start + lane_id(); i < kept.end; i += 32) {
        u64 key = list.keys[i];
        u64 own = leader_of((key_logit(key) - first) * s - list.gathered.log_arrivals[list.gathered_as[i]], key_id(key));
        leader = own > leader ? own : leader;
    }
    return key_id(warp_max(leader));
}

// Does a row's filters and its race on a list, if what the filters keep is short. The request must ask for it, and the list
// must have been cleared, with a barrier after that. `xtc_acts` says whether XTC acts on the row.
template <class V, class XtcActs>
DEVICE bool draw_listed(const Step& step, u32 row, const V& view, const Chain& chain, const Stream& stream, const Ends& ends,
                        const Heat& heat, XtcActs xtc_acts, Given& kept, int& token) {
    __shared__ Drawn drawn;
    Listed& list = block_list();
    Gathered& gathered = list.gathered;
    const Record* records = step.records + (u64)row * step.tiles;
    const float first = key_logit(ends.first);
    const float filter_s = heat.filter_s;
    bool all = step.vocab <= GATHERED, by_count = (chain.filters & 15) == FILTER_TOP_K;
    Bounds total{0, 0};

    if (!all && by_count) {
        u32 limit = chain.top_k + chain.top_k / 4 + 16;
        if (!find_bar(gathered, records, step.tiles, ends, chain.top_k, limit, [](float) { return 1u; })) {
            return not_listed();
        }
    } else if (!all) {
        const u64* sums = step.sums + (u64)row * step.tiles;
        u64 own = 0;
        for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
            own += tile_mass(exp2_rule((records[tile].maximum - first) * filter_s), sums[tile]);
        }
        u64 mass = block_sum(own);
        total = Bounds{mass, mass};
        // In units of 2^-19 of the first token's weight, so that those of all tiles fit a word; rounded up.
        u64 goal = (target_mass(chain.top_p, total.most) >> 24) + 1;
        if (goal >> 32 || !find_bar(gathered, records, step.tiles, ends, (u32)goal, GATHERED / 4, [=](float z) {
                return (u32)(exp2_rule((z - first) * filter_s) * 524288.0f);
            })) {
            return not_listed();
        }
    }
    if (!gather(gathered, view, step.tiles, all)) {
        return not_listed();
    }

    u32 count = gathered.count;
    if (weighs(chain.filters)) {
        weigh_listed(list, count, records, first, filter_s);
        // Without it a warp would sum weights that others have not written yet.
        __syncthreads();
    }
    // Half of the warps put the tokens in order while the others draw their arrivals.
    u32 half = warps() > 1 ? warps() / 2 * 32 : 0;
    if (threadIdx.x >= half) {
        draw_arrivals(list, count, stream, threadIdx.x - half, blockDim.x - half);
    }
    if (threadIdx.x < half || half == 0) {
        rank(list, count, half ? half : 32);
    }
    // Without it the first warp would read places that others have not filled yet.
    __syncthreads();
    if (warp_id() == 0) {
        Places places = filter_list(list, count, all || by_count, chain, filter_s, total, xtc_acts);
        bool found = places.end > places.start;
        u32 winner = found ? race_listed(list, places, heat.s) : 0;
        if (lane_id() == 0) {
            u64 from = list.keys[places.start], to = found ? list.keys[places.end - 1] : 0;
            drawn = Drawn{Given{Cut{from, to}, key_logit(from), places.start == 0}, winner, found};
        }
    }
    // Without it the other warps would read what came of it too early.
    __syncthreads();
    kept = drawn.kept;
    token = (int)drawn.token;
    return drawn.found;
}
