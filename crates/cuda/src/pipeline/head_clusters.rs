//! The clusters of a head on a device: their ids and centroids, and memory for what some rows probe (H7, H8,
//! H10).

use std::sync::Arc;

use gumball_spec::head::clusters::{Clusters as ClustersOfSpec, NO_ID, check_probes, short_centroids};
use gumball_spec::{Error, Result, memory};
use half::{bf16, f16};

use crate::abi::dtype::Dtype;
use crate::abi::{self, ALWAYS_PROBED, LISTED_TOGETHER, head_flags};
use crate::driver::runtime::Runtime;
use crate::launch::head::{Centroids, aligned_flag};
use crate::memory::buffer::{Buffer, ROWS};

/// Clusters on a device.
#[derive(Debug)]
pub(super) struct Clusters {
    maps: Buffer,
    vocab: usize,
    capacity: usize,
    /// As bf16 if that loses nothing, else as f32; of a fast head in the type of the weights.
    centroids: Buffer,
    dtype: Dtype,
    width: usize,
    count: usize,
    probes: usize,
    special_ids: Buffer,
    special_count: usize,
    scores: Buffer,
    probed: Buffer,
    /// The ids of each row's probed set; empty for a fast head.
    listed: Buffer,
    of_fast: Option<ProbedTogether>,
}

/// The probed sets of a fast head's rows, whose ids are multiplied with all rows.
#[derive(Debug)]
struct ProbedTogether {
    /// Bitmaps of the clusters that any row probes, and of each row's clusters.
    bits: Buffer,
    /// The cluster of each id.
    clusters_of_ids: Buffer,
    /// The ids that any row probes, and their number.
    ids: Buffer,
    count: Buffer,
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
        let ClustersOfSpec { maps, capacity, centroids, probes, special_ids } = *clusters;
        let mut padded = memory::filled("memory for clusters", NO_ID, count * capacity)?;
        padded[..maps.len()].copy_from_slice(maps);
        let mut special_ids = special_ids.to_vec();
        special_ids.sort_unstable();
        special_ids.dedup();
        let (centroids, dtype) = match short_centroids(centroids)? {
            Some(short) => (Buffer::of(runtime, bytemuck::cast_slice::<_, u16>(&short))?, Dtype::Bf16),
            None => (Buffer::of(runtime, centroids)?, Dtype::F32),
        };
        let mut made = Self {
            maps: Buffer::of(runtime, &padded)?,
            vocab,
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
            of_fast: None,
        };
        made.reserve(runtime, probes, rows)?;
        Ok(made)
    }

    /// Probes another number of clusters from now on.
    pub fn reserve(&mut self, runtime: &Arc<dyn Runtime>, probes: usize, rows: usize) -> Result<()> {
        check_probes(probes, self.count)?;
        let alloc = |length: usize| Buffer::sized(runtime, ROWS, &[rows, length, size_of::<u32>()]);
        let probed = alloc(probes)?;
        self.listed = alloc(if self.of_fast.is_some() { 0 } else { self.listed_ids(probes) })?;
        self.probed = probed;
        self.probes = probes;
        Ok(())
    }

    /// Becomes the clusters of a fast head with weights of a type, for steps of at most `rows` rows.
    pub fn of_fast(mut self, runtime: &Arc<dyn Runtime>, weights: Dtype, rows: usize) -> Result<Self> {
        if self.dtype != weights {
            self.centroids = Buffer::of(runtime, &self.rounded_centroids(weights)?)?;
            self.dtype = weights;
        }
        let words = self.count.div_ceil(u32::BITS as usize);
        let alloc = |sizes: &[usize]| Buffer::sized(runtime, ROWS, sizes);
        self.of_fast = Some(ProbedTogether {
            bits: alloc(&[rows + 1, words, size_of::<u32>()])?,
            clusters_of_ids: Buffer::of(runtime, &self.clusters_of_ids()?)?,
            ids: alloc(&[self.vocab, size_of::<u32>()])?,
            count: alloc(&[size_of::<u32>()])?,
        });
        self.listed = alloc(&[0])?;
        Ok(self)
    }

    /// The cluster of each id, with `ALWAYS_PROBED` if it is special.
    fn clusters_of_ids(&self) -> Result<Vec<u32>> {
        let (mut maps, mut special) =
            (vec![0u32; self.count * self.capacity], vec![0u32; self.special_count]);
        self.maps.read(0, &mut maps)?;
        self.special_ids.read(0, &mut special)?;
        let mut clusters = vec![0u32; self.vocab];
        for (place, id) in maps.into_iter().enumerate().filter(|(_, id)| *id != NO_ID) {
            clusters[id as usize] = (place / self.capacity) as u32;
        }
        special.into_iter().for_each(|id| clusters[id as usize] |= ALWAYS_PROBED);
        Ok(clusters)
    }

    /// The centroids in a type of two bytes, in which they must be finite, too.
    fn rounded_centroids(&self, dtype: Dtype) -> Result<Vec<u16>> {
        const RESOURCE: &str = "memory for centroids";
        let mut wide = memory::filled(RESOURCE, 0.0f32, self.count * self.width)?;
        if self.dtype == Dtype::F32 {
            self.centroids.read(0, &mut wide)?;
        } else {
            let mut short = memory::filled(RESOURCE, 0u16, wide.len())?;
            self.centroids.read(0, &mut short)?;
            wide.iter_mut().zip(short).for_each(|(x, short)| *x = bf16::from_bits(short).to_f32());
        }
        let round = |x: f32| match dtype {
            Dtype::F16 => (f16::from_f32(x).to_bits(), f16::from_f32(x).is_finite()),
            _ => (bf16::from_f32(x).to_bits(), bf16::from_f32(x).is_finite()),
        };
        if let Some(place) = wide.iter().position(|x| !round(*x).1) {
            let value = format!("{} in that of cluster {}", wide[place], place / self.width);
            let allowed = format!("finite as {}, the type of the weights", dtype.name());
            return Err(Error::out_of_range("centroids", value, allowed));
        }
        memory::collected(RESOURCE, wide.iter().map(|x| round(*x).0))
    }

    /// The length of a list of a probed set.
    fn listed_ids(&self, probes: usize) -> usize {
        probes * self.capacity + self.special_count
    }

    /// Adds the clusters to the argument of the kernels for a step of some rows.
    pub fn of(&self, head: abi::HeadStep, rows: usize) -> abi::HeadStep {
        let of_fast = self.of_fast.as_ref();
        let listed = of_fast.filter(|_| rows <= LISTED_TOGETHER);
        abi::HeadStep {
            probed_bits: of_fast.map_or(0, |sets| sets.bits.address()),
            clusters_of_ids: of_fast.map_or(0, |sets| sets.clusters_of_ids.address()),
            listed_ids: listed.map_or(0, |sets| sets.ids.address()),
            listed_count: listed.map_or(0, |sets| sets.count.address()),
            flags: head.flags | head_flags::CLUSTERED,
            cluster_ids: self.maps.address(),
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
