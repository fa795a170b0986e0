//! Memory that other ranks write: what a rank sends them so that they can map it, and how a GPU maps it.
//!
//! In one process a GPU writes another's memory by its address, once peer access is enabled. Between
//! processes CUDA's IPC handles map the memory at another address. What a rank sends is not believed: an
//! address of this process must be one that it shares itself, and memory must be as large as the window that
//! kernels write.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{self, CUipcMem_flags};
use cudarc::driver::{CudaContext, DriverError};

use crate::error::{Error, Result, failed};

/// What a runtime of the same host needs to map memory of another, as plain bytes: they may be sent to
/// another process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct MemoryHandle {
    /// The number of the process that owns the memory.
    process: u64,
    address: u64,
    /// The driver's number of the device in that process; of an emulated device [`EMULATED`].
    ordinal: u32,
    /// Why other processes cannot map the memory: the driver's code, 0 if they can.
    refusal: u32,
    ipc: [u8; 64],
}

/// The number that an emulated device has in place of an ordinal.
#[cfg(feature = "emulator")]
pub(crate) const EMULATED: u32 = u32::MAX;

/// A number that no other process of this host has: process ids may occur twice where processes run in
/// containers.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// What this process shares: the bytes at each address.
static SHARED: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

fn shared() -> MutexGuard<'static, BTreeMap<u64, usize>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends that memory of this process is shared, before it is freed.
pub(crate) fn withdraw(address: u64) {
    shared().remove(&address);
}

impl MemoryHandle {
    /// Shares memory which only this process can map, until it is withdrawn, and returns its handle.
    pub(crate) fn of_process(address: u64, bytes: usize, ordinal: u32) -> Self {
        shared().insert(address, bytes);
        let refusal = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32;
        Self { process: *PROCESS, address, ordinal, refusal, ipc: [0; 64] }
    }

    /// Shares a GPU's memory, whose context is current, until it is withdrawn, and returns its handle.
    pub(crate) fn of_gpu(address: u64, bytes: usize, ordinal: usize) -> Self {
        let mut ipc = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        let status = unsafe { sys::cuIpcGetMemHandle(&raw mut ipc, address) };
        let ipc = ipc.reserved.map(|byte| byte as u8);
        Self { refusal: status as u32, ipc, ..Self::of_process(address, bytes, ordinal as u32) }
    }

    fn is_here(&self) -> bool {
        self.process == *PROCESS
    }

    /// Returns the address of memory of this process, which must be shared and have that many bytes; `None`
    /// if it is said to be another's.
    pub(crate) fn address_here(&self, bytes: usize) -> Result<Option<u64>> {
        if !self.is_here() {
            return Ok(None);
        }
        match shared().get(&self.address) {
            Some(has) if *has >= bytes => Ok(Some(self.address)),
            _ => Err(Error::call("map", "a rank sent a handle of memory that this process does not share")),
        }
    }

    /// Returns the driver's number of the device.
    #[cfg(feature = "emulator")]
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Maps a GPU's memory, which must have that many bytes, into the current context, that of `own`, and
    /// returns its address there.
    pub(crate) fn map_to_gpu(&self, bytes: usize, own: &CudaContext) -> Result<u64> {
        if let Some(address) = self.address_here(bytes)? {
            if self.ordinal as usize != own.ordinal() {
                enable_peer_access(own, self.ordinal as usize)?;
            }
            return Ok(address);
        }
        if self.refusal != 0 {
            let reason = format!("the owner's driver gives out no handle of it (CUresult {})", self.refusal);
            return Err(Error::call("cuIpcGetMemHandle", reason));
        }
        let handle = sys::CUipcMemHandle { reserved: self.ipc.map(|byte| byte as _) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the pointer is to a live integer; the driver checks the handle.
        let status = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) };
        status.result().map_err(failed("cuIpcOpenMemHandle"))?;
        let (mut begin, mut size) = (0, 0);
        // SAFETY: the pointers are to live integers; the driver checks the address.
        let status = unsafe { sys::cuMemGetAddressRange_v2(&raw mut begin, &raw mut size, address) };
        if status != sys::CUresult::CUDA_SUCCESS || address - begin + bytes as u64 > size as u64 {
            // SAFETY: the memory was just mapped, and nobody uses it.
            let _ = unsafe { sys::cuIpcCloseMemHandle(address) };
            let reason =
                format!("a rank sent a handle of memory with less than the {bytes} bytes of a window");
            return Err(Error::call("map", reason));
        }
        Ok(address)
    }

    /// Undoes [`MemoryHandle::map_to_gpu`]. Memory of this process stays mapped.
    ///
    /// # Safety
    /// `address` came from `map_to_gpu` with the context that is current, and nobody uses it any more.
    pub(crate) unsafe fn unmap_from_gpu(&self, address: u64) {
        if !self.is_here() {
            // SAFETY: the caller guarantees it. A failure leaves the memory mapped; the driver reports its
            // cause later.
            let _ = unsafe { sys::cuIpcCloseMemHandle(address) };
        }
    }
}

/// Returns whether kernels of a context can reach the memory of another device.
pub(crate) fn can_access_peer(own: &CudaContext, peer: &CudaContext) -> Result<bool> {
    let mut can_access = 0;
    // SAFETY: the pointer is to a live integer, and both devices exist.
    let status =
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can_access, own.cu_device(), peer.cu_device()) };
    status.result().map_err(failed("cuDeviceCanAccessPeer"))?;
    Ok(can_access != 0)
}

/// Lets the kernels of a context write the memory of another device of this process.
pub(crate) fn enable_peer_access(own: &CudaContext, ordinal: usize) -> Result<()> {
    let peer = CudaContext::new(ordinal).map_err(failed("cuDevicePrimaryCtxRetain"))?;
    // Opening the peer's context has made it current.
    own.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    if !can_access_peer(own, &peer)? {
        let reason = format!("device {} cannot reach the memory of device {ordinal}", own.ordinal());
        return Err(Error::call("cuDeviceCanAccessPeer", reason));
    }
    // SAFETY: both contexts are alive; the peer's rank keeps its own.
    match unsafe { sys::cuCtxEnablePeerAccess(peer.cu_ctx(), 0) } {
        sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        status => Err(failed("cuCtxEnablePeerAccess")(DriverError(status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_this_process_shares_is_taken_by_its_address() {
        let (address, bytes) = (0x5EED_0000, 4096);
        let handle = MemoryHandle::of_process(address, bytes, 0);
        assert_eq!([1, bytes].map(|bytes| handle.address_here(bytes).unwrap()), [Some(address); 2]);
        assert!(handle.address_here(bytes + 1).is_err());
        for address in [address + 256, address - 256, 0, u64::MAX] {
            assert!(MemoryHandle { address, ..handle }.address_here(1).is_err(), "{address:x}");
        }
        assert_eq!(MemoryHandle { process: !handle.process, ..handle }.address_here(1).unwrap(), None);
        withdraw(address);
        let error = handle.address_here(1).unwrap_err().to_string();
        assert!(error.contains("a rank sent a handle of memory that this process does not share"), "{error}");
    }
}
