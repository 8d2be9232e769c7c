//! *Agent*: a NIXL agent with one backend, as a registrar.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::handle::AgentHandle;
use crate::arena::Errno;
use crate::register::backends::live_keys::LiveKeys;
use crate::register::{Key, Limits, Registrar, RegistrarError};

/// An agent with one backend, as a registrar. Its own transfers and those of its peers can use the
/// memory that it has registered.
///
/// A key's `handle` is the address of the memory and its `lkey` the number of bytes: with the
/// device number 0 they are NIXL's descriptor of the memory. A transfer names any part of it by
/// address, length and device. There is no rkey, because peers get what they need from the
/// [`metadata`](Agent::metadata).
///
/// An agent handles one call at a time; concurrent calls to this registrar wait for each other.
///
/// Dropping the registrar deregisters the live keys and destroys the agent, which takes some 80 ms
/// with UCX. Memory that NIXL fails to deregister is leaked, together with the agent.
pub struct Agent {
    name: String,
    agent: String,
    backend: String,
    live: LiveKeys,
    handle: Mutex<AgentHandle>,
}

impl Agent {
    /// Returns a registrar of this name over an agent with its backend.
    pub(super) fn new(name: String, agent: String, backend: String, handle: AgentHandle) -> Agent {
        Agent { name, agent, backend, live: LiveKeys::new(), handle: Mutex::new(handle) }
    }

    /// Returns the name by which peers know the agent.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns the backend, such as `UCX`.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Returns the number of registered keys.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }

    /// Returns the bytes that a peer needs to access the memory registered now. Send them by any
    /// means; the peer passes them to `nixl_capi_load_remote_md` or `nixl_agent.add_remote_agent`
    /// (Python). Memory that is registered later is not included.
    ///
    /// # Errors
    /// [`RegistrarError`], for example if the backend cannot be reached by peers.
    ///
    /// # Safety
    /// A peer with these bytes can have the memory read and written while it is registered. Over
    /// TCP and shared memory it can do so afterwards too, because nothing checks the access there
    /// (see [`nixl`](super)). Send them only to trusted peers. Before memory is deregistered, these
    /// peers must have invalidated the agent (`nixl_capi_invalidate_remote_md`,
    /// `remove_remote_agent`), or have ended.
    pub unsafe fn metadata(&self) -> Result<Vec<u8>, RegistrarError> {
        self.handle().metadata().map_err(|failure| failure.metadata())
    }

    /// Calls `work` with the agent (`nixl_capi_agent_t`) and its backend (`nixl_capi_backend_t`),
    /// for transfers with the library's functions. The registrar makes no call meanwhile, because
    /// an agent handles one at a time.
    ///
    /// Both pointers are valid until the registrar is dropped. The caller is responsible for its
    /// use of them: it must not destroy the agent, or deregister memory that a key covers.
    ///
    /// `work` must not call other functions of this agent: they would deadlock.
    ///
    /// # Panics
    /// Propagates a panic of `work`. The agent can be used afterwards.
    pub fn with_raw<R>(&self, work: impl FnOnce(NonNull<c_void>, NonNull<c_void>) -> R) -> R {
        let handle = self.handle();
        let (agent, backend) = handle.raw();
        work(agent, backend)
    }

    /// Locks the agent for one call. Only [`with_raw`](Agent::with_raw) can panic under the lock,
    /// and such a panic leaves the agent unchanged.
    fn handle(&self) -> MutexGuard<'_, AgentHandle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registrar for Agent {
    fn name(&self) -> &str {
        &self.name
    }

    /// Returns no limits: NIXL states none, and a backend reports its limits only when it
    /// registers. For RDMA cards UCX pins pages, which `RLIMIT_MEMLOCK` limits; for TCP and shared
    /// memory it pins nothing.
    fn limits(&self) -> Limits {
        Limits::none(&self.name)
    }

    /// Registers a range; a range that has a key already fails with `EEXIST`. NIXL itself would
    /// register it twice, and would have to deregister it twice, but the two keys could
    /// not be distinguished. Overlapping ranges are allowed.
    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let call = "nixl_capi_register_mem";
        if len == 0 {
            return Err(RegistrarError::new(call, Errno::EINVAL, "register at least one byte"));
        }
        let address = at.expose_provenance().get();
        let key = Key { handle: address as u64, lkey: len as u64, rkey: None };
        let mut handle = self.handle();
        if self.live.contains(key) {
            let error = RegistrarError::new(
                call,
                Errno::EEXIST,
                "use the existing key, or deregister it first",
            );
            return Err(error.detail(format!(
                "{len} bytes at {address:#x} have a key; the library was not called"
            )));
        }
        // SAFETY: the caller promises that the bytes stay mapped until the key is deregistered.
        match unsafe { handle.register(address, len) } {
            Ok(()) => Ok(self.live.insert(key)),
            Err(failure) => Err(failure.register()),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.remove_with(key, "nixl_capi_deregister_mem", || {
            self.handle()
                .deregister(key.handle as usize, key.lkey as usize)
                .map_err(|failure| failure.deregister())
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.live.remove_all(|key| self.deregister(key)) {
            // A device may still access the memory.
            self.handle().leak();
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("name", &self.name)
            .field("agent", &self.agent)
            .field("backend", &self.backend)
            .field("live_keys", &self.live.len())
            .finish_non_exhaustive()
    }
}
