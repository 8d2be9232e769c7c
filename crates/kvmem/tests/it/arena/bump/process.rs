//! The process arena: one pool, and mappings for other requests.

use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kvmem::arena::{
    ArenaSettings, BumpError, Errno, FreeError, FreeOutcome, ProcessAllocError, ProcessArena,
    SetupError,
};
use kvmem_testkit::random::Random;

const MIB: usize = 1 << 20;

fn with_pool(bytes: usize) -> ProcessArena {
    ProcessArena::new(ArenaSettings::pool(bytes)).expect("a little memory")
}

/// Checks that the bytes are zero, and fills them with `byte`.
fn fill(bytes: NonNull<[u8]>, byte: u8) -> NonNull<u8> {
    // SAFETY: the bytes were just allocated, and no other code has them.
    let all = unsafe { &mut *bytes.as_ptr() };
    assert!(all.iter().all(|byte| *byte == 0), "not zero");
    all.fill(byte);
    bytes.cast()
}

fn unknown(address: NonNull<u8>) -> Result<FreeOutcome, FreeError> {
    Err(FreeError::Unknown { address: address.addr().get() })
}

/// # Safety
///
/// The conditions of [`ProcessArena::free`].
unsafe fn free(arena: &ProcessArena, address: NonNull<u8>) -> Result<FreeOutcome, FreeError> {
    // SAFETY: the caller's guarantee.
    unsafe { arena.free(address) }
}

#[test]
fn without_a_pool_every_request_is_mapped() {
    let arena = ProcessArena::new(ArenaSettings::off()).unwrap();
    let first = fill(arena.allocate(1, 1).unwrap(), 1);
    let second = fill(arena.allocate(MIB + 1, 64).unwrap(), 2);
    let stats = arena.stats();
    assert_eq!((stats.pool, stats.pool_allocations, stats.pool_frees), (None, 0, 0));
    assert_eq!((stats.mapped_allocations, stats.mapped_frees), (2, 0));
    let page = rustix::param::page_size();
    assert_eq!(stats.mapped_bytes, page + (MIB + 1).next_multiple_of(page));
    // SAFETY: neither allocation is used afterwards.
    unsafe {
        assert_eq!(free(&arena, first), Ok(FreeOutcome::Unmapped { bytes: page }));
        assert_eq!(free(&arena, first), unknown(first));
        assert_eq!(free(&arena, second.add(page)), unknown(second.add(page)), "inside of one");
        assert!(free(&arena, second).is_ok());
    }
    let stats = arena.stats();
    assert_eq!((stats.mapped_allocations, stats.mapped_frees, stats.mapped_bytes), (2, 2, 0));
}

#[test]
fn a_full_pool_maps_and_still_serves_small_requests() {
    let arena = with_pool(MIB);
    let pooled = fill(arena.allocate(MIB - 100, 64).unwrap(), 1);
    let mapped = fill(arena.allocate(101, 1).unwrap(), 2);
    let last = fill(arena.allocate(100, 1).unwrap(), 3);
    assert!(
        arena.owns(pooled.as_ptr()) && arena.owns(mapped.as_ptr()) && arena.owns(last.as_ptr())
    );
    let stats = arena.stats();
    assert_eq!(stats.pool.map(|pool| pool.remaining), Some(0));
    assert_eq!((stats.pool_allocations, stats.mapped_allocations), (2, 1));
    // SAFETY: no allocation is used afterwards.
    unsafe {
        assert_eq!(free(&arena, pooled), Ok(FreeOutcome::Counted));
        assert!(matches!(free(&arena, mapped), Ok(FreeOutcome::Unmapped { .. })));
        assert_eq!(free(&arena, last), Ok(FreeOutcome::Counted));
        let error = FreeError::AllFreed { address: last.addr().get(), allocations: 2 };
        assert_eq!(free(&arena, last), Err(error), "one too many");
    }
    assert_eq!(arena.stats().pool_frees, 2);
    assert!(!arena.owns(mapped.as_ptr()));
}

#[test]
fn foreign_addresses_are_not_freed() {
    let arena = with_pool(MIB);
    let other = with_pool(MIB);
    let mine = arena.allocate(100, 1).unwrap().cast::<u8>();
    let theirs = other.allocate(100, 1).unwrap().cast::<u8>();
    let mapped = other.allocate(2 * MIB, 1).unwrap().cast::<u8>();
    let local = NonNull::from(&0u8);
    // SAFETY: freed allocations are not used afterwards; other addresses are not freed.
    unsafe {
        for stranger in [theirs, mapped, local, NonNull::dangling(), mine.add(100)] {
            assert_eq!(free(&arena, stranger), unknown(stranger));
            assert!(!arena.owns(stranger.as_ptr()));
        }
        assert_eq!(arena.stats().pool_frees, 0);
        assert_eq!(free(&other, theirs), Ok(FreeOutcome::Counted));
        assert!(free(&other, mapped).is_ok());
    }
}

/// Mappings have the requested alignment, like allocations of the pool.
#[test]
fn mappings_have_the_requested_alignment() {
    let arena = ProcessArena::new(ArenaSettings::off()).unwrap();
    for shift in 0..=30 {
        let bytes = arena.allocate(100, 1 << shift).unwrap();
        assert_eq!(bytes.cast::<u8>().addr().get() % (1 << shift), 0);
        fill(bytes, 1);
    }
}

#[test]
fn invalid_requests_fail_and_map_nothing() {
    for arena in [with_pool(MIB), ProcessArena::new(ArenaSettings::off()).unwrap()] {
        let invalid = [
            (0, 1, BumpError::Zero),
            (1, 3, BumpError::BadAlign { align: 3 }),
            (usize::MAX, 1, BumpError::Overflow { requested: usize::MAX, align: 1 }),
        ];
        for (size, align, error) in invalid {
            assert_eq!(arena.allocate(size, align), Err(ProcessAllocError::Invalid(error)));
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
            matches!(error, SetupError::Map { pool_bytes: found, .. } if found == pool_bytes),
            "{error}"
        );
        assert!(error.to_string().contains("KVMEM_DISABLE_ARENA=1"), "{error}");
    }
}

/// Eight threads allocate, write, check and free, beyond the size of the pool, while one thread
/// reads the statistics.
#[test]
fn threads_share_it() {
    const THREADS: u64 = 8;
    let arena = with_pool(4 * MIB);
    let barrier = Barrier::new(THREADS as usize);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            // Relaxed: one more round does not matter.
            while !done.load(Ordering::Relaxed) {
                let stats = arena.stats();
                let pool = stats.pool.unwrap();
                assert_eq!(pool.used + pool.remaining, pool.capacity);
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
                            // SAFETY: the allocation belongs to this thread and has this length.
                            let bytes =
                                unsafe { std::slice::from_raw_parts(address.as_ptr(), size) };
                            assert!(
                                bytes.iter().all(|byte| *byte == me as u8 + 1),
                                "another thread wrote here"
                            );
                            // SAFETY: the allocation is not used afterwards.
                            unsafe { free(arena, address) }.unwrap();
                        }
                    }
                    // SAFETY: the allocations are not used afterwards.
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
