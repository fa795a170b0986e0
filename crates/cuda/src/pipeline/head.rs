//! Heads: weights, and perhaps a screen of them, from which kernels make the rows of logits of hidden states.

use std::sync::Arc;

use gumball_spec::head::clusters::Clusters as ClustersOfSpec;
use gumball_spec::head::{MAX_HIDDEN, Scaling};
use gumball_spec::shape::check_vocab;
use gumball_spec::{Error, Kind, Result, Row, memory};

use crate::abi::dtype::Dtype;
use crate::abi::{self, HeadRow, MATRIX_CHUNK_BYTES, MATRIX_GROUP_COLUMNS, Slot, TILE, head_flags};
use crate::driver::runtime::Runtime;
use crate::launch::head::{Centroids, aligned_flag};
use crate::launch::tuning;
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::rows::{ROWS_AT_ONCE, Rows};
use crate::pipeline::head_clusters::Clusters;
use crate::pipeline::head_screen::{HeadScreen, Screen};

/// The bytes of rows that are put in order at a time, about.
const BYTES_AT_ONCE: usize = 1 << 26;

/// The kinds of heads, as errors name them.
const FAST: &str = "fast";
const SCREEN: &str = "screen";
const CLUSTERS: &str = "clusters";

/// Why a head with a screen is no other kind.
const SCREEN_DECIDES: &str = "a screen decides as the exact head would; make a head without one";

/// A head in a device's memory, with memory for the logits of some rows.
///
/// Steps write the same memory: they must run one after the other, on one stream.
#[derive(Debug)]
pub struct Head<'w> {
    /// A row of weights for each id.
    weights: Rows<'w>,
    /// The memory of the weights, if it is the head's own.
    _owned: Option<Buffer>,
    bias: Option<Buffer>,
    scaling: Scaling,
    screen: Option<Screen>,
    clusters: Option<Clusters>,
    /// Hidden states in the type of the weights, if tensor cores multiply.
    short_states: Option<Buffer>,
    least_saved: usize,
    capacity: usize,
    states: Buffer,
    head_rows: Buffer,
    /// Zeros, for rows of which each rank computes a part: it does so whosever they are, of padding too.
    no_slots: Buffer,
    logits: Buffer,
    counts: Buffer,
    runtime: Arc<dyn Runtime>,
}

/// What a head has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadCounts {
    /// Rows whose logits were all computed.
    pub whole_rows: u64,
    /// Rows that were decided by a part of their logits.
    pub certified_rows: u64,
    /// How many logits that took, for all of these rows.
    pub certified_logits: u64,
    /// Rows of which the probed sets alone were computed.
    pub clustered_rows: u64,
    /// How many logits their probed sets have, for all of these rows; a special id counts once more.
    pub clustered_logits: u64,
}

impl<'w> Head<'w> {
    /// Makes a head of weights in the device's memory: `[vocab, width]`, row after row, for steps of at most
    /// `rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary outside 1..=2^20, a width outside 1..=2^16, weights with gaps
    ///   between their rows, a scaling outside its range, or `rows` of 0 or beyond 2^31 - 1.
    /// - [`Error::Length`] if there is not one bias for each id.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn exact(
        runtime: &Arc<dyn Runtime>,
        weights: Rows<'w>,
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Self> {
        let (vocab, width) = (weights.rows, weights.vocab);
        check_vocab(vocab)?;
        check_width(width)?;
        if weights.stride != width {
            return Err(Error::out_of_range("weights.stride", weights.stride, format!("{width}, the width")));
        }
        if !(1..=i32::MAX as usize).contains(&rows) {
            return Err(Error::out_of_range("rows", rows, "in 1..2^31"));
        }
        if let Some(bias) = bias.filter(|bias| bias.len() != vocab) {
            return Err(Error::length("bias", bias.len(), format!("one for each of {vocab} ids")));
        }
        scaling.check()?;
        let alloc = |sizes: &[usize]| Buffer::sized(runtime, ROWS, sizes);
        Ok(Self {
            logits: alloc(&[rows, vocab, size_of::<f32>()])?,
            states: alloc(&[rows, padded_width(width), size_of::<f32>()])?,
            head_rows: alloc(&[rows, size_of::<HeadRow>()])?,
            no_slots: alloc(&[rows, size_of::<Slot>()])?,
            counts: alloc(&[3, size_of::<u64>()])?,
            bias: bias.map(|bias| Buffer::of(runtime, bias)).transpose()?,
            weights,
            _owned: None,
            scaling,
            screen: None,
            clusters: None,
            short_states: None,
            least_saved: runtime.limits().least_saved,
            capacity: rows,
            runtime: Arc::clone(runtime),
        })
    }

    /// Makes a head of weights in the host's memory, which are copied to the device. See [`Head::exact`].
    ///
    /// # Shapes and units
    /// `weights`: the elements of `[vocab, width]`, row after row.
    ///
    /// # Errors
    /// - The errors of [`Head::exact`].
    /// - [`Error::Length`] if there are not `vocab * width` weights.
    pub fn copied(
        runtime: &Arc<dyn Runtime>,
        weights: Row<'_>,
        shape: (usize, usize),
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Head<'static>> {
        let copy = |bytes: &[u8], _| Ok(Buffer::of(runtime, bytes)?);
        Self::copied_by(copy, runtime, weights, shape, bias, scaling, rows)
    }

    /// Makes a head of weights in the host's memory whose rows lie in another order than ids do: that of an
    /// id at its place in `places`. They are copied to the device in the order of ids, in which `bias` is,
    /// too. See [`Head::copied`].
    ///
    /// # Errors
    /// - The errors of [`Head::copied`].
    /// - [`Error::Length`] if there is not one place for each id.
    /// - [`Error::OutOfRange`] for a place that is not in 0..vocab.
    pub fn copied_from_places(
        runtime: &Arc<dyn Runtime>,
        weights: Row<'_>,
        places: &[u32],
        shape: (usize, usize),
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Head<'static>> {
        let (vocab, _) = shape;
        if places.len() != vocab {
            return Err(Error::length("places", places.len(), format!("one for each of {vocab} ids")));
        }
        if let Some(place) = places.iter().find(|place| **place as usize >= vocab) {
            return Err(Error::out_of_range("places", *place, format!("in 0..{vocab}")));
        }
        let copy = |bytes: &[u8], row_bytes: usize| {
            let mut buffer = Buffer::sized(runtime, ROWS, &[bytes.len()])?;
            let at_once = ROWS_AT_ONCE.min(BYTES_AT_ONCE.div_ceil(row_bytes));
            let mut in_order = memory::with_capacity("memory for rows in order", at_once * row_bytes)?;
            for (part, places) in places.chunks(at_once).enumerate() {
                in_order.clear();
                let rows = places.iter().map(|place| &bytes[*place as usize * row_bytes..][..row_bytes]);
                rows.for_each(|row| in_order.extend_from_slice(row));
                buffer.write(part * at_once * row_bytes, &in_order)?;
            }
            Ok(buffer)
        };
        Self::copied_by(copy, runtime, weights, shape, bias, scaling, rows)
    }

    /// Makes a head of weights that `copy` copies to the device, given their bytes and those of a row.
    fn copied_by(
        copy: impl FnOnce(&[u8], usize) -> Result<Buffer>,
        runtime: &Arc<dyn Runtime>,
        weights: Row<'_>,
        (vocab, width): (usize, usize),
        bias: Option<&[f32]>,
        scaling: Scaling,
        rows: usize,
    ) -> Result<Head<'static>> {
        check_vocab(vocab)?;
        check_width(width)?;
        if weights.vocab() != vocab * width {
            let allowed = format!("{vocab} rows of {width} weights");
            return Err(Error::length("weights", weights.vocab(), allowed));
        }
        let (dtype, bytes): (_, &[u8]) = match weights {
            Row::F32(weights) => (Dtype::F32, bytemuck::cast_slice(weights)),
            Row::Bf16(weights) => (Dtype::Bf16, bytemuck::cast_slice(weights)),
            Row::F16(weights) => (Dtype::F16, bytemuck::cast_slice(weights)),
        };
        let buffer = copy(bytes, width * dtype.bytes())?;
        // SAFETY: the rows lie in the buffer. The head, which keeps both, gives them to nobody that outlives
        // it.
        let rows_of_weights = unsafe { Rows::new(buffer.address(), dtype, vocab, width, width)? };
        let head = Head::exact(runtime, rows_of_weights, bias, scaling, rows)?;
        Ok(Head { _owned: Some(buffer), ..head })
    }

    /// Checks that a head can be [fast](Head::fast), before it is made.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for weights of f32, and [`Error::Conflict`] for a screen.
    pub fn check_fast(has_f32_weights: bool, has_screen: bool) -> Result<()> {
        if has_f32_weights {
            return Err(Error::out_of_range("weights", "f32", "bf16 or f16, for a fast head"));
        }
        if has_screen {
            return Err(Error::Conflict { parameter: FAST, other: SCREEN, reason: SCREEN_DECIDES });
        }
        Ok(())
    }

    /// Computes logits on tensor cores from now on. They add in an order of their own, which is neither that
    /// of H1 nor that of another device. A logit depends on its row's hidden state alone, not on other rows
    /// or on how many there are. Hidden states, and the centroids of clusters, are rounded to the type of the
    /// weights first.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for weights of f32, which tensor cores do not multiply, and for a centroid
    ///   that is not finite in the type of the weights.
    /// - [`Error::Conflict`] if the head is fast, or has a screen, which needs the logits of H1.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn fast(mut self) -> Result<Self> {
        Self::check_fast(self.weights.dtype == Dtype::F32, self.screen.is_some())?;
        self.refuse_kinds(FAST, &[FAST])?;
        let clusters = self.clusters.take();
        self.clusters =
            clusters.map(|of| of.of_fast(&self.runtime, self.weights.dtype, self.capacity)).transpose()?;
        let columns = self.capacity.next_multiple_of(MATRIX_GROUP_COLUMNS);
        let bytes = tuning::column_bytes(self.width() * size_of::<u16>());
        self.short_states = Some(Buffer::sized(&self.runtime, ROWS, &[columns, bytes])?);
        Ok(self)
    }

    /// Adds a screen, which is copied to the device. Then the logits that decide a row are computed, and no
    /// others, where the request allows it; the tokens stay the same. A screen that leaves more than a
    /// quarter of the ids out is not used.
    ///
    /// # Errors
    /// - [`Error::Length`] if a part of the screen has another length than the head's vocabulary and width
    ///   demand.
    /// - [`Error::OutOfRange`] for an unscreened id outside the vocabulary.
    /// - [`Error::Conflict`] if the head is fast, or has clusters or a screen.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_screen(mut self, screen: &HeadScreen<'_>) -> Result<Self> {
        self.refuse_kinds("screen", &[FAST, SCREEN, CLUSTERS])?;
        let shape @ (vocab, width) = (self.vocab(), self.width());
        screen.check(vocab, width)?;
        if screen.leaves_few_out(vocab) {
            self.screen = Some(Screen::new(&self.runtime, screen, shape, self.capacity)?);
        }
        Ok(self)
    }

    /// Adds clusters, which are copied to the device. Then each row has the logits of its probed set, and
    /// -inf elsewhere (H7, H8, of a fast head H10), however many rows a step has. The weights stay in the
    /// order of ids.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one centroid of the head's width for each cluster.
    /// - [`Error::OutOfRange`] for ids that are not each in one cluster, a centroid that is not finite, of a
    ///   fast head in the type of the weights, `probes` outside 1..=clusters, or a special id outside the
    ///   vocabulary.
    /// - [`Error::Conflict`] if the head has a screen or clusters.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_clusters(mut self, clusters: &ClustersOfSpec<'_>) -> Result<Self> {
        self.refuse_kinds("clusters", &[SCREEN, CLUSTERS])?;
        let shape = (self.vocab(), self.width());
        let made = Clusters::new(&self.runtime, clusters, shape, self.capacity)?;
        let is_fast = self.short_states.is_some();
        let of_fast = |made: Clusters| made.of_fast(&self.runtime, self.weights.dtype, self.capacity);
        self.clusters = Some(if is_fast { of_fast(made)? } else { made });
        Ok(self)
    }

    /// Sets how many clusters a hidden state probes.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it is not in 1..=clusters, or the head has no clusters.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    pub fn with_probes(mut self, probes: usize) -> Result<Self> {
        let Some(clusters) = &mut self.clusters else {
            return Err(Error::out_of_range("probes", probes, "for a head with clusters"));
        };
        clusters.reserve(&self.runtime, probes, self.capacity)?;
        Ok(self)
    }

    /// Returns whether it computes the logits of probed sets alone.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        self.clusters.is_some()
    }

    /// Refuses to make a head of another kind of one that is of one of these kinds already.
    fn refuse_kinds(&self, parameter: &'static str, others: &[&'static str]) -> Result<()> {
        let kinds = [
            (
                FAST,
                self.short_states.is_some(),
                "tensor cores add in another order than H1; make another head",
            ),
            (SCREEN, self.screen.is_some(), SCREEN_DECIDES),
            (
                CLUSTERS,
                self.clusters.is_some(),
                "a clustered head computes the logits of probed sets alone; make another head",
            ),
        ];
        match kinds.into_iter().find(|(kind, is_made, _)| *is_made && others.contains(kind)) {
            Some((other, _, reason)) => Err(Error::Conflict { parameter, other, reason }),
            None => Ok(()),
        }
    }

    /// Sets how many bytes of reading a screen must save in a step to be used in it; default: 64 MiB on GPUs,
    /// 0 on an emulated device. Tokens do not depend on it.
    #[must_use]
    pub fn with_least_saved(self, least_saved: usize) -> Self {
        Self { least_saved, ..self }
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        let Rows { rows, .. } = self.weights;
        rows
    }

    /// Returns the number of elements of a hidden state.
    #[must_use]
    pub fn width(&self) -> usize {
        self.weights.vocab
    }

    /// Returns how many rows a step may have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many bytes of its screen a group of screened rows reads; 0 without a screen.
    #[must_use]
    pub fn screen_bytes(&self) -> usize {
        self.screen.as_ref().map_or(0, |screen| screen.bytes(self.vocab()))
    }

    /// Waits for the work enqueued before, and returns what the head has done since it was made.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    pub fn counts(&self) -> Result<HeadCounts> {
        let mut counts = [0u64; 3];
        self.counts.read(0, &mut counts)?;
        let [whole_rows, rows, logits] = counts;
        Ok(match self.clusters {
            Some(_) => HeadCounts { clustered_rows: rows, clustered_logits: logits, ..HeadCounts::default() },
            None => HeadCounts {
                whole_rows,
                certified_rows: rows,
                certified_logits: logits,
                ..HeadCounts::default()
            },
        })
    }

    /// Waits for the work enqueued before, and reads the logits that the last step computed: those of its
    /// first rows. A logit that did not matter reads as -inf.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If `logits` is longer than the logits of the head's capacity of rows.
    pub fn read_logits(&self, logits: &mut [f32]) -> Result<()> {
        Ok(self.logits.read(0, logits)?)
    }

    /// Returns the rows of logits that a step over hidden states fills.
    pub(crate) fn rows(&self, count: usize) -> Result<Rows<'_>> {
        Rows::of(&self.logits, Dtype::F32, 0, count, self.vocab(), self.vocab())
    }

    /// Returns the launches for hidden states of which each rank computes a part of the logits, and their
    /// step. `step` is one without rows.
    ///
    /// # Errors
    /// - The errors of [`Head::launch`].
    /// - [`Error::Conflict`] for a head with clusters, which are probed by all logits.
    pub(crate) fn launch_part<'b>(
        &'b self,
        hidden: &Rows<'b>,
        step: abi::Step,
    ) -> Result<(HeadLaunch, abi::Step)> {
        if self.is_clustered() {
            let reason = "clusters are chosen among all, and a rank has some; take an exact head";
            return Err(Error::Conflict { parameter: "clusters", other: "ranks", reason });
        }
        let (vocab, rows) = (self.vocab(), hidden.rows as u32);
        let (slots, tiles) = (self.no_slots.address(), vocab.div_ceil(TILE) as u32);
        let step = abi::Step { slots, rows, vocab: vocab as u32, tiles, ..step };
        Ok((self.launch(hidden, false)?, step))
    }

    /// Returns the argument of the kernels for a step over hidden states, whose own part is filled in later.
    ///
    /// # Errors
    /// - [`Error::Length`] if hidden states have another width than the weights, or are more than the head's
    ///   capacity.
    /// - [`Error::Conflict`] if they are said to be probabilities.
    pub(crate) fn launch<'b>(&'b self, hidden: &Rows<'b>, screens: bool) -> Result<HeadLaunch> {
        if hidden.vocab != self.width() {
            let allowed = format!("{} elements each, as a row of weights", self.width());
            return Err(Error::length("hidden", hidden.vocab, allowed));
        }
        if hidden.kind == Kind::Probabilities {
            let reason = "a head makes logits of hidden states, so their kind is logits";
            return Err(Error::Conflict { parameter: "kind", other: "hidden", reason });
        }
        if hidden.rows > self.capacity {
            return Err(Error::length("hidden", hidden.rows, format!("at most {} rows", self.capacity)));
        }
        let aligned = aligned_flag(self.weights.address, self.width(), self.weights.dtype);
        let fast = match self.weights.dtype {
            _ if self.short_states.is_none() => 0,
            Dtype::F16 => head_flags::FAST_F16,
            _ => head_flags::FAST_BF16,
        };
        let head = abi::HeadStep {
            weights: self.weights.address,
            bias: self.bias.as_ref().map_or(0, Buffer::address),
            hidden: hidden.address,
            hidden_stride: hidden.stride as u64,
            states: self.states.address(),
            head_rows: self.head_rows.address(),
            logits: self.logits.address(),
            width: self.width() as u32,
            padded_width: padded_width(self.width()) as u32,
            logit_scale: self.scaling.logit_scale,
            softcap: self.scaling.softcap,
            flags: aligned | fast,
            short_width: self.width().next_multiple_of(MATRIX_CHUNK_BYTES / size_of::<u16>()) as u32,
            short_states: self.short_states.as_ref().map_or(0, Buffer::address),
            counts: self.counts.address(),
            ..abi::HeadStep::default()
        };
        let saved = |screen: &Screen| {
            let weight_bytes = self.weights.rows * self.width() * self.weights.dtype.bytes();
            let at_once = tuning::matrix_columns(&self.runtime.limits()) / 2;
            screen.saved_bytes(self.vocab(), (hidden.rows, at_once), weight_bytes)
        };
        let screen = self.screen.as_ref().filter(|screen| screens && saved(screen) >= self.least_saved);
        let head = screen.map_or(head, |screen| screen.of(self.vocab(), head));
        let head = self.clusters.as_ref().map_or(head, |clusters| clusters.of(head, hidden.rows));
        let centroids = self.clusters.as_ref().map(Clusters::centroids);
        Ok(HeadLaunch { head, types: (self.weights.dtype, hidden.dtype), centroids })
    }
}

/// The launches of a head in a step.
#[derive(Clone, Debug)]
pub(crate) struct HeadLaunch {
    /// The argument of the kernels, without its step.
    pub head: abi::HeadStep,
    /// The types of weights and hidden states.
    pub types: (Dtype, Dtype),
    pub centroids: Option<Centroids>,
}

fn check_width(width: usize) -> Result<()> {
    if (1..=MAX_HIDDEN).contains(&width) {
        return Ok(());
    }
    Err(Error::out_of_range("width", width, "in 1..=2^16"))
}

fn padded_width(width: usize) -> usize {
    width.next_multiple_of(gumball_spec::head::PARTIAL_SUMS)
}
