//! What a device has of the resources that launches are fitted to.

use crate::abi::MAX_CLUSTER_BLOCKS;
use crate::driver::runtime::Runtime;

/// What a device has of the resources that launches are fitted to. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceLimits {
    /// The number of multiprocessors.
    pub multiprocessors: usize,
    /// The usual number of threads of a block that handles a whole row, a multiple of 32.
    pub threads_per_row: usize,
    /// The most shared memory of a block, in bytes; 0 if the device has no bulk copies into it.
    pub shared_memory_per_block: usize,
    /// How many clusters run concurrently with one block per multiprocessor. Element i is for clusters of
    /// i + 1 blocks.
    pub clusters: [usize; MAX_CLUSTER_BLOCKS],
}

impl DeviceLimits {
    /// Returns a device's limits. Clusters are counted only by [`Runtime::prepare_clusters`].
    pub fn of(runtime: &dyn Runtime) -> Self {
        Self {
            multiprocessors: runtime.multiprocessors() as usize,
            threads_per_row: runtime.threads_per_row() as usize,
            shared_memory_per_block: runtime.shared_memory_per_block(),
            clusters: std::array::from_fn(|i| runtime.clusters(i as u32 + 1) as usize),
        }
    }
}

#[cfg(test)]
impl DeviceLimits {
    /// The limits of a device like an H200.
    pub const H200: Self = Self {
        multiprocessors: 132,
        threads_per_row: 512,
        shared_memory_per_block: 232_448,
        clusters: [132, 66, 44, 33, 26, 22, 18, 15, 14, 13, 12, 11, 10, 9, 8, 7],
    };
}
