//! *Charged*: a block whose bytes are charged, outside of the index.
//!
//! Code of the caller runs while blocks come and go: a key's `Eq` and `Drop`, a policy. Any of it
//! may panic. So a block that is charged and not in an index is in a guard: whichever way the guard
//! goes, the charge goes with it. A block in the index has its charge there, without a guard:
//! nothing but [`Charged::place`] puts blocks in, and nothing but [`Charged::taken`] takes
//! them out.

use std::sync::Arc;

use super::entry::CacheEntry;
use super::usage::Usage;

/// A block that is charged and in no index. Dropped, it releases its reference first and the charge
/// then.
#[must_use = "dropping it ends the charge"]
pub(in crate::cache) struct Charged<'a, K> {
    held: Option<Arc<CacheEntry<K>>>,
    usage: &'a Usage,
}

/// Ends a charge when it is dropped, also if dropping the block before it panics.
struct Credit<'a> {
    usage: &'a Usage,
    bytes: u64,
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        self.usage.credit(self.bytes);
    }
}

impl<'a, K> Charged<'a, K> {
    /// Takes over a block that has been charged, or that has just left an index.
    pub(in crate::cache) fn taken(held: Arc<CacheEntry<K>>, usage: &'a Usage) -> Self {
        Charged { held: Some(held), usage }
    }

    /// Returns the block.
    pub(in crate::cache) fn held(&self) -> &Arc<CacheEntry<K>> {
        self.held.as_ref().expect("only the methods that consume the guard take it")
    }

    /// Returns the entry of a block to which there is no other reference.
    fn entry_mut(&mut self) -> &mut CacheEntry<K> {
        let held = self.held.as_mut().expect("only the methods that consume the guard take it");
        Arc::get_mut(held).expect("the guard has the only reference")
    }

    /// Gives up the guard, for a block that goes into an index, or whose charge has another owner.
    pub(in crate::cache) fn place(mut self) -> Arc<CacheEntry<K>> {
        self.held.take().expect("only the methods that consume the guard take it")
    }

    /// Ends the charge and returns the block.
    pub(in crate::cache) fn uncharged(mut self) -> Arc<CacheEntry<K>> {
        let held = self.held.take().expect("only the methods that consume the guard take it");
        self.usage.credit(held.charge());
        held
    }
}

/// Space for a value: charged, in no index, and referred to by nothing else.
#[must_use = "dropping it returns the space"]
pub(in crate::cache) struct ValueSpace<'a, K> {
    space: Charged<'a, K>,
    /// The key of the value if the block is that of a victim, which still has its own key.
    key: Option<K>,
}

impl<'a, K> ValueSpace<'a, K> {
    /// Returns a new block as space.
    pub(in crate::cache) fn new(space: Charged<'a, K>) -> Self {
        ValueSpace { space, key: None }
    }

    /// Returns the block of a victim as space for a value under `key`.
    pub(in crate::cache) fn recycled(space: Charged<'a, K>, key: K) -> Self {
        ValueSpace { space, key: Some(key) }
    }

    /// Runs `write` on the entry under its key, and returns the block to be inserted.
    #[inline]
    pub(in crate::cache) fn written(
        self,
        write: impl FnOnce(&mut CacheEntry<K>),
    ) -> Charged<'a, K> {
        let ValueSpace { mut space, key } = self;
        let entry = space.entry_mut();
        if let Some(key) = key {
            entry.renew(key);
        }
        write(entry);
        space
    }
}

impl<K> Drop for Charged<'_, K> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Drops after `held`: a thread that finds space in the usage finds it in the pool, too.
            let _credit = Credit { usage: self.usage, bytes: held.charge() };
            drop(held);
        }
    }
}
