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

#include "levels.cuh"

// Room for tokens on chip, whoever sorts some.
DEVICE u64* shared_list() {
    // Aligned for whatever else takes the room.
    alignas(16) __shared__ u64 list[LISTED];
    return list;
}

// A row's room for two words for each listed token.
DEVICE u64* room_for_list(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + 2ull * step.tiles;
}

// Sorts keys on chip, largest first; a power of two of them.
DEVICE void sort_descending(u64* keys, u32 count) {
    for (u32 run = 2; run <= count; run *= 2) {
        for (u32 apart = run / 2; apart > 0; apart /= 2) {
            for (u32 i = threadIdx.x; i < count / 2; i += blockDim.x) {
                u32 a = ((i & ~(apart - 1)) << 1) | (i & (apart - 1)), b = a | apart;
                u64 x = keys[a], y = keys[b];
                if ((x < y) == ((a & run) == 0)) {
                    keys[a] = y;
                    keys[b] = x;
                }
            }
            // Without it a warp would compare keys that others are still exchanging.
            __syncthreads();
        }
    }
}

// Sorts `count` keys, padding them with zeros to a power of two.
DEVICE void pad_and_sort(u64* keys, u32 count) {
    u32 padded = 32;
    while (padded < count) {
        padded *= 2;
    }
    for (u32 i = count + threadIdx.x; i < padded; i += blockDim.x) {
        keys[i] = 0;
    }
    // Without it the sort would read keys that were not written yet.
    __syncthreads();
    sort_descending(keys, padded);
}

// A tile's weight above the aim, and how many of its tokens lie in it: at most 256.
struct Above {
    static DEVICE_MEMBER u64 of(u64 weights, u32 count) { return weights << 9 | count; }
    static DEVICE_MEMBER u64 weights(u64 word) { return word >> 9; }
    static DEVICE_MEMBER u32 count(u64 word) { return (u32)word & 511; }
};

// Reads the tokens down to the aim's lower end: writes what each tile has above the aim and how many in it, and lists those,
// by value, if there is room. Returns the mass above. If the goal is not exact yet, all tokens are read and weighed, and it
// becomes so.
template <bool PLAIN, class V>
DEVICE u64 read_aim(const Step& step, u32 row, const V view) {
    const Searched<V> set{step, row, view};
    Search& search = set.search();
    u64* list = shared_list();
    u64* above = room_for_sums(set.step, set.row);
    const float lo = search.aim.lo, hi = search.aim.hi.value, s = search.s;
    const bool lists = search.aim.count <= LISTED, by_mass = search.by_mass;
    const u32 share = search.share;
    const Order order = search.order;
    if (threadIdx.x == 0) {
        search.listed = 0;
        search.most_bits = 0;
        search.least_bits = 0;
    }
    // Without it tokens could be counted before the count is zero.
    __syncthreads();
    u64 own = 0, own_all = 0, mass = 0, total = 0;
    u32 most = 0, least = 0;
    set.template visit<PLAIN>(
        share ? -LARGEST : lo,
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            // Eight weights of at most 2^28 fit.
            u32 q = 0, all = 0, in = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                float value = PLAIN ? z[j] : order.value(z[j]);
                bool is_above = value >= hi;
                if (by_mass) {
                    u32 own = weight((z[j] - maximum) * s);
                    q += is_above ? own : 0;
                    all += own;
                }
                in |= value >= lo && !is_above ? 1u << j : 0;
            }
            u64 weights = by_mass ? warp_sum_of_words(q) : 0;
            u32 count = __popc(in), start = 0;
            if (lists && in != 0) {
                start = atomicAdd(&search.listed, count);
            }
            if (in != 0) {
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    if (in >> j & 1) {
                        u64 key = key_of((PLAIN ? z[j] : order.value(z[j])) + 0.0f, tile * TILE + set.view.place(tile, lane_id(), j));
                        u32 bits = (u32)(key >> 32);
                        most = bits > most ? bits : most;
                        least = ~bits > least ? ~bits : least;
                        if (lists) {
                            list[start++] = key;
                        }
                    }
                }
            }
            count = __reduce_add_sync(ALL_LANES, count);
            own = mine ? Above::of(weights, count) : own;
            if (share) {
                u64 sum = warp_sum_of_words(all);
                own_all = mine ? sum : own_all;
            }
        },
        [&](u32 tile, float maximum, bool visited) INLINE {
            above[tile] = visited ? own : 0;
            if (by_mass && visited) {
                float factor = search.factor(maximum);
                mass += tile_mass(factor, Above::weights(own));
                total += share ? tile_mass(factor, own_all) : 0;
            }
        });
    atomicMax(&search.most_bits, most);
    atomicMax(&search.least_bits, least);
    if (share) {
        total = block_sum(total);
        if (threadIdx.x == 0) {
            search.goal = target_mass(share, total);
            search.lo.mass = total;
            search.share = 0;
        }
    }
    // Its barriers also complete the list, and let the goal be read.
    return block_sum(mass);
}

// How many tokens are put in their places one by one, which is less work than to sort them.
#define PLACED 512

// Puts few listed keys in order.
DEVICE void place_keys(u64* keys, u32 count) {
    u64* sorted = keys + LISTED / 2;
    // So many threads count the keys before one.
    u32 share = 1;
    while (share < 32 && 2 * share * count <= blockDim.x) {
        share *= 2;
    }
    u32 part = threadIdx.x % share;
    for (u32 start = 0; start < count; start += blockDim.x / share) {
        u32 i = start + threadIdx.x / share, before = 0;
        u64 own = i < count ? keys[i] : ~0ull;
#pragma unroll 4
        for (u32 j = part; j < count; j += share) {
            before += keys[j] > own;
        }
        for (u32 apart = 1; apart < share; apart *= 2) {
            before += __shfl_xor_sync(ALL_LANES, before, (int)apart);
        }
        if (i < count && part == 0) {
            sorted[before] = own;
        }
    }
    // Without it keys would be read that are not in their places yet, or overwritten that others still compare.
    __syncthreads();
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        keys[i] = sorted[i];
    }
    // Without it keys would be read that are not there yet.
    __syncthreads();
}

// Finds in the sorted list the first token at which the mass is reached, if what each token adds, but for a unit, settles
// it (M4); else the place is `count`. By tokens alone, so that nothing need be sorted by tiles.
template <class V>
DEVICE void walk_roughly(const Searched<V>& set, u32 count) {
    Search& search = set.search();
    const u64* list = shared_list();
    u64 least = search.hi.mass;
    // How many tokens do not reach the goal for sure, and how many surely do not.
    u64 short_of = 0;
    for (u32 start = 0; start < count; start += blockDim.x) {
        u32 i = start + threadIdx.x;
        u64 gain = 0;
        if (i < count) {
            u32 id = key_id(list[i]);
            float z = search.order.nearest ? set.view.logit(id) : key_logit(list[i]), maximum = search.maxima.of(id / TILE);
            gain = tile_mass(search.factor(maximum), weight((z - maximum) * search.s));
        }
        Scan gains = block_scan(gain);
        u64 own = least + gains.before + gain;
        short_of += i < count ? ((u64)(own < search.goal) << 32) + (own + i + 1 < search.goal) : 0;
        least += gains.total;
    }
    short_of = block_sum(short_of);
    if (threadIdx.x == 0) {
        search.place = (u32)(short_of >> 32) == (u32)short_of ? (u32)short_of : count;
    }
    // Without it the place would be read before it is there.
    __syncthreads();
}

// The same for sure; the place is `count` if the list does not reach the mass. The list is given up. Returns the mass with
// all of it.
template <class V>
DEVICE u64 walk(const Searched<V>& set, u32 count) {
    Search& search = set.search();
    u64* list = shared_list();
    const u64* above = room_for_sums(set.step, set.row);
    u64* gains = room_for_list(set.step, set.row);
    u64* keys = gains + LISTED;
    // By tile, and in a tile by the order: so a tile's tokens stand together, each with its weight.
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = list[i];
        u32 id = key_id(key), tile = id / TILE;
        float z = search.order.nearest ? set.view.logit(id) : key_logit(key);
        u32 q = weight((z - search.maxima.of(tile)) * search.s);
        keys[i] = key;
        list[i] = ~(((u64)tile << 41) | ((u64)i << 29) | q);
    }
    pad_and_sort(list, count);
    // What each token adds to the mass, from the first of its tile down (M4).
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u32 tile = (u32)(~list[i] >> 41);
        if (i > 0 && (u32)(~list[i - 1] >> 41) == tile) {
            continue;
        }
        float factor = search.factor(search.maxima.of(tile));
        u64 q = Above::weights(above[tile]), before = tile_mass(factor, q);
        for (u32 next = i; next < count && (u32)(~list[next] >> 41) == tile; next++) {
            u64 word = ~list[next];
            q += word & 0x1FFFFFFF;
            u64 after = tile_mass(factor, q);
            gains[(word >> 29) & 0xFFF] = after - before;
            before = after;
        }
    }
    if (threadIdx.x == 0) {
        search.place = count;
    }
    // Without it gains would be read that were not written yet, and the place be set after it was found.
    __syncthreads();
    u32 chunk = (count + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    from = from < count ? from : count;
    u32 to = from + chunk < count ? from + chunk : count;
    u64 sum = 0;
    for (u32 i = from; i < to; i++) {
        sum += gains[i];
    }
    Scan sums = block_scan(sum);
    u64 reached = search.hi.mass + sums.before, total = search.hi.mass + sums.total;
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if (reached < search.goal && after >= search.goal) {
            search.place = i;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return total;
}

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
        return tile_mass(factor, q + (u64)count * weight((value - maximum) * search.s)) - tile_mass(factor, q);
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
    levels.divide(matters, search.highest, search.most_level());
}

// The key, by value, of the first token in the order at which the given set reaches the goal; if it does not, one at or
// before its last. All of the search but the ends of levels is there.
template <class V>
DEVICE u64 find(const Searched<V>& set) {
    Search& search = set.search();
    if (threadIdx.x == 0) {
        divide_rest(search);
    }
    // Without it the search would be read before it is there.
    __syncthreads();
    while (true) {
        const bool plain = search.plain, nearest = search.order.nearest;
        if (plain && search.levels.linear && search.levels.from.value == INFINITE) {
            count_levels<true>(set.step, set.row, set.view);
        } else {
            count_levels<false>(set.step, set.row, set.view);
        }
        bool reaches = take_aim(set);
        u64 mass = 0, next_mass = 0;
        if (reaches) {
            mass = plain ? read_aim<true>(set.step, set.row, set.view)
                           : read_aim<false>(set.step, set.row, set.view);
        }
        const Aim aim = search.aim;
        bool early = search.by_mass && mass >= search.goal, alike = false;
        if (threadIdx.x == 0 && reaches && !early) {
            search.hi = aim.hi;
            search.hi.mass = mass;
        }
        // Without it the end would be read before it has moved.
        __syncthreads();
        float value = from_ordered_bits(search.most_bits);
        if (!reaches) {
            if (search.levels.to.value <= search.lo.value) {
                return last_key_of(search.lo.value);
            }
        } else if (!early && search.most_bits == ~search.least_bits && !(nearest && aim.count <= LISTED)) {
            alike = true;
            if (!nearest) {
                next_mass = split(set, value);
                if (search.place < search.maxima.tiles) {
                    return key_in_tile(set, search.place, search.index, value);
                }
            } else {
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
            u64* list = shared_list();
            if (aim.count <= PLACED) {
                place_keys(list, aim.count);
            } else {
                pad_and_sort(list, aim.count);
            }
            if (!search.by_mass) {
                return list[search.goal - aim.hi.count - 1];
            }
            walk_roughly(set, aim.count);
            if (search.place < aim.count) {
                return list[search.place];
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
                search.hi = Reached{levels.to.value, 0, levels.from.count + levels.counts[LEVELS - 1]};
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
                u64 about = aim.count * tile_mass(exp2_rule(search.order.y(least, false)), 1u << 28);
                levels.from = Reached{from_ordered_bits(search.most_bits + 1), mass, aim.hi.count};
                levels.to = Reached{least, mass + about, 0};
                levels.divide(false, search.highest, search.most_level());
            }
        }
        // Without it the levels would be counted before they are there.
        __syncthreads();
    }
}
