// measure.cuh: what hangs on whether the numbers of a row are logits or probabilities (P1 to P3); all else is the same code.
//
// Computes   numbers as they count; how two of them weigh against each other, exactly and about; where in a range they lie
// Never      lets a program have both: the macro GUMBALL_PROBABILITIES says which kind its rows are
// Twins      CPU cpu/src/measure.rs | oracle spec/src/survey.rs | why docs/probabilities.md
//
// Every number above NOTHING is a token's. The order is that of the numbers, of either kind.
#pragma once

#include "num.cuh"

// What a number of a row has to say about it.
enum Status : u32 { STATUS_NAN = 1, STATUS_INF = 2, STATUS_EMPTY = 4 };

#if GUMBALL_PROBABILITIES

// What stands where there is no token, and the least number of a token, as such and as ordered bits.
#define NOTHING 0.0f
#define LEAST bits_float(1)
#define LEAST_ORDERED 0x80000001u
// How far below the first token there is hardly anything but what masks leave, as heights go.
#define SPAN 46.0f
// Whether levels are equal parts of values, or of their bits.
#define LEVELS_OF_VALUES false
// Whether the survey sums neighbouring tiles together: sums are short, and fill each other's waits.
#define SUMS_TOGETHER true
// Whether min-p compares numbers with their first (P1a), or y with a logarithm (F2).
#define MIN_P_OF_NUMBERS true

// A probability as it counts: NaN and less than 0 as 0, +inf as the largest float (P1).
DEVICE float clean(float p) { return fminf(larger(0.0f, p), LARGEST); }

DEVICE u32 odd_of_value(float p) { return p != p || p < 0.0f ? STATUS_NAN : p > LARGEST ? STATUS_INF : 0; }

// What exponents are relative to, made once.
struct Origin {
    float first;
    float log;

    Origin() = default;
    DEVICE_MEMBER explicit Origin(float first) : first(first), log(log2_rule(first)) {}
};

// The exponent of two of a number's weight relative to the origin's: y, where that is the first token's; -inf of no token.
DEVICE float exponent(float p, const Origin& origin, float) { return log2_rule(larger(p, 0.0f)) - origin.log; }

// A tile's factor (M3): its maximum is no more than the first token's probability, and 0 in a tile of nothing.
DEVICE float factor_of(float maximum, float first, float) { return larger(maximum, 0.0f) / first; }

// Weights relative to a tile's maximum, in units of 2^-28; 0 of no token.
struct Weigher : Portions {
    DEVICE_MEMBER Weigher(float maximum, float) : Portions(larger(maximum, LEAST)) {}
};

// About log2 of a weight, within 2^-15 of it or more, but for a number that is more than 0 no less; -inf of no token.
DEVICE float scaled(float p, float) {
    return p > 0.0f ? about_log2(larger(p, bits_float(0x00800000u))) : -INFINITE;
}
DEVICE float scaled(const Origin& origin, float) { return origin.log; }
// The same less a number.
DEVICE float scaled_less(float p, float s, float less) { return scaled(p, s) - less; }

// About where a threshold on y lies below the first token's number, worked out before that is known.
DEVICE float way_down(float threshold, float) { return about_exp2(threshold); }
DEVICE float down(float first, float way) { return first * way; }

// The height of a number, which rises with it: evenly with its logarithm, nearly, and exact near the first token's.
struct Ruler {
    u32 top;

    DEVICE_MEMBER explicit Ruler(float first) : top(float_bits(first)) {}
    DEVICE_MEMBER float height(float p) const {
        return p > 0.0f ? -u32_to_float(top - float_bits(p)) * bits_float((127 - 23) << 23) : -INFINITE;
    }
    // A number that is no higher than that, and a token's.
    DEVICE_MEMBER float at(float height) const {
        float below = larger(-height, 0.0f) * 8388608.0f;
        u32 bits = below < 2147483648.0f ? (u32)below + 1 : ~0u;
        return bits_float(bits < top ? top - bits : 1);
    }
};

#else

#define NOTHING (-INFINITE)
#define LEAST (-LARGEST)
#define LEAST_ORDERED 0x00800000u
#define SPAN 32.0f
#define LEVELS_OF_VALUES true
// What exponentials of two tiles take in registers costs more than it saves: 1.6 microseconds of 74 at 512 rows.
#define SUMS_TOGETHER false
#define MIN_P_OF_NUMBERS false

// A logit as it counts: NaN as -inf, +inf as the largest float, -0.0 as +0.0 (N7).
DEVICE float clean(float z) {
    return z != z ? -INFINITE : (z > LARGEST ? LARGEST : z) + 0.0f;
}

DEVICE u32 odd_of_value(float z) { return z != z ? STATUS_NAN : z > LARGEST ? STATUS_INF : 0; }

struct Origin {
    float first;

    Origin() = default;
    DEVICE_MEMBER explicit Origin(float first) : first(first) {}
};

DEVICE float exponent(float z, const Origin& origin, float s) { return (z - origin.first) * s; }

DEVICE float factor_of(float maximum, float first, float s) { return exp2_rule((maximum - first) * s); }

struct Weigher {
    float maximum;
    float s;

    DEVICE_MEMBER Weigher(float maximum, float s) : maximum(maximum), s(s) {}
    DEVICE_MEMBER u32 of(float z) const { return weight((z - maximum) * s); }
};

DEVICE float scaled(float z, float s) { return z * s; }
DEVICE float scaled(const Origin& origin, float s) { return origin.first * s; }
DEVICE float scaled_less(float z, float s, float less) { return fma_rn(z, s, -less); }

DEVICE float way_down(float threshold, float s) { return threshold / s; }
DEVICE float down(float first, float way) { return first + way; }

struct Ruler {
    DEVICE_MEMBER explicit Ruler(float) {}
    DEVICE_MEMBER float height(float z) const { return z; }
    DEVICE_MEMBER float at(float height) const { return height; }
};

#endif
