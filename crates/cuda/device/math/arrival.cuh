// arrival.cuh: when tokens arrive in the race (N3, N4, N8, N9, D1).
//
// Computes   a tile's first arrival and its offset; the arrival of any token; approximate lower bounds of arrivals
// Twins      definition spec/src/draw.rs | why docs/stages/draw.md
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

// The number that a 64-bit offset adds to the seed: its signed high word, times 2^64 over the golden ratio as an odd
// number. The low word is the position. So no two offsets of one seed share random numbers.
DEVICE u64 seed_from_offset(u64 offset) { return (u64)((i64)offset >> 32) * 0x9E3779B97F4A7C15ull; }

// Names one of the independent draws.
struct RngStream {
    u64 seed;
    u32 position;
    u32 draw;

    // The tags of a tile's words and of a token's words (N8).
    DEVICE_MEMBER u32 tile_tag() const { return TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return TAG_TOKEN; }
};

// Names the draw of the row that ends a chain of drafts. A draw from the residual has tags of its own (S4).
struct LastTokenStream : RngStream {
    bool residual;

    DEVICE_MEMBER u32 tile_tag() const { return residual ? TAG_RESIDUAL_TILE : TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return residual ? TAG_RESIDUAL_TOKEN : TAG_TOKEN; }
};

// Returns the race by the request's own seed, position and draw index.
DEVICE RngStream own_stream(const Params& params, const State& state) {
    return RngStream{params.seed, state.position, params.draw};
}

// Returns the race of a row's token: a marked one has the words that `history_edits` found (W2).
DEVICE RngStream race_stream(const Params& params, const State& state) {
    if (params.features & FEATURE_WATERMARK && state.history_row & STATUS_MARKED) {
        return RngStream{state.mark_seed, state.mark_position, state.mark_draw};
    }
    return own_stream(params, state);
}

// A tile's first arrival, and the offset of the token that it belongs to.
struct FirstArrival {
    float e;
    u32 offset;
};

template <class S>
DEVICE PhiloxWords tile_words(const S& rng, u32 tile) {
    return philox(rng.seed, tile, rng.position, rng.tile_tag(), rng.draw);
}

// The offset in its tile of the token that arrives first.
DEVICE u32 first_offset(const PhiloxWords& of_tile) { return of_tile.w[2] >> 24; }

DEVICE FirstArrival first_arrival_from(const PhiloxWords& words) {
    u64 u = ((u64)words.w[0] << 32) | words.w[1];
    return FirstArrival{exponential_from_u64(u) * (1.0f / TILE), first_offset(words)};
}

template <class S>
DEVICE FirstArrival first_arrival(const S& rng, u32 tile) {
    return first_arrival_from(tile_words(rng, tile));
}

// The arrival of the token at an offset of a tile.
template <class S>
DEVICE float token_arrival(const S& rng, const FirstArrival& first, u32 tile, u32 offset) {
    u32 id = tile * TILE + offset;
    PhiloxWords words = philox(rng.seed, id / 4, rng.position, rng.token_tag(), rng.draw);
    u32 low = id & 1 ? words.w[1] : words.w[0], high = id & 1 ? words.w[3] : words.w[2];
    float later = exponential_from_u32(id & 2 ? high : low);
    return offset == first.offset ? first.e : first.e + later;
}

// The random words of a lane's tokens of a tile: four neighbours from `id` on, and four from `id_of_fifth` on.
template <class S>
DEVICE void lane_words(const S& rng, u32 id, u32 id_of_fifth, u32 (&words)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        PhiloxWords four = philox(rng.seed, (i == 0 ? id : id_of_fifth) / 4, rng.position, rng.token_tag(), rng.draw);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            words[4 * i + j] = four.w[j];
        }
    }
}

// For u = word / 2^32, -log2(1 - u) is at least u log2(e). This is log2(e) / 2^32, less a relative 2^-18 that covers
// roundings.
#define MIN_LATER_ARRIVAL (1.44269f / 4294967296.0f)

// A lower bound of a tile's first arrival, from the first word of its random number. It is never 0, because it adds
// 2^-90.
DEVICE float approx_first_arrival(u32 word) {
    return fma_rn(u32_to_float(word), MIN_LATER_ARRIVAL / TILE, bits_float((127 - 90) << 23));
}

// Approximates log2 of a token's arrival from below, except for the error of the device's logarithm.
// `word` is the token's random word, or 0 for the token of the first arrival. `first` is at most the first arrival.
DEVICE float approx_log2_arrival(float first, u32 word) {
    return approx_log2(fma_rn(u32_to_float(word), MIN_LATER_ARRIVAL, first));
}
