// survey_draw.cu: surveys rows of small batches that need only an unfiltered draw, and scores every token on the way.
//
// Computes   per tile of 256 tokens: the maximum logit; the token with the highest approximate score, its logit and
//            log2 of its arrival; an upper bound of the other tokens' approximate scores; non-finite flags
// Never      decides by an approximate score: it only chooses the token that the record names, and bounds the others
// Twins      survey.cu for all other rows | why docs/stages/draw.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records [rows, tiles], read as SurveyDrawRecords
// Grid       x = rows * blocks_per_row; 8 warps a block, one tile per warp; no dynamic shared memory
// Traffic    in: vocab * sizeof(T) bytes per row; out: 16 bytes per tile
// Requires   1 <= vocab <= 2^20; 16-byte alignment affects speed only; rows that need only an unfiltered draw at T > 0
//
// Its rows still need a finish kernel: finish_survey_draw, in finish_simple.cu, compares the records of all tiles.
//
// At small batches the survey's warps mostly wait for memory, so arrivals of all tokens cost little there. Padding rows
// are loaded too, because the loads start before the row's slot is known.
//
//     load the tile's logits; wait for the requests
//     while the loads are in flight: log2 of each token's arrival, approximately
//     score = z s - log2(arrival); the lane with the tile's highest score writes the record, with the exact arrival

#include "math/arrival.cuh"
#include "math/record.cuh"
#include "warp/tile.cuh"
#include "block/survey_grid.cuh"
#include "block/survey_requests.cuh"

// Loads a lane's eight logits of a tile, MASKED_VALUE beyond the vocabulary.
template <class T>
DEVICE void load_tile_items(const LogitsRow<T>& row, u32 tile, float (&z)[ITEMS_PER_LANE]) {
    u32 lane = lane_id(), start = tile * TILE;
    if (row.is_vectorized(tile)) {
        load_vectorized_streaming<T>(row.logits + start, lane, z);
        return;
    }
    load_single<T>(row.logits, start, 0, row.vocab, lane, z);
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

    // This overlaps with the loads in flight.
    const Params& params = step.params[slot];
    const RngStream rng{params.seed, step.states[slot].position, params.draw};
    float log2e_over_t = params.log2e_over_t;
    u32 id = tile * TILE, words[ITEMS_PER_LANE];
    lane_words(rng, id + offset_in_tile<T>(lane, 0), id + offset_in_tile<T>(lane, 4), words);
    FirstArrival first = first_arrival(rng, tile);
    float scores[ITEMS_PER_LANE];
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        scores[j] = approx_log2_arrival(first.e, offset_in_tile<T>(lane, j) == first.offset ? 0 : words[j]);
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
    // Each warp writes its own record: at a barrier, most warps would wait for the block's slowest one.
    if (is_leader && tile < step.tiles) {
        u32 to = ITEMS_PER_LANE, word = 0;
        float z_to = -INF_F32;
#pragma unroll
        for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
            bool is_leader = scores[j] >= lead;
            // On a tie the record names the lowest j, and the tied score bounds the others.
            rest = max_f32(rest, is_leader ? (to < ITEMS_PER_LANE ? lead : -INF_F32) : scores[j]);
            z_to = is_leader ? z[j] : z_to;
            word = is_leader ? words[j] : word;
            to = is_leader ? j : to;
        }
        u32 offset = offset_in_tile<T>(lane, to % ITEMS_PER_LANE);
        float later = exponential_from_u32(word), e = offset == first.offset ? first.e : first.e + later;
        step.records[(u64)row_index * step.tiles + tile] =
            TileRecord{maximum, z_to, log2_of_normal(e), pack_record_bits(offset, nonfinite_flags, rest)};
    }
}

#define SURVEY_DRAW(type, T) \
    KERNEL_MIN_BLOCKS(survey_draw_##type, 32 * SURVEY_DRAW_WARPS, 5, Step, step) { survey_draw<T>(step); }

FOR_EACH_TYPE(SURVEY_DRAW)
