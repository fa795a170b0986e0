//! Buffers: memory of a runtime that this crate owns.

use std::sync::Arc;

use bytemuck::Pod;
use gumball_spec::memory;

use crate::driver::runtime::Runtime;
use crate::error::Result;

/// The purpose of an allocation, as errors name it: memory by slot, and memory by row.
pub(crate) const SLOTS: &str = "memory for slots";
pub(crate) const ROWS: &str = "memory for rows";

/// Memory of a runtime, freed when dropped.
#[derive(Debug)]
pub struct Buffer {
    runtime: Arc<dyn Runtime>,
    address: u64,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes, one at least, filled with zeros.
    ///
    /// # Errors
    /// The errors of [`Runtime::alloc`].
    pub fn zeroed(runtime: &Arc<dyn Runtime>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1);
        Ok(Self { address: runtime.alloc(bytes)?, runtime: Arc::clone(runtime), bytes })
    }

    /// Allocates as many bytes as the product of `sizes`, filled with zeros.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the product is too large for any memory, with `resource` in
    ///   its text, or if [`Runtime::alloc`] fails.
    pub(crate) fn sized(
        runtime: &Arc<dyn Runtime>,
        resource: &'static str,
        sizes: &[usize],
    ) -> gumball_spec::Result<Self> {
        Ok(Self::zeroed(runtime, memory::product(resource, sizes)?)?)
    }

    /// Allocates memory for `values` and copies them there.
    ///
    /// # Errors
    /// The errors of [`Runtime::alloc`] and [`Runtime::write`].
    pub fn of<T: Pod>(runtime: &Arc<dyn Runtime>, values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(runtime, size_of_val(values))?;
        buffer.write(0, values)?;
        Ok(buffer)
    }

    /// Returns the address of the first byte, a multiple of 256.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, start: usize, bytes: usize) {
        let inside = start.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{bytes} bytes from {start} of a buffer of {}", self.bytes);
    }

    /// Copies `values` into the buffer from byte `start` on, in stream order.
    ///
    /// # Errors
    /// The errors of [`Runtime::write`].
    ///
    /// # Panics
    /// If the values do not fit there.
    pub fn write<T: Pod>(&mut self, start: usize, values: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice(values);
        self.check(start, bytes.len());
        // SAFETY: `check` made sure that the range lies inside this buffer, which is memory of its runtime.
        unsafe { self.runtime.write(self.address + start as u64, bytes) }
    }

    /// Fills `values` from the buffer's bytes from `start` on, after all work enqueued before is complete.
    ///
    /// # Errors
    /// The errors of [`Runtime::read`].
    ///
    /// # Panics
    /// If the buffer ends before the last value.
    pub fn read<T: Pod>(&self, start: usize, values: &mut [T]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(values);
        self.check(start, bytes.len());
        // SAFETY: `check` made sure that the range lies inside this buffer, which is memory of its runtime.
        unsafe { self.runtime.read(self.address + start as u64, bytes) }
    }

    /// Fills `values` as [`Buffer::read`] does, and calls `meanwhile` again and again as long as the work
    /// enqueued before is not complete.
    pub(crate) fn read_meanwhile<T: Pod>(
        &self,
        start: usize,
        values: &mut [T],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut(values);
        self.check(start, bytes.len());
        // SAFETY: `check` made sure that the range lies inside this buffer, which is memory of its runtime.
        unsafe { self.runtime.read_meanwhile(self.address + start as u64, bytes, meanwhile) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the address came from `alloc` of this runtime, and the buffer, its only owner, ends here.
        unsafe { self.runtime.free(self.address, self.bytes) }
    }
}
