// portability.cuh: operations that the host compiler and the device compiler name differently.
//
// Each arithmetic function is one IEEE operation, rounded once; only those named `approx_` differ between devices. A
// host build needs `-ffp-contract=off`.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// The unit of 16-byte loads and stores.
struct alignas(16) U32x4 {
    u32 word[4];
};

// 1 in a program whose rows hold probabilities; the names of its kernels end in `_probs`.
//
// A kernel's name is pasted together, so no file has all of it: the macro of its source file appends the type of the
// rows (`finish_candidates_##type`), and KERNEL_NAME appends `_probs`. The table in src/programs/kernels.rs makes the
// same names for the host.
#ifndef GUMBALL_PROBABILITIES
#define GUMBALL_PROBABILITIES 0
#endif
#if GUMBALL_PROBABILITIES
#define KERNEL_NAME(name) name##_probs
#else
#define KERNEL_NAME(name) name
#endif

#define MAX_F32 3.402823466e+38f

// For lambdas: a call would move the captured variables out of the registers.
#define INLINE __attribute__((always_inline))

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
// A function that is called and not inlined, so that the compiler allocates its registers apart from the caller's.
#define DEVICE_NOINLINE static __device__ __noinline__
// A kernel with one argument.
#define KERNEL(name, threads, Argument, argument) \
    extern "C" __global__ void __launch_bounds__(threads) KERNEL_NAME(name)(const __grid_constant__ Argument argument)
// A kernel with one argument, of which at least `blocks` blocks fit a multiprocessor: the compiler limits the registers
// of a thread accordingly.
#define KERNEL_MIN_BLOCKS(name, threads, blocks, Argument, argument) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) \
        KERNEL_NAME(name)(const __grid_constant__ Argument argument)
#define INF_F32 __int_as_float(0x7F800000)
// The distance of a field from the start of its struct, in bytes.
#define OFFSET_OF(Struct, field) __INTADDR__(&((Struct*)0)->field)

DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The larger of two; if one is NaN, the other.
DEVICE float max_f32(float a, float b) { return fmaxf(a, b); }
// The larger of two; a NaN without a sign if either is NaN.
DEVICE float max_or_nan(float a, float b) {
    float x;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
// The smaller of two; NaN if either is NaN.
DEVICE float min_or_nan(float a, float b) {
    float x;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
// The product, clamped to 0 and 1; 0 if it is NaN.
DEVICE float mul_saturate(float a, float b) {
    float x;
    asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}
DEVICE unsigned int float_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_float(unsigned int bits) { return __uint_as_float(bits); }
DEVICE float round_half_even(float x) { return rintf(x); }
DEVICE unsigned int float_to_u32(float x) { return __float2uint_rn(x); }
// f64 operations, for the rules that use them (F5, L3, P3).
DEVICE double double_sqrt(double x) { return __dsqrt_rn(x); }
DEVICE double bits_double(unsigned long long bits) { return __longlong_as_double((long long)bits); }
DEVICE unsigned long long double_bits(double x) { return (unsigned long long)__double_as_longlong(x); }
DEVICE double double_sum(double a, double b) { return __dadd_rn(a, b); }
DEVICE double double_difference(double a, double b) { return __dsub_rn(a, b); }
DEVICE double double_product(double a, double b) { return __dmul_rn(a, b); }
DEVICE double double_ratio(double a, double b) { return __ddiv_rn(a, b); }
DEVICE int leading_zeros(unsigned long long u) { return __clzll((long long)u); }
// The high 64 bits of the product.
DEVICE unsigned long long mul_hi_u64(unsigned long long a, unsigned long long b) { return __umul64hi(a, b); }

// The product of two words, by one instruction. From shifts and casts the compiler makes two.
DEVICE void mul_wide_u32(unsigned int a, unsigned int b, unsigned int& high, unsigned int& low) {
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(product));
}

// Loads 16 bytes that no thread writes while the kernel runs. The load allocates nothing in L1, because no thread reads
// the bytes again soon.
DEVICE void load_streaming(const void* from, unsigned int (&words)[4]) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
}

// Stores 16 bytes, `word` four times, by a streaming store: no thread reads them soon.
DEVICE void store_streaming(void* to, unsigned int word) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%1,%1,%1};" ::"l"(to), "r"(word) : "memory");
}

// Returns x. The compiler computes x at this point, and nothing that depends on the result before it.
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

// Starts to copy 16 bytes to shared memory. The calling thread sees them after `cp_async_wait_all`, other threads after
// a barrier that follows it.
DEVICE void cp_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned int)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

// Starts the same copy if `are_there`. Otherwise 16 zeros are stored, and nothing is read.
DEVICE void cp_async(void* to, const void* from, bool are_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned int)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(are_there ? 16 : 0)
                 : "memory");
}

DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Makes a group of the copies that the calling thread has started since its last group.
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the last N groups of the calling thread are still being copied.
template <int N>
DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Returns `pointer`, an address in shared memory, held in a register. Otherwise the compiler computes the address from
// its parts at each use.
template <class T>
DEVICE T* smem_ptr_in_register(T* pointer) {
    unsigned int address;
    asm volatile("mov.u32 %0, %1;" : "=r"(address) : "r"((unsigned int)__cvta_generic_to_shared(pointer)));
    return (T*)__cvta_shared_to_generic(address);
}

// Prefetches some 32 bytes into L2, for a load that follows soon.
DEVICE void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

// Loads one word of every 64 bytes of a kernel's argument into the constant cache. Each launch has a new argument.
// Otherwise the first read of each 64 bytes would stall the code that needs them.
template <class Argument>
DEVICE void warm_constant_bank(const Argument& argument) {
    const unsigned int* words = (const unsigned int*)&argument;
    unsigned int any = 0;
#pragma unroll
    for (unsigned int i = 0; i < sizeof(Argument) / 4; i += 16) {
        any |= words[i];
    }
    // Uses the loaded words without effect, so that the compiler keeps the loads.
    asm volatile("{.reg .pred none; setp.eq.u32 none, %0, 0; @none nanosleep.u32 0;}" ::"r"(any) : "memory");
}

// Lets the next kernel on the stream start, if the host launched it as a dependent launch. That kernel calls
// `grid_dependency_wait` before it reads what this one writes.
DEVICE void trigger_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Counts a tile that a warp reads after the row's survey, and refuses one beyond the vocabulary; on the emulator only.
DEVICE void note_tile_read(unsigned int, unsigned int, unsigned int) {}

// Waits until the preceding kernels are complete and their writes are visible. Every block must call it.
DEVICE void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 2^x, with a relative error of at most 2^-21; a subnormal result may be 0. Results differ between devices: for bounds
// only.
DEVICE float approx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x of a normal x, with a relative error of at most 2^-23. Results differ between devices: for bounds only.
DEVICE float approx_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2 of a positive normal x, with an error of at most 2^-22, or 2^-22 of a result larger than 1. Results differ
// between devices: for bounds only.
DEVICE float approx_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The float of an f16's bits, exact.
DEVICE float f16_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Rounds two floats once each to bf16; the first takes the low bits.
DEVICE unsigned int pack_bf16x2(float low, float high) {
    unsigned int x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Rounds two floats once each to f16; the first takes the low bits.
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
#define OFFSET_OF(Struct, field) __builtin_offsetof(Struct, field)

DEVICE float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float max_f32(float a, float b) { return b > a || a != a ? b : a; }
DEVICE float max_or_nan(float a, float b) { return a != a || b != b ? __builtin_nanf("0x3FFFFF") : b > a ? b : a; }
DEVICE float mul_saturate(float a, float b) { return a * b > 0.0f ? (a * b < 1.0f ? a * b : 1.0f) : 0.0f; }
DEVICE float min_or_nan(float a, float b) { return a != a || b != b ? __builtin_nanf("0x3FFFFF") : b < a ? b : a; }
template <class To, class From>
DEVICE To same_bits(From x) {
    To to;
    std::memcpy(&to, &x, sizeof to);
    return to;
}
DEVICE unsigned int float_bits(float x) { return same_bits<unsigned int>(x); }
DEVICE float bits_float(unsigned int bits) { return same_bits<float>(bits); }
DEVICE void load_streaming(const void* from, unsigned int (&words)[4]) { std::memcpy(words, from, sizeof words); }
DEVICE void store_streaming(void* to, unsigned int word) {
    const unsigned int words[4] = {word, word, word, word};
    std::memcpy(to, words, sizeof words);
}
DEVICE float opaque(float x) { return x; }
DEVICE unsigned int opaque(unsigned int x) { return x; }
DEVICE const float* opaque(const float* x) { return x; }
DEVICE void cp_async(void* to, const void* from) { std::memcpy(to, from, 16); }
DEVICE void cp_async(void* to, const void* from, bool are_there) {
    are_there ? std::memcpy(to, from, 16) : std::memset(to, 0, 16);
}
DEVICE void cp_async_wait_all() {}
DEVICE void cp_async_commit_group() {}
template <int N>
DEVICE void cp_async_wait_group() {}
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
DEVICE unsigned int float_to_u32(float x) {
    return x >= 4294967296.0f ? ~0u : x > 0.0f ? (unsigned int)__builtin_rintf(x) : 0;
}
DEVICE double double_sqrt(double x) { return __builtin_sqrt(x); }
DEVICE double bits_double(unsigned long long bits) { return same_bits<double>(bits); }
DEVICE unsigned long long double_bits(double x) { return same_bits<unsigned long long>(x); }
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

// The float of an f16's bits, exact: an f32 with the same fraction, multiplied by 2^112.
DEVICE float f16_to_float(unsigned short bits) {
    unsigned int sign = (unsigned int)(bits & 0x8000u) << 16, rest = (unsigned int)(bits & 0x7FFFu) << 13;
    if ((bits & 0x7C00u) == 0x7C00u) {
        return bits_float(sign | 0x7F800000u | rest);
    }
    return bits_float(sign | float_bits(bits_float(rest) * 5.192296858534828e+33f));
}

// Rounds to bf16, ties to even. Callers never pass NaN.
DEVICE unsigned int round_to_bf16(float x) {
    unsigned int bits = float_bits(x);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
DEVICE unsigned int pack_bf16x2(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }

DEVICE unsigned int round_to_f16(float x) {
    unsigned int bits = float_bits(x) & 0x7FFFFFFF, sign = float_bits(x) >> 31 << 15;
    if (bits >= 0x477FF000u) {
        // From 65520 on, halfway between the largest f16 and 2^16, values round to infinity.
        return sign | 0x7C00;
    }
    // Below 2^-14, f16s are multiples of 2^-24.
    return sign | (bits < 0x38800000u ? (unsigned int)__builtin_rintf(bits_float(bits) * 16777216.0f)
                                      : ((bits + 0xFFF + (bits >> 13 & 1)) >> 13) - (112u << 10));
}
DEVICE unsigned int pack_f16x2(float low, float high) { return round_to_f16(low) | round_to_f16(high) << 16; }

#endif

// Conversions, which round to the nearest number on both.
DEVICE float int_to_float(int i) { return (float)i; }
DEVICE float u32_to_float(unsigned int u) { return (float)u; }
DEVICE float u64_to_float(unsigned long long u) { return (float)u; }
DEVICE double u64_to_double(unsigned long long u) { return (double)u; }
DEVICE double float_to_double(float x) { return (double)x; }
DEVICE float double_to_float(double x) { return (float)x; }
