//! *Agent builder*: the options of an agent, and its creation.

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agent::Agent;
use super::failure::not_available;
use super::handle::AgentHandle;
use super::library::Nixl;
use crate::register::NotAvailable;
use crate::sys;

/// The options of an agent. See [`Nixl::agent`].
#[derive(Clone, Debug)]
#[must_use = "this only says how; `open` does it"]
pub struct AgentBuilder {
    nixl: Nixl,
    /// The registrar's name; `None`: the agent's.
    name: Option<String>,
    agent: String,
    backend: String,
    parameters: Vec<(String, String)>,
}

impl AgentBuilder {
    fn new(nixl: &Nixl, agent: String) -> AgentBuilder {
        let backend = Nixl::BACKEND.to_owned();
        AgentBuilder { nixl: nixl.clone(), name: None, agent, backend, parameters: Vec::new() }
    }

    /// Sets the registrar's name. Default: the agent's name.
    pub fn named(mut self, name: impl Into<String>) -> AgentBuilder {
        self.name = Some(name.into());
        self
    }

    /// Sets the backend. Default: UCX. [`Nixl::backends`] lists the available ones.
    pub fn backend(mut self, backend: impl Into<String>) -> AgentBuilder {
        self.backend = backend.into();
        self
    }

    /// Adds a setting of the backend, such as `num_workers` of UCX. A later value replaces an
    /// earlier one with the same key. A backend ignores settings that it does not know.
    pub fn parameter(mut self, key: impl Into<String>, value: impl Into<String>) -> AgentBuilder {
        self.parameters.push((key.into(), value.into()));
        self
    }

    /// Creates the agent and starts its backend. This takes from milliseconds to a second; threads
    /// of NIXL run from then on.
    ///
    /// # Errors
    /// [`NotAvailable`] if there is no such backend, it cannot be started here, or it does not
    /// support host memory. No agent remains then.
    pub fn open(&self) -> Result<Agent, NotAvailable> {
        let AgentBuilder { nixl, name, agent, backend, parameters } = self.clone();
        if agent.is_empty() {
            return Err(not_available(
                "the agent has no name".to_owned(),
                "give it a name that no peer has",
            ));
        }
        let convert = |pair: &(String, String)| Ok((c_string(&pair.0)?, c_string(&pair.1)?));
        let parameters: Result<Vec<_>, NotAvailable> = parameters.iter().map(convert).collect();
        let handle =
            AgentHandle::new(nixl.abi(), &c_string(&agent)?, &c_string(&backend)?, &parameters?)?;
        let name = name.unwrap_or_else(|| agent.clone());
        Ok(Agent::new(name, agent, backend, handle))
    }
}

/// Converts a string for C.
fn c_string(text: &str) -> Result<CString, NotAvailable> {
    CString::new(text)
        .map_err(|_| not_available(format!("{text:?} contains a NUL"), "use text without NULs"))
}

impl Nixl {
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
