// arrival.cuh: when tokens arrive in the race (N3, N4, N8, N9, D1).
//
// Computes   a tile's first arrival and its place; the arrival of any token of the tile; about those of a lane's tokens
// Twins      definition spec/src/draw.rs | why docs/stages/draw.md
#pragma once

#include "step.cuh"

// Which of the independent draws.
struct Stream {
    u64 seed;
    u32 position;
    u32 draw;

    // What the words of tiles and of tokens are for.
    DEVICE_MEMBER u32 tile_tag() const { return TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return TAG_TOKEN; }
};

// The same, of the row that ends a chain of drafts: a residual has words of its own (S4).
struct LastStream : Stream {
    bool residual;

    DEVICE_MEMBER u32 tile_tag() const { return residual ? TAG_RESIDUAL_TILE : TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const { return residual ? TAG_RESIDUAL_TOKEN : TAG_TOKEN; }
};

// A tile's first arrival.
struct First {
    float e;
    u32 place;
};

template <class S>
DEVICE Words words_of_tile(const S& stream, u32 tile) {
    return philox(stream.seed, tile, stream.position, stream.tile_tag(), stream.draw);
}

DEVICE First first_of(const Words& words) {
    u64 u = ((u64)words.w[0] << 32) | words.w[1];
    return First{exp_of_u64(u) * (1.0f / TILE), words.w[2] >> 24};
}

template <class S>
DEVICE First first_arrival(const S& stream, u32 tile) { return first_of(words_of_tile(stream, tile)); }

// The arrival of the token at a place of a tile.
template <class S>
DEVICE float token_arrival(const S& stream, const First& first, u32 tile, u32 place) {
    u32 id = tile * TILE + place;
    Words words = philox(stream.seed, id / 4, stream.position, stream.token_tag(), stream.draw);
    u32 low = id & 1 ? words.w[1] : words.w[0], high = id & 1 ? words.w[3] : words.w[2];
    float later = exp_of_u32(id & 2 ? high : low);
    return place == first.place ? first.e : first.e + later;
}

// The random words of a lane's tokens, where they lie as in a wide tile: of four neighbours twice.
template <class S>
DEVICE void words_of_lane(const S& stream, u32 id, u32 id_of_fifth, u32 (&words)[PER_LANE]) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        Words four = philox(stream.seed, (i == 0 ? id : id_of_fifth) / 4, stream.position, stream.token_tag(), stream.draw);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            words[4 * i + j] = four.w[j];
        }
    }
}

// What -log2(1 - u) is at least, which is u log2(e), over u; less 2^-18 of it, so that roundings do not matter.
#define LEAST_LATER (1.44269f / 4294967296.0f)

// What a tile's first arrival is at least, by the first word of its random number; 2^-90 more, so that it is not 0.
DEVICE float about_first(u32 word) { return fma_rn(u32_to_float(word), LEAST_LATER / TILE, bits_float((127 - 90) << 23)); }

// About log2 of the arrival of a token with its word, 0 if it is the first, and no more than that but for the error of the
// device's logarithm; `first` is at most when the first token arrives.
DEVICE float about_log_arrival(float first, u32 word) { return about_log2(fma_rn(u32_to_float(word), LEAST_LATER, first)); }
