//! Clusters: which ids stand together, and the centroid of each cluster (H7).
//!
//! They are given, or built from weights (`grouping.rs`). A head's rows of weights are permuted once, so that
//! the rows of a cluster lie together: in the caller's own buffer, or in a copy.

use std::borrow::Cow;

use gumball_spec::head::clusters::check_ids;
use gumball_spec::memory::with_capacity;
use gumball_spec::{Error, Result};
use half::{bf16, f16};

use crate::cluster_build::ClusterBuild;
use crate::weights::Weights;

/// Clusters of ids, each with a centroid.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    ids: Vec<u32>,
    capacity: usize,
    width: usize,
    centroids: Vec<f32>,
    /// How they were built, if here.
    build: Option<ClusterBuild>,
}

impl Clusters {
    /// Takes clusters of equal size that somebody else built.
    ///
    /// # Shapes and units
    /// `ids`: `[clusters, capacity]`, each id of the vocabulary, which is `clusters * capacity`, once.
    /// `centroids`: `[clusters, width]`, finite.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a capacity of 0, an id outside the vocabulary or in two clusters, or a
    ///   centroid that is not finite.
    /// - [`Error::Length`] if the ids are no whole number of clusters, or there is not one centroid of a
    ///   whole number of elements for each cluster.
    pub fn new(ids: Vec<u32>, capacity: usize, centroids: Vec<f32>) -> Result<Self> {
        let vocab = ids.len();
        if capacity == 0 {
            return Err(Error::out_of_range("capacity", capacity, "1 or more"));
        }
        if !vocab.is_multiple_of(capacity) {
            let allowed =
                format!("clusters of equal size, {capacity}; the last one would have {}", vocab % capacity);
            return Err(Error::length("cluster_ids", vocab, allowed));
        }
        let clusters = vocab / capacity;
        let width = centroids.len().checked_div(clusters).unwrap_or(0);
        Self::with_short_last(ids, capacity, centroids, width)
    }

    /// Takes clusters as one list of ids for each, of which all must have as many ids as the first. The rest:
    /// as for [`Clusters::new`].
    ///
    /// # Errors
    /// - [`Error::Length`] for a list of another size.
    /// - The errors of [`Clusters::new`].
    pub fn of_lists(lists: &[impl AsRef<[u32]>], centroids: Vec<f32>) -> Result<Self> {
        let capacity = lists.first().map_or(0, |list| list.as_ref().len());
        for (cluster, list) in lists.iter().enumerate() {
            let length = list.as_ref().len();
            if length != capacity {
                let allowed = format!("{capacity} ids in cluster {cluster}, as in cluster 0");
                return Err(Error::length("cluster_ids", length, allowed));
            }
        }
        Self::new(lists.iter().flat_map(AsRef::as_ref).copied().collect(), capacity, centroids)
    }

    /// Takes clusters of which the last one may have fewer ids than the others, as [`Clusters::build`] makes
    /// them.
    ///
    /// # Shapes and units
    /// `ids`: `[vocab]`, each once, the ids of cluster 0 first. `centroids`: `[clusters, width]`, finite.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a capacity outside 1..=vocab, an id outside the vocabulary or in two
    ///   clusters, or a centroid that is not finite.
    /// - [`Error::Length`] if there is not one centroid for each cluster.
    pub fn with_short_last(
        ids: Vec<u32>,
        capacity: usize,
        centroids: Vec<f32>,
        width: usize,
    ) -> Result<Self> {
        let clusters = Self { ids, capacity, width, centroids, build: None };
        check_ids(&clusters.ids, capacity, clusters.ids.len())?;
        let all = gumball_spec::head::clusters::Clusters {
            ids: &clusters.ids,
            capacity,
            centroids: &clusters.centroids,
            probes: 1,
            special_ids: &[],
        };
        all.check(clusters.vocab(), width)?;
        Ok(clusters)
    }

    /// Notes how they were built.
    pub(crate) fn built_by(self, build: Option<ClusterBuild>) -> Self {
        Self { build, ..self }
    }

    /// Returns how they were built, if by [`Clusters::build`].
    #[must_use]
    pub fn build_of(&self) -> Option<ClusterBuild> {
        self.build
    }

    /// Checks that they are of a head's vocabulary and width.
    ///
    /// # Errors
    /// - [`Error::Length`] if they are of others.
    pub fn check_shape(&self, vocab: usize, width: usize) -> Result<()> {
        if self.vocab() != vocab {
            let allowed = format!("{vocab} ids, as the head");
            return Err(Error::length("cluster_ids", self.vocab(), allowed));
        }
        if self.width != width {
            let allowed = format!("{width} elements in a centroid, as a row of weights");
            return Err(Error::length("centroids", self.width, allowed));
        }
        Ok(())
    }

    /// Returns how many clusters there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len().div_ceil(self.capacity)
    }

    /// Returns how many ids a cluster has; the last one may have fewer.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.ids.len()
    }

    /// Returns the elements of a centroid.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns every id once, cluster by cluster: the order in which permuted rows lie.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the ids of a cluster.
    ///
    /// # Panics
    /// If there is no such cluster.
    #[must_use]
    pub fn ids_of(&self, cluster: usize) -> &[u32] {
        &self.ids[self.places_of(cluster)]
    }

    /// Returns the places in [`Clusters::ids`] that a cluster has.
    pub(crate) fn places_of(&self, cluster: usize) -> std::ops::Range<usize> {
        let start = cluster * self.capacity;
        start..(start + self.capacity).min(self.ids.len())
    }

    /// Returns the centroids, `[clusters, width]`.
    #[must_use]
    pub fn centroids(&self) -> &[f32] {
        &self.centroids
    }

    /// Returns for each id its place among permuted rows: where an embedding that shares its buffer with a
    /// permuted head has the id's row.
    #[must_use]
    pub fn places(&self) -> Vec<u32> {
        let mut places = vec![0; self.ids.len()];
        self.ids.iter().zip(0..).for_each(|(id, place)| places[*id as usize] = place);
        places
    }

    /// Copies rows of weights `[vocab, width]` to the order in which clusters lie together.
    ///
    /// # Errors
    /// - [`Error::Length`] if the number of weights is another.
    /// - [`Error::Unavailable`] if the system refuses the memory of the copy.
    pub fn permuted(&self, weights: &Weights<'_>) -> Result<Weights<'static>> {
        fn copied<T: Copy>(clusters: &Clusters, all: &[T]) -> Result<Vec<T>> {
            let width = clusters.width;
            let mut permuted = with_capacity("permuted weights", all.len())?;
            clusters
                .ids
                .iter()
                .for_each(|id| permuted.extend_from_slice(&all[*id as usize * width..][..width]));
            Ok(permuted)
        }
        self.check_rows(weights.all().vocab())?;
        Ok(match weights {
            Weights::F32(all) => Weights::F32(Cow::Owned(copied(self, all)?)),
            Weights::Bf16(all) => Weights::Bf16(Cow::Owned(copied(self, all)?)),
            Weights::F16(all) => Weights::F16(Cow::Owned(copied(self, all)?)),
        })
    }

    /// Permutes rows of weights `[vocab, width]` where they lie, so that clusters lie together.
    ///
    /// # Errors
    /// - [`Error::Length`] if the number of weights is another; none was moved then.
    pub fn permute<'w>(&self, weights: impl Into<WeightsMut<'w>>) -> Result<()> {
        let mut weights = weights.into();
        self.check_rows(weights.shared().all().vocab())?;
        match &mut weights {
            WeightsMut::F32(all) => permute_rows(all, self.width, &self.ids),
            WeightsMut::Bf16(all) => permute_rows(all, self.width, &self.ids),
            WeightsMut::F16(all) => permute_rows(all, self.width, &self.ids),
        }
        Ok(())
    }

    fn check_rows(&self, length: usize) -> Result<()> {
        let (vocab, width) = (self.vocab(), self.width);
        if length == vocab * width {
            return Ok(());
        }
        Err(Error::length("weights", length, format!("{vocab} rows of {width} weights, as the clusters")))
    }
}

/// Puts row `ids[i]` to place i, for each i, in the cycles of this permutation.
fn permute_rows<T: Copy>(rows: &mut [T], width: usize, ids: &[u32]) {
    let mut is_done = vec![false; ids.len()];
    let mut first_row = Vec::with_capacity(width);
    for first in 0..ids.len() {
        if is_done[first] {
            continue;
        }
        first_row.clear();
        first_row.extend_from_slice(&rows[first * width..][..width]);
        let mut place = first;
        loop {
            is_done[place] = true;
            let from = ids[place] as usize;
            if from == first {
                rows[place * width..][..width].copy_from_slice(&first_row);
                break;
            }
            rows.copy_within(from * width..(from + 1) * width, place * width);
            place = from;
        }
    }
}

/// Weights of the caller's that may be written.
#[derive(Debug)]
pub enum WeightsMut<'w> {
    /// Single precision.
    F32(&'w mut [f32]),
    /// Truncated single precision.
    Bf16(&'w mut [bf16]),
    /// Half precision.
    F16(&'w mut [f16]),
}

impl<'w> WeightsMut<'w> {
    /// Borrows them, to be read.
    pub(crate) fn shared(&self) -> Weights<'_> {
        match self {
            WeightsMut::F32(all) => Weights::F32(Cow::Borrowed(all)),
            WeightsMut::Bf16(all) => Weights::Bf16(Cow::Borrowed(all)),
            WeightsMut::F16(all) => Weights::F16(Cow::Borrowed(all)),
        }
    }

    /// Gives up the right to write them.
    pub(crate) fn into_shared(self) -> Weights<'w> {
        match self {
            WeightsMut::F32(all) => Weights::F32(Cow::Borrowed(all)),
            WeightsMut::Bf16(all) => Weights::Bf16(Cow::Borrowed(all)),
            WeightsMut::F16(all) => Weights::F16(Cow::Borrowed(all)),
        }
    }
}

macro_rules! weights_mut_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'w> From<&'w mut [$type]> for WeightsMut<'w> {
            fn from(all: &'w mut [$type]) -> Self {
                WeightsMut::$variant(all)
            }
        }

        impl<'w> From<&'w mut Vec<$type>> for WeightsMut<'w> {
            fn from(all: &'w mut Vec<$type>) -> Self {
                WeightsMut::$variant(all)
            }
        }
    )*};
}

weights_mut_from!(f32 => F32, bf16 => Bf16, f16 => F16);
