//! The clusters of a head on a device: their ids and centroids, and memory for what some rows probe (H7, H8).

use std::sync::Arc;

use gumball_spec::Result;
use gumball_spec::head::clusters::{Clusters as ClustersOfSpec, check_probes, short_centroids};

use crate::abi::dtype::Dtype;
use crate::abi::{self, head_flags};
use crate::driver::runtime::Runtime;
use crate::launch::head::{Centroids, aligned_flag};
use crate::memory::buffer::{Buffer, ROWS};

/// Clusters on a device.
#[derive(Debug)]
pub(super) struct Clusters {
    ids: Buffer,
    capacity: usize,
    /// As bf16 if that loses nothing, else as f32.
    centroids: Buffer,
    dtype: Dtype,
    width: usize,
    count: usize,
    probes: usize,
    special_ids: Buffer,
    special_count: usize,
    scores: Buffer,
    probed: Buffer,
    /// The ids of each row's probed set.
    listed: Buffer,
}

impl Clusters {
    /// Copies clusters of a head with `vocab` ids and hidden states of `width` elements to a device, for
    /// steps of at most `rows` rows.
    pub fn new(
        runtime: &Arc<dyn Runtime>,
        clusters: &ClustersOfSpec<'_>,
        (vocab, width): (usize, usize),
        rows: usize,
    ) -> Result<Self> {
        clusters.check(vocab, width)?;
        let count = clusters.count();
        let ClustersOfSpec { ids, capacity, centroids, probes, special_ids } = *clusters;
        let mut special_ids = special_ids.to_vec();
        special_ids.sort_unstable();
        special_ids.dedup();
        let (centroids, dtype) = match short_centroids(centroids)? {
            Some(short) => (Buffer::of(runtime, bytemuck::cast_slice::<_, u16>(&short))?, Dtype::Bf16),
            None => (Buffer::of(runtime, centroids)?, Dtype::F32),
        };
        let mut made = Self {
            ids: Buffer::of(runtime, ids)?,
            capacity,
            centroids,
            dtype,
            width,
            count,
            probes,
            special_ids: Buffer::of(runtime, &special_ids)?,
            special_count: special_ids.len(),
            scores: Buffer::sized(runtime, ROWS, &[rows, count, size_of::<f32>()])?,
            probed: Buffer::zeroed(runtime, 0)?,
            listed: Buffer::zeroed(runtime, 0)?,
        };
        made.reserve(runtime, probes, rows)?;
        Ok(made)
    }

    /// Probes another number of clusters from now on.
    pub fn reserve(&mut self, runtime: &Arc<dyn Runtime>, probes: usize, rows: usize) -> Result<()> {
        check_probes(probes, self.count)?;
        let alloc = |length: usize| Buffer::sized(runtime, ROWS, &[rows, length, size_of::<u32>()]);
        let probed = alloc(probes)?;
        self.listed = alloc(self.listed_ids(probes))?;
        self.probed = probed;
        self.probes = probes;
        Ok(())
    }

    /// The length of a list of a probed set.
    fn listed_ids(&self, probes: usize) -> usize {
        probes * self.capacity + self.special_count
    }

    /// Adds the clusters to the argument of the kernels.
    pub fn of(&self, head: abi::HeadStep) -> abi::HeadStep {
        abi::HeadStep {
            flags: head.flags | head_flags::CLUSTERED,
            cluster_ids: self.ids.address(),
            cluster_capacity: self.capacity as u32,
            clusters: self.count as u32,
            probes: self.probes as u32,
            special_ids: self.special_ids.address(),
            special_count: self.special_count as u32,
            scores: self.scores.address(),
            probed: self.probed.address(),
            contenders: self.listed.address(),
            most_contenders: self.listed_ids(self.probes) as u32,
            ..head
        }
    }

    /// Returns where the centroids lie.
    pub fn centroids(&self) -> Centroids {
        let address = self.centroids.address();
        Centroids { address, dtype: self.dtype, flags: aligned_flag(address, self.width, self.dtype) }
    }
}
