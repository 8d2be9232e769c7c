//! *GPU*: one device, as a registrar.

use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use super::super::live::Live;
use super::super::{Key, Limits, RegisterLimit, Registrar, RegistrarError};
use super::context::Context;
use super::{HostFlags, TRIES};
use crate::arena::Errno;

/// A GPU, as a registrar: memory is pinned by CUDA, and copies from and to it need no intermediate
/// buffer.
///
/// A key's `handle` is the address of the memory in this process, its `lkey` that on the GPU (0
/// without [`HostFlags::DEVICE_MAP`]), and it has no rkey.
///
/// When it is dropped, keys that are still live are given back and the GPU's primary context is
/// released. What CUDA does not take back stays, with the context.
pub struct Gpu {
    name: String,
    model: String,
    flags: HostFlags,
    live: Live,
    context: Context,
}

/// The most bytes of one key. CUDA states no limit of its own; this one bounds how long one call
/// takes, and what its failure costs.
const MAX_BYTES: u64 = 256 << 30;

impl Gpu {
    pub(super) fn new(ordinal: u32, model: String, context: Context) -> Gpu {
        let name = format!("cuda:{ordinal}");
        Gpu { name, model, flags: HostFlags::default(), live: Live::new(), context }
    }

    /// With memory made known in this way from now on; at first it is [`HostFlags::default`].
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

    /// How memory is made known.
    #[must_use]
    pub fn flags(&self) -> HostFlags {
        self.flags
    }

    /// What the GPU calls itself.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Keys that were given and not given back.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }
}

impl Registrar for Gpu {
    fn name(&self) -> &str {
        &self.name
    }

    /// 256 GiB a key. CUDA's driver pins pages by itself and does not count them against
    /// `RLIMIT_MEMLOCK`.
    fn limits(&self) -> Limits {
        Limits { max_bytes: MAX_BYTES, ..Limits::none(&self.name) }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let need_bytes = len as u64;
        if need_bytes > MAX_BYTES {
            let refusal = RegistrarError::new("cuMemHostRegister", Errno::EINVAL, "");
            return Err(
                refusal.exceeded(RegisterLimit::KeyBytes { limit_bytes: MAX_BYTES, need_bytes })
            );
        }
        // SAFETY: the caller's promise.
        match unsafe { self.context.register(at.as_ptr().cast(), len, self.flags) } {
            Ok(pointer) => {
                let handle = at.expose_provenance().get() as u64;
                Ok(self.live.give(Key { handle, lkey: pointer, rkey: None }))
            }
            Err(failure) => Err(failure.refusal()),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.take(key, "cuMemHostUnregister", || {
            // SAFETY: a live key's handle is an address that was registered here, and nobody else
            // gives it back meanwhile.
            unsafe { self.context.unregister(with_exposed_provenance_mut(key.handle as usize)) }
                .map_err(|failure| failure.refusal())
        })
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            for key in self.live.all() {
                // Asked again below.
                let _ = self.deregister(key);
            }
        }
        if self.live.len() > 0 {
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
