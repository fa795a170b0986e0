// list.cu: filters on short sets, and the race among what they keep (rules F1, F2, F4, M4, D1); device functions of a
// block.
//
// Computes   what top-k or a small nucleus and the filters after it keep, and which of those tokens wins
// Never      reads a tile that holds no more of the list than its first token; never sorts by anything but keys, which
//            all differ; never asks a long nucleus for its end where top-k keeps a short list of it
// Twins      CPU cpu/src/filter/{list,select}.rs | why docs/stages/filter.md
// Traffic    8 bytes per tile for a nucleus; the logits of the tiles that the list has several tokens of
// Requires   all threads of the block, whole warps
//
// Joint top-k and top-p (F9): each keeps a prefix of the order, so together they keep the shorter one. Let M(i) be the mass of the first i
// tokens, by the one mass function (M4), and G the goal of the nucleus, which goes by the mass of the whole row. The nucleus ends with the
// first i with M(i) >= G, and top-k with i = k: the list has the first k tokens and M of each, so it has the first end of the two. Of G the
// survey knows bounds; the end is sure if it is the same at both. Where no i below k has M(i) >= G at either, k is the end, and
// nobody asks how long the nucleus is. One visit to the records finds two bars: k tokens reach one, and tokens that weigh the goal at its
// upper bound reach the other. The list goes down to the higher one: of a short nucleus it is the nucleus, and else the first k.
//
// Each token counts the tokens before it, which gives its place, and adds up what they add to the mass of the prefix it ends: of a
// tile's first token that is known at once, of others the warp that finds them knows. One warp does the rest.
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
    // Whether top-p goes by the mass of the row wherever it stands.
    bool joint;
    u32 top_k;
    u32 top_p;
    // As `min_p_of` says.
    float min_p;
    float epsilon;
    float xtc_threshold;
};

DEVICE Chain chain_of(const Params& params) {
    bool joint = (params.asks & ASKS_JOINT) != 0;
    return Chain{params.chain, joint, params.top_k, params.top_p, min_p_of(params), params.epsilon, params.xtc_threshold};
}

// Says that the list came to nothing.
DEVICE bool not_listed() {
    // Without it others could use the room for something else while a slower warp still reads why.
    __syncthreads();
    return false;
}

// Asks `find_bar` for a number of tokens.
struct ByCount {
    // Of fewer tokens than that all are listed.
    static const bool TAKES_ALL = true;
    static const bool BY_NUMBER = false;
    u32 count;

    DEVICE_MEMBER u32 amount(float, u64) { return 1; }
    DEVICE_MEMBER u32 amount_of(float) const { return 1; }
    DEVICE_MEMBER bool gives_up(u32) const { return false; }
    // Whether a row that has enough tokens surely has more candidates than `room`. A count that arrived in the device's memory
    // may be any number: only the host limits those that it knows.
    DEVICE_MEMBER bool needs_more(u32 room) const { return count > room; }
    DEVICE_MEMBER void add_up() {}
    DEVICE_MEMBER u32 goal() { return count; }
};

// Hands on what a warp found of the row's mass, for after a barrier.
DEVICE void hand_on_mass(u64* scratch, u64 own) {
    own = warp_sum(own);
    if (lane_id() == 0) {
        scratch[warp_id()] = own;
    }
}

DEVICE u64 handed_mass(const u64* scratch) { return warp_sum(lane_id() < warps() ? scratch[lane_id()] : 0); }

// Asks `find_bar` for a part of the row's mass, and adds that up on the way.
struct ByMass {
    static const bool TAKES_ALL = false;
    static const bool BY_NUMBER = false;
    float first;
    float s;
    u32 top_p;
    u64* scratch;
    u64 own;
    // About the row's mass.
    u64 mass;

    // In units of 2^-19 of the first token's weight, so that those of all tiles fit a word; rounded down.
    DEVICE_MEMBER u32 amount_of(float z) const { return (u32)(factor_of(z, first, s) * 524288.0f); }
    DEVICE_MEMBER u32 amount(float maximum, u64 sum) {
        if (!(maximum > NOTHING)) {
            return 0;
        }
        own += tile_mass(factor_of(maximum, first, s), sum);
        return amount_of(maximum);
    }
    // So many tokens more than there is room for: few of them lie in one bin, and a search takes less than to find out.
    DEVICE_MEMBER bool gives_up(u32 count) const { return count > GATHERED + GATHERED / 4; }
    // How many tokens have the mass is not known before they are looked at.
    DEVICE_MEMBER bool needs_more(u32) const { return false; }
    DEVICE_MEMBER void add_up() {
        hand_on_mass(scratch, own);
        own = 0;
    }
    // After a barrier; rounded up.
    DEVICE_MEMBER u32 goal() {
        mass = handed_mass(scratch);
        u64 goal = (target_mass(top_p, most_of(mass)) >> 24) + 1;
        return goal >> 32 ? ~0u : (u32)goal;
    }
};

// Asks it for the same or for a number of tokens, whichever are fewer: joint top-k and top-p.
struct ByEither : ByMass {
    static const bool TAKES_ALL = true;
    static const bool BY_NUMBER = true;
    u32 count;

    DEVICE_MEMBER ByEither(const ByMass& mass, u32 count) : ByMass(mass), count(count) {}
    DEVICE_MEMBER bool gives_up(u32) const { return false; }
    DEVICE_MEMBER u32 number() const { return count; }
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

// Keys or masses that are read at once.
struct alignas(16) Pair {
    u64 of[2];
};

// Puts the listed tokens in order, and adds up what they add to the mass; by the first warps, of `threads` threads.
DEVICE void rank(Gathered& list, u32 threads) {
    u32 count = list.count();
    // So many threads count for one token: as large a power of two as there are threads for, but no more than have two pairs each.
    int bits = 64 - leading_zeros(count), shift = count <= threads ? 64 - leading_zeros(threads) - bits : 0;
    shift -= shift > 0 && count << shift > threads;
    shift = shift < 5 ? shift : 5;
    shift = shift < bits - 3 ? shift : bits > 3 ? bits - 3 : 0;
    u32 share = 1u << shift, part = threadIdx.x & (share - 1);
    // A warp is whole or has none: others need not wait for its instructions.
#pragma unroll 1
    for (u32 i = threadIdx.x >> shift; i - (lane_id() >> shift) < count; i += threads >> shift) {
        u64 own = i < count ? list.keys[i] : ~0ull, mass = 0;
        u32 before = 0;
#pragma unroll 1
        for (u32 j = 2 * part; j < count; j += 2 * share) {
            Pair keys = ((const Pair*)list.keys)[j / 2], gains = ((const Pair*)list.gains)[j / 2];
            bool first = keys.of[0] > own, second = j + 1 < count && keys.of[1] > own;
            before += first + second;
            mass += (first ? gains.of[0] : 0) + (second ? gains.of[1] : 0);
        }
#pragma unroll 1
        for (u32 apart = 1; apart < share; apart *= 2) {
            before += __shfl_xor_sync(ALL_LANES, before, (int)apart);
            mass += __shfl_xor_sync(ALL_LANES, mass, (int)apart);
        }
        if (i < count && part == 0) {
            list.ordered[before] = own;
            list.masses[before] = mass + list.gains[i];
            list.from[before] = (unsigned short)i;
        }
    }
}

// How many listed tokens a lane holds.
#define HELD_TOKENS 2

// The first of the listed tokens and the masses up to them, dealt out among the lanes of a warp: read at once, and few lists have
// more.
struct Firsts {
    u64 keys[HELD_TOKENS];
    u64 masses[HELD_TOKENS];

    DEVICE_MEMBER explicit Firsts(const Gathered& list) {
#pragma unroll
        for (u32 k = 0; k < HELD_TOKENS; k++) {
            keys[k] = list.ordered[32 * k + lane_id()];
            masses[k] = list.masses[32 * k + lane_id()];
        }
    }
};

// How many of the first `count` tokens pass, by a warp: `passes(key, mass)`, the mass up to it.
template <class Passes>
DEVICE u32 passing(const Gathered& list, const Firsts& firsts, u32 count, Passes passes) {
    u32 lane = lane_id(), passing = 0;
#pragma unroll
    for (u32 k = 0; k < HELD_TOKENS; k++) {
        passing += __popc(__ballot_sync(ALL_LANES, (32 * k + lane < count) & passes(firsts.keys[k], firsts.masses[k])));
    }
#pragma unroll 1
    for (u32 start = 32 * HELD_TOKENS; start < count; start += 32) {
        u32 i = start + lane < GATHERED ? start + lane : 0;
        passing += __popc(__ballot_sync(ALL_LANES, (start + lane < count) & passes(list.ordered[i], list.masses[i])));
    }
    return passing;
}

// Places in the list from `start` on and before `end`.
struct Places {
    u32 start;
    u32 end;
    // Whether the row's mass decides the same wherever it lies.
    bool sure;
};

// What a chain of filters keeps of a row whose first tokens are listed, by a warp. `mass` is about the row's, if a filter goes by that and
// the list is not the row.
template <class XtcActs>
DEVICE Places filter_list(const Gathered& list, const Firsts& firsts, const Chain& chain, float s, u64 mass, XtcActs xtc_acts) {
    Places kept{0, list.count(), true};
    const Origin first(key_logit(list.ordered[0]));
#pragma unroll 1
    for (u32 filters = chain.filters; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        float threshold = chain.min_p;
        if (filter == FILTER_TOP_K) {
            kept.end = kept.end < chain.top_k ? kept.end : chain.top_k;
            continue;
        }
        if (MIN_P_OF_NUMBERS && filter == FILTER_MIN_P) {
            u64 last = last_key_of_min_p(first.first, threshold);
            kept.end = passing(list, firsts, kept.end, [&](u64 key, u64) INLINE { return key >= last; });
            continue;
        }
        if (filter != FILTER_MIN_P) {
            bool about = (chain.joint || filters == chain.filters) && mass != 0;
            mass = about ? mass : list.masses[(chain.joint ? list.count() : kept.end) - 1];
            if (filter == FILTER_TOP_P) {
                u64 target = target_mass(chain.top_p, about ? most_of(mass) : mass);
                u32 before = passing(list, firsts, kept.end, [&](u64, u64 upto) INLINE { return upto < target; });
                bool within = before < kept.end;
                kept.end = within ? before + 1 : kept.end;
                if (about) {
                    // Whether the nucleus has as many of the listed tokens at least, be the row's mass the least that it may be. Where it
                    // does not end within, top-k must have ended it before, or the list might.
                    u64 least = target_mass(chain.top_p, least_of(mass));
                    bool same = kept.end == 1 || list.masses[kept.end - 2] < least;
                    kept.sure = same && (within || (chain.joint && kept.end == chain.top_k));
                }
                continue;
            }
            threshold = (filter == FILTER_XTC ? chain.xtc_threshold : chain.epsilon) + log_mass(mass);
        }
        u32 reach = passing(list, firsts, kept.end,
                            [&](u64 key, u64) INLINE { return exponent(key_logit(key), first, s) >= threshold; });
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
DEVICE u32 race_listed(const Gathered& list, const Firsts& firsts, const Places& kept, float s, u32& place) {
    const Origin first(key_logit(list.ordered[kept.start]));
    u64 leader = 0;
    u32 own_place = 0;
    auto run = [&](u32 i, u64 key) INLINE {
        if ((i >= kept.start) & (i < kept.end)) {
            u64 own = leader_of(exponent(key_logit(key), first, s) - list.log_arrivals[list.from[i]], key_id(key));
            own_place = own > leader ? i : own_place;
            leader = own > leader ? own : leader;
        }
    };
#pragma unroll
    for (u32 k = 0; k < HELD_TOKENS; k++) {
        run(32 * k + lane_id(), firsts.keys[k]);
    }
#pragma unroll 1
    for (u32 i = 32 * HELD_TOKENS + lane_id(); i < kept.end; i += 32) {
        run(i, list.ordered[i]);
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
template <bool RACES = true, class V>
DEVICE bool list_row(const Step& step, const Records& records, const V& view, const Chain& chain,
                     const Stream& stream, const Whole& whole, float s, u64& mass) {
    __shared__ u64 scratch[32];
    Gathered& list = block_list();
    float first = key_logit(whole.first), bar = LEAST;
    mass = 0;
    bool found = true;
    if (step.vocab <= GATHERED) {
        list_tops(list, records, bar);
        // Without it a warp would miss what others have not listed yet.
        __syncthreads();
    } else if ((chain.filters & 15) == FILTER_TOP_K) {
        u32 limit = chain.top_k + chain.top_k / 4 + 16;
        if (chain.joint) {
            ByEither want{ByMass{first, s, chain.top_p, scratch, 0, 0}, chain.top_k};
            found = find_bar(list, records, first, whole.least, want, limit, bar);
            // Where all are listed the list says it exactly.
            mass = bar == LEAST ? 0 : want.mass;
        } else {
            ByCount want{chain.top_k};
            found = find_bar(list, records, first, whole.least, want, limit, bar);
        }
    } else {
        ByMass want{first, s, chain.top_p, scratch, 0, 0};
        found = find_bar(list, records, first, whole.least, want, GATHERED / 4, bar);
        mass = want.mass;
    }
    if (!found || !gather_others(list, view, bar, first, s)) {
        return not_listed();
    }
    // Helpers leave while the list is worked on.
    need_no_help(step);
    // The last warps draw arrivals while the others put the tokens in order.
    u32 drawing = (list.others + 31) / 32 < warps() / 2 ? (list.others + 31) / 32 : warps() / 2;
    drawing = RACES ? drawing : 0;
    u32 ranking = blockDim.x - 32 * drawing;
    if (!RACES) {
        // Nobody asks for them.
    } else if (drawing == 0) {
        draw_arrivals(list, stream, threadIdx.x, blockDim.x);
    } else if (threadIdx.x >= ranking) {
        draw_arrivals(list, stream, threadIdx.x - ranking, 32 * drawing);
    }
    if (threadIdx.x < ranking) {
        rank(list, ranking);
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

// The same, in every thread, by the first warp. `xtc_acts` says whether XTC acts on the row; one thread does `end` as soon as it
// knows what is drawn; all threads do `meanwhile` once they have no part in the draw.
template <class XtcActs, class End, class Meanwhile>
DEVICE const Drawn& draw_listed(const Chain& chain, const Heat& heat, u64 mass, XtcActs xtc_acts, End end, Meanwhile meanwhile) {
    __shared__ Drawn drawn;
    if (warp_id() == 0) {
        Gathered& list = block_list();
        const Firsts firsts(list);
        Places places = filter_list(list, firsts, chain, heat.filter_s, mass, xtc_acts);
        u32 token = race_listed(list, firsts, places, heat.s, drawn.place);
        if (lane_id() == 0) {
            u64 from = list.ordered[places.start], to = list.ordered[places.end - 1];
            drawn.kept = Given{Cut{from, to}, key_logit(from), places.start == 0};
            drawn.token = token;
            drawn.sure = places.sure;
            end(token, places.sure);
        }
    }
    meanwhile();
    // Without it the other warps would read what came of it too early.
    __syncthreads();
    return drawn;
}

template <class XtcActs, class Meanwhile>
DEVICE const Drawn& draw_listed(const Chain& chain, const Heat& heat, u64 mass, XtcActs xtc_acts, Meanwhile meanwhile) {
    return draw_listed(chain, heat, mass, xtc_acts, [](u32, bool) INLINE {}, meanwhile);
}
