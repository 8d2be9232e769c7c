//! *Core with shards*: what the core of a space does once the space is [cut](super::shards), and
//! the operations that need the whole space, cut or not.

use std::ops::Range;
use std::sync::Arc;

use super::hint::SpaceStats;
use super::raw_handle::RawAllocation;
use super::shards::{Keepalive, MAX_SHARDS, NODE_BITS, Run, SpaceShard, SpaceShards};
use super::shards::{UntaggedSlots, runs, tag_of, tagged, tagged_shard};
use super::space_core::{
    DIVERTED, SpaceCore, SpaceState, StateGuard, below, drop_if_unreachable, never_fits, unused,
};
use crate::offset::error::{AllocError, CheckError, RawError, SpaceError};
use crate::offset::heap::{
    BinReport, MapRange, Metrics, Placed, ShardEnds, SizedRange, bin_reports,
};
use crate::sync::{MODELLED, Ordering, processors, thread_number};

/// Ranges in use for each shard, at least: with fewer, a shard would be short compared with the
/// requests, and less of the space could be used.
const MIN_LIVE: u64 = if MODELLED { 1 } else { 256 };
/// Ranges in use for the most shards, which may have fewer each: a thread that shares its home
/// fetches the metadata from another one with each call.
const MANY_LIVE: u64 = 32 * MIN_LIVE;
/// Distance from the limit of live ranges from which on all shards are locked to count them. More
/// threads than this would have to allocate at the same moment to pass the limit.
const LIVE_SLACK: u64 = 4096;

/// Shards of a space on a machine with few processors, where threads share them.
const MIN_SHARDS: usize = if MODELLED { 2 } else { 4 };

/// Returns how many shards the processors of this machine can use.
fn shards_of_processors() -> usize {
    if MODELLED { MAX_SHARDS } else { processors().clamp(MIN_SHARDS, MAX_SHARDS) }
}

/// Returns the number of the running thread. A model has the same threads in every run.
fn number_of_thread() -> usize {
    if MODELLED { 0 } else { thread_number() }
}

impl SpaceCore {
    /// Cuts the space into shards, if that pays. Threads keep contending.
    #[cold]
    #[inline(never)]
    pub(super) fn cut(&self, mut slot: StateGuard<'_>) {
        let wanted = |state: &SpaceState| {
            let SpaceState { heap, closed, is_fixed, .. } = state;
            // With a limit of ranges, a shard could reach its part of it before the others.
            let limited = heap.max_ranges() < u32::MAX / 2;
            let able = !closed && !is_fixed && !limited && !heap.is_fresh();
            let live = heap.live();
            let most = if live < MANY_LIVE { (live / MIN_LIVE) as usize } else { MAX_SHARDS };
            if able { shards_of_processors().min(most) } else { 0 }
        };
        let shards = slot.as_deref().map_or(0, wanted);
        if shards < 2 {
            return;
        }
        let combines = slot.is_open();
        if !slot.close_soon(|slot| self.publish_slot(slot)) {
            return;
        }
        if !self.cut_into(&mut slot, shards) && combines {
            self.hint.publish_bound();
            slot.open();
        }
    }

    /// Cuts the space into up to `shards` shards, at least two; returns whether it did. The slots
    /// are closed.
    fn cut_into(&self, slot: &mut StateGuard<'_>, shards: usize) -> bool {
        let Some(mut state) = slot.take() else { return false };
        let able = state.heap.has_nodes_below(1 << NODE_BITS);
        let starts = if able { state.heap.shard_starts(shards) } else { Vec::new() };
        if starts.len() < 2 {
            **slot = Some(state);
            return false;
        }
        let max_ranges = (state.heap.max_ranges() / starts.len() as u32).min((1 << NODE_BITS) - 1);
        let heaps = state.heap.cut(&starts, max_ranges);
        let shard_of = |slot| starts.partition_point(|&at| at <= state.heap.offset_of(slot)) - 1;
        let generations = state.generations.divide(starts.len(), shard_of);
        let all = self.shards.get_or_init(|| Box::new(SpaceShards::new(SpaceCore::of_shard)));
        for (at, (heap, generations)) in heaps.into_iter().zip(generations).enumerate() {
            let SpaceShard { core, edges } = all.shard(at);
            let untagged = UntaggedSlots::of(&generations);
            let mut shard = SpaceState::new(heap, generations, state.id);
            (shard.closed, shard.tag, shard.edges) =
                (state.closed, tag_of(at), Some(Arc::clone(edges)));
            shard.untagged = untagged;
            edges.publish(shard.heap.shard_ends(), shard.heap.free_bytes());
            // Relaxed, both: as in `set_combining`.
            core.combines.store(self.combines.load(Ordering::Relaxed), Ordering::Relaxed);
            core.open_with(shard);
        }
        all.set(&starts, state.heap.boundary().is_none(), state.keepalive.take());
        self.hint.publish(DIVERTED);
        slot.divert(true);
        true
    }

    /// Cuts the space into up to `shards` shards, if it is not cut.
    pub(super) fn cut_now(&self, shards: u32) {
        let mut slot = self.state.lock();
        slot.close(|slot| self.publish_slot(slot));
        if shards > 1 && slot.is_some() {
            self.cut_into(&mut slot, MAX_SHARDS.min(shards as usize));
        }
    }

    /// Returns the number of shards.
    pub(super) fn shard_count(&self) -> usize {
        self.sharded().map_or(1, SpaceShards::len)
    }

    /// Closes this shard. Returns whether it is empty.
    pub(super) fn close_shard(&self) -> bool {
        let mut slot = self.state.lock();
        slot.close(|slot| self.publish_slot(slot));
        let Some(state) = &mut *slot else { unused() };
        state.closed = true;
        state.over()
    }

    /// Counts shards that are closed and empty now. Drops the metadata of the space if all are;
    /// returns whether the core is free again.
    pub(super) fn shards_over(&self, shards: &SpaceShards<SpaceCore>, over: u32) -> bool {
        if !shards.ended(over) {
            return false;
        }
        let mut slot = self.state.lock();
        let states: Vec<_> = shards.shards().map(|shard| shard.core.state.lock().take()).collect();
        let keepalive = shards.keepalive.lock().take();
        shards.clear();
        slot.divert(false);
        drop(slot);
        states.into_iter().for_each(drop_if_unreachable);
        drop(keepalive);
        true
    }

    /// Ends the use of an allocation after which its part of the space is `over`; returns whether
    /// the core is free again.
    pub(crate) fn ended(&self, over: bool) -> bool {
        over && match self.sharded() {
            Some(shards) => self.shards_over(shards, 1),
            None => self.drop_if_unreachable(),
        }
    }

    /// Returns the shard that the running thread requests from first, if the space is cut.
    #[cold]
    #[inline(never)]
    pub(super) fn home(&self) -> Option<&SpaceCore> {
        self.sharded().map(|shards| &shards.shard(shards.home(number_of_thread())).core)
    }

    /// Returns the shard that a range in use lies in.
    fn shard_of(&self, offset: u64) -> &SpaceShard<SpaceCore> {
        let shards = self.expect_shards();
        shards.shard(shards.shard_at(offset))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_in_shards(&self, placed: Placed, size: Option<u64>) -> bool {
        let shards = self.expect_shards();
        let shard = shards.shard(shards.shard_at(placed.offset));
        let own = placed.node & ((1 << NODE_BITS) - 1);
        let over = shard.core.free_shard(Placed { node: own, ..placed }, size);
        over && self.shards_over(shards, 1)
    }

    /// Runs `change` under the lock of the part that a range in use lies in, with the range as that
    /// part knows it.
    pub(crate) fn with_at<R>(
        &self,
        placed: Placed,
        change: impl FnOnce(&mut SpaceState, Placed) -> R,
    ) -> R {
        let change = |state: &mut SpaceState| {
            let own = state.own(placed.node);
            change(state, Placed { node: own, ..placed })
        };
        self.with_whole(change)
            .unwrap_or_else(|change| self.shard_of(placed.offset).core.with(change))
    }

    /// Runs `change` under the lock of the part that a raw handle's slot is in, with the slot as
    /// that part knows it.
    pub(crate) fn with_slot<R>(
        &self,
        (slot, generation): (u32, u32),
        change: impl Fn(&mut SpaceState, u32) -> Result<R, RawError>,
    ) -> Result<R, RawError> {
        let in_part = |state: &mut SpaceState| {
            let own = state.own_slot(slot)?;
            change(state, own)
        };
        self.with_whole(in_part).unwrap_or_else(|in_part| {
            self.expect_shards().find_raw((slot, generation), |shard| shard.core.with(in_part))
        })
    }

    /// Runs `change` under all locks of the space, with the states of its shards in order, or with
    /// the one of a space that is not cut.
    pub(crate) fn with_all<R>(&self, change: impl Fn(&mut [&mut SpaceState]) -> R) -> R {
        match self.with_whole(|state| change(&mut [state])) {
            Ok(result) => result,
            Err(_) => self.with_shards(self.expect_shards(), change),
        }
    }

    #[cold]
    fn with_shards<R>(
        &self,
        shards: &SpaceShards<SpaceCore>,
        change: impl Fn(&mut [&mut SpaceState]) -> R,
    ) -> R {
        let _own = self.state.lock();
        let mut slots: Vec<StateGuard<'_>> =
            shards.shards().map(|shard| shard.core.enter()).collect();
        let mut states: Vec<&mut SpaceState> =
            slots.iter_mut().map(|slot| slot.as_deref_mut().unwrap_or_else(|| unused())).collect();
        let result = change(&mut states);
        for (shard, state) in shards.shards().zip(&mut states) {
            let heap = &mut state.heap;
            shard.core.hint.publish_limit(heap.capacity(), heap.limit());
            shard.edges.publish(heap.shard_ends(), heap.free_bytes());
        }
        for (shard, slot) in shards.shards().zip(slots) {
            shard.core.leave(slot);
        }
        result
    }

    /// Moves starts so that each free range over several shards that is `wanted` lies in one.
    fn join(&self, shards: &SpaceShards<SpaceCore>, wanted: impl Fn(&Run) -> bool) {
        self.with_shards(shards, |states| {
            for Run { shards: of, range, .. } in runs(&ends(states)).into_iter().filter(&wanted) {
                let (first, last) = (of.start, of.end - 1);
                let heap = &mut states[first].heap;
                let capacity = range.end - heap.shard_ends().start;
                if heap.grow(capacity).is_err() {
                    // At the limit of ranges.
                    continue;
                }
                for state in &mut states[first + 1..=last] {
                    let ShardEnds { head, .. } = state.heap.shard_ends();
                    state.heap.cut_start(head, range.end);
                }
                shards.move_starts(|starts| {
                    for start in &starts[first + 1..=last] {
                        // Relaxed: see the head of `shards.rs`.
                        start.store(range.end, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    /// Runs `attempt`, a request for `size` bytes in one range, with the shards until one serves
    /// it; returns the number of that shard.
    fn serve<T>(
        &self,
        shards: &SpaceShards<SpaceCore>,
        size: u64,
        attempt: impl Fn(&SpaceCore) -> Result<T, AllocError>,
    ) -> Result<(T, usize), AllocError> {
        let limit = self.hint.limit();
        if size.wrapping_sub(1) >= limit {
            return Err(never_fits(size, limit));
        }
        let thread = number_of_thread();
        let attempt = |SpaceShard { core, edges }: &SpaceShard<SpaceCore>| {
            let served = attempt(core)?;
            // A free makes the bounds fit, and so does the last of many requests.
            if core.hint.free() < *edges.free().start() {
                core.with(|_| ());
            }
            Ok(served)
        };
        let is_notable = |error: &AllocError| {
            !matches!(error, AllocError::OutOfSpace { .. } | AllocError::TooLarge { .. })
        };
        let mut failure = match shards.attempt(thread, attempt, is_notable) {
            Ok(served) => return Ok(served),
            Err(failure) => failure,
        };
        if shards.longest_run() >= size {
            self.join(shards, |run| run.range.end - run.range.start >= size);
            failure = match shards.attempt(thread, attempt, is_notable) {
                Ok(served) => return Ok(served),
                Err(failure) => failure,
            };
        }
        Err(failure.unwrap_or_else(|| self.out_of_shards(shards, size)))
    }

    /// Returns the error of a request that no shard could serve, from what they have published.
    #[cold]
    pub(super) fn out_of_shards(
        &self,
        shards: &SpaceShards<SpaceCore>,
        requested: u64,
    ) -> AllocError {
        let largest_free = match shards.largest_bound() {
            bound if bound < requested => bound,
            _ => self.metrics().largest_free,
        };
        let free = self.free_hint();
        AllocError::OutOfSpace { requested, free, largest_free: largest_free.min(free) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn allocate_in_shards(
        &self,
        size: u64,
        max_live: u64,
    ) -> Result<Placed, AllocError> {
        self.spare_live(max_live)?;
        let (placed, at) = self.serve(self.expect_shards(), size, |shard| shard.allocate(size))?;
        Ok(tagged(placed, at))
    }

    /// Runs `attempt`, a request for `size` bytes in one range, after other threads: with the
    /// space, or with its shards until one serves it.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_waiting<T>(
        &self,
        size: u64,
        attempt: impl Fn(&mut SpaceState) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        match self.with_whole(&attempt) {
            Ok(result) => result,
            Err(attempt) => self
                .serve(self.expect_shards(), size, |shard| {
                    shard.admit(size)?;
                    shard.with(attempt)
                })
                .map(|(served, _)| served),
        }
    }

    /// Runs `attempt`, a request for `size` bytes in one range, with the space, or with its shards
    /// until one serves it. `attempt` returns nodes as handles store them.
    pub(crate) fn serve_with<T>(
        &self,
        size: u64,
        attempt: impl Fn(&mut SpaceState) -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        self.admit(size)?;
        self.serve_waiting(size, attempt)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn allocate_raw_in_shards(
        &self,
        id: u64,
        size: u64,
        max_live: u64,
    ) -> Result<RawAllocation, RawError> {
        self.spare_live(max_live)?;
        let attempt = |shard: &SpaceCore| match shard.allocate_raw(id, size, u64::MAX) {
            Ok(raw) => Ok(Ok(raw)),
            Err(RawError::Failed(error)) => Err(error),
            Err(other) => Ok(Err(other)),
        };
        self.serve(self.expect_shards(), size, attempt)?.0
    }

    /// Allocates up to `n` ranges of one part of the space under one lock, if fewer than `max_live`
    /// are in use.
    pub(crate) fn take_many(&self, size: u64, n: usize, max_live: u64) -> Vec<Placed> {
        let take = |state: &mut SpaceState, n: usize, max_live: u64| -> Vec<Placed> {
            let below = |state: &SpaceState| state.heap.live() < max_live;
            (0..n)
                .map_while(|_| below(state).then(|| state.heap.allocate(size)).flatten())
                .collect()
        };
        if let Ok(taken) = self.with_whole(|state| take(state, n, max_live)) {
            return taken;
        }
        let spare = self.spare_live(max_live);
        let taken = spare.and_then(|spare| {
            let some = |shard: &SpaceCore| {
                shard.admit(size)?;
                let n = n.min(usize::try_from(spare).unwrap_or(n));
                shard.with(|state| match take(state, n, u64::MAX) {
                    taken if taken.is_empty() => Err(state.heap.allocation_error(size)),
                    taken => Ok(taken.into_iter().map(|placed| state.tagged(placed)).collect()),
                })
            };
            self.serve(self.expect_shards(), size, some)
        });
        taken.map_or_else(|_| Vec::new(), |(taken, _)| taken)
    }

    /// Returns the error of a request that cannot succeed.
    #[inline]
    pub(crate) fn early_error(&self, size: u64) -> AllocError {
        match self.sharded() {
            // Without the figures of the shards: each is in a line that other threads write.
            Some(shards) if size.wrapping_sub(1) < self.hint.limit() => {
                let least = shards.shards().map(|shard| *shard.edges.free().start());
                let free = least.fold(0, u64::saturating_add);
                AllocError::OutOfSpace { requested: size, free, largest_free: free.min(size - 1) }
            }
            _ => self.fail_early(size, self.largest_free_hint()),
        }
    }

    /// Returns how many ranges can be allocated if `max_live` may be in use, at least one.
    pub(super) fn spare_live(&self, max_live: u64) -> Result<u64, AllocError> {
        if max_live == u64::MAX {
            return Ok(u64::MAX);
        }
        let about = self.published_stats().live;
        if about.saturating_add(2 * LIVE_SLACK) < max_live {
            return Ok(LIVE_SLACK);
        }
        let live = self.with_all(|states| states.iter().map(|state| state.heap.live()).sum());
        below(live, max_live)?;
        Ok(max_live - live)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn largest_free_in_shards(&self) -> u64 {
        let limit = self.hint.limit();
        self.sharded().map_or(limit, |shards| shards.largest_bound().min(limit))
    }

    #[cold]
    pub(super) fn published_by_shards(&self, shards: &SpaceShards<SpaceCore>) -> SpaceStats {
        let mut sum = SpaceStats { capacity: self.capacity(), ..SpaceStats::default() };
        for shard in shards.shards() {
            let SpaceStats { free, largest, live, .. } = shard.core.published_stats();
            sum.free += free;
            sum.live += live;
            sum.largest = sum.largest.max(largest);
        }
        sum
    }

    /// Keeps an object alive until the allocator and all its allocations are gone. A core keeps
    /// one.
    pub(crate) fn keep(&self, keepalive: Keepalive) {
        let mut keepalive = Some(keepalive);
        if self.with_whole(|state| state.keepalive = keepalive.take()).is_err() {
            *self.expect_shards().keepalive.lock() = keepalive;
        }
    }

    /// Lengthens an allocated range with `extend`. `end` returns the end of the range, and whether
    /// its shard, from which on `extend` fails, ends there or behind a free range.
    pub(crate) fn extend_at<E>(
        &self,
        end: impl Fn() -> Option<u64>,
        extend: impl Fn() -> Result<(), E>,
    ) -> Result<(), E> {
        let extended = extend();
        if extended.is_err()
            && let Some(shards) = self.sharded()
            && let Some(end) = end()
        {
            self.join(shards, |run| run.range.start == end);
            return extend();
        }
        extended
    }

    /// Moves the end of the space up to `capacity`.
    pub(crate) fn grow(&self, capacity: u64) -> Result<(), SpaceError> {
        self.resize(|states| {
            // With a boundary, the last segment may be short: the shard that has it goes on.
            let last = states.iter().rposition(|state| state.heap.capacity() > 0).unwrap_or(0);
            let before: u64 = states[..last].iter().map(|state| state.heap.capacity()).sum();
            let own = states[last].heap.capacity();
            if capacity < before + own {
                let (capacity, requested) = (before + own, capacity);
                return Err(SpaceError::WrongDirection { capacity, requested });
            }
            states[last].heap.grow(capacity - before)?;
            for empty in &mut states[last + 1..] {
                empty.heap.cut_start(0, capacity);
            }
            Ok(())
        })
    }

    /// Moves the end of the space down to `capacity` ≥ 1, if nothing in use lies behind it.
    pub(crate) fn shrink_to(&self, capacity: u64) -> Result<(), SpaceError> {
        self.resize(|states| {
            if let [state] = states {
                return state.heap.shrink_to(capacity);
            }
            let total: u64 = states.iter().map(|state| state.heap.capacity()).sum();
            if capacity > total {
                let (capacity, requested) = (total, capacity);
                return Err(SpaceError::WrongDirection { capacity, requested });
            }
            let used = states.iter_mut().rev().find(|state| state.heap.live() > 0);
            let end_of_last = used.map_or(0, |state| state.heap.end_of_last());
            if capacity < end_of_last {
                return Err(SpaceError::InUse { requested: capacity, end_of_last });
            }
            for state in states.iter_mut() {
                let ShardEnds { start, end, .. } = state.heap.shard_ends();
                if start >= capacity {
                    state.heap.cut_start(end - start, capacity);
                } else if end > capacity {
                    state.heap.shrink_to(capacity - start)?;
                }
            }
            Ok(())
        })
    }

    fn resize(
        &self,
        change: impl Fn(&mut [&mut SpaceState]) -> Result<(), SpaceError>,
    ) -> Result<(), SpaceError> {
        self.with_all(|states| {
            change(states)?;
            let capacity = states.iter().map(|state| state.heap.capacity()).sum();
            let boundary = states[0].heap.boundary();
            let limit = boundary.map_or(capacity, |boundary| boundary.min(capacity));
            if let [state] = states {
                self.hint.resize(|| {
                    self.hint.publish_limit(capacity, limit);
                    self.hint.publish_bound();
                    let coalesced = state.heap.largest_coalesced();
                    let (free, live) = (state.heap.free_bytes(), state.heap.live());
                    self.hint.publish_figures(free, coalesced, live);
                });
                return Ok(());
            }
            self.hint.resize(|| self.hint.publish_limit(capacity, limit));
            let shards = self.expect_shards();
            shards.move_starts(|starts| {
                for (start, state) in starts.iter().zip(states) {
                    state.heap.set_limit_of_space(limit);
                    // Relaxed: see the head of `shards.rs`.
                    start.store(state.heap.shard_ends().start, Ordering::Relaxed);
                }
            });
            Ok(())
        })
    }

    /// Returns the figures of the space. O(shards).
    pub(crate) fn metrics(&self) -> Metrics {
        self.with_all(|states| {
            let mut sum = Metrics::default();
            for state in states.iter_mut() {
                let mut metrics = state.heap.metrics();
                metrics.metadata_bytes += state.generations.bytes() as u64;
                sum.add(&metrics);
            }
            if states.len() > 1 {
                for Run { range, pieces, .. } in runs(&ends(states)) {
                    sum.free_ranges -= pieces.saturating_sub(1);
                    sum.largest_free = sum.largest_free.max(range.end - range.start);
                }
            }
            sum
        })
    }

    /// Returns a report for every non-empty bin, by ascending size.
    pub(crate) fn bins(&self) -> Vec<BinReport> {
        match self.with_whole(|state| state.heap.bin_reports()) {
            Ok(reports) => reports,
            Err(_) => bin_reports(&self.map()),
        }
    }

    /// Allocates `n` ranges of `size` bytes each, or none.
    pub(crate) fn allocate_batch(
        &self,
        size: u64,
        n: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let attempt = |state: &mut SpaceState| {
            let mut pieces = state.heap.allocate_batch(size, n)?;
            state.tag_all(&mut pieces);
            Ok(pieces)
        };
        let attempt = match self.with_whole(attempt) {
            Ok(batch) => return batch,
            Err(attempt) => attempt,
        };
        // A shard can have room for all of them if it has room for one.
        let shards = self.expect_shards();
        let in_one = |shard: &SpaceCore| {
            shard.admit(size)?;
            shard.with(attempt)
        };
        match self.serve(shards, size, in_one) {
            Ok((batch, _)) => Ok(batch),
            Err(AllocError::OutOfSpace { .. }) => self.gather_batch(shards, size, n),
            Err(error) => Err(error),
        }
    }

    /// Allocates a batch of several shards, under all locks.
    #[cold]
    fn gather_batch(
        &self,
        shards: &SpaceShards<SpaceCore>,
        size: u64,
        n: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        self.join(shards, |_| true);
        self.with_shards(shards, |states| {
            let mut batch = Vec::new();
            for state in states.iter_mut() {
                let from = batch.len();
                batch.extend(state.heap.allocate_up_to(size, n - from));
                state.tag_all(&mut batch[from..]);
            }
            if batch.len() == n {
                return Ok(batch);
            }
            give_back(states, &batch);
            Err(out_of_space(states, size).of_batch(size, n))
        })
    }

    /// Allocates `total` bytes in at most `max_ranges` ranges, or nothing.
    pub(crate) fn allocate_scattered(
        &self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let attempt = |state: &mut SpaceState| {
            let mut pieces = state.heap.allocate_scattered(total, max_ranges)?;
            state.tag_all(&mut pieces);
            Ok(pieces)
        };
        match self.with_whole(attempt) {
            Ok(pieces) => pieces,
            Err(_) => self.scatter(self.expect_shards(), total, max_ranges),
        }
    }

    /// Allocates `total` bytes in at most `max_ranges` ranges of all shards, under all locks: the
    /// longest free ranges whole, until the rest fits into one.
    #[cold]
    fn scatter(
        &self,
        shards: &SpaceShards<SpaceCore>,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<SizedRange>, AllocError> {
        let limit = self.capacity();
        if total > limit {
            return Err(AllocError::TooLarge { requested: total, limit });
        }
        self.join(shards, |_| true);
        self.with_shards(shards, |states| {
            let (mut pieces, mut rest) = (Vec::new(), total);
            while rest > 0 && pieces.len() < max_ranges {
                let longest = |state: &mut &mut SpaceState| state.heap.largest_free();
                let Some((at, free)) =
                    states.iter_mut().map(longest).enumerate().max_by_key(|&(_, free)| free)
                else {
                    break;
                };
                let size = free.min(rest);
                let state = &mut states[at];
                let Some(placed) = (size > 0).then(|| state.heap.allocate(size)).flatten() else {
                    break;
                };
                pieces.push(SizedRange { placed: state.tagged(placed), size });
                rest -= size;
            }
            if rest == 0 {
                return Ok(pieces);
            }
            give_back(states, &pieces);
            Err(out_of_space(states, total))
        })
    }

    /// Frees used ranges, each listed once. Ranges that follow each other in the list and in the
    /// space are coalesced before they reach a bin.
    pub(crate) fn free_batch(&self, batch: &[Placed]) {
        if self.with_whole(|state| state.heap.free_batch(batch)).is_ok() || batch.is_empty() {
            return;
        }
        let shards = self.expect_shards();
        for (at, shard) in shards.shards().enumerate() {
            let own = |placed: &&Placed| shards.shard_at(placed.offset) == at;
            let own: Vec<Placed> = batch.iter().filter(own).copied().collect();
            if !own.is_empty() {
                shard.core.with(|state| {
                    state.freed_any();
                    let own: Vec<Placed> = own
                        .iter()
                        .map(|placed| Placed { node: state.own(placed.node), ..*placed })
                        .collect();
                    state.heap.free_batch(&own);
                });
            }
        }
    }

    /// Allocates exactly `range`, with a raw handle.
    pub(crate) fn allocate_raw_at(&self, range: Range<u64>) -> Result<RawAllocation, AllocError> {
        let size = range.end - range.start;
        let attempt = |state: &mut SpaceState| {
            let placed = state.heap.allocate_at(range.clone())?;
            Ok(state.issue(placed, size))
        };
        let attempt = match self.with_whole(attempt) {
            Ok(raw) => return raw,
            Err(attempt) => attempt,
        };
        let shards = self.expect_shards();
        self.join(shards, |run| run.range.start <= range.start && range.end <= run.range.end);
        let of_space = |error| match error {
            AllocError::NotFree { start, end, .. } => {
                AllocError::NotFree { start, end, capacity: self.capacity() }
            }
            other => other,
        };
        self.shard_of(range.start).core.with(attempt).map_err(of_space)
    }

    /// Returns the map of the space; see [`OffsetAllocator::map`](super::OffsetAllocator::map).
    pub(crate) fn map(&self) -> Vec<MapRange> {
        self.with_all(|states| {
            let mut map: Vec<MapRange> = Vec::new();
            for state in states.iter_mut() {
                let moves = state.heap.boundary().is_none();
                let mut ranges = state.heap.map().into_iter();
                if let Some(first) = ranges.next() {
                    match map.last_mut() {
                        Some(last) if moves && !last.used && !first.used => last.size += first.size,
                        _ => map.push(first),
                    }
                }
                map.extend(ranges);
            }
            map
        })
    }

    /// Checks the invariants, including those of the hints and of the shards.
    pub(crate) fn check(&self) -> Result<(), CheckError> {
        self.with_all(|states| {
            states.iter_mut().try_for_each(|state| state.heap.check())?;
            let is_beyond = |state: &&&mut SpaceState| {
                let free = state.heap.free_bytes();
                state.edges.as_ref().is_some_and(|edges| free > *edges.free().end())
            };
            if let Some(state) = states.iter().find(is_beyond) {
                let what = format!("{} B are free, more than the bound", state.heap.free_bytes());
                return Err(CheckError { invariant: 9, what });
            }
            let bound = self.largest_free_hint();
            let longest = states.iter_mut().map(|state| state.heap.largest_free()).max();
            let ends = ends(states);
            let in_several = runs(&ends).into_iter().map(|run| run.range.end - run.range.start);
            let largest = in_several.max().max(longest).unwrap_or(0);
            if bound < largest {
                let what =
                    format!("the hint is {bound}, but {largest} bytes are free in one piece");
                return Err(CheckError { invariant: 9, what });
            }
            match self.sharded() {
                Some(shards) => shards.check(&ends, self.capacity()),
                None => Ok(()),
            }
        })
    }
}

/// Frees the ranges of a request that failed, in the shards that they lie in.
fn give_back(states: &mut [&mut SpaceState], pieces: &[SizedRange]) {
    for state in states {
        let ShardEnds { start, end, .. } = state.heap.shard_ends();
        let here = |piece: &&SizedRange| (start..end).contains(&piece.placed.offset);
        let own = |&SizedRange { placed, size }: &SizedRange| {
            let node = state.own(placed.node);
            SizedRange { placed: Placed { node, ..placed }, size }
        };
        let own: Vec<SizedRange> = pieces.iter().filter(here).map(own).collect();
        state.heap.give_back(&own);
    }
}

/// Returns the error of a request that no shard can serve.
fn out_of_space(states: &mut [&mut SpaceState], requested: u64) -> AllocError {
    let free = states.iter().map(|state| state.heap.free_bytes()).sum();
    let largest = states.iter_mut().map(|state| state.heap.largest_free()).max();
    AllocError::OutOfSpace { requested, free, largest_free: largest.unwrap_or(0) }
}

/// Returns the free bytes at the ends of all shards.
fn ends(states: &mut [&mut SpaceState]) -> Vec<ShardEnds> {
    states.iter_mut().map(|state| state.heap.shard_ends()).collect()
}

impl SpaceShards<SpaceCore> {
    /// Returns an upper bound of the longest free range, whether it lies in one shard or in
    /// several, without a lock. O(shards).
    pub(super) fn largest_bound(&self) -> u64 {
        let hints = self.shards().map(|shard| shard.core.largest_free_hint());
        hints.max().unwrap_or(0).max(self.longest_run())
    }

    /// Returns an upper bound of the free bytes, without a lock. O(shards).
    pub(super) fn free_bound(&self) -> u64 {
        let bound = |SpaceShard { core, edges }: &SpaceShard<SpaceCore>| {
            // While slots are open, ranges may be free that no holder of the lock has counted.
            if core.state.is_open() { core.capacity() } else { *edges.free().end() }
        };
        self.shards().map(bound).fold(0, u64::saturating_add)
    }

    /// Runs `attempt`, an operation on a raw handle, with the shard of its slot. A handle of before
    /// the cut names no shard: its generation is in one of them, and no other shard has it.
    pub(super) fn find_raw<T>(
        &self,
        (slot, generation): (u32, u32),
        attempt: impl Fn(&SpaceShard<SpaceCore>) -> Result<T, RawError>,
    ) -> Result<T, RawError> {
        let stale = RawError::Stale { slot, generation };
        let found = |result: Result<T, RawError>| match result {
            Err(RawError::Stale { .. }) => None,
            other => Some(other),
        };
        if let Some(at) = tagged_shard(slot) {
            // A slot of no shard in use is that of no handle; any shard says so.
            let shard = self.shard(at.min(self.len().saturating_sub(1)));
            return found(attempt(shard)).unwrap_or(Err(stale));
        }
        self.shards().find_map(|shard| found(attempt(shard))).unwrap_or(Err(stale))
    }

    /// Checks that the shards tile the space and are found.
    fn check(&self, ends: &[ShardEnds], capacity: u64) -> Result<(), CheckError> {
        let mut at = 0;
        for (number, &ShardEnds { start, end, .. }) in ends.iter().enumerate() {
            let found = (start < end).then(|| self.shard_at(start));
            if start != at || end < start || found.is_some_and(|found| found != number) {
                let what =
                    format!("shard {number} is {start}..{end}, found {found:?}, not at {at}");
                return Err(CheckError { invariant: 10, what });
            }
            at = end;
        }
        if at != capacity {
            let what = format!("the last shard ends at {at}, the space at {capacity}");
            return Err(CheckError { invariant: 10, what });
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom), not(kvmem_simulated)))]
mod tests {
    use super::*;
    use crate::sync::set_processors;

    #[test]
    fn there_are_as_many_shards_as_processors() {
        let shards = [1, 2, 4, 16, 31, 64].map(|count| {
            set_processors(count);
            shards_of_processors()
        });
        assert_eq!(shards, [4, 4, 4, 16, 31, MAX_SHARDS]);
        set_processors(0);
    }
}
