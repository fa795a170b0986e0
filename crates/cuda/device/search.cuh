// search.cuh: the token at which a long set reaches a mass or a number, by a block (F1, F3, M4).
//
// Computes   the key of that token, in the row's order or another; exactly, for every row
// Never      sorts a row; never adds up tokens of a tile other than by their weights
// Twins      CPU cpu/src/filter/search.rs | why docs/stages/filter.md
// Traffic    two reads of the tiles reached, as a rule: one counts tokens by levels, one proves what the levels guess
// Requires   all threads of the block; scratch of the row
//
//     hi, lo: the tokens from hi on up do not reach the goal, those from lo on up do
//     until the token is found:
//         one read: how many tokens lie at each level of a range; guess between which levels the goal is met
//         one read: the weights, tile by tile, of the tokens above them; the tokens between
//         if it is not met above: sort those between, and walk to the token; if it is not met there either, go on below
//         too many to sort: if they are equal, count by tiles, and in one by ids; else levels of what lies between
#pragma once

#include "reads.cuh"
#include "upper.cuh"

// Finds among tokens of one value the one at which the goal is reached, ids settling the order: its tile, and how many
// of these tokens the tile has up to it; the tile is `tiles` if it is not reached. Returns the mass with all of them.
template <class V>
DEVICE u64 split(const Searched<V>& set, float value) {
    Search& search = set.search();
    const u64* above = room_for_sums(set.step, set.row);
    const u32 tiles = search.maxima.tiles;
    if (threadIdx.x == 0) {
        search.place = tiles;
    }
    // What the first so many of a tile's tokens come to.
    auto gain = [&](u32 tile, u32 count) INLINE {
        if (!search.by_mass) {
            return (u64)count;
        }
        float maximum = search.maxima.of(tile), factor = search.factor(maximum);
        u64 q = Above::weights(above[tile]);
        return tile_mass(factor, q + (u64)count * Weigher(maximum, search.s).of(value)) - tile_mass(factor, q);
    };
    auto count = [&](u32 tile) INLINE { return Above::count(above[tile]); };
    u32 chunk = (tiles + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    from = from < tiles ? from : tiles;
    u32 to = from + chunk < tiles ? from + chunk : tiles;
    u64 sum = 0;
    for (u32 tile = from; tile < to; tile++) {
        sum += count(tile) ? gain(tile, count(tile)) : 0;
    }
    Scan sums = block_scan(sum);
    u64 base = search.by_mass ? search.hi.mass : search.hi.count, reached = base + sums.before;
    for (u32 tile = from; tile < to; tile++) {
        u32 own = count(tile);
        u64 after = reached + (own ? gain(tile, own) : 0);
        if (reached < search.goal && after >= search.goal) {
            u32 few = 1;
            while (reached + gain(tile, few) < search.goal) {
                few++;
            }
            search.place = tile;
            search.index = few;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return base + sums.total;
}

// The key of a tile's n-th token, by id, of a value; in every thread.
template <class V>
DEVICE u64 key_in_tile(const Searched<V>& set, u32 tile, u32 n, float value) {
    __shared__ u32 words[MASK_WORDS];
    Search& search = set.search();
    if (threadIdx.x < MASK_WORDS) {
        words[threadIdx.x] = 0;
    }
    // Without it bits could be cleared that are already set.
    __syncthreads();
    if (warp_id() == 0) {
        float z[PER_LANE];
        set.view.load(tile, lane_id(), z);
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 place = set.view.place(tile, lane_id(), j);
            if (z[j] == value && search.given.cut.contains(key_of(z[j], tile * TILE + place))) {
                atomicOr(&words[place / 32], 1u << place % 32);
            }
        }
    }
    // Without it bits would be read that are not set yet.
    __syncthreads();
    u32 word = 0;
    while (n > (u32)__popc(words[word])) {
        n -= __popc(words[word++]);
    }
    u32 bits = words[word];
    for (; n > 1; n--) {
        bits &= bits - 1;
    }
    return key_of(value + 0.0f, tile * TILE + word * 32 + __ffs((int)bits) - 1);
}

// Says what to divide into levels next: what is left; by one thread.
DEVICE void divide_rest(Search& search) {
    Levels& levels = search.levels;
    levels.from = search.hi;
    levels.to = search.lo;
    float lowest = search.lowest < search.hi.value ? search.lowest : search.least;
    bool matters = lowest < search.hi.value;
    levels.to.value = matters && lowest > search.lo.value ? lowest : search.lo.value;
    levels.divide(matters, search.order.nearest, search.highest, search.most_level());
}

// The key, by value, of the first token in the order at which the given set reaches the goal; if it does not, one at or
// before its last. All of the search but the ends of levels is there; `listed` says that tokens down to the goal are, as an aim.
template <class V>
DEVICE u64 find(const Searched<V>& set, bool listed) {
    Search& search = set.search();
    if (threadIdx.x == 0) {
        divide_rest(search);
    }
    // Without it the search would be read before it is there.
    __syncthreads();
    bool aimed = listed;
    while (true) {
        const bool plain = search.plain, nearest = search.order.nearest;
        // Not read where it is not asked for: nothing would stand between that and the write below.
        u32 every = aimed ? 1 : search.every;
        if (aimed) {
            // What the levels would say is known.
        } else if (plain && search.levels.is_plain() && search.levels.from.value == INFINITE) {
            count_levels<true>(set.step, set.row, set.view, every);
        } else {
            every = 1;
            count_levels<false>(set.step, set.row, set.view, every);
        }
        bool reaches = aimed || take_aim(set, margin_of(every, search.maxima.tiles));
        u64 mass = 0, next_mass = 0;
        if (reaches && !listed) {
            mass = plain ? read_aim<true>(set.step, set.row, set.view)
                           : read_aim<false>(set.step, set.row, set.view);
        }
        bool early = search.by_mass && mass >= search.goal, alike = false;
        if (threadIdx.x == 0) {
            // What is left is counted whole: a guess that missed is not made again.
            search.every = 1;
            if (reaches && !early) {
                search.hi = search.aim.hi;
                search.hi.mass = mass;
            }
        }
        // Without it the end would be read before it has moved.
        __syncthreads();
        const Aim aim = search.aim;
        float value = from_ordered_bits(search.most_bits);
        if (!reaches) {
            if (search.levels.to.value <= search.lo.value) {
                return last_key_of(search.lo.value);
            }
        } else if (!early && !listed && search.most_bits == ~search.least_bits && !(nearest && aim.count <= LISTED)) {
            alike = true;
            if (!nearest) {
                next_mass = split(set, value);
                if (search.place < search.maxima.tiles) {
                    return key_in_tile(set, search.place, search.index, value);
                }
            } else {
                // Without it the aim would move while a slower warp still reads it.
                __syncthreads();
                // Tokens as near to the entropy are kept alike: all of them are weighed.
                if (threadIdx.x == 0) {
                    search.aim.hi.value = aim.lo;
                    search.aim.count = 0;
                }
                // Without it the aim would be read before it has moved.
                __syncthreads();
                next_mass = read_aim<false>(set.step, set.row, set.view);
                if (!search.by_mass || next_mass >= search.goal) {
                    return last_key_of(value);
                }
            }
        } else if (!early && aim.count <= LISTED) {
            if (!search.by_mass) {
                return sort_list(aim.count)[search.goal - aim.hi.count - 1];
            }
            u64 key = settle(set, aim.count);
            if (key != 0) {
                return key;
            }
            if (search.share != 0) {
                // The list is right, but where the goal is has to be known exactly.
                listed = false;
                // Without it the search would change while a slower warp still reads it.
                __syncthreads();
                continue;
            }
            next_mass = walk(set, aim.count);
            if (search.place < aim.count) {
                return room_for_list(set.step, set.row)[LISTED + search.place];
            }
        }
        // Without it the ends would move while a slower warp still reads them.
        __syncthreads();
        if (threadIdx.x == 0) {
            Levels& levels = search.levels;
            if (!reaches) {
                search.hi = Reached{levels.to.value, 0, levels.from.count + level_counts()[LEVELS - 1]};
                divide_rest(search);
            } else if (early) {
                search.lo = Reached{aim.hi.value, mass, aim.hi.count};
                divide_rest(search);
            } else if (aim.count <= LISTED || alike) {
                search.hi = Reached{aim.lo, next_mass, aim.hi.count + aim.count};
                divide_rest(search);
            } else {
                // The goal is met among these, or else below them; they weigh about as much as so many in their middle.
                float least = from_ordered_bits(~search.least_bits);
                u64 about = aim.count * tile_mass(search.order.weight(least, false), 1u << 28);
                levels.from = Reached{from_ordered_bits(search.most_bits + 1), mass, aim.hi.count};
                levels.to = Reached{least, mass + about, 0};
                levels.divide(false, false, search.highest, search.most_level());
            }
        }
        aimed = listed = false;
        // Without it the levels would be counted before they are there.
        __syncthreads();
    }
}
