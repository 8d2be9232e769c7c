//! *NIC*: one device with one protection domain, as a registrar.

use std::ffi::c_void;
use std::fmt;
use std::ptr::{NonNull, with_exposed_provenance_mut};

use super::access::Access;
use super::context::OpenDevice;
use super::domain::Domain;
use super::failure::{self, not_available, not_usable};
use super::library::Verbs;
use crate::register::backends::live_keys::LiveKeys;
use crate::register::backends::memlock;
use crate::register::{Account, Key, Limits, NotAvailable, Registrar, RegistrarError};

/// A network card with one protection domain, as a registrar.
///
/// A key's `handle` is the address of its `struct ibv_mr`; `lkey` and `rkey` are those of verbs.
/// Peers address the memory by its addresses in this process.
///
/// Dropping the registrar deregisters the live keys, frees the domain and closes the device. Keys
/// that the library fails to deregister are leaked, together with the device and the library.
pub struct Nic {
    name: String,
    access: Access,
    live: LiveKeys,
    domain: Domain,
    /// The device's limits; 0 if it reports none.
    max_mr_size: u64,
    max_mr: i32,
}

impl Verbs {
    /// Opens a device and allocates a protection domain on it. Its keys allow
    /// [`Access::default`]; [`Nic::with_access`] changes that.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no device of this name, or it cannot be opened. Nothing stays
    /// open then.
    pub fn open(&self, name: &str) -> Result<Nic, NotAvailable> {
        let list = self.list()?;
        let Some((device, _)) = list.iter().find(|(_, listed)| listed == name) else {
            let have: Vec<String> = list.iter().map(|(_, name)| name).collect();
            return Err(not_available(
                format!("no device is called {name}: there are {}", have.join(", ")),
                "name one of them",
            ));
        };
        // SAFETY: `device` is an entry of `list`, which this library returned and which lives until
        // the end of this function.
        let context = unsafe { OpenDevice::open(self.abi(), device) };
        let domain = context.and_then(|context| Domain::new(self.abi(), context));
        Nic::new(name.to_owned(), domain.map_err(|failed| not_usable(name, failed))?)
    }
}

impl Nic {
    /// Wraps an allocated domain.
    fn new(name: String, domain: Domain) -> Result<Nic, NotAvailable> {
        let attr = domain.query().map_err(|failed| not_usable(&name, failed))?;
        Ok(Nic {
            name,
            access: domain.supported(Access::default()),
            live: LiveKeys::new(),
            domain,
            max_mr_size: attr.max_mr_size,
            max_mr: attr.max_mr,
        })
    }

    /// Returns a registrar in a foreign protection domain. Queue pairs that exist in that domain
    /// can use its keys. The domain is not freed and its device is not closed.
    ///
    /// # Errors
    /// [`NotAvailable`] if the device does not report its limits.
    ///
    /// # Safety
    /// `pd` is a `struct ibv_pd *` that was allocated through the same loaded library as `verbs`,
    /// and is freed after the result is dropped.
    pub unsafe fn from_raw(
        verbs: &Verbs,
        name: impl Into<String>,
        pd: NonNull<c_void>,
    ) -> Result<Nic, NotAvailable> {
        // SAFETY: the caller promises that `pd` was allocated by the library of `verbs`, and is
        // freed after the result, which owns this domain, is dropped.
        let domain = unsafe { Domain::foreign(verbs.abi(), pd.cast()) };
        Nic::new(name.into(), domain)
    }

    /// Returns the registrar with another access for its future keys; the default is
    /// [`Access::default`].
    ///
    /// ```no_run
    /// use kvmem::register::verbs::{Access, Verbs};
    ///
    /// let nic = Verbs::load()?.open("mlx5_0")?;
    /// let nic = nic.with_access(Access::LOCAL_WRITE | Access::RELAXED_ORDERING);
    /// # Ok::<(), kvmem::register::NotAvailable>(())
    /// ```
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Nic {
        self.access = self.domain.supported(access);
        self
    }

    /// Returns the access of future keys. It is the requested access, except that a library without
    /// `ibv_reg_mr_iova2` (rdma-core before 28) does not support [`Access::RELAXED_ORDERING`],
    /// which is then missing here.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the number of registered keys.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }
}

impl Registrar for Nic {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns `max_mr_size` and `max_mr` of the device, minus the live keys of this registrar.
    /// Keys of other processes count on the device too, but their number is unknown.
    /// `RLIMIT_MEMLOCK` is that of this process.
    fn limits(&self) -> Limits {
        // 0 means no limit. Some drivers set all bits instead.
        let max_bytes = if self.max_mr_size == 0 { u64::MAX } else { self.max_mr_size };
        let max_keys = match u64::try_from(self.max_mr) {
            Ok(max) if max > 0 => max.saturating_sub(self.live.len()),
            _ => u64::MAX,
        };
        let memlock = memlock::limit(Account::Pinned);
        Limits { max_bytes, max_keys, memlock, ..Limits::none(&self.name) }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        // SAFETY: the caller promises that the bytes stay mapped until the key is deregistered,
        // which deregisters the memory region.
        match unsafe { self.domain.register(at, len, self.access) } {
            Ok((mr, lkey, rkey)) => {
                let handle = mr.expose_provenance().get() as u64;
                Ok(self.live.insert(Key { handle, lkey: lkey.into(), rkey: Some(rkey) }))
            }
            Err(failed) => Err(failure::register(failed, &self.limits(), len)),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.remove_with(key, "ibv_dereg_mr", || {
            // SAFETY: `remove_with` calls this only for a key that `register` has inserted, once,
            // and removes the key first. Its handle is therefore the exposed address of a memory
            // region of this domain that is not deregistered, and no other thread has it.
            unsafe { self.domain.deregister(with_exposed_provenance_mut(key.handle as usize)) }
                .map_err(failure::deregister)
        })
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        if !self.live.remove_all(|key| self.deregister(key)) {
            // The device can still access the memory: the domain and the device must stay.
            self.domain.leak();
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
