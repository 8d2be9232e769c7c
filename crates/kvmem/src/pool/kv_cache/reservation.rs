//! *Reservation*: room for a value that is being written.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::charged::Charged;
use super::held::{Held, Pinned};
use super::room::Inner;
use super::{Lease, Superseded};
use crate::pool::Block;

/// Room for one value, to be written in place: by the processor through
/// [`bytes_mut`](Self::bytes_mut), or by a device through the keys of the [`block`](Self::block).
/// [`commit`](Self::commit) makes it the value of its key; dropped before that, it gives
/// the room back, and what the key had is untouched.
///
/// Until then nobody finds it, and it is not evicted; its bytes count. It may go to another thread,
/// and may outlive the cache.
#[must_use = "dropping a reservation gives the room back"]
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

/// Credits what was charged for a block that does not come to be held.
struct Charge<K> {
    cache: Option<Arc<Inner<K>>>,
    len: u64,
}

impl<K> Drop for Charge<K> {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            cache.ledger.credit(self.len);
        }
    }
}

impl<K: Hash + Eq> Reservation<K> {
    /// Takes over a block that has been charged. The value begins where the block does, and ends
    /// `padding` bytes before it.
    pub(super) fn new(cache: Arc<Inner<K>>, hash: u64, key: K, block: Block, padding: u32) -> Self {
        let charge = Charge { cache: Some(cache), len: block.len() as u64 };
        Reservation { hash, key, block, padding, depth: 0, charge }
    }

    /// Makes it the value of its key. A value that the key has had is replaced; pins on that stay
    /// good.
    ///
    /// If then more bytes are held than the high watermark allows, this evicts down to the low one.
    /// O(1) besides. In a forked child nothing comes to be held; the bytes are free when the
    /// pin is dropped.
    pub fn commit(self) -> Pinned<K> {
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(Held::new(key, block, padding, depth));
        let pinned = Pinned(Arc::clone(&held));
        if let Some(cache) = charge.cache.take() {
            cache.commit(hash, Charged::taken(held, &cache.ledger));
        }
        pinned
    }

    /// As [`commit`](Self::commit), if nothing has been put, removed or cleared under the key since
    /// the lease was taken; so what was fetched from a lower tier in the meantime takes the
    /// place of nothing. The lease ends.
    ///
    /// # Errors
    /// [`Superseded`]: the lease was broken, or does not [cover](Lease::covers) this, or this is a forked child. Nothing has changed, and the
    /// room is given back to the caller.
    pub fn commit_leased(self, lease: Lease<K>) -> Result<Pinned<K>, Superseded<K>> {
        if !lease.covers(&self) {
            return Err(Superseded { reservation: self, found: None });
        }
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(Held::new(key, block, padding, depth));
        let Some(cache) = charge.cache.take() else {
            unreachable!("only `commit` takes it, with the reservation")
        };
        match cache.commit_leased(hash, Charged::taken(Arc::clone(&held), &cache.ledger), lease) {
            Ok(()) => Ok(Pinned(held)),
            Err((charged, found)) => {
                // The charge is the reservation's again.
                drop(charged.place());
                charge.cache = Some(Arc::clone(&cache));
                let Some(held) = Arc::into_inner(held) else { unreachable!("nobody has seen it") };
                let (key, block, padding, depth) = held.into_parts();
                Err(Superseded {
                    reservation: Reservation { hash, key, block, padding, depth, charge },
                    found,
                })
            }
        }
    }

    /// As `commit`, without a pin. False in a forked child.
    pub(super) fn put(self) -> bool {
        let Reservation { hash, key, block, padding, depth, mut charge } = self;
        let held = Arc::new(Held::new(key, block, padding, depth));
        charge
            .cache
            .take()
            .is_some_and(|cache| cache.commit(hash, Charged::taken(held, &cache.ledger)))
    }
}

impl<K> Reservation<K> {
    /// Whether this process is a forked child, and the reservation its parent's: see
    /// [`KvCache::is_forked`](super::KvCache::is_forked).
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.charge.cache.as_ref().is_some_and(|cache| cache.process.is_gone())
    }

    /// Whether it is for a key of this hash in this cache.
    pub(super) fn is_of(&self, cache: &Arc<Inner<K>>, hash: u64) -> bool {
        self.hash == hash && self.charge.cache.as_ref().is_some_and(|own| Arc::ptr_eq(own, cache))
    }

    /// The bytes, to be written, as many as were asked for. Before that they are what their last
    /// user left, or zeros.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.block.bytes_mut();
        let len = bytes.len() - self.padding as usize;
        &mut bytes[..len]
    }

    /// Says where in its prefix the value is: `depth` blocks come before it, 0 for the first one.
    ///
    /// A hint for the policy, which then evicts the end of a prefix before its start, in whatever
    /// order the blocks are committed and looked up. Without it every value counts as a first one:
    /// see [the order of a request](super#order-of-a-request).
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// The block they lie in: address, offset, and whatever else a device needs. It is longer than
    /// the value if [`with_allocator`](super::KvCacheBuilder::with_allocator) gave a longer one.
    #[inline]
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The key it will be put in under.
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
