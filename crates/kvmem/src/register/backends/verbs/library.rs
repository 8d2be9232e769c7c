//! *Library*: the loaded `libibverbs`, and the devices that it finds.

use std::path::Path;
use std::sync::Arc;

use super::abi::VerbsAbi;
use super::device_list::DeviceList;
use super::failure::{not_available, open_remedy};
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
        // SAFETY: the caller promises that a library with these functions behaves like libibverbs,
        // so it has this ABI, and that the code that runs when it is loaded is sound.
        let abi = unsafe { VerbsAbi::load(path.as_ref()) };
        abi.map(|abi| Verbs(Arc::new(abi))).map_err(|reason| {
            not_available(
                reason,
                "install rdma-core's library (Debian: libibverbs1, and ibverbs-providers for the \
                 drivers)",
            )
        })
    }

    pub(super) fn abi(&self) -> &Arc<VerbsAbi> {
        &self.0
    }

    /// Returns the names of the current devices, at least one.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no device, or the kernel does not support RDMA.
    pub fn devices(&self) -> Result<Vec<String>, NotAvailable> {
        Ok(self.list()?.iter().map(|(_, name)| name).collect())
    }

    /// Returns the list of devices, if there are any.
    pub(super) fn list(&self) -> Result<DeviceList<'_>, NotAvailable> {
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
            Err(errno) => {
                Err(not_available(format!("ibv_get_device_list: {errno}"), open_remedy(errno)))
            }
        }
    }
}
