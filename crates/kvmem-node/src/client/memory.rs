//! *Memory* of the node, mapped by a client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvmem::arena::{ArenaError, ReadOnlyRegion, Region};

use super::ClientError;

/// The memory file in this process.
#[derive(Debug)]
pub(super) enum ClientMemory {
    ReadOnly(ReadOnlyRegion),
    /// The registration holds it, too.
    ReadWrite(Arc<Region>),
}

impl ClientMemory {
    /// Maps the memory: the first bytes of its file.
    pub(super) fn map(
        file: OwnedFd,
        len: u64,
        read_only: bool,
    ) -> Result<ClientMemory, ArenaError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if read_only {
            return ReadOnlyRegion::attach_front(file, len).map(ClientMemory::ReadOnly);
        }
        Region::attach_front(file, len).map(|region| ClientMemory::ReadWrite(Arc::new(region)))
    }

    /// Returns the mapping, if it can be written to.
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        match self {
            ClientMemory::ReadOnly(_) => None,
            ClientMemory::ReadWrite(region) => Some(region),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            ClientMemory::ReadOnly(region) => region.len(),
            ClientMemory::ReadWrite(region) => region.len(),
        }
    }

    /// Returns the address of the first byte.
    pub(super) fn base(&self) -> *const u8 {
        match self {
            // SAFETY: nothing is read through the slice; only its address is taken.
            ClientMemory::ReadOnly(region) => match unsafe { region.bytes(..) } {
                Ok(bytes) => bytes.as_ptr(),
                Err(_) => std::ptr::null(),
            },
            ClientMemory::ReadWrite(region) => region.base().as_ptr(),
        }
    }

    /// Returns the address of the first byte for writing; `None` if the mapping is read-only.
    pub(super) fn base_mut(&self) -> Option<*mut u8> {
        match self {
            ClientMemory::ReadOnly(_) => None,
            ClientMemory::ReadWrite(region) => Some(region.base().as_ptr()),
        }
    }

    /// Checks that a block that the server names lies in the memory.
    pub(super) fn check(&self, offset: u64, len: u64) -> Result<(usize, usize), ClientError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() as u64 => Ok((offset as usize, len as usize)),
            _ => Err(ClientError::Protocol {
                what: "the server granted a block outside of its memory",
            }),
        }
    }

    /// Enters the pages of the first `size` bytes into the page table.
    pub(super) fn populate(&self, size: u64) {
        let (base, len) = (self.base().cast_mut(), size.min(self.len() as u64) as usize);
        let advice = match self {
            ClientMemory::ReadOnly(_) => rustix::mm::Advice::LinuxPopulateRead,
            ClientMemory::ReadWrite(_) => rustix::mm::Advice::LinuxPopulateWrite,
        };
        // Older kernels do not know the advice: pages are then entered when they are touched.
        // SAFETY: the range is a mapping that lives while `self` does, and the advice changes no
        // bytes.
        let _ = unsafe { rustix::mm::madvise(base.cast(), len, advice) };
    }
}
