// tile.cuh: a tile over the lanes of a warp.
//
// Computes   a lane's share of a tile, read once; its largest logit; its odd values; the sum of the tile's weights
// Requires   whole warps
#pragma once

#include "row.cuh"
#include "warp.cuh"

// Bits that compare as signed integers in the order of the floats; of NaN without a sign, above all.
DEVICE int signed_order(float z) {
    int bits = (int)float_bits(z);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

DEVICE float from_signed_order(int bits) { return bits_float((u32)(bits ^ ((bits >> 31) & 0x7FFFFFFF))); }

// The lane's share of a tile that lies on 16 bytes, as Row::place has it; nobody reads it soon again.
template <class T>
DEVICE void load_wide_once(const typename T::Element* tile, u32 lane, float (&z)[PER_LANE]) {
    const Quad* quads = (const Quad*)tile;
    if (sizeof(typename T::Element) == 4) {
        Quad low, high;
        load_once(quads + lane, low.word);
        load_once(quads + 32 + lane, high.word);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    } else {
        Quad quad;
        load_once(quads + lane, quad.word);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[2 * j] = T::convert((unsigned short)quad.word[j]);
            z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
        }
    }
}

// The lane's largest logit; NaN if it has one.
DEVICE float largest_of(const float (&z)[PER_LANE]) {
    return larger_or_nan(larger_or_nan(larger_or_nan(z[0], z[1]), larger_or_nan(z[2], z[3])),
                         larger_or_nan(larger_or_nan(z[4], z[5]), larger_or_nan(z[6], z[7])));
}

// Cleans the lane's share; returns the status bits of what was odd among the logits whose bit is set.
DEVICE u32 clean_share(float (&z)[PER_LANE], u32 counted) {
    u32 odd = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 bits = z[j] != z[j] ? STATUS_NAN : z[j] > LARGEST ? STATUS_INF : 0;
        odd |= counted >> j & 1 ? bits : 0;
        z[j] = clean(z[j]);
    }
    return odd;
}

// The sum of the weights of a tile's clean logits (section 4), in every lane; 0 in a tile of nothing.
DEVICE u64 sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
    // Eight weights of at most 2^28 fit.
    u32 sum = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        sum += weight((z[j] - maximum) * s);
    }
    return warp_sum_of_words(sum);
}

// About the same: within 2^-19 of it. Exponentials are 2^-21 off, by the device; eight weights summed as floats 2^-22; the exact
// ones are 2^-23 off themselves, and by being whole, 2^-29 of the first each, 2^-21 together.
DEVICE u64 about_sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
    float weights[PER_LANE];
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        weights[j] = about_exp2((z[j] - maximum) * s);
    }
    float sum = ((weights[0] + weights[1]) + (weights[2] + weights[3])) +
                ((weights[4] + weights[5]) + (weights[6] + weights[7]));
    // At most 2^31. NaN, the sum in a tile of nothing, becomes 0.
    return warp_sum_of_words(float_to_u32(larger(sum, 0.0f) * 268435456.0f));
}
