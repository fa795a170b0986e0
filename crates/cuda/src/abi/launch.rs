//! The shape of an emulated launch: `emulator/launch.hpp` is generated from this file.

use crate::abi::header::shared;

shared! {
    /// the shape of an emulated launch.
    header LAUNCH = "launch.hpp" includes "platform/portability.cuh";

    /// The shape of a launch.
    struct LaunchShape {
        blocks: u32;
        threads: u32;
        dynamic_smem_bytes: u32;
        /// Neighbouring blocks that form a cluster, at least 1.
        cluster: u32;
        /// How many blocks run concurrently and so may wait for each other. With clusters it is the cluster
        /// size.
        side_by_side: u32;
    }
}
