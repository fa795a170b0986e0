// chip.cuh: copies that fly into shared memory while threads work, what warps wait for, and what blocks tell each other.
//
// Requires   sm_90, or a host that runs the blocks of a cluster side by side
#pragma once

#include "step.cuh"

// What warps wait for: that so many of them have come, and that all bytes of the copies they began are there. Goes through phases,
// and who waits says whether for the first, the third and so on, or for one between.
typedef u64 Flight;

#ifdef __CUDACC__

#define ON_CHIP(name) extern __shared__ Quad name[]

DEVICE u32 address_on_chip(const void* place) { return (u32)__cvta_generic_to_shared(place); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Makes a flight for which so many threads answer in each phase.
DEVICE void flight_begins(Flight* flight, u32 threads) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_on_chip(flight)), "r"(threads) : "memory");
}

// Shows flights that were made to the copies.
DEVICE void flights_made() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A thread has come, and what it wrote is seen by who waited. The copies it began since bring so many bytes more.
DEVICE void arrive(Flight* flight, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_on_chip(flight)), "r"(bytes) : "memory");
}

DEVICE void arrive(Flight* flight) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_on_chip(flight)) : "memory");
}

// Begins a copy of a flight: 16 bytes, or several times as many, from and to multiples of 16 bytes.
DEVICE void copy_flies(Flight* flight, void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_on_chip(to)),
                 "l"(from), "r"(bytes), "r"(address_on_chip(flight))
                 : "memory");
}

// Waits until a phase is over: the first, third and so on if `odd` is 0, else one between.
DEVICE void wait_for(Flight* flight, u32 odd) {
    u32 done = 0;
    while (done == 0) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(address_on_chip(flight)), "r"(odd)
                     : "memory");
    }
}

// True in one lane of the warp, all of which are here.
DEVICE bool chosen_lane() {
    u32 chosen;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen));
    return chosen != 0;
}

DEVICE u32 rank_in_cluster() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Waits until all blocks of the cluster have come here, and made what others write to; all threads.
DEVICE void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Writes a word to where another block of the cluster has `place`, as a copy of the flight that it has there.
DEVICE void tell_block(u32 rank, u64* place, u64 word, Flight* flight) {
    u32 there, flight_there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address_on_chip(place)), "r"(rank));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(flight_there) : "r"(address_on_chip(flight)), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(there), "l"(word),
                 "r"(flight_there)
                 : "memory");
}

#else

// Never launched there.
DEVICE void flight_begins(Flight*, u32) {}
DEVICE void flights_made() {}
DEVICE void arrive(Flight*, u32) {}
DEVICE void arrive(Flight*) {}
DEVICE void copy_flies(Flight*, void*, const void*, u32) {}
DEVICE void wait_for(Flight*, u32) {}
DEVICE bool chosen_lane() { return true; }
DEVICE u32 rank_in_cluster() { return 0; }
DEVICE void meet_cluster() {}
DEVICE void tell_block(u32, u64*, u64, Flight*) {}

#endif

#else

#define ON_CHIP(name) Quad* name = (Quad*)emulator::room.data()

// A flight: how many phases are over, how many threads are awaited in each and now, and how many bytes.
struct FlightNow {
    unsigned char phase, threads, awaited, reserved;
    int bytes;

    // Some threads came, and some bytes are to come.
    void change(int threads_came, int more_bytes) {
        std::lock_guard<std::mutex> lock(emulator::flights);
        awaited -= (unsigned char)threads_came;
        bytes += more_bytes;
        if (awaited == 0 && bytes == 0) {
            phase++;
            awaited = threads;
        }
    }
    bool over(u32 odd) {
        std::lock_guard<std::mutex> lock(emulator::flights);
        return phase % 2 != odd;
    }
};

DEVICE void flight_begins(Flight* flight, u32 threads) {
    *(FlightNow*)flight = FlightNow{0, (unsigned char)threads, (unsigned char)threads, 0, 0};
}
DEVICE void flights_made() {}
DEVICE void arrive(Flight* flight, u32 bytes) { ((FlightNow*)flight)->change(1, (int)bytes); }
DEVICE void arrive(Flight* flight) { arrive(flight, 0); }
DEVICE void copy_flies(Flight* flight, void* to, const void* from, u32 bytes) {
    // What the device asks for.
    if (((u64)to | (u64)from | bytes) % 16 != 0 || bytes == 0) {
        std::fprintf(stderr, "a copy of %u bytes from %p to %p is not aligned\n", bytes, from, to);
        std::abort();
    }
    std::memcpy(to, from, bytes);
    ((FlightNow*)flight)->change(0, -(int)bytes);
}
DEVICE void wait_for(Flight* flight, u32 odd) {
    while (!((FlightNow*)flight)->over(odd)) {
        // It may be another block that it takes.
        emulator::waiting_rounds = 0;
        std::this_thread::yield();
        emulator::yield();
    }
}
DEVICE bool chosen_lane() { return threadIdx.x % 32 == 0; }
DEVICE u32 rank_in_cluster() { return emulator::rank; }
DEVICE void meet_cluster() {
    emulator::meet(emulator::everyone, emulator::living);
    if (threadIdx.x == 0) {
        emulator::cluster->meet();
    }
    emulator::meet(emulator::everyone, emulator::living);
}
DEVICE void tell_block(u32 rank, u64* place, u64 word, Flight* flight) {
    int64_t apart = emulator::cluster->anchors[rank] - &emulator::anchor;
    *(u64*)((char*)place + apart) = word;
    ((FlightNow*)((char*)flight + apart))->change(0, -(int)sizeof word);
}

#endif
