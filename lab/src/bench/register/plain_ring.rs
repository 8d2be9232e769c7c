//! Fixed buffers of a ring, registered as engines do it: one call per buffer into the ring's table.
//!
//! The library's rings pin pages in a second ring and clone them from there, which is faster for
//! hugepages. The published programs do not, so the contenders that stand for them use this ring.
//! Nothing else is slower: the table has no more slots than needed, because the kernel searches all
//! of them.

use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};

use io_uring::IoUring;
use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, RegisterLimit, Registrar, RegistrarError};

/// The largest buffer, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// A ring whose table is filled directly.
pub(super) struct PlainRing {
    name: String,
    ring: IoUring,
    /// Empty slots.
    free: Mutex<Vec<u32>>,
    /// The limits of the library's ring, as far as they hold for this one.
    limits: Limits,
}

impl PlainRing {
    /// Creates a ring with the slots that a region of `region_bytes` needs. `like` are the limits
    /// of a library ring.
    pub(super) fn new(index: u32, region_bytes: u64, like: &Limits) -> std::io::Result<PlainRing> {
        let ring = IoUring::new(1)?;
        let slots = u32::try_from(region_bytes.div_ceil(MAX_BYTES)).unwrap_or(u32::MAX);
        ring.submitter().register_buffers_sparse(slots)?;
        let name = format!("plain:{index}");
        let limits = Limits {
            device: name.clone(),
            max_bytes: MAX_BYTES,
            max_keys: slots.into(),
            preferred_chunk_bytes: None,
            copies_by_address: false,
            memlock: like.memlock,
        };
        // Slots are taken from the end.
        Ok(PlainRing { name, ring, free: Mutex::new((0..slots).rev().collect()), limits })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ring_error(error: &std::io::Error, exceeded: Option<RegisterLimit>) -> RegistrarError {
    let errno = Errno::new(error.raw_os_error().unwrap_or(0));
    RegistrarError::new("io_uring_register(IORING_REGISTER_BUFFERS_UPDATE)", errno, "")
        .exceeded(exceeded)
}

impl Registrar for PlainRing {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let exceeded = self.limits.memlock.map(|memlock| RegisterLimit::Memlock {
            account: memlock.account,
            limit_bytes: memlock.limit_bytes,
            used_bytes: 0,
            need_bytes: len as u64,
        });
        let keys = RegisterLimit::Keys { limit: 0, need: 1 };
        let slot = self
            .free()
            .pop()
            .ok_or_else(|| RegistrarError::new("", Errno::ENOSPC, "").exceeded(keys))?;
        let buffer = [libc::iovec { iov_base: at.as_ptr().cast(), iov_len: len }];
        // SAFETY: the caller keeps the bytes mapped until the key is given back; no work is
        // submitted to this ring.
        let filled = unsafe { self.ring.submitter().register_buffers_update(slot, &buffer, None) };
        match filled {
            Ok(()) => Ok(Key { handle: slot.into(), lkey: slot.into(), rkey: None }),
            Err(error) => {
                self.free().push(slot);
                Err(ring_error(&error, exceeded))
            }
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        let slot = key.handle as u32;
        let nothing = [libc::iovec { iov_base: null_mut(), iov_len: 0 }];
        // SAFETY: an empty slot refers to no bytes.
        let emptied =
            unsafe { self.ring.submitter().register_buffers_update(slot, &nothing, None) };
        emptied.map_err(|error| ring_error(&error, None))?;
        self.free().push(slot);
        Ok(())
    }
}

impl fmt::Debug for PlainRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainRing").field("name", &self.name).finish_non_exhaustive()
    }
}
