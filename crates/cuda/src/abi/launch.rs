//! The grid of an emulated launch: `launch.hpp` is generated from this file.

use crate::abi::header::shared;

shared! {
    /// the grid of an emulated launch.
    header LAUNCH = "launch.hpp" includes "platform/portability.cuh";

    /// What the emulator needs of a launch's `Grid`.
    struct LaunchShape {
        blocks: u32;
        threads: u32;
        dynamic_smem_bytes: u32;
        /// Neighbouring blocks that form a cluster; 1 for a launch without clusters, whose `Grid` has 0.
        cluster: u32;
    }
}
