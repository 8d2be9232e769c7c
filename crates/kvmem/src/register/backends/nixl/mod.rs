//! *NIXL*: NVIDIA's library for transfers between inference servers, through `libnixl_capi.so`.
//!
//! ## What a registration is
//!
//! An *agent* is one party of transfers: it has a name, and *backends* that carry the bytes. UCX is
//! the usual backend; it uses RDMA, shared memory or TCP, depending on the two machines. Memory is
//! registered with an agent as a *descriptor*: address, length, device (0 for host memory). The
//! agent's own transfers can then read and write any part of it. So can its peers, if they have the
//! agent's *metadata*: how to reach the agent, and the keys of its memory.
//!
//! The initiator of a transfer checks the ranges. A local range that is not registered, or a remote
//! range that is not in the metadata, fails with `NIXL_CAPI_ERROR_NOT_FOUND`.
//!
//! ## Deregistering does not reach peers
//!
//! Over RDMA the card checks keys, though UCX may keep its registration for a while. Over TCP and
//! shared memory nothing checks them: a peer with old metadata writes to the old address. If
//! nothing is mapped there any more, then over TCP this process dies. (Seen with NIXL 1.5.1; new
//! metadata, which is added to the old, does not help.) Before memory is deregistered, peers must
//! therefore invalidate the agent, by `nixl_capi_invalidate_remote_md` or `remove_remote_agent`
//! (Python), and they must be trusted. For this reason [`Agent::metadata`] is `unsafe`: without it
//! no peer can access anything.
//!
//! ## Costs
//!
//! The backend determines the cost. For RDMA cards UCX pins the pages, as [`verbs`](super::verbs)
//! does. For TCP and shared memory it records the range, in a microsecond or two, and pins nothing.
//!
//! - *One call at a time.* An agent is created without locks, so [`Agent`] has one: its calls, and
//!   those that you make in [`Agent::with_raw`], wait for each other. Several agents share no lock
//!   and are called concurrently like other registrars; calibration measures whether that pays.
//! - *A range has one key.* NIXL can register a range twice and must then deregister it twice;
//!   [`Agent`] returns an error the second time. Overlapping ranges are allowed.
//! - *Few keys.* NIXL keeps descriptors in a sorted list, so deregistering takes time in proportion
//!   to the live descriptors: 1 µs with 256 of them, 35 µs with 1,024, 0.1 ms with 4,096. A plan
//!   uses one key for everything by default.
//!
//! ## The library
//!
//! Nothing is linked. The library is searched for in this order:
//!
//! 1. the file that the environment variable `KVMEM_NIXL_LIBRARY` names ([`Nixl::ENVIRONMENT`]);
//! 2. `libnixl_capi.so` in the loader's search path (`LD_LIBRARY_PATH`, `ldconfig`).
//!
//! The Python wheel `nixl-cu12` contains it as
//! `site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so`, beside all that it needs. It finds its
//! plugins relative to its own path, and needs neither CUDA nor Python. `NIXL_PLUGIN_DIR` names
//! another folder of plugins.
//!
//! Loading takes some 200 ms and the first agent with UCX half a second: the library contains gRPC,
//! and UCX inspects the whole machine. UCX hooks `mmap`, `munmap` and similar functions in this
//! process to detect memory that is unmapped. Threads run while an agent exists, so the library is
//! never unloaded; a child of a fork cannot use it.
//!
//! If `/sys/class/infiniband` lists no device and `UCX_MODULES` is not set, loading adds
//! `UCX_MODULES=^ib` to the environment. UCX then does not load its module `ib`. Together with the
//! system's drivers (Debian's `ibverbs-providers`) that module makes processes that load NIXL's
//! wheel 1.5.1 end with `SIGSEGV`. An event at `WARN` reports the change (feature `tracing`). If
//! there is a device, the module is loaded: use a NIXL built against the system's libraries there.
//!
//! Errors are numbers (`NIXL_CAPI_ERROR_BACKEND` for most, until NIXL 1.5). NIXL writes the cause
//! to standard error, in full with `NIXL_LOG_LEVEL=DEBUG`. There is one exception: it does not say
//! that the process may not search the folder `HOME` for `.nixl.cfg`. This happens in a process
//! that has changed its user and kept root's `HOME`.
//!
//! ```no_run
//! use kvmem::register::Registrar;
//! use kvmem::register::nixl::Nixl;
//!
//! let nixl = Nixl::load()?;
//! println!("backends: {}", nixl.backends()?.join(", "));
//! let agent = nixl.agent("prefill-3").open()?; // with UCX
//! println!("{} is ready to register", agent.name());
//! # Ok::<(), kvmem::register::NotAvailable>(())
//! ```

mod abi;
mod agent;
mod failure;
mod handle;
mod owned;
mod ucx;

pub use agent::{Agent, AgentBuilder};

use std::env;
use std::path::Path;
use std::sync::Arc;

use self::abi::NixlAbi;
use crate::register::NotAvailable;
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// The number of attempts to deregister memory if no later call can retry it.
const ATTEMPTS: usize = 3;

/// The device number of host memory.
const DEVICE: u64 = 0;

/// The library, loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Nixl(Arc<NixlAbi>);

impl Nixl {
    /// The file name under which the loader finds the library.
    pub const LIBRARY: &str = "libnixl_capi.so";

    /// The environment variable with the path of the library, if the loader does not find it.
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
        // SAFETY: the caller's promise.
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

    fn abi(&self) -> &Arc<NixlAbi> {
        &self.0
    }

    /// Returns the names of the backends that NIXL has plugins for. Not all of them can be started
    /// on this machine, and not all of them support host memory.
    ///
    /// # Errors
    /// [`NotAvailable`] if NIXL does not list them.
    pub fn backends(&self) -> Result<Vec<String>, NotAvailable> {
        let agent = handle::agent(&self.0, c"kvmem-asks");
        let names = agent.and_then(|agent| handle::plugins(&self.0, &agent));
        names.map_err(|failure| failure.not_available(""))
    }

    /// Opens an agent with this backend, under a unique name made of the host, the process, and a
    /// number. The registrar is named `nixl:` and the backend.
    ///
    /// # Errors
    /// The errors of [`AgentBuilder::open`].
    pub fn open(&self, backend: &str) -> Result<Agent, NotAvailable> {
        self.agent(unique()).named(format!("nixl:{backend}")).backend(backend).open()
    }

    /// Returns a builder for an agent of this name, with UCX and the same name for the registrar by
    /// default. Peers know an agent by its name: agents that talk to each other must have different
    /// names.
    pub fn agent(&self, name: impl Into<String>) -> AgentBuilder {
        AgentBuilder::new(self, name.into())
    }
}

/// Returns a unique agent name, if hosts have unique names.
fn unique() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // Relaxed: the numbers only have to differ.
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let host = sys::read_text("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("kvmem-{}-{}-{number}", host.trim(), sys::process_id())
}

fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("nixl", reason, remedy)
}
