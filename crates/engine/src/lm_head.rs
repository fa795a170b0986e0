//! Heads as a pool takes them, their counts, and the memory that it keeps for them.

use std::path::Path;

use gumball_head::{
    Artefact, ArtefactError, Bounds, Certified, ClusterBuild, ClusterProgress, Clustered, Clusters, Contest,
    Exact, Probes, Spread, Widened,
};
use gumball_spec::{Error, HostMatrix, Reading, Result};

use crate::device::DeviceHead;
use crate::head_counts::HeadCounts;
use crate::matrix::Matrix;
use crate::workers::Threads;

/// A head, as a pool takes it with hidden states in [`Rows::Hidden`](crate::Rows::Hidden): borrowed, so that
/// several pools may share one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Head<'a> {
    /// Every logit is computed.
    Exact(&'a Exact<'a>),
    /// The logits that decide a row are computed, where that is possible.
    Certified(&'a Certified<'a>),
    /// The logits of the ids whose clusters look likeliest are computed: an approximation (H7, H8).
    Clustered(&'a Clustered<'a>),
    /// It lies in the memory of a device, and computes there.
    Device(&'a DeviceHead<'a>),
}

/// An auto head: the exact head's results, bit for bit, from as few logits as its screen allows, where it has
/// one and that is faster.
#[derive(Clone, Debug)]
pub enum Auto<'w> {
    /// It has no screen, and computes every logit.
    Exact(Exact<'w>),
    /// It has a screen: a byte of memory for each weight.
    Certified(Certified<'w>),
}

impl<'w> Auto<'w> {
    /// Makes it with a screen, which reads all weights, over the threads that all pools share.
    #[must_use]
    pub fn new(exact: Exact<'w>) -> Self {
        Auto::Certified(Threads::Shared.run(exact, Certified::new, Certified::new))
    }

    /// Makes it with the screen of a file, which it maps.
    ///
    /// # Errors
    /// What [`Artefact::open`] and [`Artefact::certified`] say of the file.
    pub fn open(exact: Exact<'w>, file: &Path) -> std::result::Result<Self, ArtefactError> {
        Ok(Auto::Certified(Artefact::open(file)?.certified(exact)?))
    }

    /// Returns the exact head, whose results these are.
    #[must_use]
    pub fn exact(&self) -> &Exact<'w> {
        match self {
            Auto::Exact(exact) => exact,
            Auto::Certified(certified) => certified.exact(),
        }
    }

    /// Returns the head with its screen, if it has one.
    #[must_use]
    pub fn certified(&self) -> Option<&Certified<'w>> {
        match self {
            Auto::Exact(_) => None,
            Auto::Certified(certified) => Some(certified),
        }
    }
}

impl<'a> From<&'a Auto<'_>> for Head<'a> {
    fn from(head: &'a Auto<'_>) -> Self {
        match head {
            Auto::Exact(exact) => Head::Exact(exact),
            Auto::Certified(certified) => Head::Certified(certified),
        }
    }
}

impl<'a> From<&'a Exact<'_>> for Head<'a> {
    fn from(head: &'a Exact<'_>) -> Self {
        Head::Exact(head)
    }
}

impl<'a> From<&'a Certified<'_>> for Head<'a> {
    fn from(head: &'a Certified<'_>) -> Self {
        Head::Certified(head)
    }
}

impl<'a> From<&'a Clustered<'_>> for Head<'a> {
    fn from(head: &'a Clustered<'_>) -> Self {
        Head::Clustered(head)
    }
}

impl<'a> From<&'a DeviceHead<'_>> for Head<'a> {
    fn from(head: &'a DeviceHead<'_>) -> Self {
        Head::Device(head)
    }
}

impl<'a> Head<'a> {
    /// Computes every logit of hidden states (H1 to H4), over the threads that all pools share; a certified
    /// or clustered head as the exact one does.
    ///
    /// # Shapes and units
    /// `states`: R hidden states of the head's width. `out`: `[R, vocab]`.
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) if hidden states have another width than the head, or `out`
    ///   another length.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the system refuses a clustered head 4 bytes for
    ///   each logit; and for a head that lies on a device.
    pub fn logits(self, states: HostMatrix<'_>, out: &mut [f32]) -> Result<()> {
        self.refuse_device()?;
        let states = Widened::of(states);
        let compute = |spread, out: &mut [f32]| match self {
            Head::Exact(exact) => exact.logits(&states, spread, out),
            Head::Certified(certified) => certified.exact().logits(&states, spread, out),
            Head::Clustered(clustered) => clustered.logits(&states, spread, &mut Probes::default(), out),
            Head::Device(_) => unreachable!("refused"),
        };
        Threads::Shared.run(out, |out| compute(Spread::Rayon, out), |out| compute(Spread::Caller, out))
    }

    /// Returns whether logits are left out, so that tokens, kept sets and logprobs may be others, as a
    /// clustered head does. A fast head leaves none out, though its bits are its device's.
    #[must_use]
    pub fn is_approximate(self) -> bool {
        match self {
            Head::Exact(_) | Head::Certified(_) => false,
            Head::Clustered(_) => true,
            Head::Device(head) => head.is_approximate(),
        }
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(self) -> usize {
        match self {
            Head::Exact(exact) => exact.vocab(),
            Head::Certified(certified) => certified.exact().vocab(),
            Head::Clustered(clustered) => clustered.vocab(),
            Head::Device(head) => head.vocab(),
        }
    }

    /// Returns the elements of a hidden state.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Head::Exact(exact) => exact.width(),
            Head::Certified(certified) => certified.exact().width(),
            Head::Clustered(clustered) => clustered.width(),
            Head::Device(head) => head.width(),
        }
    }

    pub(crate) fn check_width(self, width: usize) -> Result<()> {
        if width == self.width() {
            return Ok(());
        }
        Err(Error::length("hidden", width, format!("{} elements each, as a row of weights", self.width())))
    }

    /// Returns the head, which must lie on a device.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] for a head of the host.
    pub(crate) fn on_device(self) -> Result<&'a DeviceHead<'a>> {
        if let Self::Device(head) = self {
            return Ok(head);
        }
        let reason = "copy it there: DeviceHead::new".to_owned();
        Err(Error::Unavailable { resource: "head of the host on a device", reason })
    }

    /// Returns hidden states for the host to compute logits of.
    pub(crate) fn states(self, states: Matrix<'a>) -> Result<HostMatrix<'a>> {
        self.refuse_device()?;
        states.on_host("hidden")
    }

    /// Checks that the host can compute it.
    pub(crate) fn refuse_device(self) -> Result<()> {
        if let Head::Device(_) = self {
            let reason = "take it to a pool on its device, or a head of the host".to_owned();
            return Err(Error::Unavailable { resource: "head of a device on the host", reason });
        }
        Ok(())
    }
}

/// Builds clusters of a head's rows, over the threads that all pools share; the same ones on every machine.
/// `progress` receives how far it is, on one of these threads, and returns whether to go on.
///
/// # Errors
/// - [`Error::OutOfRange`](crate::Error::OutOfRange) for a capacity outside 1..=vocab, or no iterations.
/// - [`Error::Unavailable`](crate::Error::Unavailable) if `progress` said to stop.
pub fn build_clusters(
    exact: &Exact<'_>,
    build: ClusterBuild,
    progress: &mut (dyn FnMut(ClusterProgress) -> bool + Send),
) -> Result<Clusters> {
    let make = |progress: &mut (dyn FnMut(ClusterProgress) -> bool + Send)| {
        Clusters::build(exact, build, &mut |so_far| progress(so_far))
    };
    Threads::Shared.run(progress, make, make)
}

/// The memory that a pool keeps for its heads from call to call.
#[derive(Debug, Default)]
pub(crate) struct HeadBuffers {
    /// The hidden states of the rows that are screened.
    pub(crate) screened: Widened,
    /// The hidden states of the rows whose logits are all computed.
    pub(crate) whole: Widened,
    /// The logits of the rows that something reads: screened rows first.
    pub(crate) logits: Vec<f32>,
    /// For each row of the batch its line of the logits; 0 for one that nothing reads.
    pub(crate) lines: Vec<u32>,
    pub(crate) bounds: Bounds,
    /// The probed logits of the rows that something reads, by a clustered head.
    pub(crate) probes: Probes,
    /// The rows that are screened, and then the others, by their numbers in the batch.
    pub(crate) rows: Vec<usize>,
    pub(crate) readings: Vec<Reading>,
    /// How many logits decided each screened row; `None` if they would be too many, or it has no bounds.
    pub(crate) computed: Vec<Option<usize>>,
    /// Buffers that no thread is using.
    pub(crate) idle: std::sync::Mutex<Vec<Contest>>,
    pub(crate) counts: HeadCounts,
}
