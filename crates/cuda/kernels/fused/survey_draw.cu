// survey_draw.cu: the survey of few rows that ask for nothing but a race over everything: each token runs while nothing else is to do.
//
// Computes   for each tile of 256 tokens its maximum; the token that leads its race, or nearly, and when it arrives; what the
//            scores of the others are at most; which odd values the row holds
// Never      decides by an approximate number: it chooses which token is known, and bounds the others
// Twins      survey.cu, which any other rows take | why docs/stages/draw.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records [rows, tiles], as Raced in bounded_race.cuh reads them
// Grid       x = (row, block of warps); 8 warps a block, each a tile; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are read in vain; rows that
//            ask for a race over everything and no more

#include "math/arrival.cuh"
#include "math/record.cuh"
#include "warp/tile.cuh"
#include "block/survey_grid.cuh"

#define SURVEY_DRAW_WARPS 8
#define SURVEY_DRAW_THREADS (32 * SURVEY_DRAW_WARPS)

// The lane's share of a tile, each logit where a wide tile has it.
template <class T>
DEVICE void load_tile_items(const LogitsRow<T>& row, u32 tile, float (&z)[ITEMS_PER_LANE]) {
    u32 lane = lane_id(), start = tile * TILE;
    if (row.vectorized && start + TILE <= row.vocab) {
        load_vectorized_streaming<T>(row.logits + start, lane, z);
        return;
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        u32 id = start + offset_in_tile<T>(lane, j, true);
        z[j] = id < row.vocab ? T::convert(row.logits[id]) : MASKED_VALUE;
    }
}

template <class T>
DEVICE void survey_draw(const Step& step) {
    if (step.row_indices != nullptr) {
        wait_for_requests();
    }
    const BlockCoord coord = block_coord(step, blockIdx.x);
    u32 row_index = coord.row, lane = lane_id();
    u32 tile = coord.block_in_row * SURVEY_DRAW_WARPS + warp_id();
    LogitsRow<T> row(step, row_index);
    float z[ITEMS_PER_LANE];
    load_tile_items(row, tile, z);
    wait_for_requests();
    int slot = survey_slot(step, row_index);
    if (slot < 0) {
        return;
    }

    // While the loads fly.
    const Params& params = step.params[slot];
    const RngStream rng{params.seed, step.states[slot].position, params.draw};
    float log2e_over_t = params.log2e_over_t;
    u32 id = tile * TILE, words[ITEMS_PER_LANE];
    lane_words(rng, id + offset_in_tile<T>(lane, 0, true), id + offset_in_tile<T>(lane, 4, true), words);
    FirstArrival first = first_arrival(rng, tile);
    float scores[ITEMS_PER_LANE];
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        scores[j] = approx_log2_arrival(first.e, offset_in_tile<T>(lane, j, true) == first.offset ? 0 : words[j]);
    }

    u32 nonfinite_flags = 0;
    int own, top = reduce_max(z, AllMask(), AllMask(), nonfinite_flags, own);
    float maximum = from_ordered_int(top);
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        scores[j] = fma_rn(z[j], log2e_over_t, -scores[j]);
    }
    float lead = max_of_lane(scores, AllMask());
    own = ordered_int(lead + 0.0f);
    top = __reduce_max_sync(FULL_MASK, own);
    bool is_leader = is_first_active_lane(own == top);
    float rest = from_ordered_int(__reduce_max_sync(FULL_MASK, is_leader ? ordered_int(-INF_F32) : own));
    nonfinite_flags = __reduce_or_sync(FULL_MASK, nonfinite_flags);
    // Each warp for itself: most would wait for the slowest of their block.
    if (is_leader && tile < step.tiles) {
        u32 to = ITEMS_PER_LANE, word = 0;
        float z_to = -INF_F32;
#pragma unroll
        for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
            bool is_leader = scores[j] >= lead;
            // Of several with the highest score the first is known, and bounds the others.
            rest = max_f32(rest, is_leader ? (to < ITEMS_PER_LANE ? lead : -INF_F32) : scores[j]);
            z_to = is_leader ? z[j] : z_to;
            word = is_leader ? words[j] : word;
            to = is_leader ? j : to;
        }
        u32 offset = offset_in_tile<T>(lane, to % ITEMS_PER_LANE, true);
        float later = exponential_from_u32(word), e = offset == first.offset ? first.e : first.e + later;
        step.records[(u64)row_index * step.tiles + tile] =
            TileRecord{maximum, z_to, log2_of_normal(e), pack_record_bits(offset, nonfinite_flags, rest)};
    }
}

KERNEL_MIN_BLOCKS(survey_draw_f32, SURVEY_DRAW_THREADS, 5, Step, step) { survey_draw<F32>(step); }
KERNEL_MIN_BLOCKS(survey_draw_bf16, SURVEY_DRAW_THREADS, 5, Step, step) { survey_draw<Bf16>(step); }
KERNEL_MIN_BLOCKS(survey_draw_f16, SURVEY_DRAW_THREADS, 5, Step, step) { survey_draw<F16>(step); }
