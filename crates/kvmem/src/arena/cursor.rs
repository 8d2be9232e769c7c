//! *Cursor*: the address up to which everything has been handed out.
//!
//! The whole state of a bump arena is one word. It only ever grows (until a reset, when nobody else
//! can look), and from that follows all the rest:
//!
//! 1. A request that does not fit behind some value of the cursor does not fit behind any later
//!    one. So a refusal needs no more than a load, even one that sees an old value, and an arena
//!    that is full is read by all and written by none: its line stays in every processor's cache.
//! 2. A request is granted by the compare-and-exchange that moves the cursor over it. Each value of
//!    the cursor is left once, so no two grants overlap, whatever the ordering of other memory;
//!    `Relaxed` is enough.
//! 3. What the padding is depends on where the cursor stands. So it is computed for the value that
//!    the exchange names, and no more of it is spent than that. A single `fetch_add` could not do
//!    so: it must name its addend before it knows where it lands, and would have to add the worst
//!    padding, or waste what was too short; and an addition that passes the end must be taken back,
//!    in the meantime refusing smaller requests for which there is room. It would also save little:
//!    5.4 ns instead of 5.7 for one thread.
//! 4. A line that two processors write by turns costs each of them some forty nanoseconds a write.
//!    So whoever finds that another thread's exchange has come between steps back for a moment, in
//!    which the other takes several pieces at the price of one. Two threads that do nothing else
//!    need 14 ns a piece in this way instead of 46.
//!
//! One exchange is one atomic read-modify-write. It is repeated only if another thread's has come
//! between, so some thread always gets on (lock-freedom). Counters beside the cursor would be more
//! of them, on the same line.

use crate::sync::{AtomicUsize, Ordering};

/// Pauses after an exchange that failed: about a tenth of a microsecond. Four times as many gain a
/// fifth, for threads that do nothing else; and cost more when the other has gone.
const PAUSES: u32 = 8;

/// An address between a first and a last one, on cache lines of its own: two, because processors
/// fetch them in pairs.
#[repr(align(128))]
pub(super) struct Cursor(AtomicUsize);

impl Cursor {
    pub(super) fn new(at: usize) -> Self {
        Cursor(AtomicUsize::new(at))
    }

    /// Takes `size` bytes at the next multiple of `mask + 1` and returns where they begin; `Err`
    /// says how many could have been had.
    ///
    /// `mask + 1` is a power of two, `size ≤ isize::MAX`, and `limit` is never less than the
    /// cursor.
    #[inline]
    pub(super) fn take(&self, size: usize, mask: usize, limit: usize) -> Result<usize, usize> {
        // Relaxed: see 1. Whatever value is seen, all that follows is right for it.
        let mut at = self.0.load(Ordering::Relaxed);
        loop {
            let room = limit - at;
            let padding = at.wrapping_neg() & mask;
            // Each is below 2^63 (2^31), so the sum does not wrap.
            let need = padding + size;
            if need > room {
                return Err(room.saturating_sub(padding));
            }
            // Relaxed: see 2. What was written into the memory before is passed on by whoever
            // passes on the arena.
            match self.0.compare_exchange_weak(at, at + need, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Ok(at + padding),
                Err(_) => {
                    // Let the other go on for a while; see 4.
                    (0..PAUSES).for_each(|_| std::hint::spin_loop());
                    // Relaxed: as the first load.
                    at = self.0.load(Ordering::Relaxed);
                }
            }
        }
    }

    /// Where it stands, or stood a moment ago. Whatever this thread knows to have been taken is
    /// below.
    #[inline]
    pub(super) fn at(&self) -> usize {
        // Relaxed: one word, which agrees with itself; see 2.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it back. Nobody else can look at it meanwhile, and whoever does so later was given the
    /// arena by this thread.
    pub(super) fn set(&mut self, at: usize) {
        // Relaxed: the exclusive borrow orders this before and after everybody else's use.
        self.0.store(at, Ordering::Relaxed);
    }
}
