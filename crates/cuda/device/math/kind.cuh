// kind.cuh: what depends on whether a row holds logits or probabilities (P1 to P3); all other code serves both.
//
// Computes   clean values; relative weights of two values, exact and approximate; a value's height in a range
// Never      serves both kinds in one program: the macro GUMBALL_PROBABILITIES says which kind its rows have
// Twins      CPU cpu/src/measure.rs | oracle spec/src/survey.rs | why docs/probabilities.md
//
// Every value above MASKED_VALUE is a token's. Larger values come first in the order, for both kinds.
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

#if GUMBALL_PROBABILITIES

// The value that stands for no token; the least value of a token, as a float and as ordered bits.
#define MASKED_VALUE 0.0f
#define MIN_TOKEN_VALUE bits_float(1)
#define MIN_TOKEN_ORDERED 0x80000001u
// Heights further than this below the first token's are rare. They occur in tiles that a mask leaves without likely
// tokens.
#define RELEVANT_SPAN 46.0f
// Whether the levels of a histogram divide a range of values evenly, or the bits of the values.
#define LINEAR_LEVELS false
// Whether the survey sums neighbouring tiles together. These sums are short, so that one tile's work hides another's
// latency.
#define SUM_TILES_TOGETHER true
// Whether min-p compares values with a multiple of the first (P1a), or y with a logarithm (F2).
#define MIN_P_COMPARES_VALUES true

// Cleans a probability: NaN and negative numbers become 0, +inf becomes the largest float (P1).
DEVICE float clean(float p) { return fminf(max_f32(0.0f, p), MAX_F32); }

DEVICE u32 nonfinite_flags_of(float p) { return p != p || p < 0.0f ? STATUS_NAN : p > MAX_F32 ? STATUS_INF : 0; }

// The value that exponents are relative to, with its logarithm.
struct Origin {
    float first;
    float log;

    Origin() = default;
    DEVICE_MEMBER explicit Origin(float first) : first(first), log(log2_rule(first)) {}
};

// The exponent of two of a value's weight, relative to the origin. It is y if the origin is the first token, and -inf
// for a value that is no token's.
DEVICE float exponent(float p, const Origin& origin, float) { return log2_rule(max_f32(p, 0.0f)) - origin.log; }

// A tile's factor (M3). The maximum is at most the first token's probability; the factor of a tile without tokens is 0.
DEVICE float tile_factor(float maximum, float first, float) { return max_f32(maximum, 0.0f) / first; }

// Weights relative to a tile's maximum, in units of 2^-28; 0 for a value that is no token's.
struct TokenWeights : QuotientWeights {
    DEVICE_MEMBER TokenWeights(float maximum, float) : QuotientWeights(max_f32(maximum, MIN_TOKEN_VALUE)) {}
};

// Approximates log2 of a weight, within 2^-15 for a normal value. For a subnormal one the result may be larger, but not
// smaller. It is -inf for a value that is no token's.
DEVICE float log2_weight(float p, float) {
    return p > 0.0f ? approx_log2(max_f32(p, bits_float(0x00800000u))) : -INF_F32;
}
DEVICE float log2_weight(const Origin& origin, float) { return origin.log; }
// `log2_weight`, minus a number.
DEVICE float log2_weight_minus(float p, float log2e_over_t, float less) { return log2_weight(p, log2e_over_t) - less; }

// Approximate weights relative to the first token's; by count each token weighs 1.
struct ApproxWeights {
    float inverse;
    float base;

    DEVICE_MEMBER ApproxWeights(float first, float, bool by_count)
        : inverse(by_count ? 0.0f : 1.0f / first), base(by_count ? 1.0f : 0.0f) {}
    DEVICE_MEMBER float of(float p) const { return fma_rn(p, inverse, base); }
    // The weight relative to another value's, which is no smaller.
    static DEVICE_MEMBER float relative(float p, float to) { return p / to; }
    // Whether the reciprocal of the first token's probability is a normal number, so that weights have a bounded
    // relative error.
    DEVICE_MEMBER bool are_bounded() const { return inverse < bits_float((127 + 100) << 23); }
};

// Approximates how far below the first token's value a threshold on y lies: here as a factor. Kernels compute it before
// they know the first token.
DEVICE float threshold_offset(float threshold, float) { return approx_exp2(threshold); }
DEVICE float apply_threshold_offset(float first, float offset) { return first * offset; }

// The height of a value rises with the value, almost as its logarithm does. It is exact down to a quarter of the first
// token's value, and rounded below.
struct HeightScale {
    u32 top;

    DEVICE_MEMBER explicit HeightScale(float first) : top(float_bits(first)) {}
    DEVICE_MEMBER float height(float p) const {
        return p > 0.0f ? -u32_to_float(top - float_bits(p)) * bits_float((127 - 23) << 23) : -INF_F32;
    }
    // A token's value that is above none of this height or higher ones, however their heights were rounded.
    DEVICE_MEMBER float at(float height) const {
        float below = max_f32(-height, 0.0f) * (8388608.0f + 1.0f);
        u32 bits = below < 2147483648.0f ? (u32)below + 1 : ~0u;
        return bits_float(bits < top ? top - bits : 1);
    }
};

#else

#define MASKED_VALUE (-INF_F32)
#define MIN_TOKEN_VALUE (-MAX_F32)
#define MIN_TOKEN_ORDERED 0x00800000u
#define RELEVANT_SPAN 32.0f
#define LINEAR_LEVELS true
// Summing two tiles together costs 1.6 us of 74 at 512 rows, because the exponentials of both occupy registers.
#define SUM_TILES_TOGETHER false
#define MIN_P_COMPARES_VALUES false

// Cleans a logit: NaN becomes -inf, +inf the largest float, -0.0 becomes +0.0 (N7).
DEVICE float clean(float z) { return z != z ? -INF_F32 : (z > MAX_F32 ? MAX_F32 : z) + 0.0f; }

DEVICE u32 nonfinite_flags_of(float z) { return z != z ? STATUS_NAN : z > MAX_F32 ? STATUS_INF : 0; }

struct Origin {
    float first;

    Origin() = default;
    DEVICE_MEMBER explicit Origin(float first) : first(first) {}
};

DEVICE float exponent(float z, const Origin& origin, float log2e_over_t) { return (z - origin.first) * log2e_over_t; }

DEVICE float tile_factor(float maximum, float first, float log2e_over_t) {
    return exp2_rule((maximum - first) * log2e_over_t);
}

struct TokenWeights {
    float maximum;
    float log2e_over_t;

    DEVICE_MEMBER TokenWeights(float maximum, float log2e_over_t) : maximum(maximum), log2e_over_t(log2e_over_t) {}
    // The weight is 0 for NaN and for -inf: both lie infinitely far below the maximum.
    DEVICE_MEMBER u32 of(float z) const { return weight_of_distance(maximum - max_f32(z, -INF_F32), log2e_over_t); }
};

DEVICE float log2_weight(float z, float log2e_over_t) { return z * log2e_over_t; }
DEVICE float log2_weight(const Origin& origin, float log2e_over_t) { return origin.first * log2e_over_t; }
DEVICE float log2_weight_minus(float z, float log2e_over_t, float less) { return fma_rn(z, log2e_over_t, -less); }

struct ApproxWeights {
    float first;
    float scale;

    DEVICE_MEMBER ApproxWeights(float first, float log2e_over_t, bool by_count)
        : first(first), scale(by_count ? 0.0f : log2e_over_t) {}
    DEVICE_MEMBER float of(float z) const { return approx_exp2((z - first) * scale); }
    DEVICE_MEMBER float relative(float z, float to) const { return approx_exp2((z - to) * scale); }
    DEVICE_MEMBER bool are_bounded() const { return true; }
};

DEVICE float threshold_offset(float threshold, float log2e_over_t) { return threshold / log2e_over_t; }
DEVICE float apply_threshold_offset(float first, float offset) { return first + offset; }

struct HeightScale {
    DEVICE_MEMBER explicit HeightScale(float) {}
    DEVICE_MEMBER float height(float z) const { return z; }
    DEVICE_MEMBER float at(float height) const { return height; }
};

#endif

// The number of a filter whose number is a float.
DEVICE float filter_float(const Params& params, u32 filter) { return bits_float(params.filter_numbers[filter]); }

// The threshold of min-p for rows of this kind.
DEVICE float min_p_threshold(const Params& params) {
    return MIN_P_COMPARES_VALUES ? params.min_ratio : filter_float(params, FILTER_MIN_P);
}
