//! *Agent*: one party of NIXL with one backend, as a registrar.

use std::ffi::{CString, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::live::Live;
use super::super::{Key, Limits, NotAvailable, Registrar, RegistrarError};
use super::link::Link;
use super::{Nixl, TRIES, not_available};
use crate::arena::Errno;

/// An agent with one backend, as a registrar: what it has registered can be named in transfers, its
/// own and its peers'.
///
/// A key's `handle` is the address of the memory and its `lkey` the number of bytes: with the
/// device number 0 they are the descriptor by which NIXL knows it. Transfers name any part of it by
/// address, length and device; there is no rkey, since what peers need is in the
/// [`metadata`](Agent::metadata).
///
/// An agent takes one call at a time; calls that are made here wait for each other.
///
/// When it is dropped, keys that are still live are given back, and the agent ends, which takes
/// some 80 ms with UCX. What NIXL does not take back stays, with the agent.
pub struct Agent {
    name: String,
    agent: String,
    backend: String,
    live: Live,
    link: Mutex<Link>,
}

/// How an agent is to be made. See [`Nixl::agent`].
#[derive(Clone, Debug)]
#[must_use = "this only says how; `open` does it"]
pub struct AgentBuilder {
    nixl: Nixl,
    /// The registrar's; `None`: as the agent.
    name: Option<String>,
    agent: String,
    backend: String,
    parameters: Vec<(String, String)>,
}

impl AgentBuilder {
    pub(super) fn new(nixl: &Nixl, agent: String) -> AgentBuilder {
        let backend = Nixl::BACKEND.to_owned();
        AgentBuilder { nixl: nixl.clone(), name: None, agent, backend, parameters: Vec::new() }
    }

    /// Calls the registrar so, and not as the agent.
    pub fn named(mut self, name: impl Into<String>) -> AgentBuilder {
        self.name = Some(name.into());
        self
    }

    /// With this backend instead of UCX. [`Nixl::backends`] lists what there is.
    pub fn backend(mut self, backend: impl Into<String>) -> AgentBuilder {
        self.backend = backend.into();
        self
    }

    /// With a setting of the backend, such as `num_workers` of UCX. Of two with one key the later
    /// one holds. What a backend does not know it ignores.
    pub fn parameter(mut self, key: impl Into<String>, value: impl Into<String>) -> AgentBuilder {
        self.parameters.push((key.into(), value.into()));
        self
    }

    /// Makes the agent and starts its backend. That takes from milliseconds to a second, and
    /// threads of NIXL run from then on.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no such backend, it cannot be started here, or it does not take
    /// memory of the host. Nothing is left of it then.
    pub fn open(self) -> Result<Agent, NotAvailable> {
        let AgentBuilder { nixl, name, agent, backend, parameters } = self;
        if agent.is_empty() {
            return Err(not_available(
                "an agent without a name".to_owned(),
                "give it one that no peer has",
            ));
        }
        let words = |pair: &(String, String)| Ok((c_string(&pair.0)?, c_string(&pair.1)?));
        let parameters: Result<Vec<_>, NotAvailable> = parameters.iter().map(words).collect();
        let link = Link::new(nixl.abi(), &c_string(&agent)?, &c_string(&backend)?, &parameters?)?;
        let name = name.unwrap_or_else(|| agent.clone());
        Ok(Agent { name, agent, backend, live: Live::new(), link: Mutex::new(link) })
    }
}

/// A word for C.
fn c_string(text: &str) -> Result<CString, NotAvailable> {
    CString::new(text)
        .map_err(|_| not_available(format!("{text:?} has a zero in it"), "use words without zeros"))
}

impl Agent {
    /// The name by which peers know it.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// The backend, such as `UCX`.
    #[must_use]
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Keys that were given and not given back.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.live.len()
    }

    /// What a peer has to know to reach what is registered now: bytes to be carried there by any
    /// way, for `nixl_capi_load_remote_md` or `nixl_agent.add_remote_agent` (Python). What is
    /// registered later is not in it.
    ///
    /// # Errors
    /// [`RegistrarError`], as where the backend is one that no peer can reach.
    ///
    /// # Safety
    /// Whoever has these bytes can have the memory read and written, as long as it is registered
    /// and, over TCP and shared memory, afterwards too: there nobody checks (see
    /// [`nixl`](super)). So they go only to peers that are trusted, and before memory
    /// is given back these have forgotten the agent (`nixl_capi_invalidate_remote_md`,
    /// `remove_remote_agent`), or have ended.
    pub unsafe fn metadata(&self) -> Result<Vec<u8>, RegistrarError> {
        self.link().metadata().map_err(|failure| failure.metadata())
    }

    /// Calls `work` with the agent (`nixl_capi_agent_t`) and its backend (`nixl_capi_backend_t`),
    /// for transfers with the functions of the library. No call is made here meanwhile: the
    /// agent takes one at a time.
    ///
    /// Both stand as long as this does. Whoever uses them answers for it: an agent is not to be
    /// destroyed, and memory that a key stands for not to be given back.
    ///
    /// `work` must not call other functions of this agent: they would wait for it.
    ///
    /// # Panics
    /// Only if `work` does. The agent can be used afterwards.
    pub fn with_raw<R>(&self, work: impl FnOnce(NonNull<c_void>, NonNull<c_void>) -> R) -> R {
        let link = self.link();
        let (agent, backend) = link.raw();
        work(agent, backend)
    }

    /// The agent, for one call. A panic under the lock, which only [`with_raw`](Agent::with_raw)
    /// can bring, has changed nothing.
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registrar for Agent {
    fn name(&self) -> &str {
        &self.name
    }

    /// None: NIXL states none, and what a backend meets it tells when it registers. UCX pins pages
    /// for RDMA cards, which `RLIMIT_MEMLOCK` bounds, and pins nothing for TCP and shared
    /// memory.
    fn limits(&self) -> Limits {
        Limits::none(&self.name)
    }

    /// NIXL takes one range twice and would then have to be told twice that it is gone; here that
    /// is refused (`EEXIST`), since two keys could not be told apart. Ranges that overlap are
    /// taken.
    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let call = "nixl_capi_register_mem";
        if len == 0 {
            return Err(RegistrarError::new(call, Errno::EINVAL, "register at least one byte"));
        }
        let address = at.expose_provenance().get();
        let key = Key { handle: address as u64, lkey: len as u64, rkey: None };
        let mut link = self.link();
        if self.live.has(key) {
            let refusal = RegistrarError::new(
                call,
                Errno::EEXIST,
                "use the key that stands, or give it back before",
            );
            return Err(refusal.detail(format!(
                "{len} bytes at {address:#x} have a key; the library was not asked"
            )));
        }
        // SAFETY: the caller's promise.
        match unsafe { link.register(address, len) } {
            Ok(()) => Ok(self.live.give(key)),
            Err(failure) => Err(failure.register()),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        self.live.take(key, "nixl_capi_deregister_mem", || {
            self.link()
                .deregister(key.handle as usize, key.lkey as usize)
                .map_err(|failure| failure.deregister())
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            for key in self.live.all() {
                // Asked again below.
                let _ = self.deregister(key);
            }
        }
        if self.live.len() > 0 {
            // A device may still reach the memory.
            self.link().abandon();
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
