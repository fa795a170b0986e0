// system_scope.cuh: memory operations that other devices and processes see, and a clock that bounds waiting.
//
// Requires   on the host, the emulator's cuda.hpp
#pragma once

#include "platform/portability.cuh"

#ifdef __CUDACC__

// Stores a flag after all earlier writes, as every device sees them.
DEVICE void store_release_system(u64* to, u64 x) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// Stores a word for another device, in no order with other stores.
DEVICE void store_relaxed_system(u64* to, u64 x) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(x) : "memory");
}

// Loads a flag before all later reads. What its writer wrote before it is visible then.
DEVICE u64 load_acquire_system(const u64* from) {
    u64 x;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

// Loads a word that another device may have written.
DEVICE u32 load_relaxed_system(const u32* from) {
    u32 x;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

DEVICE u64 load_relaxed_system(const u64* from) {
    u64 x;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from) : "memory");
    return x;
}

// Nanoseconds since some moment. The clock ticks once a microsecond or more often.
DEVICE u64 global_time_ns() {
    u64 x;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(x));
    return x;
}

// Called between two looks at a flag.
DEVICE void spin_pause() {}

#else

DEVICE void store_release_system(u64* to, u64 x) { __atomic_store_n(to, x, __ATOMIC_RELEASE); }
DEVICE void store_relaxed_system(u64* to, u64 x) { __atomic_store_n(to, x, __ATOMIC_RELAXED); }
DEVICE u64 load_acquire_system(const u64* from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
DEVICE u32 load_relaxed_system(const u32* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
DEVICE u64 load_relaxed_system(const u64* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
DEVICE u64 global_time_ns() { return emulator_time_ns(); }
// Lets other host threads run: the rank that is waited for may share the core.
DEVICE void spin_pause() { __nanosleep(0); }

#endif
