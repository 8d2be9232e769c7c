//! *Striped lock*: a reader-writer lock for data that is read all the time and changed rarely. Its
//! readers write to no common cache line.
//!
//! A lock is a word that every thread writes when it takes the lock. If threads take it all the
//! time, the word's cache line moves from processor to processor, and the threads wait for the line
//! even if they never wait for the lock. The striped lock consists of [`STRIPES`] small locks, the
//! *stripes*, on separate cache lines. A reader takes one of them, always the same for a thread, so
//! the line stays with the thread's processor. A writer takes all of them, one after the other;
//! then there is no reader. Two readers exclude each other if they share a stripe, which is only
//! slower.
//!
//! A writer would pay for stripes that no thread reads by. A stripe therefore has to be *joined*:
//! its first reader registers it under the writers' lock. Writers take the joined stripes, under
//! the same lock. A stripe that no thread read by during 16 writes in a row is left out again,
//! until a reader comes. A process with one thread has one stripe, and a lock that is only written
//! has none.
//!
//! Each stripe also has a state of its own for its readers: figures, or notes for the next writer.
//!
//! The lock order is: the writers' lock, then stripes. A reader waits for nothing while it holds a
//! stripe; a reader that joins takes its stripe before it releases the writers' lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use super::checker::{AtomicBool, AtomicU32, MODELLED, Ordering};
use super::lock::RawLock;
use super::statics::per_thread;
use super::{Mutex, MutexGuard};

/// The number of stripes of a lock: the number of threads that can read in parallel, and at worst
/// the number of cache lines that a writer waits for.
pub(crate) const STRIPES: usize = if MODELLED { 2 } else { 8 };

/// The number of writes without a reader after which a stripe is left out.
const IDLE_WRITES: u32 = if MODELLED { 1 } else { 16 };

/// The lock, the guarded value, and the states of the stripes.
#[repr(C)]
pub(crate) struct Striped<T, S> {
    stripes: [Stripe<S>; STRIPES],
    /// One bit for each stripe that writers take. The holder of this lock may take stripes, and
    /// may change the value once it holds all joined ones. On the line of the value's first bytes,
    /// which a writer changes next.
    joined: Mutex<Joined>,
    value: UnsafeCell<T>,
}

/// Aligned to two cache lines, because processors fetch lines in pairs.
#[repr(C, align(128))]
struct Stripe<S> {
    lock: RawLock,
    /// Whether writers take this stripe. Changed under the stripe's lock and the writers' lock.
    joined: AtomicBool,
    /// The number of writers that took the stripe since it was last read by.
    idle_writes: AtomicU32,
    own: S,
}

/// A set of stripes.
#[derive(Clone, Copy)]
struct Joined(u32);

impl Joined {
    #[inline]
    fn stripes(self) -> impl Iterator<Item = usize> {
        let mut remaining = self.0;
        std::iter::from_fn(move || {
            let at = remaining.trailing_zeros() as usize;
            // Clears the lowest bit.
            remaining &= remaining.wrapping_sub(1);
            (at < STRIPES).then_some(at)
        })
    }
}

// SAFETY: `value` is lent as `&T` to readers of several threads, hence `T: Sync`, and as `&mut T`
// to writers of any thread, hence `T: Send`. `read` and `write` explain why never both are lent.
// `S` is only lent as `&S`.
unsafe impl<T: Send + Sync, S: Sync> Sync for Striped<T, S> {}

impl<T, S: Default> Striped<T, S> {
    /// Makes a free lock without joined stripes.
    pub(crate) fn new(value: T) -> Self {
        let stripes = std::array::from_fn(|_| Stripe {
            lock: RawLock::new(),
            joined: AtomicBool::new(false),
            idle_writes: AtomicU32::new(0),
            own: S::default(),
        });
        Striped { stripes, value: UnsafeCell::new(value), joined: Mutex::new(Joined(0)) }
    }
}

impl<T, S> Striped<T, S> {
    /// Locks the value for reading by the stripe `number` modulo [`STRIPES`]. Waits for the writer,
    /// and for a reader with the same stripe.
    #[inline]
    pub(crate) fn read(&self, number: usize) -> StripedReadGuard<'_, T, S> {
        let at = number % STRIPES;
        let stripe = &self.stripes[at];
        stripe.lock.acquire();
        // Relaxed: changed under the stripe's lock. While it is set, every later writer takes this
        // stripe before it gets the value. The thread that set it held the writers' lock, so
        // earlier writers have released the value.
        if !stripe.joined.load(Ordering::Relaxed) {
            // SAFETY: this thread took it above.
            unsafe { stripe.lock.release() };
            self.join(at);
        }
        // Relaxed: under the stripe's lock.
        stripe.idle_writes.store(0, Ordering::Relaxed);
        StripedReadGuard { lock: self, stripe }
    }

    /// Joins a stripe and takes it: writers take it from now on.
    #[cold]
    #[inline(never)]
    fn join(&self, at: usize) {
        let mut joined = self.joined.lock();
        let stripe = &self.stripes[at];
        stripe.lock.acquire();
        joined.0 |= 1 << at;
        // Relaxed: under the stripe's lock.
        stripe.joined.store(true, Ordering::Relaxed);
    }

    /// Locks the value for writing. Waits until no other thread holds it.
    #[inline]
    pub(crate) fn write(&self) -> StripedWriteGuard<'_, T, S> {
        let mut joined = self.joined.lock();
        for at in joined.stripes() {
            let stripe = &self.stripes[at];
            stripe.lock.acquire();
            // Relaxed, all: under the stripe's lock.
            let idle_writes = stripe.idle_writes.load(Ordering::Relaxed) + 1;
            stripe.idle_writes.store(idle_writes, Ordering::Relaxed);
            if idle_writes > IDLE_WRITES {
                // No thread has read by it since the latest writer, so its state has not changed.
                joined.0 &= !(1 << at);
                stripe.joined.store(false, Ordering::Relaxed);
                // SAFETY: this thread took it above.
                unsafe { stripe.lock.release() };
            }
        }
        StripedWriteGuard { lock: self, joined }
    }

    /// Returns the states of all stripes, even while other threads hold the lock.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = &S> {
        self.stripes.iter().map(|stripe| &stripe.own)
    }
}

/// A read lock on the value.
pub(crate) struct StripedReadGuard<'a, T, S> {
    lock: &'a Striped<T, S>,
    stripe: &'a Stripe<S>,
}

impl<'a, T, S> StripedReadGuard<'a, T, S> {
    /// Returns the state of the stripe. No other reader has it meanwhile.
    #[inline]
    pub(crate) fn own(&self) -> &'a S {
        &self.stripe.own
    }
}

impl<T, S> Deref for StripedReadGuard<'_, T, S> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds a joined stripe. A writer has to take it, so there is no writer
        // (see `read`), and all other holders read.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, S> Drop for StripedReadGuard<'_, T, S> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `read` took the stripe for this guard, and no other code releases it.
        unsafe { self.stripe.lock.release() };
    }
}

/// A write lock on the value.
pub(crate) struct StripedWriteGuard<'a, T, S> {
    lock: &'a Striped<T, S>,
    /// No stripe is joined or left out meanwhile, so the joined stripes are those that the guard
    /// holds.
    joined: MutexGuard<'a, Joined>,
}

impl<T, S> StripedWriteGuard<'_, T, S> {
    /// Returns whether a stripe is joined: threads have read of late.
    #[inline]
    pub(crate) fn had_readers(&self) -> bool {
        self.joined.0 != 0
    }

    /// Returns the value and the states of the joined stripes, both exclusively.
    pub(crate) fn parts(&mut self) -> (&mut T, impl Iterator<Item = &S>) {
        let own = self.joined.stripes().map(|at| &self.lock.stripes[at].own);
        // SAFETY: as in `deref_mut`.
        (unsafe { &mut *self.lock.value.get() }, own)
    }
}

impl<T, S> Deref for StripedWriteGuard<'_, T, S> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, S> DerefMut for StripedWriteGuard<'_, T, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the writers' lock, so there is no other writer and no stripe is
        // joined; and it holds every joined stripe, so there is no reader.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, S> Drop for StripedWriteGuard<'_, T, S> {
    #[inline]
    fn drop(&mut self) {
        for at in self.joined.stripes() {
            // SAFETY: `write` took every joined stripe for this guard. No stripe was joined or left
            // out since, because the guard holds the writers' lock.
            unsafe { self.lock.stripes[at].lock.release() };
        }
    }
}

/// Returns the running thread's number, for [`Striped::read`]. Threads are numbered at their first
/// call, so threads that start together get different stripes.
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;

    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // No destructor, so it can be read until the thread is gone. 0 means that the thread has no
    // number.
    per_thread!(
        static NUMBER: Cell<usize> = const { Cell::new(0) };
    );

    #[cold]
    #[inline(never)]
    fn first(number: &Cell<usize>) -> usize {
        // Relaxed: numbers only have to differ, and not even that after a wrap.
        number.set(NEXT.fetch_add(1, Ordering::Relaxed).max(1));
        number.get()
    }

    NUMBER.with(|number| match number.get() {
        0 => first(number),
        known => known,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    #[test]
    fn readers_never_see_half_of_a_change() {
        let rounds = if cfg!(miri) { 20 } else { 3_000 };
        let pair: Striped<(u64, u64), AtomicU64> = Striped::new((0, 0));
        thread::scope(|scope| {
            // More threads than stripes.
            for number in 0..STRIPES + 4 {
                let pair = &pair;
                scope.spawn(move || {
                    for round in 0..rounds {
                        if (round + number) % 10 == 0 {
                            let mut writing = pair.write();
                            writing.0 += 1;
                            std::hint::black_box(&mut *writing);
                            writing.1 += 1;
                        } else {
                            let reading = pair.read(number);
                            assert_eq!(reading.0, reading.1);
                            let own = reading.own();
                            // Relaxed, and two steps: no other reader has this state.
                            own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (all, reads) =
            ((STRIPES + 4) * rounds, |own: &AtomicU64| own.load(Ordering::Relaxed) as usize);
        let read: usize = pair.stripes().map(reads).sum();
        let value = pair.write();
        assert_eq!((value.0 as usize + read, value.0), (all, value.1));
    }

    #[test]
    fn a_stripe_is_joined_by_its_first_reader() {
        let lock: Striped<(), ()> = Striped::new(());
        assert_eq!(lock.write().parts().1.count(), 0);
        drop(lock.read(3));
        drop(lock.read(STRIPES + 3));
        assert_eq!(lock.write().parts().1.count(), 1);
        drop(lock.read(4));
        assert_eq!(lock.write().parts().1.count(), 2);
    }

    #[test]
    fn a_stripe_without_readers_is_left_out() {
        let lock: Striped<(), ()> = Striped::new(());
        drop(lock.read(0));
        for idle_writes in 0..3 * IDLE_WRITES {
            drop(lock.read(1));
            let joined = if idle_writes < IDLE_WRITES { 2 } else { 1 };
            assert_eq!(
                lock.write().parts().1.count(),
                joined,
                "{idle_writes} writes without a reader"
            );
        }
        drop(lock.read(0));
        assert_eq!(lock.write().parts().1.count(), 2);
    }

    #[test]
    fn a_thread_keeps_its_number() {
        let here = thread_number();
        assert_eq!(here, thread_number());
        assert_ne!(here, thread::spawn(thread_number).join().unwrap());
    }
}
