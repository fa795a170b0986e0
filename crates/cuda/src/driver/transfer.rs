//! Copies through page-locked host memory: a write does not wait for the device, and a read waits for the
//! device only.
//!
//! A write puts its bytes into a segment of page-locked memory, and the device copies them from there in
//! stream order. When a segment is full, an event marks its last copy, and writes continue in the segment
//! that was full the longest ago, once its event has passed. If that is still to come, because megabytes are
//! in flight, they continue in a new segment, up to [`MOST_SEGMENTS`].

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice, result};

use crate::error::{Error, Result, failed};

/// Beyond this many a write waits for the device.
const MOST_SEGMENTS: usize = 64;
const SEGMENT_BYTES: usize = 1 << 20;
/// Copies start at multiples of this many bytes in a segment.
const ALIGNMENT: usize = 16;

/// Page-locked memory for copies to the device, on one stream.
pub(crate) struct UploadBuffer {
    stream: Arc<CudaStream>,
    /// The segment in use is the last one, and the others come in the order in which they were full.
    segments: VecDeque<Segment>,
    /// How many bytes of the segment in use are taken.
    used: usize,
}

struct Segment {
    memory: PinnedHostSlice<u8>,
    /// Passed when the last copy out of the segment is complete.
    copied: CudaEvent,
}

impl Segment {
    fn new(stream: &CudaStream) -> Result<Self> {
        let context = stream.context();
        // SAFETY: `write` fills each range before the device copies it; the host never reads the memory.
        let memory = unsafe { context.alloc_pinned_with_flags(SEGMENT_BYTES, 0) };
        Ok(Self {
            memory: memory.map_err(failed("cuMemHostAlloc"))?,
            copied: context.new_event(None).map_err(failed("cuEventCreate"))?,
        })
    }
}

impl UploadBuffer {
    /// Allocates the memory.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let segments = VecDeque::from([Segment::new(stream)?, Segment::new(stream)?]);
        Ok(Self { stream: Arc::clone(stream), segments, used: 0 })
    }

    /// Enqueues a copy of bytes to an address of the device. The caller may change `bytes` on return.
    ///
    /// # Errors
    /// - [`Error::Call`] if the stream is being captured, or the driver fails.
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
            let memory = &mut self.segments.back_mut().expect("there are two or more").memory;
            let waiting = memory.as_mut_slice().map_err(failed("cuEventSynchronize"))?;
            let waiting = &mut waiting[start..start + chunk.len()];
            waiting.copy_from_slice(chunk);
            let to = address + (place * SEGMENT_BYTES) as u64;
            // SAFETY: the caller guarantees where `address` lies. The staged bytes are overwritten only after
            // the segment's event, which `turn` records after this copy, and freed after `drop` has waited.
            let copied = unsafe { result::memcpy_htod_async(to, waiting, self.stream.cu_stream()) };
            copied.map_err(failed("cuMemcpyHtoDAsync"))?;
        }
        Ok(())
    }

    /// Records the event of the segment in use after its last copy, and takes another segment into use.
    fn turn(&mut self) -> Result<()> {
        let full = self.segments.back().expect("there are two or more");
        full.copied.record(&self.stream).map_err(failed("cuEventRecord"))?;
        self.used = 0;
        let longest_full = self.segments.front().expect("there are two or more");
        let is_free = longest_full.copied.try_is_complete().map_err(failed("cuEventQuery"))?;
        if is_free || self.segments.len() == MOST_SEGMENTS {
            longest_full.copied.synchronize().map_err(failed("cuEventSynchronize"))?;
            self.segments.rotate_left(1);
        } else {
            self.segments.push_back(Segment::new(&self.stream)?);
        }
        Ok(())
    }
}

/// Page-locked memory for copies from the device, on one stream.
pub(crate) struct DownloadBuffer {
    stream: Arc<CudaStream>,
    memory: PinnedHostSlice<u8>,
}

impl DownloadBuffer {
    /// Its capacity, enough for the outputs of most steps. The driver's own copy is as fast for more bytes.
    pub const BYTES: usize = 64 << 10;

    /// Allocates the memory.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        // SAFETY: the host reads only what the device has written, and only after it has waited for the
        // device.
        let memory = unsafe { stream.context().alloc_pinned_with_flags(Self::BYTES, 0) };
        Ok(Self { stream: Arc::clone(stream), memory: memory.map_err(failed("cuMemHostAlloc"))? })
    }

    /// Copies bytes from an address of the device, in stream order, and waits for the copy. `bytes` is at
    /// most [`DownloadBuffer::BYTES`] long.
    ///
    /// # Safety
    /// `address..address + bytes.len()` lies in memory of the stream's device, whose context is current.
    pub unsafe fn read(
        &mut self,
        address: u64,
        bytes: &mut [u8],
        wait: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let memory = self.memory.as_mut_slice().map_err(failed("cuEventSynchronize"))?;
        let landed = &mut memory[..bytes.len()];
        // SAFETY: the caller guarantees where `address` lies. The host reads the copied bytes after the
        // synchronisation below, and frees them after `drop` has waited.
        let copied = unsafe { result::memcpy_dtoh_async(&mut *landed, address, self.stream.cu_stream()) };
        copied.map_err(failed("cuMemcpyDtoHAsync"))?;
        wait()?;
        self.stream.synchronize().map_err(failed("cuStreamSynchronize"))?;
        bytes.copy_from_slice(landed);
        Ok(())
    }
}

impl Drop for DownloadBuffer {
    /// Waits for copies in flight, because the memory is about to be freed. One remains if the wait of `read`
    /// failed.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

impl Drop for UploadBuffer {
    /// Waits for copies in flight, because the memory that they read is about to be freed.
    fn drop(&mut self) {
        // If the device has failed, no copy is in flight.
        let _ = self.stream.synchronize();
    }
}
