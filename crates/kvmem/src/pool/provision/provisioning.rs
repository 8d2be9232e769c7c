//! *Provisioning*: a pool whose parts become ready one by one.
//!
//! The offsets of all parts that are not ready are allocated from the beginning, by *placeholders*.
//! When a part has been populated and registered, its placeholder is dropped, and its offsets are
//! free. The offset layer knows nothing of this, and no request is slower for it. A part that fails
//! keeps its placeholder until the pool ends.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::provisioner::{Provisioner, add_populated, add_registered, was_cancelled};
use crate::arena::{ArenaError, Populated};
use crate::offset::{AllocError, Allocation};
use crate::pool::blocks::PoolMemory;
use crate::pool::{Block, Cause, PoolError, Quarantined};
use crate::register::Outcome;
use crate::slab::ExtentCache;
use crate::sync::{AtomicU64, Ordering, SeqCounter};
use crate::trace::{event, span};

/// Offsets that are withheld from all requests.
pub(in crate::pool) struct Placeholder(Allocation);

impl Placeholder {
    /// Claims all of a fresh space, part by part, and returns the placeholders in order.
    pub(in crate::pool) fn all(
        space: &ExtentCache,
        part_bytes: u64,
    ) -> Result<Vec<Placeholder>, AllocError> {
        let (whole, rest) = (space.capacity() / part_bytes, space.capacity() % part_bytes);
        // No placeholder straddles a boundary, so each covers one part. Then only the rest is free.
        let mut placeholders = space.allocate_batch(part_bytes, whole as usize)?;
        if rest > 0 {
            placeholders.push(space.allocate_aligned(rest, 1)?);
        }
        placeholders.sort_unstable_by_key(|placeholder| placeholder.offset());
        Ok(placeholders.into_iter().map(|extent| Placeholder(extent.into_allocation())).collect())
    }

    fn len(&self) -> u64 {
        self.0.len()
    }
}

/// Keeps a quarantined range from being freed.
enum Withheld {
    Part(#[allow(dead_code, reason = "it is held")] Placeholder),
    /// A block that may be bad. Freeing it must not touch its bytes.
    Block(#[allow(dead_code, reason = "it is held")] Allocation),
}

#[derive(Default)]
pub(in crate::pool) struct State {
    /// Parts that are not ready, in order.
    unready: VecDeque<Placeholder>,
    quarantine: Vec<(Quarantined, Withheld)>,
    /// Bytes that are ready.
    ready: u64,
    /// Provisioning has ended.
    ended: bool,
    pub(in crate::pool) stopped: Option<String>,
    failure: Option<PoolError>,
    pub(in crate::pool) populated: Option<Populated>,
    pub(in crate::pool) registered: Option<Outcome>,
}

impl State {
    pub(in crate::pool) fn quarantined(&self) -> Vec<Quarantined> {
        self.quarantine.iter().map(|(what, _)| what.clone()).collect()
    }

    /// Returns the figures of the state. O(parts that are not ready).
    pub(in crate::pool) fn figures(&self) -> ProvisionFigures {
        let unready: u64 = self.unready.iter().map(Placeholder::len).sum();
        let bad: u64 =
            self.quarantine.iter().map(|(what, _)| what.range.end - what.range.start).sum();
        let ranges = (self.unready.len() + self.quarantine.len()) as u64;
        ProvisionFigures { ready: self.ready, withheld: unready + bad, quarantined: bad, ranges }
    }
}

/// Figures of the state, for threads that must not wait for its lock. All but the last are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pool) struct ProvisionFigures {
    /// Bytes that are ready.
    pub(in crate::pool) ready: u64,
    /// Bytes that are not ready or in quarantine.
    pub(in crate::pool) withheld: u64,
    /// Bytes in quarantine.
    pub(in crate::pool) quarantined: u64,
    /// Number of withheld ranges.
    pub(in crate::pool) ranges: u64,
}

/// The figures that were published last.
struct PublishedStats {
    seq: SeqCounter,
    ready: AtomicU64,
    withheld: AtomicU64,
    quarantined: AtomicU64,
    ranges: AtomicU64,
}

impl PublishedStats {
    fn new(state: &State) -> PublishedStats {
        let zero = || AtomicU64::new(0);
        let published = PublishedStats {
            seq: SeqCounter::new(),
            ready: zero(),
            withheld: zero(),
            quarantined: zero(),
            ranges: zero(),
        };
        published.publish(state);
        published
    }

    /// Publishes the figures. The caller has the lock of the state.
    fn publish(&self, state: &State) {
        let ProvisionFigures { ready, withheld, quarantined, ranges } = state.figures();
        // Relaxed, all stores: figures to report; `seq` makes them consistent.
        self.ready.store(ready, Ordering::Relaxed);
        self.withheld.store(withheld, Ordering::Relaxed);
        self.quarantined.store(quarantined, Ordering::Relaxed);
        self.ranges.store(ranges, Ordering::Relaxed);
    }

    fn look<T>(&self, and: impl Fn() -> T) -> (ProvisionFigures, T) {
        self.seq.look(|| {
            // Relaxed, all loads: `seq` repeats the reading if a change happened meanwhile.
            let figures = ProvisionFigures {
                ready: self.ready.load(Ordering::Relaxed),
                withheld: self.withheld.load(Ordering::Relaxed),
                quarantined: self.quarantined.load(Ordering::Relaxed),
                ranges: self.ranges.load(Ordering::Relaxed),
            };
            (figures, and())
        })
    }
}

/// The progress of provisioning a pool; shared with the thread that provisions it.
pub(in crate::pool) struct Provisioning {
    pub(in crate::pool) memory: Arc<PoolMemory>,
    pub(in crate::pool) provisioner: Provisioner,
    state: Mutex<State>,
    changed: Condvar,
    published: PublishedStats,
}

impl Provisioning {
    /// Makes the state of a pool. Without placeholders the whole pool is ready.
    pub(in crate::pool) fn new(
        memory: Arc<PoolMemory>,
        provisioner: Provisioner,
        placeholders: Vec<Placeholder>,
        capacity: u64,
    ) -> Provisioning {
        let ready = if placeholders.is_empty() { capacity } else { 0 };
        let state = State {
            ready,
            ended: placeholders.is_empty(),
            unready: placeholders.into(),
            ..State::default()
        };
        let published = PublishedStats::new(&state);
        Provisioning {
            memory,
            provisioner,
            state: Mutex::new(state),
            changed: Condvar::new(),
            published,
        }
    }

    pub(in crate::pool) fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no change half done: each is a single push or pop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, publishes it and wakes the waiting threads.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let done = self.published.seq.change(|| {
            let done = change(&mut state);
            self.published.publish(&state);
            done
        });
        self.changed.notify_all();
        done
    }

    /// Returns the figures that were published last, with the result of `and`, both of one moment
    /// and without the lock.
    pub(in crate::pool) fn look<T>(&self, and: impl Fn() -> T) -> (ProvisionFigures, T) {
        self.published.look(and)
    }

    /// Returns the bytes that are ready. It takes the lock: exactly these bytes are available then.
    pub(in crate::pool) fn ready(&self) -> u64 {
        self.state().ready
    }

    /// Records that the pool has grown or shrunk by ready bytes.
    pub(in crate::pool) fn resized(&self, from: u64, to: u64) {
        self.change(|state| state.ready = (state.ready + to).saturating_sub(from));
    }

    pub(in crate::pool) fn is_initializing(&self) -> bool {
        !self.state().ended
    }

    /// Waits until `bytes` are ready, until provisioning ends, or until `timeout` is over. Returns
    /// the bytes that are ready.
    pub(in crate::pool) fn wait(&self, bytes: u64, timeout: Duration) -> u64 {
        let start = Instant::now();
        let mut state = self.state();
        while state.ready < bytes && !state.ended {
            let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
            else {
                break;
            };
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ready
    }

    /// Provisions one part after the other, until all are ready or the work is cancelled.
    pub(in crate::pool) fn run(&self) {
        /// Records the end of the work, also after a panic.
        struct EndOnDrop<'a>(&'a Provisioning);
        impl Drop for EndOnDrop<'_> {
            fn drop(&mut self) {
                self.0.change(|state| {
                    state.ended = true;
                    if std::thread::panicking() {
                        state.stopped = Some("a registrar or a listener has panicked".to_owned());
                    }
                });
            }
        }
        let _end = EndOnDrop(self);
        while let Some(range) = self.next() {
            span!(INFO, "ready", pool = &*self.provisioner.name, ?range);
            match self.provisioner.provision(&self.memory, range) {
                Ok((populated, registered)) => self.change(|state| {
                    add_populated(&mut state.populated, populated);
                    add_registered(&mut state.registered, registered);
                    let placeholder = state.unready.pop_front();
                    state.ready += placeholder.as_ref().map_or(0, Placeholder::len);
                    // The offsets of the part become free.
                    drop(placeholder);
                }),
                Err((_, error)) if was_cancelled(&error) => {
                    let mut state = self.state();
                    state.stopped = Some(error.to_string());
                    state.failure.get_or_insert(error);
                    break;
                }
                Err((cause, error)) => self.keep_from_use(cause, error),
            }
        }
    }

    /// Returns the range of the part to provision next; `None` if none is left or the work was
    /// cancelled.
    fn next(&self) -> Option<Range<usize>> {
        let mut state = self.state();
        if self.provisioner.is_cancelled() && !state.unready.is_empty() {
            let total = state.ready + state.figures().withheld;
            let error = PoolError::from(ArenaError::Cancelled { done: state.ready, total });
            state.stopped = Some(error.to_string());
            state.failure.get_or_insert(error);
            return None;
        }
        let placeholder = state.unready.front()?;
        let Range { start, end } = placeholder.0.range();
        Some(start as usize..end as usize)
    }

    fn keep_from_use(&self, cause: Cause, error: PoolError) {
        self.change(|state| {
            let Some(placeholder) = state.unready.pop_front() else { return };
            let what = Quarantined { range: placeholder.0.range(), cause, why: error.to_string() };
            event!(
                WARN,
                pool = &*self.provisioner.name,
                range = ?what.range,
                cause = %what.cause,
                why = %what.why,
                "quarantine"
            );
            state.quarantine.push((what, Withheld::Part(placeholder)));
            state.failure.get_or_insert(error);
        });
    }

    /// Withholds a block from use until the pool ends.
    pub(in crate::pool) fn quarantine_block(&self, block: Block, why: String) {
        let range = block.range();
        let bytes = range.end - range.start;
        let what = Quarantined { range, cause: Cause::Quarantined, why };
        event!(
            WARN,
            pool = &*self.provisioner.name,
            range = ?what.range,
            cause = %what.cause,
            why = %what.why,
            "quarantine"
        );
        self.change(|state| {
            let untouched = block.into_extent().into_allocation();
            state.quarantine.push((what, Withheld::Block(untouched)));
            state.ready = state.ready.saturating_sub(bytes);
        });
    }

    /// Takes the error for which nothing is ready, or for which the work ended early.
    pub(in crate::pool) fn take_failure(&self) -> Option<PoolError> {
        let mut state = self.state();
        if state.ready == 0 || state.stopped.is_some() { state.failure.take() } else { None }
    }
}
