//! Heads of the host, copied to a device.

use gumball_engine::head::ClusteredOptions;
use gumball_engine::{Device, DeviceHead as EngineHead, Error, Head as HostHead};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::device_head::{DeviceHead, ROWS};
use crate::device_weights::{WeightsThere, refuse_host};
use crate::head_weights::Borrowed;
use crate::heads::{Head, InUse};
use crate::lists::extract_int;
use crate::pool::device_name;

impl DeviceHead {
    /// Copies a head of the host to a device, or what it has derived from its weights if these lie there.
    fn of_host(
        py: Python<'_>,
        head: &InUse<'_>,
        kind: &'static str,
        dtype: &'static str,
        device: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let rows = rows.map_or(Ok(ROWS), |rows| extract_int(rows, "rows"))?;
        let device = device_name(Some(device))?;
        refuse_host(&device)?;
        let host = head.head();
        let Some(weights) = weights else {
            let make = |device: &Device| EngineHead::new(device, host, rows);
            return Self::made(py, device, kind, dtype, None, None, make);
        };
        let there = WeightsThere::read(py, weights, Some(&device))?;
        let (vocab, width) = (there.matrix.rows, there.matrix.width);
        if (vocab, width) != (host.vocab(), host.width()) || there.matrix.dtype.name() != dtype {
            let found = format!("[{vocab}, {width}] of {}", there.matrix.dtype.name());
            let allowed = format!("[{}, {}] of {dtype}, as those of the head", host.vocab(), host.width());
            return Err(PyValueError::new_err(format!("weights is {found}, but must be {allowed}")));
        }
        let (rows_there, stream) = (there.rows()?, there.stream);
        let borrowed = Some((Borrowed::of(weights, there.array)?, kind != "exact"));
        let make = move |device: &Device| match host {
            HostHead::Exact(exact) => {
                EngineHead::over(device, rows_there, exact.bias(), *exact.scaling(), rows)
            }
            HostHead::Certified(certified) => {
                let exact = certified.exact();
                let over = EngineHead::over(device, rows_there, exact.bias(), *exact.scaling(), rows)?;
                over.with_screen(certified)
            }
            HostHead::Clustered(clustered) => {
                let bias = clustered.bias();
                let over = EngineHead::over(device, rows_there, bias.as_deref(), *clustered.scaling(), rows)?;
                let (probes, special_ids) = (Some(clustered.probes()), clustered.special_ids().to_vec());
                let options = ClusteredOptions { probes, special_ids, ..ClusteredOptions::default() };
                over.with_clusters(clustered.clusters(), &options)
            }
            _ => Err(Error::Unavailable {
                resource: "heads of this kind on a device",
                reason: "it is for hosts".to_owned(),
            }),
        };
        Self::made(py, device, kind, dtype, borrowed, stream, make)
    }
}

#[pymethods]
impl Head {
    /// Copies the head to a device, and returns the DeviceHead: of the same kind, with the same results, bit for bit.
    ///
    /// device: "cuda", "cuda:N" or a torch.device. rows: how many rows a step there may have. weights: the same weights in the device's memory, in the order of ids,
    /// which are then borrowed and not copied; what the head has derived from them is copied. Nobody may write them as long as a certified or clustered head lives.
    /// probes are those of the head at this moment; most_rows plays no part there.
    ///
    /// Raises ValueError for weights of another shape, type or device; UnavailableError if the device, or memory for the weights there, is missing.
    #[pyo3(signature = (device, *, rows=None, weights=None), text_signature = "($self, device, *, rows=256, weights=None)")]
    fn to(
        &self,
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        rows: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<DeviceHead> {
        let head = self.get(py)?;
        DeviceHead::of_host(py, &head, self.kind(), self.dtype(), device, weights, rows)
    }
}
