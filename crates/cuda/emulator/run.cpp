// run.cpp: runs kernels of this library.
#include "cuda.hpp"

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, const LaunchShape* shape) {
    emulator::run_grid(kernel, argument, *shape);
}

// Lets the blocks of clusters drift apart by a seed; 0 ends that.
extern "C" void gumball_set_drift(uint64_t seed) { emulator::drift = seed; }

// Returns how many tiles kernels have read after the rows' surveys since the last call.
extern "C" uint64_t gumball_take_tile_reads() { return emulator::tile_reads.exchange(0); }
