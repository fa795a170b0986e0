//! Modules that this package uses only if the program has imported them: importing `gumball` imports neither
//! numpy nor torch.

use pyo3::exceptions::PyModuleNotFoundError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

/// Returns a module if it has been imported.
fn loaded<'py>(py: Python<'py>, name: &Bound<'py, pyo3::types::PyString>) -> Option<Bound<'py, PyAny>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.get_or_try_init(py, || {
        Ok::<_, PyErr>(
            py.import("sys")?.getattr("modules")?.cast_into::<PyDict>().map_err(PyErr::from)?.unbind(),
        )
    });
    modules.ok()?.bind(py).get_item(name).ok().flatten()
}

/// Returns whether numpy has been imported.
pub fn numpy_is_loaded(py: Python<'_>) -> bool {
    static LOADED: PyOnceLock<()> = PyOnceLock::new();
    if LOADED.get(py).is_some() {
        return true;
    }
    // While numpy is being imported, `sys.modules` holds the module before it has the type.
    let found = loaded(py, intern!(py, "numpy"))
        .is_some_and(|numpy| numpy.getattr_opt(intern!(py, "ndarray")).is_ok_and(|kind| kind.is_some()));
    found && LOADED.set(py, ()).is_ok()
}

/// Returns whether an object is a `numpy.ma` array with masked elements.
pub fn is_masked(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let kind = object.get_type();
    if kind.is(ndarray(py)?) {
        return Ok(false);
    }
    match loaded(py, intern!(py, "numpy.ma")) {
        Some(masked) => masked.call_method1(intern!(py, "is_masked"), (object,))?.is_truthy(),
        None => Ok(false),
    }
}

/// Returns numpy's array type.
fn ndarray(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    NDARRAY.import(py, "numpy", "ndarray")
}

/// Imports numpy, for arrays that are returned.
///
/// # Errors
/// - `ImportError` if numpy is not installed.
pub fn load_numpy(py: Python<'_>) -> PyResult<()> {
    if !numpy_is_loaded(py)
        && let Err(cause) = py.import("numpy")
    {
        let text =
            "numpy is not installed, whose arrays are handed out; pip install \"gumball[numpy]\" brings it";
        if !cause.is_instance_of::<PyModuleNotFoundError>(py) {
            return Err(cause);
        }
        let error = PyModuleNotFoundError::new_err(text);
        error.set_cause(py, Some(cause));
        return Err(error);
    }
    Ok(())
}

/// Returns torch's tensor type, if torch has been imported.
pub fn torch_tensor(py: Python<'_>) -> PyResult<Option<&Bound<'_, PyType>>> {
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if let Some(tensor) = TENSOR.get(py) {
        return Ok(Some(tensor.bind(py)));
    }
    // While torch is being imported, `sys.modules` holds the module before it has the type.
    let Some(torch) = loaded(py, intern!(py, "torch")) else { return Ok(None) };
    let Some(tensor) = torch.getattr_opt(intern!(py, "Tensor"))? else { return Ok(None) };
    let tensor = tensor.cast_into::<PyType>().map_err(PyErr::from)?.unbind();
    Ok(Some(TENSOR.get_or_init(py, || tensor).bind(py)))
}

/// Returns the torch module if an object is a tensor.
pub fn torch_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    match torch_tensor(py)? {
        Some(tensor) if object.is_exact_instance(tensor) || object.is_instance(tensor)? => {
            Ok(loaded(py, intern!(py, "torch")))
        }
        _ => Ok(None),
    }
}

/// Returns the stream on which torch enqueues at present on a device; `None` if torch was built without CUDA.
pub fn torch_raw_stream(py: Python<'_>, ordinal: i32) -> PyResult<Option<usize>> {
    static ASK: PyOnceLock<Option<Py<PyAny>>> = PyOnceLock::new();
    let ask = ASK.get_or_try_init(py, || {
        let found = py.import("torch._C")?.getattr_opt("_cuda_getCurrentRawStream")?;
        Ok::<_, PyErr>(found.map(Bound::unbind))
    })?;
    ask.as_ref().map(|ask| ask.bind(py).call1((ordinal,))?.extract()).transpose()
}
