//! *NIXL*: NVIDIA's library for transfers between inference servers, through `libnixl_capi.so`.
//!
//! ## What a registration is there
//!
//! An *agent* is one party of transfers: it has a name, and *backends* that carry the bytes. UCX is
//! the usual one: over RDMA, shared memory or TCP, whatever there is between two machines. An agent
//! is told of memory once, as a *descriptor*: address, length, device (0 for memory of the host).
//! From then on any part of it can be read and written in transfers, by the agent and by peers that
//! were given the agent's *metadata*: how to reach it, and the keys of what it has registered.
//!
//! Whoever begins a transfer is the one who checks: a range of his own that is not registered, or a
//! range of a peer's that is not in the metadata, is not found (`NIXL_CAPI_ERROR_NOT_FOUND`).
//!
//! ## What giving back does not do
//!
//! It does not reach peers. Over RDMA the card checks keys, though UCX may keep its registration
//! for a while. Over TCP and over shared memory nobody checks: a peer with old metadata writes to
//! the address that it remembers, and if nothing is mapped there any more, then over TCP it is this
//! process that dies. (Seen with NIXL 1.5.1; new metadata, which adds to the old, does not help.)
//! So peers have to forget before memory is given back, by `nixl_capi_invalidate_remote_md` or
//! `remove_remote_agent` (Python), and must be trusted. That is why [`Agent::metadata`] is
//! `unsafe`: without it no peer can reach anything.
//!
//! ## What it costs
//!
//! That is the backend's: with RDMA cards UCX pins the pages, as [`verbs`](super::verbs) does; with
//! TCP and shared memory it writes down the range, in a microsecond or two, and pins nothing.
//!
//! - *One call at a time.* An agent is made without locks, so [`Agent`] has one: its calls, and
//!   those that you make in [`Agent::with_raw`], wait for each other. Several agents have no lock
//!   in common and are called side by side like other registrars; whether that pays is measured.
//! - *A range has one key.* NIXL takes a range twice and wants it back twice; [`Agent`] refuses the
//!   second time. Ranges that overlap are taken.
//! - *Few keys.* NIXL keeps descriptors in a sorted list, so giving one back takes time in
//!   proportion to those that are live: 1 µs with 256 of them, 35 with 1,024, 0.1 ms with 4,096.
//!   One key for all is what a plan takes if nothing else is said.
//!
//! ## The library
//!
//! Nothing is linked. The library is looked for in this order:
//!
//! 1. the file that the environment variable `KVMEM_NIXL_LIBRARY` names ([`Nixl::ENVIRONMENT`]);
//! 2. `libnixl_capi.so`, where the loader finds it (`LD_LIBRARY_PATH`, `ldconfig`).
//!
//! The Python wheel `nixl-cu12` has it in `site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so`,
//! with all that it needs beside it; it finds its plugins by its own place, and needs neither CUDA
//! nor Python. `NIXL_PLUGIN_DIR` names another folder of plugins.
//!
//! Loading takes some 200 ms and the first agent with UCX half a second: the library brings gRPC,
//! and UCX looks at the whole machine. UCX hooks `mmap`, `munmap` and the like in this process, to
//! hear of memory that goes away. Threads run as long as an agent lives, so the library is not
//! unloaded again; a child of a fork cannot use it.
//!
//! If `/sys/class/infiniband` lists no device and `UCX_MODULES` is not set, loading adds
//! `UCX_MODULES=^ib` to the environment. UCX then leaves out its module `ib`. Together with the
//! system's drivers (Debian's `ibverbs-providers`) that module makes processes that load NIXL's
//! wheel 1.5.1 end with `SIGSEGV`. An event at `WARN` says so (feature `tracing`). With a device
//! the module is loaded: use a NIXL that was built against the system's libraries there.
//!
//! Errors are numbers (`NIXL_CAPI_ERROR_BACKEND` for most, until NIXL 1.5); why it was, NIXL writes
//! to standard error, all of it with `NIXL_LOG_LEVEL=DEBUG`. One it does not write: that it may not
//! look for `.nixl.cfg` in the folder `HOME` names, as in a process that has changed its user and
//! kept root's `HOME`.
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
mod link;
mod owned;
mod ucx;

pub use agent::{Agent, AgentBuilder};

use std::env;
use std::path::Path;
use std::sync::Arc;

use self::abi::Abi;
use super::NotAvailable;
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// How often memory is taken back where nobody could ask again.
const TRIES: usize = 3;

/// The number of the device whose memory is the host's.
const DEVICE: u64 = 0;

/// The library, loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Nixl(Arc<Abi>);

impl Nixl {
    /// The name by which the library is found.
    pub const LIBRARY: &str = "libnixl_capi.so";

    /// The environment variable that names the file of the library, where the loader would not find
    /// it.
    pub const ENVIRONMENT: &str = "KVMEM_NIXL_LIBRARY";

    /// The backend that is meant where none is named.
    pub const BACKEND: &str = "UCX";

    /// Loads the library that [`ENVIRONMENT`](Self::ENVIRONMENT) names, or else
    /// [`LIBRARY`](Self::LIBRARY) from where the loader finds it.
    ///
    /// # Errors
    /// [`NotAvailable`] if it is not there, is of a NIXL before 1.0, or lacks a function.
    pub fn load() -> Result<Nixl, NotAvailable> {
        match env::var_os(Self::ENVIRONMENT).filter(|path| !path.is_empty()) {
            // SAFETY: whoever sets the environment answers for what is loaded, as with
            // LD_LIBRARY_PATH.
            Some(path) => unsafe { Nixl::load_from(path) }.map_err(|error| {
                let reason = format!("{} says where it is: {}", Self::ENVIRONMENT, error.reason);
                NotAvailable { reason, ..error }
            }),
            // SAFETY: the name stands for the ABI, by which every program that was linked with the
            // library finds it too.
            None => unsafe { Nixl::load_from(Self::LIBRARY) },
        }
    }

    /// Loads the library from a file, or by another name.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Safety
    /// If the file is a library with these functions then they are those of NIXL, or behave alike.
    /// What the library runs when it is loaded does no harm.
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Nixl, NotAvailable> {
        ucx::avoid_ib();
        // SAFETY: the caller's promise.
        let mut abi = unsafe { Abi::load(path.as_ref()) }.map_err(|reason| {
            not_available(
                reason,
                "install NIXL (`pip install --no-deps nixl-cu12`; needs no CUDA) and let KVMEM_NIXL_LIBRARY name the wheel's \
                 site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so",
            )
        })?;
        abi.keep();
        Ok(Nixl(Arc::new(abi)))
    }

    fn abi(&self) -> &Arc<Abi> {
        &self.0
    }

    /// The names of the backends that NIXL has plugins for. Not all of them can be started here,
    /// and not all of them take memory of the host.
    ///
    /// # Errors
    /// [`NotAvailable`] if NIXL does not say.
    pub fn backends(&self) -> Result<Vec<String>, NotAvailable> {
        let agent = link::agent(&self.0, c"kvmem-asks");
        let names = agent.and_then(|agent| link::plugins(&self.0, &agent));
        names.map_err(|failure| failure.not_available(""))
    }

    /// An agent with this backend, and a name that no other has: of the host, the process, and a
    /// number. As a registrar it is called `nixl:` and the backend.
    ///
    /// # Errors
    /// As [`AgentBuilder::open`].
    pub fn open(&self, backend: &str) -> Result<Agent, NotAvailable> {
        self.agent(unique()).named(format!("nixl:{backend}")).backend(backend).open()
    }

    /// An agent of this name, to be made: with UCX, and as a registrar called alike, if nothing
    /// else is said. Peers know it by its name, so of those that talk to each other no two have
    /// the same.
    pub fn agent(&self, name: impl Into<String>) -> AgentBuilder {
        AgentBuilder::new(self, name.into())
    }
}

/// A name for an agent that no other has, within reason: hosts have names of their own.
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
