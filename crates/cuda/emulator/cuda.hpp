// cuda.hpp: CUDA's keywords and built-in functions that the kernels use, for a host compiler.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "block.hpp"

#define __shared__ static thread_local

inline void __syncthreads() { emulator::meet(emulator::everyone, emulator::living); }
// How many threads have a true predicate.
inline int __syncthreads_count(int predicate) {
    static thread_local int count;
    __syncthreads();
    count = 0;
    __syncthreads();
    count += predicate != 0;
    __syncthreads();
    return count;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
inline void __syncwarp() { emulator::exchange_with_warp(0); }
inline void __threadfence_block() {}

namespace emulator {
// How many tiles kernels have read after a row's survey.
inline std::atomic<uint64_t> tile_reads{0};
} // namespace emulator

inline void note_tile_read(unsigned int start, unsigned int vocab, unsigned int lane) {
    if (start >= vocab) {
        std::fprintf(stderr, "a tile at %u was read of a row of %u\n", start, vocab);
        std::abort();
    }
    emulator::tile_reads += lane == 0;
}

template <class F>
inline unsigned int fold_lanes(unsigned int x, F f) {
    return emulator::make_with_warp(x, [f](const uint64_t* values) {
        unsigned int result = (unsigned int)values[0];
        for (int i = 1; i < 32; i++) {
            result = f(result, (unsigned int)values[i]);
        }
        return result;
    });
}

inline unsigned int __reduce_max_sync(unsigned int, unsigned int x) {
    return fold_lanes(x, [](unsigned int a, unsigned int b) { return std::max(a, b); });
}
inline int __reduce_max_sync(unsigned int, int x) {
    return (int)fold_lanes((unsigned int)x,
                           [](unsigned int a, unsigned int b) { return (unsigned int)std::max((int)a, (int)b); });
}
inline unsigned int __reduce_min_sync(unsigned int, unsigned int x) {
    return fold_lanes(x, [](unsigned int a, unsigned int b) { return std::min(a, b); });
}
inline unsigned int __reduce_add_sync(unsigned int, unsigned int x) {
    return fold_lanes(x, [](unsigned int a, unsigned int b) { return a + b; });
}
inline unsigned int __reduce_or_sync(unsigned int, unsigned int x) {
    return fold_lanes(x, [](unsigned int a, unsigned int b) { return a | b; });
}
inline unsigned int __ballot_sync(unsigned int, bool predicate) {
    return emulator::make_with_warp(predicate, [](const uint64_t* values) {
        unsigned int bits = 0;
        for (int i = 0; i < 32; i++) {
            bits |= (unsigned int)values[i] << i;
        }
        return bits;
    });
}
inline bool __any_sync(unsigned int mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline bool __all_sync(unsigned int mask, bool predicate) { return __ballot_sync(mask, predicate) == ~0u; }

// Exchanges `x` among the lanes of the warp. Returns the value of one lane.
template <class T>
inline T take_from(T x, unsigned int lane) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, sizeof x);
    bits = emulator::exchange_with_warp(bits)[lane % 32];
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
template <class T>
inline T __shfl_sync(unsigned int, T x, int lane) {
    return take_from(x, (unsigned int)lane);
}
template <class T>
inline T __shfl_xor_sync(unsigned int, T x, int mask) {
    return take_from(x, (threadIdx.x % 32) ^ (unsigned int)mask);
}
template <class T>
inline T __shfl_up_sync(unsigned int, T x, unsigned int delta) {
    unsigned int lane = threadIdx.x % 32;
    return take_from(x, lane >= delta ? lane - delta : lane);
}
template <class T>
inline T __shfl_down_sync(unsigned int, T x, unsigned int delta) {
    unsigned int lane = threadIdx.x % 32;
    return take_from(x, lane + delta < 32 ? lane + delta : lane);
}
template <class T>
inline unsigned int __match_any_sync(unsigned int, T x) {
    const uint64_t* values = emulator::exchange_with_warp((uint64_t)x);
    unsigned int bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= (unsigned int)(values[i] == values[threadIdx.x % 32]) << i;
    }
    return bits;
}

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned int x) { return __builtin_popcount(x); }

template <class T>
inline T atomicAdd(T* address, T x) {
    return __atomic_fetch_add(address, x, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicOr(T* address, T x) {
    return __atomic_fetch_or(address, x, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicExch(T* address, T x) {
    return __atomic_exchange_n(address, x, __ATOMIC_RELAXED);
}
template <class T>
inline T atomicCAS(T* address, T expected, T x) {
    __atomic_compare_exchange_n(address, &expected, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
// Atomically replaces the value by `choose(value, x)`. Returns the old value.
template <class T, class F>
inline T atomic_fold(T* address, T x, F choose) {
    T old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(address, &old, choose(old, x), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
template <class T>
inline T atomicMax(T* address, T x) {
    return atomic_fold(address, x, [](T a, T b) { return std::max(a, b); });
}
template <class T>
inline T atomicMin(T* address, T x) {
    return atomic_fold(address, x, [](T a, T b) { return std::min(a, b); });
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
// Lets other host threads run, because blocks and ranks that wait for each other may share a core: now and then by a
// sleep, since those that only yield to each other keep the core from the one they wait for.
inline void __nanosleep(unsigned int) {
    static thread_local unsigned int calls;
    if (++calls % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    } else {
        std::this_thread::yield();
    }
}
inline uint64_t emulator_time_ns() {
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    return (uint64_t)std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}
