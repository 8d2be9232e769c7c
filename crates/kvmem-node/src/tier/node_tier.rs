//! [`NodeTier`]: what a node needs of a tier, and the jobs of its threads.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::crc;

/// A value to read from a tier.
#[derive(Debug)]
pub struct TierRead<'a> {
    /// The key, as it was stored.
    pub key: &'a [u8],
    /// As long as the value.
    pub into: &'a mut [u8],
}

/// Storage below a node. Its calls come from several threads at once: one stores and removes, one
/// fetches, and if it does not [know all](NodeTier::knows_all) its values, one fetches from far and
/// one looks up.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use kvmem_node::{NodeTier, TierRead};
///
/// /// Other memory, such as that of a slower kind.
/// #[derive(Default)]
/// struct Slow(Mutex<HashMap<Vec<u8>, Vec<u8>>>);
///
/// impl NodeTier for Slow {
///     fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
///         let mut held = self.0.lock().unwrap();
///         values.iter().for_each(|(key, value)| drop(held.insert(key.to_vec(), value.to_vec())));
///         vec![true; values.len()]
///     }
///
///     fn len_of(&self, key: &[u8]) -> Option<u64> {
///         self.0.lock().unwrap().get(key).map(|value| value.len() as u64)
///     }
///
///     fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
///         let held = self.0.lock().unwrap();
///         let fetch = |read: &mut TierRead<'_>| match held.get(read.key) {
///             Some(value) if value.len() == read.into.len() => {
///                 read.into.copy_from_slice(value);
///                 true
///             }
///             _ => false,
///         };
///         reads.iter_mut().map(fetch).collect()
///     }
///
///     fn remove(&self, keys: &[&[u8]]) -> bool {
///         let mut held = self.0.lock().unwrap();
///         keys.iter().for_each(|key| drop(held.remove(*key)));
///         true
///     }
///
///     fn clear(&self) -> bool {
///         self.0.lock().unwrap().clear();
///         true
///     }
/// }
/// ```
pub trait NodeTier: Send + Sync {
    /// Stores values under keys, and replaces those that are there. Returns for each whether it is
    /// stored. A value that is not stored leaves no older one behind. The values are in memory of
    /// the server that no other process has, and begin at multiples of 4096 bytes.
    fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool>;

    /// Returns the length of the value under a key. The server's own thread calls it, so it must
    /// not wait for a device.
    fn len_of(&self, key: &[u8]) -> Option<u64>;

    /// Marks a value that the tier has stored as used last: a tier that is full evicts others
    /// before it. Returns whether the tier still has it; one that does not [know](Self::knows_all)
    /// says so. The server's own thread calls it, so it must not wait for a device.
    fn touch(&self, key: &[u8]) -> bool {
        !self.knows_all() || self.len_of(key).is_some()
    }

    /// Reads values. Returns for each whether it is there and whole. Of the values of a call, the
    /// last one counts as used last.
    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool>;

    /// Reads values as [`fetch`](Self::fetch) does. Returns the CRC-32C of each that is there and
    /// whole. Other processes may write to the memory meanwhile, so a tier that has the checksum of
    /// what was stored returns that. By default it is calculated from the memory.
    fn fetch_with_checksums(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<u32>> {
        let fetched = self.fetch(reads);
        let checksum = |(read, fetched): (&TierRead<'_>, bool)| fetched.then(|| crc::of(read.into));
        reads.iter().zip(fetched).map(checksum).collect()
    }

    /// Removes the values of keys, for good: they are not there after any end of the process or of
    /// the machine. Returns whether it could.
    fn remove(&self, keys: &[&[u8]]) -> bool;

    /// Removes all values for good. Returns whether it could. The server's own thread calls it when
    /// an operator removes all values: no client is served until it returns.
    fn clear(&self) -> bool;

    /// Takes copies of values that it stores later, as far as it has room, and does not wait. A
    /// tier above has them, too. By default it stores them at once.
    fn offer(&self, values: &[(&[u8], &[u8])]) {
        self.store(values);
    }

    /// Returns how many values the tier has let go that it was not told to remove: it was full, or
    /// their bytes were damaged. The server's own thread calls it, so it must not wait. By default
    /// 0: the log of [events](crate::Event) then says nothing of evictions.
    fn evictions(&self) -> u64 {
        0
    }

    /// Returns whether [`len_of`](Self::len_of) knows every value. If not, a thread that may wait
    /// asks [`look_up`](Self::look_up) for the others.
    fn knows_all(&self) -> bool {
        true
    }

    /// Returns the lengths of the values under keys. May wait, for a network.
    fn look_up(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    /// Returns whether fetching this key waits for a network. Such keys have a thread of their own,
    /// and do not delay those on a disk.
    fn is_far(&self, _key: &[u8]) -> bool {
        false
    }

    /// Makes up for removals that the tier was not told of, and whose keys are not known. By
    /// default it removes all values. Returns whether it could.
    fn forget_unknown(&self) -> bool {
        self.clear()
    }

    /// Keeps a file open until no transfer of the tier can write to memory any more, also after
    /// this process was killed: a device may complete its reads then. The next server knows by a
    /// lock of the file when the blocks of these reads are free.
    ///
    /// By default the file is closed at once. That is enough for a tier whose reads end with the
    /// calls of their threads, since a thread keeps the files of its process open until its system
    /// call ends.
    ///
    /// # Errors
    /// The system's error; the tier is not used then.
    fn keep_open(&self, file: OwnedFd) -> io::Result<()> {
        drop(file);
        Ok(())
    }

    /// Returns whether the tier works now, for statistics. The server's own thread calls it, so it
    /// must not wait.
    fn state(&self) -> TierState {
        TierState::Working
    }
}

/// Whether the tier of a node works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierState {
    /// There is none.
    #[default]
    None,
    /// It stores and finds values.
    Working,
    /// It finds what it has and stores nothing, because its device failed.
    ReadOnly,
    /// It does neither now, and may do both later. Of a cluster below a disk: the disk works.
    Away,
}

impl TierState {
    /// Returns the name: `none`, `working`, `read_only` or `away`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TierState::None => "none",
            TierState::Working => "working",
            TierState::ReadOnly => "read_only",
            TierState::Away => "away",
        }
    }
}

/// How a node uses its tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierOptions {
    /// The share of the memory that is in use before values are stored, from 0 to 1.
    pub store_above: f64,
    /// The bytes of values that are stored ahead of their eviction.
    pub ahead_bytes: u64,
}

impl Default for TierOptions {
    fn default() -> TierOptions {
        TierOptions { store_above: 0.5, ahead_bytes: 256 << 20 }
    }
}

/// A value that is being stored. It keeps its place in its list, and is not evicted meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Storing {
    pub(crate) slot: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The checksum that its writer has calculated.
    pub(crate) checksum: Option<u32>,
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
    /// The detached entry that is kept until then.
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
    Clear,
}

/// What they have done.
#[derive(Debug)]
pub(crate) enum TierDone {
    Stored(Vec<(Storing, bool)>),
    /// With the checksum of what was fetched.
    Fetched(Vec<(Fetching, Option<u32>)>),
    /// With the lengths of those that there are.
    LookedUp(Vec<(LookingUp, Option<u64>)>),
    Removed(Vec<Removing>, bool),
    Cleared(bool),
}
