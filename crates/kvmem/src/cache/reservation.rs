//! [`Reservation`]: space for a value that is being written.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::index::{CacheEntry, Charged, Pinned};
use super::leases::Lease;
use super::state::CacheState;
use crate::pool::Block;
use crate::tier::TierOrigin;

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
        Reservation { hash, key, block, padding, depth: 0, charge }
    }

    /// Makes the bytes the value of the key, and returns it pinned. A value that the key had is
    /// replaced; pins on that value stay valid.
    ///
    /// If more bytes are held then than the high watermark allows, the call evicts down to the low
    /// one. O(1) otherwise. In a forked child the cache does not hold the value; its bytes are free
    /// when the pin is dropped.
    pub fn commit(self) -> Pinned<K> {
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, None));
        let pinned = Pinned(Arc::clone(&held));
        if let Some(cache) = charge.cache.take() {
            cache.commit(hash, Charged::taken(held, &cache.usage));
        }
        pinned
    }

    /// Commits if nothing was inserted, removed or cleared under the key since the lease was taken.
    /// A value fetched from a lower tier therefore never replaces a newer one. The lease ends.
    ///
    /// # Errors
    /// [`Superseded`]: the lease was broken, or does not [cover](Lease::covers) the reservation, or
    /// this process is a forked child. Nothing changes then, and the caller gets the reservation
    /// back.
    pub fn commit_leased(self, lease: Lease<K>) -> Result<Pinned<K>, Superseded<K>> {
        self.commit_fetched(lease, None)
    }

    /// Commits as [`commit_leased`](Self::commit_leased) does a value that a lower tier has read,
    /// which is its value of this origin.
    pub(super) fn commit_fetched(
        self,
        lease: Lease<K>,
        origin: Option<TierOrigin>,
    ) -> Result<Pinned<K>, Superseded<K>> {
        if !lease.covers(&self) {
            return Err(Superseded { reservation: self, found: None });
        }
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, origin));
        let Some(cache) = charge.cache.take() else {
            unreachable!("only `commit` takes it, with the reservation")
        };
        match cache.commit_leased(
            hash,
            Charged::taken(Arc::clone(&held), &cache.usage),
            lease.number(),
            || lease.end(),
        ) {
            Ok(()) => Ok(Pinned(held)),
            Err((charged, found)) => {
                // The charge is the reservation's again.
                drop(charged.place());
                charge.cache = Some(Arc::clone(&cache));
                let Some(held) = Arc::into_inner(held) else {
                    unreachable!("no other thread has seen it")
                };
                let (key, block, padding, depth) = held.into_parts();
                Err(Superseded {
                    reservation: Reservation { hash, key, block, padding, depth, charge },
                    found,
                })
            }
        }
    }

    /// Commits the value without pinning it. Returns false in a forked child.
    pub(super) fn put(self) -> bool {
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(CacheEntry::new(key, block, padding, depth, None));
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

impl<K> Lease<K> {
    /// Returns whether the lease belongs to the reservation's key and cache. Only such a
    /// reservation can be committed under it.
    #[must_use]
    pub fn covers(&self, reservation: &Reservation<K>) -> bool {
        reservation.charge.cache.as_ref().is_some_and(|cache| self.is_of(cache, reservation.hash))
    }
}

/// A reservation that was not [committed](Reservation::commit_leased) because its lease was broken.
/// The cache is unchanged.
#[derive(Debug)]
pub struct Superseded<K> {
    /// The reservation with the bytes that were written. Callers usually drop it.
    pub reservation: Reservation<K>,
    /// The value that the key has now, if any. It does not count as used.
    pub found: Option<Pinned<K>>,
}

impl<K: fmt::Debug> fmt::Debug for Reservation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("key", &self.key)
            .field("range", &self.block.range())
            .finish()
    }
}
