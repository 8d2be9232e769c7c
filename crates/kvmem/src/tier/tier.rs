//! [`Tier`]: the contract between what holds values in memory and what stores them below.

use super::{TierHit, TierRead, TierValue};
use crate::stats::FieldType;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;

/// An error of a tier, of any type.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The outcome of a store that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOutcome {
    /// The tier has the value.
    Stored,
    /// The tier has no value under the key: it is full, or does not want the value.
    NotStored,
}

/// The answer of a tier about a key, from its own memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// It has a value of this number of bytes.
    Found(u64),
    /// It has no value.
    Missing,
    /// A call of [`Tier::ask`] finds out.
    Unknown,
}

impl Lookup {
    /// Returns the length of a value that was found.
    #[must_use]
    pub fn found(self) -> Option<u64> {
        match self {
            Lookup::Found(len) => Some(len),
            Lookup::Missing | Lookup::Unknown => None,
        }
    }
}

/// Storage below memory. Several threads call it at once.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use kvmem::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
///
/// /// Other memory, such as that of a slower kind.
/// #[derive(Default)]
/// struct Slow(Mutex<HashMap<Vec<u8>, Vec<u8>>>);
///
/// impl Tier for Slow {
///     fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
///         let mut held = self.0.lock().unwrap();
///         let mut store = |value: &TierValue<'_>| {
///             // Asked under the lock that orders the changes of a key.
///             if value.is_superseded() {
///                 return Ok(StoreOutcome::NotStored);
///             }
///             held.insert(value.key.to_vec(), value.bytes.to_vec());
///             Ok(StoreOutcome::Stored)
///         };
///         values.iter().map(&mut store).collect()
///     }
///
///     fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
///         let held = self.0.lock().unwrap();
///         let len = |key: &&[u8]| held.get(*key).map_or(Lookup::Missing, |value| {
///             Lookup::Found(value.len() as u64)
///         });
///         keys.iter().map(len).collect()
///     }
///
///     fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
///         let held = self.0.lock().unwrap();
///         let fetch = |read: &mut TierRead<'_>| {
///             let value = held.get(read.key).filter(|value| value.len() == read.into.len())?;
///             read.into.copy_from_slice(value);
///             Some(TierHit::default())
///         };
///         reads.iter_mut().map(fetch).collect()
///     }
///
///     fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
///         let mut held = self.0.lock().unwrap();
///         keys.iter().for_each(|key| drop(held.remove(*key)));
///         Ok(())
///     }
///
///     fn clear(&self) -> Result<(), BoxError> {
///         self.0.lock().unwrap().clear();
///         Ok(())
///     }
/// }
/// ```
pub trait Tier: Send + Sync {
    /// Stores values under keys, and replaces those that are there. Returns the outcome of each in
    /// the same order. A value that is not stored leaves no older one behind.
    ///
    /// Values and removals of one key take effect one after the other. Under the lock that orders
    /// them, the tier asks whether a value [is superseded](TierValue::is_superseded), and does not
    /// store it then. A tier that still has the very value, as its [origin](TierValue::origin)
    /// says, need not write it.
    ///
    /// # Errors
    /// The tier may still have an older value under the key. A cache does not fetch the key any
    /// more until it is [cleared](crate::cache::KvCache::clear). A node removes the key when the
    /// newer value leaves its memory.
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>>;

    /// Returns what the tier knows about each key, in the same order. Does not wait for a device.
    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup>;

    /// Reads values into place. Returns a hit for each whose bytes are whole and right. A value may
    /// have gone, or have another length, since the look-up. Of the values of a call, the last one
    /// counts as used last.
    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>>;

    /// Removes the values of keys. They are not found after the end of the process, and after a
    /// power cut once a [sync](Self::sync) has returned.
    ///
    /// # Errors
    /// The tier may still have values under the keys.
    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError>;

    /// Removes every value, durably.
    ///
    /// # Errors
    /// The tier may still have values.
    fn clear(&self) -> Result<(), BoxError>;

    /// Forgets the keys of a [namespace](TierValue::with_namespace): values that were stored in it
    /// can never be decrypted again, from no copy of the bytes without its seed, and are misses.
    /// Values that are stored in it later have new keys. By default it does nothing: the tier
    /// encrypts no values.
    ///
    /// # Errors
    /// The keys may still be on the device.
    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        let _ = namespace;
        Ok(())
    }

    /// Returns whether no value of a namespace can be fetched after
    /// [`forget_namespace`](Self::forget_namespace). By default none can forget.
    fn forgets_namespaces(&self) -> bool {
        false
    }

    /// Makes everything that was stored and removed before as durable as the tier can. The default
    /// does nothing.
    ///
    /// # Errors
    /// Values may be missing after the end of the process or by a power cut.
    fn sync(&self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Returns what the tier knows about a key, as [`look_up`](Self::look_up) does. A tier that
    /// answers without an allocation overrides it.
    fn len_of(&self, key: &[u8]) -> Lookup {
        self.look_up(&[key]).first().copied().unwrap_or(Lookup::Missing)
    }

    /// Returns whether a value of a key may be found now or later, also by the next process. A node
    /// [removes](Self::remove) the key of a value that must not come back only then. Does not wait.
    ///
    /// The default returns what a look-up says. A tier overrides it if it has values that it does
    /// not find for a while, or forgets values before its device has a record of that.
    fn may_have(&self, key: &[u8]) -> bool {
        self.len_of(key) != Lookup::Missing
    }

    /// Returns the lengths of the values under keys, in the same order. May wait, for a network.
    /// The default is for a tier that [knows all](Self::knows_all) its values.
    fn ask(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        self.look_up(keys).into_iter().map(Lookup::found).collect()
    }

    /// Returns whether no look-up says [`Lookup::Unknown`].
    fn knows_all(&self) -> bool {
        true
    }

    /// Marks values as used last, in this order: a tier that is full evicts others before them.
    /// Does not wait for a device. The default does nothing.
    fn touch(&self, keys: &[&[u8]]) {
        let _ = keys;
    }

    /// Takes copies of values and stores them later, as far as the tier has room; does not wait. A
    /// tier above has them, too. A value that was taken counts as stored. By default the values are
    /// stored at once.
    ///
    /// # Errors
    /// As for [`store`](Self::store).
    fn offer(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        self.store(values)
    }

    /// Makes up for removals of which the tier has no record, and whose keys are not known. By
    /// default it removes all values.
    ///
    /// # Errors
    /// As for [`clear`](Self::clear).
    fn forget_unknown(&self) -> Result<(), BoxError> {
        self.clear()
    }

    /// Returns the number of values that the tier has, as far as it knows; otherwise fewer. May
    /// wait, for a network. By default 0, for a tier that does not count them: the
    /// [length](crate::cache::KvCache::len) of a cache above it is that of the memory.
    fn values(&self) -> u64 {
        0
    }

    /// Returns the number of values that the tier has let go without a call that removes: it was
    /// full, or their bytes were damaged. Does not wait. By default 0: the log of a node's events
    /// then has no evictions of the tier.
    fn evictions(&self) -> u64 {
        0
    }

    /// Returns whether the tier works now. Does not wait.
    fn state(&self) -> TierState {
        TierState::Working
    }

    /// Keeps a file open until no transfer of the tier can write to memory any more, also after
    /// this process was killed: a device may complete its reads then. The next server learns from a
    /// lock on the file when the blocks of these reads are free.
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

    /// Waits until the tier has released values more than `seen` times, of those that it keeps
    /// [pinned](TierValue::pin), and returns how often it has. `None`: it keeps none, and has
    /// released none since.
    ///
    /// An insertion that finds nothing to evict calls it before it fails. The default is for a tier
    /// that keeps no pin after [`store`](Self::store) has returned.
    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        let _ = seen;
        None
    }
}

/// Whether a tier works.
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

impl FieldType for TierState {
    fn number(&self) -> u64 {
        *self as u64
    }
}
