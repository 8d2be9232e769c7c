//! *Context*: a GPU's primary context, which the runtime and the frameworks use too.
//!
//! Most calls of the driver act on the context that is current in the calling thread. Registrars
//! are called from any thread, and a thread may use another context for its own work. Each call
//! therefore pushes the primary context on the thread's stack of contexts, and pops it afterwards.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::abi::{CuContext, CuDevice, CudaAbi, DevicePointer, SUCCESS};
use super::failure::{CudaFailure, check};
use super::host_flags::HostFlags;
use crate::register::registrar::DEREGISTER_ATTEMPTS;

/// A retained primary context. Released when dropped.
pub(super) struct PrimaryContext {
    abi: Arc<CudaAbi>,
    device: CuDevice,
    raw: CuContext,
    /// Whether it must not be released: see [`keep`](PrimaryContext::keep).
    kept: bool,
}

// SAFETY: all threads may call the driver's functions concurrently, and a context may be current
// in several of them.
unsafe impl Send for PrimaryContext {}
// SAFETY: all threads may call the driver's functions concurrently, and a context may be current
// in several of them.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Retains a device's primary context. The first call creates the context, which takes time and
    /// memory of the GPU.
    pub(super) fn retain(
        abi: &Arc<CudaAbi>,
        device: CuDevice,
    ) -> Result<PrimaryContext, CudaFailure> {
        let mut raw = ptr::null_mut();
        // SAFETY: the call stores a context at `raw`, which has its type and is borrowed by this
        // call alone; it checks the device.
        let result = unsafe { (abi.primary_ctx_retain)(&mut raw, device) };
        check(abi, "cuDevicePrimaryCtxRetain", result)?;
        Ok(PrimaryContext { abi: Arc::clone(abi), device, raw, kept: false })
    }

    /// Makes the context current in this thread.
    fn enter(&self) -> Result<CurrentContext<'_>, CudaFailure> {
        // SAFETY: `retain` has retained the context, and only `drop` releases it.
        check(&self.abi, "cuCtxPushCurrent_v2", unsafe { (self.abi.ctx_push_current)(self.raw) })?;
        Ok(CurrentContext(&self.abi))
    }

    /// Pins memory and registers it with the GPU. Returns its address on the GPU, or 0 if it is not
    /// mapped there.
    ///
    /// # Safety
    /// The memory stays mapped until it is unregistered.
    pub(super) unsafe fn register(
        &self,
        at: *mut c_void,
        len: usize,
        flags: HostFlags,
    ) -> Result<DevicePointer, CudaFailure> {
        let abi = &*self.abi;
        let _current = self.enter()?;
        // SAFETY: the caller promises that the memory stays mapped until it is unregistered; the
        // driver checks address, length and flags.
        let result = unsafe { (abi.mem_host_register)(at, len, flags.bits()) };
        check(abi, abi.mem_host_register_name, result)?;
        if !flags.contains(HostFlags::DEVICE_MAP) {
            return Ok(0);
        }
        let mut pointer = 0;
        // SAFETY: `at` was registered just now. The call stores an address at `pointer`, which has
        // its type and is borrowed by this call alone. 0 is the only valid value of the flags.
        let result = unsafe { (abi.mem_host_get_device_pointer)(&mut pointer, at, 0) };
        check(abi, "cuMemHostGetDevicePointer_v2", result).inspect_err(|_| {
            // SAFETY: this function has registered `at`, and no key or other code knows that. The
            // call is repeated if it fails, because no key will exist to repeat it later.
            (0..DEREGISTER_ATTEMPTS).any(|_| unsafe { (abi.mem_host_unregister)(at) } == SUCCESS);
        })?;
        Ok(pointer)
    }

    /// Unregisters memory. On failure it stays registered.
    ///
    /// # Safety
    /// It was registered by this context.
    pub(super) unsafe fn unregister(&self, at: *mut c_void) -> Result<(), CudaFailure> {
        let _current = self.enter()?;
        // SAFETY: the caller promises that this context has registered the memory.
        check(&self.abi, "cuMemHostUnregister", unsafe { (self.abi.mem_host_unregister)(at) })
    }

    /// Keeps the context for the life of the process: some memory could not be unregistered.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: `retain` has retained the context once, and it is released once. No memory is
            // registered in it any more: `keep` was not called. An error has no remedy here.
            let _ = unsafe { (self.abi.primary_ctx_release)(self.device) };
        }
    }
}

/// A context that is current in this thread until this guard is dropped.
struct CurrentContext<'a>(&'a CudaAbi);

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let mut ours = ptr::null_mut();
        // SAFETY: the call stores a context at `ours`, which has its type and is borrowed by this
        // call alone. The top of this thread's stack is the context that `enter` pushed. The result
        // may be an error of work started earlier by other code; the context is popped all the
        // same.
        let _ = unsafe { (self.0.ctx_pop_current)(&mut ours) };
    }
}
