// run.cpp: runs kernels of this library.
#include "cuda.hpp"

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, const LaunchShape* shape) {
    emulator::run_grid(kernel, argument, *shape);
}
