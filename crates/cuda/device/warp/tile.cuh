// tile.cuh: a tile over the lanes of a warp.
//
// Computes   a lane's share of a tile, read once; its largest logit; its odd values; the sum of the tile's weights
// Requires   whole warps
#pragma once

#include "warp/reduce.cuh"
#include "warp/row.cuh"

// Bits that compare as signed integers in the order of the floats; of NaN without a sign, above all.
DEVICE int ordered_int(float z) {
    int bits = (int)float_bits(z);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

DEVICE float from_ordered_int(int bits) { return bits_float((u32)(bits ^ ((bits >> 31) & 0x7FFFFFFF))); }

// What 16 bytes of 16-bit logits hold.
template <class T>
DEVICE void unpack_16_bit(const U32x4& quad, float (&z)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        z[2 * j] = T::convert((unsigned short)quad.word[j]);
        z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
    }
}

// The lane's share of a tile that lies on 16 bytes, as LogitsRow::place has it; nobody reads it soon again.
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

// The same of a tile that may be read again, or is on chip.
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
        unpack_16_bit<T>(quads[lane], z);
    }
}

// All of a lane's logits.
struct AllMask {
    DEVICE_MEMBER bool allows(u32) const { return true; }
    DEVICE_MEMBER AllMask reload() const { return *this; }
};

// None of them.
struct EmptyMask {
    DEVICE_MEMBER bool allows(u32) const { return false; }
    DEVICE_MEMBER EmptyMask reload() const { return *this; }
};

// Those whose bits are set in the lane's byte, lowest first.
struct LaneMask {
    const unsigned char* byte;
    u32 bits;

    DEVICE_MEMBER explicit LaneMask(const unsigned char* byte)
        : byte(byte), bits(*(const volatile unsigned char*)byte) {}

    DEVICE_MEMBER bool allows(u32 j) const { return (bits & 1u << j) != 0; }
    // The same for where it is seldom asked: read again, else all bits would be held in predicates up to there.
    DEVICE_MEMBER LaneMask reload() const { return LaneMask(byte); }
};

// The lane's largest logit of all; NaN if it has one.
DEVICE float max_of_lane(const float (&z)[ITEMS_PER_LANE], AllMask) {
    return max_or_nan(max_or_nan(max_or_nan(z[0], z[1]), max_or_nan(z[2], z[3])),
                      max_or_nan(max_or_nan(z[4], z[5]), max_or_nan(z[6], z[7])));
}

// The largest of some; NaN if one of them is.
DEVICE float max_of_lane(const float (&z)[ITEMS_PER_LANE], const LaneMask& mask) {
    float low = mask.allows(0) ? z[0] : -INF_F32, high = mask.allows(4) ? z[4] : -INF_F32;
#pragma unroll
    for (u32 j = 1; j < ITEMS_PER_LANE / 2; j++) {
        low = mask.allows(j) ? max_or_nan(low, z[j]) : low;
        high = mask.allows(j + 4) ? max_or_nan(high, z[j + 4]) : high;
    }
    return max_or_nan(low, high);
}

// Leaves nothing of what is not meant.
template <class Mask>
DEVICE void apply_mask(float (&z)[ITEMS_PER_LANE], const Mask& mask) {
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        z[j] = mask.allows(j) ? z[j] : MASKED_VALUE;
    }
}

// Cleans the lane's share; returns the status bits of what was odd among the logits that are counted.
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
// The largest of a lane's probabilities as bits, which are in their order; what is odd lies above.
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

// The maximum in signed order of a set of a tile's logits, and the lane's own. Odd values are cleaned; `nonfinite_flags` takes the status
// bits of those that are counted.
template <class Mask, class Counted>
DEVICE int reduce_max(float (&z)[ITEMS_PER_LANE], const Mask& mask, const Counted& counted, u32& nonfinite_flags,
                      int& lane_max) {
#if GUMBALL_PROBABILITIES
    u32 bits = max_bits(z, mask), most = __reduce_max_sync(FULL_MASK, bits);
    // NaN, infinities, and whatever has a sign.
    if (most > float_bits(MAX_F32)) {
        nonfinite_flags |= clean_items(z, counted.reload());
        bits = max_bits(z, mask.reload());
        most = __reduce_max_sync(FULL_MASK, bits);
    }
    lane_max = (int)bits;
    return (int)most;
#else
    // -0.0 is +0.0.
    lane_max = ordered_int(max_of_lane(z, mask) + 0.0f);
    int maximum = __reduce_max_sync(FULL_MASK, lane_max);
    // +inf and NaN, which no row has as a rule, show in the maximum.
    if (maximum >= ordered_int(INF_F32)) {
        nonfinite_flags |= clean_items(z, counted.reload());
        lane_max = ordered_int(max_of_lane(z, mask.reload()));
        maximum = __reduce_max_sync(FULL_MASK, lane_max);
    }
    return maximum;
#endif
}

// The float of such a maximum.
DEVICE float max_to_float(int maximum) {
#if GUMBALL_PROBABILITIES
    return bits_float((u32)maximum);
#else
    return from_ordered_int(maximum);
#endif
}

// The maximum of all of a tile's logits, to weigh them by: no less than floats have, which in a tile of nothing is above it. Odd
// values are cleaned.
DEVICE float finite_tile_max(float (&z)[ITEMS_PER_LANE]) {
#if GUMBALL_PROBABILITIES
    u32 nonfinite_flags = 0;
    int lane_max;
    return max_f32(from_ordered_int(reduce_max(z, AllMask(), EmptyMask(), nonfinite_flags, lane_max)), MIN_TOKEN_VALUE);
#else
    // Bits of positive floats compare as they do, above all others; NaN has no sign here.
    int maximum = __reduce_max_sync(FULL_MASK, (int)float_bits(max_of_lane(z, AllMask())));
    if ((u32)maximum >= 0x7F800000u) {
        u32 nonfinite_flags = 0;
        int lane_max;
        return max_f32(from_ordered_int(reduce_max(z, AllMask(), EmptyMask(), nonfinite_flags, lane_max)), -MAX_F32);
    }
    return bits_float((u32)maximum);
#endif
}

// A sum of weights, in parts: of their high halves and of their low ones.
struct SplitSum {
    u32 high;
    u32 low;

    DEVICE_MEMBER u64 total() const { return ((u64)high << 16) + low; }
};

// The sum over the lanes of what eight weights of at most 2^28 add up to: that fits.
DEVICE SplitSum reduce_sum(u32 sum) {
    return SplitSum{__reduce_add_sync(FULL_MASK, sum >> 16), __reduce_add_sync(FULL_MASK, sum & 0xFFFF)};
}

// The weight of a logit that lies `below` its tile's maximum, as `weight` has it, with an operation less: distances d are taken
// as d / -64, which a product is held to 1 in for nothing. Whatever lies further below weighs nothing, and all that follows is
// `weight`'s times powers of -64, which change no rounding.
DEVICE u32 weight_of_distance(float below, float log2e_over_t) {
    const float ROUNDING_MAGIC = (12582912.0f + 28.0f) / 64.0f;
    float d = mul_saturate(below, log2e_over_t * (1.0f / 64.0f));
    float sum = ROUNDING_MAGIC - d;
    float f = d - (ROUNDING_MAGIC - sum);
    float p = 0.000153290152f * 68719476736.0f;
    p = fma_rn(p, f, 0.00133909716f * -1073741824.0f);
    p = fma_rn(p, f, 0.00961850025f * 16777216.0f);
    p = fma_rn(p, f, 0.0555035956f * -262144.0f);
    p = fma_rn(p, f, 0.240226477f * 4096.0f);
    p = fma_rn(p, f, 0.693147182f * -64.0f);
    p = fma_rn(p, f, 1.0f);
    return float_to_u32(bits_float(float_bits(p) + (float_bits(sum) << 23)));
}

// The sum of the weights of a tile's clean logits (M3), in every lane; 0 in a tile of nothing, whose maximum is to be
// finite as well.
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

// About the same: within 2^-19 of it. Exponentials are 2^-21 off, by the device, and inverses 2^-23; eight weights summed as floats
// 2^-22; the exact ones are 2^-23 off themselves, and by being whole, 2^-29 of the first each, 2^-21 together.
DEVICE SplitSum approx_sum_weights(const float (&z)[ITEMS_PER_LANE], float maximum, float log2e_over_t) {
#if GUMBALL_PROBABILITIES
    // Numbers are summed, and their sum divided, both scaled by a power of two that makes of the maximum one from 2^-22 to 16.
    float divisor = max_f32(maximum, MIN_TOKEN_VALUE),
          scale = bits_float(0x7F000000u - (float_bits(divisor) & 0x7E000000u));
    float low = z[0] * scale, high = z[ITEMS_PER_LANE / 2] * scale;
#pragma unroll
    for (u32 j = 1; j < ITEMS_PER_LANE / 2; j++) {
        low = fma_rn(z[j], scale, low);
        high = fma_rn(z[j + ITEMS_PER_LANE / 2], scale, high);
    }
    // At most 2^31, and 0 in a tile of nothing.
    return reduce_sum(float_to_u32((low + high) * (approx_reciprocal(divisor * scale) * 268435456.0f)));
#else
    float weights[ITEMS_PER_LANE];
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        weights[j] = approx_exp2((z[j] - maximum) * log2e_over_t);
    }
    float sum = ((weights[0] + weights[1]) + (weights[2] + weights[3])) +
                ((weights[4] + weights[5]) + (weights[6] + weights[7]));
    // At most 2^31. NaN, the sum in a tile of nothing, becomes 0.
    return reduce_sum(float_to_u32(max_f32(sum, 0.0f) * 268435456.0f));
#endif
}
