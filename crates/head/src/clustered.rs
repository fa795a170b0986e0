//! The clustered head: the logits of the ids whose clusters look likeliest, and no others (H7, H8).
//! Approximate.
//!
//! ```text
//! centroids x hidden states -> scores; the first clusters of each row
//! their rows of weights, which lie together, x the hidden state -> logits; special ids too; -inf elsewhere
//! ```
//!
//! The arithmetic is the exact head's, and so are the bits of every logit. Which logits are left out is a
//! matter of the clusters: no promise is made that the exact head's token is among what is probed.

use gumball_cpu::Level;
use gumball_spec::head::Scaling;
use gumball_spec::head::clusters::{check_probes, check_special_ids, short_centroids};
use gumball_spec::num::{key, key_id};
use gumball_spec::row::clean;
use gumball_spec::{Error, Result, memory};
use rayon::prelude::*;

use crate::clusters::{Clusters, WeightsMut};
use crate::exact::{Exact, HeadOptions};
use crate::spread::{Spread, rows_of_piece};
use crate::states::Widened;
use crate::weights::Weights;

/// The share of a row's clusters that is probed by default: one in this number.
const PART_PROBED: usize = 8;

/// Up to how many rows of a step each computes its own clusters if more than one in [`PART_SPARSE`] is
/// probed, unless a caller says otherwise; more rows are computed whole. The exact head multiplies four
/// hidden states with a row of weights that it has read, which makes up for the logits that it computes
/// without need.
const MOST_ROWS: usize = 16;

/// Where at most one cluster in this number is probed, the rows of a step compute their own clusters, however
/// many they are.
const PART_SPARSE: usize = 6;

/// The parts of a clustered head besides its clusters.
#[derive(Clone, Debug, Default)]
pub struct ClusteredOptions {
    /// How many clusters a hidden state probes, in 1..=clusters; `None`: an eighth of them.
    pub probes: Option<usize>,
    /// Ids whose logits are always computed: ends of text, of turns, of tool calls.
    pub special_ids: Vec<u32>,
    /// In a step of more rows than this all logits are computed, and those outside the probed sets left out;
    /// `None`: 16 if more than a sixth of the clusters are probed, else no number of rows. What comes out
    /// does not depend on it.
    pub most_rows: Option<usize>,
}

impl ClusteredOptions {
    /// Returns how many of some clusters a hidden state probes.
    #[must_use]
    pub fn probes(&self, clusters: &Clusters) -> usize {
        self.probes.unwrap_or_else(|| clusters.count().div_ceil(PART_PROBED))
    }

    /// Checks them for a head of `vocab` ids in `clusters` clusters.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `probes` is not in 1..=clusters, or special ids are not in the vocabulary;
    ///   it names them.
    pub fn check(&self, vocab: usize, clusters: usize) -> Result<()> {
        self.probes.map_or(Ok(()), |probes| check_probes(probes, clusters))?;
        check_special_ids(&self.special_ids, vocab)
    }
}

/// A head that computes the logits of the clusters that look likeliest.
#[derive(Clone, Debug)]
pub struct Clustered<'w> {
    /// The rows of the clusters, in their order; the bias likewise.
    permuted: Exact<'w>,
    centroids: Exact<'static>,
    clusters: Clusters,
    /// For each id its place among the permuted rows.
    places: Vec<u32>,
    probes: usize,
    special_ids: Vec<u32>,
    special_places: Vec<u32>,
    most_rows: Option<usize>,
}

/// Buffers of a batch of rows, kept from step to step.
#[derive(Debug, Default)]
pub struct Probes {
    scores: Vec<f32>,
    keys: Vec<u64>,
    logits: Vec<f32>,
}

/// The work that computed some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Whether all logits were computed, since there were many rows.
    pub is_whole: bool,
    /// How many logits were computed otherwise, for all rows; one that several of these need counts for each.
    pub logits: usize,
}

impl<'w> Clustered<'w> {
    /// Makes a clustered head of an exact one: a copy of its rows is taken, in the order of the clusters.
    ///
    /// # Errors
    /// - [`Error::Length`] if the clusters are of another vocabulary or width.
    /// - [`Error::OutOfRange`] if `probes` is not in 1..=clusters, or a special id is not in the vocabulary.
    pub fn new(
        exact: &Exact<'_>,
        clusters: Clusters,
        options: &ClusteredOptions,
    ) -> Result<Clustered<'static>> {
        clusters.check_shape(exact.vocab(), exact.width())?;
        options.check(clusters.vocab(), clusters.count())?;
        let head = HeadOptions {
            bias: exact.bias().map(|bias| bias.to_vec().into()),
            scaling: *exact.scaling(),
            level: Some(exact.level()),
        };
        Clustered::over_permuted(clusters.permuted(exact.weights())?, head, clusters, options)
    }

    /// Makes a clustered head of weights `[vocab, width]`, which are permuted where they lie: row i is then
    /// the row of id `clusters.ids()[i]`, and any other reader of them, an embedding for instance, has to
    /// look up [`Clustered::places`]. `head`: as for [`Exact::new`]; its bias is in the order of ids, and is
    /// copied.
    ///
    /// # Errors
    /// - The errors of [`Exact::new`] and [`Clustered::new`]. No row was moved then.
    pub fn in_place(
        weights: impl Into<WeightsMut<'w>>,
        head: HeadOptions<'_>,
        clusters: Clusters,
        options: &ClusteredOptions,
    ) -> Result<Self> {
        let mut weights = weights.into();
        options.check(clusters.vocab(), clusters.count())?;
        let checked = Exact::new(weights.shared(), clusters.vocab(), clusters.width(), head.clone());
        drop(checked?);
        match &mut weights {
            WeightsMut::F32(all) => clusters.permute(&mut **all),
            WeightsMut::Bf16(all) => clusters.permute(&mut **all),
            WeightsMut::F16(all) => clusters.permute(&mut **all),
        }?;
        Self::over_permuted(weights.into_shared(), head, clusters, options)
    }

    /// Makes a clustered head of weights whose rows lie in the order of the clusters already: row i is that
    /// of id `clusters.ids()[i]`. `head`: as for [`Exact::new`]; its bias is in the order of ids, and is
    /// copied.
    ///
    /// # Errors
    /// - The errors of [`Exact::new`] and [`Clustered::new`].
    pub fn over_permuted(
        weights: impl Into<Weights<'w>>,
        head: HeadOptions<'_>,
        clusters: Clusters,
        options: &ClusteredOptions,
    ) -> Result<Self> {
        options.check(clusters.vocab(), clusters.count())?;
        let (vocab, width) = (clusters.vocab(), clusters.width());
        let HeadOptions { bias, scaling, level } = head;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != vocab) {
            return Err(Error::length("bias", bias.len(), format!("one for each of {vocab} ids")));
        }
        let bias: Option<Vec<f32>> =
            bias.map(|bias| clusters.ids().iter().map(|id| bias[*id as usize]).collect());
        let head = HeadOptions { bias: bias.map(Into::into), scaling, level };
        let permuted = Exact::new(weights, vocab, width, head)?;
        let options_of_centroids = HeadOptions { level, ..HeadOptions::default() };
        let short = short_centroids(clusters.centroids())?;
        let centroids: Weights<'_> = short.map_or_else(|| clusters.centroids().to_vec().into(), Into::into);
        let centroids = Exact::new(centroids, clusters.count(), width, options_of_centroids)?;
        let places = clusters.places();
        let mut special_ids = options.special_ids.clone();
        special_ids.sort_unstable();
        special_ids.dedup();
        let special_places = special_ids.iter().map(|id| places[*id as usize]).collect();
        let probes = options.probes(&clusters);
        let most_rows = options.most_rows;
        Ok(Self { permuted, centroids, clusters, places, probes, special_ids, special_places, most_rows })
    }

    /// Sets how many clusters a hidden state probes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it is not in 1..=clusters.
    pub fn with_probes(mut self, probes: usize) -> Result<Self> {
        self.set_probes(probes)?;
        Ok(self)
    }

    /// Sets how many clusters a hidden state probes from now on.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it is not in 1..=clusters; the number stays as it was.
    pub fn set_probes(&mut self, probes: usize) -> Result<()> {
        check_probes(probes, self.clusters.count())?;
        self.probes = probes;
        Ok(())
    }

    /// Returns how many clusters a hidden state probes.
    #[must_use]
    pub fn probes(&self) -> usize {
        self.probes
    }

    /// Returns the ids whose logits are always computed, ascending.
    #[must_use]
    pub fn special_ids(&self) -> &[u32] {
        &self.special_ids
    }

    /// Returns up to how many rows of a step each computes its own clusters.
    #[must_use]
    pub fn most_rows(&self) -> usize {
        let is_sparse = self.probes <= self.clusters.count() / PART_SPARSE;
        self.most_rows.unwrap_or(if is_sparse { usize::MAX } else { MOST_ROWS })
    }

    /// Returns the clusters.
    #[must_use]
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// Returns for each id the place of its row among the weights.
    #[must_use]
    pub fn places(&self) -> &[u32] {
        &self.places
    }

    /// Returns the head over the rows in the order of the clusters.
    pub(crate) fn permuted(&self) -> &Exact<'w> {
        &self.permuted
    }

    /// Returns the weights, in the order of the clusters.
    #[must_use]
    pub fn weights(&self) -> &Weights<'w> {
        self.permuted.weights()
    }

    /// Returns the bias, in the order of ids.
    #[must_use]
    pub fn bias(&self) -> Option<Vec<f32>> {
        let bias = self.permuted.bias()?;
        Some(self.places.iter().map(|place| bias[*place as usize]).collect())
    }

    /// Returns what follows the product.
    #[must_use]
    pub fn scaling(&self) -> &Scaling {
        self.permuted.scaling()
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.permuted.vocab()
    }

    /// Returns the elements of a hidden state.
    #[must_use]
    pub fn width(&self) -> usize {
        self.permuted.width()
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.permuted.level()
    }

    /// Returns how many bytes of centroids a step reads.
    #[must_use]
    pub fn centroid_bytes(&self) -> usize {
        self.clusters.centroids().len() * self.centroids.weights().element_bytes()
    }

    /// Checks that hidden states have the length of a row of weights.
    ///
    /// # Errors
    /// - [`Error::Length`] if they have not.
    pub fn check_width(&self, width: usize) -> Result<()> {
        self.permuted.check_width(width)
    }

    /// Computes every logit of hidden states, in the order of ids: bit for bit the logits of the exact head
    /// over rows that were not permuted.
    ///
    /// # Shapes and units
    /// `states`: R hidden states. `out`: `[R, vocab]`.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state or `out` has another length.
    /// - [`Error::Unavailable`] if the system refuses 4 bytes for each logit.
    pub fn logits(
        &self,
        states: &Widened,
        spread: Spread,
        probes: &mut Probes,
        out: &mut [f32],
    ) -> Result<()> {
        self.check(states, out)?;
        let permuted = self.whole_rows(states, spread, probes)?;
        let of_row = |(row, permuted): (&mut [f32], &[f32])| {
            row.iter_mut().zip(&self.places).for_each(|(z, place)| *z = permuted[*place as usize]);
        };
        let vocab = self.vocab();
        match spread {
            Spread::Caller => out.chunks_mut(vocab).zip(permuted.chunks(vocab)).for_each(of_row),
            Spread::Rayon => out.par_chunks_mut(vocab).zip(permuted.par_chunks(vocab)).for_each(of_row),
        }
        Ok(())
    }

    /// Computes the rows of hidden states: the logits of each one's probed set, -inf elsewhere (H8). A row
    /// depends on nothing but its own hidden state.
    ///
    /// # Shapes and units
    /// `states`: R hidden states. `out`: `[R, vocab]`.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state or `out` has another length.
    /// - [`Error::Unavailable`] if the system refuses the memory: 12 bytes for each cluster of each row, and
    ///   4 for each logit that is computed.
    pub fn rows(
        &self,
        states: &Widened,
        spread: Spread,
        probes: &mut Probes,
        out: &mut [f32],
    ) -> Result<Probed> {
        self.check(states, out)?;
        self.probe(states, spread, probes)?;
        let is_whole = states.rows() > self.most_rows();
        if is_whole {
            self.whole_rows(states, spread, probes)?;
        } else {
            self.rows_of_clusters(states, spread, probes)?;
        }
        let of_row = |(row, out): (usize, &mut [f32])| self.place(row, states, is_whole, probes, out);
        let vocab = self.vocab();
        match spread {
            Spread::Caller => out.chunks_mut(vocab).enumerate().try_for_each(of_row),
            Spread::Rayon => out.par_chunks_mut(vocab).enumerate().try_for_each(of_row),
        }?;
        let of_row =
            |row| self.probed(probes, row).map(|cluster| self.clusters.places_of(cluster).len()).sum();
        let logits = if is_whole { 0 } else { (0..states.rows()).map::<usize, _>(of_row).sum() };
        let special = if is_whole { 0 } else { states.rows() * self.special_ids.len() };
        Ok(Probed { is_whole, logits: logits + special })
    }

    fn check(&self, states: &Widened, out: &[f32]) -> Result<()> {
        self.check_width(states.width())?;
        let (rows, vocab) = (states.rows(), self.vocab());
        if out.len() == rows * vocab {
            return Ok(());
        }
        Err(Error::length("logits", out.len(), format!("{rows} rows of {vocab} logits")))
    }

    /// Finds the clusters that each row probes: the first keys of its part, in the order of clusters.
    fn probe(&self, states: &Widened, spread: Spread, probes: &mut Probes) -> Result<()> {
        let (count, Probes { scores, keys, .. }) = (self.clusters.count(), probes);
        let length = memory::product(MEMORY, &[states.rows(), count])?;
        memory::reserve(MEMORY, scores, length)?;
        scores.resize(length, 0.0);
        memory::reserve(MEMORY, keys, length)?;
        keys.resize(length, 0);
        self.centroids.logits(states, spread, scores)?;
        let of_row = |(keys, scores): (&mut [u64], &[f32])| {
            let scores = scores.iter().zip(0..);
            keys.iter_mut().zip(scores).for_each(|(of, (score, cluster))| *of = key(clean(*score), cluster));
            if self.probes < count {
                keys.select_nth_unstable_by(self.probes - 1, |a, b| b.cmp(a));
            }
            keys[..self.probes].sort_unstable_by_key(|key| key_id(*key));
        };
        match spread {
            Spread::Caller => keys.chunks_mut(count).zip(scores.chunks(count)).for_each(of_row),
            Spread::Rayon => keys.par_chunks_mut(count).zip(scores.par_chunks(count)).for_each(of_row),
        }
        Ok(())
    }

    /// Returns the clusters that a row probes, in their order.
    fn probed<'a>(&self, probes: &'a Probes, row: usize) -> impl Iterator<Item = usize> + 'a {
        let keys = &probes.keys[row * self.clusters.count()..][..self.probes];
        keys.iter().map(|key| key_id(*key) as usize)
    }

    /// Computes the logits of the clusters that each row probes, a place of `capacity` for each.
    fn rows_of_clusters(&self, states: &Widened, spread: Spread, probes: &mut Probes) -> Result<()> {
        let (capacity, width, count) = (self.clusters.capacity(), self.width(), self.clusters.count());
        let of_row = self.probes * capacity;
        let Probes { keys, logits, .. } = probes;
        let length = memory::product(MEMORY, &[states.rows(), of_row])?;
        memory::reserve(MEMORY, logits, length)?;
        logits.resize(length.max(logits.len()), 0.0);
        let of_clusters = |row: usize, first: usize, out: &mut [f32]| {
            let keys = &keys[row * count + first..];
            for (key, out) in keys.iter().zip(out.chunks_mut(capacity)) {
                let places = self.clusters.places_of(key_id(*key) as usize);
                let mut out = [&mut out[..places.len()]];
                self.permuted.piece(places, states.padded(row..row + 1), &mut out);
            }
        };
        let clusters_of_piece =
            rows_of_piece(width * self.permuted.weights().element_bytes()).div_ceil(capacity);
        let piece = clusters_of_piece * capacity;
        let rows = &mut logits[..length];
        match spread {
            Spread::Caller => {
                rows.chunks_mut(of_row).enumerate().for_each(|(row, out)| of_clusters(row, 0, out))
            }
            Spread::Rayon => rows.par_chunks_mut(of_row).enumerate().for_each(|(row, out)| {
                let pieces = out.par_chunks_mut(piece).enumerate();
                pieces.for_each(|(i, out)| of_clusters(row, i * clusters_of_piece, out));
            }),
        }
        Ok(())
    }

    /// Computes all logits, in the order of the permuted rows.
    fn whole_rows<'a>(&self, states: &Widened, spread: Spread, probes: &'a mut Probes) -> Result<&'a [f32]> {
        let logits = &mut probes.logits;
        let length = memory::product(MEMORY, &[states.rows(), self.vocab()])?;
        memory::reserve(MEMORY, logits, length)?;
        logits.resize(length.max(logits.len()), 0.0);
        self.permuted.logits(states, spread, &mut logits[..length])?;
        Ok(&logits[..length])
    }

    /// Writes a row from its computed logits.
    fn place(
        &self,
        row: usize,
        states: &Widened,
        is_whole: bool,
        probes: &Probes,
        out: &mut [f32],
    ) -> Result<()> {
        out.fill(f32::NEG_INFINITY);
        let capacity = self.clusters.capacity();
        for (i, cluster) in self.probed(probes, row).enumerate() {
            let places = self.clusters.places_of(cluster);
            let start =
                if is_whole { row * self.vocab() + places.start } else { (row * self.probes + i) * capacity };
            let logits = &probes.logits[start..][..places.len()];
            self.clusters.ids()[places].iter().zip(logits).for_each(|(id, z)| out[*id as usize] = *z);
        }
        for (id, place) in self.special_ids.iter().zip(&self.special_places) {
            let z = &mut out[*id as usize];
            match is_whole {
                true => *z = probes.logits[row * self.vocab() + *place as usize],
                false => self.permuted.logits_of(states, row, &[*place], std::slice::from_mut(z))?,
            }
        }
        Ok(())
    }
}

/// Names, in errors, the memory of a step.
const MEMORY: &str = "memory for clusters";
