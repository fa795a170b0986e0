// portability.cuh: the operations on which a host compiler and the device compiler differ in name only.
//
// Each is one IEEE operation rounded once, or moves bits. On a host the build must not contract: `-ffp-contract=off`.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// What is loaded at once.
struct alignas(16) U32x4 {
    u32 word[4];
};

// Whether the rows of the program hold probabilities; its kernels are named so.
#ifndef GUMBALL_PROBABILITIES
#define GUMBALL_PROBABILITIES 0
#endif
#if GUMBALL_PROBABILITIES
#define KERNEL_NAME(name) name##_probs
#else
#define KERNEL_NAME(name) name
#endif

#define MAX_F32 3.402823466e+38f

// For lambdas: calls would take what they capture out of the registers.
#define INLINE __attribute__((always_inline))

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
// A function that is called, so that its registers are its own.
#define DEVICE_NOINLINE static __device__ __noinline__
// A kernel of one argument.
#define KERNEL(name, threads, Argument, argument) \
    extern "C" __global__ void __launch_bounds__(threads) KERNEL_NAME(name)(const __grid_constant__ Argument argument)
// The same where so many blocks shall fit a multiprocessor: registers are dealt out by it.
#define KERNEL_MIN_BLOCKS(name, threads, blocks, Argument, argument) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) \
        KERNEL_NAME(name)(const __grid_constant__ Argument argument)
#define INF_F32 __int_as_float(0x7F800000)

DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The larger of two; NaN is less than everything.
DEVICE float max_f32(float a, float b) { return fmaxf(a, b); }
// The larger of two; NaN, without a sign, if one is.
DEVICE float max_or_nan(float a, float b) {
    float x;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
// The smaller of two; NaN if one is.
DEVICE float min_or_nan(float a, float b) {
    float x;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
// A product, held within 0 and 1; 0 if it is NaN.
DEVICE float mul_saturate(float a, float b) {
    float x;
    asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
DEVICE unsigned int float_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_float(unsigned int bits) { return __uint_as_float(bits); }
DEVICE float round_half_even(float x) { return rintf(x); }
DEVICE float int_to_float(int i) { return __int2float_rn(i); }
DEVICE float u32_to_float(unsigned int u) { return __uint2float_rn(u); }
DEVICE float u64_to_float(unsigned long long u) { return __ull2float_rn(u); }
DEVICE unsigned int float_to_u32(float x) { return __float2uint_rn(x); }
// f64, for the rules that take it (F5, L3).
DEVICE double u64_to_double(unsigned long long u) { return __ull2double_rn(u); }
DEVICE double double_sqrt(double x) { return __dsqrt_rn(x); }
DEVICE double float_to_double(float x) { return (double)x; }
DEVICE float double_to_float(double x) { return __double2float_rn(x); }
DEVICE double bits_double(unsigned long long bits) { return __longlong_as_double((long long)bits); }
DEVICE double double_sum(double a, double b) { return __dadd_rn(a, b); }
DEVICE double double_difference(double a, double b) { return __dsub_rn(a, b); }
DEVICE double double_product(double a, double b) { return __dmul_rn(a, b); }
DEVICE double double_ratio(double a, double b) { return __ddiv_rn(a, b); }
DEVICE int leading_zeros(unsigned long long u) { return __clzll((long long)u); }
// The high word of a product.
DEVICE unsigned long long mul_hi_u64(unsigned long long a, unsigned long long b) { return __umul64hi(a, b); }

// A product of words, by one instruction: of shifts and casts the compiler makes two.
DEVICE void mul_wide_u32(unsigned int a, unsigned int b, unsigned int& high, unsigned int& low) {
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(product));
}

// Sixteen bytes that nobody writes while the kernel runs, and nobody reads soon.
DEVICE void load_streaming(const void* from, unsigned int (&words)[4]) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
}

// Sixteen bytes of one word four times, that nobody reads soon.
DEVICE void store_streaming(void* to, unsigned int word) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%1,%1,%1};" ::"l"(to), "r"(word) : "memory");
}

// The same, found here and not where it is asked for.
DEVICE float opaque(float x) {
    float y;
    asm volatile("mov.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE unsigned int opaque(unsigned int x) {
    unsigned int y;
    asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

DEVICE const float* opaque(const float* x) {
    const float* y;
    asm volatile("mov.u64 %0, %1;" : "=l"(y) : "l"(x));
    return y;
}

// Sixteen bytes begin to come to shared memory; they are there for the thread after `cp_async_wait_all`, for others after a barrier.
DEVICE void cp_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned int)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A place in shared memory, held in a register: where it is made of other numbers the compiler makes it again each time.
template <class T>
DEVICE T* smem_ptr_in_register(T* pointer) {
    unsigned int address;
    asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"((unsigned int)__cvta_generic_to_shared(pointer)));
    return (T*)__cvta_shared_to_generic(address);
}

// Some 32 bytes that are asked for soon.
DEVICE void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Fetches a kernel's argument, which each launch has anew: else 64 bytes of it are waited for each time something there is first read.
template <class Argument>
DEVICE void warm_constant_bank(const Argument& argument) {
    const unsigned int* words = (const unsigned int*)&argument;
    unsigned int any = 0;
#pragma unroll
    for (unsigned int i = 0; i < sizeof(Argument) / 4; i += 16) {
        any |= words[i];
    }
    // Something that must have been seen, and does nothing.
    asm volatile("{.reg .pred none; setp.eq.u32 none, %0, 0; @none nanosleep.u32 0;}" ::"r"(any) : "memory");
}

// Lets the next kernel on the stream begin where it was launched to: it waits before it reads what this one writes.
DEVICE void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernels before are done, and their writes seen; every block has to.
DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 2^x, with a relative error of 2^-21 at most; where that is subnormal it may be 0. Not the same everywhere: for bounds only.
DEVICE float approx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x of a normal x, with a relative error of 2^-23 at most. Not the same everywhere: for bounds only.
DEVICE float approx_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2 of a positive normal x, within 2^-22 or, where it is larger than 1, 2^-22 of it. Not the same everywhere: for bounds only.
DEVICE float approx_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// An f16, by its bits, converted exactly.
DEVICE float f16_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Two floats, rounded once to bf16; the first in the low bits.
DEVICE unsigned int pack_bf16x2(float low, float high) {
    unsigned int x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// The same to f16.
DEVICE unsigned int pack_f16x2(float low, float high) {
    unsigned int x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

#else

#include <cmath>
#include <cstring>

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define DEVICE_NOINLINE static inline
#define KERNEL(name, threads, Argument, argument) extern "C" void KERNEL_NAME(name)(const Argument& argument)
#define KERNEL_MIN_BLOCKS(name, threads, blocks, Argument, argument) KERNEL(name, threads, Argument, argument)
#define INF_F32 __builtin_inff()

DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float max_f32(float a, float b) { return b > a || a != a ? b : a; }
DEVICE float max_or_nan(float a, float b) { return a != a || b != b ? __builtin_nanf("0x3FFFFF") : b > a ? b : a; }
DEVICE float mul_saturate(float a, float b) { return a * b > 0.0f ? (a * b < 1.0f ? a * b : 1.0f) : 0.0f; }
DEVICE float min_or_nan(float a, float b) { return a != a || b != b ? __builtin_nanf("0x3FFFFF") : b < a ? b : a; }
DEVICE unsigned int float_bits(float x) {
    unsigned int bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
DEVICE float bits_float(unsigned int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
DEVICE void load_streaming(const void* from, unsigned int (&words)[4]) { std::memcpy(words, from, sizeof words); }
DEVICE void store_streaming(void* to, unsigned int word) {
    const unsigned int words[4] = {word, word, word, word};
    std::memcpy(to, words, sizeof words);
}
DEVICE float opaque(float x) { return x; }
DEVICE unsigned int opaque(unsigned int x) { return x; }
DEVICE const float* opaque(const float* x) { return x; }
DEVICE void cp_async(void* to, const void* from) { std::memcpy(to, from, 16); }
DEVICE void cp_async_wait_all() {}
template <class T>
DEVICE T* smem_ptr_in_register(T* pointer) {
    return pointer;
}
DEVICE void prefetch_l2(const void*) {}
template <class Argument>
DEVICE void warm_constant_bank(const Argument&) {}
DEVICE void trigger_dependents() {}
DEVICE void grid_dependency_wait() {}
DEVICE float round_half_even(float x) { return __builtin_rintf(x); }
DEVICE float int_to_float(int i) { return (float)i; }
DEVICE float u32_to_float(unsigned int u) { return (float)u; }
DEVICE float u64_to_float(unsigned long long u) { return (float)u; }
DEVICE unsigned int float_to_u32(float x) { return (unsigned int)__builtin_rintf(x); }
DEVICE double u64_to_double(unsigned long long u) { return (double)u; }
DEVICE double double_sqrt(double x) { return __builtin_sqrt(x); }
DEVICE double float_to_double(float x) { return (double)x; }
DEVICE float double_to_float(double x) { return (float)x; }
DEVICE double bits_double(unsigned long long bits) {
    double x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
DEVICE double double_sum(double a, double b) { return a + b; }
DEVICE double double_difference(double a, double b) { return a - b; }
DEVICE double double_product(double a, double b) { return a * b; }
DEVICE double double_ratio(double a, double b) { return a / b; }
DEVICE int leading_zeros(unsigned long long u) { return u == 0 ? 64 : __builtin_clzll(u); }
DEVICE unsigned long long mul_hi_u64(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

DEVICE void mul_wide_u32(unsigned int a, unsigned int b, unsigned int& high, unsigned int& low) {
    unsigned long long product = (unsigned long long)a * b;
    high = (unsigned int)(product >> 32);
    low = (unsigned int)product;
}

DEVICE float approx_exp2(float x) { return __builtin_exp2f(x); }
DEVICE float approx_reciprocal(float x) { return 1.0f / x; }
DEVICE float approx_log2(float x) { return __builtin_log2f(x); }

// An f16, by its bits, converted exactly: as an f32 of the same fraction, rescaled.
DEVICE float f16_to_float(unsigned short bits) {
    unsigned int sign = (unsigned int)(bits & 0x8000u) << 16, rest = (unsigned int)(bits & 0x7FFFu) << 13;
    if ((bits & 0x7C00u) == 0x7C00u) {
        return bits_float(sign | 0x7F800000u | rest);
    }
    return bits_float(sign | float_bits(bits_float(rest) * 5.192296858534828e+33f));
}

// Of all floats but NaN, which is all they are asked of.
DEVICE unsigned int round_to_bf16(float x) {
    unsigned int bits = float_bits(x);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
DEVICE unsigned int pack_bf16x2(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }

DEVICE unsigned int round_to_f16(float x) {
    unsigned int bits = float_bits(x) & 0x7FFFFFFF, sign = float_bits(x) >> 31 << 15;
    if (bits >= 0x477FF000u) {
        // From the middle between the largest half and the next power of two on.
        return sign | 0x7C00;
    }
    // Below 2^-14 they are whole in units of 2^-24.
    return sign | (bits < 0x38800000u ? (unsigned int)__builtin_rintf(bits_float(bits) * 16777216.0f)
                                      : ((bits + 0xFFF + (bits >> 13 & 1)) >> 13) - (112u << 10));
}
DEVICE unsigned int pack_f16x2(float low, float high) { return round_to_f16(low) | round_to_f16(high) << 16; }

#endif
