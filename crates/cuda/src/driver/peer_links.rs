//! Which GPUs of this system reach each other's memory, and how fast each copies to another.
//!
//! Steps over ranks on devices need GPUs that all reach each other. A copy is timed whether they do or not:
//! without access the driver takes it through the host's memory.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys;
use cudarc::driver::{CudaContext, CudaStream};

use crate::driver::peer_memory::{can_access_peer, enable_peer_access};
use crate::driver::probe::CudaInfo;
use crate::driver::streams::elapsed_ms;
use crate::error::{Error, Result, failed};

/// The bytes of a copy, and how many are timed together, after one that is not.
const COPY_BYTES: usize = 64 << 20;
const COPIES: usize = 8;

/// What one GPU has to another.
#[derive(Clone, Debug)]
pub struct PeerLink {
    /// The driver's number of the GPU that writes.
    pub from: usize,
    /// That of the GPU whose memory is written.
    pub to: usize,
    /// Whether kernels of the first GPU reach the memory of the second; or why the driver does not say.
    pub reaches: Result<bool>,
    /// Bytes a second of a copy from the first GPU's memory to the second's; or why none was made.
    pub bytes_per_second: Result<f64>,
}

impl CudaInfo {
    /// Asks the driver for each pair of devices, in both directions, and times copies between them. Takes 64
    /// MiB of each device's memory and some milliseconds a pair. Returns nothing for fewer than two devices.
    #[must_use]
    pub fn peer_links(&self) -> Vec<PeerLink> {
        let ordinals = || self.devices.iter().map(|device| device.ordinal);
        let pairs = ordinals().flat_map(|from| ordinals().map(move |to| (from, to)));
        pairs.filter(|(from, to)| from != to).map(|(from, to)| PeerLink::look(from, to)).collect()
    }
}

impl PeerLink {
    fn look(from: usize, to: usize) -> Self {
        let open = |ordinal| CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"));
        match open(from).and_then(|own| Ok((own, open(to)?))) {
            Err(error) => Self { from, to, reaches: Err(error.clone()), bytes_per_second: Err(error) },
            Ok((own, peer)) => {
                let reaches = can_access_peer(&own, &peer);
                let has_access = reaches.as_ref().is_ok_and(|reaches| *reaches);
                Self { from, to, bytes_per_second: time_copies(&own, &peer, has_access), reaches }
            }
        }
    }
}

/// Returns the bytes a second of copies from the memory of one device to that of another.
fn time_copies(own: &Arc<CudaContext>, peer: &Arc<CudaContext>, has_access: bool) -> Result<f64> {
    if has_access {
        enable_peer_access(own, peer.ordinal())?;
    }
    let there = Memory::new(peer)?;
    let here = Memory::new(own)?;
    own.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    let stream = own.new_stream().map_err(failed("cuStreamCreate"))?;
    copy(&here, &there, &stream)?;
    let copies = || (0..COPIES).try_for_each(|_| copy(&here, &there, &stream));
    let seconds = f64::from(elapsed_ms(&stream, copies)?) / 1000.0;
    if seconds > 0.0 {
        Ok((COPIES * COPY_BYTES) as f64 / seconds)
    } else {
        Err(Error::call("timing by events", "no time passed"))
    }
}

/// Enqueues a copy of all bytes.
fn copy(from: &Memory, to: &Memory, stream: &CudaStream) -> Result<()> {
    let (source, target) = (from.context.cu_ctx(), to.context.cu_ctx());
    // SAFETY: both addresses are memory of these contexts with as many bytes, which `Memory` frees only once
    // the device has no more work; the stream is alive.
    let status = unsafe {
        sys::cuMemcpyPeerAsync(to.address, target, from.address, source, COPY_BYTES, stream.cu_stream())
    };
    status.result().map_err(failed("cuMemcpyPeerAsync"))
}

/// Memory of a device.
struct Memory {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
}

impl Memory {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
        // SAFETY: the context is current. Nobody looks at what the memory holds.
        let address = unsafe { result::malloc_sync(COPY_BYTES) }.map_err(failed("cuMemAlloc"))?;
        Ok(Self { context: Arc::clone(context), address })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The driver reports a failure at the next call.
        let _ = self.context.bind_to_thread();
        let _ = self.context.synchronize();
        // SAFETY: `new` allocated the memory, and no work uses it: copies into it were waited for, or their
        // device has ended its work above.
        let _ = unsafe { result::free_sync(self.address) };
    }
}
