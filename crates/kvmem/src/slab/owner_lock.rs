//! *Owner*: a lock that costs its owner no atomic read-modify-write and no fence.
//!
//! One thread, the owner, takes the lock many million times a second; others want it a few times a
//! minute. The owner says *busy*, then looks whether it was told to *stop*; a stopper says *stop*,
//! then looks whether the owner is busy. This is Dekker's rule: each must have its store before its
//! load, in the eyes of the other, or both go in. To keep a store before a later load takes a
//! fence, 5 ns or more. The stopper makes it for both: between its store and its load it has the
//! kernel put a barrier into every thread (`membarrier`). If the owner's load came before the
//! barrier, its store did too, and the stopper sees it; if it came after, the owner sees the stop.
//! The owner only keeps the compiler from changing the order.
//!
//! Where the kernel refuses, the owner makes a fence of its own. So that the usual way need not ask
//! which it is, a bit in the word *stop* that is never taken back sends the owner to the slow way,
//! and the fence is there.

#[cfg(not(loom))]
use std::sync::atomic::compiler_fence;

use crate::sync::{AtomicBool, AtomicU32, Backoff, Ordering, fence};

/// In `stop`: somebody wants the lock, or has it.
const STOP: u32 = 1;
/// In `stop`: the owner is to make fences.
const FENCED: u32 = 2;

/// The lock. Who calls `stop` and its like does so one at a time, under a lock that all of them
/// use.
pub(crate) struct OwnerLock {
    busy: AtomicBool,
    stop: AtomicU32,
    /// The owner has seen `FENCED`, and sees it for ever.
    fences: AtomicBool,
}

/// As long as it lives, the owner has the lock.
pub(crate) struct OwnerGuard<'a>(&'a OwnerLock);

impl OwnerLock {
    /// A lock that nobody has; its owner makes fences or not.
    pub(crate) fn new(fenced: bool) -> Self {
        OwnerLock {
            busy: AtomicBool::new(false),
            stop: AtomicU32::new(if fenced { FENCED } else { 0 }),
            fences: AtomicBool::new(fenced),
        }
    }

    /// Takes the lock. For the owner, who does not have it.
    #[inline(always)]
    pub(crate) fn enter(&self) -> OwnerGuard<'_> {
        // Relaxed: ordered before the load by the barrier of `wait_until_out`'s caller, which pairs with
        // the fence below.
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        // Acquire pairs with the Release in `resume`: what the stopper changed is seen.
        if self.stop.load(Ordering::Acquire) != 0 {
            self.enter_slow();
        }
        OwnerGuard(self)
    }

    /// Takes the lock if the owner need neither wait nor fence; else the slow way has to, by
    /// `enter`. For the owner, who does not have it.
    #[inline(always)]
    pub(crate) fn try_enter(&self) -> Option<OwnerGuard<'_>> {
        // Relaxed and Acquire, as in `enter`.
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
            // SeqCst: `busy` above, or below, comes before the load of `stop`; pairs with the
            // stopper's fence.
            fence(Ordering::SeqCst);
            // Acquire, as in `enter`.
            let stop = self.stop.load(Ordering::Acquire);
            if stop & FENCED != 0 {
                // Release pairs with the Acquire in `wait_until_out`: later loads of `stop` see the bit
                // too.
                self.fences.store(true, Ordering::Release);
            }
            if stop & STOP == 0 {
                return;
            }
            // Release, as in `OwnerGuard::drop`; nothing was changed, though.
            self.busy.store(false, Ordering::Release);
            // Relaxed: only a hint when to try again.
            while self.stop.load(Ordering::Relaxed) & STOP != 0 {
                backoff.pause();
            }
            // Relaxed: the fence above comes after it.
            self.busy.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the owner is in. For anybody.
    pub(crate) fn is_inside(&self) -> bool {
        // Acquire pairs with the Release in `OwnerGuard::drop`: what the owner did is seen.
        self.busy.load(Ordering::Acquire)
    }

    /// Tells the owner to stop. A barrier must follow, then [`wait_until_out`](Self::wait_until_out).
    pub(crate) fn stop(&self) {
        // Relaxed: the barrier that follows orders it before the load of `busy`.
        self.stop.fetch_or(STOP, Ordering::Relaxed);
    }

    /// From now on the owner makes fences, once it has seen it.
    pub(crate) fn make_fenced(&self) {
        // Relaxed: the owner says when it has seen it.
        self.stop.fetch_or(FENCED, Ordering::Relaxed);
    }

    /// After a barrier, waits until the owner is out; then the caller has the lock. `reached` says
    /// that the barrier was one on all threads; if it was only the caller's fence and the owner
    /// makes none, the stop is taken back: false.
    pub(crate) fn wait_until_out(&self, reached: bool) -> bool {
        // Acquire pairs with the Release in `enter_slow`.
        if !reached && !self.fences.load(Ordering::Acquire) {
            self.resume();
            return false;
        }
        let mut backoff = Backoff::default();
        // Acquire pairs with the Release in `OwnerGuard::drop`: what the owner did is seen.
        while self.busy.load(Ordering::Acquire) {
            backoff.pause();
        }
        true
    }

    /// Lets the owner go on.
    pub(crate) fn resume(&self) {
        // Release pairs with the Acquire in `enter`: what the stopper did is seen.
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

/// The owner's half of the fence. SeqCst pairs with the stopper's barrier.
#[cfg(not(loom))]
#[inline(always)]
fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// loom knows no barriers on other threads: both make a fence.
#[cfg(loom)]
fn light_fence() {
    fence(Ordering::SeqCst);
}
