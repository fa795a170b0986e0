//! Tensors of torch before 2.10, which lacks DLPack's table of functions: read through their attributes.

use pyo3::intern;
use pyo3::prelude::*;

use super::{Array, Dtype, Location};
use crate::errors::InvalidTypeError;
use crate::modules;

/// Reads a tensor; `None` for other objects, or if torch has not been imported.
pub fn read<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Array<'py>>> {
    let py = object.py();
    let Some(tensor) = modules::torch_tensor(py)? else { return Ok(None) };
    if !object.is_instance(tensor)? {
        return Ok(None);
    }
    if object.getattr(intern!(py, "layout"))?.to_string() != "torch.strided" {
        return Err(InvalidTypeError::new_err("a tensor must be dense, of layout torch.strided"));
    }
    let ndim: usize = object.call_method0(intern!(py, "dim"))?.extract()?;
    let (mut shape, mut strides) = ([0; 2], [0; 2]);
    if ndim <= 2 {
        for axis in 0..ndim {
            shape[axis] = object.call_method1(intern!(py, "size"), (axis,))?.extract()?;
            strides[axis] = object.call_method1(intern!(py, "stride"), (axis,))?.extract()?;
        }
    }
    let dtype = object.getattr(intern!(py, "dtype"))?.to_string();
    let dtype = Dtype::of_name(dtype.trim_start_matches("torch."));
    let device = object.getattr(intern!(py, "device"))?;
    let location = match device.getattr(intern!(py, "type"))?.extract::<&str>()? {
        "cpu" => Location::Host,
        "cuda" => {
            Location::Cuda(device.getattr(intern!(py, "index"))?.extract::<Option<i32>>()?.unwrap_or(0))
        }
        _ => Location::Elsewhere,
    };
    let address: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    Ok(Some(Array { location, ..Array::on_host(address, dtype, ndim, shape, strides) }))
}
