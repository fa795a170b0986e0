// gather.cuh: the upper part of a row, into shared memory (section 6's filter stage); by a block.
//
// Computes   a bar that at least so many tile maxima reach and not many more, and the keys of all tokens that reach it
// Never      reads a tile whose maximum does not reach the bar
// Twins      CPU cpu/src/filter/select.rs | why docs/stages/filter.md
// Traffic    16 bytes per tile, cached after the first time; the logits of the tiles that reach the bar
// Requires   all threads of the block, whole warps; results are in every thread
//
// A tile's maximum is a token too: if k maxima reach a bar, so do at least k tokens, and the first k are among
// those that do. Where the bar lies decides how long the rest takes and never what comes out.
#pragma once

#include "view.cuh"
#include "warp.cuh"

// How many tokens can be gathered, and from how many tiles.
#define GATHERED 416

// How many parts the range of the maxima is cut into.
#define BINS 256

// How often a bar may be moved.
#define MOST_ROUNDS 6

// How many tiles a warp loads at once.
#define TILES_AT_ONCE 4

// What is gathered, in shared memory.
struct Gathered {
    u64 keys[GATHERED];
    union {
        struct {
            // What the maxima in each part of their range come to, the highest part first.
            alignas(16) u32 bins[BINS];
            unsigned short tiles[GATHERED];
        };
        // Once the keys are there: log2 of the tokens' arrivals.
        float log_arrivals[GATHERED];
    };
    u32 tile_count;
    u32 count;
    // The bar's logit: as ordered bits, complemented so that the least is the largest.
    u32 bar;
};

// The first key of a row and its least tile maximum above -inf.
struct Ends {
    u64 first;
    float least;
};

// A range of logits in equal parts. A higher logit's place is no lower, as each step is monotone.
struct Range {
    float low;
    float scale;

    DEVICE_MEMBER float place(float z) const { return (z - low) * scale; }
};

// Visits the maxima of a row's tiles, each by one thread; -inf past the last, so that whole warps come.
template <class Visit>
DEVICE void for_maxima(const Record* records, u32 tiles, Visit visit) {
    const u32 AHEAD = 2;
    for (u32 start = threadIdx.x; start - threadIdx.x < tiles; start += AHEAD * blockDim.x) {
        float maximum[AHEAD];
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            u32 tile = start + i * blockDim.x;
            maximum[i] = tile < tiles ? records[tile].maximum : -INFINITE;
        }
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            visit(start + i * blockDim.x, maximum[i]);
        }
    }
}

// Empties the bins and the lists. A barrier must follow before they are used.
DEVICE void clear(Gathered& gathered) {
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        gathered.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        gathered.tile_count = 0;
        gathered.bar = 0;
        gathered.count = 0;
    }
}

// The first bin by which the bins reach a goal, by a warp, in every lane; BINS if they do not.
DEVICE u32 bin_reaching(const u32* bins, u32 goal) {
    const u32 OWN = BINS / 32;
    u32 lane = lane_id(), own[OWN], upto = 0;
#pragma unroll
    for (u32 i = 0; i < OWN / 4; i++) {
        Quad quad = ((const Quad*)bins)[lane * (OWN / 4) + i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            upto += quad.word[j];
            own[4 * i + j] = upto;
        }
    }
#pragma unroll
    for (u32 delta = 1; delta < 32; delta *= 2) {
        u32 other = __shfl_up_sync(ALL_LANES, upto, delta);
        upto += lane >= delta ? other : 0;
    }
    u32 reached = __ballot_sync(ALL_LANES, upto >= goal);
    u32 before = upto - own[OWN - 1], bin = lane * OWN;
#pragma unroll
    for (u32 i = 0; i + 1 < OWN; i++) {
        bin += before + own[i] < goal;
    }
    bin = __shfl_sync(ALL_LANES, bin, __ffs((int)reached) - 1);
    return reached ? bin : BINS;
}

// Lists the tiles whose maxima reach a place, as far as there is room, and makes the least of these the bar. A barrier
// must follow before the list is read.
DEVICE void list_tiles(Gathered& gathered, const Record* records, u32 tiles, const Range& range, float place) {
    for_maxima(records, tiles, [&](u32 tile, float maximum) {
        bool passes = range.place(maximum) >= place;
        u32 passing = __ballot_sync(ALL_LANES, passes), to = 0;
        if (passing == 0) {
            return;
        }
        u32 bar = __reduce_max_sync(ALL_LANES, passes ? ~ordered_bits(maximum) : 0);
        if (lane_id() == 0) {
            atomicMax(&gathered.bar, bar);
            to = atomicAdd(&gathered.tile_count, (u32)__popc(passing));
        }
        to = __shfl_sync(ALL_LANES, to, 0) + __popc(passing & ((1u << lane_id()) - 1));
        if (passes && to < GATHERED) {
            gathered.tiles[to] = (unsigned short)tile;
        }
    });
}

// About 1 / x, from below.
DEVICE float inverse(float x) { return 0.87f * bits_float(0x7EF311C3u - float_bits(x)); }

// Finds a bar at which what the maxima come to, `amount` of each, reaches a goal, and lists the tiles that pass it:
// if possible at most `limit`. Fails if all maxima together do not reach the goal, or too many tiles pass.
// The gathered must be cleared.
template <class Amount>
DEVICE bool find_bar(Gathered& gathered, const Record* records, u32 tiles, const Ends& ends, u32 goal, u32 limit,
                     Amount amount) {
    float first = key_logit(ends.first), widest = larger(ends.least, first - 1e37f);
    // Far below the first token there is nothing but what masks leave.
    float low = larger(ends.least, first - 32.0f), width = first - low;
    for (u32 round = 1; round <= MOST_ROUNDS; round++) {
        Range range{low, BINS * inverse(larger(width, 1e-20f))};
        for_maxima(records, tiles, [&](u32, float maximum) {
            float place = range.place(maximum);
            if (place >= 0.0f) {
                atomicAdd(&gathered.bins[BINS - 1 - (u32)fminf(place, BINS - 1)], amount(maximum));
            }
        });
        // Without it a warp would miss what others have not added yet.
        __syncthreads();
        u32 bin = bin_reaching(gathered.bins, goal);
        if (bin < BINS) {
            float place = int_to_float((int)(BINS - 1 - bin));
            list_tiles(gathered, records, tiles, range, place);
            // Without it a warp would miss tiles that others have not listed yet.
            __syncthreads();
            if (gathered.tile_count <= (round < MOST_ROUNDS ? limit : GATHERED)) {
                return true;
            }
            // Most of them lie in one bin, which is looked at more closely.
            low += (place - 0.5f) / range.scale;
            width = 2.0f / range.scale;
        } else if (low > widest) {
            low = widest;
            width = first - low;
        } else {
            return false;
        }
        // Without it bins would be emptied that a slower warp still reads.
        __syncthreads();
        clear(gathered);
        // Without it a warp could add to bins that others empty after that.
        __syncthreads();
    }
    return false;
}

// Gathers the keys of all tokens above -inf, or of those that reach the bar, in any order. Fails if there are too many.
template <class V>
DEVICE bool gather(Gathered& gathered, const V& view, u32 tiles, bool all) {
    u32 count = all ? tiles : gathered.tile_count, lane = lane_id();
    float bar = all ? -LARGEST : from_ordered_bits(~gathered.bar);
    for (u32 start = warp_id(); start < count; start += TILES_AT_ONCE * warps()) {
        float z[TILES_AT_ONCE][PER_LANE];
        u32 tile[TILES_AT_ONCE], odd = 0;
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            u32 place = start + i * warps();
            if (place < count) {
                tile[i] = all ? place : gathered.tiles[place];
                view.load(tile[i], lane, z[i], odd);
            }
        }
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            if (start + i * warps() >= count) {
                break;
            }
            u32 passing = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                passing |= z[i][j] >= bar ? 1u << j : 0;
            }
            if (passing == 0) {
                continue;
            }
            u32 to = atomicAdd(&gathered.count, (u32)__popc(passing));
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                if (passing >> j & 1 && to < GATHERED) {
                    gathered.keys[to++] = key_of(clean(z[i][j]), tile[i] * TILE + view.place(tile[i], lane, j));
                }
            }
        }
    }
    // Without it a warp would miss keys that others have not added yet.
    __syncthreads();
    return gathered.count <= GATHERED;
}
