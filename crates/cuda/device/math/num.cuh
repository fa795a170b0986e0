// num.cuh: the numbers that every backend computes alike, bit for bit (rules N1 to N8, M3).
//
// Computes   Philox words, log2, exp2, exponential variables, keys, tile factors
// Never      calls libm or a hardware approximation; never rounds twice; never flushes subnormals
// Twins      definition spec/src/num | CPU cpu/src/num.rs | why docs/numerics.md
// Requires   no contraction into fma, division rounded once; a host compiler builds this file too
#pragma once

#include "platform/portability.cuh"

struct PhiloxWords {
    u32 w[4];
};

// The high word of the product.
DEVICE u32 mul_hi_u32(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

// The four random words of a counter under a key (N8).
DEVICE PhiloxWords philox(u64 key, u32 c0, u32 c1, u32 c2, u32 c3) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 h0, l0, h1, l1;
        mul_wide_u32(0xD2511F53u, c0, h0, l0);
        mul_wide_u32(0xCD9E8D57u, c2, h1, l1);
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return PhiloxWords{{c0, c1, c2, c3}};
}

// The purpose of a random word: the third word of its counter (N8).
enum Tag : u32 {
    TAG_TOKEN = 0,
    TAG_TILE = 1,
    TAG_XTC = 2,
    TAG_ACCEPT = 3,
    TAG_RESIDUAL_TILE = 4,
    TAG_RESIDUAL_TOKEN = 5,
    TAG_BLOCK = 6,
    TAG_THRESHOLD = 7,
    TAG_DRAFT_TILE = 8,
    TAG_DRAFT_TOKEN = 9,
    TAG_WATERMARK = 12
};

// P(f): log2(1 + f) is f P(f) (N1).
DEVICE float log2_one_plus(float f) {
    float p = 0.125518844f;
    p = fma_rn(p, f, -0.206686974f);
    p = fma_rn(p, f, 0.215552017f);
    p = fma_rn(p, f, -0.239030987f);
    p = fma_rn(p, f, 0.287947953f);
    p = fma_rn(p, f, -0.360699952f);
    p = fma_rn(p, f, 0.480909109f);
    p = fma_rn(p, f, -0.721347392f);
    return fma_rn(p, f, 1.44269502f);
}

// A positive finite x as (1 + f) 2^e; both parts are exact.
struct Log2Parts {
    int e;
    float f;
};

DEVICE Log2Parts log2_parts_of_normal(float x) {
    u32 bits = float_bits(x);
    u32 fraction = bits & 0x007FFFFFu;
    u32 exponent_offset = fraction > 0x3504F3u;
    return Log2Parts{(int)(bits >> 23) - 127 + (int)exponent_offset,
                     bits_float(fraction | ((127u - exponent_offset) << 23)) - 1.0f};
}

DEVICE Log2Parts log2_parts(float x) {
    if (float_bits(x) >= 0x00800000u) {
        return log2_parts_of_normal(x);
    }
    Log2Parts parts = log2_parts_of_normal(x * 16777216.0f);
    parts.e -= 24;
    return parts;
}

// log2 of a positive normal x; never decreases as x grows.
DEVICE float log2_of_normal(float x) {
    Log2Parts parts = log2_parts_of_normal(x);
    return fma_rn(log2_one_plus(parts.f), parts.f, int_to_float(parts.e));
}

// log2 of a finite x >= 0; -inf for 0 (N1).
DEVICE float log2_rule(float x) {
    if (x == 0.0f) {
        return -INF_F32;
    }
    Log2Parts parts = log2_parts(x);
    return fma_rn(log2_one_plus(parts.f), parts.f, int_to_float(parts.e));
}

// 2^(d + exponent_offset) for d in -126..=0. `exponent_offset` is even, and the result is at most the largest float.
DEVICE float exp2_scaled(float d, u32 exponent_offset) {
    // Sums with this number are integers: their low bits hold the integer nearest to d, ties to even.
    const float ROUNDING_MAGIC = 12582912.0f + int_to_float((int)exponent_offset);
    float sum = d + ROUNDING_MAGIC;
    float f = d - (sum - ROUNDING_MAGIC);
    float p = 0.000153290152f;
    p = fma_rn(p, f, 0.00133909716f);
    p = fma_rn(p, f, 0.00961850025f);
    p = fma_rn(p, f, 0.0555035956f);
    p = fma_rn(p, f, 0.240226477f);
    p = fma_rn(p, f, 0.693147182f);
    p = fma_rn(p, f, 1.0f);
    return bits_float(float_bits(p) + (float_bits(sum) << 23));
}

// 2^d for d <= 0, -inf included; +0 below -126 (N2).
DEVICE float exp2_rule(float d) {
    if (d < -126.0f) {
        return 0.0f;
    }
    return exp2_scaled(d, 0);
}

// Approximates RN(2^d / divisor) for d in -126..=0, with `inverse` = RN(1 / divisor). A normal quotient is within
// APPROX_QUOTIENT_ULPS units in the last place. Errors: 2^-21 of the device's exponential, 2^-23 of the rule's, and
// 2^-24 each of inverse, product and quotient. Results differ between devices: for bounds only.
#define APPROX_QUOTIENT_ULPS 13

DEVICE float approx_quotient(float d, float inverse) { return approx_exp2(d) * inverse; }

// log2(e): divided by T it turns differences of logits into exponents of two (N6).
DEVICE float log2_e() { return bits_float(0x3FB8AA3Bu); }

// A token's weight relative to its tile's maximum, d = (z - m) s, in units of 2^-28 (M3).
DEVICE u32 weight(float d) {
    // For d of -30 and less, weights round to 0. In a tile without tokens d is NaN, which `max_f32` turns into
    // -40, of weight 0.
    return float_to_u32(exp2_scaled(max_f32(d, -40.0f), 28));
}

// The weight of a logit that lies `below` its tile's maximum: the result of `weight`, by one operation less. It takes
// the distance d as d / -64, because a product saturates at 1 at no cost. A logit that is further below weighs 0. All
// further numbers are those in `weight` times powers of -64, which changes no rounding.
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

// Weights of values relative to `of`, which is at least as large, in units of 2^-28: round(2^28 RN(p / of)) (P1).
// The division takes two steps of Markstein's method. The first leaves an error of less than a unit in the last place.
// The second has an exact remainder, and an inverse that is rounded once, so it rounds as division does. All numbers
// are scaled by a power of two. Hence none leaves the range of floats, unless a quotient is far below half a unit.
struct QuotientWeights {
    float scale;
    float divisor;
    float inverse;

    DEVICE_MEMBER explicit QuotientWeights(float of) {
        u32 exponent = float_bits(of) >> 23;
        scale = bits_float((exponent < 254 ? 254 - exponent : 1) << 23);
        divisor = of * scale * bits_float((127 - 28) << 23);
        inverse = 1.0f / divisor;
    }
    // The weight is 0 for NaN and for negative numbers.
    DEVICE_MEMBER u32 of(float p) const {
        float scaled = max_f32(p, 0.0f) * scale, quotient = scaled * inverse;
        quotient = fma_rn(fma_rn(-divisor, quotient, scaled), inverse, quotient);
        return float_to_u32(fma_rn(fma_rn(-divisor, quotient, scaled), inverse, quotient));
    }
};

// -log2(1 - v) if `near`, otherwise -log2(v).
DEVICE float exponential_from(float v, bool near) {
    const Log2Parts parts = log2_parts_of_normal(v);
    const float p = log2_one_plus(near ? -v : parts.f);
    return near ? v * p : -fma_rn(p, parts.f, int_to_float(parts.e));
}

// The exponential variable of a 32-bit word (N3).
DEVICE float exponential_from_u32(u32 r) {
    bool near = r < 0x4AFB0CCDu;
    u32 word = near ? r : ~r;
    return exponential_from(u64_to_float(2 * (u64)word + 1) * bits_float((127 - 33) << 23), near);
}

// The exponential variable of a 64-bit word (N4).
DEVICE float exponential_from_u64(u64 u) {
    bool near = u < 0x4AFB0CCC06219B7Cull;
    u64 word = near ? u : ~u;
    return exponential_from(u64_to_float(word > 1 ? word : 1) * bits_float((127 - 64) << 23), near);
}

// Bits whose order as unsigned integers is the order of the floats.
DEVICE u32 ordered_bits(float z) {
    u32 bits = float_bits(z);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float from_ordered_bits(u32 bits) { return bits_float(bits >> 31 ? bits & 0x7FFFFFFFu : ~bits); }

// A token's key: larger is earlier in the order. Scores are packed in the same way, so that ties go to the smaller id.
DEVICE u64 make_key(float z, u32 id) { return ((u64)ordered_bits(z) << 32) | (u32)~id; }

DEVICE u32 key_id(u64 key) { return ~(u32)key; }

DEVICE float key_logit(u64 key) { return from_ordered_bits((u32)(key >> 32)); }

// A mass is in units of 2^-43 of the weight of its set's first token.
#define MASS_BITS 43

// Returns a mass in units of that weight.
DEVICE float relative_mass(u64 mass) { return u64_to_float(mass) * bits_float((127 - MASS_BITS) << 23); }

// The mass of a tile with the sum q of its weights and an f32 factor (M3).
DEVICE u64 tile_mass(float factor, u64 q) {
    u32 bits = float_bits(factor);
    u32 shift = 8 + 127 - (bits >> 23);
    u64 product = q * ((bits & 0x007FFFFFu) | 0x00800000u);
    return factor == 0.0f || shift > 63 ? 0 : product >> shift;
}
