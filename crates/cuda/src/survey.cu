// survey.cu: read each row, under its edits, once; learn what every later stage asks of it.
//
// Computes   for each tile of 256 tokens its maximum and the token that has it, when that token and the first of
//            all arrive in the race; a bound of its other tokens; about the sum of its weights, if asked for; which odd
//            values the row holds
// Never      reads a row twice; never writes logits; never reads beyond the vocabulary
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, sums [rows, tiles]
// Grid       x = (row, block of warps); a warp takes TILES tiles, 4 warps a block; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out, 4 more with sums
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are not read

#include "arrival.cuh"
#include "sums.cuh"
#include "view.cuh"
#include "warp.cuh"

#define SURVEY_THREADS 128

// Which odd values a tile holds, as status bits.
DEVICE u32 odd_values(const float (&z)[PER_LANE]) {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        bits |= z[j] != z[j] ? STATUS_NAN : z[j] > LARGEST ? STATUS_INF : 0;
    }
    return __reduce_or_sync(ALL_LANES, bits);
}

// Surveys a warp's tiles of a row.
template <class T, u32 TILES, bool EDITED>
DEVICE void survey_tiles(const Step& step, u32 row, int slot, u32 first_tile) {
    u32 lane = lane_id();
    View<T, EDITED> logits(step, row, slot);
    float z[TILES][PER_LANE];
    u32 odd = 0;
    u32 edits = logits.load(first_tile, step.tiles, lane, z);

    // While the loads fly: lane i draws the first arrival of the i-th tile.
    const Params& params = step.params[slot];
    bool races = !(params.asks & ASKS_GREEDY);
    Stream stream{params.seed, step.states[slot].position, params.draw};
    u32 own_tile = first_tile + (lane < TILES ? lane : 0);
    First first{1.0f, 0};
    Record record{-INFINITE, 0.0f, 0.0f, 0};
    bool sums = params.asks & ASKS_SUMS;
    u64 sum = 0;
    bool told = params.asks & ASKS_TOLD, raw = EDITED && told && params.logprob_mode == MODE_RAW;
    TileWeights own_told{0, -INFINITE, 0};
    if (races) {
        first = first_arrival(stream, own_tile);
        record.log_first = log2_of_normal(first.e);
    }
    if constexpr (EDITED) {
        __shared__ float own[SURVEY_THREADS / 32][TILES * PER_LANE][32];
        logits.edit(first_tile, lane, edits, &own[warp_id()][0][lane], z, odd);
    }

#pragma unroll
    for (u32 i = 0; i < TILES; i++) {
        if (first_tile + i >= step.tiles) {
            break;
        }
        float m = -INFINITE;
        bool ordinary = true;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            m = larger(m, z[i][j]);
            ordinary = ordinary && z[i][j] <= LARGEST;
        }
        if (__any_sync(ALL_LANES, !ordinary)) {
            odd |= odd_values(z[i]);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[i][j] = clean(z[i][j]);
            }
        }
        m = from_ordered_bits(__reduce_max_sync(ALL_LANES, ordered_bits(clean(m))));
        u32 place = TILE;
#pragma unroll
        for (u32 j = PER_LANE; j-- > 0;) {
            // +inf counts as the largest float, so it has the maximum too; places rise with j.
            place = z[i][j] >= m ? logits.place(first_tile + i, lane, j) : place;
        }
        place = __reduce_min_sync(ALL_LANES, place);
        float others = -INFINITE;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            others = larger(others, logits.place(first_tile + i, lane, j) == place ? -INFINITE : z[i][j]);
        }
        others = from_ordered_bits(__reduce_max_sync(ALL_LANES, ordered_bits(clean(others))));
        if (sums) {
            u64 own = sum_of_weights(z[i], m, params.filter_s);
            sum = lane == i ? own : sum;
        }
        if (told) {
            float maximum = m;
            if (raw) {
                logits.row.load(first_tile + i, lane, z[i]);
                float most = -INFINITE;
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    z[i][j] = clean(z[i][j]);
                    most = larger(most, z[i][j]);
                }
                maximum = from_ordered_bits(__reduce_max_sync(ALL_LANES, ordered_bits(most)));
            }
            u64 own = sum_of_weights(z[i], maximum, params.logprob_s);
            own_told = lane == i ? TileWeights{own, maximum, 0} : own_told;
        }
        if (lane == i) {
            record.maximum = m;
            // In a tile of NaN no place has the maximum; none is asked for either.
            record.places = places_of(place % TILE, 0, others);
        }
    }
    if (EDITED) {
        odd = __reduce_or_sync(ALL_LANES, odd);
    }

    if (lane < TILES && own_tile < step.tiles) {
        if (races) {
            record.log_top = log2_of_normal(token_arrival(stream, first, own_tile, record.places & 255));
        }
        // Odd values of any of the warp's tiles stand in its first record: only the row's are asked for.
        record.places |= lane == 0 ? odd << 8 : 0;
        step.records[(u64)row * step.tiles + own_tile] = record;
        if (sums) {
            step.sums[(u64)row * step.tiles + own_tile] = sum;
        }
        if (told) {
            step.told[(u64)row * step.tiles + own_tile] = own_told;
        }
    }
}

template <class T, u32 TILES, bool EDITED>
DEVICE void survey(const Step& step) {
    let_next_begin();
    u32 row = blockIdx.x / step.blocks_per_row;
    u32 group = blockIdx.x % step.blocks_per_row * (SURVEY_THREADS / 32) + warp_id();
    int slot = step.slots[row];
    if (slot >= 0 && group * TILES < step.tiles) {
        survey_tiles<T, TILES, EDITED>(step, row, slot, group * TILES);
    }
}

// Records of rows from those of the lines they read, a tile a thread: only the arrivals are a row's own. A row with
// edits, or that asks for sums, is surveyed for itself.
template <class T>
DEVICE void arrive(const Step& step) {
    let_next_begin();
    u32 row = blockIdx.x / step.blocks_per_row;
    u32 first_tile = (blockIdx.x % step.blocks_per_row) * SURVEY_THREADS;
    int slot = step.slots[row];
    if (slot < 0) {
        return;
    }
    const Params& params = step.params[slot];
    if (has_edits(params) || params.asks & (ASKS_SUMS | ASKS_TOLD)) {
        u32 end = first_tile + SURVEY_THREADS < step.tiles ? first_tile + SURVEY_THREADS : step.tiles;
        for (u32 tile = first_tile + warp_id(); tile < end; tile += warps()) {
            survey_tiles<T, 1, true>(step, row, slot, tile);
        }
        return;
    }
    u32 tile = first_tile + threadIdx.x;
    if (tile >= step.tiles) {
        return;
    }
    Record record = step.line_records[(u64)step.lines[row] * step.tiles + tile];
    if (!(params.asks & ASKS_GREEDY)) {
        Stream stream{params.seed, step.states[slot].position, params.draw};
        First first = first_arrival(stream, tile);
        record.log_first = log2_of_normal(first.e);
        record.log_top = log2_of_normal(token_arrival(stream, first, tile, record.places & 255));
    }
    step.records[(u64)row * step.tiles + tile] = record;
}

// A kernel for each number of tiles a warp takes. Rows without edits are swept: sweep.cu.
#define SURVEY(type, T, TILES)                                               \
    KERNEL_BESIDE(survey_edited_##type##_##TILES, SURVEY_THREADS, 6, Step, step) { \
        survey<T, TILES, true>(step);                                        \
    }

SURVEY(f32, F32, 1)
SURVEY(f32, F32, 2)
SURVEY(f32, F32, 4)
SURVEY(bf16, Bf16, 1)
SURVEY(bf16, Bf16, 2)
SURVEY(bf16, Bf16, 4)
SURVEY(f16, F16, 1)
SURVEY(f16, F16, 2)
SURVEY(f16, F16, 4)

#define ARRIVE(type, T)                                                      \
    KERNEL_BESIDE(arrive_##type, SURVEY_THREADS, 9, Step, step) {            \
        arrive<T>(step);                                                     \
    }

ARRIVE(f32, F32)
ARRIVE(bf16, Bf16)
ARRIVE(f16, F16)
