// upper.cuh: a row's tokens from a bar on up, where those are all that a search needs; by a block (F1, M4).
//
// Computes   a bar that a row's records say a mass is reached above, and the tokens that reach it
// Never      counts a row's tokens or takes their exponentials
// Twins      none: search.cuh proves what comes of it
// Traffic    24 bytes a tile; the logits of tiles that may have several tokens that reach the bar
// Requires   all threads of the block; the survey's records of the row, with sums
//
// A nucleus of some hundreds or thousands of tokens is longer than a list of gather.cuh, and far shorter than a row: each tile has
// a few of its tokens. So the first and the second token of each tile nearly make up its mass, and the survey knows both.
#pragma once

#include "gather.cuh"
#include "walk.cuh"

// How many tiles may be read.
#define MOST_OPEN 1536

// How many of them a warp reads at once.
#define AT_ONCE 3

// In the room of the counts of levels.
struct Upper {
    alignas(16) u32 bins[BINS];
    // The bin in which the bar lies.
    u32 bin;
    // How many first tokens of tiles that have no others are listed; and the tiles that may have several tokens that reach the bar.
    u32 alone;
    u32 count;
    u32 open[MOST_OPEN];
};

DEVICE Upper& block_upper() {
    static_assert(sizeof(Upper) <= (LEVELS + 32) * sizeof(u32), "the room of the counts holds the tiles");
    return *(Upper*)level_counts();
}

// Lists the tokens down to where the row's mass surely is reached, as an aim that nothing is above, if records tell where that is
// and there is room; `low` is the least of the tiles' maxima. Apart, so that its registers are its own.
template <class V>
DEVICE_APART bool list_upper(const Step& step, u32 row, float low) {
    const V view(step, row, step.slots[row]);
    Search& search = block_search();
    Upper& upper = block_upper();
    const u32 tiles = step.tiles;
    const Record* records = step.records + (u64)row * tiles;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        upper.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        upper.alone = 0;
        upper.count = 0;
        search.listed = 0;
    }
    // Without it weights would be added before the bins are empty, and the search be read before it is there.
    __syncthreads();
    const float first = search.given.first, s = search.s;
    const Ruler ruler(first);
    const float top = ruler.height(first);
    low = larger(ruler.height(low), top - SPAN);
    float scale = scale_to(larger(top - low, 1e-20f), LOG_BINS);
    // In units of 2^-19 of the first token's weight, rounded down.
    auto add = [&](float z) INLINE {
        float place = (ruler.height(z) - low) * scale;
        if (place >= 0.0f) {
            u32 amount = (u32)(factor_of(z, first, s) * 524288.0f);
            atomicAdd(&upper.bins[BINS - 1 - (u32)fminf(place, BINS - 1)], amount);
        }
    };
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        Record record = records[tile];
        add(record.maximum);
        add(least_of_others(record));
    }
    // Without it a warp would miss what others have not added yet.
    __syncthreads();
    if (warp_id() == 0) {
        u64 goal = ((search.goal + search.doubt) >> 24) + 1;
        u32 bin = bin_reaching(upper.bins, goal >> 32 ? ~0u : (u32)goal);
        if (lane_id() == 0) {
            upper.bin = bin;
        }
    }
    // Without it the other warps would read the bin before it is found.
    __syncthreads();
    if (upper.bin >= BINS) {
        return false;
    }
    // Less than any logit in the bin, however its place was rounded.
    const float bar = ruler.at(low + (int_to_float((int)(BINS - 1 - upper.bin)) - 0.0625f) * scale_to(scale, 0));
    u64* list = shared_list();
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        Record record = records[tile];
        if (others_of(record) >= bar) {
            u32 place = atomicAdd(&upper.count, 1u);
            if (place < MOST_OPEN) {
                upper.open[place] = tile;
            }
        } else if (record.maximum >= bar) {
            u32 place = atomicAdd(&upper.alone, 1u);
            if (place < LISTED) {
                list[place] = key_of(record.maximum, tile * TILE + (record.places & 255));
            }
        }
    }
    // Without it a warp would miss tiles that others have not listed yet.
    __syncthreads();
    const u32 count = upper.count, alone = upper.alone;
    if (count > MOST_OPEN || count + alone > LISTED) {
        return false;
    }
    // Several tiles are on their way at once: each is a trip to memory and little else.
#pragma unroll 1
    for (u32 start = warp_id(); start < count; start += AT_ONCE * warps()) {
        float z[AT_ONCE][PER_LANE];
        u32 odd = 0;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (start + i * warps() < count) {
                view.load(upper.open[start + i * warps()], lane_id(), z[i], odd, bar);
            }
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (start + i * warps() >= count) {
                break;
            }
            u32 in = 0, tile = upper.open[start + i * warps()];
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                in |= z[i][j] >= bar ? 1u << j : 0;
            }
            u32 place = alone + (in != 0 ? atomicAdd(&search.listed, (u32)__popc(in)) : 0);
            // A lane has a few, if any.
#pragma unroll 1
            for (; in != 0 && place < LISTED; in &= in - 1) {
                u32 j = (u32)__ffs((int)in) - 1;
                list[place++] = key_of(clean(pick(z[i], j)), tile * TILE + view.place(tile, lane_id(), j));
            }
        }
    }
    // Without it tokens would be missed that others have not listed yet.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.aim.hi = Reached{INFINITE, 0, 0};
        search.aim.lo = bar;
        search.aim.count = alone + search.listed;
        search.most_bits = ordered_bits(first);
        search.least_bits = ~ordered_bits(bar);
    }
    return alone + search.listed <= LISTED;
}
