//! *Queue*: values and removals on their way to a lower tier, in order, bounded in bytes.
//!
//! A *change* of a key is a value to store, or a removal. A key has at most one change that waits:
//! a later one replaces it, in its place in the order. A writer takes the changes at the front, as
//! a *batch*, makes them to the tier, and reports that they are done.
//!
//! **One change of a key at a time.** While a writer makes a change of a key, or a thread
//! invalidates the key in the tier, no writer takes another change of it. Changes of one key
//! therefore reach the tier in the order in which they came here.
//!
//! **No older value is found.** The latest value of a key is, in this order: the change that waits;
//! the change that is being made; nothing, while the key is invalidated, or if the tier failed to
//! make a change; and else what the tier has. [`Queue::find`] answers in this order under the lock.
//!
//! **Bound.** The bytes of a value count from the moment it is put until its pin is dropped. A
//! removal has no bytes: their number is limited instead.

use super::stats::WriteBehindStats;
use crate::sync::{Condvar, SleepingMutex, SleepingMutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

/// The most removals that wait, of values that were dropped.
const MAX_REMOVALS: u64 = if cfg!(loom) { 2 } else { 1 << 16 };
/// With more keys that cannot be trusted, none is.
const MAX_UNTRUSTED: u64 = 1 << 16;
/// The most changes in a batch.
const BATCH: usize = if cfg!(loom) { 2 } else { 256 };
/// The part of the bound that a batch takes: room is made several times while a full queue is
/// written.
const PART_OF_BOUND: u64 = 4;

/// The bytes of a key.
pub(super) type KeyBytes = Arc<[u8]>;

/// A value in the queue. Its clones share the bytes.
pub(super) trait QueuedValue: Clone {
    /// Returns the bytes that it counts for.
    fn bytes(&self) -> u64;
    /// Returns whether a later change of its key has been made, or will be.
    fn is_superseded(&self) -> bool;
}

/// A change of a key that the tier has to make.
#[derive(Clone)]
pub(super) enum Change<V> {
    Store(V),
    Remove,
}

/// A change that a writer makes.
pub(super) struct Taken<V> {
    pub(super) key: KeyBytes,
    pub(super) change: Change<V>,
    number: u64,
}

/// What the queue knows about a key.
pub(super) enum Found<V> {
    /// The latest value.
    Value(V),
    /// There is no value, or none that may be used.
    Nothing,
    /// The tier has the latest value, if there is one.
    InTier,
}

/// The reason why the queue did not take a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum QueueError {
    #[error("the queue of evicted values is closed")]
    Closed,
    #[error("the queue of evicted values is full, and has too many keys to remove")]
    TooManyRemovals,
}

/// The result of a change that a writer made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Made {
    /// The tier has made it.
    Yes,
    /// The tier does not have the value, and has no older one.
    Removed,
    /// The tier may have an older value.
    Unknown,
}

struct KeyState<V> {
    waiting: Option<(u64, Change<V>)>,
    /// The change that a writer is making.
    current: Option<Change<V>>,
    /// Threads that invalidate the key in the tier, or are about to.
    invalidations: usize,
    /// The tier may have an older value.
    untrusted: bool,
}

impl<V> Default for KeyState<V> {
    fn default() -> Self {
        KeyState { waiting: None, current: None, invalidations: 0, untrusted: false }
    }
}

impl<V> KeyState<V> {
    fn is_blank(&self) -> bool {
        self.waiting.is_none()
            && self.current.is_none()
            && self.invalidations == 0
            && !self.untrusted
    }
}

struct QueueState<V> {
    keys: HashMap<KeyBytes, KeyState<V>>,
    /// The keys with a change that waits, by its number.
    order: BTreeMap<u64, KeyBytes>,
    /// The numbers of the changes that writers make, or whose values they still release.
    current: BTreeSet<u64>,
    next_number: u64,
    /// Removals that wait.
    removals: u64,
    /// Threads that clear the tier, or are about to.
    clears: usize,
    /// No key can be trusted, since the tier failed to clear.
    all_untrusted: bool,
    closed: bool,
    /// How often room was made.
    released: u64,
    stats: WriteBehindStats,
}

/// The queue. Threads put, writers take.
pub(super) struct Queue<V> {
    state: SleepingMutex<QueueState<V>>,
    /// There is a change to make, or the queue is closed.
    work: Condvar,
    /// A change was made, and room with it.
    made: Condvar,
    max_bytes: u64,
    when_full: WhenFull,
}

impl<V: QueuedValue> QueueState<V> {
    /// Returns whether a value of `bytes` bytes fits, in place of the one that waits under its key.
    fn fits(&self, key: &[u8], bytes: u64, max_bytes: u64) -> bool {
        let before = self.keys.get(key).and_then(|key| key.waiting.as_ref());
        let freed = match before {
            Some((_, Change::Store(value))) => value.bytes(),
            _ => 0,
        };
        let others = self.stats.bytes - freed;
        others == 0 || others.saturating_add(bytes) <= max_bytes
    }

    /// Makes `change` the one that waits under a key; returns the value that it replaces.
    fn enqueue(&mut self, key: &[u8], change: Change<V>) -> Option<V> {
        let (number, replaced) = match self.take_waiting(key) {
            Some((number, replaced)) => {
                // It keeps the place: a flush that waits for the one waits for the other.
                (number, replaced)
            }
            None => {
                self.next_number += 1;
                (self.next_number, None)
            }
        };
        match &change {
            Change::Store(value) => {
                self.stats.values += 1;
                self.stats.bytes += value.bytes();
                self.stats.max_bytes = self.stats.max_bytes.max(self.stats.bytes);
            }
            Change::Remove => self.removals += 1,
        }
        let key = KeyBytes::from(key);
        self.order.insert(number, Arc::clone(&key));
        self.keys.entry(key).or_default().waiting = Some((number, change));
        replaced
    }

    /// Removes the change that waits under a key; returns its number, and its value.
    fn take_waiting(&mut self, key: &[u8]) -> Option<(u64, Option<V>)> {
        let state = self.keys.get_mut(key)?;
        let (number, change) = state.waiting.take()?;
        self.order.remove(&number);
        let value = match change {
            Change::Store(value) => {
                self.stats.values -= 1;
                self.stats.bytes -= value.bytes();
                self.stats.replaced += 1;
                Some(value)
            }
            Change::Remove => {
                self.removals -= 1;
                None
            }
        };
        self.forget_blank(key);
        Some((number, value))
    }

    fn forget_blank(&mut self, key: &[u8]) {
        if self.keys.get(key).is_some_and(KeyState::is_blank) {
            self.keys.remove(key);
        }
    }

    fn set_untrusted(&mut self, key: &[u8], untrusted: bool) {
        let untrusted = untrusted && !self.all_untrusted;
        let Some(state) = self.keys.get_mut(key) else { return };
        let before = std::mem::replace(&mut state.untrusted, untrusted);
        self.stats.untrusted += u64::from(untrusted);
        self.stats.untrusted -= u64::from(before);
        if self.stats.untrusted > MAX_UNTRUSTED {
            self.all_untrusted = true;
            self.trust_keys();
        }
    }

    /// Forgets which keys are untrusted.
    fn trust_keys(&mut self) {
        self.keys.retain(|_, key| {
            key.untrusted = false;
            !key.is_blank()
        });
        self.stats.untrusted = 0;
    }

    /// Takes the changes at the front that can be made now.
    fn take(&mut self, max_bytes: u64) -> Vec<Taken<V>> {
        let mut batch = Vec::new();
        if self.clears > 0 {
            return batch;
        }
        let mut bytes = 0;
        for (&number, key) in &self.order {
            let Some(state) = self.keys.get_mut(key) else { continue };
            if state.current.is_some() || state.invalidations > 0 {
                continue;
            }
            let Some((_, change)) = &state.waiting else { continue };
            if let Change::Store(value) = change {
                if bytes > 0 && bytes + value.bytes() > max_bytes {
                    break;
                }
                bytes += value.bytes();
            }
            state.current = state.waiting.take().map(|(_, change)| change);
            batch.extend(state.current.iter().map(|change| Taken {
                key: key.clone(),
                change: change.clone(),
                number,
            }));
            if batch.len() == BATCH {
                break;
            }
        }
        for taken in &batch {
            self.order.remove(&taken.number);
            self.current.insert(taken.number);
            self.removals -= u64::from(matches!(taken.change, Change::Remove));
        }
        self.stats.batches += u64::from(!batch.is_empty());
        batch
    }

    /// Returns whether a change up to this number waits, is being made or has a value to release.
    fn has_before(&self, number: u64) -> bool {
        let first = self.order.keys().next().into_iter().chain(self.current.first()).min();
        first.is_some_and(|&first| first <= number)
    }
}

impl<V: QueuedValue> Queue<V> {
    pub(super) fn new(max_bytes: u64, when_full: WhenFull) -> Self {
        let state = QueueState {
            keys: HashMap::new(),
            order: BTreeMap::new(),
            current: BTreeSet::new(),
            next_number: 0,
            removals: 0,
            clears: 0,
            all_untrusted: false,
            closed: false,
            released: 0,
            stats: WriteBehindStats::default(),
        };
        Queue {
            state: SleepingMutex::new(state),
            work: Condvar::new(),
            made: Condvar::new(),
            max_bytes,
            when_full,
        }
    }

    fn state(&self) -> SleepingMutexGuard<'_, QueueState<V>> {
        // No code of others runs under the lock, except the drop of a pin.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        on: &Condvar,
        state: SleepingMutexGuard<'a, QueueState<V>>,
    ) -> SleepingMutexGuard<'a, QueueState<V>> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an evicted value, or drops it if there is no room and the queue is made so. `value` and
    /// what it replaces are dropped after the lock is released.
    pub(super) fn put(&self, key: &[u8], value: V) -> Result<(), QueueError> {
        let mut replaced = Replaced { queue: self, values: None };
        let mut waited = false;
        let mut state = self.state();
        state.stats.evicted += 1;
        loop {
            // Under the lock that orders the changes: a later change has come here, or will.
            if value.is_superseded() {
                state.stats.replaced += 1;
                return Ok(());
            }
            if state.closed {
                state.stats.rejected += 1;
                return Err(QueueError::Closed);
            }
            if state.fits(key, value.bytes(), self.max_bytes) {
                replaced.values = state.enqueue(key, Change::Store(value.clone()));
                break;
            }
            match self.when_full {
                WhenFull::Wait => {
                    state.stats.waits += u64::from(!waited);
                    waited = true;
                    state = Self::wait(&self.made, state);
                }
                WhenFull::Drop => {
                    let replaces = state.keys.get(key).is_some_and(|key| key.waiting.is_some());
                    if !replaces && state.removals >= MAX_REMOVALS {
                        state.stats.rejected += 1;
                        return Err(QueueError::TooManyRemovals);
                    }
                    state.stats.dropped += 1;
                    replaced.values = state.enqueue(key, Change::Remove);
                    break;
                }
            }
        }
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Returns the next changes to make, and waits for one. `None`: the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Taken<V>>> {
        let mut state = self.state();
        loop {
            let batch = state.take(self.max_bytes / PART_OF_BOUND);
            if !batch.is_empty() {
                return Some(batch);
            }
            if state.closed && state.order.is_empty() {
                return None;
            }
            state = Self::wait(&self.work, state);
        }
    }

    /// Reports that the changes of a batch are made, with the result of each. Drops the values.
    pub(super) fn done(&self, batch: Vec<Taken<V>>, made: &[Made]) {
        let mut bytes = 0;
        let mut values = 0;
        {
            let mut state = self.state();
            for (taken, made) in batch.iter().zip(made) {
                if let Some(key) = state.keys.get_mut(&taken.key) {
                    // The batch has another clone: no user code runs here.
                    key.current = None;
                }
                state.set_untrusted(&taken.key, *made == Made::Unknown);
                state.forget_blank(&taken.key);
                if let Change::Store(value) = &taken.change {
                    values += 1;
                    bytes += value.bytes();
                    if *made == Made::Yes {
                        state.stats.written += 1;
                        state.stats.written_bytes += value.bytes();
                    } else {
                        state.stats.failed += 1;
                    }
                }
            }
        }
        // Also if the drop of a key panics.
        let numbers = batch.iter().map(|taken| taken.number).collect();
        let _room = Room { queue: self, numbers, bytes, values };
        drop(batch);
    }

    /// Removes the change of a key that waits, and calls `invalidate` while no change of the key is
    /// made. It returns whether the tier has no value.
    pub(super) fn invalidate<E>(
        &self,
        key: &[u8],
        invalidate: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut replaced = Replaced { queue: self, values: None };
        let mut state = self.state();
        replaced.values = state.take_waiting(key).and_then(|(_, value)| value);
        state.keys.entry(key.into()).or_default().invalidations += 1;
        while state.keys.get(key).is_some_and(|state| state.current.is_some()) {
            state = Self::wait(&self.made, state);
        }
        drop(state);
        drop(replaced);
        let mut held = Invalidation { queue: self, key, removed: false };
        let result = invalidate();
        held.removed = result.is_ok();
        result
    }

    /// Removes all changes that wait, and calls `clear` while none is made.
    pub(super) fn clear<E>(&self, clear: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut replaced = Replaced { queue: self, values: Vec::new() };
        let mut state = self.state();
        let keys: Vec<KeyBytes> = state.order.values().cloned().collect();
        for key in &keys {
            replaced.values.extend(state.take_waiting(key).and_then(|(_, value)| value));
        }
        state.clears += 1;
        // Without changes to make, the batches in flight end one by one.
        while !state.current.is_empty() {
            state = Self::wait(&self.made, state);
        }
        drop(state);
        let mut held = Clearing { queue: self, cleared: false };
        drop(replaced);
        let result = clear();
        held.cleared = result.is_ok();
        result
    }

    /// Returns what the queue knows about each key, under one lock.
    pub(super) fn find<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Vec<Found<V>> {
        let state = self.state();
        let untrusted = state.all_untrusted || state.clears > 0;
        keys.map(|key| {
            let known = state.keys.get(key);
            let change = known.and_then(|key| {
                key.waiting.as_ref().map(|(_, change)| change).or(key.current.as_ref())
            });
            match change {
                Some(Change::Store(value)) => Found::Value(value.clone()),
                Some(Change::Remove) => Found::Nothing,
                None if untrusted => Found::Nothing,
                None if known.is_some_and(|key| key.untrusted || key.invalidations > 0) => {
                    Found::Nothing
                }
                None => Found::InTier,
            }
        })
        .collect()
    }

    /// Counts values that were fetched out of the queue.
    pub(super) fn count_hits(&self, hits: u64) {
        self.state().stats.hits += hits;
    }

    /// Counts a panic of the tier in a writer.
    pub(super) fn count_panic(&self) {
        self.state().stats.panics += 1;
    }

    /// Waits until all changes that were put before are made and their values released.
    pub(super) fn flush(&self) {
        let mut state = self.state();
        let number = state.next_number;
        while state.has_before(number) {
            state = Self::wait(&self.made, state);
        }
    }

    /// Waits as [`flush`](Self::flush) does, or until `deadline` has passed. Returns whether all
    /// changes are made.
    pub(super) fn flush_until(&self, deadline: std::time::Instant) -> bool {
        let mut state = self.state();
        let number = state.next_number;
        while state.has_before(number) {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.made.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Queues a removal of each key whose value in the tier is unknown.
    pub(super) fn retry_removals(&self) {
        let mut state = self.state();
        let untrusted = state.keys.iter().filter(|(_, key)| key.untrusted && key.waiting.is_none());
        let keys: Vec<KeyBytes> = untrusted.map(|(key, _)| key.clone()).collect();
        for key in &keys {
            let none = state.enqueue(key, Change::Remove);
            debug_assert!(none.is_none(), "nothing waited");
        }
        drop(state);
        self.work.notify_all();
    }

    /// Lets a removal take the place of each value that waits and is `unwanted`.
    pub(super) fn discard(&self, unwanted: impl Fn(&V) -> bool) {
        let mut replaced = Replaced { queue: self, values: Vec::new() };
        let mut state = self.state();
        let waits = |(key, of): (&KeyBytes, &KeyState<V>)| match &of.waiting {
            Some((_, Change::Store(value))) if unwanted(value) => Some(Arc::clone(key)),
            _ => None,
        };
        let keys: Vec<KeyBytes> = state.keys.iter().filter_map(waits).collect();
        for key in &keys {
            replaced.values.extend(state.enqueue(key, Change::Remove));
        }
        drop(state);
        self.work.notify_all();
    }

    /// Waits until room was made more than `seen` times, and returns how often it was. `None`: the
    /// queue has no value, and no room was made since.
    pub(super) fn wait_for_release(&self, seen: u64) -> Option<u64> {
        let mut state = self.state();
        while state.released <= seen {
            if state.stats.values == 0 {
                return None;
            }
            state = Self::wait(&self.made, state);
        }
        Some(state.released)
    }

    /// Ends the queue: it takes no more values, and writers end once it is empty. With `discard`,
    /// removals take the place of the values that wait.
    pub(super) fn close(&self, discard: bool) {
        self.state().closed = true;
        if discard {
            self.discard(|_| true);
        }
        self.work.notify_all();
        self.made.notify_all();
    }

    /// Returns each key whose latest change is in the queue, and whether the change is a value.
    pub(super) fn changes(&self) -> Vec<(KeyBytes, bool)> {
        let state = self.state();
        let change = |(key, of): (&KeyBytes, &KeyState<V>)| {
            let latest = of.waiting.as_ref().map(|(_, change)| change).or(of.current.as_ref());
            latest.map(|change| (Arc::clone(key), matches!(change, Change::Store(_))))
        };
        state.keys.iter().filter_map(change).collect()
    }

    pub(super) fn stats(&self) -> WriteBehindStats {
        let state = self.state();
        let untrusted = if state.all_untrusted { u64::MAX } else { state.stats.untrusted };
        WriteBehindStats { removals: state.removals, untrusted, ..state.stats }
    }
}

/// Values that left the queue before a writer took them. Their room is free when this is dropped,
/// which is after the lock is released.
struct Replaced<'a, V: QueuedValue, I: IntoIterator<Item = V> + Default> {
    queue: &'a Queue<V>,
    values: I,
}

impl<V, I> Drop for Replaced<'_, V, I>
where
    V: QueuedValue,
    I: IntoIterator<Item = V> + Default,
{
    fn drop(&mut self) {
        if std::mem::take(&mut self.values).into_iter().map(drop).count() > 0 {
            self.queue.state().released += 1;
            self.queue.made.notify_all();
        }
    }
}

/// The room of a batch, which is free when this is dropped. A flush ends after that, so that it
/// leaves no value in memory.
struct Room<'a, V: QueuedValue> {
    queue: &'a Queue<V>,
    numbers: Vec<u64>,
    bytes: u64,
    values: u64,
}

impl<V: QueuedValue> Drop for Room<'_, V> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        for number in &self.numbers {
            state.current.remove(number);
        }
        state.stats.bytes -= self.bytes;
        state.stats.values -= self.values;
        state.released += 1;
        drop(state);
        self.queue.made.notify_all();
        // Changes of these keys may have come meanwhile, while other writers waited.
        self.queue.work.notify_all();
    }
}

/// Keeps writers from a key. If it is dropped before the tier has removed the value, also by a
/// panic, the key is not trusted any more.
struct Invalidation<'a, V: QueuedValue> {
    queue: &'a Queue<V>,
    key: &'a [u8],
    removed: bool,
}

impl<V: QueuedValue> Drop for Invalidation<'_, V> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        if let Some(key) = state.keys.get_mut(self.key) {
            key.invalidations -= 1;
        }
        state.set_untrusted(self.key, !self.removed);
        state.forget_blank(self.key);
        drop(state);
        self.queue.work.notify_all();
    }
}

/// Keeps writers from all keys while the tier clears.
struct Clearing<'a, V: QueuedValue> {
    queue: &'a Queue<V>,
    cleared: bool,
}

impl<V: QueuedValue> Drop for Clearing<'_, V> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.clears -= 1;
        if self.cleared {
            state.all_untrusted = false;
            state.trust_keys();
        } else {
            state.all_untrusted = true;
        }
        drop(state);
        self.queue.work.notify_all();
    }
}

/// What happens to an evicted value that the queue has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// The thread that evicts it waits until a writer has made room.
    #[default]
    Wait,
    /// The value is not written, and a value that the tier has under the key is removed.
    Drop,
}

/// What happens to values in the queue when the [`WriteBehind`](super::WriteBehind) is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDrop {
    /// They are written; the drop waits for it.
    #[default]
    Write,
    /// They are not written. The drop waits until the tier has removed older values of their keys.
    Discard,
}

/// How a queue is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueOptions {
    pub(super) max_bytes: u64,
    pub(super) when_full: WhenFull,
    pub(super) writers: usize,
    pub(super) on_drop: OnDrop,
}
