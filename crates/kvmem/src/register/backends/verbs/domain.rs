//! *Domain*: a protection domain, and the calls that need one.
//!
//! Objects are freed in the reverse order: memory regions, the domain, the device, the library. A
//! domain with objects in it cannot be freed (`EBUSY`), and its device must not be closed then. In
//! that case all of them are leaked: a leak of a few kilobytes is better than a use after free.

use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi::{IbvDeviceAttr, IbvMr, IbvPd, VerbsAbi};
use super::access::Access;
use super::context::{OpenDevice, VerbsFailure, check_errno, last_errno, query};
use crate::arena::Errno;

/// A protection domain: our own, with its device, or a foreign one.
pub(super) struct Domain {
    abi: Arc<VerbsAbi>,
    pd: NonNull<IbvPd>,
    /// The device, if it is our own. Closed after the domain is freed, or not at all.
    own_device: Option<ManuallyDrop<OpenDevice>>,
}

// SAFETY: the library documents that threads may call all its functions concurrently, also with the
// same objects, and that objects belong to no thread.
unsafe impl Send for Domain {}
// SAFETY: the library documents that threads may call all its functions concurrently, also with the
// same objects; the other fields are `Sync`.
unsafe impl Sync for Domain {}

impl Domain {
    /// Allocates a domain on a device, and owns both.
    pub(super) fn new(abi: &Arc<VerbsAbi>, context: OpenDevice) -> Result<Domain, VerbsFailure> {
        let pd = context.alloc_pd()?;
        Ok(Domain { abi: Arc::clone(abi), pd, own_device: Some(ManuallyDrop::new(context)) })
    }

    /// Wraps a foreign domain.
    ///
    /// # Safety
    /// `pd` was allocated by this library, and is freed after the result.
    pub(super) unsafe fn foreign(abi: &Arc<VerbsAbi>, pd: NonNull<IbvPd>) -> Domain {
        Domain { abi: Arc::clone(abi), pd, own_device: None }
    }

    /// Returns the device's limits.
    pub(super) fn query(&self) -> Result<IbvDeviceAttr, VerbsFailure> {
        // SAFETY: `self.pd` points to a domain that is not freed before `self`; the library
        // initializes the field when it allocates the domain, and does not change it.
        let context = unsafe { (*self.pd.as_ptr()).context };
        let context = NonNull::new(context).ok_or(("ibv_query_device", Errno::ENODEV))?;
        // SAFETY: a domain's device is open as long as the domain is allocated.
        unsafe { query(&self.abi, context) }
    }

    /// Returns the flags that the library accepts. A library without `ibv_reg_mr_iova2` does not
    /// know optional flags; they are dropped, as rdma-core does on kernels that do not know them.
    pub(super) fn supported(&self, access: Access) -> Access {
        if self.abi.reg_mr_iova2.is_some() { access } else { access.without(Access::OPTIONAL) }
    }

    /// Returns the function for these flags: optional flags need `ibv_reg_mr_iova2`, as in the
    /// header.
    pub(super) fn function_for(&self, access: Access) -> &'static str {
        if access.bits() & Access::OPTIONAL.bits() == 0 { "ibv_reg_mr" } else { "ibv_reg_mr_iova2" }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The memory stays mapped until the memory region is deregistered.
    pub(super) unsafe fn register(
        &self,
        at: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<(NonNull<IbvMr>, u32, u32), VerbsFailure> {
        let access = self.supported(access);
        let call = self.function_for(access);
        let (pd, address) = (self.pd.as_ptr(), at.as_ptr().cast());
        Errno::clear();
        let mr = match self.abi.reg_mr_iova2 {
            Some(reg_mr_iova2) if call == "ibv_reg_mr_iova2" => {
                // Peers address the memory by its address in this process, as with `ibv_reg_mr`.
                let iova = at.addr().get() as u64;
                // SAFETY: `pd` is a domain of this library that is not freed before `self`. The
                // caller promises that the memory stays mapped until it is deregistered; the
                // library checks address, length and flags.
                unsafe { reg_mr_iova2(pd, address, len, iova, access.bits()) }
            }
            // SAFETY: `pd` is a domain of this library that is not freed before `self`. The caller
            // promises that the memory stays mapped until it is deregistered. The bits fit into 31.
            _ => unsafe { (self.abi.reg_mr)(pd, address, len, access.bits() as i32) },
        };
        let mr = NonNull::new(mr).ok_or_else(|| (call, last_errno()))?;
        // SAFETY: `reg_mr` of this library has returned `mr` just now, and no other code knows it.
        let (lkey, rkey) = unsafe { self.abi.keys(mr) };
        Ok((mr, lkey, rkey))
    }

    /// Deregisters a memory region. On failure it stays registered.
    ///
    /// # Safety
    /// It came from [`register`](Self::register) and is not deregistered.
    pub(super) unsafe fn deregister(&self, mr: *mut IbvMr) -> Result<(), VerbsFailure> {
        Errno::clear();
        // SAFETY: the caller promises that `mr` is a memory region of this domain, and thus of this
        // library, and that it is not deregistered.
        check_errno("ibv_dereg_mr", unsafe { (self.abi.dereg_mr)(mr) })
    }

    /// Leaks all objects for the life of the process: one of them could not be freed.
    pub(super) fn leak(&mut self) {
        self.own_device = None;
        mem::forget(Arc::clone(&self.abi));
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let Some(context) = self.own_device.take() else { return };
        Errno::clear();
        // SAFETY: `new` has allocated the domain, and no other code frees it. If memory regions are
        // left in it, the library returns an error and frees nothing.
        if unsafe { (self.abi.dealloc_pd)(self.pd.as_ptr()) } == 0 {
            drop(ManuallyDrop::into_inner(context));
        }
        // On failure the device stays open, and its reference to the library keeps the library
        // loaded; the head of this file explains why.
    }
}
