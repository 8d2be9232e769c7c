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
//! `site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so`, with all that it needs. It finds its
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
mod agent_builder;
mod failure;
mod handle;
mod library;
mod owned;
mod ucx;

pub use agent::Agent;
pub use agent_builder::AgentBuilder;
pub use library::Nixl;
