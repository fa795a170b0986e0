//! Clusters: which ids stand together, and the centroid of each cluster (H7).
//!
//! They are given, or built from weights (`grouping.rs`). A head's rows of weights are permuted once, so that
//! the rows of a cluster lie together: in the caller's own buffer, or in a copy.

use std::borrow::Cow;

use gumball_spec::head::clusters::{NO_ID, ids_of_map};
use gumball_spec::memory::with_capacity;
use gumball_spec::{Error, Result};
use half::{bf16, f16};

use crate::cluster_build::ClusterBuild;
use crate::weights::Weights;

/// Clusters of ids, each with a centroid.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    /// `[clusters, capacity]`, with [`NO_ID`] after the ids of a cluster that has fewer.
    maps: Vec<u32>,
    capacity: usize,
    ids: Vec<u32>,
    /// The place in `ids` of the first id of each cluster, and the end of the last cluster.
    starts: Vec<usize>,
    width: usize,
    centroids: Vec<f32>,
    /// How they were built, if here.
    build: Option<ClusterBuild>,
}

impl Clusters {
    /// Takes clusters of a vocabulary, for hidden states of `width` elements, that somebody else built.
    ///
    /// # Shapes and units
    /// `vocab_maps`: `[clusters, capacity]`, each id of the vocabulary once; after the ids of a cluster that
    /// has fewer, `u32::MAX`, which may be left out at the end. `centroids`: `[clusters, width]`, finite.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a capacity outside 1..=vocab, a width outside 1..=2^16, an id that is not
    ///   in the vocabulary or not in one cluster, a cluster without ids, or a centroid that is not finite.
    /// - [`Error::Length`] if there is not one centroid for each cluster.
    pub fn new(
        mut vocab_maps: Vec<u32>,
        capacity: usize,
        centroids: Vec<f32>,
        (vocab, width): (usize, usize),
    ) -> Result<Self> {
        let of_spec = gumball_spec::head::clusters::Clusters {
            maps: &vocab_maps,
            capacity,
            centroids: &centroids,
            probes: 1,
            special_ids: &[],
        };
        of_spec.check(vocab, width)?;
        let (mut ids, mut starts) = (with_capacity("cluster ids", vocab)?, vec![0]);
        for map in vocab_maps.chunks(capacity) {
            ids.extend_from_slice(ids_of_map(map));
            starts.push(ids.len());
        }
        vocab_maps.resize((starts.len() - 1) * capacity, NO_ID);
        Ok(Self { maps: vocab_maps, capacity, ids, starts, width, centroids, build: None })
    }

    /// Takes clusters whose maps have -1 as padding; the rest: as for [`Clusters::new`].
    ///
    /// # Errors
    /// - The errors of [`Clusters::new`].
    pub fn of_signed(
        vocab_maps: &[i64],
        capacity: usize,
        centroids: Vec<f32>,
        shape: (usize, usize),
    ) -> Result<Self> {
        let id = |(place, id): (usize, &i64)| match *id {
            -1 => Ok(NO_ID),
            id => u32::try_from(id).map_err(|_| {
                let value = format!("{id} in cluster {}", place / capacity.max(1));
                Error::out_of_range("vocab_maps", value, format!("ids in 0..{}, or -1: padding", shape.0))
            }),
        };
        let maps = vocab_maps.iter().enumerate().map(id).collect::<Result<_>>()?;
        Self::new(maps, capacity, centroids, shape)
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
            return Err(Error::length("vocab_maps", self.vocab(), allowed));
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
        self.starts.len() - 1
    }

    /// Returns how many ids a cluster has at most.
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

    /// Returns the map of each cluster, `[clusters, capacity]`: its ids, and `u32::MAX` in the places after
    /// them.
    #[must_use]
    pub fn maps(&self) -> &[u32] {
        &self.maps
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
        self.starts[cluster]..self.starts[cluster + 1]
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
