// gather.cuh: the upper part of a row, into shared memory (docs/stages/filter.md); by a block.
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
#define BINS 256
#define LOG_BINS 8

// How often a bar may be moved.
#define MOST_ROUNDS 6

// What is gathered, in shared memory: the first tokens of tiles, then the others.
struct Gathered {
    alignas(16) u64 keys[GATHERED];
    // What each adds to the mass of the prefix that it ends.
    alignas(16) u64 gains[GATHERED];
    // log2 of the tokens' arrivals: the survey knows those of the tiles' first.
    float log_arrivals[GATHERED];
    // How many first tokens there are; in the high half how many of their tiles are open.
    u32 tops;
    u32 others;
    // The bin in which the bar lies; by number too, where the goals are two.
    u32 bin;
    u32 bin_by_number;
    union {
        struct {
            // The keys of the first tokens of tiles that may have others.
            u64 open[GATHERED];
            // What the maxima in each part of their range come to, the highest part first.
            alignas(16) u32 bins[BINS];
            union {
                // The weights of the other tokens, by place.
                u32 weights[GATHERED];
                // How many maxima lie in each part, where the goals are two: there are no others yet.
                alignas(16) u32 numbers[BINS];
            };
        };
        // Once all are there: the tokens in order, the masses of the prefixes that they end, and their places above.
        struct {
            u64 ordered[GATHERED];
            u64 masses[GATHERED];
            unsigned short from[GATHERED];
        };
    };

    DEVICE_MEMBER u32 top_count() const { return tops & 0xFFFF; }
    DEVICE_MEMBER u32 open_count() const { return tops >> 16; }
    DEVICE_MEMBER u32 count() const { return top_count() + others; }
};

// Empties the bins and the lists. A barrier must follow before they are used.
DEVICE void clear(Gathered& gathered) {
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        gathered.bins[i] = 0;
        gathered.numbers[i] = 0;
    }
    if (threadIdx.x == 0) {
        gathered.tops = 0;
        gathered.others = 0;
    }
}

// The first bin by which the bins reach a goal, by a warp, in every lane; BINS if they do not, and more if not by half.
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
    u32 total = __shfl_sync(ALL_LANES, upto, 31);
    return reached ? bin : BINS + (total < goal / 2);
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
            gathered.log_arrivals[place] = record.log_top;
        }
        if (opens && open_place < GATHERED) {
            gathered.open[open_place] = key;
        }
    });
}

// The largest power of two of which x, 1e-20 to 1e38, is not more than so many: how many of them as a power of two.
DEVICE float scale_to(float x, u32 power) { return bits_float((2 * 127 - 1 + power - (float_bits(x) - 1 >> 23)) << 23); }

// Finds a bar at which what the maxima come to reaches a goal, and lists the first tokens that pass it, if possible at
// most `limit`: `want.amount(maximum, sum)` of each, and `want.amount_of(logit)` of the second ones if they are looked at. Where all
// together do not reach the goal, it lists all if `Want::TAKES_ALL`, and fails if not; so it does if too many pass. With
// `Want::BY_NUMBER` their number may reach `want.number()` instead, whichever is sooner. The gathered must be cleared.
// Where it succeeds, at most GATHERED tokens are listed, whatever `limit` the caller derived from its parameters.
template <class Want>
DEVICE bool find_bar(Gathered& gathered, const Records& records, float first, float least, Want& want, u32 limit,
                     float& bar) {
    limit = limit < GATHERED ? limit : GATHERED;
    const Ruler ruler(first);
    const float top = ruler.height(first);
    float widest = larger(ruler.height(least), top - 1e37f);
    // Far below the first token there is nothing but what masks leave.
    float low = larger(ruler.height(least), top - SPAN), width = top - low;
    bool seconds = false;
#pragma unroll 1
    for (u32 round = 1; round <= MOST_ROUNDS; round++) {
        float scale = scale_to(larger(width, 1e-20f), LOG_BINS), part = scale_to(scale, 0);
        records.each_weighed([&](u32, const Record& record, u64 sum) INLINE {
            auto add = [&](float z, u32 amount) INLINE {
                // A higher logit's place is no lower, as each step is monotone.
                float place = (ruler.height(z) - low) * scale;
                if (place >= 0.0f) {
                    u32 bin = BINS - 1 - (u32)fminf(place, BINS - 1);
                    atomicAdd(&gathered.bins[bin], amount);
                    if constexpr (Want::BY_NUMBER) {
                        atomicAdd(&gathered.numbers[bin], 1u);
                    }
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
        if constexpr (Want::BY_NUMBER) {
            if (warp_id() == warps() - 1) {
                u32 bin = bin_reaching(gathered.numbers, want.number());
                if (lane_id() == 0) {
                    gathered.bin_by_number = bin;
                }
            }
        }
        // Without it the other warps would read the bin before it is found.
        __syncthreads();
        u32 bin = gathered.bin;
        if constexpr (Want::BY_NUMBER) {
            bin = gathered.bin_by_number < bin ? gathered.bin_by_number : bin;
        }
        if (bin < BINS && want.needs_more(GATHERED)) {
            return false;
        }
        if (bin < BINS) {
            // Less than any maximum in the bin, however its place was rounded.
            float lowest = int_to_float((int)(BINS - 1 - bin)) - 0.0625f;
            bar = ruler.at(low + lowest * part);
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
        } else if (bin == BINS && !seconds) {
            // As many again may do.
            seconds = true;
        } else if (low > widest) {
            low = widest;
            width = top - low;
        } else if (Want::TAKES_ALL) {
            // There are no more tokens than that, or few tiles have them.
            bar = LEAST;
            list_tops(gathered, records, bar);
            // Without it a warp would miss what others have not listed yet.
            __syncthreads();
            return gathered.top_count() <= GATHERED;
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

// The weight of a tile's first token.
#define FIRST_WEIGHT (1u << 28)

// Gathers the other tokens of an open tile that reach the bar, and what they add to the mass; by a warp.
template <class V>
DEVICE void gather_tile(Gathered& gathered, const V& view, float bar, float first, float s, u64 top) {
    float z[PER_LANE];
    u32 tops = gathered.top_count(), lane = lane_id(), id = key_id(top), tile = id / TILE, odd = 0;
    view.load(tile, lane, z, odd, bar);
    // While they fly.
    float maximum = key_logit(top), factor = factor_of(maximum, first, s);
    const Weigher weigher(maximum, s);
    u32 passing = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        passing |= (z[j] >= bar) & (view.place(tile, lane, j) != id % TILE) ? 1u << j : 0;
    }
    u32 count = __reduce_add_sync(ALL_LANES, __popc(passing));
    if (count == 0) {
        return;
    }
    // Next to each other, so that the warp finds them again.
    u32 start = tops + __shfl_sync(ALL_LANES, lane == 0 ? atomicAdd(&gathered.others, count) : 0, 0), end = start + count;
    end = end < GATHERED ? end : GATHERED;
    // A lane has one, if any.
#pragma unroll 1
    for (u32 at = start; at < end;) {
        u32 having = __ballot_sync(ALL_LANES, passing != 0), to = at + __popc(having & ((1u << lane) - 1));
        if (passing != 0 && to < end) {
            u32 j = __ffs((int)passing) - 1;
            float own = clean(pick(z, j));
            gathered.keys[to] = key_of(own, tile * TILE + view.place(tile, lane, j));
            gathered.weights[to] = weigher.of(own);
        }
        passing &= passing - 1;
        at += __popc(having);
    }
    // Without it a lane would miss what others have written.
    __syncwarp();
#pragma unroll 1
    for (u32 i = start + lane; i < end; i += 32) {
        u64 own = gathered.keys[i], q = FIRST_WEIGHT;
#pragma unroll 1
        for (u32 j = start; j < end; j++) {
            q += gathered.keys[j] > own ? gathered.weights[j] : 0;
        }
        gathered.gains[i] = tile_mass(factor, q + gathered.weights[i]) - tile_mass(factor, q);
    }
}

// Gathers the other tokens of the open tiles that reach the bar, and what all tokens add to the mass, at a scale. Fails if there
// are too many.
template <class V>
DEVICE bool gather_others(Gathered& gathered, const V& view, float bar, float first, float s) {
    u32 tops = gathered.top_count(), open = gathered.open_count();
#pragma unroll 1
    for (u32 place = warp_id(); place < open; place += warps()) {
        gather_tile(gathered, view, bar, first, s, gathered.open[place]);
    }
    // From the last thread on: the first warps wait for logits.
#pragma unroll 1
    for (u32 i = blockDim.x - 1 - threadIdx.x; i < tops; i += blockDim.x) {
        gathered.gains[i] = tile_mass(factor_of(key_logit(gathered.keys[i]), first, s), FIRST_WEIGHT);
    }
    // Without it a warp would miss what others have not added yet.
    __syncthreads();
    return gathered.count() <= GATHERED;
}
