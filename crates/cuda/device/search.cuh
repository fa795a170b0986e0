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
    __shared__ u64 list[LISTED];
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

// What is searched: a given set with its maxima at a scale, in an order.
template <class V>
struct Searched {
    const Step& step;
    u32 row;
    const V& view;
    const Maxima& maxima;
    const Given& given;
    const Order& order;
    float s;
    // Whether the goal is a mass rather than a number of tokens.
    bool by_mass;

    DEVICE_MEMBER u64 measure(const Reached& at) const { return by_mass ? at.mass : at.count; }
    DEVICE_MEMBER bool is_reached(const Reached& at, u64 goal) const { return at.count > 0 && measure(at) >= goal; }

    DEVICE_MEMBER float factor(float maximum) const { return exp2_rule((maximum - given.first) * s); }

    // A token's key in the order; 0 if it is outside the given set.
    DEVICE_MEMBER u64 key(float z, u32 id) const { return given.cut.contains(key_of(z, id)) ? order.key(z, id) : 0; }

    DEVICE_MEMBER float low(u64 key) const { return order.low(key, given.cut); }
};

// What a search shares between its threads.
struct Shared {
    Reached lo;
    Reached hi;
    u64 pivots[PIVOTS];
    u64 masses[PIVOTS];
    u64 counts[PIVOTS];
    u32 count;
    u32 place;
};

DEVICE Shared& shared_search() {
    __shared__ Shared shared;
    return shared;
}

// Finds number and mass of the tokens from each pivot on up; pivots fall.
template <class V>
DEVICE void weigh_at_pivots(const Searched<V>& set) {
    Shared& shared = shared_search();
    u64 lowest = shared.pivots[PIVOTS - 1];
    // Of the first four pivots and of the others, 16 bits each: a lane sees at most 2^15 tokens.
    u64 mass = 0, early_counts = 0, late_counts = 0;
    visit_tiles(
        set.view, set.maxima, set.low(lowest),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool) INLINE {
            u32 q[PER_LANE];
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = set.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
                q[j] = set.by_mass && key >= lowest ? weight((z[j] - maximum) * set.s) : 0;
            }
            u64 own = 0;
            // Four pivots at a time: there are not registers enough for more.
#pragma unroll 1
            for (u32 four = 0; four < PIVOTS; four += 4) {
                u64 pivots[4], counts = 0;
                // Eight weights of at most 2^28 fit.
                u32 sums[4] = {};
#pragma unroll
                for (u32 p = 0; p < 4; p++) {
                    pivots[p] = shared.pivots[four + p];
                }
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    u64 key = set.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
#pragma unroll
                    for (u32 p = 0; p < 4; p++) {
                        bool in = key >= pivots[p];
                        counts += (u64)in << (p * 16);
                        sums[p] += in ? q[j] : 0;
                    }
                }
                early_counts += four == 0 ? counts : 0;
                late_counts += four == 0 ? 0 : counts;
                if (set.by_mass) {
                    // The p-th lane adds up the p-th pivot's masses.
#pragma unroll
                    for (u32 p = 0; p < 4; p++) {
                        u64 sum = warp_sum_of_words(sums[p]);
                        own = lane_id() == four + p ? sum : own;
                    }
                }
            }
            if (set.by_mass) {
                mass += tile_mass(set.factor(maximum), own);
            }
        },
        [](u32, float, bool) INLINE {});
    u32 count = 0;
#pragma unroll
    for (u32 p = 0; p < PIVOTS; p++) {
        u64 counts = p < 4 ? early_counts : late_counts;
        u32 sum = __reduce_add_sync(ALL_LANES, (u32)(counts >> (p % 4 * 16)) & 0xFFFF);
        count = lane_id() == p ? sum : count;
    }
    if (lane_id() < PIVOTS) {
        atomicAdd(&shared.counts[lane_id()], (u64)count);
        atomicAdd(&shared.masses[lane_id()], mass);
    }
    // Without it sums would be read that others have not added to yet.
    __syncthreads();
}

// Lists the tokens from `lo` on up that lie below `hi`, on chip and unsorted, and writes the weights of those from `hi` on
// up to the room for sums, by tile. There are at most LISTED. Returns how many.
template <class V>
DEVICE u32 list_between(const Searched<V>& set, u64 lo, u64 hi) {
    Shared& shared = shared_search();
    u64* list = shared_list();
    u64* sums = room_for_sums(set.step, set.row);
    if (threadIdx.x == 0) {
        shared.count = 0;
    }
    // Without it tokens could be counted before the count is zero.
    __syncthreads();
    u64 own = 0;
    visit_tiles(
        set.view, set.maxima, set.low(lo),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            u32 q = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = set.key(z[j], tile * TILE + set.view.place(tile, lane_id(), j));
                if (set.by_mass) {
                    q += key >= hi ? weight((z[j] - maximum) * set.s) : 0;
                }
                bool in = lo <= key && key < hi;
                u32 who = __ballot_sync(ALL_LANES, in);
                if (who != 0) {
                    u32 start = lane_id() == 0 ? atomicAdd(&shared.count, (u32)__popc(who)) : 0;
                    start = __shfl_sync(ALL_LANES, start, 0);
                    if (in) {
                        list[start + __popc(who & ((1u << lane_id()) - 1))] = key;
                    }
                }
            }
            if (set.by_mass) {
                u64 sum = warp_sum_of_words(q);
                own = mine ? sum : own;
            }
        },
        [&](u32 tile, float, bool visited) INLINE {
            if (set.by_mass) {
                sums[tile] = visited ? own : 0;
            }
        });
    // Without it the list would be read before it is complete.
    __syncthreads();
    return shared.count;
}

// The place in the sorted list of the first token at which a mass is reached, `above` being the mass of the tokens before
// the list, whose weights stand in the room for sums. The list is given up.
template <class V>
DEVICE u64 walk(const Searched<V>& set, u32 count, u64 above, u64 target) {
    Shared& shared = shared_search();
    u64* list = shared_list();
    u64* sums = room_for_sums(set.step, set.row);
    u64* gains = room_for_list(set.step, set.row);
    u64* keys = gains + LISTED;
    // By tile, and in a tile by the order: so a tile's tokens stand together, each with its weight.
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        u64 key = list[i];
        u32 id = key_id(key), tile = id / TILE;
        u32 q = weight((set.view.logit(id) - set.maxima.of(tile)) * set.s);
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
        float factor = set.factor(set.maxima.of(tile));
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
    u64 reached = above + block_scan(sum).before;
    for (u32 i = from; i < to; i++) {
        u64 after = reached + gains[i];
        if ((reached < target || i == 0) && after >= target) {
            shared.place = i;
        }
        reached = after;
    }
    // Without it the place would be read before the thread that finds it has.
    __syncthreads();
    return keys[shared.place];
}

// A token's share of a mass, about; or 1 where tokens are counted.
template <class V>
DEVICE u64 rough_share(const Searched<V>& set, u64 key) {
    return set.by_mass ? tile_mass(set.factor(set.view.logit(key_id(key))), 1u << 28) : 1;
}

// Chooses pivots between the ends from a sample of the row: around where it guesses that the goal is reached. Returns
// whether enough of it lay between.
template <class V>
DEVICE bool sample_pivots(const Searched<V>& set, u64 goal, u32 pass) {
    Shared& shared = shared_search();
    u64* list = shared_list();
    const Record* records = set.step.records + (u64)set.row * set.step.tiles;
    u32 tiles = set.step.tiles, vocab = set.step.vocab;
    // The maxima of up to half as many groups of tiles, and for the rest tokens from all over the row.
    u32 group = (tiles + LISTED / 2 - 1) / (LISTED / 2);
    u32 maxima = !set.order.nearest ? (tiles + group - 1) / group : 0, spread = LISTED - maxima;
    // Without it the list could be overwritten while a slow warp still reads it.
    __syncthreads();
    for (u32 i = threadIdx.x; i < LISTED; i += blockDim.x) {
        u64 key = 0;
        if (i < maxima) {
            for (u32 tile = i * group; tile < (i + 1) * group && tile < tiles; tile++) {
                Record record = records[tile];
                u64 other = set.key(record.maximum, tile * TILE + (record.places & 255));
                key = other > key ? other : key;
            }
        } else {
            // Somewhere in the i-th part of the row.
            u64 jitter = high_product((i + pass * LISTED) * 0x9E3779B9u, vocab);
            u32 id = (u32)(((u64)(i - maxima) * vocab + jitter) / spread);
            bool leads = !set.order.nearest && (records[id / TILE].places & 255) == id % TILE;
            key = leads ? 0 : set.key(set.view.logit(id), id);
        }
        list[i] = shared.lo.key < key && key < shared.hi.key ? key : 0;
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
            bool leads = !set.order.nearest && (records[id / TILE].places & 255) == id % TILE;
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
    u64 above = set.measure(shared.hi), total = set.measure(shared.lo) - above;
    u64 rest = total > leads_before.total ? total - leads_before.total : 0;
    float each = others_before.total == 0 ? 0.0f : u64_to_float(rest) / u64_to_float(others_before.total);
    float wanted = u64_to_float(goal - above);
    // How many of the sample lie before the goal.
    u32 before = 0;
    u64 sum = leads_before.before, other_sum = others_before.before;
    for (u32 i = from; i < to; i++) {
        u64 key = list[i];
        if (key != 0 && u64_to_float(sum) + each * u64_to_float(other_sum) < wanted) {
            before = i + 1;
            u64 share = rough_share(set, key);
            bool leads = !set.order.nearest && (records[key_id(key) / TILE].places & 255) == key_id(key) % TILE;
            sum += leads ? share : 0;
            other_sum += leads ? 0 : share;
        }
    }
    u32 guess = (u32)block_largest(before);
    if (threadIdx.x < PIVOTS) {
        // From 6 samples before and after the guess to 162.
        u32 p = threadIdx.x, far = p < PIVOTS / 2 ? PIVOTS / 2 - 1 - p : p - PIVOTS / 2;
        int apart = far == 0 ? 6 : far == 1 ? 18 : far == 2 ? 54 : 162;
        int place = (int)guess + (p < PIVOTS / 2 ? -apart : apart);
        int least = (int)p, most = (int)(samples - PIVOTS + p);
        place = place < least ? least : place > most ? most : place;
        shared.pivots[p] = list[place];
    }
    return true;
}

// The key of the first token in the order at which the given set reaches a goal: a mass, or a number of tokens.
// The set comes to `whole`; its count may be a bound. If it does not reach the goal, a key at or before its last.
template <class V>
DEVICE u64 search(const Searched<V>& set, u64 goal, const Weighed& whole) {
    Shared& shared = shared_search();
    const u64 bottom = set.order.bottom(set.given.cut);
    if (threadIdx.x == 0) {
        shared.lo = Reached{bottom, whole.mass, whole.count};
        shared.hi = Reached{set.order.top(set.given.cut), 0, 0};
    }
    // Without it the ends would be read before they are there.
    __syncthreads();
    bool sampled = true;
    for (u32 pass = 0; shared.lo.count - shared.hi.count > LISTED; pass++) {
        u64 between = shared.lo.count - shared.hi.count;
        sampled = sampled && sample_pivots(set, goal, pass);
        if (threadIdx.x < PIVOTS) {
            u32 p = threadIdx.x;
            if (!sampled) {
                shared.pivots[p] = shared.lo.key + (shared.hi.key - shared.lo.key) / (PIVOTS + 1) * (PIVOTS - p);
            }
            if (!set.by_mass && pass == 0 && p == PIVOTS - 1) {
                // The whole set is counted on the way.
                shared.pivots[p] = bottom;
            }
            shared.masses[p] = 0;
            shared.counts[p] = 0;
        }
        // Without it pivots and sums would be used before they are there.
        __syncthreads();
        weigh_at_pivots(set);
        if (threadIdx.x == 0) {
            for (u32 p = 0; p < PIVOTS; p++) {
                Reached at{shared.pivots[p], shared.masses[p], shared.counts[p]};
                if (set.is_reached(at, goal)) {
                    shared.lo = at;
                    break;
                }
                shared.hi = at;
            }
        }
        // Without it the ends would be read before they have moved.
        __syncthreads();
        if (shared.hi.key == bottom) {
            return bottom;
        }
        // What samples do not split, or not by half, is split evenly: then the keys themselves run out.
        sampled = sampled ? shared.lo.count - shared.hi.count <= between / 2 : true;
    }
    u32 count = list_between(set, shared.lo.key, shared.hi.key);
    u64 above = set.measure(shared.hi);
    if (!set.by_mass && goal - above > count) {
        return bottom;
    }
    pad_and_sort(shared_list(), count);
    return set.by_mass ? walk(set, count, above, goal) : shared_list()[goal - above - 1];
}
