// numeric_check.cu: evaluates the functions of num.cuh and kind.cuh on many inputs, so that tests compare them with
// their definitions.
//
// Computes   for each input the result of one function, as bits
// Twins      src/operators/numeric_check.rs, which has the definitions in the same order
// Shapes     out [count]
// Grid       x = blocks of 256 inputs, one thread per input
// Requires   nothing; outside a function's domain the result is arbitrary

#include "abi/operators.cuh"
#include "math/kind.cuh"

DEVICE u64 number(u64 which, u64 input) {
    u32 word = (u32)input;
    float x = bits_float(word);
    switch (which) {
    case 0:
        return float_bits(log2_rule(x));
    case 1:
        return float_bits(exp2_rule(x));
    case 2:
        return float_bits(exponential_from_u32(word));
    case 3:
        return float_bits(exponential_from_u64(input));
    case 4:
        return ordered_bits(x);
    case 5:
        return float_bits(from_ordered_bits(word));
    case 6:
        return float_bits(clean(x));
    case 7:
        return float_bits(f16_to_float((unsigned short)word));
    case 8:
        return tile_mass(x, (input >> 32) * 15 + 1);
    case 9: {
        PhiloxWords words = philox(input, word, word ^ 5, word >> 7, ~word);
        return (((u64)words.w[0] << 32) | words.w[1]) ^ (((u64)words.w[2] << 32) | words.w[3]) * 3;
    }
    case 10:
        return make_key(x, word >> 12);
    case 11:
        return weight(x);
    case 12:
        // Relative to 1.0 if the input is below 2^32.
        return QuotientWeights(bits_float((u32)(input >> 32) ^ 0x3F800000u)).of(x);
    case 13: {
        // Whether `approx_quotient` is within its stated error. An input below 2^32 has the divisor 1; others have
        // divisors below 2^20.
        float divisor = bits_float(0x3F800000u + (u32)(input >> 32) % (20u << 23));
        u32 quotient = float_bits(exp2_rule(x) / divisor), approx = float_bits(approx_quotient(x, 1.0f / divisor));
        return (approx > quotient ? approx - quotient : quotient - approx) <= APPROX_QUOTIENT_ULPS;
    }
    default: {
        Log2Parts parts = log2_parts(x);
        return ((u64)(u32)parts.e << 32) | float_bits(parts.f);
    }
    }
}

KERNEL(numeric_check, NUMERIC_CHECK_THREADS, Sweep, sweep) {
    u64 i = (u64)blockIdx.x * NUMERIC_CHECK_THREADS + threadIdx.x;
    if (i < sweep.count) {
        sweep.out[i] = number(sweep.which, sweep.from + i * sweep.step);
    }
}
