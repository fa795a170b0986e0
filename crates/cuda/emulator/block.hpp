// block.hpp: a thread block on one host thread, so that kernels can be held to the oracle without a GPU.
//
// Computes   what the kernel computes: each CUDA thread is a fiber that runs until it waits for others
// Never      runs two fibers of a block at once, so it finds no races there; it does find barriers that some threads miss
// Requires   x86-64; collectives over all lanes of a warp; kernels of one argument, a `Step`
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

struct Dim3 {
    unsigned int x = 1, y = 1, z = 1;
};

static thread_local Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {

// Saves the registers that calls preserve, and goes on where another stack left off.
extern "C" void gumball_switch(void** from, void* to);
asm(R"(
.text
.hidden gumball_switch
.globl gumball_switch
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

struct Fiber {
    void* stack_pointer = nullptr;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    bool done = false;
};

// What a group of threads exchanges; two places, as a thread may be one exchange ahead of the slowest.
struct Meeting {
    unsigned int arrived = 0, generation = 0;
    uint64_t values[2][32];
};

// Of each host thread that runs blocks, as all that blocks share is.
static thread_local std::vector<Fiber> fibers;
static thread_local std::vector<Meeting> warps;
static thread_local Meeting everyone;
static thread_local unsigned int current, living, waiting_rounds;
static thread_local void* scheduler;
static thread_local void (*entry)(const void*);
static thread_local const void* argument;

inline void yield() { gumball_switch(&fibers[current].stack_pointer, scheduler); }

// Waits until `size` threads have come here.
inline unsigned int meet(Meeting& meeting, unsigned int size) {
    unsigned int generation = meeting.generation;
    if (++meeting.arrived == size) {
        meeting.arrived = 0;
        meeting.generation++;
        waiting_rounds = 0;
    } else {
        while (meeting.generation == generation) {
            yield();
        }
    }
    return generation % 2;
}

// Exchanges a value among the lanes of the warp; returns all of them.
inline const uint64_t* exchange(uint64_t value) {
    Meeting& warp = warps[current / 32];
    warp.values[warp.generation % 2][current % 32] = value;
    return warp.values[meet(warp, 32)];
}

inline void run_fiber() {
    entry(argument);
    fibers[current].done = true;
    living--;
    waiting_rounds = 0;
    yield();
}

inline void start(Fiber& fiber) {
    uintptr_t top = ((uintptr_t)fiber.stack.get() + STACK_BYTES) & ~(uintptr_t)15;
    void** place = (void**)top - 2;
    *place = (void*)run_fiber;
    fiber.stack_pointer = place - 6;
    fiber.done = false;
}

inline void run_block(unsigned int threads) {
    if (fibers.size() < threads) {
        fibers = std::vector<Fiber>(threads);
    }
    warps.assign(threads / 32, Meeting());
    everyone = Meeting();
    living = threads;
    waiting_rounds = 0;
    for (unsigned int i = 0; i < threads; i++) {
        start(fibers[i]);
    }
    while (living > 0) {
        if (++waiting_rounds > 4) {
            std::fprintf(stderr, "a barrier or a collective was missed by some threads of block %u\n", blockIdx.x);
            std::abort();
        }
        for (unsigned int i = 0; i < threads; i++) {
            if (!fibers[i].done) {
                current = i;
                threadIdx.x = i;
                gumball_switch(&scheduler, fibers[i].stack_pointer);
            }
        }
    }
}

// Runs all blocks of a grid in turn; or two at a time, in which case blocks may wait for each other.
inline void run_grid(void (*kernel)(const void*), const void* step, unsigned int blocks, unsigned int threads, bool two) {
    std::atomic<unsigned int> next{0};
    auto run = [&]() {
        entry = kernel;
        argument = step;
        blockDim.x = threads;
        gridDim.x = blocks;
        for (unsigned int block; (block = next++) < blocks;) {
            blockIdx.x = block;
            run_block(threads);
        }
    };
    if (two && blocks > 1) {
        std::thread other(run);
        run();
        other.join();
    } else {
        run();
    }
}

} // namespace emulator
