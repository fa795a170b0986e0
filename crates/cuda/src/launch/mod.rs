//! Launches of kernels: each is a value, of which `tuning` fits the grid to the device, and which the work it
//! belongs to enqueues.
//!
//! Depends on `abi`, `programs`, `driver` and `requests`.

pub(crate) mod head;
pub(crate) mod tuning;
pub(crate) mod written_rows;

use std::marker::PhantomData;

use bytemuck::NoUninit;

use crate::driver::runtime::{Grid, Runtime};
use crate::error::Result;
use crate::programs::kernels::Kernel;

/// A launch of a kernel that takes an argument of type `A`, over a grid that it expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<A> {
    kernel: Kernel,
    pub grid: Grid,
    is_dependent: bool,
    argument: PhantomData<A>,
}

impl<A: NoUninit> Launch<A> {
    /// Returns a launch that begins when the kernels before it are complete.
    pub fn new(kernel: Kernel, grid: Grid) -> Self {
        Self { kernel, grid, is_dependent: false, argument: PhantomData }
    }

    /// Returns the launch of a kernel that may begin while the one before it runs, because each of its blocks
    /// waits before it reads what kernels write, and before it writes.
    pub fn dependent(kernel: Kernel, grid: Grid) -> Self {
        Self::new(kernel, grid).dependent_if(true)
    }

    /// Returns the launch as [`Launch::dependent`] does, or as [`Launch::new`].
    pub fn dependent_if(self, is_dependent: bool) -> Self {
        Self { is_dependent, ..self }
    }

    /// Enqueues the kernel.
    ///
    /// # Safety
    /// As for [`Runtime::launch`], of what the argument points to.
    pub unsafe fn enqueue(&self, runtime: &dyn Runtime, argument: &A) -> Result<()> {
        let argument = bytemuck::bytes_of(argument);
        // SAFETY: the kernel takes an `A`, expects the grid, and waits if the launch is dependent. The caller
        // guarantees the rest.
        unsafe { runtime.launch(self.kernel, self.grid, argument, self.is_dependent) }
    }
}
