//! *Context*: a GPU's primary context, the one that the runtime and the frameworks use too.
//!
//! Most calls of the driver act on the context that is current in the calling thread. Registrars
//! are called from any thread, and a thread may have another context for work of its own; so each
//! call puts ours on the thread's stack of contexts, and takes it off again.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::HostFlags;
use super::TRIES;
use super::abi::{self, Abi, SUCCESS};
use super::failure::{Failure, check};

/// A retained primary context. Released when dropped.
pub(super) struct Context {
    abi: Arc<Abi>,
    device: abi::Device,
    raw: abi::Context,
    /// Whether it must stay: see [`keep`](Context::keep).
    kept: bool,
}

// SAFETY: the driver's functions may be called by all threads side by side, and a context may be
// current in several.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

impl Context {
    /// That of a device. The first one makes it, which takes a while and memory of the GPU.
    pub(super) fn retain(abi: &Arc<Abi>, device: abi::Device) -> Result<Context, Failure> {
        let mut raw = ptr::null_mut();
        // SAFETY: the output has the type that the call fills.
        let result = unsafe { (abi.primary_ctx_retain)(&mut raw, device) };
        check(abi, "cuDevicePrimaryCtxRetain", result)?;
        Ok(Context { abi: Arc::clone(abi), device, raw, kept: false })
    }

    /// Makes it current in this thread.
    fn enter(&self) -> Result<Current<'_>, Failure> {
        // SAFETY: it is retained.
        check(&self.abi, "cuCtxPushCurrent_v2", unsafe { (self.abi.ctx_push_current)(self.raw) })?;
        Ok(Current(&self.abi))
    }

    /// Pins memory and makes it known. Gives its address on the GPU, or 0 if it is not mapped
    /// there.
    ///
    /// # Safety
    /// It stays mapped until it was unregistered.
    pub(super) unsafe fn register(
        &self,
        at: *mut c_void,
        len: usize,
        flags: HostFlags,
    ) -> Result<abi::DevicePointer, Failure> {
        let abi = &*self.abi;
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe { (abi.mem_host_register)(at, len, flags.bits()) };
        check(abi, abi.mem_host_register_name, result)?;
        if !flags.contains(HostFlags::DEVICE_MAP) {
            return Ok(0);
        }
        let mut pointer = 0;
        // SAFETY: registered just now, and the output has the type that the call fills. No flag is
        // defined.
        let result = unsafe { (abi.mem_host_get_device_pointer)(&mut pointer, at, 0) };
        check(abi, "cuMemHostGetDevicePointer_v2", result).inspect_err(|_| {
            // SAFETY: registered by us just now. Asked again if it fails, for no key will tell of
            // it any more.
            (0..TRIES).any(|_| unsafe { (abi.mem_host_unregister)(at) } == SUCCESS);
        })?;
        Ok(pointer)
    }

    /// Takes memory back. If that fails it is still known.
    ///
    /// # Safety
    /// It was registered here.
    pub(super) unsafe fn unregister(&self, at: *mut c_void) -> Result<(), Failure> {
        let _current = self.enter()?;
        // SAFETY: the caller's promise.
        check(&self.abi, "cuMemHostUnregister", unsafe { (self.abi.mem_host_unregister)(at) })
    }

    /// Lets it be, for the life of the process: memory that is known to it could not be taken back.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: retained by us, once. What it says cannot be mended.
            let _ = unsafe { (self.abi.primary_ctx_release)(self.device) };
        }
    }
}

/// A context that is current in this thread, until this is dropped there.
struct Current<'a>(&'a Abi);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut ours = ptr::null_mut();
        // SAFETY: the output has the type that the call fills. On top is what we have put there.
        // What it returns may be the error of work that was started long before, by
        // anybody; the context is off the stack all the same.
        let _ = unsafe { (self.0.ctx_pop_current)(&mut ours) };
    }
}
