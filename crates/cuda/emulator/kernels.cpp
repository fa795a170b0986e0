// kernels.cpp: compiles the kernels for rows of logits, for the host, and runs kernels of this library.
#include "cuda.hpp"

// The kernels' sources; src/abi/kernels.rs lists them.
#include "logits.inc"

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, const LaunchShape* shape) {
    emulator::run_grid(kernel, argument, *shape);
}
