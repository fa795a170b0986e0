// softmax.cu: turns rows of logits into rows of probabilities.
//
// Computes   what softmax.cuh says. softmax_cluster reads a row once and keeps it in shared memory; softmax_reduce and
//            softmax_write read it once each
// Never      allocates; never waits for the host; never reads or writes beyond a row
// Twins      definition spec/src/outputs.rs | src/operators/softmax.rs | why docs/stages/softmax.md
// Shapes     logits [rows, vocab] of T, out [rows, vocab] of f32 or T; row strides in elements
// Grid       softmax_cluster: x = (cluster, block), one block per multiprocessor, one warp more than process tiles;
//            cluster c takes rows c, c + clusters and so on. softmax_reduce and softmax_write: x = (row, block), 8
//            warps, at most `tiles_per_block` tiles a block
// Traffic    softmax_cluster: a row in, a row out. softmax_reduce and softmax_write: a row in twice and out once, 16
//            bytes per tile out, and the bytes of the row in again for each of its blocks
// Requires   1 <= vocab <= 2^20; elements aligned to their size, rows to 16 bytes for speed; `out` and `logits` are
//            equal or do not overlap

#include "block/reduce.cuh"
#include "block/cluster_softmax.cuh"

// A warp's tiles of a row that is read twice: every TWO_PASS_WARPS-th tile of its block. The next tile loads while the
// warp works on one.
template <class T, class Q>
struct TileIterator {
    typedef typename T::Element Element;

    const Element* row;
    u32 vocab;
    u32 tile;
    u32 end;
    bool vectorized;
    float next[ITEMS_PER_LANE];

    DEVICE_MEMBER TileIterator(const SoftmaxArgs& softmax, u32 row_number, u32 block_in_row, bool out_is_aligned)
        : row((const Element*)softmax.logits + row_number * softmax.stride), vocab(softmax.vocab) {
        TileSpan span = TileSpan{0, softmax.tiles}.nth_part(block_in_row, softmax.tiles_per_block);
        tile = span.from + warp_id();
        end = span.to;
        vectorized = (u64)row % 16 == 0 && out_is_aligned;
        load();
    }

    DEVICE_MEMBER bool is_vectorized() const { return vectorized && (tile + 1) * TILE <= vocab; }

    DEVICE_MEMBER void load() {
        if (tile < end) {
            load_tile<T, Q>(row, vocab, tile, is_vectorized(), next);
        }
    }

    // Calls `f(tile, vectorized, z)` for each of the warp's tiles.
    template <class F>
    DEVICE_MEMBER void for_each(F f) {
        while (tile < end) {
            u32 now = tile;
            bool now_vectorized = is_vectorized();
            float z[ITEMS_PER_LANE];
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = next[j];
            }
            tile += TWO_PASS_WARPS;
            load();
            f(now, now_vectorized, z);
        }
    }
};

// The first pass over rows that are read twice: stores the maximum, sum of weights and non-finite flags of each tile.
template <class T>
DEVICE void softmax_reduce_tiles(const SoftmaxArgs& softmax) {
    trigger_dependents();
    u32 row = blockIdx.x / softmax.blocks_per_row, block_in_row = blockIdx.x % softmax.blocks_per_row;
    TileIterator<T, T> tiles(softmax, row, block_in_row, true);
    TemperatureScale scale(temperature_of(softmax, row));
    TileSum* tile_sums = softmax.tile_sums + (u64)row * softmax.tiles;
    tiles.for_each([&](u32 tile, bool, float (&z)[ITEMS_PER_LANE]) INLINE {
        u32 nonfinite_flags = 0;
        int lanes;
        float maximum = from_ordered_int(reduce_max(z, AllMask(), AllMask(), nonfinite_flags, lanes));
        nonfinite_flags = __reduce_or_sync(FULL_MASK, nonfinite_flags);
        SplitSum sum = sum_weights(z, maximum, scale.log2e_over_t);
        if (lane_id() == 0) {
            tile_sums[tile] = TileSum{sum.total(), maximum, nonfinite_flags};
        }
    });
}

// The shared memory of the second pass.
struct TwoPassStorage {
    // Per warp, its maximum and its non-finite flags.
    u64 warp_keys[TWO_PASS_WARPS];
    ReduceStorage reduce;
};

// Returns a row's maximum in every thread of its block, from the threads' keys and non-finite flags.
DEVICE RowMax reduce_row_max(u64 (&warp_keys)[TWO_PASS_WARPS], u64 key, u32 nonfinite_flags) {
    key = warp_max(key) | __reduce_or_sync(FULL_MASK, nonfinite_flags);
    if (lane_id() == 0) {
        warp_keys[warp_id()] = key;
    }
    // RAW on warp_keys: lane 0 of each warp wrote its warp's key, all warps read all of them.
    __syncthreads();
    key = lane_id() < TWO_PASS_WARPS ? warp_keys[lane_id()] : 0;
    nonfinite_flags = __reduce_or_sync(FULL_MASK, (u32)key & 0xFFFF);
    return unpack_row_max(warp_max(key), nonfinite_flags);
}

// The second pass: each block combines the sums of its row's tiles while its first logits load, then writes its tiles.
template <class T, class Out>
DEVICE void softmax_write_tiles(const SoftmaxArgs& softmax) {
    __shared__ TwoPassStorage storage;
    u32 row = blockIdx.x / softmax.blocks_per_row, block_in_row = blockIdx.x % softmax.blocks_per_row;
    RowOutput<T, Out> row_output(softmax, row);
    TileIterator<T, LaneLayout<T, Out>> tiles(softmax, row, block_in_row, row_output.vectorized);
    TemperatureScale scale(temperature_of(softmax, row));
    // RAW on tile_sums: softmax_reduce wrote them, this kernel reads them. The first logits load before this wait.
    grid_dependency_wait();

    // 256 threads keep three sums each in registers, so a block reads the sums of up to 768 tiles only once.
    CachedTileSums<3> tile_sums(softmax.tile_sums + (u64)row * softmax.tiles, softmax.tiles, threadIdx.x, blockDim.x);
    u32 nonfinite_flags = 0;
    u64 key = tile_sums.key(0, nonfinite_flags);
    RowMax row_max = reduce_row_max(storage.warp_keys, key, nonfinite_flags);
    RowProbabilities probabilities;
    probabilities.set(row_max, scale, block_sum(storage.reduce, tile_sums.mass(row_max, scale)));
    if (softmax.statuses && block_in_row == 0 && threadIdx.x == 0) {
        softmax.statuses[row] = row_max.status();
    }
    tiles.for_each([&](u32 tile, bool vectorized, float (&z)[ITEMS_PER_LANE]) INLINE {
        if (row_max.nonfinite_flags != 0) {
            clean_items(z, EmptyMask());
        }
        row_output.write(probabilities, tile, vectorized, z);
    });
}

#define SOFTMAX_REDUCE(type, T) \
    KERNEL(softmax_reduce_##type, 32 * TWO_PASS_WARPS, SoftmaxArgs, softmax) { softmax_reduce_tiles<T>(softmax); }
#define SOFTMAX_WRITE(name, T, Out) \
    KERNEL_MIN_BLOCKS(softmax_write_##name, 32 * TWO_PASS_WARPS, 4, SoftmaxArgs, softmax) { \
        softmax_write_tiles<T, Out>(softmax); \
    } \
    KERNEL(softmax_cluster_##name, 32 * (MAX_WORKER_WARPS + 1), SoftmaxArgs, softmax) { \
        softmax_cluster<T, Out>(softmax); \
    }

FOR_EACH_TYPE(SOFTMAX_REDUCE)
// The names give the type of the logits, and the type of the probabilities if it differs.
SOFTMAX_WRITE(f32, F32, float)
SOFTMAX_WRITE(bf16, Bf16, unsigned short)
SOFTMAX_WRITE(f16, F16, unsigned short)
SOFTMAX_WRITE(bf16_f32, Bf16, float)
SOFTMAX_WRITE(f16_f32, F16, float)
