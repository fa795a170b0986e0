//! Weights of heads in a device's memory.

use gumball_engine::head::MAX_HIDDEN;
use gumball_engine::{DeviceMatrix, MAX_VOCAB};
use pyo3::prelude::*;

use crate::arrays::{self, Array, FLOATS, Location, Matrix, torch_stream};
use crate::errors::{out_of_range, to_py_err};
use crate::heads::own_names;

/// Weights in a device's memory.
pub struct WeightsThere<'py> {
    pub matrix: Matrix,
    pub array: Array<'py>,
    /// The stream on which torch may be writing them.
    pub stream: Option<usize>,
    /// Its name.
    pub device: String,
}

impl<'py> WeightsThere<'py> {
    /// Reads an array that must lie in a device's memory: that of `device`, if it is named.
    pub fn read(py: Python<'py>, weights: &Bound<'py, PyAny>, device: Option<&str>) -> PyResult<Self> {
        let array = arrays::read(weights, "weights", None)?;
        let matrix = array.matrix("weights")?;
        matrix.check_float_of("weights", FLOATS)?;
        for (name, value, most) in
            [("weights.shape[0]", matrix.rows, MAX_VOCAB), ("weights.shape[1]", matrix.width, MAX_HIDDEN)]
        {
            if !(1..=most).contains(&value) {
                return Err(out_of_range(name, value.to_string(), format!("in 1..=2^{}", most.ilog2())));
            }
        }
        let lies = match matrix.location {
            Location::Cuda(ordinal) => format!("cuda:{ordinal}"),
            // The emulated device has the host's memory.
            _ if device.is_some_and(|device| device == "emulated") => "emulated".to_owned(),
            other => other.to_string(),
        };
        if device.is_some_and(|device| device != lies)
            || matrix.location == Location::Host && lies != "emulated"
        {
            let allowed = device.map_or("on a GPU; Head is for weights on the host".to_owned(), |device| {
                format!("on {device}")
            });
            return Err(out_of_range("weights", format!("on {lies}"), allowed));
        }
        let stream = match matrix.location {
            Location::Cuda(ordinal) => torch_stream(py, ordinal)?,
            _ => None,
        };
        Ok(Self { matrix, array, stream, device: lies })
    }

    /// Returns the weights as the engine takes them.
    pub fn rows(&self) -> PyResult<DeviceMatrix<'static>> {
        // SAFETY: the weights lie on the device. The maker of a head keeps them alive as long as it, and the
        // class' documentation forbids to write them while a step runs.
        unsafe { self.matrix.device_logits() }.map_err(own_names).map_err(to_py_err)
    }
}

/// Refuses a name that is no device's.
pub fn refuse_host(device: &str) -> PyResult<()> {
    if device.starts_with("cuda") || (cfg!(feature = "emulator") && device != "cpu") {
        return Ok(());
    }
    Err(out_of_range("device", format!("{device:?}"), "\"cuda\" or \"cuda:N\""))
}
