//! A pool with mappings beside it.

use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem::arena::{
    ArenaSettings, BumpError, Errno, FreeError, Freed, ProcessAllocError, ProcessArena, SetupError,
};
use kvmem_testkit::random::Random;

const MIB: usize = 1 << 20;

fn with_pool(bytes: usize) -> ProcessArena {
    ProcessArena::new(ArenaSettings::pool(bytes)).expect("a little memory")
}

/// Fills what was given with one byte, having looked that it is fresh.
fn fill(bytes: NonNull<[u8]>, byte: u8) -> NonNull<u8> {
    // SAFETY: it was just allocated, as long as it says, and nobody else has it.
    let all = unsafe { &mut *bytes.as_ptr() };
    assert!(all.iter().all(|byte| *byte == 0), "not fresh");
    all.fill(byte);
    bytes.cast()
}

fn unknown(address: NonNull<u8>) -> Result<Freed, FreeError> {
    Err(FreeError::Unknown { address: address.addr().get() })
}

/// # Safety
///
/// As [`ProcessArena::free`].
unsafe fn free(arena: &ProcessArena, address: NonNull<u8>) -> Result<Freed, FreeError> {
    // SAFETY: passed on.
    unsafe { arena.free(address) }
}

#[test]
fn off_means_mappings() {
    let arena = ProcessArena::new(ArenaSettings::off()).unwrap();
    let first = fill(arena.allocate(1, 1).unwrap(), 1);
    let second = fill(arena.allocate(MIB + 1, 64).unwrap(), 2);
    let stats = arena.stats();
    assert_eq!((stats.pool, stats.pool_allocations, stats.pool_frees), (None, 0, 0));
    assert_eq!((stats.mapped_allocations, stats.mapped_frees), (2, 0));
    let page = rustix::param::page_size();
    assert_eq!(stats.mapped_bytes, page + (MIB + 1).next_multiple_of(page));
    // SAFETY: neither is used afterwards.
    unsafe {
        assert_eq!(free(&arena, first), Ok(Freed::Unmapped { bytes: page }));
        assert_eq!(free(&arena, first), unknown(first));
        assert_eq!(free(&arena, second.add(page)), unknown(second.add(page)), "inside of one");
        assert!(free(&arena, second).is_ok());
    }
    let stats = arena.stats();
    assert_eq!((stats.mapped_allocations, stats.mapped_frees, stats.mapped_bytes), (2, 2, 0));
}

#[test]
fn full_means_mappings_and_what_fits_still_fits() {
    let arena = with_pool(MIB);
    let pooled = fill(arena.allocate(MIB - 100, 64).unwrap(), 1);
    let mapped = fill(arena.allocate(101, 1).unwrap(), 2);
    let last = fill(arena.allocate(100, 1).unwrap(), 3);
    assert!(
        arena.owns(pooled.as_ptr()) && arena.owns(mapped.as_ptr()) && arena.owns(last.as_ptr())
    );
    let stats = arena.stats();
    assert_eq!(stats.pool.map(|pool| pool.left), Some(0));
    assert_eq!((stats.pool_allocations, stats.mapped_allocations), (2, 1));
    // SAFETY: none is used afterwards.
    unsafe {
        assert_eq!(free(&arena, pooled), Ok(Freed::Counted));
        assert!(matches!(free(&arena, mapped), Ok(Freed::Unmapped { .. })));
        assert_eq!(free(&arena, last), Ok(Freed::Counted));
        let error = FreeError::AllFreed { address: last.addr().get(), allocations: 2 };
        assert_eq!(free(&arena, last), Err(error), "one too many");
    }
    assert_eq!(arena.stats().pool_frees, 2);
    assert!(!arena.owns(mapped.as_ptr()));
}

#[test]
fn strangers_are_not_freed() {
    let arena = with_pool(MIB);
    let other = with_pool(MIB);
    let mine = arena.allocate(100, 1).unwrap().cast::<u8>();
    let theirs = other.allocate(100, 1).unwrap().cast::<u8>();
    let mapped = other.allocate(2 * MIB, 1).unwrap().cast::<u8>();
    let local = NonNull::from(&0u8);
    // SAFETY: what is free of these is not used afterwards; the rest is not freed.
    unsafe {
        for stranger in [theirs, mapped, local, NonNull::dangling(), mine.add(100)] {
            assert_eq!(free(&arena, stranger), unknown(stranger));
            assert!(!arena.owns(stranger.as_ptr()));
        }
        assert_eq!(arena.stats().pool_frees, 0);
        assert_eq!(free(&other, theirs), Ok(Freed::Counted));
        assert!(free(&other, mapped).is_ok());
    }
}

/// As the pool does it, so the mappings do: the seed's fallback gave pages, whatever was asked for.
#[test]
fn mappings_are_as_aligned_as_was_asked_for() {
    let arena = ProcessArena::new(ArenaSettings::off()).unwrap();
    for shift in 0..=30 {
        let bytes = arena.allocate(100, 1 << shift).unwrap();
        assert_eq!(bytes.cast::<u8>().addr().get() % (1 << shift), 0);
        fill(bytes, 1);
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_not_mapped() {
    for arena in [with_pool(MIB), ProcessArena::new(ArenaSettings::off()).unwrap()] {
        let refused = [
            (0, 1, BumpError::Zero),
            (1, 3, BumpError::BadAlign { align: 3 }),
            (usize::MAX, 1, BumpError::Overflow { requested: usize::MAX, align: 1 }),
        ];
        for (size, align, error) in refused {
            assert_eq!(arena.allocate(size, align), Err(ProcessAllocError::Refused(error)));
        }
        let requested = isize::MAX as usize;
        let error = arena.allocate(requested, 1).unwrap_err();
        assert_eq!(error, ProcessAllocError::Map { requested, align: 1, errno: Errno::ENOMEM });
        let text = error.to_string();
        assert!(text.contains(&requested.to_string()) && text.contains("ulimit -v"), "{text}");
        assert_eq!(arena.stats().mapped_allocations, 0);
    }
}

#[test]
fn a_pool_that_cannot_be_mapped_is_an_error() {
    for pool_bytes in [isize::MAX as usize, usize::MAX, 0] {
        let error = ProcessArena::new(ArenaSettings::pool(pool_bytes)).unwrap_err();
        assert!(
            matches!(error, SetupError::Map { pool_bytes: told, .. } if told == pool_bytes),
            "{error}"
        );
        assert!(error.to_string().contains("KVMEM_DISABLE_ARENA=1"), "{error}");
    }
}

/// Eight threads that allocate, write, look and free, past the end of the pool; and one that reads
/// the figures.
#[test]
fn threads_share_it() {
    const THREADS: u64 = 8;
    let arena = with_pool(4 * MIB);
    let barrier = Barrier::new(THREADS as usize);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            // Relaxed: whether it is seen a round later does not matter.
            while !done.load(Ordering::Relaxed) {
                let stats = arena.stats();
                let pool = stats.pool.unwrap();
                assert_eq!(pool.used + pool.left, pool.capacity);
                assert!(stats.pool_frees <= stats.pool_allocations, "{stats:?}");
                assert!(stats.mapped_frees <= stats.mapped_allocations, "{stats:?}");
            }
        });
        let workers: Vec<_> = (0..THREADS)
            .map(|me| {
                let (arena, barrier) = (&arena, &barrier);
                scope.spawn(move || {
                    let mut random = Random::new(me);
                    let mut live: Vec<(NonNull<u8>, usize)> = Vec::new();
                    barrier.wait();
                    for _ in 0..600 {
                        let size = 1 + random.below(3000) as usize;
                        live.push((
                            fill(
                                arena.allocate(size, 1 << random.below(14)).unwrap(),
                                me as u8 + 1,
                            ),
                            size,
                        ));
                        if random.below(2) == 0 {
                            let (address, size) =
                                live.swap_remove(random.below(live.len() as u64) as usize);
                            // SAFETY: it is ours, and as long as that.
                            let bytes =
                                unsafe { std::slice::from_raw_parts(address.as_ptr(), size) };
                            assert!(
                                bytes.iter().all(|byte| *byte == me as u8 + 1),
                                "somebody else wrote here"
                            );
                            // SAFETY: it is not used afterwards.
                            unsafe { free(arena, address) }.unwrap();
                        }
                    }
                    // SAFETY: nor are these.
                    live.into_iter()
                        .for_each(|(address, _)| assert!(unsafe { free(arena, address) }.is_ok()));
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        looking.join().unwrap();
    });
    let stats = arena.stats();
    assert_eq!(stats.pool_allocations + stats.mapped_allocations, THREADS * 600);
    assert!(stats.pool_allocations > 0 && stats.mapped_allocations > 0, "{stats:?}");
    assert_eq!(stats.pool_frees, stats.pool_allocations);
    assert_eq!((stats.mapped_frees, stats.mapped_bytes), (stats.mapped_allocations, 0));
}
