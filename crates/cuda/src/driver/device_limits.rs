//! What a device has of the resources that launches are fitted to.

use crate::abi::{MAX_CLUSTER_BLOCKS, ROW_THREADS};

/// What a device has of the resources that launches are fitted to. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The number of multiprocessors.
    pub multiprocessors: usize,
    /// The usual number of threads of a block that handles a whole row, a multiple of 32.
    pub threads_per_row: usize,
    /// The most shared memory of a block, in bytes, static and dynamic together. 0 if the device has no bulk
    /// copies, which fill shared memory while the threads work.
    pub shared_memory_per_block: usize,
    /// The most dynamic shared memory of a block, in bytes, on any device.
    pub dynamic_smem_per_block: usize,
    /// How many clusters can run concurrently with one block per multiprocessor. Element i is for clusters of
    /// i + 1 blocks. 0 if the device has no clusters of that size, or the driver does not tell.
    pub clusters: [usize; MAX_CLUSTER_BLOCKS],
    /// Whether warpgroups multiply matrices in shared memory, which kernels for sm_90 alone let them do.
    pub warpgroups_multiply: bool,
    /// A head's screen is used in steps in which it saves this many bytes of reading at least: about as many
    /// as the device reads while the screen's kernels run.
    pub least_saved: usize,
}

impl DeviceLimits {
    /// Returns the limits of a device without bulk copies and clusters, that is, older than sm_90.
    #[must_use]
    pub fn new(multiprocessors: usize) -> Self {
        Self {
            multiprocessors,
            threads_per_row: ROW_THREADS as usize,
            shared_memory_per_block: 0,
            dynamic_smem_per_block: 48 << 10,
            clusters: [0; MAX_CLUSTER_BLOCKS],
            warpgroups_multiply: false,
            least_saved: 64 << 20,
        }
    }
}

#[cfg(test)]
impl DeviceLimits {
    /// The limits of a device like an H200.
    pub const H200: Self = Self {
        multiprocessors: 132,
        threads_per_row: ROW_THREADS as usize,
        shared_memory_per_block: 232_448,
        dynamic_smem_per_block: 232_448,
        clusters: [132, 66, 44, 30, 26, 22, 18, 15, 14, 13, 12, 11, 10, 9, 8, 7],
        warpgroups_multiply: true,
        least_saved: 64 << 20,
    };
}
