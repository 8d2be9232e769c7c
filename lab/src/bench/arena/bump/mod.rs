//! Bump arenas: contenders that allocate ranges from one end to the other, and the loops that time
//! them.
//!
//! Each loop creates its own arena on address space that no thread touches. An allocation writes no
//! byte of the range it returns, so no page fault is timed. Size and alignment pass through an
//! optimization barrier at every call, as if the caller's sizes varied; this costs each contender
//! the same nanosecond.

mod published_arena;

pub use self::published_arena::PublishedArena;

use std::alloc::Layout;
use std::hint::{black_box, spin_loop};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use kvmem::arena::{BumpArena, Memory};

use super::mapping::Mapping;
use crate::bench::clock::Stopwatch;
use crate::bench::team::{bind, cores, side_by_side};

/// The alignment of every request, in bytes: the smallest that the published arena gives.
pub const ALIGN: usize = 64;

/// Bytes of the arena in which calls fail.
const FULL_ARENA: usize = 1 << 20;
/// Attempts at a turn of several threads, the first included.
const TRIES: u32 = 5;
/// The share of such a turn, from the first start to the last end, during which all threads must be
/// running.
const MIN_OVERLAP: f64 = 0.7;

/// An arena that serves allocations and never frees one.
pub trait Bump: Sized {
    /// Creates an arena of at least `capacity` bytes.
    fn create(capacity: usize) -> Result<Self>;

    /// Returns `size` bytes at a multiple of `align`, or `None` when the arena is full.
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>>;
}

/// The library's arena on the same kind of mapping as the other contenders.
#[derive(Debug)]
pub struct KvmemArena(BumpArena<Mapping>);

impl Bump for KvmemArena {
    fn create(capacity: usize) -> Result<Self> {
        Ok(Self(BumpArena::new(Mapping::reserve(capacity)?)))
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.allocate_bytes(size, align).ok().map(NonNull::cast)
    }
}

/// A bump pointer behind a mutex, without statistics: the simplest arena that threads can share.
#[derive(Debug)]
pub struct MutexArena {
    /// Bytes allocated so far, from the start.
    used: Mutex<usize>,
    mapping: Mapping,
}

impl Bump for MutexArena {
    fn create(capacity: usize) -> Result<Self> {
        Ok(Self { used: Mutex::new(0), mapping: Mapping::reserve(capacity)? })
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let base = self.mapping.base().as_ptr() as usize;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (base + *used).checked_next_multiple_of(align)? - base;
        let end = start.checked_add(size)?;
        if end > self.mapping.len() {
            return None;
        }
        *used = end;
        // SAFETY: `start` is within the mapping.
        Some(unsafe { self.mapping.base().add(start) })
    }
}

/// One chunk of the crate's arena, which bumps downwards without atomic operations. The allocation
/// limit keeps it from getting another.
#[derive(Debug)]
pub struct Bumpalo(bumpalo::Bump);

impl Bump for Bumpalo {
    fn create(capacity: usize) -> Result<Self> {
        let arena = bumpalo::Bump::try_with_capacity(capacity)
            .map_err(|_| anyhow!("the system allocates no chunk of {capacity} bytes"))?;
        arena.set_allocation_limit(Some(arena.allocated_bytes()));
        Ok(Self(arena))
    }

    #[inline]
    fn allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.try_alloc_layout(Layout::from_size_align(size, align).ok()?).ok()
    }
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
fn arena_for<B: Bump>(size: usize, ops: u64) -> Result<B> {
    // One more: the arena's first byte need not be aligned.
    let capacity = usize::try_from(ops + 1).ok().and_then(|ops| ops.checked_mul(size));
    B::create(capacity.context("the allocations exceed the address space")?)
}

fn all_served(served: u64, ops: u64) -> Result<()> {
    ensure!(served == ops, "only {served} of {ops} allocations succeeded in an arena for all");
    Ok(())
}

/// Returns the nanoseconds per allocation of one thread.
pub(crate) fn alone<B: Bump>(size: usize, ops: u64) -> Result<f64> {
    let arena: B = arena_for(size, ops)?;
    let watch = Stopwatch::start();
    let served = hammer(&arena, size, ops);
    let ns = watch.ns_per_op(ops);
    all_served(served, ops)?;
    Ok(ns)
}

/// Returns the nanoseconds of a thread's processor time per allocation when `threads` share one
/// arena: the mean of the threads. A sleeping thread is not charged, which favours the mutex.
///
/// The loop measures contention, so the threads must run at the same time. On a busy machine, short
/// loops easily run one after the other on one processor. Three things keep the threads together:
/// each thread is bound to its own processor while there are enough of them; the threads spin, not
/// sleep, until all have arrived; and a turn is repeated, up to five times in all, if its first
/// thread ended before the last had done most of its work.
pub(crate) fn together<B: Bump + Sync>(size: usize, ops: u64, threads: u32) -> Result<f64> {
    let (each, cores) = ((ops / u64::from(threads)).max(1), cores());
    let oversubscribed = threads as usize > cores.len();
    let mut tries = 0;
    loop {
        let arena: B = arena_for(size, each * u64::from(threads))?;
        let waiting = AtomicU32::new(threads);
        let work = |index| {
            bind(&cores, index);
            // AcqRel and Acquire pair with each other: no thread reads its clock before all threads
            // have arrived.
            waiting.fetch_sub(1, Ordering::AcqRel);
            while waiting.load(Ordering::Acquire) > 0 {
                if oversubscribed { thread::yield_now() } else { spin_loop() }
            }
            let (start, watch) = (Instant::now(), Stopwatch::start());
            let served = hammer(&arena, size, each);
            (watch.ns_per_op(each), served, [start, Instant::now()])
        };
        let seen = side_by_side(threads as usize, &work, |go| go())?;
        all_served(seen.iter().map(|(_, served, _)| served).sum(), each * u64::from(threads))?;
        tries += 1;
        // Threads that share a processor take turns in any case.
        if oversubscribed || tries == TRIES || overlapped(seen.iter().map(|(.., run)| *run)) {
            return Ok(seen.iter().map(|(ns, ..)| ns).sum::<f64>() / f64::from(threads));
        }
    }
}

/// Returns whether all threads, of which each has a start and an end, ran at the same time for most
/// of the turn.
fn overlapped(runs: impl Iterator<Item = [Instant; 2]>) -> bool {
    let (starts, ends): (Vec<_>, Vec<_>) = runs.map(|[start, end]| (start, end)).unzip();
    let (Some(first), Some(all_started)) = (starts.iter().min(), starts.iter().max()) else {
        return true;
    };
    let (Some(one_ended), Some(last)) = (ends.iter().min(), ends.iter().max()) else { return true };
    let shared = one_ended.saturating_duration_since(*all_started).as_secs_f64();
    shared >= MIN_OVERLAP * (*last - *first).as_secs_f64()
}

/// Returns the nanoseconds per call that fails because the arena is full.
pub(crate) fn full<B: Bump>(size: usize, ops: u64) -> Result<f64> {
    let arena: B = B::create(FULL_ARENA)?;
    while arena.allocate(size, ALIGN).is_some() {}
    let watch = Stopwatch::start();
    let served = hammer(&arena, size, ops);
    let ns = watch.ns_per_op(ops);
    ensure!(served == 0, "{served} of {ops} allocations succeeded in a full arena");
    Ok(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn runs_one_after_the_other_do_not_overlap() {
        let zero = Instant::now();
        let overlap = |runs: &[[u64; 2]]| {
            overlapped(runs.iter().map(|run| run.map(|ms| zero + Duration::from_millis(ms))))
        };
        assert!(overlap(&[[0, 10], [1, 9]]) && overlap(&[]));
        assert!(!overlap(&[[0, 10], [5, 14]]) && !overlap(&[[0, 10], [11, 20]]));
    }
}
