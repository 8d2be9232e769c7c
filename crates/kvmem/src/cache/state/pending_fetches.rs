//! *Pending fetches*: reads of a lower tier that are in progress, or are to be, by key.
//!
//! All that want the value of a key share one read of it. A *handle* is one interest in a fetch: it
//! is counted, and a fetch that no thread has started ends with its last handle.
//!
//! A fetch goes through three stages. *Waiting*: any thread may start it, which is the one that
//! waits for the value first, or a thread in the background. *Reading*: the thread that started it
//! takes a lease of the key, reads, and commits. *Done*: the value, pinned, or nothing.
//!
//! **Sharing.** A value may have changed since the lease was taken: then the fetch ends
//! without a value, although the tier may have the latest one by now. A thread therefore joins a
//! fetch only if its lease is not broken so far, and begins another one otherwise.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::task::Waker;
use std::time::Instant;

use crate::sync::{Condvar, SleepingMutex, SleepingMutexGuard};

/// The most values that a thread in the background reads at once: the first of many are there
/// before the last.
const BATCH: usize = if cfg!(loom) { 1 } else { 64 };

/// The number of a fetch.
pub(in crate::cache) type FetchId = u64;

enum Stage<V> {
    Waiting,
    /// With the number of the lease, once it is taken.
    Reading(Option<u64>),
    Done(Option<V>),
}

struct PendingFetch<K, V> {
    key: K,
    stage: Stage<V>,
    handles: usize,
    wakers: Vec<Waker>,
}

struct FetchesState<K, V> {
    fetches: HashMap<FetchId, PendingFetch<K, V>>,
    /// The fetch that the next thread may join.
    by_key: HashMap<K, FetchId>,
    next: FetchId,
    /// Fetches for threads in the background. Some may have been started or cancelled since.
    background: VecDeque<FetchId>,
    /// Threads in the background, and how many of them wait for work.
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The fetches of a cache.
pub(in crate::cache) struct PendingFetches<K, V> {
    state: SleepingMutex<FetchesState<K, V>>,
    /// A fetch is done.
    done: Condvar,
    /// A fetch waits for the background, or the cache has ended.
    work: Condvar,
    max_threads: usize,
}

impl<K, V> PendingFetches<K, V> {
    /// Returns an empty table, for up to `max_threads` threads in the background.
    pub(in crate::cache) fn new(max_threads: usize) -> Self {
        let state = FetchesState {
            fetches: HashMap::new(),
            by_key: HashMap::new(),
            next: 0,
            background: VecDeque::new(),
            threads: 0,
            idle: 0,
            closed: false,
        };
        PendingFetches {
            state: SleepingMutex::new(state),
            done: Condvar::new(),
            work: Condvar::new(),
            max_threads,
        }
    }

    fn state(&self) -> SleepingMutexGuard<'_, FetchesState<K, V>> {
        // User code under the lock is `Hash`, `Eq` and `Clone` of the key alone.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the threads in the background.
    pub(in crate::cache) fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
    }
}

impl<K: Hash + Eq + Clone, V: Clone> PendingFetches<K, V> {
    /// Returns a handle of the fetch of each key: of the one there is, if `is_current` says that
    /// its lease is not broken, or of a new one, which waits.
    pub(in crate::cache) fn join<'a>(
        &self,
        keys: impl Iterator<Item = &'a K>,
        is_current: impl Fn(&K, u64) -> bool,
    ) -> Vec<FetchId>
    where
        K: 'a,
    {
        let mut ids = Vec::new();
        let mut locked = self.state();
        let state = &mut *locked;
        let mut join = |key: &K| {
            if let Some(id) = state.by_key.get(key)
                && let Some(fetch) = state.fetches.get_mut(id)
            {
                let current = match &fetch.stage {
                    Stage::Reading(Some(lease)) => is_current(key, *lease),
                    // The lease is yet to be taken.
                    Stage::Waiting | Stage::Reading(None) => true,
                    Stage::Done(_) => false,
                };
                if current {
                    fetch.handles += 1;
                    ids.push(*id);
                    return;
                }
            }
            let (key, listed) = (key.clone(), key.clone());
            state.next += 1;
            let id = state.next;
            let (stage, wakers) = (Stage::Waiting, Vec::new());
            state.fetches.insert(id, PendingFetch { key, stage, handles: 1, wakers });
            ids.push(id);
            state.by_key.insert(listed, id);
        };
        let joined = catch_unwind(AssertUnwindSafe(|| keys.for_each(&mut join)));
        drop(locked);
        if let Err(panic) = joined {
            // A handle that nobody has would keep a value pinned for ever.
            drop(self.leave(&ids, false));
            resume_unwind(panic);
        }
        ids
    }

    /// Starts those of the fetches that no thread has started; returns them with their keys. The
    /// caller [finishes](Self::finish) each.
    pub(in crate::cache) fn start(&self, ids: &[FetchId]) -> Vec<(FetchId, K)> {
        self.state().start(ids.iter().copied())
    }

    /// Records the lease of a fetch that was started.
    pub(in crate::cache) fn leased(&self, id: FetchId, lease: u64) {
        if let Some(fetch) = self.state().fetches.get_mut(&id) {
            fetch.stage = Stage::Reading(Some(lease));
        }
    }

    /// Ends a fetch that was started.
    pub(in crate::cache) fn finish(&self, id: FetchId, value: Option<V>) {
        // Dropped after the lock is released.
        let _ended;
        let mut state = self.state();
        let FetchesState { fetches, by_key, .. } = &mut *state;
        let Some(fetch) = fetches.get_mut(&id) else { return };
        fetch.stage = Stage::Done(value);
        let wakers = std::mem::take(&mut fetch.wakers);
        let unused = fetch.handles == 0;
        let unlist = || FetchesState::<K, V>::unlist(by_key, &fetch.key, id);
        let unlisted = catch_unwind(AssertUnwindSafe(unlist));
        _ended = if unused { state.fetches.remove(&id) } else { None };
        drop(state);
        self.done.notify_all();
        for waker in wakers {
            // A waker that panics must not keep other fetches from ending. The panic hook has
            // reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        drop(unlisted.unwrap_or_else(|panic| resume_unwind(panic)));
    }

    /// Waits until all of the fetches are done.
    pub(in crate::cache) fn wait(&self, ids: &[FetchId]) {
        let mut state = self.state();
        while state.first_pending(ids).is_some() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all of the fetches are done, or `deadline` has passed. Returns whether they are
    /// done.
    pub(in crate::cache) fn wait_until(&self, ids: &[FetchId], deadline: Instant) -> bool {
        let mut state = self.state();
        while state.first_pending(ids).is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Returns whether all of the fetches are done.
    pub(in crate::cache) fn are_done(&self, ids: &[FetchId]) -> bool {
        self.state().first_pending(ids).is_none()
    }

    /// Returns whether all of the fetches are done. Otherwise `waker` is called when that may be
    /// so.
    pub(in crate::cache) fn poll(&self, ids: &[FetchId], waker: &Waker) -> bool {
        let mut state = self.state();
        let Some(id) = state.first_pending(ids) else { return true };
        if let Some(fetch) = state.fetches.get_mut(&id)
            && !fetch.wakers.iter().any(|other| other.will_wake(waker))
        {
            fetch.wakers.push(waker.clone());
        }
        false
    }

    /// Gives the handles up; returns the value of each fetch that is done with one. A fetch that no
    /// thread has started, and that has no other handle, is cancelled, unless `keep` is set.
    pub(in crate::cache) fn leave(&self, ids: &[FetchId], keep: bool) -> Vec<Option<V>> {
        // Dropped after the lock is released.
        let (mut ended, mut unlisted) = (Vec::new(), Vec::new());
        let mut values = Vec::with_capacity(ids.len());
        let mut state = self.state();
        for &id in ids {
            let mut value = None;
            if let Some(fetch) = state.fetches.get_mut(&id) {
                fetch.handles -= 1;
                let (unused, mut over) = (fetch.handles == 0, false);
                match &fetch.stage {
                    Stage::Done(done) => (value, over) = (done.clone(), true),
                    Stage::Waiting => over = !keep,
                    Stage::Reading(_) => {}
                }
                if unused && over {
                    ended.extend(state.fetches.remove_entry(&id));
                }
            }
            values.push(value);
        }
        // Code of the caller runs from here on, when all handles are released.
        for (id, fetch) in &ended {
            unlisted.extend(FetchesState::<K, V>::unlist(&mut state.by_key, &fetch.key, *id));
        }
        drop(state);
        drop((ended, unlisted));
        values
    }

    /// Leaves fetches to threads in the background. Returns true if there should be one more: the
    /// caller starts it, or says that it [cannot](Self::thread_ended).
    pub(in crate::cache) fn submit(&self, ids: &[FetchId]) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let waits = |id: &&FetchId| {
            state.fetches.get(id).is_some_and(|fetch| matches!(fetch.stage, Stage::Waiting))
        };
        state.background.extend(ids.iter().filter(waits));
        // A thread that was woken counts as idle until it runs.
        let more = state.background.len() > state.idle
            && state.threads < self.max_threads
            && !state.closed;
        state.threads += usize::from(more);
        self.work.notify_one();
        more
    }

    /// Records that a thread in the background has ended. Returns whether there is no other one.
    pub(in crate::cache) fn thread_ended(&self) -> bool {
        let mut state = self.state();
        state.threads -= 1;
        state.threads == 0
    }

    /// Starts the next fetches for a thread in the background, and waits for one; returns them with
    /// their keys. `None`: the cache has ended.
    pub(in crate::cache) fn next_batch(&self) -> Option<Vec<(FetchId, K)>> {
        let mut state = self.state();
        loop {
            let queued = BATCH.min(state.background.len());
            let ids: Vec<FetchId> = state.background.drain(..queued).collect();
            let batch = state.start(ids.into_iter());
            if batch.is_empty() && !state.background.is_empty() {
                continue;
            }
            if !batch.is_empty() {
                if !state.background.is_empty() {
                    self.work.notify_one();
                }
                return Some(batch);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Returns the number of fetches, for tests.
    #[cfg(all(test, loom))]
    pub(super) fn len(&self) -> usize {
        let state = self.state();
        assert!(state.by_key.len() <= state.fetches.len());
        state.fetches.len()
    }
}

impl<K: Hash + Eq + Clone, V> FetchesState<K, V> {
    /// Starts those of the fetches that wait; returns them with their keys.
    fn start(&mut self, ids: impl Iterator<Item = FetchId>) -> Vec<(FetchId, K)> {
        let waits = |id: FetchId| {
            let fetch = self.fetches.get(&id)?;
            matches!(fetch.stage, Stage::Waiting).then(|| (id, fetch.key.clone()))
        };
        let mut started: Vec<(FetchId, K)> = ids.filter_map(waits).collect();
        // Only now: a key whose `clone` panics leaves all of them waiting.
        started.retain(|(id, _)| {
            let Some(fetch) = self.fetches.get_mut(id) else { return false };
            let waits = matches!(fetch.stage, Stage::Waiting);
            fetch.stage = Stage::Reading(None);
            waits
        });
        started
    }

    /// Keeps threads from joining a fetch. Returns the key that the table had, for the caller to
    /// drop without the lock.
    fn unlist(by_key: &mut HashMap<K, FetchId>, key: &K, id: FetchId) -> Option<K> {
        let listed = by_key.get(key) == Some(&id);
        listed.then(|| by_key.remove_entry(key)).flatten().map(|(key, _)| key)
    }

    fn first_pending(&self, ids: &[FetchId]) -> Option<FetchId> {
        let is_done = |id: &FetchId| match self.fetches.get(id) {
            Some(fetch) => matches!(fetch.stage, Stage::Done(_)),
            None => true,
        };
        ids.iter().copied().find(|id| !is_done(id))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
