//! *Entry*: a block under its key ([`CacheEntry`]), and a pin on it ([`Pinned`]).

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::Slot;
use crate::pool::Block;
use crate::sync::{AtomicU32, Ordering, prefetch};
use crate::tier::{DataType, PinnedValue, Priority, TierHints, TierOrigin, TierValue};

/// The slot of a block whose value was replaced or removed. No live block has this slot: the limit
/// of blocks excludes it.
const SUPERSEDED: Slot = Slot::MAX;

/// The number of changes that is stored in a block with a time to live. It is even, and the numbers
/// of changes of a shard are odd: each look-up of the block finds that it is not recorded, and only
/// then checks the time.
const TIMED: u32 = 2;

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines of a value that are fetched at once.
const PREFETCHED_LINES: usize = 4;

/// The bits of a depth, and the highest one. An entry has a higher depth as this one.
const DEPTH_BITS: u32 = 29;
const MAX_DEPTH: u32 = (1 << DEPTH_BITS) - 1;

/// Facts that few values have. An entry without them is as long as one cache line.
#[derive(Debug, Default)]
struct Extra {
    /// Bytes of the block behind the value, if the caller's allocator returned a longer block.
    padding: u32,
    /// The value of a lower tier that this one was fetched from.
    origin: Option<TierOrigin>,
    priority: Priority,
    /// The end of the time to live. `None`: forever.
    expires: Option<Instant>,
}

/// A block under its key. The index of its shard has one reference to it, and each pin has one: so
/// it is pinned exactly while there are two or more, and the thread that drops the last frees it.
///
/// The fields lie in memory as they are declared, behind the counts of the `Arc`. A look-up reads
/// the counts and the first three: 32 bytes with a key of 8, which nearly always are on one line.
#[repr(C)]
pub(in crate::cache) struct CacheEntry<K> {
    /// The block's slot in its shard, set when it is inserted; [`SUPERSEDED`] after it has left
    /// the shard and is not the latest value of its key.
    slot: AtomicU32,
    /// The number of changes of the shard after which a use was last recorded; see `shard.rs`.
    noted: AtomicU32,
    // Declared, and so dropped, before the block: see `KvCache`.
    pub(in crate::cache) key: K,
    pub(in crate::cache) block: Block,
    /// Number of blocks before this one in its prefix, up to [`MAX_DEPTH`]; 0 if the caller set no
    /// depth. Above [`DEPTH_BITS`] the data type: nearly all values of an engine have one, so it is
    /// not one of the [`Extra`] facts.
    depth: u32,
    extra: Option<Box<Extra>>,
}

impl<K> CacheEntry<K> {
    /// Makes the entry of a value that ends `padding` bytes before its block.
    pub(in crate::cache) fn new(key: K, block: Block, padding: u32) -> Self {
        let extra = (padding > 0).then(|| Box::new(Extra { padding, ..Extra::default() }));
        let (slot, noted) = (AtomicU32::new(0), AtomicU32::new(0));
        CacheEntry { slot, noted, key, block, depth: 0, extra }
    }

    /// Makes the entry one of a new value under `key`, in the same block. Drops the old key.
    pub(in crate::cache) fn renew(&mut self, key: K) {
        (self.slot, self.noted) = (AtomicU32::new(0), AtomicU32::new(0));
        self.depth = 0;
        self.extra = None;
        self.key = key;
    }

    /// Returns the bytes of the value for writing.
    #[inline]
    pub(in crate::cache) fn bytes_mut(&mut self) -> &mut [u8] {
        let padding = self.padding();
        let bytes = self.block.bytes_mut();
        let len = bytes.len() - padding;
        &mut bytes[..len]
    }

    /// Starts to fetch the first bytes of the value, which the next owner of the block writes. The
    /// rest follows while the first are written.
    #[inline]
    pub(in crate::cache) fn prefetch_bytes(&self) {
        let first = self.block.as_ptr();
        (0..PREFETCHED_LINES).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
    }

    #[inline]
    fn padding(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.padding as usize)
    }

    pub(in crate::cache) fn set_depth(&mut self, depth: u32) {
        self.depth = self.depth & !MAX_DEPTH | depth.min(MAX_DEPTH);
    }

    /// Sets the hints of the value. Its time to live begins now.
    pub(in crate::cache) fn set_hints(&mut self, hints: TierHints) {
        let TierHints { priority, ttl, depth, data_type } = hints;
        self.depth = depth.min(MAX_DEPTH) | (data_type as u32) << DEPTH_BITS;
        if ttl.is_some() || priority != Priority::default() || self.extra.is_some() {
            let extra = self.extra.get_or_insert_default();
            extra.priority = priority;
            // A time that no clock reaches is forever.
            extra.expires = ttl.and_then(|ttl| Instant::now().checked_add(ttl));
            self.noted = AtomicU32::new(if extra.expires.is_some() { TIMED } else { 0 });
        }
    }

    /// Sets the value of a lower tier that was read into the bytes.
    pub(in crate::cache) fn set_origin(&mut self, origin: Option<TierOrigin>) {
        if origin.is_some() {
            self.extra.get_or_insert_default().origin = origin;
        }
    }

    /// Returns the number of blocks before this one in its prefix; 0 if the caller set no depth.
    pub(in crate::cache) fn depth(&self) -> u32 {
        self.depth & MAX_DEPTH
    }

    /// Returns the bytes that are charged: all of the block.
    pub(in crate::cache) fn charge(&self) -> u64 {
        self.block.len() as u64
    }

    /// Returns whether the value has a time to live that has passed.
    #[inline]
    pub(in crate::cache) fn has_expired(&self) -> bool {
        self.has_expired_as(self.last_noted())
    }

    /// Returns what [`has_expired`](Self::has_expired) does, by the number that was read before.
    #[inline]
    pub(in crate::cache) fn has_expired_as(&self, last_noted: u32) -> bool {
        // The number is set before the block is shared, and never changes if it is this one.
        last_noted == TIMED && self.is_past()
    }

    #[cold]
    fn is_past(&self) -> bool {
        let expires = self.extra.as_ref().and_then(|extra| extra.expires);
        expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// Returns the hints; the time to live is what is left of it.
    fn hints(&self) -> TierHints {
        let data_type = DataType::ALL[(self.depth >> DEPTH_BITS) as usize];
        let hints = TierHints { depth: self.depth(), data_type, ..TierHints::default() };
        let Some(extra) = &self.extra else { return hints };
        let left = |expires: Instant| expires.saturating_duration_since(Instant::now());
        TierHints { priority: extra.priority, ttl: extra.expires.map(left), ..hints }
    }

    #[inline]
    pub(in crate::cache) fn slot(&self) -> Slot {
        // Relaxed: written and read under the lock of the shard.
        self.slot.load(Ordering::Relaxed)
    }

    pub(in crate::cache) fn stands_at(&self, slot: Slot) {
        // Relaxed: as in `slot`.
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Records that the key has another value from now on, or none. The caller has the lock of the
    /// shard, and the block has left the index.
    pub(in crate::cache) fn supersede(&self) {
        // Relaxed: another lock orders the reader after the later insertion; see
        // `Pinned::is_superseded`.
        self.slot.store(SUPERSEDED, Ordering::Relaxed);
    }

    /// Returns whether a use since the shard's latest change was recorded.
    #[inline]
    pub(in crate::cache) fn is_noted(&self, changes: u32) -> bool {
        self.last_noted() == changes
    }

    /// Returns the number of changes after which a use was last recorded.
    #[inline]
    pub(in crate::cache) fn last_noted(&self) -> u32 {
        // Relaxed: it guards nothing; at worst two concurrent look-ups both record the use.
        self.noted.load(Ordering::Relaxed)
    }

    /// Records a use, unless the block has a time to live.
    #[inline]
    pub(in crate::cache) fn noted(&self, changes: u32) {
        // Relaxed: as in `is_noted`.
        if self.noted.load(Ordering::Relaxed) != TIMED {
            self.noted.store(changes, Ordering::Relaxed);
        }
    }
}

/// Returns whether there is a pin on a block of the index. The caller has the lock of the shard for
/// changes: under it no thread without a pin can get one, so the answer "no" stays true until the
/// lock is released.
///
/// The count is read relaxed. That a pin is gone, and with it all reading, is acquired by dropping
/// the index's own reference, as every last drop of an `Arc` acquires what the others released.
#[inline]
pub(in crate::cache) fn is_pinned<K>(held: &Arc<CacheEntry<K>>) -> bool {
    Arc::strong_count(held) > 1
}

/// A value that the cache holds, or held when the pin was made. It is neither evicted nor freed
/// while the pin exists.
///
/// 8 bytes. Any thread may read through a pin, clone it and drop it. A pin may outlive the cache.
/// If the key is removed or gets another value, the pinned value stays as it is until its last pin
/// is dropped, which frees its bytes. Until then it no longer counts for the cache, but is in use
/// in the pool.
///
/// Hold pins while bytes are read or sent, and no longer: a pinned value cannot be evicted.
#[must_use = "the value is pinned only while this exists"]
pub struct Pinned<K>(pub(in crate::cache) Arc<CacheEntry<K>>);

impl<K> Pinned<K> {
    /// Returns the value: as many bytes as requested. O(1).
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = self.0.block.bytes();
        &bytes[..bytes.len() - self.0.padding()]
    }

    /// Returns whether the key has received another value since, or was removed or cleared.
    /// Eviction does not count: an evicted value is the latest of its key. For an evicted value the
    /// answer is correct until its [eviction sink](crate::cache::KvCacheBuilder::on_evict)
    /// returns; later changes do not mark it.
    ///
    /// A sink can store and invalidate all values of the key under one lock. A call under that lock
    /// says whether the sink has stored, or will store, a later value or an invalidation. O(1).
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        // Relaxed: if the sink stored another thread's later value before, the sink's lock orders
        // that before this load, and the mark precedes it.
        self.0.slot.load(Ordering::Relaxed) == SUPERSEDED
    }

    /// Returns which value of a lower tier this one was fetched from, as that tier named it; `None`
    /// if it was inserted. A tier that still has just that value need not store this one. O(1).
    #[must_use]
    pub fn origin(&self) -> Option<TierOrigin> {
        self.0.extra.as_ref()?.origin
    }

    /// Returns the hints that the value was inserted with, or that the lower tier returned with it;
    /// the time to live is what is left of it. O(1).
    #[must_use]
    pub fn hints(&self) -> TierHints {
        self.0.hints()
    }

    /// Returns the key that the value was inserted under.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &K {
        &self.0.key
    }

    /// Returns the block of the value: address, offset, keys. It is as long as the value unless
    /// [`with_allocator`](crate::cache::KvCacheBuilder::with_allocator) returned a longer
    /// one.
    #[inline]
    pub fn block(&self) -> &Block {
        &self.0.block
    }
}

impl<K: Send + Sync + 'static> Pinned<K> {
    /// Returns the value as a tier takes it, under the bytes of its key.
    pub(in crate::cache) fn for_tier<'a>(&'a self, key: &'a [u8]) -> TierValue<'a> {
        TierValue::pinned(key, self).with_hints(self.hints()).with_origin(self.origin())
    }
}

impl<K: Send + Sync + 'static> PinnedValue for Pinned<K> {
    fn bytes(&self) -> &[u8] {
        Pinned::bytes(self)
    }

    fn memory_bytes(&self) -> u64 {
        self.block().len() as u64
    }

    fn is_superseded(&self) -> bool {
        Pinned::is_superseded(self)
    }

    fn pin(&self) -> Arc<dyn PinnedValue> {
        Arc::new(self.clone())
    }
}

impl<K> Deref for Pinned<K> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<K> Clone for Pinned<K> {
    /// Returns one more pin on the same value.
    fn clone(&self) -> Self {
        Pinned(Arc::clone(&self.0))
    }
}

impl<K: fmt::Debug> fmt::Debug for Pinned<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.block();
        f.debug_struct("Pinned").field("key", self.key()).field("range", &block.range()).finish()
    }
}
