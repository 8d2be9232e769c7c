//! Bump arenas: contenders that allocate ranges from one end to the other, and the loops that time
//! them.
//!
//! Each loop creates its own arena on address space that no thread touches. An allocation writes no
//! byte of the range it returns, so no page fault is timed. Size and alignment pass through an
//! optimization barrier at every call, as if the caller's sizes varied; this costs each contender
//! the same nanosecond.

mod bumpalo;
mod kvmem;
mod mutex;
mod published_arena;
mod side_by_side;

pub use self::bumpalo::Bumpalo;
pub use self::kvmem::KvmemArena;
pub use self::mutex::MutexArena;
pub use self::published_arena::PublishedArena;

use std::hint::black_box;
use std::ptr::NonNull;

use super::ArenaMeasureError;
use crate::bench::clock::Stopwatch;

/// The alignment of every request, in bytes: the smallest that the published arena gives.
pub const ALIGN: usize = 64;

/// Bytes of the arena in which calls fail.
const FULL_ARENA: usize = 1 << 20;

/// An arena that serves allocations and never frees one.
pub trait Bump: Sized {
    /// Creates an arena of at least `capacity` bytes.
    ///
    /// # Errors
    /// [`ArenaMeasureError`] if there is no address space for it.
    fn create(capacity: usize) -> Result<Self, ArenaMeasureError>;

    /// Returns `size` bytes at a multiple of `align`, or `None` when the arena is full.
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>>;
}

/// Allocates `ops` times and returns the number of calls that succeeded.
#[inline(never)]
fn hammer<B: Bump>(arena: &B, size: usize, ops: u64) -> u64 {
    let mut served = 0;
    for _ in 0..ops {
        let block = arena.allocate(black_box(size), black_box(ALIGN));
        served += u64::from(black_box(block).is_some());
    }
    served
}

/// Creates an arena in which `ops` allocations of `size` bytes succeed.
fn arena_for<B: Bump>(size: usize, ops: u64) -> Result<B, ArenaMeasureError> {
    // One more: the arena's first byte need not be aligned.
    let capacity = usize::try_from(ops + 1).ok().and_then(|ops| ops.checked_mul(size));
    B::create(capacity.ok_or(ArenaMeasureError::TooLarge { size, ops })?)
}

fn all_served(served: u64, ops: u64) -> Result<(), ArenaMeasureError> {
    if served == ops { Ok(()) } else { Err(ArenaMeasureError::Failed { served, ops }) }
}

/// Returns the nanoseconds per allocation of one thread.
pub(crate) fn alone<B: Bump>(size: usize, ops: u64) -> Result<f64, ArenaMeasureError> {
    let arena: B = arena_for(size, ops)?;
    let watch = Stopwatch::start();
    let served = hammer(&arena, size, ops);
    let ns = watch.ns_per_op(ops);
    all_served(served, ops)?;
    Ok(ns)
}

/// Returns the nanoseconds of a thread's processor time per allocation when `threads` share one
/// arena: the mean of the threads.
///
/// The threads run at the same time (see [`side_by_side`]). A sleeping thread is not charged, which
/// favours the mutex.
pub(crate) fn together<B: Bump + Sync>(
    size: usize,
    ops: u64,
    threads: u32,
) -> Result<f64, ArenaMeasureError> {
    let each = (ops / u64::from(threads)).max(1);
    let seen: Vec<(f64, u64)> = side_by_side::run(
        threads,
        || arena_for::<B>(size, each * u64::from(threads)),
        |arena| {
            let watch = Stopwatch::start();
            let served = hammer(arena, size, each);
            (watch.ns_per_op(each), served)
        },
    )?;
    all_served(seen.iter().map(|(_, served)| served).sum(), each * u64::from(threads))?;
    Ok(seen.iter().map(|(ns, _)| ns).sum::<f64>() / f64::from(threads))
}

/// Returns the nanoseconds per call that fails because the arena is full.
pub(crate) fn full<B: Bump>(size: usize, ops: u64) -> Result<f64, ArenaMeasureError> {
    let arena: B = B::create(FULL_ARENA)?;
    while arena.allocate(size, ALIGN).is_some() {}
    let watch = Stopwatch::start();
    let served = hammer(&arena, size, ops);
    let ns = watch.ns_per_op(ops);
    if served == 0 { Ok(ns) } else { Err(ArenaMeasureError::Served { served, ops }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Checks that ranges are aligned and disjoint, and that as many are served as fit.
    fn serves_what_fits<B: Bump>(name: &str) {
        let arena = B::create(64 * 100).unwrap();
        let mut seen = BTreeSet::new();
        while let Some(block) = arena.allocate(48, ALIGN) {
            assert_eq!(block.as_ptr() as usize % ALIGN, 0, "{name}");
            assert!(seen.insert(block.as_ptr() as usize), "{name}");
        }
        // One less if the first byte is not aligned; more if the capacity is rounded up to pages.
        assert!((99..=256).contains(&seen.len()), "{name}: {}", seen.len());
        let gaps = seen.iter().zip(seen.iter().skip(1)).map(|(a, b)| b - a);
        assert!(gaps.min() >= Some(48), "{name}");
    }

    #[test]
    fn every_contender_serves_what_fits() {
        serves_what_fits::<KvmemArena>("kvmem");
        serves_what_fits::<PublishedArena>("published-arena");
        serves_what_fits::<MutexArena>("mutex");
        serves_what_fits::<Bumpalo>("bumpalo");
    }

    #[test]
    fn loops_count_what_they_time() {
        assert!(alone::<Bumpalo>(64, 1000).unwrap() > 0.0);
        assert!(together::<PublishedArena>(4096, 1000, 3).unwrap() > 0.0);
        assert!(together::<MutexArena>(64, 1000, 2).unwrap() > 0.0);
        assert!(full::<PublishedArena>(64, 100).unwrap() > 0.0);
        assert!(full::<KvmemArena>(64, 100).unwrap() > 0.0);
        assert!(matches!(
            alone::<MutexArena>(usize::MAX, 8),
            Err(ArenaMeasureError::TooLarge { .. })
        ));
    }
}
