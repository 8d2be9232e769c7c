//! [`Reservation`]: space for a value that is being written.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::index::{CacheEntry, Charged, Pinned};
use super::leases::Lease;
use super::state::CacheState;
use crate::pool::Block;
use crate::tier::{TierHints, TierOrigin};

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
    /// The only reference to the entry; `None` after it was committed.
    held: Option<Arc<CacheEntry<K>>>,
    cache: Arc<CacheState<K>>,
}

impl<K> Drop for Reservation<K> {
    fn drop(&mut self) {
        // The guard frees the block, and ends the charge for it then.
        drop(self.held.take().map(|held| Charged::taken(held, &self.cache.usage)));
    }
}

impl<K: Hash + Eq> Reservation<K> {
    /// Takes over a block that has been charged.
    pub(super) fn new(cache: Arc<CacheState<K>>, hash: u64, held: Arc<CacheEntry<K>>) -> Self {
        Reservation { hash, held: Some(held), cache }
    }

    /// Makes the bytes the value of the key, and returns it pinned. A value that the key had is
    /// replaced; pins on that value stay valid.
    ///
    /// O(1). In a forked child the cache does not hold the value; its bytes are free when the pin
    /// is dropped.
    pub fn commit(mut self) -> Pinned<K> {
        let held = self.take();
        let pinned = Pinned(Arc::clone(&held));
        self.cache.commit(self.hash, Charged::taken(held, &self.cache.usage));
        pinned
    }

    /// Commits a value that a lower tier has read, if nothing
    /// was inserted, removed or cleared under the key since the lease was taken. A value of a tier
    /// therefore never replaces a newer one. The lease ends.
    ///
    /// # Errors
    /// The lease was broken, or this process is a forked child: the value that the key has now, if
    /// any, which does not count as used.
    pub(super) fn commit_fetched(
        mut self,
        lease: Lease<K>,
    ) -> Result<Pinned<K>, Option<Pinned<K>>> {
        debug_assert_eq!(lease.hash(), self.hash, "the lease is one of the reservation's key");
        let charged = Charged::taken(self.take(), &self.cache.usage);
        self.cache.commit_leased(self.hash, charged, lease.number(), || lease.end())
    }

    /// Takes the entry for a commit, which consumes the reservation.
    fn take(&mut self) -> Arc<CacheEntry<K>> {
        self.held.take().expect("only a commit takes it")
    }
}

impl<K> Reservation<K> {
    /// Returns whether this process is a forked child, and the reservation its parent's: see
    /// [`KvCache::is_forked`](super::KvCache::is_forked).
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.cache.process.is_forked()
    }

    fn entry(&self) -> &CacheEntry<K> {
        self.held.as_ref().expect("only a commit takes it")
    }

    fn entry_mut(&mut self) -> &mut CacheEntry<K> {
        let held = self.held.as_mut().expect("only a commit takes it");
        Arc::get_mut(held).expect("the reservation has the only reference")
    }

    /// Returns the bytes to be written, as many as requested. They hold what their last user left,
    /// or zeros: see [`InitOn`](crate::pool::InitOn).
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.entry_mut().bytes_mut()
    }

    /// Sets the place of the value in its prefix: `depth` blocks come before it; 0 is the default.
    ///
    /// With it the policy evicts the end of a prefix before its start, in whatever order the blocks
    /// are committed and looked up. See [the order of a request](super#order-of-a-request).
    pub fn set_depth(&mut self, depth: u32) {
        self.entry_mut().set_depth(depth);
    }

    /// Sets the hints of the value: its depth, as [`set_depth`](Self::set_depth) does, and what a
    /// lower tier gets with it when it is evicted or written behind. The cache's own policy ignores
    /// the priority. After the time to live, which begins now, the value is a miss; its memory is
    /// free when it is evicted, or looked up in a cache with a lower tier. O(1).
    pub fn set_hints(&mut self, hints: TierHints) {
        self.entry_mut().set_hints(hints);
    }

    /// Sets the value of a lower tier that was read into the bytes.
    pub(super) fn set_origin(&mut self, origin: Option<TierOrigin>) {
        self.entry_mut().set_origin(origin);
    }

    /// Returns the block of the bytes: address, offset, keys. It is longer than the value if
    /// [`with_allocator`](super::KvCacheBuilder::with_allocator) returned a longer one.
    #[inline]
    pub fn block(&self) -> &Block {
        &self.entry().block
    }

    /// Returns the key of the value.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.entry().key
    }
}

impl<K: fmt::Debug> fmt::Debug for Reservation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", self.key())
            .field("range", &self.block().range())
            .finish()
    }
}
