// row.cuh: rows of logits as the stages read them, of any type of elements.
//
// Computes   a tile's 256 logits as they came, spread over the lanes of a warp; one clean logit by its id
// Never      reads beyond the vocabulary; never assumes more alignment than an element's
// Requires   whole warps
#pragma once

#include "abi/step.cuh"
#include "math/kind.cuh"
#include "warp/reduce.cuh"

// The types of elements. `convert` makes a float of an element's bits.
struct F32 {
    typedef float Element;
    static DEVICE_MEMBER float convert(float z) { return z; }
};

// `pack_two` rounds two floats once each and puts the first into the low bits; neither may be NaN.
struct Bf16 {
    typedef unsigned short Element;
    static DEVICE_MEMBER float convert(unsigned short z) { return bits_float((u32)z << 16); }
    static DEVICE_MEMBER u32 pack_two(float low, float high) { return pack_bf16x2(low, high); }
};

struct F16 {
    typedef unsigned short Element;
    static DEVICE_MEMBER float convert(unsigned short z) { return f16_to_float(z); }
    static DEVICE_MEMBER u32 pack_two(float low, float high) { return pack_f16x2(low, high); }
};

// Defines for each type of elements the kernels that `DEFINE`, a macro of the type's name and the type, defines.
#define FOR_EACH_TYPE(DEFINE) DEFINE(f32, F32) DEFINE(bf16, Bf16) DEFINE(f16, F16)

// The offset in a tile of a lane's j-th logit: as loads of 16 bytes yield them.
template <class T>
DEVICE u32 offset_in_tile(u32 lane, u32 j) {
    return sizeof(typename T::Element) == 4 ? j / 4 * 128 + lane * 4 + j % 4 : lane * 8 + j;
}

// A lane's bits of a tile's bitmap: bit j is of its j-th logit. Lane i passes word i of the bitmap as `words`, for
// i below MASK_WORDS.
template <class T>
DEVICE u32 lane_bits(u32 words, u32 lane) {
    if (sizeof(typename T::Element) == 4) {
        u32 low = __shfl_sync(FULL_MASK, words, (int)(lane / 8)), shift = lane % 8 * 4;
        u32 high = __shfl_sync(FULL_MASK, words, (int)(4 + lane / 8));
        return (low >> shift & 15) | (high >> shift & 15) << 4;
    }
    return __shfl_sync(FULL_MASK, words, (int)(lane / 4)) >> (lane % 4 * 8) & 255;
}

// The words of a tile's bitmap from the lanes' bits, the inverse of `lane_bits`: lane i returns word i, for i below
// MASK_WORDS.
template <class T>
DEVICE u32 tile_words(u32 bits, u32 lane) {
    // A word has the bits of this many neighbouring lanes; of 32-bit logits a lane has bits of two words.
    constexpr u32 SHARING = sizeof(typename T::Element) == 4 ? 8 : 4;
    const u32 shift = lane % SHARING * (32 / SHARING);
    u32 low = (SHARING == 8 ? bits & 15 : bits) << shift, high = bits >> 4 << shift;
#pragma unroll
    for (u32 distance = 1; distance < SHARING; distance *= 2) {
        low |= __shfl_xor_sync(FULL_MASK, low, (int)distance);
        high |= __shfl_xor_sync(FULL_MASK, high, (int)distance);
    }
    const int from = (int)(lane * SHARING % 32);
    const u32 word = __shfl_sync(FULL_MASK, low, from), other = __shfl_sync(FULL_MASK, high, from);
    return lane * SHARING < 32 ? word : other;
}

// Loads a lane's slice of a tile one logit at a time, in the layout of tiles of Q; MASKED_VALUE for ids that are not in
// `first` to `end`.
template <class T, class Q = T>
DEVICE void load_single(const typename T::Element* logits, u32 start, u32 first, u32 end, u32 lane,
                        float (&z)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const u32 id = start + offset_in_tile<Q>(lane, j);
        // One comparison for both ends.
        z[j] = id - first < end - first ? T::convert(logits[id]) : MASKED_VALUE;
    }
}

// Unpacks the eight 16-bit logits of 16 bytes.
template <class T>
DEVICE void unpack_16_bit(const U32x4& quad, float (&z)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        z[2 * j] = T::convert((unsigned short)quad.word[j]);
        z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
    }
}

// Loads a lane's slice of a tile that starts at a multiple of 16 bytes, and is in shared memory or may be read again.
// `offset_in_tile` says which logits these are.
template <class T>
DEVICE void load_vectorized(const typename T::Element* tile, u32 lane, float (&z)[ITEMS_PER_LANE]) {
    const U32x4* quads = (const U32x4*)tile;
    if constexpr (sizeof(typename T::Element) == 4) {
        U32x4 low = quads[lane], high = quads[32 + lane];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    } else {
        const U32x4 quad = quads[lane];
        unpack_16_bit<T>(quad, z);
    }
}

// One half of a lane's floats, as 16 bytes.
DEVICE U32x4 quad_of(const float (&z)[ITEMS_PER_LANE], u32 half) {
    const u32 j = 4 * half;
    return U32x4{{float_bits(z[j]), float_bits(z[j + 1]), float_bits(z[j + 2]), float_bits(z[j + 3])}};
}

// A row of logits, all ids of the vocabulary.
template <class T>
struct LogitsRow {
    typedef typename T::Element Element;
    static constexpr u32 first_id = 0;

    const Element* logits;
    u32 vocab;
    // Whether the row starts at a multiple of 16 bytes, so that lanes can load 16 bytes of any of its complete tiles.
    bool vectorized;

    LogitsRow() = default;
    DEVICE_MEMBER LogitsRow(const Step& step, u32 row)
        : logits((const Element*)step.logits + (step.row_indices ? step.row_indices[row] : row) * step.stride),
          vocab(step.vocab), vectorized(((u64)logits & 15) == 0) {}

    // The logit of an id, cleaned.
    DEVICE_MEMBER float logit(u32 id) const { return clean(T::convert(logits[id])); }

    // Loads a lane's slice of a tile as it came, MASKED_VALUE beyond the vocabulary.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE]) const {
        u32 start = tile * TILE;
        note_tile_read(start, vocab, lane);
        if (is_vectorized(tile)) {
            load_vectorized<T>(logits + start, lane, z);
            return;
        }
        load_single<T>(logits, start, 0, vocab, lane, z);
    }

    // Whether lanes load 16 bytes of a tile at once: the row is aligned, and the tile complete.
    DEVICE_MEMBER bool is_vectorized(u32 tile) const { return vectorized && tile < vocab / TILE; }

    // The offset in a tile of a lane's j-th logit.
    static DEVICE_MEMBER u32 offset(u32 lane, u32 j) { return offset_in_tile<T>(lane, j); }
};

// A lane's j-th logit. Registers cannot be indexed by a variable, so three levels of selections pick it.
DEVICE float select_item(const float (&z)[ITEMS_PER_LANE], u32 j) {
    float a = j & 4 ? z[4] : z[0], b = j & 4 ? z[5] : z[1], c = j & 4 ? z[6] : z[2], d = j & 4 ? z[7] : z[3];
    a = j & 2 ? c : a;
    b = j & 2 ? d : b;
    return j & 1 ? b : a;
}
