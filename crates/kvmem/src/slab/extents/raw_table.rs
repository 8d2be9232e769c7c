//! *Raw table*: the generations of raw handles, each next to the range that it names.
//!
//! The lowest bit of a generation says that it is live. The next bit says that a thread is changing
//! the range's length and others have to wait. The rest is a counter: a stale handle could be
//! accepted only if a multiple of exactly 2^30 handles were made for the same slot since.

use std::sync::OnceLock;

use super::hooks::RangeHook;
use crate::offset::{Allocation, LONG, MAX_SHARDS, NODE_BITS, Range, SpaceHandle};
use crate::slab::magazine::with_forks_blocked;
use crate::sync::{AppendOnlyTable, AtomicU32, AtomicU64, Backoff, Ordering, fence};

/// The generation is live: a handle names the slot's range.
const LIVE: u32 = 1;
/// A thread is changing the range.
const BUSY: u32 = 2;
/// The distance from one generation to the next.
const STEP: u32 = 4;

/// Returns whether a valid handle can have this generation.
fn is_live(generation: u32) -> bool {
    generation & (LIVE | BUSY) == LIVE
}

/// A slot's generation and the range that it names.
pub(super) struct RawEntry {
    generation: AtomicU32,
    /// Length as handles store it.
    size: AtomicU32,
    offset: AtomicU64,
}

impl RawEntry {
    fn new() -> Self {
        RawEntry {
            generation: AtomicU32::new(0),
            size: AtomicU32::new(0),
            offset: AtomicU64::new(0),
        }
    }

    /// Makes the next generation live for a range; returns the generation.
    pub(super) fn issue(&self, range: Range) -> u32 {
        // Relaxed: no other thread changes a generation that is not live.
        let generation =
            (self.generation.load(Ordering::Relaxed) & !(LIVE | BUSY)).wrapping_add(STEP) | LIVE;
        // Release pairs with the Acquire fence in `read`: a reader that sees these values sees that
        // the last generation is no longer live.
        fence(Ordering::Release);
        self.store(range);
        // Release pairs with the Acquire in `take` and in `read`.
        self.generation.store(generation, Ordering::Release);
        generation
    }

    /// Stores the range. Relaxed, all: ordered by the generation.
    fn store(&self, range: Range) {
        self.size.store(range.size(), Ordering::Relaxed);
        self.offset.store(range.offset(), Ordering::Relaxed);
    }

    /// Replaces a live generation by `to`, which is not live or busy; returns `None` if it is not
    /// live.
    fn take(&self, generation: u32, to: u32) -> Option<()> {
        if !is_live(generation) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `issue` and `with_taken`. Relaxed: on failure
            // nothing is read.
            match self.generation.compare_exchange(
                generation,
                to,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(()),
                Err(now) if now == generation | BUSY => backoff.pause(),
                Err(_) => return None,
            }
        }
    }

    /// Returns the offset and the size that a generation names; `None` if it is not live.
    pub(super) fn read(&self, generation: u32) -> Option<(u64, u32)> {
        if !is_live(generation) {
            return None;
        }
        let mut backoff = Backoff::default();
        loop {
            // Acquire pairs with the Release in `issue` and `with_taken`.
            let before = self.generation.load(Ordering::Acquire);
            // Relaxed, both: the generation is loaded before and after.
            let found = (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
            // Acquire pairs with the Release fences in `issue` and `with_taken`.
            fence(Ordering::Acquire);
            // Relaxed: ordered by the fence.
            match self.generation.load(Ordering::Relaxed) {
                now if now == generation && before == generation => return Some(found),
                now if now | BUSY == generation | BUSY => backoff.pause(),
                _ => return None,
            }
        }
    }

    /// Takes the range that a generation names, which is not live afterwards; `None` if it was not.
    pub(super) fn adopt(
        &self,
        generation: u32,
        space: SpaceHandle,
        slot: u32,
    ) -> Option<Allocation> {
        self.take_range(generation, slot).map(|range| space.allocation(range))
    }

    /// As [`adopt`](Self::adopt), without the duty to free the range.
    #[inline]
    pub(super) fn take_range(&self, generation: u32, slot: u32) -> Option<Range> {
        self.take(generation, generation & !LIVE)?;
        Some(self.range(slot))
    }

    /// Runs `run` on the range that a generation names while other users of the handle wait; `None`
    /// if it is not live.
    pub(super) fn with_taken<T>(
        &self,
        generation: u32,
        space: SpaceHandle,
        slot: u32,
        run: impl FnOnce(&mut Allocation) -> T,
    ) -> Option<T> {
        self.take(generation, generation | BUSY)?;
        // Release pairs with the Acquire fence in `read`: a reader that sees a later store sees the
        // generation busy.
        fence(Ordering::Release);
        let mut allocation = space.allocation(self.range(slot));
        let done = run(&mut allocation);
        self.store(allocation.as_range());
        allocation.forget();
        // Release pairs with the Acquire in `take` and `read`.
        self.generation.store(generation, Ordering::Release);
        Some(done)
    }

    /// Returns the generation that a handle of the slot would have now, live or not.
    pub(super) fn generation(&self) -> u32 {
        // Acquire pairs with the Release in `issue`.
        self.generation.load(Ordering::Acquire) & !BUSY
    }

    /// Returns the range after the caller has taken the generation.
    #[inline]
    fn range(&self, slot: u32) -> Range {
        // Relaxed, both: ordered by the caller's `take`.
        let (offset, size) =
            (self.offset.load(Ordering::Relaxed), self.size.load(Ordering::Relaxed));
        Range::new(offset, size, slot)
    }
}

/// The generations of a space, and of earlier spaces with the same core. A handle names its
/// allocator, so it cannot be confused with theirs.
///
/// The slots of a space that is cut into shards have the number of the shard in their upper bits.
/// Each shard has a table of its own, because a table is as long as its greatest slot.
pub(super) struct RawTable {
    whole: RawSlots,
    shards: [OnceLock<Box<RawSlots>>; MAX_SHARDS],
}

type RawSlots = AppendOnlyTable<RawEntry>;

/// Returns the entry of a slot within its shard, and the shard if there is one.
fn place(slot: u32) -> (u32, Option<usize>) {
    let shard = (slot >> NODE_BITS).checked_sub(1);
    (slot & ((1 << NODE_BITS) - 1), shard.map(|at| at as usize))
}

impl RawTable {
    pub(super) fn new() -> Self {
        let shards = std::array::from_fn(|_| OnceLock::new());
        RawTable { whole: Self::new_slots(), shards }
    }

    fn new_slots() -> RawSlots {
        AppendOnlyTable::new(std::array::from_fn(|_| RawEntry::new()), RawEntry::new)
    }

    /// Returns the tables, and what is added to the slots of each.
    fn tables(&self) -> impl Iterator<Item = (u32, &RawSlots)> {
        let shards = (1u32..).zip(&self.shards);
        let shards = shards.filter_map(|(at, table)| Some((at << NODE_BITS, &**table.get()?)));
        std::iter::once((0, &self.whole)).chain(shards)
    }

    /// Returns the slots that have entries, with these.
    fn entries(&self) -> impl Iterator<Item = (u32, &RawEntry)> {
        self.tables()
            .flat_map(|(tag, table)| table.iter().map(move |(at, entry)| (tag | at, entry)))
    }

    /// Returns the size on the heap in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.tables().map(|(_, table)| table.bytes()).sum()
    }

    /// Returns the entry of a slot, which need not have one yet.
    #[inline]
    pub(super) fn entry(&self, slot: u32) -> &RawEntry {
        if slot < 1 << NODE_BITS { self.whole.get(slot) } else { self.entry_of_shard(slot) }
    }

    #[cold]
    fn entry_of_shard(&self, slot: u32) -> &RawEntry {
        let (own, shard) = place(slot);
        let Some(table) = shard.and_then(|at| self.shards.get(at)) else {
            return self.whole.get(slot);
        };
        let make = || table.get_or_init(|| Box::new(Self::new_slots()));
        // A child of a fork must not find a table that is being made.
        table.get().unwrap_or_else(|| with_forks_blocked(make)).get(own)
    }

    /// Returns the entry of a slot that a handle has named, if it has one.
    pub(super) fn find(&self, slot: u32) -> Option<&RawEntry> {
        match place(slot) {
            (own, Some(at)) if at < MAX_SHARDS => self.shards[at].get()?.find(own),
            _ => self.whole.find(slot),
        }
    }

    /// Iterates over the slots that have entries.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.entries().map(|(slot, _)| slot)
    }

    /// Returns the number of live generations.
    pub(super) fn live(&self) -> u64 {
        // Relaxed: a statistic, read at about one moment.
        self.entries()
            .filter(|(_, entry)| entry.generation.load(Ordering::Relaxed) & LIVE != 0)
            .count() as u64
    }

    /// Frees all ranges that raw handles name. No handle is made any more; one that another thread
    /// is freeing is freed there or here.
    pub(super) fn close(&self, space: SpaceHandle, freed: Option<RangeHook>) {
        for (slot, entry) in self.entries() {
            // `adopt` takes the generation only if it is live.
            let Some(allocation) = entry.adopt(entry.generation(), space, slot) else { continue };
            if let Some(freed) = freed {
                // SAFETY: the range is of this space, and its handle has just ended.
                unsafe { freed(space.index(), allocation.range()) }
            }
        }
    }

    /// Repairs the table in a forked child, which has one thread. Ranges that other threads were
    /// changing get their lengths from the metadata.
    pub(super) fn postfork_child(&self, space: SpaceHandle) {
        for (slot, entry) in self.entries() {
            // Relaxed, all: the process has one thread.
            let generation = entry.generation.load(Ordering::Relaxed);
            if generation & BUSY != 0 {
                let allocation =
                    space.allocation(Range::new(entry.offset.load(Ordering::Relaxed), LONG, slot));
                entry
                    .size
                    .store(u32::try_from(allocation.len()).unwrap_or(LONG), Ordering::Relaxed);
                allocation.forget();
                entry.generation.store(generation & !BUSY, Ordering::Relaxed);
            }
        }
    }
}
