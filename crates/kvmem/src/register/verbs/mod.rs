//! *Verbs*: network cards with RDMA, through `libibverbs.so.1`.
//!
//! ## What a registration is there
//!
//! A *memory region* (MR) is a range of this process's memory that a card may reach. Making one
//! pins the pages, fills a table on the card with their physical addresses, and gives two numbers:
//! the *lkey*, which our own work requests name, and the *rkey*, which peers name. Both hold within
//! one *protection domain* (PD): a queue pair of another one cannot use them. So there is one
//! registrar for each pair of card and domain; an engine that has domains of its own uses
//! [`Nic::from_raw`].
//!
//! What it costs depends on the number of pages: the kernel looks up and pins each one, and the
//! driver sends their addresses to the card. It is a system call of seconds for a terabyte, and
//! several cards take it side by side as long as they do not wait for the same lock: page faults
//! do, so pages are populated before.
//!
//! ## The library
//!
//! Nothing is linked. The library is loaded when it is asked for, by its own name; a machine
//! without one runs the rest of kvmem as before. What the bindings rely on is the library's ABI,
//! which is as old as the number in its name, and is checked against the layout of rdma-core's
//! header when this is compiled.
//!
//! The library is unloaded after the last [`Verbs`] and [`Nic`] that use it.
//!
//! Two kinds of error come out of it: some functions return an error number, others return `NULL`
//! and set `errno`. Both are [`Errno`]s here. `ENOMEM` may be the memory lock limit, the number of
//! regions that the card has, or memory; the numbers are looked at to tell which, and a
//! [`RegisterLimit`](super::RegisterLimit) says it.
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
mod devices;
mod domain;
mod nic;
mod refusal;

pub use access::Access;
pub use nic::Nic;

use std::path::Path;
use std::sync::Arc;

use self::abi::Abi;
use self::context::{Context, Failed};
use self::devices::Devices;
use self::domain::Domain;
use super::NotAvailable;
use crate::arena::Errno;

/// The library, loaded.
#[derive(Clone, Debug)]
pub struct Verbs(Arc<Abi>);

impl Verbs {
    /// The name by which the library is found.
    pub const LIBRARY: &str = "libibverbs.so.1";

    /// Loads `libibverbs.so.1` from where the loader finds it.
    ///
    /// # Errors
    /// [`NotAvailable`] if it is not there, or is another one than its name says.
    pub fn load() -> Result<Verbs, NotAvailable> {
        // SAFETY: the name stands for the ABI, by which every program that was linked with the
        // library finds it too.
        unsafe { Verbs::load_from(Self::LIBRARY) }
    }

    /// Loads the library from a file, or by another name.
    ///
    /// # Errors
    /// [`NotAvailable`] if it is not there, is no library, or lacks a function.
    ///
    /// # Safety
    /// If the file is a library with these functions then they are those of libibverbs, or behave
    /// alike. What the library runs when it is loaded and unloaded does no harm.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Verbs, NotAvailable> {
        // SAFETY: the caller's promise.
        let abi = unsafe { Abi::load(path.as_ref()) };
        abi.map(|abi| Verbs(Arc::new(abi))).map_err(|reason| {
            not_available(
                reason,
                "install rdma-core's library (Debian: libibverbs1, and ibverbs-providers for the drivers)",
            )
        })
    }

    fn abi(&self) -> &Arc<Abi> {
        &self.0
    }

    /// The names of the devices that there are now, at least one.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is none, or the kernel has no RDMA.
    pub fn devices(&self) -> Result<Vec<String>, NotAvailable> {
        Ok(self.list()?.iter().map(|(_, name)| name).collect())
    }

    /// Opens a device and makes a protection domain on it. Its keys allow [`Access::default`]: see
    /// [`Nic::with_access`].
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no device of this name, or it cannot be opened. Nothing is left
    /// open then.
    pub fn open(&self, name: &str) -> Result<Nic, NotAvailable> {
        let list = self.list()?;
        let Some((device, _)) = list.iter().find(|(_, listed)| listed == name) else {
            let have: Vec<String> = list.iter().map(|(_, name)| name).collect();
            return Err(not_available(
                format!("no device is called {name}: there are {}", have.join(", ")),
                "name one of those",
            ));
        };
        // SAFETY: the device is on the list, which lives.
        let context = unsafe { Context::open(&self.0, device) };
        let domain = context.and_then(|context| Domain::new(&self.0, context));
        Nic::new(name.to_owned(), domain.map_err(|failed| not_usable(name, failed))?)
    }

    /// The list of devices, if there are any.
    fn list(&self) -> Result<Devices<'_>, NotAvailable> {
        let no_device = |why: &str| {
            not_available(
                format!("no device: {why}"),
                "a card with RDMA is needed, its driver and ib_uverbs in the kernel, its provider (Debian: ibverbs-providers), and in \
                 a container --device=/dev/infiniband",
            )
        };
        match Devices::ask(&self.0) {
            Ok(list) if list.iter().next().is_some() => Ok(list),
            Ok(_) => Err(no_device("the library finds none")),
            Err(errno @ (Errno::ENOSYS | Errno::ENOENT | Errno::ENODEV)) => Err(no_device(
                &format!("the kernel has no RDMA here (ibv_get_device_list: {errno})"),
            )),
            Err(errno) => Err(not_available(
                format!("ibv_get_device_list: {errno}"),
                refusal::open_remedy(errno),
            )),
        }
    }
}

fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("verbs", reason, remedy)
}

/// A device that is there and cannot be used.
fn not_usable(name: &str, (call, errno): Failed) -> NotAvailable {
    not_available(format!("{name}: {call}: {errno}"), refusal::open_remedy(errno))
}
