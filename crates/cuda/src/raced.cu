// raced.cu: the survey of few rows that ask for nothing but a race over everything: each token runs while nothing else is to do.
//
// Computes   for each tile of 256 tokens its maximum; the token that leads its race, or nearly, and when it arrives; what the
//            scores of the others are at most; which odd values the row holds
// Never      decides by an approximate number: it chooses which token is known, and bounds the others
// Twins      survey.cu, which any other rows take | why docs/stages/draw.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records [rows, tiles], as Raced in behind.cu reads them
// Grid       x = (row, block of warps); 8 warps a block, each a tile; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are read in vain; rows that
//            ask for a race over everything and no more

#include "arrival.cuh"
#include "tile.cuh"

#define RACED_WARPS 8
#define RACED_THREADS (32 * RACED_WARPS)

// The lane's share of a tile, each logit where a wide tile has it.
template <class T>
DEVICE void load_share(const Row<T>& row, u32 tile, float (&z)[PER_LANE]) {
    u32 lane = lane_id(), start = tile * TILE;
    if (row.wide && start + TILE <= row.vocab) {
        load_wide_once<T>(row.logits + start, lane, z);
        return;
    }
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 id = start + place_of<T>(lane, j, true);
        z[j] = id < row.vocab ? T::convert(row.logits[id]) : NOTHING;
    }
}

template <class T>
DEVICE void survey_raced(const Step& step) {
    if (step.lines != nullptr) {
        wait_for_requests();
    }
    const Standing standing = standing_of(step, blockIdx.x);
    u32 row_index = standing.row, lane = lane_id();
    u32 tile = standing.part * RACED_WARPS + warp_id();
    Row<T> row(step, row_index);
    float z[PER_LANE];
    load_share(row, tile, z);
    wait_for_requests();
    int slot = surveyed_slot(step, row_index);
    if (slot < 0) {
        return;
    }

    // While the loads fly.
    const Params& params = step.params[slot];
    const Stream stream{params.seed, step.states[slot].position, params.draw};
    float s = params.s;
    u32 id = tile * TILE, words[PER_LANE];
    words_of_lane(stream, id + place_of<T>(lane, 0, true), id + place_of<T>(lane, 4, true), words);
    First first = first_arrival(stream, tile);
    float scores[PER_LANE];
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        scores[j] = about_log_arrival(first.e, place_of<T>(lane, j, true) == first.place ? 0 : words[j]);
    }

    u32 odd = 0;
    int own, top = maximum_of(z, All(), All(), odd, own);
    float maximum = from_signed_order(top);
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        scores[j] = fma_rn(z[j], s, -scores[j]);
    }
    float lead = largest_of(scores, All());
    own = signed_order(lead + 0.0f);
    top = __reduce_max_sync(ALL_LANES, own);
    bool leads = is_first_of(own == top);
    float rest = from_signed_order(__reduce_max_sync(ALL_LANES, leads ? signed_order(-INFINITE) : own));
    odd = __reduce_or_sync(ALL_LANES, odd);
    // Each warp for itself: most would wait for the slowest of their block.
    if (leads && tile < step.tiles) {
        u32 to = PER_LANE, word = 0;
        float z_to = -INFINITE;
#pragma unroll
        for (u32 j = PER_LANE; j-- > 0;) {
            bool is_lead = scores[j] >= lead;
            // Of several with the highest score the first is known, and bounds the others.
            rest = larger(rest, is_lead ? (to < PER_LANE ? lead : -INFINITE) : scores[j]);
            z_to = is_lead ? z[j] : z_to;
            word = is_lead ? words[j] : word;
            to = is_lead ? j : to;
        }
        u32 place = place_of<T>(lane, to % PER_LANE, true);
        float later = exp_of_u32(word), e = place == first.place ? first.e : first.e + later;
        step.records[(u64)row_index * step.tiles + tile] =
            Record{maximum, z_to, log2_of_normal(e), places_of(place, odd, rest)};
    }
}

KERNEL_BESIDE(survey_raced_f32, RACED_THREADS, 5, Step, step) { survey_raced<F32>(step); }
KERNEL_BESIDE(survey_raced_bf16, RACED_THREADS, 5, Step, step) { survey_raced<Bf16>(step); }
KERNEL_BESIDE(survey_raced_f16, RACED_THREADS, 5, Step, step) { survey_raced<F16>(step); }
