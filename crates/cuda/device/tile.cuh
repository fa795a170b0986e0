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

// What 16 bytes of 16-bit logits hold.
template <class T>
DEVICE void unpack(const Quad& quad, float (&z)[PER_LANE]) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        z[2 * j] = T::convert((unsigned short)quad.word[j]);
        z[2 * j + 1] = T::convert((unsigned short)(quad.word[j] >> 16));
    }
}

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
        unpack<T>(quad, z);
    }
}

// The same of a tile that may be read again, or is on chip.
template <class T>
DEVICE void load_wide(const typename T::Element* tile, u32 lane, float (&z)[PER_LANE]) {
    const Quad* quads = (const Quad*)tile;
    if constexpr (sizeof(typename T::Element) == 4) {
        Quad low = quads[lane], high = quads[32 + lane];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    } else {
        unpack<T>(quads[lane], z);
    }
}

// All of a lane's logits.
struct All {
    DEVICE_MEMBER bool has(u32) const { return true; }
    DEVICE_MEMBER All again() const { return *this; }
};

// None of them.
struct Nothing {
    DEVICE_MEMBER bool has(u32) const { return false; }
    DEVICE_MEMBER Nothing again() const { return *this; }
};

// Those whose bits are set in the lane's byte, lowest first.
struct Share {
    const unsigned char* byte;
    u32 bits;

    DEVICE_MEMBER explicit Share(const unsigned char* byte) : byte(byte), bits(*(const volatile unsigned char*)byte) {}

    DEVICE_MEMBER bool has(u32 j) const { return (bits & 1u << j) != 0; }
    // The same for where it is seldom asked: read again, else all bits would be held in predicates up to there.
    DEVICE_MEMBER Share again() const { return Share(byte); }
};

// The lane's largest logit of all; NaN if it has one.
DEVICE float largest_of(const float (&z)[PER_LANE], All) {
    return larger_or_nan(larger_or_nan(larger_or_nan(z[0], z[1]), larger_or_nan(z[2], z[3])),
                         larger_or_nan(larger_or_nan(z[4], z[5]), larger_or_nan(z[6], z[7])));
}

// The largest of some; NaN if one of them is.
DEVICE float largest_of(const float (&z)[PER_LANE], const Share& some) {
    float low = some.has(0) ? z[0] : -INFINITE, high = some.has(4) ? z[4] : -INFINITE;
#pragma unroll
    for (u32 j = 1; j < PER_LANE / 2; j++) {
        low = some.has(j) ? larger_or_nan(low, z[j]) : low;
        high = some.has(j + 4) ? larger_or_nan(high, z[j + 4]) : high;
    }
    return larger_or_nan(low, high);
}

// Leaves nothing of what is not meant.
template <class Set>
DEVICE void leave(float (&z)[PER_LANE], const Set& set) {
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        z[j] = set.has(j) ? z[j] : NOTHING;
    }
}

// Cleans the lane's share; returns the status bits of what was odd among the logits that are counted.
template <class Set>
DEVICE u32 clean_share(float (&z)[PER_LANE], const Set& counted) {
    u32 odd = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 bits = odd_of_value(z[j]);
        odd |= counted.has(j) ? bits : 0;
        z[j] = clean(z[j]);
    }
    return odd;
}

#if GUMBALL_PROBABILITIES
// The largest of a lane's probabilities as bits, which are in their order; what is odd lies above.
template <class Set>
DEVICE u32 most_bits(const float (&z)[PER_LANE], const Set& set) {
    u32 most = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        u32 bits = set.has(j) ? float_bits(z[j]) : 0;
        most = bits > most ? bits : most;
    }
    return most;
}
#endif

// The maximum in signed order of a set of a tile's logits, and the lane's own. Odd values are cleaned; `odd` takes the status
// bits of those that are counted.
template <class Set, class Counted>
DEVICE int maximum_of(float (&z)[PER_LANE], const Set& set, const Counted& counted, u32& odd, int& own) {
#if GUMBALL_PROBABILITIES
    u32 bits = most_bits(z, set), most = __reduce_max_sync(ALL_LANES, bits);
    // NaN, infinities, and whatever has a sign.
    if (most > float_bits(LARGEST)) {
        odd |= clean_share(z, counted.again());
        bits = most_bits(z, set.again());
        most = __reduce_max_sync(ALL_LANES, bits);
    }
    own = (int)bits;
    return (int)most;
#else
    // -0.0 is +0.0.
    own = signed_order(largest_of(z, set) + 0.0f);
    int maximum = __reduce_max_sync(ALL_LANES, own);
    // +inf and NaN, which no row has as a rule, show in the maximum.
    if (maximum >= signed_order(INFINITE)) {
        odd |= clean_share(z, counted.again());
        own = signed_order(largest_of(z, set.again()));
        maximum = __reduce_max_sync(ALL_LANES, own);
    }
    return maximum;
#endif
}

// The float of such a maximum.
DEVICE float from_maximum(int maximum) {
#if GUMBALL_PROBABILITIES
    return bits_float((u32)maximum);
#else
    return from_signed_order(maximum);
#endif
}

// The maximum of all of a tile's logits, to weigh them by: no less than floats have, which in a tile of nothing is above it. Odd
// values are cleaned.
DEVICE float maximum_to_weigh_by(float (&z)[PER_LANE]) {
#if GUMBALL_PROBABILITIES
    u32 odd = 0;
    int own;
    return larger(from_signed_order(maximum_of(z, All(), Nothing(), odd, own)), LEAST);
#else
    // Bits of positive floats compare as they do, above all others; NaN has no sign here.
    int maximum = __reduce_max_sync(ALL_LANES, (int)float_bits(largest_of(z, All())));
    if ((u32)maximum >= 0x7F800000u) {
        u32 odd = 0;
        int own;
        return larger(from_signed_order(maximum_of(z, All(), Nothing(), odd, own)), -LARGEST);
    }
    return bits_float((u32)maximum);
#endif
}

// A sum of weights, in parts: of their high halves and of their low ones.
struct Halves {
    u32 high;
    u32 low;

    DEVICE_MEMBER u64 sum() const { return ((u64)high << 16) + low; }
};

// The sum over the lanes of what eight weights of at most 2^28 add up to: that fits.
DEVICE Halves sum_of_lanes(u32 sum) {
    return Halves{__reduce_add_sync(ALL_LANES, sum >> 16), __reduce_add_sync(ALL_LANES, sum & 0xFFFF)};
}

// The weight of a logit that lies `below` its tile's maximum, as `weight` has it, with an operation less: distances d are taken
// as d / -64, which a product is held to 1 in for nothing. Whatever lies further below weighs nothing, and all that follows is
// `weight`'s times powers of -64, which change no rounding.
DEVICE u32 weight_below(float below, float s) {
    const float WHOLE = (12582912.0f + 28.0f) / 64.0f;
    float d = product_within_1(below, s * (1.0f / 64.0f));
    float sum = WHOLE - d;
    float f = d - (WHOLE - sum);
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
DEVICE Halves sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
    u32 sum = 0;
#if GUMBALL_PROBABILITIES
    const Weigher weigher(maximum, s);
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        sum += weigher.of(z[j]);
    }
#else
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        sum += weight_below(maximum - z[j], s);
    }
#endif
    return sum_of_lanes(sum);
}

// About the same: within 2^-19 of it. Exponentials are 2^-21 off, by the device, and inverses 2^-23; eight weights summed as floats
// 2^-22; the exact ones are 2^-23 off themselves, and by being whole, 2^-29 of the first each, 2^-21 together.
DEVICE Halves about_sum_of_weights(const float (&z)[PER_LANE], float maximum, float s) {
#if GUMBALL_PROBABILITIES
    // Numbers are summed, and their sum divided, both scaled by a power of two that makes of the maximum one from 2^-22 to 16.
    float divisor = larger(maximum, LEAST), scale = bits_float(0x7F000000u - (float_bits(divisor) & 0x7E000000u));
    float low = z[0] * scale, high = z[PER_LANE / 2] * scale;
#pragma unroll
    for (u32 j = 1; j < PER_LANE / 2; j++) {
        low = fma_rn(z[j], scale, low);
        high = fma_rn(z[j + PER_LANE / 2], scale, high);
    }
    // At most 2^31, and 0 in a tile of nothing.
    return sum_of_lanes(float_to_u32((low + high) * (about_inverse(divisor * scale) * 268435456.0f)));
#else
    float weights[PER_LANE];
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        weights[j] = about_exp2((z[j] - maximum) * s);
    }
    float sum = ((weights[0] + weights[1]) + (weights[2] + weights[3])) +
                ((weights[4] + weights[5]) + (weights[6] + weights[7]));
    // At most 2^31. NaN, the sum in a tile of nothing, becomes 0.
    return sum_of_lanes(float_to_u32(larger(sum, 0.0f) * 268435456.0f));
#endif
}
