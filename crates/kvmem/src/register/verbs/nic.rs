//! *NIC*: one device with one protection domain, as a registrar.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use super::super::live::Live;
use super::super::{Account, Key, Limits, NotAvailable, Registrar, RegistrarError, memlock};
use super::domain::Domain;
use super::{Access, Verbs, not_usable, refusal};

/// A network card, as a registrar: it gives keys under one protection domain.
///
/// A key's `handle` is the address of its `struct ibv_mr`, `lkey` and `rkey` are those of verbs,
/// and memory is known to peers by the addresses it has in this process.
///
/// When it is dropped, keys that are still live are given back, then the domain is freed and the
/// device closed. What the library does not take back stays, with the device and the library.
pub struct Nic {
    name: String,
    access: Access,
    live: Live,
    domain: Domain,
    /// As the device says; 0 where it says nothing.
    max_mr_size: u64,
    max_mr: i32,
}

impl Nic {
    /// In a domain that stands.
    pub(super) fn new(name: String, domain: Domain) -> Result<Nic, NotAvailable> {
        let attr = domain.query().map_err(|failed| not_usable(&name, failed))?;
        Ok(Nic {
            name,
            access: domain.takes(Access::default()),
            live: Live::new(),
            domain,
            max_mr_size: attr.max_mr_size,
            max_mr: attr.max_mr,
        })
    }

    /// A registrar in a protection domain of somebody else, so that queue pairs which stand there
    /// already can use its keys. The domain is not freed and its device not closed.
    ///
    /// # Errors
    /// [`NotAvailable`] if the device does not say what it can do.
    ///
    /// # Safety
    /// `pd` is a `struct ibv_pd *` that was made through the same loaded library as `verbs`, and
    /// stays until the result has been dropped.
    pub unsafe fn from_raw(
        verbs: &Verbs,
        name: impl Into<String>,
        pd: NonNull<c_void>,
    ) -> Result<Nic, NotAvailable> {
        // SAFETY: the caller's promise.
        let domain = unsafe { Domain::foreign(verbs.abi(), pd.cast()) };
        Nic::new(name.into(), domain)
    }

    /// With keys that allow exactly this from now on; at first it is [`Access::default`].
    ///
    /// ```no_run
    /// use kvmem::register::verbs::{Access, Verbs};
    ///
    /// let nic = Verbs::load()?.open("mlx5_0")?.with_access(Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
    /// # Ok::<(), kvmem::register::NotAvailable>(())
    /// ```
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Nic {
        self.access = self.domain.takes(access);
        self
    }

    /// What its keys allow. That is what was asked for; only a library without `ibv_reg_mr_iova2`
    /// (rdma-core before 28) does not take [`Access::RELAXED_ORDERING`], which is missing here
    /// then.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Keys that were given and not given back.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }
}

/// How often keys that are left are given back when the card goes.
const TRIES: usize = 3;

impl Registrar for Nic {
    fn name(&self) -> &str {
        &self.name
    }

    /// `max_mr_size` and `max_mr` of the device, less the keys that are live here; what other
    /// processes have counts too, but is not known. `RLIMIT_MEMLOCK` as it holds for this
    /// process.
    fn limits(&self) -> Limits {
        // Nothing said is no limit. All bits set is how some drivers say it.
        let max_bytes = if self.max_mr_size == 0 { u64::MAX } else { self.max_mr_size };
        let max_keys = match u64::try_from(self.max_mr) {
            Ok(max) if max > 0 => max.saturating_sub(self.live.len()),
            _ => u64::MAX,
        };
        let memlock = memlock::limit(Account::Pinned);
        Limits { max_bytes, max_keys, memlock, ..Limits::none(&self.name) }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        // SAFETY: the caller's promise.
        match unsafe { self.domain.register(at, len, self.access) } {
            Ok((mr, lkey, rkey)) => {
                let handle = mr.expose_provenance().get() as u64;
                Ok(self.live.give(Key { handle, lkey: lkey.into(), rkey: Some(rkey) }))
            }
            Err(failed) => Err(refusal::register(failed, &self.limits(), len)),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.take(key, "ibv_dereg_mr", || {
            // SAFETY: a live key's handle is a memory region of this domain, and nobody else gives
            // it back meanwhile.
            unsafe { self.domain.deregister(with_exposed_provenance_mut(key.handle as usize)) }
                .map_err(refusal::deregister)
        })
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            for key in self.live.all() {
                // Asked again below.
                let _ = self.deregister(key);
            }
        }
        if self.live.len() > 0 {
            // The device can still reach the memory, so nothing under it may go.
            self.domain.abandon();
        }
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("name", &self.name)
            .field("access", &self.access)
            .field("live_keys", &self.live.len())
            .finish_non_exhaustive()
    }
}
