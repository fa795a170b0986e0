// tile.cuh: operations on a tile that is spread over the lanes of a warp.
//
// Computes   a lane's slice of a tile, read once; the tile's maximum; its status bits; the sum of its weights
// Requires   whole warps
#pragma once

#include "warp/reduce.cuh"
#include "warp/row.cuh"

// Bits whose order as signed integers is the order of the floats; a NaN without a sign is above all of them.
DEVICE int ordered_int(float z) {
    int bits = (int)float_bits(z);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

DEVICE float from_ordered_int(int bits) { return bits_float((u32)(bits ^ ((bits >> 31) & 0x7FFFFFFF))); }

// Loads a lane's slice of a tile that starts at a multiple of 16 bytes, by streaming loads: no thread reads it soon
// again. `offset_in_tile` says which logits these are.
template <class T>
DEVICE void load_vectorized_streaming(const typename T::Element* tile, u32 lane, float (&z)[ITEMS_PER_LANE]) {
    const U32x4* quads = (const U32x4*)tile;
    if (sizeof(typename T::Element) == 4) {
        U32x4 low, high;
        load_streaming(quads + lane, low.word);
        load_streaming(quads + 32 + lane, high.word);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    } else {
        U32x4 quad;
        load_streaming(quads + lane, quad.word);
        unpack_16_bit<T>(quad, z);
    }
}

// The mask that allows all of a lane's logits.
struct AllMask {
    DEVICE_MEMBER bool allows(u32) const { return true; }
    DEVICE_MEMBER AllMask reload() const { return *this; }
};

// The mask that allows no logit.
struct EmptyMask {
    DEVICE_MEMBER bool allows(u32) const { return false; }
    DEVICE_MEMBER EmptyMask reload() const { return *this; }
};

// The mask that allows the logits whose bits are set in the lane's byte, the lowest bit for the first logit.
struct LaneMask {
    const unsigned char* byte;
    u32 bits;

    DEVICE_MEMBER explicit LaneMask(const unsigned char* byte)
        : byte(byte), bits(*(const volatile unsigned char*)byte) {}

    DEVICE_MEMBER bool allows(u32 j) const { return (bits & 1u << j) != 0; }
    // The mask, loaded again for a rare branch. Otherwise eight predicates would stay live until there.
    DEVICE_MEMBER LaneMask reload() const { return LaneMask(byte); }
};

// The lane's largest logit; NaN if one is NaN.
DEVICE float max_of_lane(const float (&z)[ITEMS_PER_LANE], AllMask) {
    return max_or_nan(max_or_nan(max_or_nan(z[0], z[1]), max_or_nan(z[2], z[3])),
                      max_or_nan(max_or_nan(z[4], z[5]), max_or_nan(z[6], z[7])));
}

// The largest of the lane's logits that the mask allows; NaN if one of them is NaN.
DEVICE float max_of_lane(const float (&z)[ITEMS_PER_LANE], const LaneMask& mask) {
    float low = mask.allows(0) ? z[0] : -INF_F32, high = mask.allows(4) ? z[4] : -INF_F32;
#pragma unroll
    for (u32 j = 1; j < ITEMS_PER_LANE / 2; j++) {
        low = mask.allows(j) ? max_or_nan(low, z[j]) : low;
        high = mask.allows(j + 4) ? max_or_nan(high, z[j + 4]) : high;
    }
    return max_or_nan(low, high);
}

// Replaces the logits that the mask does not allow by MASKED_VALUE.
template <class Mask>
DEVICE void apply_mask(float (&z)[ITEMS_PER_LANE], const Mask& mask) {
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        z[j] = mask.allows(j) ? z[j] : MASKED_VALUE;
    }
}

// Cleans the lane's slice. Returns the status bits of the logits that `counted` allows.
template <class Mask>
DEVICE u32 clean_items(float (&z)[ITEMS_PER_LANE], const Mask& counted) {
    u32 nonfinite_flags = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        u32 bits = nonfinite_flags_of(z[j]);
        nonfinite_flags |= counted.allows(j) ? bits : 0;
        z[j] = clean(z[j]);
    }
    return nonfinite_flags;
}

#if GUMBALL_PROBABILITIES
// The largest of a lane's allowed probabilities, as bits. The order of the bits is the order of the values; NaN,
// infinities and values with a sign lie above.
template <class Mask>
DEVICE u32 max_bits(const float (&z)[ITEMS_PER_LANE], const Mask& mask) {
    u32 most = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        u32 bits = mask.allows(j) ? float_bits(z[j]) : 0;
        most = bits > most ? bits : most;
    }
    return most;
}
#endif

// The maximum of the tile's logits that `mask` allows, in every lane; `lane_max` takes the lane's own. Both are
// integers in the order of the floats (`max_to_float`). If the maximum shows a non-finite logit, all are cleaned, and
// `nonfinite_flags` takes the status bits of the ones that `counted` allows.
template <class Mask, class Counted>
DEVICE int reduce_max(float (&z)[ITEMS_PER_LANE], const Mask& mask, const Counted& counted, u32& nonfinite_flags,
                      int& lane_max) {
#if GUMBALL_PROBABILITIES
    u32 bits = max_bits(z, mask), most = __reduce_max_sync(FULL_MASK, bits);
    // NaN, infinities, and values with a sign.
    if (most > float_bits(MAX_F32)) {
        nonfinite_flags |= clean_items(z, counted.reload());
        bits = max_bits(z, mask.reload());
        most = __reduce_max_sync(FULL_MASK, bits);
    }
    lane_max = (int)bits;
    return (int)most;
#else
    // The sum makes +0.0 of -0.0.
    lane_max = ordered_int(max_of_lane(z, mask) + 0.0f);
    int maximum = __reduce_max_sync(FULL_MASK, lane_max);
    // +inf and NaN, which few rows have, show in the maximum.
    if (maximum >= ordered_int(INF_F32)) {
        nonfinite_flags |= clean_items(z, counted.reload());
        lane_max = ordered_int(max_of_lane(z, mask.reload()));
        maximum = __reduce_max_sync(FULL_MASK, lane_max);
    }
    return maximum;
#endif
}

// The float of a maximum that `reduce_max` returned.
DEVICE float max_to_float(int maximum) {
#if GUMBALL_PROBABILITIES
    return bits_float((u32)maximum);
#else
    return from_ordered_int(maximum);
#endif
}

// The maximum of all of a tile's logits, as the weights need it. It is at least the least value of a token, hence above
// all values of a tile without tokens. Non-finite logits are cleaned.
DEVICE float finite_tile_max(float (&z)[ITEMS_PER_LANE]) {
#if GUMBALL_PROBABILITIES
    u32 nonfinite_flags = 0;
    int lane_max;
    return max_f32(from_ordered_int(reduce_max(z, AllMask(), EmptyMask(), nonfinite_flags, lane_max)), MIN_TOKEN_VALUE);
#else
    // As signed integers, the bits of positive floats compare as the floats do, and lie above the bits of negative
    // ones. NaN has no sign here. A negative maximum, +inf and NaN take the branch.
    int maximum = __reduce_max_sync(FULL_MASK, (int)float_bits(max_of_lane(z, AllMask())));
    if ((u32)maximum >= 0x7F800000u) {
        u32 nonfinite_flags = 0;
        int lane_max;
        return max_f32(from_ordered_int(reduce_max(z, AllMask(), EmptyMask(), nonfinite_flags, lane_max)), -MAX_F32);
    }
    return bits_float((u32)maximum);
#endif
}

// A sum of words in two parts: the sum of their high halves and that of their low halves.
struct SplitSum {
    u32 high;
    u32 low;

    DEVICE_MEMBER u64 total() const { return ((u64)high << 16) + low; }
};

// The sum over the lanes of each lane's sum of eight weights. A weight is at most 2^28, so a lane's sum fits a word.
DEVICE SplitSum reduce_sum(u32 sum) {
    return SplitSum{__reduce_add_sync(FULL_MASK, sum >> 16), __reduce_add_sync(FULL_MASK, sum & 0xFFFF)};
}

// The exact sum of the weights of a tile's clean logits (M3), in every lane. In a tile without tokens the sum is 0,
// provided that `maximum` is finite.
DEVICE SplitSum sum_weights(const float (&z)[ITEMS_PER_LANE], float maximum, float log2e_over_t) {
    u32 sum = 0;
#if GUMBALL_PROBABILITIES
    const TokenWeights token_weights(maximum, log2e_over_t);
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        sum += token_weights.of(z[j]);
    }
#else
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        sum += weight_of_distance(maximum - z[j], log2e_over_t);
    }
#endif
    return reduce_sum(sum);
}

// Approximates `sum_weights`, within a relative 2^-19. For logits the device's exponential contributes 2^-21, for
// probabilities its reciprocal 2^-23. The float sum of eight weights contributes 2^-22. The exact weights contribute
// 2^-23, and their rounding to integers 2^-29 of the first weight each, 2^-21 together.
DEVICE SplitSum approx_sum_weights(const float (&z)[ITEMS_PER_LANE], float maximum, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    // Adds the values, and divides the sum by the maximum. A power of two scales both, so that the maximum is between
    // 2^-22 and 16.
    float divisor = max_f32(maximum, MIN_TOKEN_VALUE),
          scale = bits_float(0x7F000000u - (float_bits(divisor) & 0x7E000000u));
    float low = z[0] * scale, high = z[ITEMS_PER_LANE / 2] * scale;
#pragma unroll
    for (u32 j = 1; j < ITEMS_PER_LANE / 2; j++) {
        low = fma_rn(z[j], scale, low);
        high = fma_rn(z[j + ITEMS_PER_LANE / 2], scale, high);
    }
    // At most 2^31; 0 in a tile without tokens.
    return reduce_sum(float_to_u32((low + high) * (approx_reciprocal(divisor * scale) * 268435456.0f)));
#else
    float weights[ITEMS_PER_LANE];
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        weights[j] = approx_exp2((z[j] - maximum) * log2e_over_t);
    }
    float sum = ((weights[0] + weights[1]) + (weights[2] + weights[3])) +
                ((weights[4] + weights[5]) + (weights[6] + weights[7]));
    // At most 2^31. In a tile without tokens the sum is NaN, and `max_f32` makes it 0.
    return reduce_sum(float_to_u32(max_f32(sum, 0.0f) * 268435456.0f));
#endif
}
