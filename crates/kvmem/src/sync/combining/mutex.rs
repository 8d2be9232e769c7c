//! *Combining mutex*: the lock, and the two ways through it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::time::Duration;

use super::super::backoff::{Backoff, NAP};
use super::super::checker::{AtomicU32, Instant, MODELLED, Ordering, hint};
use super::super::statics::const_new;
use super::super::witness::Witness;
use super::slots::{Combined, Served, Slots, Words};
use crate::sys;

/// The lock is free, and the slots are closed.
const UNLOCKED: u32 = 0;
const HELD: u32 = 1;
/// The lock is free, and the slots are open.
const OPEN: u32 = 2;

/// Bit of `used`: the slots are open.
const IS_OPEN: u32 = 1 << 31;
/// Bit of `used`: the data are elsewhere. Set and cleared while the slots are closed.
const IS_DIVERTED: u32 = 1 << 30;

/// Waits for the lock after which the slots are opened.
pub(super) const WAITS: u32 = if MODELLED { 1 } else { 16 };
/// Operations after which the slots are closed if nothing was published, or if they took longer
/// than [`PERIOD_TIME`]: the lock was free most of the time.
pub(super) const PERIOD: u32 = if MODELLED { 2 } else { 64 };
const PERIOD_TIME: Duration = Duration::from_micros(if UNOPTIMIZED { 4096 } else { 256 });
/// What each nap adds to [`PERIOD_TIME`]: some thread sleeps for a tenth of the time, because a nap
/// takes about twice as long as it should.
const TIME_OF_NAP: Duration = NAP.saturating_mul(20);
/// Waits of a period of a lock whose slots stay closed.
const PERIOD_OF_WAITS: u32 = if MODELLED { 1 } else { PERIOD };
/// Operations take ten times as long.
const UNOPTIMIZED: bool = cfg!(debug_assertions);
/// Useful periods, less the others, after which the contention counts as lasting.
pub(super) const LASTING: u32 = if MODELLED { 1 } else { 16 };
/// Attempts to close the slots of a lock under lasting contention: some hundred microseconds, in
/// which a thread wakes that sleeps before its answer.
const CLOSE_TRIES: u32 = if MODELLED { 1 } else { 1024 };
/// Pauses from one look at the answer to the next: each look takes the line from the holder, which
/// then waits for it again.
const PAUSES: u32 = if MODELLED { 0 } else { 4 };
/// Looks at the answer, before the thread looks at the lock.
const LOOK_AFTER: u32 = if MODELLED { 0 } else { 20 };
/// Looks at the answer from one look at the lock to the next.
const LOOK_EVERY: u32 = if MODELLED { 1 } else { 4 };
/// How often in a row the thread finds the lock free before it takes it.
const PATIENCE: u32 = if MODELLED { 1 } else { 3 };

/// What threads read before they take the lock. On a line that is written when the slots are opened
/// and closed, when a slot is used first, and when the owner changes.
#[repr(C, align(128))]
struct Calm {
    /// 0, or [`IS_OPEN`] and a bit for each slot that may hold something, or [`IS_DIVERTED`].
    used: AtomicU32,
    /// The processor whose threads take the lock while the slots are open.
    owner: AtomicU32,
    slots: OnceLock<Box<Slots>>,
}

/// How busy the lock is. Changed under the lock.
struct Load {
    /// Waits while the slots are closed; operations since `since` while they are open.
    count: u32,
    /// How often threads slept before the lock, since `since`.
    naps: u32,
    /// Requests and notes served since `since`.
    served: u32,
    /// Useful periods, less the others.
    useful: u32,
    since: Option<Instant>,
}

impl Load {
    /// Returns whether the time since the count began is at most `limit`. A model has no time.
    fn is_within(&self, limit: Duration) -> bool {
        MODELLED || self.since.is_some_and(|since| since.elapsed() <= limit)
    }

    /// Starts to count.
    fn restart(&mut self) {
        let since = if MODELLED { None } else { Some(Instant::now()) };
        *self = Load { count: 0, naps: 0, served: 0, since, ..*self };
    }

    /// Ends a period, which was useful if it was also short; returns whether the contention lasts.
    fn end_period(&mut self, useful: bool) -> bool {
        let useful = useful && self.is_within(PERIOD_TIME + TIME_OF_NAP * self.naps);
        self.restart();
        self.useful = if useful { self.useful + 1 } else { self.useful.saturating_sub(1) };
        let lasts = self.useful >= LASTING;
        if lasts {
            self.useful = 0;
        }
        lasts
    }

    /// Counts a wait for a lock whose slots are closed; returns whether there were many.
    fn wait(&mut self) -> bool {
        self.count += 1;
        self.count >= WAITS
    }
}

/// A mutex whose holder serves the requests of other threads.
#[repr(C, align(128))]
pub(crate) struct CombiningMutex<T> {
    word: AtomicU32,
    /// The word before a fork, plus one; 0 if the lock is not held over a fork.
    over_fork: AtomicU32,
    value: UnsafeCell<T>,
    load: UnsafeCell<Load>,
    witness: Witness,
    calm: Calm,
}

// SAFETY: one guard at a time lends the value as `&mut T`, to any thread, hence `T: Send`.
unsafe impl<T: Send> Sync for CombiningMutex<T> {}
// SAFETY: the mutex owns the value.
unsafe impl<T: Send> Send for CombiningMutex<T> {}

impl Load {
    const_new! {
        const fn new() -> Self {
            Load { count: 0, naps: 0, served: 0, useful: 0, since: None }
        }
    }
}

impl Calm {
    const_new! {
        const fn new() -> Self {
            Calm { used: AtomicU32::new(0), owner: AtomicU32::new(0), slots: OnceLock::new() }
        }
    }
}

impl<T> CombiningMutex<T> {
    const_new! {
        /// Makes a free lock, whose slots are closed.
        pub(crate) const fn new(value: T) -> Self {
            CombiningMutex {
                word: AtomicU32::new(UNLOCKED),
                over_fork: AtomicU32::new(0),
                value: UnsafeCell::new(value),
                load: UnsafeCell::new(Load::new()),
                witness: Witness::new(),
                calm: Calm::new(),
            }
        }
    }
}

impl<T> CombiningMutex<T> {
    /// Takes the lock if it is free and the slots are closed.
    #[inline(always)]
    pub(crate) fn try_lock_closed(&self) -> Option<ClosedGuard<'_, T>> {
        // Relaxed: a hint; the word decides.
        if self.calm.used.load(Ordering::Relaxed) != 0 {
            return None;
        }
        match self.swap() {
            UNLOCKED => {
                self.witness.touch();
                Some(ClosedGuard { mutex: self })
            }
            word => {
                if word == OPEN {
                    // Release pairs with the Acquire in `swap`: it passes on what the last holder
                    // released.
                    self.word.store(OPEN, Ordering::Release);
                }
                None
            }
        }
    }

    /// Takes the lock if it is free; returns the word before.
    ///
    /// In a model, a failed attempt stores nothing; see
    /// [`RawLock::try_acquire`](crate::sync::lock::RawLock::try_acquire).
    #[inline(always)]
    fn swap(&self) -> u32 {
        // Acquire, all, pairs with the Release of the last holder: its writes are visible. Relaxed:
        // on failure nothing was taken.
        if MODELLED {
            let taken = |word: &u32| {
                let (taken, failed) = (Ordering::Acquire, Ordering::Relaxed);
                self.word.compare_exchange(*word, HELD, taken, failed).is_ok()
            };
            [UNLOCKED, OPEN].into_iter().find(taken).unwrap_or(HELD)
        } else {
            self.word.swap(HELD, Ordering::Acquire)
        }
    }

    /// Takes the lock if it is free.
    fn try_lock(&self) -> Option<CombiningGuard<'_, T>> {
        let word = self.swap();
        (word != HELD).then(|| {
            self.witness.touch();
            CombiningGuard { mutex: self, word, contended: false }
        })
    }

    /// Takes the lock; waits while another thread holds it.
    #[cold]
    pub(crate) fn lock(&self) -> CombiningGuard<'_, T> {
        let mut backoff = Backoff::default();
        let mut waited = false;
        loop {
            if let Some(mut guard) = self.try_lock() {
                let load = guard.load();
                load.naps = load.naps.saturating_add(backoff.naps());
                guard.contended = waited && !guard.is_open() && guard.load().wait();
                return guard;
            }
            waited = true;
            // Relaxed: only a hint when to try.
            while self.word.load(Ordering::Relaxed) == HELD {
                backoff.pause();
            }
        }
    }

    /// Returns whether slots are open. If it returns false, the caller sees what was published when
    /// the slots were closed, and no note that happened before this call is left.
    pub(crate) fn is_open(&self) -> bool {
        // Acquire pairs with the Release in `try_close`.
        self.calm.used.load(Ordering::Acquire) & IS_OPEN != 0
    }

    /// Returns whether the data are elsewhere. If so, the caller sees where.
    pub(crate) fn is_diverted(&self) -> bool {
        // Acquire pairs with the Release in `divert`.
        self.calm.used.load(Ordering::Acquire) & IS_DIVERTED != 0
    }

    /// Returns the slots if they are open and this thread should not take the lock itself.
    fn slots(&self) -> Option<&Slots> {
        let calm = &self.calm;
        // Acquire pairs with the Release in `open`: the slots exist. Relaxed: a hint. Whether an
        // entry can be claimed decides.
        let open = calm.used.load(Ordering::Acquire) & IS_OPEN != 0;
        let owner = !MODELLED && calm.owner.load(Ordering::Relaxed) == here();
        if open && !owner { calm.slots.get().map(|slots| &**slots) } else { None }
    }

    /// Marks a slot in which the caller has claimed an entry.
    fn mark(&self, slot: usize) {
        // Relaxed, both: the entry that the caller has claimed keeps the slots open, and claiming
        // it comes after the store in `open`; publishing the entry orders this before it.
        if self.calm.used.load(Ordering::Relaxed) & 1 << slot == 0 {
            self.calm.used.fetch_or(1 << slot, Ordering::Relaxed);
        }
    }

    /// Leaves a note for the holder. Returns false if that is not possible now.
    pub(crate) fn note(&self, words: Words) -> bool {
        let note = |slots: &Slots| slots.note(here() as usize, words, |slot| self.mark(slot));
        self.slots().is_some_and(note)
    }

    /// Has the holder run a request, and waits for the answer.
    ///
    /// # Errors
    /// The lock, with everything served, if its owner does not use it any more; `None` if the
    /// caller should take the lock.
    pub(crate) fn request(&self, words: Words) -> Result<Words, Option<CombiningGuard<'_, T>>>
    where
        T: Combined,
    {
        let slots = self.slots().ok_or(None)?;
        let request = slots.request(here() as usize, words, |slot| self.mark(slot)).ok_or(None)?;
        let answer = |served| match served {
            Served::Answered(words) => Ok(words),
            Served::Panicked => Err(None),
        };
        let mut backoff = Backoff::default();
        let (mut looks, mut free) = (0u32, 0);
        loop {
            if let Some(served) = request.result() {
                return answer(served);
            }
            looks = looks.saturating_add(1);
            if looks > LOOK_AFTER && looks.is_multiple_of(LOOK_EVERY) {
                // Relaxed: only a hint when to try.
                free = if self.word.load(Ordering::Relaxed) == HELD { 0 } else { free + 1 };
                if free >= PATIENCE
                    && let Some(mut guard) = self.try_lock()
                {
                    // Relaxed: a hint.
                    self.calm.owner.store(here(), Ordering::Relaxed);
                    if let Some(served) = request.result() {
                        return answer(served);
                    }
                    request.withdraw();
                    guard.serve();
                    return Err(Some(guard));
                }
            }
            (0..PAUSES).for_each(|_| hint::spin_loop());
            backoff.pause();
        }
    }

    /// Makes no processor the owner, so that any thread may publish.
    #[cfg(all(test, not(loom)))]
    pub(super) fn disown(&self) {
        // Relaxed: a hint.
        self.calm.owner.store(0, Ordering::Relaxed);
    }

    /// Publishes a request for which no thread waits.
    #[cfg(all(test, not(loom)))]
    pub(super) fn publish_without_waiting(&self, words: Words) {
        let slots = self.slots().expect("open slots");
        slots.request(here() as usize, words, |slot| self.mark(slot)).expect("a free entry");
    }

    /// Takes the lock before a fork.
    pub(crate) fn hold_over_fork(&self) {
        let guard = self.lock();
        // Relaxed: `release_over_fork` reads it in the same thread or its copy.
        self.over_fork.store(guard.word + 1, Ordering::Relaxed);
        std::mem::forget(guard);
    }

    /// Releases the lock that `hold_over_fork` took, in the parent and in the child; does nothing
    /// to a lock that it did not take.
    pub(crate) fn release_over_fork(&self) {
        // Relaxed: this thread, or the one that it is the copy of, stored it.
        let word = self.over_fork.swap(0, Ordering::Relaxed);
        if word > 0 {
            drop(CombiningGuard { mutex: self, word: word - 1, contended: false });
        }
    }

    /// In the child of a fork: drops the requests of threads that do not exist there.
    pub(crate) fn forget_waiters(&self) {
        if let Some(slots) = self.calm.slots.get() {
            slots.forget_waiters();
        }
    }
}

/// The lock, taken while the slots were closed.
pub(crate) struct ClosedGuard<'a, T> {
    mutex: &'a CombiningMutex<T>,
}

/// The lock, taken while the slots were open or closed.
pub(crate) struct CombiningGuard<'a, T> {
    mutex: &'a CombiningMutex<T>,
    /// What the lock word becomes again.
    word: u32,
    /// Threads wait often.
    contended: bool,
}

impl<T> CombiningGuard<'_, T> {
    fn load(&mut self) -> &mut Load {
        // SAFETY: this guard holds the lock, and lends it once at a time.
        unsafe { &mut *self.mutex.load.get() }
    }

    /// Returns whether the slots are open.
    pub(crate) fn is_open(&self) -> bool {
        self.word == OPEN
    }

    /// Returns whether the slots are closed and threads have waited for the lock often.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended
    }

    /// Returns whether the contention for a lock whose slots stay closed lasts. A nap counts as
    /// many waits: threads that sleep wait seldom, and long.
    pub(crate) fn has_lasted(&mut self) -> bool {
        let load = self.load();
        let waits = load.count.saturating_add(load.naps.saturating_mul(WAITS));
        waits >= PERIOD_OF_WAITS && load.end_period(true)
    }

    /// Counts naps of threads that waited for the lock.
    #[cfg(all(test, not(loom)))]
    pub(super) fn nap(&mut self, naps: u32) {
        self.load().naps += naps;
    }

    /// Opens the slots, which are closed.
    pub(crate) fn open(&mut self) {
        self.load().restart();
        let calm = &self.mutex.calm;
        let slots = calm.slots.get_or_init(|| Box::new(Slots::new()));
        // Relaxed: a hint.
        calm.owner.store(here(), Ordering::Relaxed);
        // Release pairs with the Acquire in `slots`: the entries exist. They are opened after it,
        // so a thread that claims one adds its bit to this value.
        calm.used.store(IS_OPEN, Ordering::Release);
        slots.open();
        (self.word, self.contended) = (OPEN, false);
    }

    /// Sets or clears the mark that the data are elsewhere. The slots are closed. While it is set,
    /// [`try_lock_closed`](CombiningMutex::try_lock_closed) fails.
    pub(crate) fn divert(&mut self, diverted: bool) {
        debug_assert!(!self.is_open(), "the slots are open");
        // Release pairs with the Acquire in `is_diverted`.
        self.mutex.calm.used.store(if diverted { IS_DIVERTED } else { 0 }, Ordering::Release);
    }

    /// Closes the slots if nothing is published; runs `publish` before threads learn of it. Returns
    /// whether they are closed.
    fn try_close(&mut self, publish: impl FnOnce(&mut T)) -> bool {
        if self.is_open() && self.mutex.calm.slots.get().is_none_or(|slots| slots.close()) {
            self.closed(publish);
        }
        !self.is_open()
    }

    /// Runs `publish`, and lets threads learn that all entries are closed.
    fn closed(&mut self, publish: impl FnOnce(&mut T)) {
        publish(self);
        self.load().restart();
        // Release pairs with the Acquire in `is_open`.
        self.mutex.calm.used.store(0, Ordering::Release);
        self.word = UNLOCKED;
    }
}

impl<T: Combined> CombiningGuard<'_, T> {
    /// Serves all that is published; returns how many. Nothing is if the slots are closed.
    pub(crate) fn serve(&mut self) -> u32 {
        let mutex = self.mutex;
        let Some(slots) = mutex.calm.slots.get() else { return 0 };
        let served = mutex.used().map(|slot| slots.serve(slot, &mut **self)).sum();
        self.load().served += served;
        served
    }

    /// Serves all that is published and closes the slots. Waits for threads that are about to
    /// publish something or to read an answer.
    pub(crate) fn close(&mut self, publish: impl Fn(&mut T)) {
        let mut backoff = Backoff::default();
        while !self.try_close(&publish) {
            self.serve();
            backoff.pause();
        }
    }

    /// Closes the slots if that needs no waiting for other threads, or little. Threads that contend
    /// find fewer and fewer free entries meanwhile, and wait for the lock.
    pub(crate) fn close_soon(&mut self, publish: impl Fn(&mut T)) -> bool {
        let slots = match self.mutex.calm.slots.get() {
            Some(slots) if self.is_open() => slots,
            _ => return self.try_close(publish),
        };
        let is_closed = (0..CLOSE_TRIES).any(|_| {
            let is_closed = slots.close_free();
            if !is_closed {
                self.serve();
                hint::spin_loop();
            }
            is_closed
        });
        if is_closed {
            self.closed(publish);
        } else {
            slots.reopen();
        }
        is_closed
    }

    /// Ends an operation while the slots are open: serves, or prepares to serve; closes the slots
    /// if they are of no use. Returns the lock if the contention lasts.
    pub(crate) fn finish(mut self, publish: impl FnOnce(&mut T)) -> Option<Self> {
        let mutex = self.mutex;
        self.load().count += 1;
        let count = self.load().count;
        if !count.is_multiple_of(2) {
            if let Some(slots) = mutex.calm.slots.get() {
                mutex.used().for_each(|slot| slots.prefetch(slot));
            }
            return None;
        }
        self.serve();
        if count < PERIOD {
            return None;
        }
        let load = self.load();
        let before = load.useful;
        // A thread that may not publish what it does sleeps before the lock.
        if load.end_period(load.served > 0 || load.naps > 0) {
            return Some(self);
        }
        if self.load().useful <= before {
            self.try_close(publish);
        }
        None
    }
}

impl<T> CombiningMutex<T> {
    /// Returns the slots that may hold something.
    fn used(&self) -> impl Iterator<Item = usize> + use<T> {
        // Relaxed: a thread that published something which happened before this call set the bit
        // before, and coherence forbids an older value.
        let mut used = self.calm.used.load(Ordering::Relaxed) & !(IS_OPEN | IS_DIVERTED);
        std::iter::from_fn(move || {
            let slot = (used != 0).then(|| used.trailing_zeros() as usize);
            used &= used.wrapping_sub(1);
            slot
        })
    }
}

impl<T> Deref for ClosedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for ClosedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for ClosedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.mutex.witness.touch();
        // Release pairs with the Acquire in `swap`.
        self.mutex.word.store(UNLOCKED, Ordering::Release);
    }
}

impl<T> Deref for CombiningGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for CombiningGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for CombiningGuard<'_, T> {
    fn drop(&mut self) {
        self.mutex.witness.touch();
        // Release pairs with the Acquire in `swap`.
        self.mutex.word.store(self.word, Ordering::Release);
    }
}

/// Returns the processor of this thread, plus one.
fn here() -> u32 {
    if MODELLED { 1 } else { sys::cpu_here().wrapping_add(1) }
}
