// sm90.cuh: bulk copies to shared memory, the mbarriers that warps wait for, and exchange between blocks of a cluster.
//
// Requires   sm_90, or a host that runs the blocks of a cluster concurrently; mbarriers that count threads alone: sm_80
#pragma once

#include "platform/portability.cuh"

// An mbarrier in shared memory. A phase completes when all expected threads have arrived and all expected bytes have
// been copied. A waiting thread names the phase by its parity: 0 for the first, third and so on, 1 for those between.
typedef u64 Mbarrier;

#ifdef __CUDACC__

#define DYNAMIC_SMEM(name) extern __shared__ U32x4 name[]

DEVICE u32 smem_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Initialises an mbarrier that expects `threads` arrivals in each phase.
DEVICE void mbarrier_init(Mbarrier* barrier, u32 threads) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(threads) : "memory");
}

// Arrives at the mbarrier once all copies that this thread has started by `cp_async` are complete. Threads that wait
// for the phase see what was copied.
DEVICE void cp_async_mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_address(barrier)) : "memory");
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Makes initialised mbarriers visible to bulk copies (the async proxy).
DEVICE void fence_mbarrier_init() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives at the mbarrier; threads that wait for the phase see what this thread wrote before. The phase expects `bytes`
// more, those of the copies that this thread starts.
DEVICE void mbarrier_arrive(Mbarrier* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes)
                 : "memory");
}

DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// Starts a bulk copy to shared memory that completes on `barrier`. Both addresses and `bytes` are multiples of 16, and
// `bytes` is not 0.
DEVICE void bulk_copy_async(Mbarrier* barrier, void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     smem_address(to)),
                 "l"(from), "r"(bytes), "r"(smem_address(barrier))
                 : "memory");
}

// Waits until a phase completes: the first, third and so on if `parity` is 0, otherwise one between.
DEVICE void mbarrier_wait_parity(Mbarrier* barrier, u32 parity) {
    u32 done = 0;
    while (done == 0) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem_address(barrier)), "r"(parity)
                     : "memory");
    }
}

// True in one lane of the warp. All 32 lanes call it.
DEVICE bool elect_one() {
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected != 0;
}

DEVICE u32 cluster_ctarank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The number of blocks of the cluster; 1 in a launch without clusters.
DEVICE u32 cluster_nctarank() {
    u32 blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// Returns where an address in the block's own shared memory lies in the shared memory of the cluster's block `rank`.
template <class T>
DEVICE T* map_shared_rank(T* pointer, u32 rank) {
    u64 mapped;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(pointer), "r"(rank));
    return (T*)mapped;
}

// Waits until all threads of the cluster that have not ended have called it. Each block then sees what the others wrote
// before, and may write to the memory that they initialised.
DEVICE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The two halves of a `cluster_sync` that orders no memory accesses before it: all threads of a block call the first
// one, and later the second one.
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Writes a word to the address that `pointer` has in the shared memory of the cluster's block `rank`. The write
// completes 8 bytes on the mbarrier that this block has at the address `barrier`.
DEVICE void st_async_remote(u32 rank, u64* pointer, u64 word, Mbarrier* barrier) {
    u32 remote, remote_barrier;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem_address(pointer)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote_barrier) : "r"(smem_address(barrier)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(remote), "l"(word),
                 "r"(remote_barrier)
                 : "memory");
}

#else

// From sm_80 on there are mbarriers that count threads.
DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(smem_address(barrier))
                 : "memory");
}
DEVICE void mbarrier_wait_parity(Mbarrier* barrier, u32 parity) {
    u32 done = 0;
    while (done == 0) {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem_address(barrier)), "r"(parity)
                     : "memory");
    }
}

// The host never launches kernels that call these below sm_90.
DEVICE void fence_mbarrier_init() {}
DEVICE void mbarrier_arrive(Mbarrier*, u32) {}
DEVICE void bulk_copy_async(Mbarrier*, void*, const void*, u32) {}
DEVICE bool elect_one() { return true; }
DEVICE u32 cluster_ctarank() { return 0; }
DEVICE u32 cluster_nctarank() { return 1; }
template <class T>
DEVICE T* map_shared_rank(T* pointer, u32) {
    return pointer;
}
DEVICE void cluster_sync() {}
DEVICE void cluster_arrive_relaxed() {}
DEVICE void cluster_wait() {}
DEVICE void st_async_remote(u32, u64*, u64, Mbarrier*) {}

#endif

#else

#define DYNAMIC_SMEM(name) U32x4* name = (U32x4*)emulator::dynamic_smem.data()

// The emulator's mbarrier: completed phases modulo 256, arrivals expected in each phase, arrivals and bytes pending in
// this one.
struct EmulatedMbarrier {
    unsigned char phase, threads, pending, reserved;
    int bytes;

    // Counts arrivals, and expects `more_bytes` more bytes; a negative number counts bytes that have been copied.
    // Completes the phase if neither is pending.
    void update(int arrivals, int more_bytes) {
        std::lock_guard<std::mutex> lock(emulator::mbarrier_mutex);
        pending -= (unsigned char)arrivals;
        bytes += more_bytes;
        if (pending == 0 && bytes == 0) {
            phase++;
            pending = threads;
        }
    }
    bool has_passed(u32 parity) {
        std::lock_guard<std::mutex> lock(emulator::mbarrier_mutex);
        return phase % 2 != parity;
    }
};

DEVICE void mbarrier_init(Mbarrier* barrier, u32 threads) {
    *(EmulatedMbarrier*)barrier = EmulatedMbarrier{0, (unsigned char)threads, (unsigned char)threads, 0, 0};
}
DEVICE void fence_mbarrier_init() {}
DEVICE void mbarrier_arrive(Mbarrier* barrier, u32 bytes) { ((EmulatedMbarrier*)barrier)->update(1, (int)bytes); }
DEVICE void mbarrier_arrive(Mbarrier* barrier) { mbarrier_arrive(barrier, 0); }
DEVICE void bulk_copy_async(Mbarrier* barrier, void* to, const void* from, u32 bytes) {
    // The conditions of the hardware.
    if (((u64)to | (u64)from | bytes) % 16 != 0 || bytes == 0) {
        std::fprintf(stderr, "a copy of %u bytes from %p to %p is not aligned\n", bytes, from, to);
        std::abort();
    }
    std::memcpy(to, from, bytes);
    ((EmulatedMbarrier*)barrier)->update(0, -(int)bytes);
}
DEVICE void mbarrier_wait_parity(Mbarrier* barrier, u32 parity) {
    // A thread of another block may have to arrive first, so this is no deadlock of the block.
    while (!((EmulatedMbarrier*)barrier)->has_passed(parity)) {
        emulator::yield();
    }
}
DEVICE void cp_async_mbarrier_arrive(Mbarrier* barrier) { mbarrier_arrive(barrier); }
DEVICE bool elect_one() { return threadIdx.x % 32 == 0; }
DEVICE u32 cluster_ctarank() { return emulator::rank; }
DEVICE u32 cluster_nctarank() { return emulator::cluster->size; }
template <class T>
DEVICE T* map_shared_rank(T* pointer, u32 rank) {
    return (T*)((char*)pointer + (emulator::cluster->anchors[rank] - &emulator::anchor));
}
DEVICE void cluster_arrive_relaxed() {
    emulator::meet(emulator::everyone, emulator::living);
    if (threadIdx.x == 0) {
        emulator::phase = emulator::cluster->arrive();
    }
}
DEVICE void cluster_wait() {
    emulator::meet(emulator::everyone, emulator::living);
    if (threadIdx.x == 0) {
        emulator::cluster->wait(emulator::phase);
    }
    emulator::meet(emulator::everyone, emulator::living);
}
DEVICE void cluster_sync() {
    cluster_arrive_relaxed();
    cluster_wait();
}
DEVICE void st_async_remote(u32 rank, u64* pointer, u64 word, Mbarrier* barrier) {
    *map_shared_rank(pointer, rank) = word;
    ((EmulatedMbarrier*)map_shared_rank(barrier, rank))->update(0, -(int)sizeof word);
}

#endif
