//! *Verbs*: network cards with RDMA, through `libibverbs.so.1`.
//!
//! ## What a registration is
//!
//! A *memory region* (MR) is a range of this process's memory that a card may access. Creating one
//! pins the pages, fills a table on the card with their physical addresses, and returns two
//! numbers: the *lkey* for local work requests, and the *rkey* for peers. Both are valid within one
//! *protection domain* (PD): a queue pair of another domain cannot use them. There is therefore one
//! registrar for each pair of card and domain; an engine that has its own domains uses
//! [`Nic::from_raw`].
//!
//! The cost depends on the number of pages: the kernel looks up and pins each page, and the driver
//! sends the addresses to the card. For a terabyte this is a system call of seconds. Several cards
//! can do it concurrently unless they wait for the same lock. Page faults take such a lock;
//! therefore pages are populated first.
//!
//! ## The library
//!
//! Nothing is linked. The library is loaded by its name on request; a machine without it runs the
//! rest of kvmem. The bindings rely on the library's ABI, which the number in its name stands for,
//! and which is compared with the layout of rdma-core's header at compile time.
//!
//! The library is unloaded after the last [`Verbs`] and [`Nic`] that use it.
//!
//! Some functions return an error number; others return `NULL` and set `errno`. Both become an
//! [`Errno`]. `ENOMEM` can mean the memory lock limit, the number of regions on the card, or
//! memory; a [`RegisterLimit`](crate::register::RegisterLimit) names the limit if the figures tell which it
//! is.
//!
//! ```no_run
//! use kvmem::register::Registrar;
//! use kvmem::register::verbs::Verbs;
//!
//! let verbs = Verbs::load()?;
//! for name in verbs.devices()? {
//!     let nic = verbs.open(&name)?;
//!     println!("{name}: {:?}", nic.limits());
//! }
//! # Ok::<(), kvmem::register::NotAvailable>(())
//! ```

mod abi;
mod access;
mod context;
mod device_list;
mod domain;
mod failure;
mod nic;

pub use access::Access;
pub use nic::Nic;

use std::path::Path;
use std::sync::Arc;

use self::abi::VerbsAbi;
use self::context::{OpenDevice, VerbsFailure};
use self::device_list::DeviceList;
use self::domain::Domain;
use crate::arena::Errno;
use crate::register::NotAvailable;

/// The loaded library.
#[derive(Clone, Debug)]
pub struct Verbs(Arc<VerbsAbi>);

impl Verbs {
    /// The file name under which the loader finds the library.
    pub const LIBRARY: &str = "libibverbs.so.1";

    /// Loads `libibverbs.so.1` from the loader's search path.
    ///
    /// # Errors
    /// [`NotAvailable`] if the library is missing, or lacks a function.
    pub fn load() -> Result<Verbs, NotAvailable> {
        // SAFETY: the name stands for the ABI; every program linked with the library relies on it,
        // too.
        unsafe { Verbs::load_from(Self::LIBRARY) }
    }

    /// Loads the library from a file, or by another name.
    ///
    /// # Errors
    /// [`NotAvailable`] if the file is missing, is no library, or lacks a function.
    ///
    /// # Safety
    /// If the file is a library with these functions, they behave like those of libibverbs. The
    /// code that runs when the library is loaded and unloaded is sound.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Verbs, NotAvailable> {
        // SAFETY: the caller's promise.
        let abi = unsafe { VerbsAbi::load(path.as_ref()) };
        abi.map(|abi| Verbs(Arc::new(abi))).map_err(|reason| {
            not_available(
                reason,
                "install rdma-core's library (Debian: libibverbs1, and ibverbs-providers for the \
                 drivers)",
            )
        })
    }

    fn abi(&self) -> &Arc<VerbsAbi> {
        &self.0
    }

    /// Returns the names of the current devices, at least one.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no device, or the kernel does not support RDMA.
    pub fn devices(&self) -> Result<Vec<String>, NotAvailable> {
        Ok(self.list()?.iter().map(|(_, name)| name).collect())
    }

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
        // SAFETY: the device is on the list, which is not freed.
        let context = unsafe { OpenDevice::open(&self.0, device) };
        let domain = context.and_then(|context| Domain::new(&self.0, context));
        Nic::new(name.to_owned(), domain.map_err(|failed| not_usable(name, failed))?)
    }

    /// Returns the list of devices, if there are any.
    fn list(&self) -> Result<DeviceList<'_>, NotAvailable> {
        let no_device = |why: &str| {
            not_available(
                format!("no device: {why}"),
                "install a card with RDMA, its driver and ib_uverbs in the kernel, and its \
                 provider (Debian: ibverbs-providers); for a container --device=/dev/infiniband",
            )
        };
        match DeviceList::query(&self.0) {
            Ok(list) if list.iter().next().is_some() => Ok(list),
            Ok(_) => Err(no_device("the library finds none")),
            Err(errno @ (Errno::ENOSYS | Errno::ENOENT | Errno::ENODEV)) => Err(no_device(
                &format!("the kernel does not support RDMA (ibv_get_device_list: {errno})"),
            )),
            Err(errno) => Err(not_available(
                format!("ibv_get_device_list: {errno}"),
                failure::open_remedy(errno),
            )),
        }
    }
}

fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("verbs", reason, remedy)
}

/// Returns the error for a device that exists and cannot be used.
fn not_usable(name: &str, (call, errno): VerbsFailure) -> NotAvailable {
    not_available(format!("{name}: {call}: {errno}"), failure::open_remedy(errno))
}
