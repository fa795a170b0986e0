// nucleus_list.cuh: lists a row's tokens down to a threshold, if these are all that a search needs; by a block (F1,
// M4).
//
// Computes   a threshold above which the goal's mass lies, by the row's records; the list of the tokens that reach it
// Never      counts all of a row's tokens or takes their exponentials
// Twins      none: search.cuh proves the result
// Traffic    16 bytes per tile, read twice; the logits of the tiles of which several tokens may reach the threshold
// Requires   all threads of the block; the survey's records of the row, with sums
//
// A nucleus of some hundreds or thousands of tokens is too long for candidates.cuh, and far shorter than a row. Each
// tile has a few of its tokens, so the first and second tokens of the tiles nearly make up its mass. The survey knows
// each first token and a lower bound of each second one.
//
//     add the weights of each tile's first and second token to 256 bins of their range
//     threshold = just below the bin at which the largest possible goal is reached; give up if none is
//     for each tile: open it if several of its tokens may reach the threshold
//                    otherwise list its first token if that reaches the threshold
//     give up if the tiles or the tokens exceed their capacity
//     read the open tiles and list their tokens that reach the threshold
#pragma once

#include "block/crossing.cuh"

// How many open tiles a warp loads at once.
#define TILES_AT_ONCE 3

// Lists the row's tokens down to a threshold at which the mass certainly reaches the goal, as a bracket with nothing
// above it. Returns false if the records show no such threshold, or if tiles or tokens exceed their capacity. `low`
// is the least of the tiles' maxima. Not inlined, so that it has registers of its own.
template <class V>
DEVICE_NOINLINE bool list_nucleus(const Step& step, u32 row, float low, SearchStorage& storage) {
    const V view(step, row, step.slots[row]);
    Search& search = storage.search;
    NucleusBins& nucleus = storage.nucleus;
    const u32 tiles = step.tiles;
    const TileRecord* records = step.records + (u64)row * tiles;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) {
        nucleus.bins[i] = 0;
    }
    if (threadIdx.x == 0) {
        nucleus.alone = 0;
        nucleus.count = 0;
        search.listed = 0;
    }
    // RAW on the bins and on search: all threads cleared the bins and thread 0 set up the search, all threads use
    // both.
    __syncthreads();
    const float first = search.given.first_value, log2e_over_t = search.log2e_over_t;
    const HeightScale height_scale(first);
    const float top = height_scale.height(first);
    low = max_f32(height_scale.height(low), top - RELEVANT_SPAN);
    const HeightBins range(low, top - low);
    // Amounts are in units of 2^-19 of the first token's weight, rounded down.
    auto add = [&](float z) INLINE {
        const u32 bin = range.bin(height_scale.height(z));
        if (bin < BINS) {
            u32 amount = (u32)(tile_factor(z, first, log2e_over_t) * 524288.0f);
            atomicAdd(&nucleus.bins[bin], amount);
        }
    };
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        TileRecord record = records[tile];
        add(record.maximum);
        add(record_others_lower_bound(record));
    }
    // RAW on the bins: all threads added to them, warp 0 reads them.
    __syncthreads();
    if (warp_id() == 0) {
        const u64 goal = ((search.goal + search.goal_slack) >> 24) + 1;
        store_bin(nucleus.bins, goal >> 32 ? ~0u : (u32)goal, nucleus.bin);
    }
    // RAW on nucleus.bin: a lane of warp 0 wrote it, all threads read it.
    __syncthreads();
    if (nucleus.bin >= BINS) {
        return false;
    }
    const float threshold = height_scale.at(low + range.end(nucleus.bin) * range.part());
    u64* list = storage.keys;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        TileRecord record = records[tile];
        if (record_others_bound(record) >= threshold) {
            u32 index = atomicAdd(&nucleus.count, 1u);
            if (index < MAX_OPEN_TILES) {
                nucleus.open[index] = tile;
            }
        } else if (record.maximum >= threshold) {
            u32 index = atomicAdd(&nucleus.alone, 1u);
            if (index < LIST_CAPACITY) {
                list[index] = make_key(record.maximum, tile * TILE + (record.packed & 255));
            }
        }
    }
    // RAW on the open tiles and their count: all threads listed tiles, all warps read them.
    __syncthreads();
    const u32 count = nucleus.count, alone = nucleus.alone;
    if (count > MAX_OPEN_TILES || count + alone > LIST_CAPACITY) {
        return false;
    }
    // A warp loads several tiles at once, as the time of a tile is little more than the latency of its load.
#pragma unroll 1
    for (u32 start = warp_id(); start < count; start += TILES_AT_ONCE * warp_count()) {
        float z[TILES_AT_ONCE][ITEMS_PER_LANE];
        u32 nonfinite_flags = 0;
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            if (start + i * warp_count() < count) {
                view.load(nucleus.open[start + i * warp_count()], lane_id(), z[i], nonfinite_flags, threshold);
            }
        }
#pragma unroll
        for (u32 i = 0; i < TILES_AT_ONCE; i++) {
            if (start + i * warp_count() >= count) {
                break;
            }
            u32 inside_bits = 0, tile = nucleus.open[start + i * warp_count()];
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                inside_bits |= z[i][j] >= threshold ? 1u << j : 0;
            }
            u32 index = alone + (inside_bits != 0 ? atomicAdd(&search.listed, (u32)__popc(inside_bits)) : 0);
            // A lane has few tokens that reach the threshold, if any.
#pragma unroll 1
            for (; inside_bits != 0 && index < LIST_CAPACITY; inside_bits &= inside_bits - 1) {
                u32 j = (u32)__ffs((int)inside_bits) - 1;
                list[index++] = make_key(clean(select_item(z[i], j)), tile * TILE + view.offset(lane_id(), j));
            }
        }
    }
    // RAW on search.listed and the list: all threads listed tokens, all threads read the count and later the keys.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.bracket.hi = RangeEnd{INF_F32, 0, 0};
        search.bracket.lo = threshold;
        search.bracket.count = alone + search.listed;
        search.max_value_bits = ordered_bits(first);
        search.min_value_bits_inverted = ~ordered_bits(threshold);
    }
    return alone + search.listed <= LIST_CAPACITY;
}

// Calls list_nucleus on the first block, and gives all blocks the bracket that it finds. Returns whether it finds one.
template <class V>
DEVICE bool list_nucleus_on_first_block(const SearchedRow<V>& set, float low) {
    const RowBlocks blocks = set.blocks();
    Search& search = set.storage.search;
    u64 found[] = {0, 0};
    if (blocks.is_first() && list_nucleus<V>(set.step, set.row, low, set.storage)) {
        // RAW on search.bracket: thread 0 wrote it, all threads read it.
        __syncthreads();
        found[0] = search.bracket.count;
        found[1] = float_bits(search.bracket.lo);
    }
    blocks.broadcast(found);
    if (!blocks.is_first() && threadIdx.x == 0) {
        search.bracket.hi = RangeEnd{INF_F32, 0, 0};
        search.bracket.lo = bits_float((u32)found[1]);
        search.bracket.count = (u32)found[0];
    }
    return found[0] != 0;
}
