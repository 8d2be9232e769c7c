//! *Cursor*: the address up to which everything has been handed out.
//!
//! The whole state of a bump arena is one word. It only grows, until a reset that requires
//! exclusive access. The rest follows from that:
//!
//! 1. A request that does not fit after one value of the cursor does not fit after any later value.
//!    A failed request therefore needs one load, which may even see an old value. A full arena is
//!    read by all threads and written by none: its cache line stays in every processor's cache.
//! 2. The compare-and-exchange that moves the cursor over a request's bytes allocates them. The
//!    cursor leaves each of its values once, so no two allocations overlap, whatever the ordering
//!    of other memory; `Relaxed` is enough.
//! 3. The padding depends on the cursor's value. It is computed for the value that the exchange
//!    expects, so no byte beyond it is wasted. A single `fetch_add` cannot do this. It needs its
//!    addend before it knows the resulting address, so it would have to add the worst-case padding
//!    or waste allocations that turn out too short. An addition beyond the end must be undone, and
//!    meanwhile smaller requests fail although there is room for them. It would also save little:
//!    5.4 ns instead of 5.7 ns for one thread.
//! 4. A cache line that two processors write alternately costs each of them about forty nanoseconds
//!    per write. A thread whose exchange failed because of another thread's therefore pauses
//!    briefly, and the other thread allocates several pieces for the price of one. Two threads that
//!    do nothing else need 14 ns per piece this way instead of 46 ns.
//!
//! An allocation is one atomic read-modify-write. It is repeated only if another thread's came in
//! between, so some thread always makes progress (lock-freedom). Counters next to the cursor would
//! add more atomic operations on the same line. Only exchanges that fail are counted: threads that
//! collide get [lanes](super::lanes).

use crate::sync::{AtomicU32, AtomicUsize, MODELLED, Ordering};

/// Pauses after a failed exchange, about a tenth of a microsecond. Four times as many are a fifth
/// faster for threads that do nothing else, and cost more when the other thread has stopped
/// allocating.
const PAUSES: u32 = 8;
/// Failed exchanges after which a cursor is crowded: some microseconds of two threads that do
/// nothing else.
const COLLISIONS_TO_BE_CROWDED: u32 = if MODELLED { 1 } else { 64 };

/// An address that moves from a first to a last one, alone on two cache lines, because processors
/// fetch lines in pairs.
#[repr(align(128))]
pub(super) struct Cursor {
    at: AtomicUsize,
    /// Exchanges that failed because of another thread's.
    collisions: AtomicU32,
}

impl Cursor {
    pub(super) fn new(at: usize) -> Self {
        Cursor { at: AtomicUsize::new(at), collisions: AtomicU32::new(0) }
    }

    /// Takes `size` bytes at the next multiple of `mask + 1` and returns their address. `Err` holds
    /// the largest size that would have fit. `rest` returns the number of bytes from an address to
    /// the end. The bytes that `keep` returns for the end of the request are taken with it.
    /// `crowded` is called when many exchanges have failed because of other threads' exchanges.
    ///
    /// `mask + 1` is a power of two, `size ≤ isize::MAX`, and `keep` returns at most as much as
    /// `rest`.
    #[inline(always)]
    pub(super) fn take(
        &self,
        size: usize,
        mask: usize,
        rest: impl Fn(usize) -> usize,
        keep: impl Fn(usize) -> usize,
        crowded: impl Fn(),
    ) -> Result<usize, usize> {
        match self.attempt(size, mask, &rest, &keep) {
            Some(taken) => taken,
            None => self.retry(size, mask, rest, keep, crowded),
        }
    }

    /// Takes bytes with one exchange; `None` if another thread's came in between.
    #[inline(always)]
    fn attempt(
        &self,
        size: usize,
        mask: usize,
        rest: &impl Fn(usize) -> usize,
        keep: &impl Fn(usize) -> usize,
    ) -> Option<Result<usize, usize>> {
        // Relaxed: see point 1. The following is correct for every value of the cursor.
        let at = self.at.load(Ordering::Relaxed);
        let room = rest(at);
        let padding = at.wrapping_neg() & mask;
        // Each is below 2^63 (2^31), so the sum does not wrap.
        let need = padding + size;
        if need > room {
            return Some(Err(room.saturating_sub(padding)));
        }
        let end = at + need;
        // Relaxed: see point 2. Earlier writes to the memory are published by the code that shares
        // the arena with other threads.
        self.at
            .compare_exchange(at, end + keep(end), Ordering::Relaxed, Ordering::Relaxed)
            .ok()
            .map(|_| Ok(at + padding))
    }

    /// Takes bytes after an exchange that failed.
    #[cold]
    #[inline(never)]
    fn retry(
        &self,
        size: usize,
        mask: usize,
        rest: impl Fn(usize) -> usize,
        keep: impl Fn(usize) -> usize,
        crowded: impl Fn(),
    ) -> Result<usize, usize> {
        loop {
            if self.record_collision() {
                crowded();
            }
            // Let the other thread proceed for a while; see point 4.
            (0..PAUSES).for_each(|_| crate::sync::spin_loop());
            if let Some(taken) = self.attempt(size, mask, &rest, &keep) {
                return taken;
            }
        }
    }

    /// Counts an exchange that failed; returns whether there were many. On the line of the cursor,
    /// which this thread has just fetched.
    fn record_collision(&self) -> bool {
        // Relaxed: a hint.
        self.collisions.fetch_add(1, Ordering::Relaxed) + 1 >= COLLISIONS_TO_BE_CROWDED
    }

    /// Returns the cursor's current or a recent value. Every allocation that happened before this
    /// call on this thread is below it.
    #[inline]
    pub(super) fn at(&self) -> usize {
        // Acquire pairs with the Release in `replace`.
        self.at.load(Ordering::Acquire)
    }

    /// Exchanges the value `from`, if it is that, for another one.
    pub(super) fn replace(&self, from: usize, to: usize) -> bool {
        // Release pairs with the Acquire in `at`: a thread that sees the rest of a chunk in a lane
        // sees that the cursor has passed it.
        self.at.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Moves the cursor back. `&mut self` excludes concurrent readers; later readers receive the
    /// arena from this thread.
    pub(super) fn set(&mut self, at: usize) {
        // Relaxed: the exclusive borrow orders this before and after the accesses of all other
        // threads.
        self.at.store(at, Ordering::Relaxed);
        self.collisions.store(0, Ordering::Relaxed);
    }
}
