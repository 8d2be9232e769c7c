//! *Library*: the loaded NIXL, and its backends.

use std::env;
use std::path::Path;
use std::sync::Arc;

use super::abi::NixlAbi;
use super::failure::not_available;
use super::{handle, ucx};
use crate::register::NotAvailable;
use crate::sys;

/// The library, loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Nixl(Arc<NixlAbi>);

impl Nixl {
    /// The file name under which the loader finds the library.
    pub const LIBRARY: &str = "libnixl_capi.so";

    /// The environment variable with the path of the library, if the loader does not find it. A
    /// process that has more rights than its user, such as those of a file's capabilities, refuses
    /// it, as the loader refuses `LD_LIBRARY_PATH`.
    pub const ENVIRONMENT: &str = "KVMEM_NIXL_LIBRARY";

    /// The default backend.
    pub const BACKEND: &str = "UCX";

    /// Loads the library that [`ENVIRONMENT`](Self::ENVIRONMENT) names; if it is not set, loads
    /// [`LIBRARY`](Self::LIBRARY) from the loader's search path.
    ///
    /// # Errors
    /// [`NotAvailable`] if the library is missing, is from a NIXL before 1.0, or lacks a function.
    pub fn load() -> Result<Nixl, NotAvailable> {
        match env::var_os(Self::ENVIRONMENT).filter(|path| !path.is_empty()) {
            Some(_) if sys::has_more_rights_than_its_user() => Err(not_available(
                format!(
                    "{} is set, and this process has more rights than its user",
                    Self::ENVIRONMENT
                ),
                "unset it, and let the loader find the library (/etc/ld.so.conf.d), or take the \
                 set-user-ID bit or the capabilities from the program's file",
            )),
            // SAFETY: the environment's author is responsible for the file, as with
            // LD_LIBRARY_PATH.
            Some(path) => unsafe { Nixl::load_from(path) }.map_err(|error| {
                let reason = format!("{} names the library: {}", Self::ENVIRONMENT, error.reason);
                NotAvailable { reason, ..error }
            }),
            // SAFETY: the name stands for the ABI; every program linked with the library relies on
            // it, too.
            None => unsafe { Nixl::load_from(Self::LIBRARY) },
        }
    }

    /// Loads the library from a file, or by another name.
    ///
    /// # Errors
    /// [`NotAvailable`] if the library is missing, is from a NIXL before 1.0, or lacks a function.
    ///
    /// # Safety
    /// If the file is a library with these functions, they behave like those of NIXL. The code that
    /// runs when the library is loaded is sound.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Nixl, NotAvailable> {
        ucx::avoid_ib();
        // SAFETY: the caller promises that a library with these functions behaves like NIXL, so it
        // has this ABI, and that the code that runs when it is loaded is sound.
        let mut abi = unsafe { NixlAbi::load(path.as_ref()) }.map_err(|reason| {
            not_available(
                reason,
                "install NIXL (`pip install --no-deps nixl-cu12`; needs no CUDA) and set \
                 KVMEM_NIXL_LIBRARY to the wheel's \
                 site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so",
            )
        })?;
        abi.keep();
        Ok(Nixl(Arc::new(abi)))
    }

    pub(super) fn abi(&self) -> &Arc<NixlAbi> {
        &self.0
    }

    /// Returns the names of the backends that NIXL has plugins for. Not all of them can be started
    /// on this machine, and not all of them support host memory.
    ///
    /// # Errors
    /// [`NotAvailable`] if NIXL does not list them.
    pub fn backends(&self) -> Result<Vec<String>, NotAvailable> {
        let agent = handle::agent(&self.0, c"kvmem-asks");
        // SAFETY: this library has created the agent.
        let names = agent.and_then(|agent| unsafe { handle::plugins(&self.0, &agent) });
        names.map_err(|failure| failure.not_available(""))
    }
}
