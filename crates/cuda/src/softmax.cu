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

#include "onchip.cuh"

// A lane's share of a tile of a row in memory, as it came, -inf beyond the vocabulary; it lies as in tiles of Q.
template <class T, class Q>
DEVICE void load_tile(const typename T::Element* row, u32 vocab, u32 tile, bool wide, float (&z)[PER_LANE]) {
    u32 start = tile * TILE, lane = lane_id();
    if (wide) {
        load_wide_as<T, Q>(row + start, lane, z);
        return;
    }
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 id = start + j * 32 + lane;
        z[j] = id < vocab ? T::convert(row[id]) : -INFINITE;
    }
}

#define TWICE_WARPS 8

// A warp's tiles of a row that does not stay on chip, its block's dealt out one by one; the next is on its way while one is worked on.
template <class T, class Q>
struct Walk {
    typedef typename T::Element Element;

    const Element* row;
    u32 vocab;
    u32 tile;
    u32 end;
    bool wide;
    float next[PER_LANE];

    DEVICE_MEMBER Walk(const Softmax& softmax, u32 row_number, u32 part, bool wide_out)
        : row((const Element*)softmax.logits + row_number * softmax.stride), vocab(softmax.vocab) {
        Span span = Span{0, softmax.tiles}.part(part, softmax.share);
        tile = span.from + warp_id();
        end = span.to;
        wide = (u64)row % 16 == 0 && wide_out;
        load();
    }

    DEVICE_MEMBER bool is_wide() const { return wide && (tile + 1) * TILE <= vocab; }

    DEVICE_MEMBER void load() {
        if (tile < end) {
            load_tile<T, Q>(row, vocab, tile, is_wide(), next);
        }
    }

    // Calls `f(tile, wide, z)` for each.
    template <class F>
    DEVICE_MEMBER void each(F f) {
        while (tile < end) {
            u32 now = tile;
            bool wide_now = is_wide();
            float z[PER_LANE];
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = next[j];
            }
            tile += TWICE_WARPS;
            load();
            f(now, wide_now, z);
        }
    }
};

// The first read of rows that do not stay on chip.
template <class T>
DEVICE void weigh_tiles(const Softmax& softmax) {
    let_next_begin();
    u32 row = blockIdx.x / softmax.blocks_per_row, part = blockIdx.x % softmax.blocks_per_row;
    Walk<T, T> walk(softmax, row, part, true);
    Scale scale(temperature_of(softmax, row));
    TileWeights* told = softmax.told + (u64)row * softmax.tiles;
    walk.each([&](u32 tile, bool, float(&z)[PER_LANE]) INLINE {
        u32 odd = 0;
        int lanes;
        float maximum = from_signed_order(maximum_of(z, All(), All(), odd, lanes));
        odd = __reduce_or_sync(ALL_LANES, odd);
        Halves sum = sum_of_weights(z, maximum, scale.s);
        if (lane_id() == 0) {
            told[tile] = TileWeights{sum.sum(), maximum, odd};
        }
    });
}

// What the warps of a block heard of their row, each of some tiles: the largest of their keys, and their odd values.
DEVICE Heard heard_by_warps(u64 key, u32 odd, u64 (&scratch)[TWICE_WARPS]) {
    key = warp_max(key) | __reduce_or_sync(ALL_LANES, odd);
    if (lane_id() == 0) {
        scratch[warp_id()] = key;
    }
    // Without it a warp reads the words of warps that have not written theirs.
    __syncthreads();
    key = lane_id() < TWICE_WARPS ? scratch[lane_id()] : 0;
    odd = __reduce_or_sync(ALL_LANES, (u32)key & 0xFFFF);
    return heard_of(warp_max(key), odd);
}

// The second: each block adds up what was told of its row, while its first logits come.
template <class T, class Out>
DEVICE void write_tiles(const Softmax& softmax) {
    __shared__ u64 scratch[TWICE_WARPS];
    u32 row = blockIdx.x / softmax.blocks_per_row, part = blockIdx.x % softmax.blocks_per_row;
    Sink<T, Out> sink(softmax, row);
    Walk<T, Placed<T, Out>> walk(softmax, row, part, sink.wide);
    Scale scale(temperature_of(softmax, row));
    wait_for_previous();

    // Those of rows of up to 768 tiles are read once.
    ToldTiles<3> told(softmax.told + (u64)row * softmax.tiles, softmax.tiles, threadIdx.x, blockDim.x);
    u32 odd = 0;
    u64 key = told.key(0, odd);
    Heard whole = heard_by_warps(key, odd, scratch);
    Probabilities probabilities;
    probabilities.set(whole, scale, block_sum(told.mass(whole, scale)));
    if (softmax.statuses && part == 0 && threadIdx.x == 0) {
        softmax.statuses[row] = whole.status();
    }
    walk.each([&](u32 tile, bool wide, float(&z)[PER_LANE]) INLINE {
        if (whole.odd != 0) {
            clean_share(z, Nothing());
        }
        sink.write(probabilities, tile, wide, z);
    });
}

#define WEIGH(type, T) \
    KERNEL(weigh_##type, 32 * TWICE_WARPS, Softmax, softmax) { weigh_tiles<T>(softmax); }
#define WRITE(name, T, Out)                                                                                  \
    KERNEL_BESIDE(write_##name, 32 * TWICE_WARPS, 4, Softmax, softmax) { write_tiles<T, Out>(softmax); }     \
    KERNEL(softmax_##name, 32 * (MOST_WARPS + 1), Softmax, softmax) { softmax_on_chip<T, Out>(softmax); }

WEIGH(f32, F32)
WEIGH(bf16, Bf16)
WEIGH(f16, F16)
// Named by the logits' type, and that of the probabilities if it is another.
WRITE(f32, F32, float)
WRITE(bf16, Bf16, unsigned short)
WRITE(f16, F16, unsigned short)
WRITE(bf16_f32, Bf16, float)
WRITE(f16_f32, F16, float)
