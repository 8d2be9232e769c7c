//! *GPU*: one device, as a registrar.

use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use super::context::PrimaryContext;
use super::host_flags::HostFlags;
use crate::arena::{self, Errno, MachineFiles, PIECE_BYTES};
use crate::register::backends::live_keys::LiveKeys;
use crate::register::{Key, Limits, RegisterLimit, Registrar, RegistrarError};

/// A GPU, as a registrar: CUDA pins the memory, and copies between the memory and GPUs need no
/// intermediate buffer.
///
/// A key's `handle` is the address of the memory in this process; its `lkey` is the address on the
/// GPU (0 without [`HostFlags::DEVICE_MAP`]); there is no rkey.
///
/// Dropping the registrar deregisters the live keys and releases the GPU's primary context. Memory
/// that CUDA fails to unregister is leaked, together with the context.
pub struct Gpu {
    name: String,
    model: String,
    flags: HostFlags,
    max_bytes: u64,
    live: LiveKeys,
    context: PrimaryContext,
}

/// The largest number of bytes per key where machine and driver have no smaller limit. CUDA states
/// no limit; this one bounds the duration of one call and the cost of its failure.
const MAX_BYTES: u64 = 256 << 30;

/// Returns the largest number of bytes per key on this machine.
fn max_bytes() -> u64 {
    arena::max_pin_bytes(&MachineFiles::here()).map_or(MAX_BYTES, |limit| limit.min(MAX_BYTES))
}

impl Gpu {
    pub(super) fn new(ordinal: u32, model: String, context: PrimaryContext) -> Gpu {
        let name = format!("cuda:{ordinal}");
        let flags = HostFlags::default();
        Gpu { name, model, flags, max_bytes: max_bytes(), live: LiveKeys::new(), context }
    }

    /// Returns the registrar with other flags for its future keys; the default is
    /// [`HostFlags::default`].
    ///
    /// ```no_run
    /// use kvmem::register::cuda::{Cuda, HostFlags};
    ///
    /// let gpu = Cuda::load()?.open(0)?.with_flags(HostFlags::PORTABLE);
    /// # Ok::<(), kvmem::register::NotAvailable>(())
    /// ```
    #[must_use]
    pub fn with_flags(mut self, flags: HostFlags) -> Gpu {
        self.flags = flags;
        self
    }

    /// Returns the flags of future keys.
    #[must_use]
    pub fn flags(&self) -> HostFlags {
        self.flags
    }

    /// Returns the GPU's model name.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the number of registered keys.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }
}

impl Registrar for Gpu {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns a limit of 256 GiB per key, or of 1 GiB on Linux 6.11 to 6.13, and a preference for
    /// 1 GiB. CUDA copies by address, so the preference holds only for memory whose owner lets no
    /// copy cross an edge: a pool, or a node. CUDA's driver pins pages itself and does not charge
    /// them to `RLIMIT_MEMLOCK`.
    fn limits(&self) -> Limits {
        Limits {
            max_bytes: self.max_bytes,
            preferred_chunk_bytes: Some(PIECE_BYTES),
            copies_by_address: true,
            ..Limits::none(&self.name)
        }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let need_bytes = len as u64;
        let limit_bytes = self.max_bytes;
        if need_bytes > limit_bytes {
            let error = RegistrarError::new("cuMemHostRegister", Errno::EINVAL, "");
            return Err(error.exceeded(RegisterLimit::KeyBytes { limit_bytes, need_bytes }));
        }
        // SAFETY: the caller promises that the bytes stay mapped until the key is deregistered,
        // which unregisters them.
        match unsafe { self.context.register(at.as_ptr().cast(), len, self.flags) } {
            Ok(pointer) => {
                let handle = at.expose_provenance().get() as u64;
                Ok(self.live.insert(Key { handle, lkey: pointer, rkey: None }))
            }
            Err(failure) => Err(failure.to_error()),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.remove_with(key, "cuMemHostUnregister", || {
            // SAFETY: `remove_with` calls this only for a key that `register` has inserted, once,
            // and removes the key first. Its handle is therefore the exposed address of memory that
            // this context has registered, and no other thread unregisters it.
            unsafe { self.context.unregister(with_exposed_provenance_mut(key.handle as usize)) }
                .map_err(|failure| failure.to_error())
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.live.remove_all(|key| self.deregister(key)) {
            self.context.keep();
        }
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu")
            .field("name", &self.name)
            .field("model", &self.model)
            .field("flags", &self.flags)
            .field("live_keys", &self.live.len())
            .finish_non_exhaustive()
    }
}
