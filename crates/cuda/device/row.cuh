// row.cuh: logits as the stages see them, whatever type they came in.
//
// Computes   a tile's 256 logits over the lanes of a warp, cleaned; one logit by its id
// Never      reads beyond the vocabulary; never assumes more alignment than an element's
// Requires   whole warps
#pragma once

#include "step.cuh"
#include "warp.cuh"

// Types by the bits of an element.
struct F32 {
    typedef float Element;
    static DEVICE_MEMBER float convert(float z) { return z; }
};

// `round_two` is of two floats, not NaN, each rounded once, the first in the low bits.
struct Bf16 {
    typedef unsigned short Element;
    static DEVICE_MEMBER float convert(unsigned short z) { return bits_float((u32)z << 16); }
    static DEVICE_MEMBER u32 round_two(float low, float high) { return two_bf16(low, high); }
};

struct F16 {
    typedef unsigned short Element;
    static DEVICE_MEMBER float convert(unsigned short z) { return half_to_float(z); }
    static DEVICE_MEMBER u32 round_two(float low, float high) { return two_halves(low, high); }
};

// Where in a tile a lane's j-th logit lies; `wide` says whether lanes loaded 16 bytes at once.
template <class T>
DEVICE u32 place_of(u32 lane, u32 j, bool wide) {
    if (!wide) {
        return j * 32 + lane;
    }
    return sizeof(typename T::Element) == 4 ? j / 4 * 128 + lane * 4 + j % 4 : lane * 8 + j;
}

// A row of logits.
template <class T>
struct Row {
    typedef typename T::Element Element;

    const Element* logits;
    u32 vocab;
    // Whether 16 bytes can be loaded at once; the same for all tiles of the row.
    bool wide;

    DEVICE_MEMBER Row(const Step& step, u32 row)
        : logits((const Element*)step.logits + (step.lines ? step.lines[row] : row) * step.stride), vocab(step.vocab),
          wide(((u64)logits & 15) == 0) {}

    // The logit of an id, cleaned.
    DEVICE_MEMBER float logit(u32 id) const { return clean(T::convert(logits[id])); }

    // A lane's share of a tile as it came, NOTHING beyond the vocabulary; where each lies says `place`.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE]) const {
        u32 start = tile * TILE;
        if (wide && start + TILE <= vocab) {
            load_wide(logits + start, lane, z);
            return;
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 id = start + j * 32 + lane;
            z[j] = id < vocab ? T::convert(logits[id]) : NOTHING;
        }
    }

    // Whether a tile is whole and can be loaded 16 bytes at once.
    DEVICE_MEMBER bool is_wide(u32 tile) const { return wide && tile * TILE + TILE <= vocab; }

    // Where in the tile a lane's j-th logit lies.
    DEVICE_MEMBER u32 place(u32 tile, u32 lane, u32 j) const { return place_of<T>(lane, j, is_wide(tile)); }

    // A lane's bits of a tile whose words the first lanes hold: bit j for its j-th logit.
    DEVICE_MEMBER u32 share(u32 words, u32 tile, u32 lane) const {
        if (!wide || tile * TILE + TILE > vocab) {
            u32 bits = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                bits |= (__shfl_sync(ALL_LANES, words, (int)j) >> lane & 1) << j;
            }
            return bits;
        }
        if (sizeof(Element) == 4) {
            u32 low = __shfl_sync(ALL_LANES, words, (int)(lane / 8)), shift = lane % 8 * 4;
            u32 high = __shfl_sync(ALL_LANES, words, (int)(4 + lane / 8));
            return (low >> shift & 15) | (high >> shift & 15) << 4;
        }
        return __shfl_sync(ALL_LANES, words, (int)(lane / 4)) >> (lane % 4 * 8) & 255;
    }

  private:
    static DEVICE_MEMBER void load_wide(const float* tile, u32 lane, float (&z)[PER_LANE]) {
        const Quad* quads = (const Quad*)tile;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            Quad quad = quads[half * 32 + lane];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                z[half * 4 + j] = bits_float(quad.word[j]);
            }
        }
    }

    static DEVICE_MEMBER void load_wide(const unsigned short* tile, u32 lane, float (&z)[PER_LANE]) {
        Quad quad = ((const Quad*)tile)[lane];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[2 * j] = T::convert((unsigned short)quad.word[j]);
            z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
        }
    }
};

// One of a lane's logits, by its number: registers cannot be chosen so.
DEVICE float pick(const float (&z)[PER_LANE], u32 j) {
    float a = j & 4 ? z[4] : z[0], b = j & 4 ? z[5] : z[1], c = j & 4 ? z[6] : z[2], d = j & 4 ? z[7] : z[3];
    a = j & 2 ? c : a;
    b = j & 2 ? d : b;
    return j & 1 ? b : a;
}
