//! Memory that other ranks write: what a rank sends them so that they can map it, and how a GPU maps it.
//!
//! In one process a GPU writes another's memory by its address, once peer access is enabled. Between processes CUDA's IPC handles
//! map the memory at another address.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{self, CUipcMem_flags};
use cudarc::driver::{CudaContext, DriverError};

use crate::error::{Error, Result, failed};

/// What a runtime of the same host needs to map memory of another, as plain bytes: they may be sent to another process.
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

/// A number that no other process of this host has: process ids may occur twice where processes run in containers.
static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

impl MemoryHandle {
    /// Returns the handle of memory that only this process can map.
    pub(crate) fn of_process(address: u64, ordinal: u32) -> Self {
        let refusal = sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32;
        Self { process: *PROCESS, address, ordinal, refusal, ipc: [0; 64] }
    }

    /// Returns the handle of a GPU's memory, whose context is current.
    pub(crate) fn of_gpu(address: u64, ordinal: usize) -> Self {
        let mut ipc = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        let status = unsafe { sys::cuIpcGetMemHandle(&raw mut ipc, address) };
        let ipc = ipc.reserved.map(|byte| byte as u8);
        Self { refusal: status as u32, ipc, ..Self::of_process(address, ordinal as u32) }
    }

    /// Returns the address in this process, if the memory belongs to it.
    pub(crate) fn address_here(&self) -> Option<u64> {
        (self.process == *PROCESS).then_some(self.address)
    }

    /// Returns the driver's number of the device.
    #[cfg(feature = "emulator")]
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Maps a GPU's memory into the current context, that of `own`, and returns its address there.
    pub(crate) fn map_to_gpu(&self, own: &CudaContext) -> Result<u64> {
        if let Some(address) = self.address_here() {
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
        Ok(address)
    }

    /// Undoes [`MemoryHandle::map_to_gpu`]. Memory of this process stays mapped.
    ///
    /// # Safety
    /// `address` came from `map_to_gpu` with the context that is current, and nobody uses it any more.
    pub(crate) unsafe fn unmap_from_gpu(&self, address: u64) {
        if self.address_here().is_none() {
            // SAFETY: the caller guarantees it. A failure leaves the memory mapped; the driver reports its cause later.
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
