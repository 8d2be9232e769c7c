//! *Shards*: a contended space is cut into consecutive parts with a lock each.
//!
//! One lock serves about as many calls as one thread makes. If threads contend for the lock of a
//! space, the holder first makes the calls of the threads that wait (see
//! [combining](crate::sync::CombiningMutex)). If the contention lasts, the holder *cuts* the space:
//! its ranges go to the heaps of consecutive parts, the *shards*. Each shard is a core of its own
//! (`SpaceCore`), with lock, slots and hint. A space that one thread uses is never cut.
//!
//! ```text
//!            starts[1]          starts[2]         capacity
//!  ┌────────────┬──────────────────┬──────────────────┐
//!  │ shard 0    │ shard 1          │ shard 2          │   each a heap behind a lock
//!  └────────────┴──────────────────┴──────────────────┘
//! ```
//!
//! **Routes.** A handle names the space, not the shard: handles of before the cut stay valid. The
//! lock of a cut space is *diverted*: the attempt to take it fails, and the slow path finds the
//! shards. So a space that is not cut executes no instruction for shards. A free goes to the shard
//! that contains its offset. A range in use never moves to another shard, so any value of `starts`
//! that a thread can read names the right one: a start moves over free bytes only, and a thread
//! that frees a range allocated there learned of it after the move.
//!
//! **Nodes.** Each heap numbers its nodes, starting with the numbers of before the cut. Outside, a
//! node has the *tag* of its shard in its upper bits, so two live ranges never have the same
//! number. Ranges of before the cut have no tag.
//!
//! **Home.** A thread requests from its [home](Homes) shard first, and from the next ones in the
//! ring if that fails. Homes are far apart, so threads whose homes are full take from different
//! shards. They do not move: threads that leave a contended shard meet again in the next one.
//!
//! **A request fails only if the whole space has no room.** If no shard can serve it, free ranges
//! that meet at a cut may do so together. Each shard publishes upper bounds of the free bytes at
//! its [ends](ShardEdges), which are exact unless something was freed there. If the bounds allow
//! the request, the thread takes all locks, moves the starts between the free ranges behind them,
//! and tries again.
//!
//! **Order of locks.** The lock of the space, then those of the shards in ascending order.

use std::any::Any;
use std::array;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, OnceLock};

use super::generations::GenerationTable;
use super::homes::Homes;
use crate::offset::heap::{Placed, ShardEnds};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, MODELLED, Mutex, Ordering, SeqCounter};

/// Upper bound of the number of shards of a space: a tag has six bits, and is not 0.
pub(crate) const MAX_SHARDS: usize = if MODELLED { 2 } else { 63 };
/// Bits of a node within its shard; the tag is above them.
pub(crate) const NODE_BITS: u32 = 26;
/// Bound of the free bytes at an end of a shard after something was freed there.
const UNKNOWN: u64 = u64::MAX;
/// The bounds of the free bytes of a shard are two parts in this many of the shard apart.
const SLACK_SHARE: u64 = 32;

/// Returns the tag of the nodes of the shard `at`.
pub(super) fn tag_of(at: usize) -> u32 {
    (at as u32 + 1) << NODE_BITS
}

/// Returns the shard whose tag a node has; `None` for a node of before the cut.
pub(super) fn tagged_shard(node: u32) -> Option<usize> {
    (node >> NODE_BITS).checked_sub(1).map(|at| at as usize)
}

/// The slots whose live raw handles were issued before the cut and have no tag. A handle with
/// another tag is a forged one.
#[derive(Default)]
pub(super) struct UntaggedSlots(Vec<u64>);

impl UntaggedSlots {
    /// Returns those of a shard when it begins, whose live handles are all of before the cut.
    pub(super) fn of(generations: &GenerationTable) -> Self {
        let mut slots = UntaggedSlots::default();
        for (slot, _) in generations.iter() {
            let word = slot as usize / 64;
            if slots.0.len() <= word {
                slots.0.resize(word + 1, 0);
            }
            slots.0[word] |= 1 << (slot % 64);
        }
        slots
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.0.get(slot as usize / 64).is_some_and(|word| word & 1 << (slot % 64) != 0)
    }

    /// Removes a slot when its handle ends.
    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(word) = self.0.get_mut(slot as usize / 64) {
            *word &= !(1 << (slot % 64));
        }
    }
}

/// Upper bounds of the free bytes of a shard, at its ends and all together.
///
/// The lock of the shard protects all changes. Threads without the lock read the bounds, whose line
/// is seldom written.
#[repr(align(64))]
pub(crate) struct ShardEdges {
    head: AtomicU64,
    tail: AtomicU64,
    /// A range that begins up to here, when it is freed, may lengthen the head.
    head_end: AtomicU64,
    /// A range that ends from here on, when it is freed, may lengthen the tail.
    tail_start: AtomicU64,
    /// At least the free bytes, and at most two times the slack more.
    free: AtomicU64,
    slack: AtomicU64,
}

impl ShardEdges {
    fn new() -> Self {
        let (unknown, none) = (|| AtomicU64::new(UNKNOWN), || AtomicU64::new(0));
        let (head, tail, head_end, free) = (unknown(), unknown(), unknown(), unknown());
        ShardEdges { head, tail, head_end, tail_start: none(), free, slack: none() }
    }

    /// Publishes exact bounds of the ends, and one of the `free` bytes. The caller holds the lock.
    pub(super) fn publish(&self, ends: ShardEnds, free: u64) {
        // Relaxed, all: the lock orders the changes. That a thread which learns of a free sees its
        // bound rests on the coherence of each atomic.
        self.head.store(ends.head, Ordering::Relaxed);
        self.tail.store(ends.tail, Ordering::Relaxed);
        self.head_end.store(ends.start + ends.head, Ordering::Relaxed);
        self.tail_start.store(ends.end - ends.tail, Ordering::Relaxed);
        self.slack.store((ends.end - ends.start) / SLACK_SHARE, Ordering::Relaxed);
        self.bound_free(free);
    }

    /// Returns bounds of the free bytes. The lower one may be late where the holder of the lock
    /// serves other threads.
    pub(super) fn free(&self) -> RangeInclusive<u64> {
        // Relaxed, both: as in `publish`.
        let (most, slack) = (self.free.load(Ordering::Relaxed), self.slack.load(Ordering::Relaxed));
        most.saturating_sub(2 * slack)..=most
    }

    /// Makes the bounds contain the free bytes. The caller holds the lock.
    pub(super) fn bound_free(&self, free: u64) {
        if !self.free().contains(&free) {
            // Relaxed, both: as in `publish`.
            self.free.store(free + self.slack.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Notes that a range was freed, after which `free` bytes are free. The caller holds the lock.
    #[inline]
    pub(super) fn freed(&self, range: Range<u64>, free: u64) {
        self.bound_free(free);
        // Relaxed, all: as in `publish`.
        if range.start <= self.head_end.load(Ordering::Relaxed) {
            self.head.store(UNKNOWN, Ordering::Relaxed);
        }
        if range.end >= self.tail_start.load(Ordering::Relaxed) {
            self.tail.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// Notes that any range may have been freed. The caller holds the lock.
    pub(super) fn freed_any(&self) {
        // Relaxed, both: as in `publish`.
        self.head.store(UNKNOWN, Ordering::Relaxed);
        self.tail.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// An object that the state of a space owns, dropped with it.
pub(crate) type Keepalive = Box<dyn Any + Send + Sync>;

/// A shard, with its core.
pub(super) struct SpaceShard<C> {
    pub(super) core: C,
    pub(super) edges: Arc<ShardEdges>,
}

/// The shards of a space that was cut at least once. They are kept for the lifetime of the core:
/// a thread with a stale handle may read them at any time.
pub(super) struct SpaceShards<C> {
    /// Number of shards in use.
    len: AtomicU32,
    /// Distance of the homes of two threads.
    stride: AtomicU32,
    /// Where each shard in use begins.
    starts: [AtomicU64; MAX_SHARDS],
    /// Orders the changes of the starts and of the bounds at the ends, which are read together.
    moves: SeqCounter,
    /// Whether starts can move: the space has no boundary.
    can_move: AtomicBool,
    /// Shards that are not closed and empty.
    open: AtomicU32,
    pub(super) keepalive: Mutex<Option<Keepalive>>,
    shards: [OnceLock<Box<SpaceShard<C>>>; MAX_SHARDS],
    /// Makes the core of a shard.
    new_core: fn() -> C,
}

/// Free ranges of several shards that meet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first and the last shard that it lies in, or touches.
    pub(super) shards: Range<usize>,
    pub(super) range: Range<u64>,
    /// Number of free ranges.
    pub(super) pieces: u64,
}

impl<C> SpaceShards<C> {
    pub(super) fn new(new_core: fn() -> C) -> Self {
        SpaceShards {
            len: AtomicU32::new(0),
            stride: AtomicU32::new(0),
            starts: array::from_fn(|_| AtomicU64::new(0)),
            moves: SeqCounter::new(),
            can_move: AtomicBool::new(false),
            open: AtomicU32::new(0),
            keepalive: Mutex::new(None),
            shards: array::from_fn(|_| OnceLock::new()),
            new_core,
        }
    }

    /// Starts to use shards that begin at `starts`. The caller holds the lock of the space.
    pub(super) fn set(&self, starts: &[u64], can_move: bool, keepalive: Option<Keepalive>) {
        // Relaxed, all: diverting the lock of the space comes after them.
        self.stride.store(Homes::new(starts.len()).stride(), Ordering::Relaxed);
        for (start, &value) in self.starts.iter().zip(starts) {
            start.store(value, Ordering::Relaxed);
        }
        self.can_move.store(can_move, Ordering::Relaxed);
        self.open.store(starts.len() as u32, Ordering::Relaxed);
        self.len.store(starts.len() as u32, Ordering::Relaxed);
        *self.keepalive.lock() = keepalive;
    }

    /// Returns the number of shards in use.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // Relaxed: it changes while no shard is in use.
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Returns the shard of a number; makes it if needed, with the lock of the space held.
    #[inline]
    pub(super) fn shard(&self, at: usize) -> &SpaceShard<C> {
        let new =
            || Box::new(SpaceShard { core: (self.new_core)(), edges: Arc::new(ShardEdges::new()) });
        self.shards[at % MAX_SHARDS].get_or_init(new)
    }

    /// Returns the shards in use.
    pub(super) fn shards(&self) -> impl Iterator<Item = &SpaceShard<C>> {
        (0..self.len()).map(|at| self.shard(at))
    }

    /// Returns all shards that were ever in use.
    pub(super) fn all(&self) -> impl Iterator<Item = &SpaceShard<C>> {
        self.shards.iter().filter_map(OnceLock::get).map(|shard| &**shard)
    }

    /// Returns the number of the shard that contains an offset in use.
    #[inline]
    pub(super) fn shard_at(&self, offset: u64) -> usize {
        let (mut at, mut len) = (0, self.len());
        while len > 1 {
            let half = len / 2;
            // Relaxed: see the head of this module.
            let is_before = self.starts[at + half].load(Ordering::Relaxed) <= offset;
            at += if is_before { half } else { 0 };
            len -= half;
        }
        at
    }

    /// Returns the number of the shard that a thread requests from first.
    #[inline]
    pub(super) fn home(&self, thread: usize) -> usize {
        // Relaxed: as in `len`.
        Homes::with(self.len(), self.stride.load(Ordering::Relaxed)).of(thread)
    }

    /// Runs `attempt` with the shards, beginning at the home of the thread, until one succeeds;
    /// returns its result and the number of the shard, or the last error of those that
    /// `is_notable`.
    #[inline]
    pub(super) fn attempt<T, E>(
        &self,
        thread: usize,
        attempt: impl Fn(&SpaceShard<C>) -> Result<T, E>,
        is_notable: impl Fn(&E) -> bool,
    ) -> Result<(T, usize), Option<E>> {
        let (len, home) = (self.len(), self.home(thread));
        let mut notable = None;
        for at in (home..len).chain(0..home) {
            match attempt(self.shard(at)) {
                Ok(served) => return Ok((served, at)),
                Err(error) if is_notable(&error) => notable = Some(error),
                // Not in this shard.
                Err(_) => {}
            }
        }
        Err(notable)
    }

    /// Returns an upper bound of the free bytes that meet at a start, without a lock. O(shards).
    pub(super) fn longest_run(&self) -> u64 {
        // Relaxed, all: see `ShardEdges::publish`; `moves` keeps them together.
        if !self.can_move.load(Ordering::Relaxed) {
            return 0;
        }
        self.moves.look(|| {
            let len = self.len();
            let (mut longest, mut run) = (0u64, 0u64);
            for at in 0..len {
                let edges = &self.shard(at).edges;
                let (head, tail) =
                    (edges.head.load(Ordering::Relaxed), edges.tail.load(Ordering::Relaxed));
                let start = self.starts[at].load(Ordering::Relaxed);
                let end = match at + 1 {
                    next if next < len => self.starts[next].load(Ordering::Relaxed),
                    // The end of the space is not a cut: this bound is enough.
                    _ => u64::MAX,
                };
                let shard = end.saturating_sub(start);
                longest = longest.max(run.saturating_add(head.min(shard)));
                run = if head >= shard { run.saturating_add(shard) } else { tail.min(shard) };
            }
            longest
        })
    }

    /// Moves starts with `change`. The caller holds all locks.
    pub(super) fn move_starts(&self, change: impl FnOnce(&[AtomicU64; MAX_SHARDS])) {
        self.moves.change(|| change(&self.starts));
    }

    /// Counts shards that are closed and empty now; returns whether all are.
    pub(super) fn ended(&self, shards: u32) -> bool {
        // AcqRel: the thread that ends the last shard sees what the others did.
        shards > 0 && self.open.fetch_sub(shards, Ordering::AcqRel) == shards
    }

    /// Stops using the shards. The caller holds the lock of the space.
    pub(super) fn clear(&self) {
        // Relaxed: the lock of the space is not diverted any more.
        self.len.store(0, Ordering::Relaxed);
    }
}

/// Returns the free ranges that meet at starts, from the ends of all shards.
pub(super) fn runs(ends: &[ShardEnds]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut run: Option<Run> = None;
    let mut close = |run: Option<Run>| runs.extend(run.filter(|run| run.shards.len() > 1));
    for (at, &ShardEnds { start, end, head, tail }) in ends.iter().enumerate() {
        let is_free = head == end - start;
        if let Some(run) = &mut run
            && head > 0
        {
            run.shards.end = at + 1;
            run.range.end = start + head;
            run.pieces += 1;
        }
        if run.is_none() || !is_free {
            let pieces = u64::from(tail > 0);
            let next = Run { shards: at..at + 1, range: end - tail..end, pieces };
            close(run.replace(next));
        }
    }
    close(run);
    runs
}

/// Returns an allocation of the shard `at` as handles store it.
#[inline]
pub(super) fn tagged(placed: Placed, at: usize) -> Placed {
    Placed { node: placed.node | tag_of(at), ..placed }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ends(of: &[(u64, u64, u64)]) -> Vec<ShardEnds> {
        let mut start = 0;
        let place = |&(len, head, tail): &(u64, u64, u64)| {
            let ends = ShardEnds { start, end: start + len, head, tail };
            start += len;
            ends
        };
        of.iter().map(place).collect()
    }

    fn run(shards: Range<usize>, range: Range<u64>, pieces: u64) -> Run {
        Run { shards, range, pieces }
    }

    #[test]
    fn the_bounds_of_the_free_bytes_change_seldom() {
        let edges = ShardEdges::new();
        edges.publish(ShardEnds { start: 0, end: 100 * SLACK_SHARE, head: 0, tail: 0 }, 1000);
        for free in [1000, 900, 1100] {
            edges.bound_free(free);
            assert_eq!(edges.free(), 900..=1100);
        }
        edges.freed(1600..1601, 1101);
        assert_eq!(edges.free(), 1001..=1201);
        edges.bound_free(50);
        assert_eq!(edges.free(), 0..=150);
    }

    #[test]
    fn free_ranges_meet_at_starts() {
        assert_eq!(runs(&ends(&[(10, 0, 3), (10, 4, 0)])), [run(0..2, 7..14, 2)]);
        assert_eq!(runs(&ends(&[(10, 0, 3), (10, 0, 2)])), []);
        // The range behind a used one can be extended over the start.
        assert_eq!(runs(&ends(&[(10, 2, 0), (10, 4, 0)])), [run(0..2, 10..14, 1)]);
        // A free shard in the middle, an empty one, and two runs that a used range separates.
        let all = ends(&[(10, 0, 3), (10, 10, 10), (0, 0, 0), (10, 1, 2), (10, 5, 5)]);
        assert_eq!(runs(&all), [run(0..4, 7..21, 3), run(3..5, 28..35, 2)]);
        // The whole space.
        assert_eq!(runs(&ends(&[(10, 10, 10), (10, 10, 10)])), [run(0..2, 0..20, 2)]);
        assert_eq!(runs(&ends(&[(10, 10, 10)])), []);
    }
}
