// arrival.cuh: when tokens arrive in the race (N3, N4, N8, N9, D1).
//
// Computes   a tile's first arrival and its place; the arrival of any token of the tile; about those of a lane's tokens
// Twins      definition spec/src/draw.rs | why docs/stages/draw.md
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

// What an offset of 64 bits adds to the seed: its high word, with its sign, times 2^64 over the golden ratio, odd. Its low word is the
// position. So no two offsets of one seed share random numbers.
DEVICE u64 seed_from_offset(u64 offset) { return (u64)((i64)offset >> 32) * 0x9E3779B97F4A7C15ull; }

// Which of the independent draws.
struct RngStream {
    u64 seed;
    u32 position;
    u32 draw;

    // What the words of tiles and of tokens are for.
    DEVICE_MEMBER u32 tile_tag() const { return TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return TAG_TOKEN; }
};

// The same, of the row that ends a chain of drafts: a residual has words of its own (S4).
struct LastTokenStream : RngStream {
    bool residual;

    DEVICE_MEMBER u32 tile_tag() const { return residual ? TAG_RESIDUAL_TILE : TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return residual ? TAG_RESIDUAL_TOKEN : TAG_TOKEN; }
};

// A tile's first arrival.
struct FirstArrival {
    float e;
    u32 offset;
};

template <class S>
DEVICE PhiloxWords tile_words(const S& rng, u32 tile) {
    return philox(rng.seed, tile, rng.position, rng.tile_tag(), rng.draw);
}

DEVICE FirstArrival first_arrival_from(const PhiloxWords& words) {
    u64 u = ((u64)words.w[0] << 32) | words.w[1];
    return FirstArrival{exponential_from_u64(u) * (1.0f / TILE), words.w[2] >> 24};
}

template <class S>
DEVICE FirstArrival first_arrival(const S& rng, u32 tile) {
    return first_arrival_from(tile_words(rng, tile));
}

// The arrival of the token at a place of a tile.
template <class S>
DEVICE float token_arrival(const S& rng, const FirstArrival& first, u32 tile, u32 offset) {
    u32 id = tile * TILE + offset;
    PhiloxWords words = philox(rng.seed, id / 4, rng.position, rng.token_tag(), rng.draw);
    u32 low = id & 1 ? words.w[1] : words.w[0], high = id & 1 ? words.w[3] : words.w[2];
    float later = exponential_from_u32(id & 2 ? high : low);
    return offset == first.offset ? first.e : first.e + later;
}

// The random words of a lane's tokens, where they lie as in a wide tile: of four neighbours twice.
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

// What -log2(1 - u) is at least, which is u log2(e), over u; less 2^-18 of it, so that roundings do not matter.
#define MIN_LATER_ARRIVAL (1.44269f / 4294967296.0f)

// What a tile's first arrival is at least, by the first word of its random number; 2^-90 more, so that it is not 0.
DEVICE float approx_first_arrival(u32 word) {
    return fma_rn(u32_to_float(word), MIN_LATER_ARRIVAL / TILE, bits_float((127 - 90) << 23));
}

// About log2 of the arrival of a token with its word, 0 if it is the first, and no more than that but for the error of the
// device's logarithm; `first` is at most when the first token arrives.
DEVICE float approx_log2_arrival(float first, u32 word) {
    return approx_log2(fma_rn(u32_to_float(word), MIN_LATER_ARRIVAL, first));
}
