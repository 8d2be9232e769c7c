//! [`EvictionPolicy`]: what a policy does for a shard.

/// A block's place in its shard: a small number, used again when the block has gone. Those in use
/// are close to 0, so tables can be indexed by it.
pub type Slot = u32;

/// Chooses the block of a shard to evict. A policy knows blocks by their slots, and never sees keys
/// or bytes.
///
/// Each shard has its own policy and calls it under its lock. A policy needs no locking, should
/// take some nanoseconds for [`touch`](Self::touch), and must not call the cache.
///
/// The policy learns of uses late, because look-ups do not wait for each other, but always before
/// any other call. Uses come in the order of each thread, one thread after the other. Of several
/// uses of one block between two other calls only the first counts.
///
/// The cache checks the answers: it takes an empty or pinned slot for "none". A wrong policy evicts
/// badly and harms nothing else.
///
/// A policy that panics is not called again. The panic reaches the caller of the cache, and the
/// shard goes on with LRU.
pub trait EvictionPolicy: Send {
    /// Adds the block at `slot`, which was empty. `hash` is the hash of its key: the same whenever
    /// the key comes again, and well mixed.
    fn insert(&mut self, slot: Slot, hash: u64);

    /// Adds the block at `slot`, before which `depth` blocks of its prefix come; 0 also if the
    /// caller gave no depth. The default calls [`insert`](Self::insert).
    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        let _ = depth;
        self.insert(slot, hash);
    }

    /// Records a use of the block at `slot`, or a new value: once or more since the last other
    /// call.
    fn touch(&mut self, slot: Slot);

    /// Removes the block at `slot`, which left the cache otherwise than by
    /// [`victim`](Self::victim).
    fn remove(&mut self, slot: Slot);

    /// Returns the block to evict, of those that `may_go`, and removes it; `None` if there is none.
    /// Blocks for which `may_go` returns false are pinned, hence in use.
    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot>;
}
