//! Device arrays: a pool's outputs in its device's memory, lent to other libraries.

use std::ffi::c_void;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::arguments::argument;
use crate::arrays::{Dtype, Location};
use crate::dlpack::{self, DataType, Device, Managed, ManagedVersioned, Tensor};
use crate::pool::Pool;

/// One of a pool's outputs in the device's memory, without a copy or a synchronisation.
///
/// Read it through DLPack (``torch.from_dlpack(pool.on_device().outputs("tokens"))``, ``cupy.from_dlpack``).
/// The address stays the same as long as the pool lives. Each step overwrites the elements, so copy what you
/// want to keep. The reader's stream waits for the step before it runs what the reader enqueues on it.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct DeviceArray {
    pool: Py<Pool>,
    address: usize,
    location: Location,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl DeviceArray {
    pub fn new(pool: Py<Pool>, address: usize, location: Location, dtype: Dtype, shape: Vec<usize>) -> Self {
        Self { pool, address, location, dtype, shape }
    }

    fn dlpack_device(&self) -> Device {
        match self.location {
            Location::Cuda(id) => Device { kind: dlpack::CUDA, id },
            _ => Device { kind: dlpack::CPU, id: 0 },
        }
    }
}

/// The allocations that a capsule keeps alive.
struct Loan {
    /// Keeps the pool alive, which owns the memory.
    _pool: Py<Pool>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// Frees a loan.
///
/// # Safety
/// `context` comes from `Box::into_raw` of a [`Loan`], and no pointer to it is used any more.
unsafe fn end(context: *mut c_void) {
    // SAFETY: the caller hands over `context`, which was made by `Box::into_raw` of a `Loan`, for the last
    // time.
    let loan = unsafe { Box::from_raw(context.cast::<Loan>()) };
    let mut loan = Some(loan);
    // SAFETY: it may be called at any time.
    if unsafe { pyo3::ffi::Py_IsInitialized() } != 0 {
        // The reader may call this on any thread, and torch within a call of ours too, without the GIL that
        // the call has: Python knows who holds it, and PyO3 only who took it.
        //
        // SAFETY: the interpreter runs, and the state is given back below.
        let state = unsafe { pyo3::ffi::PyGILState_Ensure() };
        Python::try_attach(|_| drop(loan.take()));
        // SAFETY: `state` comes from the last call, which is undone here.
        unsafe { pyo3::ffi::PyGILState_Release(state) };
    }
    // If the interpreter has shut down, the loan leaks, and the pool with it.
    std::mem::forget(loan);
}

unsafe extern "C" fn end_managed(managed: *mut Managed) {
    // SAFETY: the consumer calls the deleter once, with the pointer that `__dlpack__` made by
    // `Box::into_raw`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `__dlpack__` made `context` by `Box::into_raw` of a `Loan`; its owner is freed above.
    unsafe { end(managed.context) };
}

unsafe extern "C" fn end_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: the consumer calls the deleter once, with the pointer that `__dlpack__` made by
    // `Box::into_raw`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `__dlpack__` made `context` by `Box::into_raw` of a `Loan`; its owner is freed above.
    unsafe { end(managed.context) };
}

/// Frees the loan of a capsule that no reader consumed.
unsafe extern "C" fn drop_capsule(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls a destructor with its capsule, which is alive and has a name.
    let name = unsafe { pyo3::ffi::PyCapsule_GetName(capsule) };
    // SAFETY: `name` is the capsule's own, so it matches and the pointer is returned.
    let pointer = unsafe { pyo3::ffi::PyCapsule_GetPointer(capsule, name) };
    // SAFETY: `name` is one of the two static C strings of `dlpack`, or what the consumer renamed it to, also
    // static.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    if name == dlpack::CAPSULE {
        // SAFETY: a consumer renames the capsule, so under this name the pointer is still the box that
        // `__dlpack__` made.
        unsafe { end_managed(pointer.cast()) };
    } else if name == dlpack::CAPSULE_VERSIONED {
        // SAFETY: a consumer renames the capsule, so under this name the pointer is still the box that
        // `__dlpack__` made.
        unsafe { end_versioned(pointer.cast()) };
    }
}

#[pymethods]
impl DeviceArray {
    /// The lengths of the dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The type of the elements: "int32", "uint32" or "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// The device whose memory holds it: "cuda:N", or "cpu" on an emulated device.
    #[getter]
    fn device(&self) -> String {
        self.location.to_string()
    }

    fn __len__(&self) -> usize {
        self.shape[0]
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        let Device { kind, id } = self.dlpack_device();
        (kind, id)
    }

    /// Lends the memory to a DLPack consumer. stream: the reader's stream, numbered as in the array API
    /// standard; -1 for no ordering.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = argument)] stream: Option<isize>,
        #[pyo3(from_py_with = argument)] max_version: Option<(u32, u32)>,
        #[pyo3(from_py_with = argument)] dl_device: Option<(i32, i32)>,
        #[pyo3(from_py_with = argument)] copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("the memory is lent where it lies, and not copied"));
        }
        // The array API standard numbers the legacy default stream 1.
        match stream {
            Some(-1) => {}
            None | Some(0 | 1) => self.pool.get().order_before(py, 0)?,
            Some(stream) => self.pool.get().order_before(py, stream.cast_unsigned())?,
        }
        let code = match self.dtype {
            Dtype::F32 => dlpack::FLOAT,
            Dtype::U32 => dlpack::UINT,
            _ => dlpack::INT,
        };
        let mut strides = vec![1; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis] * self.shape[axis] as i64;
        }
        let shape = self.shape.iter().map(|length| *length as i64).collect();
        let mut loan = Box::new(Loan { _pool: self.pool.clone_ref(py), shape, strides });
        let tensor = Tensor {
            data: self.address as *mut c_void,
            device: self.dlpack_device(),
            ndim: self.shape.len() as i32,
            dtype: DataType { code, bits: 32, lanes: 1 },
            shape: loan.shape.as_mut_ptr(),
            strides: loan.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        let context = Box::into_raw(loan).cast::<c_void>();
        let (pointer, name) = if max_version.is_some_and(|(major, _)| major >= 1) {
            let (major, minor) = dlpack::VERSION;
            let deleter = Some(end_versioned as unsafe extern "C" fn(_));
            let managed = ManagedVersioned { major, minor, context, deleter, flags: 0, tensor };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), dlpack::CAPSULE_VERSIONED)
        } else {
            let managed = Managed { tensor, context, deleter: Some(end_managed) };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), dlpack::CAPSULE)
        };
        let pointer = std::ptr::NonNull::new(pointer).expect("a box is somewhere");
        // SAFETY: `pointer` is a boxed structure of the kind that `name` promises, and `drop_capsule` frees
        // it unless a consumer did.
        unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(drop_capsule)) }
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("DeviceArray({}, [{}], {})", self.dtype.name(), shape.join(", "), self.location)
    }
}
