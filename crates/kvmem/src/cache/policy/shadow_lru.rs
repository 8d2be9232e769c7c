//! *Shadow LRU*: the blocks that LRU would hold now, and which of the two policies finds more.
//!
//! LRU with room for *N* blocks holds the *N* blocks that were used last. So a list of the known
//! blocks, held or not, in the order of their last uses shows what LRU would hold. Each shard has
//! the list of its keys. A block leaves the lists when they have more blocks together than the
//! cache holds: the shards share the time of the last use before which LRU would have evicted a
//! block, and each shard drops what is older.
//!
//! A use that the cache serves and LRU would miss adds one to the *lead*; a use that LRU would
//! serve and the cache misses takes one away. When LRU leads by more than 1 / [`TOLERANCE`] of the
//! blocks held, the cache evicts as LRU does for a while: a pause. Each pause is twice as long as
//! the one before, up to [`MAX_PAUSE`] updates of the model. A lead as large as the cache makes
//! the next pause shorter again.
//!
//! The lead never exceeds the number of blocks held. A policy that has been good for long is
//! therefore paused as soon as it costs as many hits as the cache has blocks.

use std::mem;

use super::clock::{Time, step};
use super::rings::Rings;
use crate::sync::{AtomicU64, Ordering};

/// Number of an entry: a block that is known, held or not.
pub(super) type EntryId = u32;

/// LRU may lead by one part in this of the blocks held.
const TOLERANCE: i64 = 50;
/// The shortest pause, in updates of the model.
const MIN_PAUSE: u64 = 8;
/// The longest one.
const MAX_PAUSE: u64 = 1024;
/// The time of an entry that LRU would not hold.
const ABSENT: Time = Time::MAX;

/// The state that the shards of a cache share. Every figure is relaxed: it guards no memory.
#[derive(Debug)]
pub(super) struct Comparison {
    /// Blocks in the lists of all shards.
    in_lru: AtomicU64,
    /// Blocks that the policies of all shards know.
    held: AtomicU64,
    /// LRU would have evicted the blocks last used before this time.
    horizon: AtomicU64,
    /// Uses that the cache served, less those that LRU would have served; an `i64`.
    lead: AtomicU64,
    /// Updates until the policy is tried again; 0: it is in use.
    pause: AtomicU64,
    next_pause: AtomicU64,
}

impl Default for Comparison {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Comparison {
            in_lru: zero(),
            held: zero(),
            horizon: zero(),
            lead: zero(),
            pause: zero(),
            next_pause: AtomicU64::new(MIN_PAUSE),
        }
    }
}

impl Comparison {
    /// Returns the number of blocks held by all shards.
    #[inline]
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Counts a block that has come to a shard (`1`), or left it (`-1`).
    #[inline]
    pub(super) fn change_held(&self, own: &mut Uncounted, more: i64) {
        own.held += more;
        own.flush_if_large(self);
    }

    fn lead(&self) -> i64 {
        self.lead.load(Ordering::Relaxed) as i64
    }

    /// Notes that only the cache served a use (`1`), or only LRU would have (`-1`).
    pub(super) fn note(&self, more: i64) {
        let max = self.held() as i64 + 1;
        let sum = |lead: u64| Some((lead as i64 + more).min(max) as u64);
        // Never fails: `sum` always answers.
        let _ = self.lead.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    /// Returns whether the policy may evict other blocks than LRU.
    #[inline]
    pub(super) fn is_trusted(&self) -> bool {
        self.lead() * TOLERANCE >= -(self.held() as i64)
    }

    /// Advances a pause. Called once an update of the model.
    pub(super) fn update(&self) {
        let (pause, next) =
            (self.pause.load(Ordering::Relaxed), self.next_pause.load(Ordering::Relaxed));
        if self.is_trusted() {
            if self.lead() >= self.held() as i64 {
                self.next_pause.store((next / 2).max(MIN_PAUSE), Ordering::Relaxed);
            }
        } else if pause == 0 {
            self.pause.store(next, Ordering::Relaxed);
            self.next_pause.store((2 * next).min(MAX_PAUSE), Ordering::Relaxed);
        } else {
            self.pause.store(pause - 1, Ordering::Relaxed);
            if pause == 1 {
                self.lead.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Changes of the shared counts that a shard has not made yet. An insertion that evicts changes
/// each count up and down, and so nearly never writes the line that all shards share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uncounted {
    held: i64,
    in_lru: i64,
}

impl Uncounted {
    /// Makes the changes if they are many for a cache of this size. With few blocks each counts.
    #[inline]
    fn flush_if_large(&mut self, shared: &Comparison) {
        let step = step(shared.held()) as i64;
        for (own, count) in [(&mut self.held, &shared.held), (&mut self.in_lru, &shared.in_lru)] {
            if own.abs() >= step {
                // Two's complement: adds a negative number, too.
                count.fetch_add(mem::take(own) as u64, Ordering::Relaxed);
            }
        }
    }
}

/// The blocks of one shard that LRU would hold. 16 bytes per entry.
#[derive(Debug, Default)]
pub(super) struct ShadowLru {
    ring: Rings<1>,
    /// By entry: the last use of a block that LRU would hold.
    used: Vec<Time>,
}

impl ShadowLru {
    /// LRU uses a block, which comes in if it is absent. Returns whether LRU held it.
    pub(super) fn touch(
        &mut self,
        id: EntryId,
        now: Time,
        shared: &Comparison,
        own: &mut Uncounted,
    ) -> bool {
        if self.used.len() <= id as usize {
            self.used.resize(id as usize + 1, ABSENT);
        }
        let was_held = self.used[id as usize] != ABSENT;
        if was_held {
            self.ring.take(id);
        } else {
            own.in_lru += 1;
            own.flush_if_large(shared);
        }
        self.used[id as usize] = now;
        self.ring.push(0, id);
        was_held
    }

    /// Takes a block out, if LRU holds it.
    pub(super) fn remove(&mut self, id: EntryId, shared: &Comparison, own: &mut Uncounted) {
        if let Some(used) = self.used.get_mut(id as usize).filter(|used| **used != ABSENT) {
            *used = ABSENT;
            self.ring.take(id);
            own.in_lru -= 1;
            own.flush_if_large(shared);
        }
    }

    /// Removes the blocks that LRU has no space for.
    pub(super) fn evict(&mut self, shared: &Comparison, own: &mut Uncounted) {
        while let Some(id) = self.ring.first(0) {
            let (used, horizon) = (self.used[id as usize], shared.horizon.load(Ordering::Relaxed));
            if used >= horizon {
                let in_lru = shared.in_lru.load(Ordering::Relaxed) as i64 + own.in_lru;
                if in_lru <= shared.held() as i64 + own.held {
                    break;
                }
                if used > horizon {
                    shared.horizon.fetch_max(used, Ordering::Relaxed);
                }
            }
            self.remove(id, shared, own);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_holds_the_blocks_that_were_used_last() {
        let (shared, mut lru) = (Comparison::default(), ShadowLru::default());
        let mut own = Uncounted::default();
        (0..3).for_each(|_| shared.change_held(&mut own, 1));
        for (now, id) in [(1, 0), (2, 1), (3, 2), (4, 0), (5, 3)] {
            lru.touch(id, now, &shared, &mut own);
            lru.evict(&shared, &mut own);
        }
        // 1 was used before all others.
        assert!(!lru.touch(1, 6, &shared, &mut own));
        lru.evict(&shared, &mut own);
        assert!(
            lru.touch(0, 7, &shared, &mut own)
                && lru.touch(3, 7, &shared, &mut own)
                && !lru.touch(2, 7, &shared, &mut own)
        );
    }

    #[test]
    fn shards_evict_what_is_oldest_of_all() {
        let (shared, mut one, mut other) =
            (Comparison::default(), ShadowLru::default(), ShadowLru::default());
        let mut own = Uncounted::default();
        (0..4).for_each(|_| shared.change_held(&mut own, 1));
        for id in 0..4 {
            one.touch(id, 1 + Time::from(id), &shared, &mut own);
        }
        for id in 0..3 {
            other.touch(id, 10 + Time::from(id), &shared, &mut own);
            one.evict(&shared, &mut own);
            other.evict(&shared, &mut own);
        }
        let held = |lru: &mut ShadowLru, ids: u32| {
            (0..ids).filter(|&id| lru.used.get(id as usize).is_some_and(|&at| at != ABSENT)).count()
        };
        assert_eq!((held(&mut one, 4), held(&mut other, 3)), (1, 3));
    }

    #[test]
    fn a_policy_that_finds_less_is_paused_longer_each_time() {
        let shared = Comparison::default();
        let mut own = Uncounted::default();
        (0..100).for_each(|_| shared.change_held(&mut own, 1));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            (0..3).for_each(|_| shared.note(-1));
            assert!(!shared.is_trusted());
            let mut updates = 0;
            while !shared.is_trusted() {
                shared.update();
                updates += 1;
            }
            pauses.push(updates - 1);
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
        (0..1000).for_each(|_| shared.note(1));
        assert_eq!(shared.lead(), 101);
        shared.update();
        assert_eq!(shared.next_pause.load(Ordering::Relaxed), 512);
    }
}
