//! *Depot*: full and empty magazines of one class, and how large a new one is.
//!
//! Threads come with a whole magazine and go with a whole magazine. What comes from a thread that has ended may be
//! partly filled, and stands among the full ones.
//!
//! *Working set*: the least number of full magazines that were here at once since the last look was wanted by
//! nobody; so many go back to the source, and likewise for empty ones.
//!
//! *Size*: the more often a thread finds the lock taken, the larger new magazines get, so that threads come less
//! often; a whole interval without that lets them shrink.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

use super::magazine::{Chain, Magazine};

/// So many times the lock must have been found taken before magazines grow.
const CONTENTION_TO_GROW: u32 = 8;
/// Every how-manieth exchange looks at the clock.
const EXCHANGES_A_LOOK: u64 = 16;

/// What a class has beside the threads' magazines.
pub(crate) struct Depot<R> {
    lists: Mutex<Lists<R>>,
    class: usize,
    /// The least and the most rounds of a magazine.
    min: AtomicUsize,
    max: AtomicUsize,
    /// Rounds of a new magazine.
    capacity: AtomicUsize,
    round_bytes: AtomicU64,
    contention: AtomicU64,
    pub(crate) refills: AtomicU64,
}

/// Under the lock.
pub(crate) struct Lists<R> {
    full: Chain<R>,
    empty: Chain<R>,
    full_min: usize,
    empty_min: usize,
    exchanges: u64,
    /// Since magazines last grew.
    contended: u32,
    /// Since the last look.
    contended_lately: bool,
}

impl<R: Copy + Send> Depot<R> {
    pub(crate) fn new(class: usize, (min, max): (usize, usize), round_bytes: usize) -> Self {
        Depot {
            lists: Mutex::new(Lists {
                full: Chain::new(),
                empty: Chain::new(),
                full_min: 0,
                empty_min: 0,
                exchanges: 0,
                contended: 0,
                contended_lately: false,
            }),
            class,
            min: AtomicUsize::new(min),
            max: AtomicUsize::new(max),
            capacity: AtomicUsize::new(min),
            round_bytes: AtomicU64::new(round_bytes as u64),
            contention: AtomicU64::new(0),
            refills: AtomicU64::new(0),
        }
    }

    pub(crate) fn class(&self) -> usize {
        self.class
    }

    /// Other rounds from now on. While nobody has a magazine of this class.
    pub(crate) fn reshape(&self, round_bytes: u64, min: usize, max: usize) {
        // Relaxed, here and where they are read: ordered by the owners' locks, see `Core::rebind`.
        self.round_bytes.store(round_bytes, Ordering::Relaxed);
        self.min.store(min, Ordering::Relaxed);
        self.max.store(max, Ordering::Relaxed);
        self.capacity.store(min, Ordering::Relaxed);
    }

    /// Bytes that a round strands.
    pub(crate) fn round_bytes(&self) -> u64 {
        // Relaxed: see `reshape`.
        self.round_bytes.load(Ordering::Relaxed)
    }

    /// Rounds of a new magazine.
    pub(crate) fn capacity(&self) -> usize {
        // Relaxed: a hint.
        self.capacity.load(Ordering::Relaxed)
    }

    pub(crate) fn contention(&self) -> u64 {
        // Relaxed: a count.
        self.contention.load(Ordering::Relaxed)
    }

    /// Runs under the lock.
    fn with<T>(&self, run: impl FnOnce(&mut Lists<R>) -> T) -> T {
        let (mut lists, waited) = match self.lists.try_lock() {
            Some(lists) => (lists, false),
            None => (self.lists.lock(), true),
        };
        if waited {
            // Relaxed: counts and hints.
            self.contention.fetch_add(1, Ordering::Relaxed);
            lists.contended_lately = true;
            lists.contended += 1;
            if lists.contended >= CONTENTION_TO_GROW {
                lists.contended = 0;
                let capacity = self.capacity();
                // Relaxed: changed under the lock only.
                self.capacity.store(
                    (capacity + capacity / 2 + 1).min(self.max.load(Ordering::Relaxed)),
                    Ordering::Relaxed,
                );
            }
        }
        run(&mut lists)
    }

    /// A full one, for an empty one; and whether it is time to look at the clock.
    pub(crate) fn take_full(
        &self,
        empty: impl FnOnce() -> Option<Magazine<R>>,
    ) -> (Option<Magazine<R>>, bool) {
        self.with(|lists| {
            let Some(full) = lists.full.pop() else { return (None, false) };
            lists.full_min = lists.full_min.min(lists.full.len());
            if let Some(empty) = empty() {
                self.keep_empty(lists, empty);
            }
            (Some(full), lists.count_exchange())
        })
    }

    /// Takes a full one, if there is one, and gives an empty one, if there is one of this size.
    pub(crate) fn take_empty(
        &self,
        full: Option<Magazine<R>>,
        capacity: usize,
    ) -> (Option<Magazine<R>>, bool) {
        self.with(|lists| {
            if let Some(full) = full {
                lists.full.push(full);
            }
            let mut empty = lists.empty.pop();
            while empty.as_ref().is_some_and(|empty| empty.capacity() != capacity) {
                empty = lists.empty.pop();
            }
            lists.empty_min = lists.empty_min.min(lists.empty.len());
            (empty, lists.count_exchange())
        })
    }

    /// A single round, and if one full magazine less is here now, what was charged for it.
    pub(crate) fn pop_one(&self) -> Option<(R, Option<u64>)> {
        self.with(|lists| {
            let mut full = lists.full.pop()?;
            let round = full.pop();
            let emptied = if full.count() == 0 {
                let charge = full.charge();
                self.keep_empty(lists, full);
                lists.full_min = lists.full_min.min(lists.full.len());
                Some(charge)
            } else {
                lists.full.push(full);
                None
            };
            round.map(|round| (round, emptied))
        })
    }

    /// Keeps one that holds rounds.
    pub(crate) fn give_full(&self, full: Magazine<R>) {
        self.with(|lists| lists.full.push(full));
    }

    /// Keeps one without rounds.
    pub(crate) fn give_empty(&self, empty: Magazine<R>) {
        self.with(|lists| self.keep_empty(lists, empty));
    }

    fn keep_empty(&self, lists: &mut Lists<R>, empty: Magazine<R>) {
        if empty.capacity() == self.capacity() {
            lists.empty.push(empty);
        }
    }

    /// Everything, full and empty, onto `out`; returns how many full ones.
    pub(crate) fn take_all(&self, out: &mut Chain<R>) -> usize {
        self.with(|lists| {
            let full = lists.full.len();
            while let Some(magazine) = lists.full.pop().or_else(|| lists.empty.pop()) {
                out.push(magazine);
            }
            (lists.full_min, lists.empty_min) = (0, 0);
            full
        })
    }

    /// What nobody came for since the last look: full ones onto `out`, empty ones are freed. Returns how many full ones.
    pub(crate) fn take_idle(&self, out: &mut Chain<R>) -> usize {
        self.with(|lists| {
            let idle = lists.full_min.min(lists.full.len());
            out_of(&mut lists.full, idle, |magazine| out.push(magazine));
            let unused = lists.empty_min.min(lists.empty.len());
            out_of(&mut lists.empty, unused, drop);
            lists.full_min = lists.full.len();
            lists.empty_min = lists.empty.len();
            if !std::mem::take(&mut lists.contended_lately) {
                let capacity = self.capacity();
                // Relaxed: changed under the lock only.
                self.capacity.store(
                    (capacity - capacity / 4).max(self.min.load(Ordering::Relaxed)),
                    Ordering::Relaxed,
                );
            }
            idle
        })
    }

    /// The rounds that are here, onto `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        self.lists.lock().full.copy_into(out);
    }

    /// Full magazines, the rounds in them, and exchanges.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        let lists = self.lists.lock();
        (lists.full.len(), lists.full.rounds(), lists.exchanges)
    }

    /// Takes the lock and keeps it.
    #[cfg(not(loom))]
    pub(crate) fn seize(&self) {
        std::mem::forget(self.lists.lock());
    }

    /// Lets go of it.
    ///
    /// # Safety
    ///
    /// This thread, or the one that forked it, has taken it by `seize`.
    #[cfg(not(loom))]
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.lists.force_unlock() };
    }
}

fn out_of<R>(chain: &mut Chain<R>, count: usize, mut to: impl FnMut(Magazine<R>)) {
    for magazine in std::iter::from_fn(|| chain.pop()).take(count) {
        to(magazine);
    }
}

impl<R> Lists<R> {
    fn count_exchange(&mut self) -> bool {
        self.exchanges += 1;
        self.exchanges.is_multiple_of(EXCHANGES_A_LOOK)
    }
}
