// softmax.cu: rows of logits to rows of probabilities.
//
// Computes   what softmax.cuh says, by one read where rows stay on chip, else by two
// Never      allocates; never waits for the host; never reads or writes beyond a row
// Twins      definition spec/src/outputs.rs | src/softmax.rs | why docs/stages/softmax.md
// Shapes     logits [rows, vocab] of T, out [rows, vocab] of f32 or T; row strides in elements
// Grid       softmax: x = (cluster, block), a block a multiprocessor, a warp more than work at tiles; a cluster takes every so many-th row.
//            weigh and write: x = (row, block), `share` tiles each
// Traffic    softmax: a row in, a row out; weigh and write: a row in twice, 16 bytes a tile out and, by block, in
// Requires   1 <= vocab <= 2^20; elements on multiples of their size, on 16 bytes for speed; out is the logits' place or apart

#include "block/reduce.cuh"
#include "block/cluster_softmax.cuh"

// A lane's share of a tile of a row in memory, as it came, -inf beyond the vocabulary; it lies as in tiles of Q.
template <class T, class Q>
DEVICE void load_tile(const typename T::Element* row, u32 vocab, u32 tile, bool vectorized,
                      float (&z)[ITEMS_PER_LANE]) {
    u32 start = tile * TILE, lane = lane_id();
    if (vectorized) {
        load_vectorized_as<T, Q>(row + start, lane, z);
        return;
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        u32 id = start + j * 32 + lane;
        z[j] = id < vocab ? T::convert(row[id]) : -INF_F32;
    }
}

#define TWO_PASS_WARPS 8

// A warp's tiles of a row that does not stay on chip, its block's dealt out one by one; the next is on its way while one is worked on.
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

    // Calls `f(tile, vectorized, z)` for each.
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

// The first read of rows that do not stay on chip.
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

// What the warps of a block heard of their row, each of some tiles: the largest of their keys, and their odd values.
DEVICE RowMax reduce_row_max(u64 key, u32 nonfinite_flags, u64 (&scratch)[TWO_PASS_WARPS]) {
    key = warp_max(key) | __reduce_or_sync(FULL_MASK, nonfinite_flags);
    if (lane_id() == 0) {
        scratch[warp_id()] = key;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    key = lane_id() < TWO_PASS_WARPS ? scratch[lane_id()] : 0;
    nonfinite_flags = __reduce_or_sync(FULL_MASK, (u32)key & 0xFFFF);
    return unpack_row_max(warp_max(key), nonfinite_flags);
}

// The second: each block adds up what was told of its row, while its first logits come.
template <class T, class Out>
DEVICE void softmax_write_tiles(const SoftmaxArgs& softmax) {
    __shared__ u64 scratch[TWO_PASS_WARPS];
    u32 row = blockIdx.x / softmax.blocks_per_row, block_in_row = blockIdx.x % softmax.blocks_per_row;
    RowOutput<T, Out> row_output(softmax, row);
    TileIterator<T, LaneLayout<T, Out>> tiles(softmax, row, block_in_row, row_output.vectorized);
    TemperatureScale scale(temperature_of(softmax, row));
    grid_dependency_wait();

    // Those of rows of up to 768 tiles are read once.
    CachedTileSums<3> tile_sums(softmax.tile_sums + (u64)row * softmax.tiles, softmax.tiles, threadIdx.x, blockDim.x);
    u32 nonfinite_flags = 0;
    u64 key = tile_sums.key(0, nonfinite_flags);
    RowMax row_max = reduce_row_max(key, nonfinite_flags, scratch);
    RowProbabilities probabilities;
    probabilities.set(row_max, scale, block_sum(tile_sums.mass(row_max, scale)));
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

SOFTMAX_REDUCE(f32, F32)
SOFTMAX_REDUCE(bf16, Bf16)
SOFTMAX_REDUCE(f16, F16)
// Named by the logits' type, and that of the probabilities if it is another.
SOFTMAX_WRITE(f32, F32, float)
SOFTMAX_WRITE(bf16, Bf16, unsigned short)
SOFTMAX_WRITE(f16, F16, unsigned short)
SOFTMAX_WRITE(bf16_f32, Bf16, float)
SOFTMAX_WRITE(f16_f32, F16, float)
