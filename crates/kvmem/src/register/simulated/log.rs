//! *Log*: what was called, when, and by which thread.

use serde::{Deserialize, Serialize};

use crate::arena::Errno;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Asks for a key.
    Register,
    /// Gives a key back.
    Deregister,
    /// Makes pages resident. A long one is several entries.
    Populate,
}

/// One call, in virtual time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// What was called.
    pub action: Action,
    /// The number of the NIC; `None` for populating.
    pub nic: Option<usize>,
    /// The number of the thread among those that were gathered; 0 for one that was alone.
    pub thread: usize,
    /// The first address; 0 for a key that does not stand.
    pub address: usize,
    /// Bytes.
    pub bytes: u64,
    /// Of them, those that the call made resident. Giving back: those that had become resident
    /// when the key was registered.
    pub untouched_bytes: u64,
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it was done.
    pub end_ns: u64,
    /// How long it waited for the driver's lock.
    pub waited_ns: u64,
    /// Why it was refused, if it was.
    pub refused: Option<Errno>,
}

impl Entry {
    /// Whether two calls were in flight at the same time.
    #[must_use]
    pub fn overlaps(&self, other: &Entry) -> bool {
        self.start_ns < other.end_ns && other.start_ns < self.end_ns
    }
}

/// What has been called, counted from the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that asked for a key.
    pub registers: u64,
    /// Calls that gave one back.
    pub deregisters: u64,
    /// Of both, those that were refused.
    pub refused: u64,
    /// Keys that stand now.
    pub live_keys: u64,
    /// Bytes under them, counted for each key.
    pub live_bytes: u64,
    /// The most keys that ever stood at once.
    pub most_live_keys: u64,
    /// Of both kinds of calls, the most that were ever in flight at once.
    pub most_in_flight: usize,
    /// The most registering calls that were ever in flight at once and made pages resident.
    pub most_untouched_in_flight: usize,
    /// Keys given back that did not stand.
    pub strange_keys: u64,
}
