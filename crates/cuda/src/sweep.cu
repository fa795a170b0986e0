// sweep.cu: the survey of rows without edits, at the speed of memory.
//
// Computes   the records of a row, as survey.cu does
// Never      reads a row twice; never writes logits; never reads beyond the vocabulary
// Twins      as survey.cu, which rows with edits take
// Shapes     logits [rows, vocab] of T, row stride in elements; records, sums [rows, tiles]
// Grid       x = (row, block of warps); 8 warps a block, each GROUPS times TILES tiles; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out, 4 more with sums
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed
//
// A warp has the maxima of its tiles by one reduction each. The first warp draws the arrivals of all tiles of the block,
// one a lane: else each warp would draw its own, with most lanes idle.

#include "arrival.cuh"
#include "row.cuh"
#include "sums.cuh"
#include "warp.cuh"

#define SWEEP_WARPS 8
#define SWEEP_THREADS (32 * SWEEP_WARPS)
// As many blocks a multiprocessor as registers allow without a spill.
#define SWEEP_FEW SWEEP_THREADS, 6
#define SWEEP_MANY_f32 SWEEP_THREADS, 6
#define SWEEP_MANY_bf16 SWEEP_THREADS, 4
#define SWEEP_MANY_f16 SWEEP_THREADS, 4
#define SWEEP_MANY_SUMS SWEEP_THREADS, 3

// What a block's warps learn of its tiles.
template <u32 TILES>
struct Seen {
    float maxima[TILES];
    // The largest logits but for the first tokens'.
    float others[TILES];
    u32 places[TILES];
    // The sums of their weights, for filters and for logprobs, if asked for.
    u64 sums[TILES];
    u64 told[TILES];
    u32 odd[SWEEP_WARPS];
};

// Bits that compare as signed integers in the order of the floats; of NaN without a sign, above all.
DEVICE int signed_order(float z) {
    int bits = (int)float_bits(z);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

DEVICE float from_signed_order(int bits) { return bits_float((u32)(bits ^ ((bits >> 31) & 0x7FFFFFFF))); }

// The lane's share of a tile that lies on 16 bytes, as Row::place has it.
template <class T>
DEVICE void load_wide_once(const typename T::Element* tile, u32 lane, float (&z)[PER_LANE]) {
    const Quad* quads = (const Quad*)tile;
    if (sizeof(typename T::Element) == 4) {
        Quad low, high;
        load_once(quads + lane, low.word);
        load_once(quads + 32 + lane, high.word);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    } else {
        Quad quad;
        load_once(quads + lane, quad.word);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[2 * j] = T::convert((unsigned short)quad.word[j]);
            z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
        }
    }
}

// The lane's largest logit of a tile; NaN if it has one.
DEVICE float largest_of(const float (&z)[PER_LANE]) {
    return larger_or_nan(larger_or_nan(larger_or_nan(z[0], z[1]), larger_or_nan(z[2], z[3])),
                         larger_or_nan(larger_or_nan(z[4], z[5]), larger_or_nan(z[6], z[7])));
}

// Cleans the lane's share of a tile; returns the status bits of what was odd.
DEVICE u32 clean_tile(float (&z)[PER_LANE]) {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        bits |= z[j] != z[j] ? STATUS_NAN : z[j] > LARGEST ? STATUS_INF : 0;
        z[j] = clean(z[j]);
    }
    return bits;
}

// Where the tile's maximum lies in the lane's share, if it does, and the largest of the lane's other logits.
struct Spot {
    u32 j;
    float others;
};

DEVICE Spot find(const float (&z)[PER_LANE], float maximum) {
    float low_half = larger(larger(z[0], z[1]), larger(z[2], z[3]));
    float high_half = larger(larger(z[4], z[5]), larger(z[6], z[7]));
    bool high = !(low_half >= maximum);
    float x0 = high ? z[4] : z[0], x1 = high ? z[5] : z[1], x2 = high ? z[6] : z[2], x3 = high ? z[7] : z[3];
    bool middle = !(larger(x0, x1) >= maximum);
    float y0 = middle ? x2 : x0, y1 = middle ? x3 : x1;
    bool last = !(y0 >= maximum);
    float others = larger(larger(high ? low_half : high_half, middle ? larger(x0, x1) : larger(x2, x3)), last ? y0 : y1);
    return Spot{(high ? 4u : 0u) + (middle ? 2u : 0u) + (last ? 1u : 0u), others};
}

template <class T, u32 TILES, u32 GROUPS, bool EARLY, bool SUMS>
DEVICE void sweep(const Step& step) {
    constexpr u32 PER_WARP = TILES * GROUPS, PER_BLOCK = SWEEP_WARPS * PER_WARP;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ Seen<PER_BLOCK> seen;
    let_next_begin();
    u32 row_index = blockIdx.x / step.blocks_per_row, lane = lane_id(), warp = warp_id();
    u32 block_tile = blockIdx.x % step.blocks_per_row * PER_BLOCK, own_tile = block_tile + lane;
    int slot = step.slots[row_index];
    // Where rows are few, their loads do not wait for the slot: padding is read in vain.
    if (!EARLY && slot < 0) {
        return;
    }
    Row<T> row(step, row_index);
    u32 wide_tiles = row.wide ? step.vocab / TILE : 0;
    Record record{-INFINITE, 0.0f, 0.0f, 0};
    First first{1.0f, 0};
    Stream stream{0, 0, 0};
    bool races = false;
    bool sums = false, told = false;
    float s = 0.0f, logprob_s = 0.0f;
    u32 odd = 0;

#pragma unroll
    for (u32 group = 0; group < GROUPS; group++) {
        u32 first_tile = block_tile + warp * PER_WARP + group * TILES;
        float z[TILES][PER_LANE], own[TILES];
        bool wide = first_tile + TILES <= wide_tiles;
        if (wide) {
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                load_wide_once<T>(row.logits + (first_tile + i) * TILE, lane, z[i]);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                u32 start = (first_tile + i) * TILE + lane;
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    z[i][j] = start + j * 32 < step.vocab ? T::convert(row.logits[start + j * 32]) : -INFINITE;
                }
            }
        }
        if (EARLY && slot < 0) {
            return;
        }
        // While the loads fly.
        if (SUMS && group == 0) {
            sums = step.params[slot].asks & ASKS_SUMS;
            told = step.params[slot].asks & ASKS_TOLD;
            s = step.params[slot].filter_s;
            logprob_s = step.params[slot].logprob_s;
        }
        if (group == 0 && warp == 0) {
            const Params& params = step.params[slot];
            races = !(params.asks & ASKS_GREEDY);
            stream = Stream{params.seed, step.states[slot].position, params.draw};
            if (races) {
                first = first_arrival(stream, own_tile);
                record.log_first = log2_of_normal(first.e);
            }
        }

        int top[TILES], highest = signed_order(-INFINITE);
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            own[i] = largest_of(z[i]);
            top[i] = __reduce_max_sync(ALL_LANES, signed_order(own[i]));
            highest = top[i] > highest ? top[i] : highest;
        }
        // +inf and NaN, which no row has as a rule, show in the maxima.
        if (highest >= signed_order(INFINITE)) {
            u32 bits = 0;
#pragma unroll
            for (u32 i = 0; i < TILES; i++) {
                bits |= clean_tile(z[i]);
                own[i] = largest_of(z[i]);
                top[i] = __reduce_max_sync(ALL_LANES, signed_order(own[i]));
            }
            odd |= __reduce_or_sync(ALL_LANES, bits);
        }
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            // -0.0 is +0.0.
            float maximum = from_signed_order(top[i]) + 0.0f;
            Spot spot = find(z[i], maximum);
            u32 j = spot.j, at = j * 32 + lane;
            if (wide) {
                at = sizeof(typename T::Element) == 4 ? j / 4 * 128 + lane * 4 + j % 4 : lane * 8 + j;
            }
            u32 place = __reduce_min_sync(ALL_LANES, own[i] >= maximum ? at : TILE);
            int others = __reduce_max_sync(ALL_LANES, signed_order(at == place ? spot.others : own[i]));
            u64 sum = sums ? sum_of_weights(z[i], maximum, s) : 0;
            u64 told_sum = told ? sum_of_weights(z[i], maximum, logprob_s) : 0;
            if (lane == 0) {
                u32 to = warp * PER_WARP + group * TILES + i;
                seen.maxima[to] = maximum;
                seen.others[to] = from_signed_order(others);
                seen.places[to] = place;
                seen.sums[to] = sum;
                seen.told[to] = told_sum;
            }
        }
    }
    if (lane == 0) {
        seen.odd[warp] = odd;
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    if (warp == 0 && lane < PER_BLOCK && own_tile < step.tiles) {
        u32 place = seen.places[lane];
        record.maximum = seen.maxima[lane];
        if (races) {
            record.log_top = log2_of_normal(token_arrival(stream, first, own_tile, place));
        }
        // Odd values of any of a warp's tiles stand in all their records: only the row's are asked for.
        record.places = places_of(place, seen.odd[lane / PER_WARP], seen.others[lane]);
        step.records[(u64)row_index * step.tiles + own_tile] = record;
        if (sums) {
            step.sums[(u64)row_index * step.tiles + own_tile] = seen.sums[lane];
        }
        if (told) {
            step.told[(u64)row_index * step.tiles + own_tile] = TileWeights{seen.told[lane], record.maximum, 0};
        }
    }
}

// Kernels for rows that ask for no sums, and for any: where rows are few, a warp takes one tile, so that all of them load
// at once; else four.
#define SWEEP(type, T)                                                    \
    KERNEL(sweep_##type##_few, SWEEP_FEW, Step, step) {                   \
        sweep<T, 1, 1, true, false>(step);                                \
    }                                                                     \
    KERNEL(sweep_##type##_many, SWEEP_MANY_##type, Step, step) {          \
        sweep<T, 2, 2, false, false>(step);                               \
    }                                                                     \
    KERNEL(sweep_sums_##type##_few, SWEEP_FEW, Step, step) {              \
        sweep<T, 1, 1, true, true>(step);                                 \
    }                                                                     \
    KERNEL(sweep_sums_##type##_many, SWEEP_MANY_SUMS, Step, step) {       \
        sweep<T, 2, 2, false, true>(step);                                \
    }

SWEEP(f32, F32)
SWEEP(bf16, Bf16)
SWEEP(f16, F16)
