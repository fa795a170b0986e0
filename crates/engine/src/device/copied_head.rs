//! Heads of the host, copied to a device.

use gumball_cuda::{Head as CudaHead, Rows};
use gumball_head::{Clustered, ClusteredOptions};
use gumball_spec::{Error, Result, Row};

use super::Device;
use super::head::DeviceHead;
use crate::lm_head::Head;

impl DeviceHead<'static> {
    /// Copies a head to a device, for steps of at most `rows` rows.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `rows` is outside 1..2^31.
    /// - [`Error::Unavailable`] for a head that lies on a device, or if the device has not enough memory: for
    ///   the weights, 4 bytes for each logit of `rows` rows; for a certified head a byte for each weight and
    ///   some 10 bytes for each logit of the rows that it screens; for a clustered one 2 or 4 bytes for each
    ///   element of a centroid, and for each row 4 bytes for each cluster and each id of its probed set.
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

impl<'w> DeviceHead<'w> {
    /// Checks that the copy of a head of the host could be [fast](DeviceHead::fast), before it is made.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for weights of f32, and [`Error::Conflict`] if the head has a screen.
    /// - [`Error::Unavailable`] for a head that lies on a device.
    pub fn check_fast<'h>(head: impl Into<Head<'h>>) -> Result<()> {
        let (weights, has_screen) = match head.into() {
            Head::Exact(exact) => (exact.weights(), false),
            Head::Certified(certified) => (certified.exact().weights(), true),
            Head::Clustered(clustered) => (clustered.weights(), false),
            Head::Device(_) => return Err(is_on_device()),
        };
        CudaHead::check_fast(matches!(weights.all(), Row::F32(_)), has_screen)
    }

    /// Makes a head of the same kind as one of the host, over the same weights on the device, in the order of
    /// ids: only the data that the host's head has derived from its weights is copied. The weights must be
    /// those of the host's head.
    ///
    /// # Errors
    /// The errors of [`DeviceHead::over`], [`DeviceHead::with_screen`] and [`DeviceHead::with_clusters`].
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
}

/// Returns what a clustered head was made with besides its clusters.
fn options_of(head: &Clustered<'_>) -> ClusteredOptions {
    let (probes, special_ids) = (Some(head.probes()), head.special_ids().to_vec());
    ClusteredOptions { probes, special_ids, ..ClusteredOptions::default() }
}

/// The error of a head that is to be copied to a device, and lies on one.
fn is_on_device() -> Error {
    let reason = "copy the host's head".to_owned();
    Error::Unavailable { resource: "copy of a head that lies on a device", reason }
}
