//! *Striped*: a lock for what is read all the time and changed now and then, whose readers write to
//! no common line.
//!
//! A lock is a word that everybody writes who takes it. Where threads take it all the time, the
//! word's cache line goes from one processor to the other, and they wait for the line even if none
//! ever waits for the lock. Here there are [`STRIPES`] small locks, the *stripes*, on lines of
//! their own. A reader takes one of them, always the same for a thread, so its line stays with the
//! thread's processor. A writer takes all, one after the other: then there is no reader. Two
//! readers exclude each other if they happen to have the same stripe; that is slower and nothing
//! else.
//!
//! A writer would pay for stripes that nobody reads by. So a stripe has to be *joined*: its first
//! reader says, under the writers' lock, that writers must take it, too. Writers take those joined,
//! under the same lock; one that many in a row have taken though nobody had read by it is left out
//! again, until a reader comes. A process of one thread has one stripe, and where threads only
//! write there is none.
//!
//! Each stripe has something of its own beside, for its reader: figures, or what it notes for the
//! next writer.
//!
//! There is one order: the writers' lock, then stripes. Who reads waits for nothing while it has a
//! stripe, but the one that has just joined has its stripe before it lets go of the writers' lock.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use super::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, RawLock};

/// Stripes of a lock. So many threads read side by side; and of so many locks a writer waits for
/// the lines, at worst.
pub(crate) const STRIPES: usize = if cfg!(loom) { 2 } else { 8 };

/// A stripe that so many writers have taken in vain is left out.
const IDLE_WRITES: u32 = if cfg!(loom) { 1 } else { 16 };

/// The lock, what it guards, and what each stripe has.
#[repr(C)]
pub(crate) struct Striped<T, S> {
    stripes: [Stripe<S>; STRIPES],
    value: UnsafeCell<T>,
    /// A bit for each stripe that writers take. Who has this lock may take stripes, and change the
    /// value if it has all of these.
    joined: Mutex<Joined>,
}

/// On two lines of its own, as processors fetch them in pairs.
#[repr(C, align(128))]
struct Stripe<S> {
    lock: RawLock,
    /// Writers take this stripe. Changed by who has it and the writers' lock.
    joined: AtomicBool,
    /// How many writers have taken it since it was read by.
    idle_writes: AtomicU32,
    own: S,
}

/// A set of stripes.
#[derive(Clone, Copy)]
struct Joined(u32);

impl Joined {
    #[inline]
    fn stripes(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize;
            // Takes the lowest bit out.
            left &= left.wrapping_sub(1);
            (at < STRIPES).then_some(at)
        })
    }
}

// SAFETY: `value` is lent as `&T` to readers of several threads, hence `T: Sync`, and as `&mut T`
// to writers of any, hence `T: Send`. That never both are lent is said at `read` and `write`. `S`
// is only ever lent as `&S`.
unsafe impl<T: Send + Sync, S: Sync> Sync for Striped<T, S> {}

impl<T, S: Default> Striped<T, S> {
    /// Nobody has it, and no stripe is joined.
    pub(crate) fn new(value: T) -> Self {
        let stripes = std::array::from_fn(|_| Stripe {
            lock: RawLock::free(),
            joined: AtomicBool::new(false),
            idle_writes: AtomicU32::new(0),
            own: S::default(),
        });
        Striped { stripes, value: UnsafeCell::new(value), joined: Mutex::new(Joined(0)) }
    }
}

impl<T, S> Striped<T, S> {
    /// Waits until no writer has it, nor a reader of the same stripe. For the stripe of a number,
    /// modulo [`STRIPES`].
    #[inline]
    pub(crate) fn read(&self, number: usize) -> StripedReadGuard<'_, T, S> {
        let at = number % STRIPES;
        let stripe = &self.stripes[at];
        stripe.lock.acquire();
        // Relaxed: changed under the lock of the stripe. While it is set, every writer that comes
        // takes this stripe before it has the value; and who set it had the writers' lock,
        // so those that came before have let go.
        if !stripe.joined.load(Ordering::Relaxed) {
            stripe.lock.release();
            self.join(at);
        }
        // Relaxed: under the lock of the stripe.
        stripe.idle_writes.store(0, Ordering::Relaxed);
        StripedReadGuard { lock: self, stripe }
    }

    /// Takes a stripe, and has writers take it from now on.
    #[cold]
    #[inline(never)]
    fn join(&self, at: usize) {
        let mut joined = self.joined.lock();
        let stripe = &self.stripes[at];
        stripe.lock.acquire();
        joined.0 |= 1 << at;
        // Relaxed: under the lock of the stripe.
        stripe.joined.store(true, Ordering::Relaxed);
    }

    /// Waits until nobody else has it.
    #[inline]
    pub(crate) fn write(&self) -> Writing<'_, T, S> {
        let mut joined = self.joined.lock();
        for at in joined.stripes() {
            let stripe = &self.stripes[at];
            stripe.lock.acquire();
            // Relaxed, all: under the lock of the stripe.
            let idle_writes = stripe.idle_writes.load(Ordering::Relaxed) + 1;
            stripe.idle_writes.store(idle_writes, Ordering::Relaxed);
            if idle_writes > IDLE_WRITES {
                // Nobody has read by it since the latest writer, so there is nothing of its own to
                // be seen.
                joined.0 &= !(1 << at);
                stripe.joined.store(false, Ordering::Relaxed);
                stripe.lock.release();
            }
        }
        Writing { lock: self, joined }
    }

    /// What the stripes have of their own, also while others have the lock.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = &S> {
        self.stripes.iter().map(|stripe| &stripe.own)
    }
}

/// As long as it lives, nobody changes the value.
pub(crate) struct StripedReadGuard<'a, T, S> {
    lock: &'a Striped<T, S>,
    stripe: &'a Stripe<S>,
}

impl<'a, T, S> StripedReadGuard<'a, T, S> {
    /// What the stripe has of its own: no other reader has it meanwhile.
    #[inline]
    pub(crate) fn own(&self) -> &'a S {
        &self.stripe.own
    }
}

impl<T, S> Deref for StripedReadGuard<'_, T, S> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this has a stripe that is joined, so a writer, who has to take it, is not there;
        // see `read`. All others read.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, S> Drop for StripedReadGuard<'_, T, S> {
    #[inline]
    fn drop(&mut self) {
        self.stripe.lock.release();
    }
}

/// As long as it lives, nobody else has the value.
pub(crate) struct Writing<'a, T, S> {
    lock: &'a Striped<T, S>,
    /// Nobody joins or leaves meanwhile, so those taken are those joined.
    joined: MutexGuard<'a, Joined>,
}

impl<T, S> Writing<'_, T, S> {
    /// The value and the stripes' own, those joined: nobody else has either.
    pub(crate) fn parts(&mut self) -> (&mut T, impl Iterator<Item = &S>) {
        let own = self.joined.stripes().map(|at| &self.lock.stripes[at].own);
        // SAFETY: as in `deref_mut`.
        (unsafe { &mut *self.lock.value.get() }, own)
    }
}

impl<T, S> Deref for Writing<'_, T, S> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, S> DerefMut for Writing<'_, T, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this has the writers' lock, so there is no other writer and nobody joins; and it
        // has every stripe that is joined, so there is no reader.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, S> Drop for Writing<'_, T, S> {
    #[inline]
    fn drop(&mut self) {
        for at in self.joined.stripes() {
            self.lock.stripes[at].lock.release();
        }
    }
}

/// The running thread's number, for [`Striped::read`]: threads are numbered as they first ask, so
/// that those that begin together have stripes of their own.
#[cfg(not(loom))]
#[inline]
pub(crate) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;

    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // No destructor, so it can be read until the thread is gone. 0: it has not asked.
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(0) });

    #[cold]
    #[inline(never)]
    fn first(number: &Cell<usize>) -> usize {
        // Relaxed: only that numbers differ matters, and not even that after a wrap.
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
                            // Relaxed, and two steps: no other reader has it.
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
    fn a_stripe_that_nobody_reads_by_is_left_out() {
        let lock: Striped<(), ()> = Striped::new(());
        drop(lock.read(0));
        for idle_writes in 0..3 * IDLE_WRITES {
            drop(lock.read(1));
            let joined = if idle_writes < IDLE_WRITES { 2 } else { 1 };
            assert_eq!(
                lock.write().parts().1.count(),
                joined,
                "{idle_writes} writers in idle_writes"
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
