//! Steps from hidden states on a device: a head there makes the logits, and the kernels of a step go on as ever.

use gumball_cuda::{DraftIds, Head as CudaHead, HeadScreen, Rows, StepInput};
use gumball_head::{Certified, Clustered, ClusteredOptions, Clusters, Scaling, WholeRow};
use gumball_spec::head::clusters::Clusters as ClustersOfSpec;
use gumball_spec::{Error, Kind, Result};

use super::Device;
use super::input::{DeviceInput, DeviceOptions};
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use super::sequences::HostSequence;
use crate::lm_head::{Head, HeadCounts};
use crate::pool::Slot;

/// An LM head in a device's memory, with memory for the logits of some rows.
///
/// A pool's steps go from hidden states to tokens with it: [`DevicePool::enqueue_hidden`]. Steps of one head write the same memory, so they
/// must run one after the other, on one stream; several pools may share a head then.
#[derive(Debug)]
pub struct DeviceHead<'w> {
    pub(super) head: CudaHead<'w>,
}

impl DeviceHead<'static> {
    /// Copies a head to a device, for steps of at most `rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `rows` is outside 1..2^31.
    /// - [`Error::Unavailable`] for a head that lies on a device, a screen of two levels, or if the device has not enough memory: for the weights, 4 bytes for each logit of
    ///   `rows` rows; for a certified head a byte for each weight and some 10 bytes for each logit of the rows that it screens; for a
    ///   clustered one 2 or 4 bytes for each element of a centroid, and for each row 4 bytes for each cluster and each id of its probed set.
    pub fn new<'h>(device: &Device, head: impl Into<Head<'h>>, rows: usize) -> Result<Self> {
        let (exact, certified) = match head.into() {
            Head::Clustered(clustered) => return Self::of_clustered(device, clustered, rows),
            Head::Exact(exact) => (exact, None),
            Head::Certified(certified) => (certified.exact(), Some(certified)),
            Head::Device(_) => return Err(is_on_device()),
        };
        let (weights, shape) = (exact.weights().all(), (exact.vocab(), exact.width()));
        let head = CudaHead::copied(device.runtime(), weights, shape, exact.bias(), *exact.scaling(), rows)?;
        match certified {
            None => Ok(Self { head }),
            Some(certified) => Self { head }.with_screen(certified),
        }
    }

    fn of_clustered(device: &Device, head: &Clustered<'_>, rows: usize) -> Result<Self> {
        let (runtime, shape) = (device.runtime(), (head.vocab(), head.width()));
        let (weights, places, bias) = (head.weights().all(), head.places(), head.bias());
        let copied = CudaHead::copied_from_places(
            runtime,
            weights,
            places,
            shape,
            bias.as_deref(),
            *head.scaling(),
            rows,
        )?;
        Self { head: copied }.with_clusters(head.clusters(), &options_of(head))
    }
}

/// Returns what a clustered head was made with besides its clusters.
fn options_of(head: &Clustered<'_>) -> ClusteredOptions {
    let (probes, special_ids) = (Some(head.probes()), head.special_ids().to_vec());
    ClusteredOptions { probes, special_ids, ..ClusteredOptions::default() }
}

impl<'w> DeviceHead<'w> {
    /// Makes an exact head of weights that lie on the device already: `[vocab, width]`, row behind row, for steps of at most `rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary outside 1..=2^20, a width outside 1..=2^16, gaps between the rows of weights, a scaling
    ///   outside its range, or `rows` outside 1..2^31.
    /// - [`Error::Length`] if there is not one bias for each id.
    /// - [`Error::Unavailable`] if the device has not enough memory for the logits, 4 bytes for each id of each row.
    pub fn over(
        device: &Device,
        weights: Rows<'w>,
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Self> {
        Ok(Self { head: CudaHead::exact(device.runtime(), weights, bias, scaling, rows)? })
    }

    /// Makes a head of the same kind as one of the host, over the same weights on the device, in the order of ids: only what the host's head has derived
    /// from its weights is copied. The weights must be those of the host's head.
    ///
    /// # Errors
    /// Those of [`DeviceHead::over`], [`DeviceHead::with_screen`] and [`DeviceHead::with_clusters`].
    pub fn over_weights_of<'h>(
        device: &Device,
        head: impl Into<Head<'h>>,
        weights: Rows<'w>,
        rows: usize,
    ) -> Result<Self> {
        match head.into() {
            Head::Exact(exact) => Self::over(device, weights, exact.bias(), *exact.scaling(), rows),
            Head::Certified(certified) => {
                let exact = certified.exact();
                Self::over(device, weights, exact.bias(), *exact.scaling(), rows)?.with_screen(certified)
            }
            Head::Clustered(clustered) => {
                let (bias, scaling) = (clustered.bias(), *clustered.scaling());
                Self::over(device, weights, bias.as_deref(), scaling, rows)?
                    .with_clusters(clustered.clusters(), &options_of(clustered))
            }
            Head::Device(_) => Err(is_on_device()),
        }
    }

    /// Adds a copy of a certified head's screen, so that few logits are computed where they decide a row. The tokens stay the same. The
    /// screen must be one of the same weights and biases.
    ///
    /// # Errors
    /// - [`Error::Length`] if the screen has another vocabulary or width.
    /// - [`Error::Conflict`] if the head is fast, or has clusters or a screen.
    /// - [`Error::Unavailable`] for a screen of two levels, or if the device has not enough memory.
    pub fn with_screen(self, certified: &Certified<'_>) -> Result<Self> {
        let Some(screen) = certified.screen() else {
            let reason =
                "a screen of two levels runs on CPUs only; make the head by Certified::new".to_owned();
            return Err(Error::Unavailable { resource: "screen on a device", reason });
        };
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

    /// Adds a copy of clusters: from now on each row has the logits of its probed set, and -inf elsewhere (H7, H8 in `docs/semantics.md`). The
    /// results are those of a [`Clustered`] head on the host, bit for bit. The weights stay in the order of ids, so they may be an
    /// embedding's.
    ///
    /// Each row computes its own clusters, however many rows a step has: `most_rows` of the options plays no part.
    ///
    /// # Errors
    /// - [`Error::Length`] if the clusters are of another vocabulary or width.
    /// - [`Error::OutOfRange`] if `probes` is not in 1..=clusters, or a special id is not in the vocabulary.
    /// - [`Error::Conflict`] if the head is fast, or has a screen or clusters.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_clusters(self, clusters: &Clusters, options: &ClusteredOptions) -> Result<Self> {
        let clusters = ClustersOfSpec {
            ids: clusters.ids(),
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

    /// Returns whether tokens, kept sets and logprobs may be others than the exact head's because logits are left out: those of a head with
    /// clusters are.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.head.is_clustered()
    }

    /// Makes it a fast head: from now on the device's tensor cores compute the logits (H9 in `docs/semantics.md`). Tokens are then those
    /// of the device, the same in any batch; they may differ from those of the exact head, and of another device.
    ///
    /// Hidden states of another type are rounded to that of the weights.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for weights of f32, which tensor cores do not multiply.
    /// - [`Error::Conflict`] if the head has a screen or clusters, whose logits are the exact head's.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn fast(self) -> Result<Self> {
        Ok(Self { head: self.head.fast()? })
    }

    /// Sets how many rows of a step are screened at most; 64 if nobody says so. In a step of more rows all logits are computed. Tokens do
    /// not depend on it.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device has not enough memory for the bounds of `most_rows` rows.
    pub fn with_most_rows(self, most_rows: usize) -> Result<Self> {
        Ok(Self { head: self.head.with_most_rows(most_rows)? })
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

    /// Returns how many bytes of the screen of a certified head a step of at most eight rows reads. 0 for a head without a screen, and for one
    /// whose screen is not used, since it leaves out too many ids of the vocabulary.
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

    /// Waits for the enqueued work, and reads the logits of the last step's first rows. One that did not matter reads as -inf.
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

/// The error of a head that is to be copied to a device, and lies on one.
fn is_on_device() -> Error {
    let reason = "copy the host's head".to_owned();
    Error::Unavailable { resource: "copy of a head that lies on a device", reason }
}

impl DevicePool {
    /// Enqueues a step from hidden states: the next token of each, appended to the sequence in the row's slot.
    ///
    /// What comes out is, bit for bit, what [`DevicePool::enqueue`] makes of the logits that rules H1 and H2 give. The call allocates
    /// nothing on the device and waits for nothing, as [`DevicePool::enqueue`].
    ///
    /// # Shapes and units
    /// `input`: R hidden states of the head's width, in place of logits; f32, bf16 or f16, strided. `slots` and `options`: as for
    /// [`DevicePool::enqueue`], without `row_indices`.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue`].
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, hidden states have another width than the head, or there are
    ///   more than its capacity.
    /// - [`Error::Conflict`] for `row_indices`.
    ///
    /// After an error no sequence has changed.
    pub fn enqueue_hidden<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_head(head)?;
        self.assign(slots, options)?;
        self.enqueue_hidden_assigned(head, input)
    }

    /// Enqueues a step from hidden states for the rows that were assigned last; it only launches kernels. If the host program is capturing
    /// the device's stream in a graph of its own, the step becomes part of it, as [`DevicePool::enqueue_assigned`] says; the head must then
    /// stay as it is, in the same place, as long as that graph is replayed.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_hidden`] that concern head and input.
    pub fn enqueue_hidden_assigned<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
    ) -> Result<()> {
        self.check_head(head)?;
        let input = input.into();
        self.enqueue_step(&StepInput { head: Some(&head.head), ..input.of_step() }, None)?;
        Ok(())
    }

    /// Enqueues the verification of drafts from hidden states, one for each row, for the requests that
    /// [`DevicePool::assign_drafts`] named last. See [`DevicePool::enqueue_verify_assigned`].
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_verify_assigned`].
    /// - Those of [`DevicePool::enqueue_hidden`] that concern head and input.
    pub fn enqueue_verify_hidden_assigned<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
        drafts: &DraftIds<'b>,
    ) -> Result<()> {
        self.check_head(head)?;
        let input = input.into();
        let (head, drafts) = (Some(&head.head), Some(*drafts));
        self.enqueue_step(&StepInput { head, drafts, ..input.of_step() }, None)?;
        Ok(())
    }

    /// Returns why a certified head must compute every logit of a request's rows, whatever hidden state they have, or `None` if there is
    /// no such reason. See [`Pool::needs_whole_row`](crate::Pool::needs_whole_row).
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn needs_whole_row(&self, slot: Slot) -> Result<Option<WholeRow>> {
        let HostSequence { sequence, .. } = self.host_sequence(slot)?;
        if self.config.route == PoolRoute::Probabilities {
            return Ok(Some(WholeRow::Route));
        }
        Ok(Certified::decisive(&sequence.task(Kind::Logits, None, None), false, self.config.kept).err())
    }

    pub(super) fn check_head(&self, head: &DeviceHead<'_>) -> Result<()> {
        if head.vocab() != self.config.vocab {
            let allowed = format!("{} ids, the pool's vocabulary", self.config.vocab);
            return Err(Error::length("head", head.vocab(), allowed));
        }
        Ok(())
    }
}
