//! [`Reservation`]: space for a value that is being written.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use super::index::{CacheEntry, Charged, Extra, Pinned};
use super::leases::Lease;
use super::state::CacheState;
use crate::pool::Block;
use crate::tier::{Priority, TierHints, TierOrigin};

/// Space for one value, to be written in place: by the processor through
/// [`bytes_mut`](Self::bytes_mut), or by a device through the keys of the [`block`](Self::block).
/// [`commit`](Self::commit) makes it the value of its key. A reservation that is dropped before
/// returns its space, and the key keeps the value it had.
///
/// Before the commit no look-up finds the value, and it is not evicted; its bytes count as held. A
/// reservation may be sent to another thread, and may outlive the cache.
#[must_use = "dropping a reservation returns its space"]
pub struct Reservation<K> {
    hash: u64,
    key: K,
    // Goes before the charge for it.
    block: Block,
    /// Bytes of the block behind the value.
    padding: u32,
    /// Blocks before it in its prefix.
    depth: u32,
    extra: Option<Box<Extra>>,
    charge: Charge<K>,
}

/// Credits the charge of a block that is dropped before it is committed.
struct Charge<K> {
    cache: Option<Arc<CacheState<K>>>,
    len: u64,
}

impl<K> Drop for Charge<K> {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            cache.usage.credit(self.len);
        }
    }
}

impl<K: Hash + Eq> Reservation<K> {
    /// Takes over a block that has been charged. The value begins where the block does, and ends
    /// `padding` bytes before it.
    pub(super) fn new(
        cache: Arc<CacheState<K>>,
        hash: u64,
        key: K,
        block: Block,
        padding: u32,
    ) -> Self {
        let charge = Charge { cache: Some(cache), len: block.len() as u64 };
        Reservation { hash, key, block, padding, depth: 0, extra: None, charge }
    }

    /// Makes the bytes the value of the key, and returns it pinned. A value that the key had is
    /// replaced; pins on that value stay valid.
    ///
    /// O(1). In a forked child the cache does not hold the value; its bytes are free when the pin
    /// is dropped.
    pub fn commit(self) -> Pinned<K> {
        let Reservation { hash, key, block, padding, depth, extra, mut charge } = self;
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, extra));
        let pinned = Pinned(Arc::clone(&held));
        if let Some(cache) = charge.cache.take() {
            cache.commit(hash, Charged::taken(held, &cache.usage));
        }
        pinned
    }

    /// Commits a value that a lower tier has read, if nothing
    /// was inserted, removed or cleared under the key since the lease was taken. A value of a tier
    /// therefore never replaces a newer one. The lease ends.
    ///
    /// # Errors
    /// The lease was broken, or this process is a forked child: the value that the key has now, if
    /// any, which does not count as used.
    pub(super) fn commit_fetched(self, lease: Lease<K>) -> Result<Pinned<K>, Option<Pinned<K>>> {
        let Reservation { hash, key, block, padding, depth, extra, mut charge } = self;
        debug_assert_eq!(lease.hash(), hash, "the lease is one of the reservation's key");
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, extra));
        let Some(cache) = charge.cache.take() else {
            unreachable!("only `commit` takes it, with the reservation")
        };
        let charged = Charged::taken(held, &cache.usage);
        cache.commit_leased(hash, charged, lease.number(), || lease.end())
    }

    /// Commits the value without pinning it. Returns false in a forked child.
    pub(super) fn put(self) -> bool {
        let Reservation { hash, key, block, padding, depth, extra, mut charge } = self;
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, extra));
        charge
            .cache
            .take()
            .is_some_and(|cache| cache.commit(hash, Charged::taken(held, &cache.usage)))
    }
}

impl<K> Reservation<K> {
    /// Returns whether this process is a forked child, and the reservation its parent's: see
    /// [`KvCache::is_forked`](super::KvCache::is_forked).
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.charge.cache.as_ref().is_some_and(|cache| cache.process.is_forked())
    }

    /// Returns the bytes to be written, as many as requested. They hold what their last user left,
    /// or zeros: see [`InitOn`](crate::pool::InitOn).
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.block.bytes_mut();
        let len = bytes.len() - self.padding as usize;
        &mut bytes[..len]
    }

    /// Sets the place of the value in its prefix: `depth` blocks come before it; 0 is the default.
    ///
    /// With it the policy evicts the end of a prefix before its start, in whatever order the blocks
    /// are committed and looked up. See [the order of a request](super#order-of-a-request).
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// Sets the hints of the value: its depth, as [`set_depth`](Self::set_depth) does, and what a
    /// lower tier gets with it when it is evicted or written behind. The cache's own policy ignores
    /// the priority. After the time to live, which begins now, the value is a miss; its memory is
    /// free when it is evicted, or looked up in a cache with a lower tier. O(1).
    pub fn set_hints(&mut self, TierHints { priority, ttl, depth }: TierHints) {
        self.depth = depth;
        if ttl.is_some() || priority != Priority::default() || self.extra.is_some() {
            let extra = self.extra.get_or_insert_default();
            extra.priority = priority;
            // A time that no clock reaches is forever.
            extra.expires = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
        }
    }

    /// Sets the value of a lower tier that was read into the bytes.
    pub(super) fn set_origin(&mut self, origin: Option<TierOrigin>) {
        if origin.is_some() {
            self.extra.get_or_insert_default().origin = origin;
        }
    }

    /// Returns the block of the bytes: address, offset, keys. It is longer than the value if
    /// [`with_allocator`](super::KvCacheBuilder::with_allocator) returned a longer one.
    #[inline]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the key of the value.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }
}

impl<K: fmt::Debug> fmt::Debug for Reservation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", &self.key)
            .field("range", &self.block.range())
            .finish()
    }
}
