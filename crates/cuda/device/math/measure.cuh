// measure.cuh: what hangs on whether the numbers of a row are logits or probabilities (P1 to P3); all else is the same code.
//
// Computes   numbers as they count; how two of them weigh against each other, exactly and about; where in a range they lie
// Never      lets a program have both: the macro GUMBALL_PROBABILITIES says which kind its rows are
// Twins      CPU cpu/src/measure.rs | oracle spec/src/survey.rs | why docs/probabilities.md
//
// Every number above MASKED_VALUE is a token's. The order is that of the numbers, of either kind.
#pragma once

#include "math/num.cuh"

// What a number of a row has to say about it.
enum Status : u32 { STATUS_NAN = 1, STATUS_INF = 2, STATUS_EMPTY = 4 };

#if GUMBALL_PROBABILITIES

// What stands where there is no token, and the least number of a token, as such and as ordered bits.
#define MASKED_VALUE 0.0f
#define MIN_TOKEN_VALUE bits_float(1)
#define MIN_TOKEN_ORDERED 0x80000001u
// How far below the first token there is hardly anything but what masks leave, as heights go.
#define RELEVANT_SPAN 46.0f
// Whether levels are equal parts of values, or of their bits.
#define LINEAR_LEVELS false
// Whether the survey sums neighbouring tiles together: sums are short, and fill each other's waits.
#define SUM_TILES_TOGETHER true
// Whether min-p compares numbers with their first (P1a), or y with a logarithm (F2).
#define MIN_P_COMPARES_VALUES true

// A probability as it counts: NaN and less than 0 as 0, +inf as the largest float (P1).
DEVICE float clean(float p) { return fminf(max_f32(0.0f, p), MAX_F32); }

DEVICE u32 nonfinite_flags_of(float p) { return p != p || p < 0.0f ? STATUS_NAN : p > MAX_F32 ? STATUS_INF : 0; }

// What exponents are relative to, made once.
struct Origin {
    float first;
    float log;

    Origin() = default;
    DEVICE_MEMBER explicit Origin(float first) : first(first), log(log2_rule(first)) {}
};

// The exponent of two of a number's weight relative to the origin's: y, where that is the first token's; -inf of no token.
DEVICE float exponent(float p, const Origin& origin, float) { return log2_rule(max_f32(p, 0.0f)) - origin.log; }

// A tile's factor (M3): its maximum is no more than the first token's probability, and 0 in a tile of nothing.
DEVICE float tile_factor(float maximum, float first, float) { return max_f32(maximum, 0.0f) / first; }

// Weights relative to a tile's maximum, in units of 2^-28; 0 of no token.
struct TokenWeights : QuotientWeights {
    DEVICE_MEMBER TokenWeights(float maximum, float) : QuotientWeights(max_f32(maximum, MIN_TOKEN_VALUE)) {}
};

// About log2 of a weight, within 2^-15 of it or more, but for a number that is more than 0 no less; -inf of no token.
DEVICE float log2_weight(float p, float) {
    return p > 0.0f ? approx_log2(max_f32(p, bits_float(0x00800000u))) : -INF_F32;
}
DEVICE float log2_weight(const Origin& origin, float) { return origin.log; }
// The same less a number.
DEVICE float log2_weight_minus(float p, float log2e_over_t, float less) { return log2_weight(p, log2e_over_t) - less; }

// About where a threshold on y lies below the first token's number, worked out before that is known.
DEVICE float threshold_offset(float threshold, float) { return approx_exp2(threshold); }
DEVICE float apply_threshold_offset(float first, float offset) { return first * offset; }

// The height of a number, which rises with it: evenly with its logarithm, nearly, and exact near the first token's.
struct HeightScale {
    u32 top;

    DEVICE_MEMBER explicit HeightScale(float first) : top(float_bits(first)) {}
    DEVICE_MEMBER float height(float p) const {
        return p > 0.0f ? -u32_to_float(top - float_bits(p)) * bits_float((127 - 23) << 23) : -INF_F32;
    }
    // A number that is no higher than that, and a token's.
    DEVICE_MEMBER float at(float height) const {
        float below = max_f32(-height, 0.0f) * 8388608.0f;
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
// What exponentials of two tiles take in registers costs more than it saves: 1.6 microseconds of 74 at 512 rows.
#define SUM_TILES_TOGETHER false
#define MIN_P_COMPARES_VALUES false

// A logit as it counts: NaN as -inf, +inf as the largest float, -0.0 as +0.0 (N7).
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
    DEVICE_MEMBER u32 of(float z) const { return weight((z - maximum) * log2e_over_t); }
};

DEVICE float log2_weight(float z, float log2e_over_t) { return z * log2e_over_t; }
DEVICE float log2_weight(const Origin& origin, float log2e_over_t) { return origin.first * log2e_over_t; }
DEVICE float log2_weight_minus(float z, float log2e_over_t, float less) { return fma_rn(z, log2e_over_t, -less); }

DEVICE float threshold_offset(float threshold, float log2e_over_t) { return threshold / log2e_over_t; }
DEVICE float apply_threshold_offset(float first, float offset) { return first + offset; }

struct HeightScale {
    DEVICE_MEMBER explicit HeightScale(float) {}
    DEVICE_MEMBER float height(float z) const { return z; }
    DEVICE_MEMBER float at(float height) const { return height; }
};

#endif
