//! The jobs of a tier's threads ([`TierJob`]), and what came of them ([`TierDone`]).

use kvmem::tier::TierHints;

/// How a node uses its tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TierOptions {
    /// The share of the memory that is in use before values are stored, from 0 to 1.
    pub(crate) store_above: f64,
    /// The bytes of values that are stored ahead of their eviction.
    pub(crate) ahead_bytes: u64,
}

impl Default for TierOptions {
    fn default() -> TierOptions {
        TierOptions { store_above: 0.5, ahead_bytes: 256 << 20 }
    }
}

/// A value that is being stored. It stays at its position in its list, and is not evicted
/// meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Storing {
    pub(crate) slot: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The checksum that its writer has calculated.
    pub(crate) checksum: Option<u32>,
    pub(crate) hints: TierHints,
}

impl Storing {
    /// Returns the name of its namespace.
    pub(crate) fn namespace(&self) -> &[u8] {
        namespace_of(&self.key)
    }
}

/// Returns the key in the tier: one tier serves all namespaces.
pub(crate) fn tier_key(namespace: &str, key: &[u8]) -> Vec<u8> {
    [&[namespace.len() as u8], namespace.as_bytes(), key].concat()
}

/// Returns the name of the namespace of a [key in the tier](tier_key).
fn namespace_of(tier_key: &[u8]) -> &[u8] {
    let Some((len, rest)) = tier_key.split_first() else { return &[] };
    rest.get(..usize::from(*len)).unwrap_or_default()
}

/// A value that is being fetched, into a block of the server's own.
#[derive(Clone, Debug)]
pub(crate) struct Fetching {
    pub(crate) slot: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The hash of its parent's key; 0: that is not known.
    pub(crate) parent: u64,
}

/// A key that is looked up.
#[derive(Clone, Debug)]
pub(crate) struct LookingUp {
    pub(crate) namespace: u16,
    pub(crate) key: Vec<u8>,
    /// The key in the tier.
    pub(crate) tier_key: Vec<u8>,
}

/// A value that must not come back.
#[derive(Clone, Debug)]
pub(crate) struct Removing {
    /// The detached entry, which stays until then.
    pub(crate) slot: Option<u32>,
    pub(crate) namespace: u16,
    pub(crate) key: Vec<u8>,
    /// The key in the tier.
    pub(crate) tier_key: Vec<u8>,
}

/// Work for the threads of a tier.
#[derive(Debug)]
pub(crate) enum TierJob {
    Store(Vec<Storing>),
    Fetch(Vec<Fetching>),
    /// Those that wait for a network.
    FetchFar(Vec<Fetching>),
    LookUp(Vec<LookingUp>),
    Remove(Vec<Removing>),
    /// All values, or those of the namespace with this name.
    Clear(Option<String>),
}

/// The outcome of a value that the tier was to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    Stored,
    /// The tier has no value under the key.
    NotStored,
    /// The tier may have an older value under the key, also if it does not find it: the next server
    /// may.
    Failed,
}

/// Their outcome.
#[derive(Debug)]
pub(crate) enum TierDone {
    Stored(Vec<(Storing, Offered)>),
    /// With the checksum and the hints of what was fetched.
    Fetched(Vec<(Fetching, Option<(u32, TierHints)>)>),
    /// With the lengths of those that there are.
    LookedUp(Vec<(LookingUp, Option<u64>)>),
    Removed(Vec<Removing>, bool),
    Cleared(bool),
}
