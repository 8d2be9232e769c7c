//! *Log*: the calls of a simulated machine, with their times and threads.

use kvmem::arena::Errno;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Registers memory.
    Register,
    /// Deregisters a key.
    Deregister,
    /// Makes pages resident. A long call has several entries.
    Populate,
}

/// A finished call, in virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoggedCall {
    /// The kind of the call.
    pub action: Action,
    /// The number of the NIC; `None` for populating.
    pub nic: Option<usize>,
    /// The number of the thread in its gathering; 0 for a thread outside of gatherings.
    pub thread: usize,
    /// The first address; 0 for an unknown key.
    pub address: usize,
    /// Bytes.
    pub bytes: u64,
    /// The bytes that the call made resident. For deregistering: the bytes that became resident
    /// when the key was registered.
    pub untouched_bytes: u64,
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it ended, in nanoseconds.
    pub end_ns: u64,
    /// How long it waited for the driver's lock, in nanoseconds.
    pub waited_ns: u64,
    /// The error, if it failed.
    pub error: Option<Errno>,
}

/// Counts of calls and keys since the machine was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounts {
    /// Registering calls.
    pub registers: u64,
    /// Deregistering calls.
    pub deregisters: u64,
    /// Calls of both kinds that failed.
    pub failed: u64,
    /// Keys that are valid now.
    pub live_keys: u64,
    /// The largest number of registering calls in flight at once that made pages resident.
    pub max_untouched_in_flight: usize,
    /// Attempts to deregister an unknown key.
    pub unknown_keys: u64,
}
