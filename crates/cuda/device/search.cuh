// search.cuh: the token at which a long set reaches a mass or a number, by a block (F1, F3, M4).
//
// Computes   the key of that token, in the row's order or another; exactly, for every row
// Never      sorts a row; never adds up tokens of a tile other than by their weights
// Twins      CPU cpu/src/filter/search.rs | why docs/stages/filter.md
// Traffic    a read of the tiles reached for the pivots, another for the tokens between two of them
// Requires   all threads of the block; scratch of the row
//
//     hi, lo: the tokens from hi on up do not reach the goal, those from lo on up do
//     while more than LISTED tokens lie between:
//         pivots near where a sorted sample of the row guesses the token, or that divide the keys evenly
//         one read: number and mass of the tokens from each pivot on up, tile by tile
//     one read: the tokens between, and each tile's weights above them; sort, and walk to the token
#pragma once

#include "mass.cuh"

// How many pivots a read weighs; how many tokens are sorted at once.
#define PIVOTS 8
#define LISTED 2048

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

// An order of tokens: the row's own, or by the distance of the surprise from the entropy, the nearest first (F3).
struct Order {
    bool nearest;
    float first;
    float s;
    float lz;
    float entropy;

    // How far above the entropy the surprise lies; falls as the logit rises.
    DEVICE_MEMBER float excess(float z) const { return (lz - (z - first) * s) - entropy; }
    DEVICE_MEMBER u64 key(float z, u32 id) const {
        // Distances are not negative, so their bits are in order.
        u32 high = nearest ? 0x7FFFFFFFu - (float_bits(excess(z)) & 0x7FFFFFFFu) : ordered_bits(z);
        return ((u64)high << 32) | (u32)~id;
    }
    // What `nearest` made a key of.
    static DEVICE_MEMBER float distance(u64 key) { return bits_float(0x7FFFFFFFu - (u32)(key >> 32)); }
    // The least logit of a set's tokens from a key on up.
    DEVICE_MEMBER float low(u64 key, const Cut& set) const { return nearest ? set.low() : key_logit(key); }
    // Keys that a set's tokens have at least, and that they are below.
    DEVICE_MEMBER u64 bottom(const Cut& set) const { return nearest ? 1 : set.last; }
    DEVICE_MEMBER u64 top(const Cut& set) const { return nearest ? 1ull << 63 : set.first + 1; }
};

// What the tokens from a key on up come to.
struct Reached {
    u64 key;
    u64 mass;
    u64 count;
};

// What is searched: a given set with its maxima at a scale, in an order; and how far the search is. In shared memory: the
// kernel has no registers to spare for it.
struct Search {
    Given given;
    Maxima maxima;
    Order order;
    float s;
    // Whether the goal is a mass rather than a number of tokens.
    bool by_mass;
    u64 goal;
    // The tokens from `hi` on up do not reach the goal, those from `lo` on up do.
    Reached lo;
    Reached hi;
    u64 pivots[PIVOTS];
    u64 masses[PIVOTS];
    u64 counts[PIVOTS];
    u32 listed;
    u32 place;

    DEVICE_MEMBER u64 measure(const Reached& at) const { return by_mass ? at.mass : at.count; }
    DEVICE_MEMBER bool is_reached(const Reached& at) const { return at.count > 0 && measure(at) >= goal; }
    DEVICE_MEMBER u64 between() const { return lo.count - hi.count; }
    DEVICE_MEMBER u64 bottom() const { return order.bottom(given.cut); }

    DEVICE_MEMBER float factor(float maximum) const { return exp2_rule((maximum - given.first) * s); }
    // A token's key in the order; 0 if it is outside the given set.
    DEVICE_MEMBER u64 key(float z, u32 id) const { return given.cut.contains(key_of(z, id)) ? order.key(z, id) : 0; }
    DEVICE_MEMBER float low(u64 key) const { return order.low(key, given.cut); }
};

// A row that is searched.
template <class V>
struct Searched {
    const Step& step;
    u32 row;
    const V& view;

    DEVICE_MEMBER Search& search() const {
        __shared__ Search shared;
        return shared;
    }
};

// Finds number and mass of the tokens from each pivot on up; pivots fall.
template <class V>
DEVICE void weigh_at_pivots(const Searched<V>& set) {
    Search& search = set.search();
    u64 lowest = search.pivots[PIVOTS - 1];
    // The p-th lane adds up what the p-th pivot has.
    u64 mass = 0;
    u32 count = 0;
    visit_tiles(
        set.view, search.maxima, search.low(lowest),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool) INLINE {
            u32 q[PER_LANE];
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = search.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
                q[j] = search.by_mass && key >= lowest ? weight((z[j] - maximum) * search.s) : 0;
            }
            u64 own = 0;
            // Four pivots at a time: there are not registers enough for more.
#pragma unroll 1
            for (u32 four = 0; four < PIVOTS; four += 4) {
                u64 pivots[4];
                // Eight weights of at most 2^28 fit, and so do two counts of a tile's tokens.
                u32 sums[4] = {}, counts[2] = {};
#pragma unroll
                for (u32 p = 0; p < 4; p++) {
                    pivots[p] = search.pivots[four + p];
                }
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    u64 key = search.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
#pragma unroll
                    for (u32 p = 0; p < 4; p++) {
                        bool in = key >= pivots[p];
                        counts[p / 2] += in ? 1u << (p % 2 * 16) : 0;
                        sums[p] += in ? q[j] : 0;
                    }
                }
#pragma unroll
                for (u32 p = 0; p < 4; p++) {
                    u32 both = __reduce_add_sync(ALL_LANES, counts[p / 2]);
                    bool mine = lane_id() == four + p;
                    count += mine ? both >> (p % 2 * 16) & 0xFFFF : 0;
                    if (search.by_mass) {
                        u64 sum = warp_sum_of_words(sums[p]);
                        own = mine ? sum : own;
                    }
                }
            }
            if (search.by_mass) {
                mass += tile_mass(search.factor(maximum), own);
            }
        },
        [](u32, float, bool) INLINE {});
    if (lane_id() < PIVOTS) {
        atomicAdd(&search.counts[lane_id()], (u64)count);
        atomicAdd(&search.masses[lane_id()], mass);
    }
    // Without it sums would be read that others have not added to yet.
    __syncthreads();
}

// Lists the tokens between the ends, on chip and unsorted, and writes the weights of those from the upper end on
// up to the room for sums, by tile. There are at most LISTED. Returns how many.
template <class V>
DEVICE u32 list_between(const Searched<V>& set) {
    Search& search = set.search();
    u64* list = shared_list();
    u64* sums = room_for_sums(set.step, set.row);
    const u64 lo = search.lo.key, hi = search.hi.key;
    if (threadIdx.x == 0) {
        search.listed = 0;
    }
    // Without it tokens could be counted before the count is zero.
    __syncthreads();
    u64 own = 0;
    visit_tiles(
        set.view, search.maxima, search.low(lo),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            u32 q = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = search.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
                if (search.by_mass) {
                    q += key >= hi ? weight((z[j] - maximum) * search.s) : 0;
                }
                bool in = lo <= key && key < hi;
                u32 who = __ballot_sync(ALL_LANES, in);
                if (who != 0) {
                    u32 start = lane_id() == 0 ? atomicAdd(&search.listed, (u32)__popc(who)) : 0;
                    start = __shfl_sync(ALL_LANES, start, 0);
                    if (in) {
                        list[start + __popc(who & ((1u << lane_id()) - 1))] = key;
                    }
                }
            }
            if (search.by_mass) {
                u64 sum = warp_sum_of_words(q);
                own = mine ? sum : own;
            }
        },
        [&](u32 tile, float, bool visited) INLINE {
            if (search.by_mass) {
                sums[tile] = visited ? own : 0;
            }
        });
    // Without it the list would be read before it is complete.
    __syncthreads();
    return search.listed;
}

// The key in the sorted list of the first token at which the mass is reached. The list is given up.
template <class V>
DEVICE u64 walk(const Searched<V>& set, u32 count) {
    Search& search = set.search();
    u64* list = shared_list();
    u64* sums = room_for_sums(set.step, set.row);
    u64* gains = room_for_list(set.step, set.row);
    u64* keys = gains + LISTED;
    // By tile, and in a tile by the order: so a tile's tokens stand together, each with its weight.
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = list[i];
        u32 id = key_id(key), tile = id / TILE;
        u32 q = weight((set.view.logit(id) - search.maxima.of(tile)) * search.s);
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
        u64 q = sums[tile], before = tile_mass(factor, q);
        for (u32 next = i; next < count && (u32)(~list[next] >> 41) == tile; next++) {
            u64 word = ~list[next];
            q += word & 0x1FFFFFFF;
            u64 after = tile_mass(factor, q);
            gains[(word >> 29) & 0xFFF] = after - before;
            before = after;
        }
    }
    // Without it gains would be read that were not written yet.
    __syncthreads();
    u32 chunk = (count + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    u32 to = from + chunk < count ? from + chunk : count;
    u64 sum = 0;
    for (u32 i = from; i < to; i++) {
        sum += gains[i];
    }
    u64 reached = search.hi.mass + block_scan(sum).before, target = search.goal;
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if ((reached < target || i == 0) && after >= target) {
            search.place = i;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return keys[search.place];
}

// A token's share of a mass, about; or 1 where tokens are counted.
template <class V>
DEVICE u64 rough_share(const Searched<V>& set, u64 key) {
    const Search& search = set.search();
    return search.by_mass ? tile_mass(search.factor(set.view.logit(key_id(key))), 1u << 28) : 1;
}

// Chooses pivots between the ends from a sample of the row: around where it guesses that the goal is reached. Returns
// whether enough of it lay between.
template <class V>
DEVICE bool sample_pivots(const Searched<V>& set, u32 pass) {
    Search& search = set.search();
    u64* list = shared_list();
    const Record* records = set.step.records + (u64)set.row * set.step.tiles;
    u32 tiles = set.step.tiles, vocab = set.step.vocab;
    // The maxima of up to half as many groups of tiles, and for the rest tokens from all over the row.
    u32 group = (tiles + LISTED / 2 - 1) / (LISTED / 2);
    u32 maxima = !search.order.nearest ? (tiles + group - 1) / group : 0, spread = LISTED - maxima;
    // Without it the list could be overwritten while a slow warp still reads it.
    __syncthreads();
    for (u32 i = threadIdx.x; i < LISTED; i += blockDim.x) {
        u64 key = 0;
        if (i < maxima) {
            for (u32 tile = i * group; tile < (i + 1) * group && tile < tiles; tile++) {
                Record record = records[tile];
                u64 other = search.key(record.maximum, tile * TILE + (record.places & 255));
                key = other > key ? other : key;
            }
        } else {
            // Somewhere in the i-th part of the row.
            u64 jitter = high_product((i + pass * LISTED) * 0x9E3779B9u, vocab);
            u32 id = (u32)(((u64)(i - maxima) * vocab + jitter) / spread);
            bool leads = !search.order.nearest && (records[id / TILE].places & 255) == id % TILE;
            key = leads ? 0 : search.key(set.view.logit(id), id);
        }
        list[i] = search.lo.key < key && key < search.hi.key ? key : 0;
    }
    // Without it the sort would read keys that were not written yet.
    __syncthreads();
    sort_descending(list, LISTED);

    // Maxima stand for themselves, each other token for many.
    u32 chunk = (LISTED + blockDim.x - 1) / blockDim.x, from = threadIdx.x * chunk;
    u32 to = from + chunk < LISTED ? from + chunk : LISTED;
    u64 leading = 0, other = 0;
    u32 valid = 0;
    for (u32 i = from; i < to; i++) {
        u64 key = list[i];
        if (key != 0) {
            u32 id = key_id(key);
            u64 share = rough_share(set, key);
            bool leads = !search.order.nearest && (records[id / TILE].places & 255) == id % TILE;
            leading += leads ? share : 0;
            other += leads ? 0 : share;
            valid++;
        }
    }
    Scan leads_before = block_scan(leading), others_before = block_scan(other);
    u32 samples = (u32)block_sum(valid);
    if (samples < 2 * PIVOTS) {
        return false;
    }
    u64 above = search.measure(search.hi), total = search.measure(search.lo) - above;
    u64 rest = total > leads_before.total ? total - leads_before.total : 0;
    float each = others_before.total == 0 ? 0.0f : u64_to_float(rest) / u64_to_float(others_before.total);
    float wanted = u64_to_float(search.goal - above);
    // How many of the sample lie before the goal.
    u32 before = 0;
    u64 sum = leads_before.before, other_sum = others_before.before;
    for (u32 i = from; i < to; i++) {
        u64 key = list[i];
        if (key != 0 && u64_to_float(sum) + each * u64_to_float(other_sum) < wanted) {
            before = i + 1;
            u64 share = rough_share(set, key);
            bool leads = !search.order.nearest && (records[key_id(key) / TILE].places & 255) == key_id(key) % TILE;
            sum += leads ? share : 0;
            other_sum += leads ? 0 : share;
        }
    }
    u32 guess = (u32)block_largest(before);
    if (threadIdx.x < PIVOTS) {
        // As many samples as stand for a list, near the guess; then fewer pivots.
        u32 unit = LISTED * spread / (3 * vocab) > 0 ? LISTED * spread / (3 * vocab) : 1;
        u32 p = threadIdx.x, far = p < PIVOTS / 2 ? PIVOTS / 2 - 1 - p : p - PIVOTS / 2;
        int apart = (int)(unit * (far == PIVOTS / 2 - 1 ? 20 : 2 * far + 1));
        int place = (int)guess + (p < PIVOTS / 2 ? -apart : apart);
        int least = (int)p, most = (int)(samples - PIVOTS + p);
        place = place < least ? least : place > most ? most : place;
        search.pivots[p] = list[place];
    }
    return true;
}

// The key of the first token in the order at which the given set reaches the goal; if it does not, a key at or before its
// last. All of the search but the ends is there, and the lower end too, whose count may be a bound.
template <class V>
DEVICE u64 find(const Searched<V>& set) {
    Search& search = set.search();
    // Without it the search would be read before it is there.
    __syncthreads();
    bool sampled = true;
    for (u32 pass = 0; search.between() > LISTED; pass++) {
        u64 before = search.between();
        sampled = sampled && sample_pivots(set, pass);
        if (threadIdx.x < PIVOTS) {
            u32 p = threadIdx.x;
            if (!sampled) {
                search.pivots[p] = search.lo.key + (search.hi.key - search.lo.key) / (PIVOTS + 1) * (PIVOTS - p);
            }
            if (!search.by_mass && pass == 0 && p == PIVOTS - 1) {
                // The whole set is counted on the way.
                search.pivots[p] = search.bottom();
            }
            search.masses[p] = 0;
            search.counts[p] = 0;
        }
        // Without it pivots and sums would be used before they are there.
        __syncthreads();
        weigh_at_pivots(set);
        if (threadIdx.x == 0) {
            for (u32 p = 0; p < PIVOTS; p++) {
                Reached at{search.pivots[p], search.masses[p], search.counts[p]};
                if (search.is_reached(at)) {
                    search.lo = at;
                    break;
                }
                search.hi = at;
            }
        }
        // Without it the ends would be read before they have moved.
        __syncthreads();
        if (search.hi.key == search.bottom()) {
            return search.hi.key;
        }
        // What samples do not split, or not by half, is split evenly: then the keys themselves run out.
        sampled = sampled ? search.between() <= before / 2 : true;
    }
    u32 count = list_between(set);
    u64 left = search.goal - search.measure(search.hi);
    if (!search.by_mass && left > count) {
        return search.bottom();
    }
    pad_and_sort(shared_list(), count);
    return search.by_mass ? walk(set, count) : shared_list()[left - 1];
}
