//! *Owner lock*: a lock that costs its owner no atomic read-modify-write and no fence.
//!
//! One thread, the *owner*, takes the lock many million times a second; other threads, the
//! *stoppers*, want it a few times a minute. The owner stores *busy*, then loads *stop*; a stopper
//! stores *stop*, then loads *busy*. This is Dekker's rule: on each side the store must become
//! visible before the load is done, otherwise both enter. Keeping a store before a later load
//! normally takes a fence, 5 ns or more. Here the stopper pays for both sides: between its store
//! and its load it makes the kernel run a barrier on every thread (`membarrier`). If the owner's
//! load came before the barrier, so did its store, and the stopper sees it. If the load came after
//! the barrier, the owner sees the stop. The owner itself only keeps the compiler from reordering
//! the two.
//!
//! If the kernel does not allow `membarrier`, the owner makes a fence of its own. The fast path
//! does not test for that: a bit in the word *stop* that is never cleared sends the owner to the
//! slow path, which has the fence.

use crate::sync::{AtomicBool, AtomicU32, Backoff, Ordering, fence, light_fence};

/// In `stop`: a stopper wants the lock or holds it.
const STOP: u32 = 1;
/// In `stop`: the owner has to make fences.
const FENCED: u32 = 2;

/// The lock. Stoppers call `stop`, `make_fenced`, `wait_until_out` and `resume` one at a time,
/// under a lock that they all use.
pub(crate) struct OwnerLock {
    busy: AtomicBool,
    stop: AtomicU32,
    /// The owner has seen `FENCED`; it stays set.
    fences: AtomicBool,
}

/// Holds the lock for the owner while it lives.
pub(crate) struct OwnerGuard<'a>(&'a OwnerLock);

impl OwnerLock {
    /// Makes a free lock. `fenced` makes the owner use fences.
    pub(crate) fn new(fenced: bool) -> Self {
        OwnerLock {
            busy: AtomicBool::new(false),
            stop: AtomicU32::new(if fenced { FENCED } else { 0 }),
            fences: AtomicBool::new(fenced),
        }
    }

    /// Takes the lock.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner and does not hold the lock.
    #[inline(always)]
    pub(crate) unsafe fn enter(&self) -> OwnerGuard<'_> {
        // Relaxed: ordered before the load by the barrier of `wait_until_out`'s caller, which pairs
        // with the fence below.
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        // Acquire pairs with the Release in `resume`: the owner sees the stopper's changes.
        if self.stop.load(Ordering::Acquire) != 0 {
            self.enter_slow();
        }
        OwnerGuard(self)
    }

    /// Takes the lock if the owner need neither wait nor make a fence; otherwise the caller has to
    /// use `enter`.
    ///
    /// # Safety
    ///
    /// The calling thread is the owner and does not hold the lock.
    #[inline(always)]
    pub(crate) unsafe fn try_enter(&self) -> Option<OwnerGuard<'_>> {
        // Relaxed and Acquire, both as in `enter`.
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        let busy = OwnerGuard(self);
        (self.stop.load(Ordering::Acquire) == 0).then_some(busy)
    }

    #[cold]
    #[inline(never)]
    fn enter_slow(&self) {
        let mut backoff = Backoff::default();
        loop {
            // SeqCst: the store of `busy` above, or below, comes before the load of `stop`; pairs
            // with the stopper's fence.
            fence(Ordering::SeqCst);
            // Acquire pairs with the Release in `resume`.
            let stop = self.stop.load(Ordering::Acquire);
            if stop & FENCED != 0 {
                // Release pairs with the Acquire in `wait_until_out`: later loads of `stop` see the
                // bit too.
                self.fences.store(true, Ordering::Release);
            }
            if stop & STOP == 0 {
                return;
            }
            // Release, as in `OwnerGuard::drop`, although the owner changed nothing.
            self.busy.store(false, Ordering::Release);
            // Relaxed: only a hint when to try again.
            while self.stop.load(Ordering::Relaxed) & STOP != 0 {
                backoff.pause();
            }
            // Relaxed: ordered by the fence at the head of the loop.
            self.busy.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the owner holds the lock. Callable from any thread.
    pub(crate) fn is_inside(&self) -> bool {
        // Acquire pairs with the Release in `OwnerGuard::drop`: the owner's changes are visible.
        self.busy.load(Ordering::Acquire)
    }

    /// Asks the owner to stay out. A barrier must follow, then
    /// [`wait_until_out`](Self::wait_until_out).
    pub(crate) fn stop(&self) {
        // Relaxed: the barrier that follows orders it before the load of `busy`.
        self.stop.fetch_or(STOP, Ordering::Relaxed);
    }

    /// Makes the owner use fences, once it has seen the request.
    pub(crate) fn make_fenced(&self) {
        // Relaxed: the owner confirms in `fences` that it has seen the bit.
        self.stop.fetch_or(FENCED, Ordering::Relaxed);
    }

    /// Waits after a barrier until the owner is out; then the caller holds the lock. `reached`
    /// says whether the barrier ran on all threads. If it was only the caller's own fence and the
    /// owner makes none, the function withdraws the stop and returns false.
    pub(crate) fn wait_until_out(&self, reached: bool) -> bool {
        // Acquire pairs with the Release in `enter_slow`.
        if !reached && !self.fences.load(Ordering::Acquire) {
            // SAFETY: the caller called `stop` before. It does not hold the lock yet, so it uses
            // nothing that the lock protects.
            unsafe { self.resume() };
            return false;
        }
        let mut backoff = Backoff::default();
        // Acquire pairs with the Release in `OwnerGuard::drop`: the owner's changes are visible.
        while self.busy.load(Ordering::Acquire) {
            backoff.pause();
        }
        true
    }

    /// Releases the stopper's hold; the owner may enter again.
    ///
    /// # Safety
    ///
    /// The calling thread has called [`stop`](Self::stop), and uses nothing any more that the lock
    /// protects.
    pub(crate) unsafe fn resume(&self) {
        // Release pairs with the Acquire in `enter`: the owner sees the stopper's changes.
        self.stop.fetch_and(!STOP, Ordering::Release);
    }
}

impl Drop for OwnerGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `wait_until_out`.
        self.0.busy.store(false, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_owner_and_a_stopper_are_never_both_inside() {
        // Both make fences of their own: the kernel is not needed.
        let (lock, count) = (OwnerLock::new(true), AtomicU32::new(0));
        // Not one step: a second thread inside loses one of them.
        let add = || count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let turns = if cfg!(miri) { 20 } else { 2000 };
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                for _ in 0..turns {
                    // SAFETY: this thread is the owner, and does not hold the lock.
                    let inside = unsafe { lock.enter() };
                    add();
                    drop(inside);
                }
            });
            let mut stops = 0;
            while stops < turns || !owner.is_finished() {
                lock.stop();
                fence(Ordering::SeqCst);
                assert!(lock.wait_until_out(false));
                add();
                // SAFETY: this thread has called `stop`, and adds no more.
                unsafe { lock.resume() };
                stops += 1;
            }
            owner.join().expect("no panic");
            assert_eq!(count.load(Ordering::Relaxed), turns + stops);
        });
    }

    #[test]
    fn an_owner_that_has_waited_makes_fences_only_if_it_has_to() {
        for fenced in [false, true] {
            let lock = OwnerLock::new(false);
            lock.stop();
            if fenced {
                lock.make_fenced();
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // SAFETY: this thread is the owner, and does not hold the lock.
                    drop(unsafe { lock.enter() });
                });
                // It has seen the request at the earliest.
                while fenced && !lock.fences.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                // SAFETY: this thread has called `stop`, and uses nothing.
                unsafe { lock.resume() };
            });
            assert_eq!(lock.fences.load(Ordering::Relaxed), fenced);
            lock.stop();
            assert_eq!(lock.wait_until_out(false), fenced);
            // SAFETY: this thread has called `stop`, and uses nothing.
            unsafe { lock.resume() };
            // SAFETY: there is no other thread, so this one is the owner.
            assert_eq!(unsafe { lock.try_enter() }.is_some(), !fenced);
        }
    }
}
