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
    let lengths: Vec<usize> = object.getattr(intern!(py, "shape"))?.extract()?;
    let strides: Vec<isize> = object.call_method0(intern!(py, "stride"))?.extract()?;
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
    Ok(Some(Array { location, ..Array::new(address, dtype, &lengths, Some(&strides)) }))
}
