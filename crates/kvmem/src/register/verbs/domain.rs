//! *Domain*: a protection domain, and the calls that need one.
//!
//! What was made goes in the reverse order: memory regions, the domain, the device, the library. A
//! domain that still has something in it cannot go (`EBUSY`), and a device must not be closed under
//! it. Then all of it stays: it is better to lose a few kilobytes than to free what is still
//! pointed to.

use std::mem::{self, ManuallyDrop};
use std::ptr::NonNull;
use std::sync::Arc;

use super::Access;
use super::abi::{Abi, DeviceAttr, Mr, Pd};
use super::context::{Context, Failed, left_behind, number, query};
use crate::arena::Errno;

/// A protection domain: ours, with the device under it, or somebody else's.
pub(super) struct Domain {
    abi: Arc<Abi>,
    pd: NonNull<Pd>,
    /// The device, if we have opened it. Closed after the domain is gone, or not at all.
    ours: Option<ManuallyDrop<Context>>,
}

// SAFETY: the library says of all its functions that threads may call them side by side, with the
// same objects too; and objects belong to no thread.
unsafe impl Send for Domain {}
// SAFETY: see above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A domain on a device that is ours from here on.
    pub(super) fn new(abi: &Arc<Abi>, context: Context) -> Result<Domain, Failed> {
        let pd = context.alloc_pd()?;
        Ok(Domain { abi: Arc::clone(abi), pd, ours: Some(ManuallyDrop::new(context)) })
    }

    /// A domain of somebody else.
    ///
    /// # Safety
    /// It was made by this library, and stands as long as the result.
    pub(super) unsafe fn foreign(abi: &Arc<Abi>, pd: NonNull<Pd>) -> Domain {
        Domain { abi: Arc::clone(abi), pd, ours: None }
    }

    /// What the device can do.
    pub(super) fn query(&self) -> Result<DeviceAttr, Failed> {
        // SAFETY: the domain stands, and says on which device.
        let context = unsafe { (*self.pd.as_ptr()).context };
        let context = NonNull::new(context).ok_or(("ibv_query_device", Errno::ENODEV))?;
        query(&self.abi, context)
    }

    /// What the library takes of these flags. One without `ibv_reg_mr_iova2` does not know optional
    /// ones; then they are left out, as rdma-core does on kernels that do not know them.
    pub(super) fn takes(&self, access: Access) -> Access {
        if self.abi.reg_mr_iova2.is_some() { access } else { access.without(Access::OPTIONAL) }
    }

    /// The function that takes these flags: optional ones go through another one, as in the header.
    pub(super) fn call(&self, access: Access) -> &'static str {
        if access.bits() & Access::OPTIONAL.bits() == 0 { "ibv_reg_mr" } else { "ibv_reg_mr_iova2" }
    }

    /// Registers memory.
    ///
    /// # Safety
    /// It stays mapped until the memory region is gone.
    pub(super) unsafe fn register(
        &self,
        at: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<(NonNull<Mr>, u32, u32), Failed> {
        let access = self.takes(access);
        let call = self.call(access);
        let (pd, address) = (self.pd.as_ptr(), at.as_ptr().cast());
        Errno::clear();
        let mr = match self.abi.reg_mr_iova2 {
            Some(reg_mr_iova2) if call == "ibv_reg_mr_iova2" => {
                // Peers know the memory by our own addresses, as with the plain function.
                let iova = at.addr().get() as u64;
                // SAFETY: the domain stands; the caller promises that the memory does.
                unsafe { reg_mr_iova2(pd, address, len, iova, access.bits()) }
            }
            // SAFETY: see above. The bits are fewer than 31.
            _ => unsafe { (self.abi.reg_mr)(pd, address, len, access.bits() as i32) },
        };
        let mr = NonNull::new(mr).ok_or_else(|| (call, left_behind()))?;
        // SAFETY: returned just now.
        let (lkey, rkey) = unsafe { self.abi.keys(mr) };
        Ok((mr, lkey, rkey))
    }

    /// Gives a memory region back. If that fails it stands.
    ///
    /// # Safety
    /// It came from [`register`](Self::register) and was not given back.
    pub(super) unsafe fn deregister(&self, mr: *mut Mr) -> Result<(), Failed> {
        Errno::clear();
        // SAFETY: the caller's promise.
        number("ibv_dereg_mr", unsafe { (self.abi.dereg_mr)(mr) })
    }

    /// Lets all of it be, for the life of the process: something in it could not be given back.
    pub(super) fn abandon(&mut self) {
        self.ours = None;
        mem::forget(Arc::clone(&self.abi));
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let Some(context) = self.ours.take() else { return };
        Errno::clear();
        // SAFETY: we have made it, and nobody else knows it.
        if unsafe { (self.abi.dealloc_pd)(self.pd.as_ptr()) } == 0 {
            drop(ManuallyDrop::into_inner(context));
        }
        // Else the device stays open, and its share in the library keeps that loaded. See the head
        // of this file.
    }
}
