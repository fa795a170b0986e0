// block.hpp: runs a thread block on one host thread, so that tests can compare kernels with the oracle without a GPU.
//
// Computes   what the kernel computes: each CUDA thread is a fiber that runs until it waits for other threads
// Never      runs two fibers of a block at once: it misses races inside a block, but finds barriers that threads miss
// Requires   x86-64; warp collectives of all 32 lanes; kernels of one argument, taken by reference
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "launch.hpp"

struct Dim3 {
    unsigned int x = 1, y = 1, z = 1;
};

// Defines a variable or function that all sources of this library share and other libraries do not see.
#define OF_LIBRARY inline __attribute__((visibility("hidden")))

OF_LIBRARY thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// Saves the callee-saved registers on this stack, stores its pointer in `from`, and continues on the stack `to`.
extern "C" void gumball_switch(void** from, void* to);
asm(R"(
.text
.hidden gumball_switch
.weak gumball_switch
gumball_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

constexpr size_t STACK_BYTES = 64 << 10;

// A barrier of a group of threads, and the values they exchange there. The two buffers alternate, because a thread may
// be one exchange ahead of the slowest one.
struct Meeting {
    unsigned int arrived = 0, generation = 0;
    // What the last to arrive made of the values.
    unsigned int made[2];
    uint64_t values[2][32];
};

struct Fiber {
    void* stack_pointer = nullptr;
    // The meeting whose end it waits for, in this generation; null if it waits for none.
    const Meeting* waits_for = nullptr;
    unsigned int generation = 0;
    bool done = false;

    bool can_go_on() const { return !done && (waits_for == nullptr || waits_for->generation != generation); }
};

// Stacks that no host thread uses: new ones would cost page faults at each launch. They outlive every thread.
OF_LIBRARY std::mutex spare_mutex;
OF_LIBRARY std::vector<std::unique_ptr<char[]>>& spare_stacks = *new std::vector<std::unique_ptr<char[]>>;

// The fibers of a host thread, with their stacks.
struct Fibers {
    std::vector<Fiber> fibers;
    std::vector<std::unique_ptr<char[]>> stacks;
    std::vector<Meeting> warps;

    void grow(size_t threads) {
        std::lock_guard<std::mutex> lock(spare_mutex);
        while (stacks.size() < threads) {
            if (spare_stacks.empty()) {
                stacks.emplace_back(new char[STACK_BYTES]);
            } else {
                stacks.push_back(std::move(spare_stacks.back()));
                spare_stacks.pop_back();
            }
        }
    }
    ~Fibers() {
        std::lock_guard<std::mutex> lock(spare_mutex);
        for (auto& stack : stacks) {
            spare_stacks.push_back(std::move(stack));
        }
    }
};

// Thread-local, as shared memory is: each host thread runs one block at a time. What switches read is plain data, which
// needs no check whether it was initialised.
OF_LIBRARY thread_local Fibers storage;
OF_LIBRARY thread_local Fiber* fibers;
OF_LIBRARY thread_local Meeting* warp_meetings;
OF_LIBRARY thread_local Meeting everyone;
OF_LIBRARY thread_local unsigned int current, block_threads, living;
OF_LIBRARY thread_local void* scheduler;
OF_LIBRARY thread_local void (*entry)(const void*);
OF_LIBRARY thread_local const void* argument;

inline void switch_to(unsigned int next) {
    void** from = &fibers[current].stack_pointer;
    current = next;
    threadIdx.x = next;
    gumball_switch(from, fibers[next].stack_pointer);
}

// Returns the first of `count` fibers from `first` on, after the current one and around, that can go on; the current
// one if no other can.
inline unsigned int next_of(unsigned int first, unsigned int count) {
    unsigned int next = current;
    do {
        next = next + 1 == first + count ? first : next + 1;
    } while (next != current && !fibers[next].can_go_on());
    return next;
}

// Lets another thread go on that the current one waits for. Those of its warp come first, so that the warp goes on as
// long as its own threads are all that it waits for.
inline void pass_on() {
    unsigned int next = next_of(current / 32 * 32, 32);
    if (next == current) {
        next = next_of(0, block_threads);
    }
    if (next == current) {
        std::fprintf(stderr, "a barrier or a collective was missed by some threads of block %u\n", blockIdx.x);
        std::abort();
    }
    switch_to(next);
}

// Lets all other threads that can go on do so before the current one looks again for what another block does.
inline void yield() {
    unsigned int next = next_of(0, block_threads);
    if (next <= current) {
        std::this_thread::yield();
    }
    if (next != current) {
        switch_to(next);
    }
}

// Waits until `size` threads have arrived; the last of them calls `make` before the others go on. Returns the index of
// the exchange's buffer.
template <class F>
inline unsigned int meet(Meeting& meeting, unsigned int size, F make) {
    unsigned int generation = meeting.generation;
    if (++meeting.arrived == size) {
        make(generation % 2);
        meeting.arrived = 0;
        meeting.generation++;
    } else {
        Fiber& fiber = fibers[current];
        fiber.waits_for = &meeting;
        fiber.generation = generation;
        pass_on();
        fiber.waits_for = nullptr;
    }
    return generation % 2;
}
inline void meet(Meeting& meeting, unsigned int size) {
    meet(meeting, size, [](unsigned int) {});
}

// Exchanges a value among the lanes of the warp. Returns the values of all 32 lanes.
inline const uint64_t* exchange_with_warp(uint64_t value) {
    Meeting& warp = warp_meetings[current / 32];
    warp.values[warp.generation % 2][current % 32] = value;
    return warp.values[meet(warp, 32, [](unsigned int) {})];
}

// Returns what `make` makes of the values of all 32 lanes of the warp.
template <class F>
inline unsigned int make_with_warp(uint64_t value, F make) {
    Meeting& warp = warp_meetings[current / 32];
    warp.values[warp.generation % 2][current % 32] = value;
    return warp.made[meet(warp, 32, [&](unsigned int buffer) { warp.made[buffer] = make(warp.values[buffer]); })];
}

inline void run_fiber() {
    entry(argument);
    fibers[current].done = true;
    if (--living == 0) {
        gumball_switch(&fibers[current].stack_pointer, scheduler);
    }
    pass_on();
}

// The stacks are used from different places on: at one place of all, their lines would displace each other in the
// processor's caches.
inline void start(unsigned int i) {
    uintptr_t top = ((uintptr_t)storage.stacks[i].get() + STACK_BYTES - i % 32 * 192) & ~(uintptr_t)15;
    void** place = (void**)top - 2;
    *place = (void*)run_fiber;
    fibers[i] = Fiber();
    fibers[i].stack_pointer = place - 6;
}

inline void run_block(unsigned int threads) {
    storage.grow(threads);
    storage.fibers.resize(threads);
    storage.warps.assign(threads / 32, Meeting());
    fibers = storage.fibers.data();
    warp_meetings = storage.warps.data();
    everyone = Meeting();
    block_threads = living = threads;
    for (unsigned int i = 0; i < threads; i++) {
        start(i);
    }
    current = 0;
    threadIdx.x = 0;
    gumball_switch(&scheduler, fibers[0].stack_pointer);
}

// By this seed, unless it is 0, blocks pause after barriers of their cluster, so that they drift apart as on a busy
// machine; and how often one has done so.
OF_LIBRARY std::atomic<uint64_t> drift{0}, pauses{0};

// Pauses for some microseconds, or now and then for milliseconds, at half of the calls.
inline void pause_by_drift() {
    const uint64_t seed = drift.load(std::memory_order_relaxed);
    if (seed == 0) {
        return;
    }
    uint64_t x = (seed << 32 ^ pauses++) * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x ^= x >> 31;
    if (x % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(x / 2 % 64 == 0 ? 3000 : 10 + x / 128 % 191));
    }
}

// The block's place in its cluster.
OF_LIBRARY thread_local unsigned int rank;

// A barrier of the blocks of a cluster, which run concurrently, each on its own host thread.
struct Cluster {
    explicit Cluster(unsigned int size) : anchors(size), size(size), arrivals(size) {}

    // Arrives at the barrier, by one thread of a block. Returns the phase, for `wait`.
    unsigned int arrive() {
        std::unique_lock<std::mutex> lock(mutex);
        unsigned int phase = generation;
        arrived++;
        arrivals[rank]++;
        release_if_complete();
        return phase;
    }

    // Waits until each block that has not ended has arrived in a phase.
    void wait(unsigned int phase) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&]() { return generation != phase; });
        lock.unlock();
        pause_by_drift();
    }

    // Ends a block: the barrier waits for it no longer. Returns once all blocks of the cluster have ended, because a
    // block's shared memory must live until no other block can use it.
    void end() {
        std::unique_lock<std::mutex> lock(mutex);
        unsigned int now = clusters;
        ended++;
        if (ended == size) {
            // The first block may end while the others wait for its call.
            const unsigned int most = arrivals.back();
            for (unsigned int other = 1; other < size; other++) {
                if (arrivals[other] != most || most - arrivals[0] > 1) {
                    std::fprintf(stderr, "blocks of a cluster took different branches: one came to more barriers\n");
                    std::abort();
                }
            }
            arrivals.assign(size, 0);
            ended = 0;
            clusters++;
            changed.notify_all();
        } else {
            release_if_complete();
            changed.wait(lock, [&]() { return clusters != now; });
        }
    }

    // The address of `anchor` in each block's host thread. A thread-local variable lies at the same distance from
    // `anchor` in all of them, so a block can address another block's shared memory.
    std::vector<char*> anchors;

    const unsigned int size;

  private:
    void release_if_complete() {
        if (arrived > 0 && arrived + ended == size) {
            arrived = 0;
            generation++;
            changed.notify_all();
        }
    }

    std::mutex mutex;
    std::condition_variable changed;
    // How often each block has arrived.
    std::vector<unsigned int> arrivals;
    // Blocks that wait at the barrier, and that have ended; how often the barrier released them, and how many clusters
    // have ended.
    unsigned int arrived = 0, ended = 0, generation = 0, clusters = 0;
};

OF_LIBRARY thread_local char anchor;
OF_LIBRARY thread_local Cluster* cluster;
// The phase of the cluster's barrier in which the block has arrived.
OF_LIBRARY thread_local unsigned int phase;
// Dynamic shared memory; the launch sets its size.
OF_LIBRARY thread_local std::vector<char> dynamic_smem;
// Guards mbarriers, because several blocks change them and wait for them.
OF_LIBRARY std::mutex mbarrier_mutex;

// Runs all blocks of a grid.
inline void run_grid(void (*kernel)(const void*), const void* of, const LaunchShape& grid) {
    Cluster shared(grid.cluster);
    auto run = [&](unsigned int own) {
        cluster = &shared;
        rank = own;
        shared.anchors[own] = &anchor;
        entry = kernel;
        argument = of;
        blockDim.x = grid.threads;
        gridDim.x = grid.blocks;
        for (unsigned int block = own; block < grid.blocks; block += grid.cluster) {
            blockIdx.x = block;
            // All bits set, which is NaN as floats: so a read of bytes that no copy has filled shows.
            dynamic_smem.assign(grid.dynamic_smem_bytes, '\xFF');
            run_block(grid.threads);
            shared.end();
        }
    };
    std::vector<std::thread> others;
    for (unsigned int other = 1; other < grid.cluster; other++) {
        others.emplace_back(run, other);
    }
    run(0);
    for (std::thread& other : others) {
        other.join();
    }
}

} // namespace emulator
