//! A case of a head: weights, a batch of hidden states and what follows the product, owned.

use std::ops::Range;

use gumball_cpu::{Level, Task};
use gumball_head::{
    Bounds, Certified, Clustered, ClusteredOptions, Clusters, Exact, HeadOptions, HostMatrix, Probes, Spread,
    Weights, Widened,
};
use gumball_spec::head::clusters::Clusters as ClustersOfSpec;
use gumball_spec::head::{Scaling, logits};
use gumball_spec::{Error, Result, Row};

use crate::case::{Dtype, Logits};

/// Weights `[vocab, width]` and hidden states `[rows, width]`.
#[derive(Clone, Debug)]
pub struct HeadCase {
    /// The weights, one row for each id after the other.
    pub weights: Logits,
    /// The hidden states, one after the other.
    pub hidden: Logits,
    /// The elements of a hidden state.
    pub width: usize,
    /// A bias for each id.
    pub bias: Option<Vec<f32>>,
    /// What follows the product.
    pub scaling: Scaling,
}

/// Clusters of a head's ids (H7).
#[derive(Clone, Debug)]
pub struct ClusterCase {
    /// The ids of each cluster, with padding.
    pub maps: Vec<u32>,
    /// The most ids of a cluster.
    pub capacity: usize,
    /// A centroid for each cluster, of the head's width.
    pub centroids: Vec<f32>,
    /// How many clusters are probed.
    pub probes: usize,
    /// Ids that are computed for every hidden state.
    pub special_ids: Vec<u32>,
}

impl ClusterCase {
    /// Returns them as the definition takes them.
    #[must_use]
    pub fn clusters(&self) -> ClustersOfSpec<'_> {
        let Self { maps, capacity, centroids, probes, special_ids } = self;
        ClustersOfSpec { maps, capacity: *capacity, centroids, probes: *probes, special_ids }
    }
}

impl HeadCase {
    /// Makes a case without a bias, scale or cap.
    #[must_use]
    pub fn new(dtype: Dtype, weights: &[f32], hidden: &[f32], width: usize) -> Self {
        let (weights, hidden) = (Logits::new(dtype, weights), Logits::new(dtype, hidden));
        Self { weights, hidden, width, bias: None, scaling: Scaling::default() }
    }

    /// Returns the case of some hidden states, and of some ids.
    #[must_use]
    pub fn part(&self, rows: &[usize], ids: Range<usize>) -> Self {
        let numbers = |row: Row<'_>| (0..row.vocab()).map(|i| row.logit(i)).collect::<Vec<f32>>();
        let weights = self.weights.row().part(ids.start * self.width..ids.end * self.width);
        let hidden: Vec<f32> = rows.iter().flat_map(|row| numbers(self.state(*row))).collect();
        Self {
            weights: Logits::new(self.weights.dtype(), &numbers(weights)),
            hidden: Logits::new(self.hidden.dtype(), &hidden),
            bias: self.bias.as_ref().map(|bias| bias[ids].to_vec()),
            ..self.clone()
        }
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.weights.row().vocab() / self.width
    }

    /// Returns the number of hidden states.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.hidden.row().vocab() / self.width
    }

    /// Returns one hidden state.
    #[must_use]
    pub fn state(&self, row: usize) -> Row<'_> {
        self.hidden.row().part(row * self.width..(row + 1) * self.width)
    }

    /// Returns all hidden states.
    ///
    /// # Errors
    /// The errors of [`HostMatrix::new`].
    pub fn states(&self) -> Result<HostMatrix<'_>> {
        HostMatrix::new(self.hidden.row(), self.rows(), self.width)
    }

    /// Returns the logits that the definition gives, `[rows, vocab]`, as their bits.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a scaling outside its range.
    pub fn by_the_oracle(&self) -> std::result::Result<Vec<u32>, Error> {
        self.scaling.check()?;
        let of_row = |row| logits(self.weights.row(), self.state(row), self.bias.as_deref(), &self.scaling);
        Ok((0..self.rows()).flat_map(of_row).map(f32::to_bits).collect())
    }

    /// Returns the row that the definition gives for clusters and the first hidden state (H8).
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] or [`Error::Length`] for clusters or a scaling that are none of this head.
    pub fn clustered_by_the_oracle(&self, clusters: &ClusterCase) -> Result<Vec<f32>> {
        self.scaling.check()?;
        let clusters = clusters.clusters();
        clusters.check(self.vocab(), self.width)?;
        Ok(clusters.logits(self.weights.row(), self.state(0), self.bias.as_deref(), &self.scaling))
    }

    /// Returns a row of the logits that decide a request, and -inf elsewhere: or all of them, where all may.
    ///
    /// # Errors
    /// The errors of the head.
    pub fn certified_row(&self, level: Level, task: &Task<'_>, hooked: bool) -> Result<Vec<f32>> {
        let exact = self.exact(level)?;
        let states = self.states()?;
        let certified = Certified::new(exact);
        let mut widened = Widened::default();
        widened.fill_rows(states, 0..1);
        let mut row = vec![0.0; self.vocab()];
        let reading = task.prepared.reading_with(hooked, false);
        if reading.whole().is_none() && certified.can_screen(states, 0) {
            let (mut bounds, mut contest) = (Bounds::default(), certified.contest()?);
            certified.bound(&widened, Spread::Caller, &mut bounds)?;
            let (of_row, screened) = bounds.parts_mut();
            let place = (&widened, 0);
            if certified.settle(place, of_row, screened, reading, task, &mut contest, &mut row)?.is_some() {
                return Ok(row);
            }
        }
        certified.exact().logits(&widened, Spread::Caller, &mut row)?;
        Ok(row)
    }

    /// Returns the clustered head of the case at a level.
    ///
    /// # Errors
    /// The errors of the head.
    pub fn clustered(&self, clusters: &ClusterCase, level: Level) -> Result<Clustered<'static>> {
        let ClusterCase { maps, capacity, centroids, probes, special_ids } = clusters;
        let options =
            ClusteredOptions { probes: Some(*probes), special_ids: special_ids.clone(), most_rows: Some(3) };
        let shape = (self.vocab(), self.width);
        let clusters = Clusters::new(maps.clone(), *capacity, centroids.clone(), shape)?;
        Clustered::new(&self.exact(level)?, clusters, &options)
    }

    /// Returns the row of a clustered head at a level, over one thread and over several, in a batch that is
    /// computed whole and in one that is not.
    ///
    /// # Errors
    /// The errors of the head.
    ///
    /// # Panics
    /// If threads or the batch change a bit.
    pub fn clustered_row(&self, clusters: &ClusterCase, level: Level) -> Result<Vec<f32>> {
        let head = self.clustered(clusters, level)?;
        let states = self.states()?;
        let mut probes = Probes::default();
        let mut rows = |count: usize, spread| -> Result<Vec<f32>> {
            let mut widened = Widened::default();
            widened.fill_rows(states, std::iter::repeat_n(0, count));
            let mut out = vec![0.0; count * self.vocab()];
            head.rows(&widened, spread, &mut probes, &mut out)?;
            Ok(out)
        };
        let row = rows(1, Spread::Caller)?;
        for (count, spread) in [(1, Spread::Rayon), (head.most_rows() + 1, Spread::Caller)] {
            let same = rows(count, spread)?
                .chunks(self.vocab())
                .all(|other| other.iter().zip(&row).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert!(same, "{count} rows, {spread:?}: another row of {self:?} by {clusters:?}");
        }
        Ok(row)
    }

    /// Returns the head of the case at a level.
    ///
    /// # Errors
    /// The errors of the head.
    pub fn exact(&self, level: Level) -> Result<Exact<'_>> {
        let weights: Weights<'_> = match self.weights.row() {
            Row::F32(all) => all.into(),
            Row::Bf16(all) => all.into(),
            Row::F16(all) => all.into(),
        };
        let bias = self.bias.as_deref().map(Into::into);
        let options = HeadOptions { bias, scaling: self.scaling, level: Some(level) };
        Exact::new(weights, self.vocab(), self.width, options)
    }

    /// Returns the logits that the exact head gives at a level, over one thread and over several.
    ///
    /// # Errors
    /// The errors of the head.
    ///
    /// # Panics
    /// If threads change a bit.
    pub fn by_the_cpu(&self, level: Level) -> Result<Vec<u32>> {
        let head = self.exact(level)?;
        let states = Widened::of(self.states()?);
        let logits = |spread| -> Result<Vec<u32>> {
            let mut out = vec![0.0; self.rows() * self.vocab()];
            head.logits(&states, spread, &mut out)?;
            Ok(out.into_iter().map(f32::to_bits).collect())
        };
        let (alone, over_threads) = (logits(Spread::Caller)?, logits(Spread::Rayon)?);
        assert_eq!(alone, over_threads, "threads change the logits of {self:?}");
        Ok(alone)
    }
}
