//! Heads of the host, copied to a device.

use gumball_engine::head::Auto;
use gumball_engine::{Device, DeviceHead as EngineHead};
use pyo3::prelude::*;

use crate::arguments::argument;
use crate::device_head::{DeviceHead, DeviceKind, ROWS};
use crate::device_weights::{WeightsThere, refuse_host};
use crate::errors::InvalidValueError;
use crate::head_weights::Borrowed;
use crate::heads::{Head, InUse};
use crate::lists::extract_int;
use crate::pool::device_name;

#[pymethods]
impl Head {
    /// Copies the head to a device, and returns the DeviceHead: of the same kind, with the same results, bit
    /// for bit, unless it is fast.
    ///
    /// device: "cuda", "cuda:N" or a torch.device. rows: how many rows a step there may have. weights: the
    /// same weights in the device's memory, in the order of ids, which are then borrowed and not copied; the
    /// data that the head derived from its weights is copied. No code may write the weights as long as a head
    /// with a screen or clusters lives. probes are the head's at this moment; most_rows plays no part there.
    /// fast: whether the tensor cores compute the logits; not for float32, nor for a head with a screen. A
    /// clustered head then still computes the logits of probed clusters alone.
    ///
    /// Raises ValueError for weights of another shape, type or device; UnavailableError if the device, or
    /// memory for the weights there, is missing.
    #[pyo3(
        signature = (device, *, rows=None, weights=None, fast=false),
        text_signature = "($self, device, *, rows=256, weights=None, fast=False)"
    )]
    fn to(
        &self,
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        rows: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] fast: bool,
    ) -> PyResult<DeviceHead> {
        let (in_use, kind, dtype) = (self.get(py)?, self.kind(), self.dtype);
        let (head, is_derived) = (in_use.head(), !matches!(in_use, InUse::Auto(Auto::Exact(_))));
        let rows = rows.map_or(Ok(ROWS), |rows| extract_int(rows, "rows"))?;
        let device = device_name(Some(device))?;
        refuse_host(&device)?;
        let kind = DeviceKind { kind, fast }.of(dtype)?;
        if fast && matches!(in_use, InUse::Auto(Auto::Certified(_))) {
            let text = "fast is True, but the head has a screen, whose logits are not fast ones; make the head with screen=False";
            return Err(InvalidValueError::new_err(text));
        }
        let Some(weights) = weights else {
            let make = |device: &Device| EngineHead::new(device, head, rows);
            return DeviceHead::made(py, device, kind, dtype, None, None, make);
        };
        let there = WeightsThere::read(py, weights, Some(&device))?;
        let (vocab, width) = (there.matrix.rows, there.matrix.width);
        if (vocab, width) != (head.vocab(), head.width()) || there.matrix.dtype.name() != dtype {
            let found = format!("[{vocab}, {width}] of {}", there.matrix.dtype.name());
            let allowed = format!("[{}, {}] of {dtype}, as those of the head", head.vocab(), head.width());
            return Err(InvalidValueError::new_err(format!("weights is {found}, but must be {allowed}")));
        }
        let (rows_there, stream) = (there.rows()?, there.stream);
        let borrowed = Some((Borrowed::of(weights, there.array)?, is_derived));
        let make = move |device: &Device| EngineHead::over_weights_of(device, head, rows_there, rows);
        DeviceHead::made(py, device, kind, dtype, borrowed, stream, make)
    }
}
