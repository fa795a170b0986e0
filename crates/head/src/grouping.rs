//! Building clusters: spherical k-means in which all clusters have as many rows as there is room for.
//!
//! ```text
//! the mean row is taken from all rows, which leaves the order of logits as it is; the rest is made as
//! long as 1
//! first centroids: rows that lie equally far apart in the vocabulary
//! then, several times:
//!     each row lists the centroids that it is nearest to, by their product
//!     the pairs of all lists, the nearest first: a row goes to a cluster if there is room; of rows that find
//!         none, the same among the clusters with room
//!     rows without a direction, that are the mean row or hold a number that is not finite, fill what room
//!         is left
//!     a centroid is the direction of the sum of its rows
//! last: a centroid is the mean of its finite rows as they are, so that a product with it is about the mean
//!       of their logits; rounded to bf16, since a step reads all centroids, and which clusters come first
//!       hardly depends on their last bits
//! ```
//!
//! Products follow H1, sums are taken by ascending id, and ties go to smaller numbers: the result
//! is the same on every machine and over any number of threads.

use gumball_cpu::FloatEnv;
use gumball_spec::head::clusters::check_capacity;
use gumball_spec::num::{key, key_id, key_logit, ordered_bits};
use gumball_spec::{Error, HostMatrix, Result};
use half::bf16;
use rayon::prelude::*;

use crate::cluster_build::{ClusterBuild, ClusterProgress};
use crate::clusters::Clusters;
use crate::exact::{Exact, HeadOptions};
use crate::measure::{length_of, mean_row};
use crate::spread::Spread;
use crate::states::Widened;

/// Centroids in a row's list.
const LISTED: usize = 32;

/// Rows whose products are held at a time by a thread.
const ROWS_OF_PIECE: usize = 32;

/// Pieces between two reports of progress.
const PIECES_OF_REPORT: usize = 64;

/// A build of clusters, between two assignments.
#[derive(Clone, Debug)]
pub(crate) struct Grouping<'a, 'w> {
    exact: &'a Exact<'w>,
    build: ClusterBuild,
    mean: Vec<f32>,
    /// Whether a row holds a number that is not finite, or is too long.
    is_odd: Vec<bool>,
    /// One over the length of each row less the mean; 0 for a row without a direction: it is the mean, or
    /// odd.
    inverse: Vec<f64>,
    /// `[clusters, width]`, each of length 1, or 0.
    pub(crate) centroids: Vec<f32>,
    /// The cluster of each id; `u32::MAX` before the first assignment.
    pub(crate) clusters: Vec<u32>,
    /// How many assignments there were.
    pub(crate) iteration: usize,
    /// Whether the last one changed nothing.
    pub(crate) is_settled: bool,
}

impl Clusters {
    /// Builds clusters of a head's rows, over rayon's threads. `progress` is told how far it is, and returns
    /// whether to go on. The clusters are the same on every machine and over any number of threads.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a capacity outside 1..=vocab, or no iterations.
    /// - [`Error::Unavailable`] if `progress` said to stop.
    pub fn build(
        exact: &Exact<'_>,
        build: ClusterBuild,
        progress: &mut dyn FnMut(ClusterProgress) -> bool,
    ) -> Result<Self> {
        let mut grouping = Grouping::new(exact, build)?;
        while !grouping.is_done() {
            if !grouping.assign(progress)? {
                let reason = "the caller stopped the build".to_owned();
                return Err(Error::Unavailable { resource: "clusters", reason });
            }
        }
        grouping.clusters()
    }
}

impl<'a, 'w> Grouping<'a, 'w> {
    /// Begins a build.
    pub(crate) fn new(exact: &'a Exact<'w>, build: ClusterBuild) -> Result<Self> {
        let _env = FloatEnv::enter();
        let (vocab, width) = (exact.vocab(), exact.width());
        check_capacity(build.capacity, vocab)?;
        if build.iterations == 0 {
            return Err(Error::out_of_range("iterations", 0, "1 or more"));
        }
        let is_odd: Vec<bool> =
            (0..vocab).into_par_iter().map(|id| !length_of(exact.weights_of(id)).is_finite()).collect();
        let odd: Vec<u32> = (0..).zip(&is_odd).filter(|(_, is_odd)| **is_odd).map(|(id, _)| id).collect();
        let mean = mean_row(exact, &odd);
        let inverse_of = |id: usize| {
            let _env = FloatEnv::enter();
            let row = exact.weights_of(id);
            let distances = mean.iter().enumerate().map(|(i, m)| f64::from(row.logit(i)) - f64::from(*m));
            let length = distances.map(|distance| distance * distance).sum::<f64>().sqrt();
            if length > 0.0 && length.is_finite() { 1.0 / length } else { 0.0 }
        };
        let inverse: Vec<f64> = (0..vocab).into_par_iter().map(inverse_of).collect();
        let count = vocab.div_ceil(build.capacity);
        let mut grouping = Self {
            exact,
            build,
            mean,
            is_odd,
            inverse,
            centroids: vec![0.0; count * width],
            clusters: vec![u32::MAX; vocab],
            iteration: 0,
            is_settled: false,
        };
        let mut centroids = std::mem::take(&mut grouping.centroids);
        for (cluster, centroid) in centroids.chunks_mut(width).enumerate() {
            grouping.direction(cluster * vocab / count, centroid);
        }
        grouping.centroids = centroids;
        Ok(grouping)
    }

    /// Returns whether rows were assigned as often as was asked, or nothing changes any more.
    pub(crate) fn is_done(&self) -> bool {
        self.iteration >= self.build.iterations || self.is_settled
    }

    /// Returns how many clusters there are.
    fn count(&self) -> usize {
        self.centroids.len() / self.exact.width()
    }

    /// Writes the direction of a row: less the mean, of length 1, or zeros.
    fn direction(&self, id: usize, out: &mut [f32]) {
        let (row, inverse) = (self.exact.weights_of(id), self.inverse[id]);
        if inverse == 0.0 {
            return out.fill(0.0);
        }
        for (i, (x, m)) in out.iter_mut().zip(&self.mean).enumerate() {
            *x = ((f64::from(row.logit(i)) - f64::from(*m)) * inverse) as f32;
        }
    }

    /// Assigns all rows to the centroids that there are, and takes new ones; returns whether the caller did
    /// not stop it.
    pub(crate) fn assign(&mut self, progress: &mut dyn FnMut(ClusterProgress) -> bool) -> Result<bool> {
        let (vocab, count, capacity) = (self.exact.vocab(), self.count(), self.build.capacity);
        let mut room = vec![capacity; count];
        room[count - 1] = vocab - (count - 1) * capacity;
        let mut clusters = vec![u32::MAX; vocab];
        let has_direction = |id: &u32| self.inverse[*id as usize] > 0.0;
        let (mut rows, others): (Vec<u32>, Vec<u32>) = (0..vocab as u32).partition(has_direction);
        let mut is_first = true;
        while !rows.is_empty() {
            let open: Vec<u32> = (0..count as u32).filter(|cluster| room[*cluster as usize] > 0).collect();
            let mut report = |done| {
                let (iteration, iterations) = (self.iteration, self.build.iterations);
                // The rest after the first lists is a small part.
                progress(ClusterProgress {
                    iteration,
                    iterations,
                    done: if is_first { done } else { vocab },
                    of: vocab,
                })
            };
            let Some(mut pairs) = self.pairs(&rows, &open, &mut report)? else { return Ok(false) };
            is_first = false;
            // All keys differ, so their order is one.
            pairs.par_sort_unstable_by(|a, b| b.cmp(a));
            for Pair { id, cluster, .. } in pairs {
                let (id, cluster) = (!id, !cluster);
                if clusters[id as usize] == u32::MAX && room[cluster as usize] > 0 {
                    room[cluster as usize] -= 1;
                    clusters[id as usize] = cluster;
                }
            }
            rows.retain(|id| clusters[*id as usize] == u32::MAX);
        }
        // Rows without a direction are as near to one cluster as to another: they fill what room is left.
        let mut open = (0..).zip(&room).flat_map(|(cluster, room)| std::iter::repeat_n(cluster, *room));
        others.iter().zip(&mut open).for_each(|(id, cluster)| clusters[*id as usize] = cluster);
        self.is_settled = clusters == self.clusters;
        self.clusters = clusters;
        self.iteration += 1;
        if !self.is_done() {
            self.take_centroids();
        }
        Ok(true)
    }

    /// Lists for each row the open clusters that it is nearest to; `None` if the caller stopped it.
    fn pairs(
        &self,
        rows: &[u32],
        open: &[u32],
        report: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<Vec<Pair>>> {
        let width = self.exact.width();
        let of_open = open.iter().flat_map(|cluster| &self.centroids[*cluster as usize * width..][..width]);
        let options = HeadOptions { level: Some(self.exact.level()), ..HeadOptions::default() };
        let centroids = Exact::new(of_open.copied().collect::<Vec<f32>>(), open.len(), width, options)?;
        let mut pairs = Vec::new();
        for (i, rows) in rows.chunks(ROWS_OF_PIECE * PIECES_OF_REPORT).enumerate() {
            if !report(i * ROWS_OF_PIECE * PIECES_OF_REPORT) {
                return Ok(None);
            }
            let pieces = rows.par_chunks(ROWS_OF_PIECE).map(|rows| self.pairs_of(rows, open, &centroids));
            let pieces: Vec<Vec<Pair>> = pieces.collect::<Result<_>>()?;
            pairs.extend(pieces.into_iter().flatten());
        }
        Ok(Some(pairs))
    }

    fn pairs_of(&self, rows: &[u32], open: &[u32], centroids: &Exact<'_>) -> Result<Vec<Pair>> {
        let _env = FloatEnv::enter();
        let width = self.exact.width();
        let mut directions = vec![0.0; rows.len() * width];
        for (id, out) in rows.iter().zip(directions.chunks_mut(width)) {
            self.direction(*id as usize, out);
        }
        let states = Widened::of(HostMatrix::new(&directions, rows.len(), width)?);
        let mut products = vec![0.0; rows.len() * open.len()];
        centroids.logits(&states, Spread::Caller, &mut products)?;
        let listed = LISTED.min(open.len());
        let mut keys: Vec<u64> = Vec::with_capacity(open.len());
        let mut pairs = Vec::with_capacity(rows.len() * listed);
        for (id, products) in rows.iter().zip(products.chunks(open.len())) {
            keys.clear();
            keys.extend(products.iter().zip(0..).map(|(product, i)| key(product + 0.0, i)));
            if listed < keys.len() {
                keys.select_nth_unstable_by(listed - 1, |a, b| b.cmp(a));
            }
            pairs.extend(keys[..listed].iter().map(|key| {
                let (nearness, cluster) = (ordered_bits(key_logit(*key)), open[key_id(*key) as usize]);
                Pair { nearness, id: !id, cluster: !cluster }
            }));
        }
        Ok(pairs)
    }

    /// Makes the centroids the directions of the sums of their rows.
    pub(crate) fn take_centroids(&mut self) {
        let (width, members) = (self.exact.width(), self.members());
        let mut centroids = std::mem::take(&mut self.centroids);
        centroids.par_chunks_mut(width).zip(&members).for_each(|(centroid, members)| {
            let _env = FloatEnv::enter();
            let (mut sums, mut row) = (vec![0.0f64; width], vec![0.0f32; width]);
            for id in members {
                self.direction(*id as usize, &mut row);
                sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let length = sums.iter().map(|x| x * x).sum::<f64>().sqrt();
            let inverse = if length > 0.0 { 1.0 / length } else { 0.0 };
            centroid.iter_mut().zip(&sums).for_each(|(x, sum)| *x = (sum * inverse) as f32);
        });
        self.centroids = centroids;
    }

    /// Returns the ids of each cluster, ascending.
    fn members(&self) -> Vec<Vec<u32>> {
        let mut members = vec![Vec::with_capacity(self.build.capacity); self.count()];
        self.clusters.iter().zip(0..).for_each(|(cluster, id)| members[*cluster as usize].push(id));
        members
    }

    /// Returns the clusters.
    pub(crate) fn clusters(&self) -> Result<Clusters> {
        let (width, members) = (self.exact.width(), self.members());
        let mut centroids = vec![0.0f32; self.centroids.len()];
        centroids.par_chunks_mut(width).zip(&members).for_each(|(centroid, members)| {
            let _env = FloatEnv::enter();
            let mut sums = vec![0.0f64; width];
            let finite = members.iter().filter(|id| !self.is_odd[**id as usize]);
            let count = finite.clone().count().max(1);
            for id in finite {
                let row = self.exact.weights_of(*id as usize);
                sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += f64::from(row.logit(i)));
            }
            centroid.iter_mut().zip(&sums).for_each(|(x, sum)| *x = rounded(sum / count as f64));
        });
        let shape = (self.exact.vocab(), width);
        let clusters = Clusters::new(members.concat(), self.build.capacity, centroids, shape)?;
        Ok(clusters.built_by(Some(self.build)))
    }
}

/// Rounds a number to bf16, to the largest one at most.
fn rounded(x: f64) -> f32 {
    bf16::from_f64(x).clamp(bf16::MIN, bf16::MAX).to_f32()
}

/// How near a row is to a centroid; the greater, the earlier it is assigned. Numbers are complemented, so
/// that smaller ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    nearness: u32,
    id: u32,
    cluster: u32,
}
