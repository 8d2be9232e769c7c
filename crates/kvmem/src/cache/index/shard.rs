//! *Shard*: an index, a policy, and a lock around both.
//!
//! Look-ups are frequent, and a cache line that each of them writes would move between processors
//! all the time. Look-ups therefore share the state by a [striped](crate::sync::Striped) lock, and
//! write only to the [`StripeState`] of their stripe: counts, and a buffer of recorded uses. A
//! thread that changes the shard takes all stripes, and first drains the buffers to the policy. The
//! policy thus knows of every use before any other call. Look-ups write the policy's
//! tables only when a buffer is full.
//!
//! A block that is used repeatedly while no block comes or goes is recorded once: the policy is not
//! called meanwhile. Each block stores the number of changes of the shard after which it was last
//! recorded, and uses between two changes count once. A cache that is only read records nothing. An
//! exact cache marks no block, and records every use. Nor is a block with a time to live marked:
//! only a look-up that finds no mark checks the time.

use super::access_buffer::AccessBuffer;
use super::entry::CacheEntry;
use super::shard_state::{ShardLeases, ShardState};
use crate::cache::EvictionPolicy;
use crate::cache::policy::{ActivePolicy, AgeClock, Oldest, step};
use crate::sync::{AtomicU64, Ordering, Striped, StripedWriteGuard, thread_number};
use std::borrow::Borrow;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;

/// A shard, on cache lines of its own.
#[repr(C, align(128))]
pub(in crate::cache) struct Shard<K> {
    state: Striped<ShardState<K>, StripeState>,
    pub(in crate::cache) changes: Changes,
    pub(in crate::cache) counts: ChangeCounts,
    clock: AgeClock,
    /// Whether threads compare the ranks with those of other shards. Otherwise none are published.
    compared: bool,
}

impl<K> Shard<K> {
    pub(in crate::cache) fn new(
        policy: ActivePolicy,
        exact: bool,
        compared: bool,
        clock: AgeClock,
    ) -> Self {
        let state = Striped::new(ShardState::new(policy, exact));
        let (changes, counts) = (Changes::default(), ChangeCounts::default());
        Shard { state, changes, counts, clock, compared }
    }

    /// Returns the block under `key`, which counts as used.
    #[inline]
    pub(in crate::cache) fn get<Q: Hash + Eq + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
    ) -> Option<Arc<CacheEntry<K>>>
    where
        K: Borrow<Q> + Eq,
    {
        let state = self.state.read(thread_number());
        let stripe_state = state.own();
        let Some(held) = state.find(hash, key) else {
            stripe_state.misses.more();
            return None;
        };
        let last_noted = held.last_noted();
        let known = last_noted == state.changes;
        if !known && held.has_expired_as(last_noted) {
            stripe_state.misses.more();
            return None;
        }
        let found = Arc::clone(held);
        stripe_state.hits.more();
        let known = known || {
            let noted = stripe_state.uses.note(held.slot());
            if noted && !state.exact {
                held.noted(state.changes);
            }
            noted
        };
        drop(state);
        if !known {
            self.drain_and_touch(hash, &found);
        }
        Some(found)
    }

    /// Starts to fetch what look-ups of these hashes read. None of the caller's code runs.
    pub(in crate::cache) fn prefetch(&self, hashes: &[u64]) {
        let state = self.state.read(thread_number());
        hashes.iter().for_each(|&hash| state.prefetch(hash));
    }

    /// Returns whether the shard has a block under `key`.
    pub(in crate::cache) fn contains<Q: Hash + Eq + ?Sized>(&self, hash: u64, key: &Q) -> bool
    where
        K: Borrow<Q> + Eq,
    {
        self.state.read(thread_number()).find(hash, key).is_some_and(|held| !held.has_expired())
    }

    /// Returns what `map` makes of the key of each block. It runs under the lock.
    pub(in crate::cache) fn map_keys<T>(&self, map: impl Fn(&K) -> T) -> Vec<T> {
        let state = self.state.read(thread_number());
        state.index.iter().map(|held| map(&held.key)).collect()
    }

    /// Locks the state for writing. The policy has learned of all earlier uses.
    #[inline]
    pub(in crate::cache) fn state(&self) -> StripedWriteGuard<'_, ShardState<K>, StripeState> {
        let mut writing = self.state.write();
        self.drain_uses(&mut writing);
        writing
    }

    /// Runs `change` on the leases before the policy learns of any use. A policy that panics
    /// therefore leaves no change of the leases undone.
    pub(in crate::cache) fn change_leases<R>(
        &self,
        change: impl FnOnce(&mut ShardLeases<K>) -> R,
    ) -> R {
        let mut writing = self.state.write();
        let changed = change(&mut writing.leases);
        self.drain_uses(&mut writing);
        changed
    }

    /// Drains the access buffers to the policy. A policy that has panicked is replaced first.
    #[inline]
    fn drain_uses(&self, writing: &mut StripedWriteGuard<'_, ShardState<K>, StripeState>) {
        let state = &mut **writing;
        let policy = state.policy.get_mut();
        if policy.has_panicked() {
            policy.replace_panicked(state.index.iter().map(|held| held.slot()));
        }
        policy.set_now(self.clock.now());
        if writing.had_readers() {
            self.drain_buffers(writing);
        }
    }

    #[inline(never)]
    fn drain_buffers(&self, writing: &mut StripedWriteGuard<'_, ShardState<K>, StripeState>) {
        let (state, stripe_states) = writing.parts();
        let policy = state.policy.get_mut();
        let mut has_changed = false;
        for stripe_state in stripe_states {
            stripe_state.uses.drain(|slot| {
                has_changed = true;
                policy.touch(slot);
            });
        }
        if has_changed {
            self.publish(state);
        }
    }

    /// Counts a commit, in a cache of `held` blocks. The clock advances by several at once.
    #[inline]
    pub(in crate::cache) fn count_commit(&self, state: &mut ShardState<K>, held: u64) {
        self.changes.insertions.more();
        state.uncounted += 1;
        if u64::from(state.uncounted) >= step(held) {
            self.clock.advance(mem::take(&mut state.uncounted).into());
        }
    }

    /// Publishes the ranks of the next victims after a change, if threads compare them.
    #[inline]
    pub(in crate::cache) fn publish(&self, state: &mut ShardState<K>) {
        if self.compared {
            state.policy.get_mut().publish(&self.changes.oldest);
        }
    }

    /// Drains the access buffers to the policy, and reports a use for which the buffer had no
    /// space.
    #[cold]
    #[inline(never)]
    fn drain_and_touch(&self, hash: u64, used: &Arc<CacheEntry<K>>) {
        let mut state = self.state();
        if state.index.find(hash, |held| Arc::ptr_eq(held, used)).is_some() {
            state.policy.get_mut().touch(used.slot());
            if !state.exact {
                used.noted(state.changes);
            }
            self.publish(&mut state);
        }
    }

    /// Returns the numbers of calls of `get` that found their key, and that did not.
    pub(in crate::cache) fn requested(&self) -> (u64, u64) {
        let add = |(hits, misses), stripe_state: &StripeState| {
            (hits + stripe_state.hits.get(), misses + stripe_state.misses.get())
        };
        self.state.stripes().fold((0, 0), add)
    }
}

/// The counts and the access buffer that look-ups write, for each stripe of the lock. Only a thread
/// that holds the stripe, or all stripes, writes it.
#[derive(Debug, Default)]
pub(in crate::cache) struct StripeState {
    hits: Count,
    misses: Count,
    uses: AccessBuffer,
}

/// What each insertion and each eviction of a shard changes, on one cache line. Threads write it
/// under the shard's lock, and read it without it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(in crate::cache) struct Changes {
    pub(in crate::cache) insertions: Count,
    pub(in crate::cache) evictions: Count,
    /// The published ranks of the next victims.
    pub(in crate::cache) oldest: Oldest,
}

/// The counts of a shard's other changes, of the same kind.
#[derive(Debug, Default)]
pub(in crate::cache) struct ChangeCounts {
    pub(in crate::cache) replacements: Count,
    pub(in crate::cache) removals: Count,
    pub(in crate::cache) sink_failures: Count,
    pub(in crate::cache) superseded: Count,
}

/// A figure with one writer at a time.
#[derive(Debug, Default)]
pub(in crate::cache) struct Count(AtomicU64);

impl Count {
    /// Adds one. The caller has the lock of the shard, or of the stripe that owns the figure, which
    /// saves an atomic read-modify-write.
    #[inline]
    pub(in crate::cache) fn more(&self) {
        // Relaxed: writers are ordered by the lock, and readers take the figure for itself.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the figure.
    pub(in crate::cache) fn get(&self) -> u64 {
        // Relaxed: see `more`.
        self.0.load(Ordering::Relaxed)
    }
}
