// launch.hpp: the grid of an emulated launch.
//
// Generated from src/abi/launch.rs. This file is a copy for readers: no compiler reads it.
#pragma once

#include "platform/portability.cuh"

// What the emulator needs of a launch's `Grid`.
struct LaunchShape {
    u32 blocks;
    u32 threads;
    u32 dynamic_smem_bytes;
    // Neighbouring blocks that form a cluster; 1 for a launch without clusters, whose `Grid` has 0.
    u32 cluster;
};

// The layout of the structs on the host, in bytes.
static_assert(sizeof(LaunchShape) == 16 && alignof(LaunchShape) == 4);
static_assert(OFFSET_OF(LaunchShape, blocks) == 0);
static_assert(OFFSET_OF(LaunchShape, threads) == 4);
static_assert(OFFSET_OF(LaunchShape, dynamic_smem_bytes) == 8);
static_assert(OFFSET_OF(LaunchShape, cluster) == 12);
