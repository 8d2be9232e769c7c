//! *Core*: the metadata of a space behind a lock, and the hint in front of it.
//!
//! An [`OffsetAllocator`](super::OffsetAllocator) and all its allocations share one core. The core
//! outlives both. When the allocator has been dropped, freeing its last allocation frees the
//! metadata.

use std::sync::{Arc, OnceLock};

use super::generations::GenerationTable;
use super::hint::Hint;
use super::hint::SpaceStats;
use super::range::{known_size, short_size};
use super::raw_handle::{RawAllocation, RawHandle};
use super::shards::{Keepalive, NODE_BITS, ShardEdges, SpaceShard, SpaceShards, UntaggedSlots};
use crate::offset::error::{AllocError, RawError};
use crate::offset::heap::{Heap, MaybePlaced, Placed, SizedRange};
use crate::sync::{
    AtomicBool, Combined, CombiningGuard, CombiningMutex, Ordering, Words, const_new,
};

/// The data that the lock protects.
pub(crate) struct SpaceState {
    pub(crate) heap: Heap,
    pub(crate) generations: GenerationTable,
    /// Identity of the allocator, never reused in this process.
    pub(crate) id: u64,
    /// The allocator has been dropped; allocations may remain.
    pub(super) closed: bool,
    /// Kept alive until the allocator and all its allocations are gone: the memory that the
    /// offsets refer to.
    pub(super) keepalive: Option<Keepalive>,
    /// Contention does not cut the space.
    pub(super) is_fixed: bool,
    /// The tag of the nodes as handles store them, if this is a shard, or 0.
    pub(super) tag: u32,
    /// The slots whose handles have no tag, if this is a shard.
    pub(super) untagged: UntaggedSlots,
    /// The bounds at the ends, if this is a shard.
    pub(super) edges: Option<Arc<ShardEdges>>,
}

impl SpaceState {
    pub(super) fn new(heap: Heap, generations: GenerationTable, id: u64) -> Self {
        SpaceState {
            heap,
            generations,
            id,
            closed: false,
            keepalive: None,
            is_fixed: false,
            tag: 0,
            untagged: UntaggedSlots::default(),
            edges: None,
        }
    }

    /// Returns the node that handles store as `node`.
    #[inline(always)]
    pub(super) fn own(&self, node: u32) -> u32 {
        if self.tag == 0 { node } else { node & ((1 << NODE_BITS) - 1) }
    }

    /// Returns the slot that raw handles store as `slot`.
    ///
    /// # Errors
    /// [`RawError::Stale`] if a handle of that slot has another tag.
    pub(super) fn own_slot(&self, slot: u32) -> Result<u32, RawError> {
        let own = self.own(slot);
        let tag = if self.untagged.contains(own) { 0 } else { self.tag };
        if own | tag == slot { Ok(own) } else { Err(RawError::Stale { slot, generation: 0 }) }
    }

    /// Returns the slot as raw handles store it.
    pub(super) fn slot_of_handle(&self, own: u32) -> u32 {
        if self.untagged.contains(own) { own } else { own | self.tag }
    }

    /// Revokes the generation of a slot of a shard, as [`revoke`](Self::revoke) does.
    pub(super) fn revoke_in_shard(
        &mut self,
        own: u32,
        generation: u32,
    ) -> Result<(Placed, u64), RawError> {
        let revoked = self.revoke(own, generation)?;
        self.untagged.remove(own);
        Ok(revoked)
    }

    /// Returns an allocation as handles store it.
    #[inline(always)]
    pub(super) fn tagged(&self, placed: Placed) -> Placed {
        Placed { node: placed.node | self.tag, ..placed }
    }

    /// Turns the nodes of ranges into those that handles store.
    pub(super) fn tag_all(&self, pieces: &mut [SizedRange]) {
        pieces.iter_mut().for_each(|piece| piece.placed.node |= self.tag);
    }

    /// Notes that any range may have been freed. A shard then examines its ends again before a
    /// request fails.
    pub(super) fn freed_any(&self) {
        if let Some(edges) = &self.edges {
            edges.freed_any();
        }
    }

    /// Frees a used range of a shard, whose size the caller may not know.
    #[inline]
    pub(super) fn free_in_shard(&mut self, placed: Placed, size: Option<u64>) {
        let Placed { node, offset } = placed;
        let size = size.unwrap_or_else(|| self.heap.size_of(placed));
        self.heap.free(node, offset, size);
        if let Some(edges) = &self.edges {
            edges.freed(offset..offset + size, self.heap.free_bytes());
        }
    }

    /// Returns whether nothing can reach this state any more. Raw allocations do not count once the
    /// allocator is gone: no call can free them then.
    #[inline]
    pub(super) fn over(&self) -> bool {
        self.closed && self.heap.live() == self.generations.live_handles()
    }

    /// Makes a raw handle of an allocation.
    #[inline(always)]
    pub(super) fn issue(&mut self, placed: Placed, size: u64) -> RawAllocation {
        let handle = self.issue_short(placed, short_size(size));
        RawAllocation { handle, offset: placed.offset, size }
    }

    /// Makes a raw handle of an allocation whose size is as handles store it.
    #[inline(always)]
    pub(super) fn issue_short(&mut self, placed: Placed, size: u32) -> RawHandle {
        let generation = self.generations.issue(placed.node, size);
        RawHandle { allocator: self.id, slot: placed.node | self.tag, generation }
    }

    /// Revokes the generation of a slot, if it is this one; returns the allocation and its size.
    #[inline(always)]
    pub(super) fn revoke(&mut self, slot: u32, generation: u32) -> Result<(Placed, u64), RawError> {
        let size = known_size(self.generations.take(slot, generation)?);
        let placed = Placed { node: slot, offset: self.heap.offset_of(slot) };
        let size = size.unwrap_or_else(|| self.heap.size_of(placed));
        Ok((placed, size))
    }
}

#[repr(align(128))]
pub(crate) struct SpaceCore {
    /// `None` while no allocator uses this core, and while the space is cut into shards.
    pub(super) state: CombiningMutex<Option<Box<SpaceState>>>,
    /// Whether the holder of the lock may serve other threads. Meanwhile the hint is only a bound.
    pub(super) combines: AtomicBool,
    /// Whether this is the core of a shard.
    is_shard: bool,
    pub(super) hint: Hint,
    /// The shards, if the space was ever cut.
    pub(super) shards: OnceLock<Box<SpaceShards<SpaceCore>>>,
}

/// The state of a space, locked.
pub(super) type StateGuard<'a> = CombiningGuard<'a, Option<Box<SpaceState>>>;

impl SpaceCore {
    const_new! {
        pub(crate) const fn new() -> Self {
            SpaceCore {
                state: CombiningMutex::new(None),
                combines: AtomicBool::new(true),
                is_shard: false,
                hint: Hint::new(),
                shards: OnceLock::new(),
            }
        }
    }

    /// Creates the core of a shard.
    pub(super) fn of_shard() -> Self {
        SpaceCore { is_shard: true, ..Self::new() }
    }

    /// Opens this core, which is free, for an allocator.
    /// With a fixed number of shards it is cut at once, or never.
    pub(crate) fn open(&self, id: u64, heap: Heap, shards: Option<u32>) {
        self.set_combining(true);
        let mut state = SpaceState::new(heap, GenerationTable::new(), id);
        state.is_fixed = shards.is_some();
        self.open_with(state);
        if let Some(shards) = shards {
            self.cut_now(shards);
        }
    }

    /// Opens this core, which is free, with a state.
    pub(super) fn open_with(&self, state: SpaceState) {
        let mut state = Box::new(state);
        let mut slot = self.state.lock();
        debug_assert!(slot.is_none() && !slot.is_open(), "the core is in use");
        self.publish(&mut state.heap);
        self.hint.publish_limit(state.heap.capacity(), state.heap.limit());
        *slot = Some(state);
    }

    /// Closes the core when its allocator is dropped. Returns whether the core is free again.
    pub(crate) fn close(&self) -> bool {
        let mut slot = self.state.lock();
        if let Some(shards) = self.sharded() {
            let over = shards.shards().filter(|shard| shard.core.close_shard()).count();
            drop(slot);
            return self.shards_over(shards, over as u32);
        }
        // Notes are of live allocations, which now count.
        slot.close(|slot| self.publish_slot(slot));
        if let Some(state) = &mut *slot {
            state.closed = true;
            if !state.over() {
                return false;
            }
        }
        let state = slot.take();
        drop(slot);
        drop_if_unreachable(state);
        true
    }

    #[inline]
    pub(super) fn publish(&self, heap: &mut Heap) {
        let coalesced = heap.largest_coalesced();
        self.hint.publish(heap.largest_free_bound(coalesced));
        self.hint.publish_figures(heap.free_bytes(), coalesced, heap.live());
    }

    #[inline]
    pub(crate) fn largest_free_hint(&self) -> u64 {
        match self.hint.largest() {
            DIVERTED => self.largest_free_in_shards(),
            largest => largest,
        }
    }

    /// See [`SpaceHandle::may_serve`](super::space_handle::SpaceHandle::may_serve).
    #[inline]
    pub(crate) fn may_serve(&self, size: u64) -> bool {
        match self.hint.largest() {
            DIVERTED => self.home().is_none_or(|home| size <= home.hint.largest()),
            largest => size <= largest,
        }
    }

    /// See [`SpaceHandle::free_here`](super::space_handle::SpaceHandle::free_here).
    pub(crate) fn free_here(&self) -> u64 {
        self.home().unwrap_or(self).hint.free()
    }

    pub(crate) fn largest_free_address(&self) -> *const u64 {
        self.hint.largest_address()
    }

    #[inline]
    pub(crate) fn free_hint(&self) -> u64 {
        match self.sharded() {
            Some(shards) => shards.shards().map(|shard| shard.core.free_hint()).sum(),
            None => self.hint.free(),
        }
    }

    /// Returns whether a range of `size` bytes may be free, without the lock. Where the space is
    /// cut, all free bytes decide, and no line is read that other threads write often.
    #[inline]
    pub(crate) fn may_have(&self, size: u64) -> bool {
        match self.hint.largest() {
            DIVERTED => size <= self.free_bound(),
            largest => size <= largest,
        }
    }

    /// Returns an upper bound of the free bytes, without the lock.
    #[inline]
    pub(crate) fn free_bound(&self) -> u64 {
        if let Some(shards) = self.sharded() {
            return shards.free_bound();
        }
        // While slots are open, ranges may be free that no holder of the lock has counted.
        if self.state.is_open() { self.capacity() } else { self.hint.free() }
    }

    /// Returns the length of the space, without the lock.
    pub(crate) fn capacity(&self) -> u64 {
        self.hint.capacity()
    }

    /// Returns the figures that the last holder of the lock published for reports.
    pub(crate) fn published_stats(&self) -> SpaceStats {
        match self.sharded() {
            Some(shards) => self.published_by_shards(shards),
            None => self.hint.report(),
        }
    }

    #[inline]
    pub(crate) fn limit_hint(&self) -> u64 {
        self.hint.limit()
    }

    /// Takes the lock before a fork.
    pub(crate) fn hold_over_fork(&self) {
        self.state.hold_over_fork();
        self.each_shard(SpaceCore::hold_over_fork);
    }

    /// Runs with every shard that was ever in use.
    fn each_shard(&self, run: impl Fn(&SpaceCore)) {
        if let Some(shards) = self.shards.get() {
            shards.all().for_each(|shard| run(&shard.core));
        }
    }

    /// Releases the lock that [`hold_over_fork`](Self::hold_over_fork) took, in the parent and in
    /// the child.
    pub(crate) fn release_over_fork(&self) {
        self.each_shard(SpaceCore::release_over_fork);
        self.state.release_over_fork();
    }

    /// Drops the requests of threads that do not exist in the child of a fork.
    pub(crate) fn forget_waiters(&self) {
        self.each_shard(SpaceCore::forget_waiters);
        self.state.forget_waiters();
    }

    /// Takes the lock until the returned value is dropped.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn lock_for_test(&'static self) -> HeldLock {
        HeldLock { _state: self.state.lock() }
    }

    /// Runs `change` under the lock of a space that is not cut, and publishes the new figures.
    ///
    /// # Errors
    /// `change`, if the space is cut.
    #[inline]
    pub(crate) fn with_whole<R, F>(&self, change: F) -> Result<R, F>
    where
        F: FnOnce(&mut SpaceState) -> R,
    {
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.with_whole_waiting(change);
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.with_whole_waiting(change);
        };
        let result = change(state);
        self.publish(&mut state.heap);
        Ok(result)
    }

    /// Does the same after other threads.
    #[cold]
    #[inline(never)]
    fn with_whole_waiting<R, F>(&self, change: F) -> Result<R, F>
    where
        F: FnOnce(&mut SpaceState) -> R,
    {
        if self.sharded().is_some() {
            return Err(change);
        }
        let mut slot = self.enter();
        let Some(state) = &mut *slot else {
            drop(slot);
            self.expect_shards();
            return Err(change);
        };
        let result = change(state);
        self.leave(slot);
        Ok(result)
    }

    /// Runs `change` under the lock of a core that has no shards, because it is one.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut SpaceState) -> R) -> R {
        let change = |state: &mut SpaceState| {
            let changed = change(state);
            if let Some(edges) = &state.edges {
                edges.bound_free(state.heap.free_bytes());
            }
            changed
        };
        self.with_whole(change).unwrap_or_else(|_| unused())
    }

    /// Returns the shards, if the space is cut.
    #[inline]
    pub(super) fn sharded(&self) -> Option<&SpaceShards<SpaceCore>> {
        if self.state.is_diverted() { self.shards.get().map(|shards| &**shards) } else { None }
    }

    /// Returns the shards of a core whose state is not there.
    #[cold]
    pub(super) fn expect_shards(&self) -> &SpaceShards<SpaceCore> {
        self.sharded().unwrap_or_else(|| unused())
    }

    /// Sets whether the holder of the lock may serve other threads.
    pub(crate) fn set_combining(&self, combines: bool) {
        // Relaxed: either way is correct at any time.
        self.combines.store(combines, Ordering::Relaxed);
        self.each_shard(|shard| shard.set_combining(combines));
    }

    /// Takes the lock, after other threads, and does what they have left to do.
    pub(super) fn enter(&self) -> StateGuard<'_> {
        let mut slot = self.state.lock();
        if slot.is_open() {
            slot.serve();
        } else if slot.is_contended()
            && slot.as_ref().is_some_and(|state| !state.closed)
            // Relaxed: as in `set_combining`.
            && self.combines.load(Ordering::Relaxed)
        {
            self.hint.publish_bound();
            slot.open();
        }
        slot
    }

    /// Publishes the figures and releases the lock. Cuts the space if the contention lasts.
    pub(super) fn leave(&self, mut slot: StateGuard<'_>) {
        if !slot.is_open() {
            self.publish_slot(&mut slot);
            if !self.is_shard && slot.has_lasted() {
                self.cut(slot);
            }
            return;
        }
        if let Some(SpaceState { heap, .. }) = slot.as_deref_mut() {
            let coalesced = heap.largest_coalesced();
            self.hint.publish_figures(heap.free_bytes(), coalesced, heap.live());
        }
        if let Some(slot) = slot.finish(|slot| self.publish_slot(slot))
            && !self.is_shard
        {
            self.cut(slot);
        }
    }

    pub(super) fn publish_slot(&self, slot: &mut Option<Box<SpaceState>>) {
        if let Some(state) = slot {
            self.publish(&mut state.heap);
        }
    }

    /// Returns an error without the lock for a request that cannot succeed.
    #[inline]
    pub(crate) fn admit(&self, size: u64) -> Result<(), AllocError> {
        // Size 0 wraps around to the greatest value and fails as well.
        let largest_free = self.hint.largest();
        if size.wrapping_sub(1) >= largest_free {
            Err(self.fail_early(size, largest_free))
        } else {
            Ok(())
        }
    }

    /// Allocates `size` bytes.
    ///
    /// Short, and inlined into its callers: it answers the two cases of a full store, a failure and
    /// a reuse.
    #[inline(always)]
    pub(crate) fn allocate(&self, size: u64) -> Result<Placed, AllocError> {
        self.admit(size)?;
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.allocate_waiting(size, u64::MAX);
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.allocate_in_shards(size, u64::MAX);
        };
        self.place(state, size, |_, placed| placed)
    }

    /// Allocates `size` bytes concurrently with other threads, or has one of them do it, if fewer
    /// than `max_live` ranges are in use.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_waiting(&self, size: u64, max_live: u64) -> Result<Placed, AllocError> {
        if self.state.is_diverted() {
            return self.allocate_in_shards(size, max_live);
        }
        let mut slot = match self.state.request([size, request_below(max_live)]) {
            Ok([offset, node]) if node != FAILED => {
                return Ok(Placed { node: node as u32, offset });
            }
            // What other threads have left to free may help.
            Ok(_) => self.enter(),
            Err(Some(slot)) => slot,
            Err(None) => self.enter(),
        };
        let attempt = |state: &mut SpaceState| {
            below(state.heap.live(), max_live)?;
            place_waiting(state, size, |_, placed| placed)
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.allocate_in_shards(size, max_live);
        };
        let mut result = attempt(state);
        if result.is_err() && slot.serve() > 0 {
            let Some(state) = &mut *slot else { unused() };
            result = attempt(state);
        }
        self.leave(slot);
        result
    }

    /// Allocates `size` bytes, and runs with them under the same lock.
    #[inline(always)]
    pub(crate) fn allocate_and<R>(
        &self,
        size: u64,
        run: impl Fn(&mut SpaceState, Placed) -> R,
    ) -> Result<R, AllocError> {
        self.admit(size)?;
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.serve_waiting(size, |state| place_waiting(state, size, &run));
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.serve_waiting(size, |state| place_waiting(state, size, &run));
        };
        self.place(state, size, run)
    }

    /// Allocates `size` bytes with a raw handle, if this core is that of the allocator `id`, which
    /// still exists, and fewer than `max_live` allocations are live.
    ///
    /// The usual way has no error, which would be returned through memory. If it fails, the other
    /// way begins again, and finds the reason.
    #[inline(always)]
    pub(crate) fn allocate_raw(
        &self,
        id: u64,
        size: u64,
        max_live: u64,
    ) -> Result<RawAllocation, RawError> {
        match self.try_allocate_raw(id, size, max_live) {
            Some(raw) => Ok(raw),
            None => self.allocate_raw_waiting(id, size, max_live),
        }
    }

    #[inline(always)]
    fn try_allocate_raw(&self, id: u64, size: u64, max_live: u64) -> Option<RawAllocation> {
        // The bound may be that of another allocator, if this one is gone. Size 0 wraps around to
        // the greatest value and fails as well.
        if size.wrapping_sub(1) >= self.hint.largest() {
            return None;
        }
        let mut slot = self.state.try_lock_closed()?;
        let state = slot.as_deref_mut()?;
        if state.id != id || state.closed || state.heap.live() >= max_live {
            return None;
        }
        let placed = match state.heap.reuse(size) {
            Some(placed) => {
                self.publish(&mut state.heap);
                placed
            }
            None => self.allocate_new(&mut state.heap, size).get()?,
        };
        Some(state.issue(placed, size))
    }

    #[cold]
    #[inline(never)]
    fn allocate_raw_waiting(
        &self,
        id: u64,
        size: u64,
        max_live: u64,
    ) -> Result<RawAllocation, RawError> {
        self.admit(size)?;
        if self.state.is_diverted() {
            return self.allocate_raw_in_shards(id, size, max_live);
        }
        let mut slot = self.enter();
        if slot.is_none() && self.state.is_diverted() {
            drop(slot);
            return self.allocate_raw_in_shards(id, size, max_live);
        }
        let raw = match open_in(&mut slot, id, max_live) {
            Ok(state) => place_waiting(state, size, |state, placed| state.issue(placed, size))
                .map_err(RawError::from),
            Err(error) => Err(error),
        };
        self.leave(slot);
        raw
    }

    /// Allocates `size` bytes, at most the hint, if fewer than `max_live` ranges are in use.
    /// Returns `None` if the lock is not free, or the space is cut.
    #[inline(always)]
    pub(super) fn try_allocate_below(&self, size: u64, max_live: u64) -> Option<Option<Placed>> {
        let mut slot = self.state.try_lock_closed()?;
        let state = slot.as_deref_mut()?;
        if state.heap.live() >= max_live {
            return Some(None);
        }
        let reused = state.heap.reuse(size);
        if reused.is_some() {
            self.publish(&mut state.heap);
            return Some(reused);
        }
        Some(self.allocate_new(&mut state.heap, size).get())
    }

    /// Allocates `size` bytes if fewer than `max_live` ranges are in use.
    #[inline]
    pub(crate) fn allocate_below(&self, size: u64, max_live: u64) -> Result<Placed, AllocError> {
        self.admit(size)?;
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.allocate_waiting(size, max_live);
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.allocate_in_shards(size, max_live);
        };
        below(state.heap.live(), max_live)?;
        self.place(state, size, |_, placed| placed)
    }

    /// Frees the raw allocation at a slot, if this core is that of the allocator `id` and the slot
    /// has this generation; returns its size. In two ways, as [`allocate_raw`](Self::allocate_raw).
    #[inline(always)]
    pub(crate) fn free_raw(&self, id: u64, slot: u32, generation: u32) -> Result<u64, RawError> {
        match self.try_free_raw(id, slot, generation) {
            Some(size) => Ok(size),
            None => self.free_raw_waiting(id, slot, generation),
        }
    }

    #[inline(always)]
    fn try_free_raw(&self, id: u64, slot: u32, generation: u32) -> Option<u64> {
        let mut state = self.state.try_lock_closed()?;
        let state = state.as_deref_mut().filter(|state| state.id == id)?;
        let (placed, size) = state.revoke(slot, generation).ok()?;
        state.heap.free(placed.node, placed.offset, size);
        self.publish(&mut state.heap);
        Some(size)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_raw_waiting(
        &self,
        id: u64,
        slot: u32,
        generation: u32,
    ) -> Result<u64, RawError> {
        let free = |state: &mut Option<Box<SpaceState>>| match state {
            Some(state) if state.id == id => {
                let own = state.own_slot(slot)?;
                let (placed, size) = state.revoke_in_shard(own, generation)?;
                state.free_in_shard(placed, Some(size));
                Ok(size)
            }
            other => Err(foreign(other, id)),
        };
        if let Some(shards) = self.sharded() {
            let free =
                |shard: &SpaceShard<SpaceCore>| shard.core.free_raw_waiting(id, slot, generation);
            return shards.find_raw((slot, generation), free);
        }
        let mut state = self.enter();
        let freed = free(&mut state);
        let is_cut = state.is_none() && self.state.is_diverted();
        self.leave(state);
        if is_cut { self.free_raw_waiting(id, slot, generation) } else { freed }
    }

    /// Returns whether this core is that of the allocator `id`, which still exists.
    pub(crate) fn is_open(&self, id: u64) -> bool {
        if let Some(shards) = self.sharded() {
            return shards.shard(0).core.is_open(id);
        }
        let slot = self.enter();
        let open = slot.as_ref().is_some_and(|state| state.id == id && !state.closed);
        self.leave(slot);
        open
    }

    /// Allocates `size` bytes under the lock, publishes the new figures, and runs with them.
    #[inline(always)]
    fn place<R>(
        &self,
        state: &mut SpaceState,
        size: u64,
        run: impl FnOnce(&mut SpaceState, Placed) -> R,
    ) -> Result<R, AllocError> {
        let heap = &mut state.heap;
        let placed = match heap.reuse(size) {
            Some(placed) => {
                self.publish(heap);
                Some(placed)
            }
            None => self.allocate_new(heap, size).get(),
        };
        match placed {
            Some(placed) => Ok(run(state, placed)),
            None => Err(heap.allocation_error(size)),
        }
    }

    /// Allocates `size` bytes when there is nothing to reuse, and publishes the new figures.
    #[inline(never)]
    fn allocate_new(&self, heap: &mut Heap, size: u64) -> MaybePlaced {
        let placed = MaybePlaced::from(heap.allocate_new(size));
        self.publish(heap);
        placed
    }

    /// Returns the error of a request that is longer than the hint.
    #[inline]
    pub(crate) fn fail_early(&self, requested: u64, largest_free: u64) -> AllocError {
        let limit = self.hint.limit();
        // The usual error is separate: it is the answer of a full space, and its fields go directly
        // to their destination.
        if requested.wrapping_sub(1) < limit {
            return AllocError::OutOfSpace { requested, free: self.hint.free(), largest_free };
        }
        never_fits(requested, limit)
    }

    /// Frees a used range, whose size the caller may not know. Returns whether the core is free
    /// again.
    #[inline]
    pub(crate) fn free(&self, placed: Placed, size: Option<u64>) -> bool {
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.free_waiting(placed, size);
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.free_in_shards(placed, size);
        };
        let size = size.unwrap_or_else(|| state.heap.size_of(placed));
        state.heap.free(placed.node, placed.offset, size);
        self.publish(&mut state.heap);
        if state.over() {
            let state = slot.take();
            drop(slot);
            drop_if_unreachable(state);
            return true;
        }
        false
    }

    /// Frees a used range concurrently with other threads, or leaves that to one of them.
    #[cold]
    #[inline(never)]
    fn free_waiting(&self, placed: Placed, size: Option<u64>) -> bool {
        if self.state.is_diverted() {
            return self.free_in_shards(placed, size);
        }
        let mut slot = match size.map(|size| [placed.offset, size << 32 | u64::from(placed.node)]) {
            Some(words) if self.state.note(words) => return false,
            Some(words) => match self.state.request(words) {
                Ok(_) => return false,
                Err(Some(slot)) => slot,
                Err(None) => self.enter(),
            },
            None => self.enter(),
        };
        let Some(state) = &mut *slot else {
            drop(slot);
            return self.free_in_shards(placed, size);
        };
        state.free_in_shard(placed, size);
        let over = state.over();
        if over && !self.is_shard {
            let state = slot.take();
            drop(slot);
            drop_if_unreachable(state);
        } else {
            self.leave(slot);
        }
        over
    }

    /// Frees a used range of this shard. Returns whether the shard is closed and empty now.
    pub(super) fn free_shard(&self, placed: Placed, size: Option<u64>) -> bool {
        let Some(mut slot) = self.state.try_lock_closed() else {
            return self.free_waiting(placed, size);
        };
        let Some(state) = &mut *slot else { unused() };
        state.free_in_shard(placed, size);
        self.publish(&mut state.heap);
        state.over()
    }
}

/// The hint of a space that is cut: above every size, so a request finds the shards.
pub(super) const DIVERTED: u64 = u64::MAX;
/// The second word of the answer to a request that failed.
const FAILED: u64 = u64::MAX;

/// Returns the second word of a request to allocate: the limit of ranges, above no node.
fn request_below(max_live: u64) -> u64 {
    max_live.min(u64::from(u32::MAX)) << 32
}

/// What the holder of the lock does for other threads. A free is the offset, and the node, which is
/// not 0, below the size.
impl Combined for Option<Box<SpaceState>> {
    fn note(&mut self, [offset, range]: Words) {
        let Some(state) = self else { unused() };
        state.free_in_shard(Placed { node: range as u32, offset }, Some(range >> 32));
    }

    fn request(&mut self, words: Words) -> Words {
        if words[1] as u32 != 0 {
            self.note(words);
            return words;
        }
        let Some(state) = self else { unused() };
        let may = state.heap.live() < words[1] >> 32;
        match may.then(|| state.heap.allocate(words[0])).flatten() {
            Some(Placed { node, offset }) => [offset, u64::from(node)],
            None => [0, FAILED],
        }
    }
}

/// Returns the state of the allocator `id`, which exists, with fewer than `max_live` allocations.
#[inline(always)]
pub(super) fn open_in(
    slot: &mut Option<Box<SpaceState>>,
    id: u64,
    max_live: u64,
) -> Result<&mut SpaceState, RawError> {
    if slot.as_ref().is_none_or(|state| state.id != id || state.closed) {
        return Err(foreign(slot, id));
    }
    let Some(state) = slot else { unused() };
    below(state.heap.live(), max_live)?;
    Ok(state)
}

/// Allocates `size` bytes, and runs with them.
pub(super) fn place_waiting<R>(
    state: &mut SpaceState,
    size: u64,
    run: impl FnOnce(&mut SpaceState, Placed) -> R,
) -> Result<R, AllocError> {
    match state.heap.allocate(size) {
        Some(placed) => Ok(run(state, placed)),
        None => Err(state.heap.allocation_error(size)),
    }
}

/// Checks that fewer than `max_live` ranges are in use.
#[inline(always)]
pub(super) fn below(ranges: u64, max_live: u64) -> Result<(), AllocError> {
    if ranges < max_live { Ok(()) } else { Err(AllocError::TooManyRanges { ranges }) }
}

/// The lock of a core, held.
#[cfg(all(test, not(loom)))]
pub(crate) struct HeldLock {
    _state: CombiningGuard<'static, Option<Box<SpaceState>>>,
}

impl SpaceCore {
    /// Drops the state if nothing can reach it; returns whether the core is free again.
    pub(crate) fn drop_if_unreachable(&self) -> bool {
        let mut slot = self.enter();
        let over = slot.as_ref().is_some_and(|state| state.over());
        if over {
            let state = slot.take();
            drop(slot);
            drop_if_unreachable(state);
        } else {
            self.leave(slot);
        }
        over
    }
}

/// Drops unreachable state and its keepalive without the lock, because the keepalive's destructor
/// may take long.
#[cold]
#[inline(never)]
pub(super) fn drop_if_unreachable(state: Option<Box<SpaceState>>) {
    drop(state);
}

#[cold]
#[inline(never)]
pub(super) fn never_fits(requested: u64, limit: u64) -> AllocError {
    if requested == 0 { AllocError::ZeroSize } else { AllocError::TooLarge { requested, limit } }
}

/// Returns the error for an allocator that is not that of a core.
#[cold]
#[inline(never)]
fn foreign(state: &Option<Box<SpaceState>>, handle_of: u64) -> RawError {
    RawError::Foreign { allocator: state.as_ref().map_or(0, |state| state.id), handle_of }
}

/// Reports a core without state: an allocator or allocation outlived its own count.
#[cold]
pub(super) fn unused() -> ! {
    panic!("this core has no state");
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::offset::Placement;

    #[test]
    fn the_holder_keeps_the_limit_of_another_threads_request() {
        let heap = Heap::new(0..100, None, Placement::BestFit, u32::MAX);
        let mut state = Some(Box::new(SpaceState::new(heap, GenerationTable::new(), 1)));
        let [offset, node] = state.request([10, request_below(1)]);
        assert_ne!(node, FAILED);
        assert_eq!(state.request([10, request_below(1)])[1], FAILED);
        assert_ne!(state.request([10, request_below(u64::MAX)])[1], FAILED);
        state.request([offset, 10 << 32 | node]);
        assert_eq!(state.request([10, request_below(1)])[1], FAILED);
        assert_ne!(state.request([10, request_below(2)])[1], FAILED);
    }
}
