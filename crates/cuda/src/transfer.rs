//! Staging: host memory that the device copies from and to by itself, so that a write waits for nothing and a read only
//! for the device.
//!
//! Bytes are put into a segment of page-locked memory and copied from there in stream order. When a segment is full,
//! an event marks its last copy, and the next one is taken up once its own mark has been passed: long ago, unless
//! megabytes are in flight.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice, result};

use crate::error::{Error, Result, failed};

const SEGMENTS: usize = 2;
const SEGMENT_BYTES: usize = 1 << 20;
/// Where copies start in a segment: at multiples of it.
const ALIGNMENT: usize = 16;

/// Memory to copy from, on one stream.
pub(crate) struct UploadBuffer {
    stream: Arc<CudaStream>,
    segments: [Segment; SEGMENTS],
    /// The segment in use, and how many of its bytes are taken.
    current: usize,
    used: usize,
}

struct Segment {
    memory: PinnedHostSlice<u8>,
    /// Passed when the last copy out of the segment is done.
    copied: CudaEvent,
}

impl fmt::Debug for UploadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadBuffer").field("used", &self.used).finish_non_exhaustive()
    }
}

impl Segment {
    fn new(stream: &CudaStream) -> Result<Self> {
        let context = stream.context();
        // SAFETY: the memory is written before the device is told to read it, and never read here.
        let memory = unsafe { context.alloc_pinned_with_flags(SEGMENT_BYTES, 0) };
        Ok(Self {
            memory: memory.map_err(failed("cuMemHostAlloc"))?,
            copied: context.new_event(None).map_err(failed("cuEventCreate"))?,
        })
    }
}

impl UploadBuffer {
    /// Takes the memory.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let segments = [Segment::new(stream)?, Segment::new(stream)?];
        Ok(Self { stream: Arc::clone(stream), segments, current: 0, used: 0 })
    }

    /// Enqueues a copy of bytes to an address of the device; they are taken on return.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory of the stream's device, whose context is current.
    pub unsafe fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let status = self.stream.capture_status().map_err(failed("cuStreamIsCapturing"))?;
        if status != CU_STREAM_CAPTURE_STATUS_NONE {
            let reason =
                "the stream is being captured, and a replay would copy stale bytes; admit and assign before";
            return Err(Error::call("writing to the device", reason));
        }
        for (place, chunk) in bytes.chunks(SEGMENT_BYTES).enumerate() {
            if self.used + chunk.len() > SEGMENT_BYTES {
                self.turn()?;
            }
            let start = self.used;
            self.used = (start + chunk.len()).next_multiple_of(ALIGNMENT);
            let memory = &mut self.segments[self.current].memory;
            let waiting = memory.as_mut_slice().map_err(failed("cuEventSynchronize"))?;
            let waiting = &mut waiting[start..start + chunk.len()];
            waiting.copy_from_slice(chunk);
            let to = address + (place * SEGMENT_BYTES) as u64;
            // SAFETY: the caller says where `address` lies; the waiting bytes are overwritten only after the segment's
            // mark, which `turn` sets behind this copy, and freed after `drop` has waited.
            let copied = unsafe { result::memcpy_htod_async(to, waiting, self.stream.cu_stream()) };
            copied.map_err(failed("cuMemcpyHtoDAsync"))?;
        }
        Ok(())
    }

    /// Marks the end of this segment's copies, and takes up the next segment when its own are done.
    fn turn(&mut self) -> Result<()> {
        self.segments[self.current].copied.record(&self.stream).map_err(failed("cuEventRecord"))?;
        self.current = (self.current + 1) % SEGMENTS;
        self.used = 0;
        self.segments[self.current].copied.synchronize().map_err(failed("cuEventSynchronize"))
    }
}

/// Memory to copy to, on one stream.
pub(crate) struct DownloadBuffer {
    stream: Arc<CudaStream>,
    memory: PinnedHostSlice<u8>,
}

impl DownloadBuffer {
    /// How many bytes it has room for: the outputs of a step, as a rule. The driver copies more as fast by itself.
    pub const BYTES: usize = 64 << 10;

    /// Takes the memory.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        // SAFETY: the memory is read only after the device was waited for, which wrote what is read.
        let memory = unsafe { stream.context().alloc_pinned_with_flags(Self::BYTES, 0) };
        Ok(Self { stream: Arc::clone(stream), memory: memory.map_err(failed("cuMemHostAlloc"))? })
    }

    /// Copies bytes, [`DownloadBuffer::BYTES`] at most, from an address of the device after what was enqueued before.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory of the stream's device, whose context is current.
    pub unsafe fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let memory = self.memory.as_mut_slice().map_err(failed("cuEventSynchronize"))?;
        let landed = &mut memory[..bytes.len()];
        // SAFETY: the caller says where `address` lies; what lands there is read after the synchronisation below, and freed
        // after `drop` has waited.
        let copied = unsafe { result::memcpy_dtoh_async(&mut *landed, address, self.stream.cu_stream()) };
        copied.map_err(failed("cuMemcpyDtoHAsync"))?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))?;
        bytes.copy_from_slice(landed);
        Ok(())
    }
}

impl Drop for DownloadBuffer {
    /// Waits for a copy that was not waited for, as that failed: the memory is about to be freed.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

impl fmt::Debug for DownloadBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadBuffer").finish_non_exhaustive()
    }
}

impl Drop for UploadBuffer {
    /// Waits for the copies: the memory they read is about to be freed.
    fn drop(&mut self) {
        // Where the device has failed there is nothing left to wait for.
        let _ = self.stream.synchronize();
    }
}
