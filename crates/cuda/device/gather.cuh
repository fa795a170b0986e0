// gather.cuh: the upper part of a row, into shared memory (section 6's filter stage); by a block.
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

#include "records.cuh"
#include "view.cuh"
#include "warp.cuh"

// How many tokens can be gathered, and from how many tiles.
#define GATHERED 416

// How many parts the range of the maxima is cut into.
#define BINS 128

// How often a bar may be moved.
#define MOST_ROUNDS 6

// How many tiles a warp loads at once.
#define TILES_AT_ONCE 1

// What is gathered, in shared memory: the first tokens of tiles, then the others.
struct Gathered {
    alignas(16) u64 keys[GATHERED];
    // Of the tiles that the tokens lie in.
    float maxima[GATHERED];
    // log2 of the tokens' arrivals: the survey knows those of the tiles' first.
    float log_arrivals[GATHERED];
    // How many first tokens there are; in the high half how many of their tiles are open.
    u32 tops;
    u32 others;
    // The bin in which the bar lies.
    u32 bin;
    union {
        struct {
            // The keys of the first tokens of tiles that may have others.
            u64 open[GATHERED];
            // What the maxima in each part of their range come to, the highest part first.
            alignas(16) u32 bins[BINS];
        };
        // Once all are there: the tokens in order, by their places above, and what each adds to the mass.
        struct {
            u64 ordered[GATHERED];
            u64 steps[GATHERED];
            unsigned short from[GATHERED];
        };
    };
    // The weights of the other tokens, by place.
    u32 weights[GATHERED];

    DEVICE_MEMBER u32 top_count() const { return tops & 0xFFFF; }
    DEVICE_MEMBER u32 open_count() const { return tops >> 16; }
    DEVICE_MEMBER u32 count() const { return top_count() + others; }
};

// Empties the bins and the lists. A barrier must follow before they are used.
DEVICE void clear(Gathered& gathered) {
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        gathered.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        gathered.tops = 0;
        gathered.others = 0;
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

// Lists the first tokens that reach a bar, as far as there is room, and which of their tiles may have others. A barrier must
// follow before the lists are read.
DEVICE void list_tops(Gathered& gathered, const Records& records, float bar) {
    records.each([&](u32 tile, const Record& record) INLINE {
        if (!(record.maximum >= bar)) {
            return;
        }
        bool opens = others_of(record) >= bar;
        // A few lanes pass: that each adds for itself takes less than to find out which do.
        u32 to = atomicAdd(&gathered.tops, opens ? 0x10001u : 1u), place = to & 0xFFFF, open_place = to >> 16;
        u64 key = key_of(record.maximum, tile * TILE + (record.places & 255));
        if (place < GATHERED) {
            gathered.keys[place] = key;
            gathered.maxima[place] = record.maximum;
            gathered.log_arrivals[place] = record.log_top;
        }
        if (opens && open_place < GATHERED) {
            gathered.open[open_place] = key;
        }
    });
}

// About 1 / x, from below.
DEVICE float inverse(float x) { return 0.87f * bits_float(0x7EF311C3u - float_bits(x)); }

// Finds a bar at which what the maxima come to reaches a goal, and lists the first tokens that pass it, if possible at
// most `limit`: `want.amount(maximum, sum)` of each, and `want.amount_of(logit)` of the second ones if they are looked at. Fails if
// all together do not reach the goal, or too many pass. The gathered must be cleared.
template <class Want>
DEVICE bool find_bar(Gathered& gathered, const Records& records, float first, float least, Want& want, u32 limit,
                     float& bar) {
    float widest = larger(least, first - 1e37f);
    // Far below the first token there is nothing but what masks leave.
    float low = larger(least, first - 32.0f), width = first - low;
    bool seconds = false;
#pragma unroll 1
    for (u32 round = 1; round <= MOST_ROUNDS; round++) {
        float scale = BINS * inverse(larger(width, 1e-20f)), part = 1.0f / scale;
        records.each_weighed([&](u32, const Record& record, u64 sum) INLINE {
            auto add = [&](float z, u32 amount) INLINE {
                // A higher logit's place is no lower, as each step is monotone.
                float place = (z - low) * scale;
                if (place >= 0.0f) {
                    atomicAdd(&gathered.bins[BINS - 1 - (u32)fminf(place, BINS - 1)], amount);
                }
            };
            add(record.maximum, want.amount(record.maximum, sum));
            if (seconds) {
                float second = least_of_others(record);
                add(second, want.amount_of(second));
            }
        });
        want.add_up();
        // Without it a warp would miss what others have not added yet.
        __syncthreads();
        // By one warp: all of them would wait for each other's instructions.
        if (warp_id() == 0) {
            u32 bin = bin_reaching(gathered.bins, want.goal());
            if (lane_id() == 0) {
                gathered.bin = bin;
            }
        }
        // Without it the other warps would read the bin before it is found.
        __syncthreads();
        u32 bin = gathered.bin;
        if (bin < BINS) {
            // Less than any maximum in the bin, however its place was rounded.
            float lowest = int_to_float((int)(BINS - 1 - bin)) - 0.0625f;
            bar = low + lowest * part;
            list_tops(gathered, records, bar);
            // Without it a warp would miss what others have not listed yet.
            __syncthreads();
            u32 count = gathered.top_count() + (seconds ? gathered.open_count() : 0);
            if (count <= (!seconds ? limit : GATHERED) || (round == MOST_ROUNDS && gathered.top_count() <= GATHERED)) {
                return true;
            }
            if (seconds && want.gives_up(count)) {
                return false;
            }
            if (seconds) {
                // Most of them lie in one bin, which is looked at more closely.
                low += (lowest - 0.5f) * part;
                width = 2.0f * part;
            }
            seconds = true;
        } else if (!seconds) {
            seconds = true;
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

// Gathers the other tokens of the open tiles that reach the bar, with their weights at a scale. Fails if there are too many.
template <class V>
DEVICE bool gather_others(Gathered& gathered, const V& view, float bar, float s) {
    u32 tops = gathered.top_count(), open = gathered.open_count(), lane = lane_id();
    if (open == 0) {
        return true;
    }
#pragma unroll 1
    for (u32 start = warp_id(); start < open; start += TILES_AT_ONCE * warps()) {
        float z[TILES_AT_ONCE][PER_LANE];
        u64 top[TILES_AT_ONCE];
        u32 odd = 0;
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            u32 place = start + i * warps();
            if (place < open) {
                top[i] = gathered.open[place];
                view.load(key_id(top[i]) / TILE, lane, z[i], odd, bar);
            }
        }
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            if (start + i * warps() >= open) {
                break;
            }
            u32 passing = 0, tile = key_id(top[i]) / TILE;
            float maximum = key_logit(top[i]);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                passing |= z[i][j] >= bar ? 1u << j : 0;
            }
            // A lane has one or two, if any.
#pragma unroll 1
            for (; passing != 0; passing &= passing - 1) {
                u32 j = __ffs((int)passing) - 1;
                u64 key = key_of(clean(pick(z[i], j)), tile * TILE + view.place(tile, lane, j));
                if (key == top[i]) {
                    continue;
                }
                u32 to = tops + atomicAdd(&gathered.others, 1u);
                if (to < GATHERED) {
                    gathered.keys[to] = key;
                    gathered.maxima[to] = maximum;
                    gathered.weights[to] = weight((key_logit(key) - maximum) * s);
                }
            }
        }
    }
    // Without it a warp would miss keys that others have not added yet.
    __syncthreads();
    return gathered.count() <= GATHERED;
}
