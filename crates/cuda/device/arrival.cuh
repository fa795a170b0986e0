// arrival.cuh: when tokens arrive in the race (section 3, N8, N9).
//
// Computes   a tile's first arrival and its place; the arrival of any token of the tile
// Twins      definition spec/src/draw.rs | why docs/stages/draw.md
#pragma once

#include "step.cuh"

// Which of the independent draws.
struct Stream {
    u64 seed;
    u32 position;
    u32 draw;
};

// A tile's first arrival.
struct First {
    float e;
    u32 place;
};

DEVICE First first_arrival(const Stream& stream, u32 tile) {
    Words words = philox(stream.seed, tile, stream.position, TAG_TILE, stream.draw);
    u64 u = ((u64)words.w[0] << 32) | words.w[1];
    return First{exp_of_u64(u) * (1.0f / TILE), words.w[2] >> 24};
}

// The arrival of the token at a place of a tile.
DEVICE float token_arrival(const Stream& stream, const First& first, u32 tile, u32 place) {
    u32 id = tile * TILE + place;
    Words words = philox(stream.seed, id / 4, stream.position, TAG_TOKEN, stream.draw);
    u32 low = id & 1 ? words.w[1] : words.w[0], high = id & 1 ? words.w[3] : words.w[2];
    float later = exp_of_u32(id & 2 ? high : low);
    return place == first.place ? first.e : first.e + later;
}
