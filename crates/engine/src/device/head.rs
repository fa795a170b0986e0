//! Heads that lie in the memory of a device.

use gumball_cuda::{Head as CudaHead, HeadScreen, Rows};
use gumball_head::{Certified, ClusteredOptions, Clusters, Scaling};
#[cfg(doc)]
use gumball_spec::Error;
use gumball_spec::Result;
use gumball_spec::head::clusters::Clusters as ClustersOfSpec;

use super::Device;
use crate::head_counts::HeadCounts;

/// An LM head in a device's memory, with memory for the logits of some rows.
///
/// A pool's steps go from hidden states to tokens with it, in [`Rows::Hidden`](crate::Rows::Hidden). Steps of
/// one head write the same memory, so they must run one after the other, on one stream; several pools may
/// share a head then.
#[derive(Debug)]
pub struct DeviceHead<'w> {
    pub(super) head: CudaHead<'w>,
}

impl<'w> DeviceHead<'w> {
    /// Makes an exact head of weights that lie on the device already: `[vocab, width]`, row after row, for
    /// steps of at most `rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary outside 1..=2^20, a width outside 1..=2^16, gaps between the
    ///   rows of weights, a scaling outside its range, or `rows` outside 1..2^31.
    /// - [`Error::Length`] if there is not one bias for each id.
    /// - [`Error::Unavailable`] if the device has not enough memory for the logits, 4 bytes for each id of
    ///   each row.
    pub fn over(
        device: &Device,
        weights: Rows<'w>,
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Self> {
        Ok(Self { head: CudaHead::exact(device.runtime(), weights, bias, scaling, rows)? })
    }

    /// Adds a copy of a certified head's screen, so that few logits are computed where they decide a row. The
    /// tokens stay the same. The screen must be one of the same weights and biases.
    ///
    /// # Errors
    /// - [`Error::Length`] if the screen has another vocabulary or width.
    /// - [`Error::Conflict`] if the head is fast, or has clusters or a screen.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_screen(self, certified: &Certified<'_>) -> Result<Self> {
        let screen = certified.screen();
        let screen = HeadScreen {
            codes: screen.codes,
            padded: screen.padded,
            scales: screen.scales,
            own: screen.own,
            code_norms: screen.code_norms,
            mean: screen.mean,
            mean_norm: screen.mean_norm,
            unscreened: screen.unscreened,
        };
        Ok(Self { head: self.head.with_screen(&screen)? })
    }

    /// Adds a copy of clusters: from now on each row has the logits of its probed set, and -inf elsewhere
    /// (H7, H8 in `docs/semantics.md`). Unless the head is fast, the results equal the results of a
    /// [`Clustered`](gumball_head::Clustered) head on the host, bit for bit. The weights stay in the order of
    /// ids, so they may be an embedding's.
    ///
    /// So it does however many rows a step has: `most_rows` of the options plays no part.
    ///
    /// # Errors
    /// - [`Error::Length`] if the clusters are of another vocabulary or width.
    /// - [`Error::OutOfRange`] if `probes` is not in 1..=clusters, a special id is not in the vocabulary, or
    ///   the head is fast and a centroid is not finite in the type of the weights.
    /// - [`Error::Conflict`] if the head has a screen or clusters.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_clusters(self, clusters: &Clusters, options: &ClusteredOptions) -> Result<Self> {
        let clusters = ClustersOfSpec {
            maps: clusters.maps(),
            capacity: clusters.capacity(),
            centroids: clusters.centroids(),
            probes: options.probes(clusters),
            special_ids: &options.special_ids,
        };
        Ok(Self { head: self.head.with_clusters(&clusters)? })
    }

    /// Sets how many clusters a hidden state probes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it is not in 1..=clusters, or the head has no clusters.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_probes(self, probes: usize) -> Result<Self> {
        Ok(Self { head: self.head.with_probes(probes)? })
    }

    /// Returns whether tokens, kept sets and logprobs may be others than the exact head's because logits are
    /// left out, as a head with clusters does.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.head.is_clustered()
    }

    /// Makes it a fast head: from now on the device's tensor cores compute the logits (H9 in
    /// `docs/semantics.md`); a head with clusters still computes the logits of probed sets alone (H10).
    /// Tokens are then the device's, the same in any batch; the exact head and another device may draw
    /// others.
    ///
    /// Hidden states and centroids of another type are rounded to the weights' type. With clusters a step of
    /// up to 64 rows reads once the weights of all ids that any row probes, a larger one all weights.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for weights of f32, which tensor cores do not multiply, and for a centroid
    ///   that is not finite in the type of the weights.
    /// - [`Error::Conflict`] if the head is fast, or has a screen, whose logits are the exact head's.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn fast(self) -> Result<Self> {
        Ok(Self { head: self.head.fast()? })
    }

    /// Sets how many bytes of reading a screen must save in a step to be used in it; default: 64 MiB on GPUs,
    /// which an H200 reads while the screen's kernels start, 0 on an emulated device. Tokens do not depend on
    /// it.
    #[must_use]
    pub fn with_least_saved(self, least_saved: usize) -> Self {
        Self { head: self.head.with_least_saved(least_saved) }
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.head.vocab()
    }

    /// Returns the number of elements of a hidden state.
    #[must_use]
    pub fn width(&self) -> usize {
        self.head.width()
    }

    /// Returns how many rows a step may have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.head.capacity()
    }

    /// Returns how many bytes of the screen of a certified head a step of at most eight rows reads. 0 for a
    /// head without a screen, and for one whose screen is not used, since it leaves out too many ids of the
    /// vocabulary.
    #[must_use]
    pub fn screen_bytes(&self) -> usize {
        self.head.screen_bytes()
    }

    /// Waits for the enqueued work, and returns what the head has done since it was made.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    pub fn counts(&self) -> Result<HeadCounts> {
        let counts = self.head.counts()?;
        Ok(HeadCounts {
            whole_rows: counts.whole_rows,
            certified_rows: counts.certified_rows,
            certified_logits: counts.certified_logits,
            clustered_rows: counts.clustered_rows,
            clustered_logits: counts.clustered_logits,
            ..HeadCounts::default()
        })
    }

    /// Waits for the enqueued work, and reads the logits of the last step's first rows. One that did not
    /// matter reads as -inf.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If `logits` is longer than the logits of the head's capacity of rows.
    pub fn read_logits(&self, logits: &mut [f32]) -> Result<()> {
        self.head.read_logits(logits)
    }
}
