//! Eight threads use one arena; a table records the owner of each byte.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use kvmem::arena::{BumpArena, BumpError, Memory};
use kvmem_testkit::random::Random;

use super::arena;

const THREADS: u8 = 8;

/// An allocation of a thread: its alignment, and its range counted from the base.
type Granted = (usize, Range<usize>);

/// Allocates until `failures` requests have failed, and marks the allocated bytes.
fn take_all<M: Memory>(
    arena: &BumpArena<M>,
    owners: &[AtomicU8],
    mut next: impl FnMut() -> (usize, usize),
    failures: u32,
) -> Vec<Granted> {
    let base = arena.base().addr().get();
    let mut granted: Vec<Granted> = Vec::new();
    let mut sum = 0;
    let mut failed = 0;
    while failed < failures {
        let (size, align) = next();
        match arena.allocate_bytes(size, align) {
            Ok(bytes) => {
                let at = bytes.cast::<u8>().addr().get();
                assert_eq!((at % align, bytes.len()), (0, size));
                assert!(
                    granted.last().is_none_or(|(_, last)| last.end <= at - base),
                    "the cursor went back"
                );
                for owner in &owners[at - base..at - base + size] {
                    assert_eq!(owner.swap(1, Ordering::Relaxed), 0, "a byte has two owners");
                }
                sum += size;
                granted.push((align, at - base..at - base + size));
            }
            Err(BumpError::Full { requested, remaining }) => {
                assert!(
                    requested == size && remaining < size && remaining <= arena.capacity() - sum
                );
                failed += 1;
            }
            Err(error) => panic!("{error}"),
        }
        let stats = arena.stats();
        assert_eq!(stats.used + stats.remaining, stats.capacity);
        assert!(stats.used >= sum, "{stats:?}: this thread alone has {sum} bytes");
    }
    granted
}

/// Runs all threads at once, then checks the sorted ranges.
fn run<N: FnMut() -> (usize, usize)>(
    capacity: usize,
    failures: u32,
    next: impl Fn(u64) -> N + Sync,
) -> usize {
    let arena = arena(capacity);
    let owners: Vec<AtomicU8> = (0..capacity).map(|_| AtomicU8::new(0)).collect();
    let barrier = Barrier::new(THREADS.into());
    let mut granted: Vec<Granted> = thread::scope(|scope| {
        let threads: Vec<_> = (0..u64::from(THREADS))
            .map(|me| {
                let (arena, owners, barrier, next) = (&arena, &owners, &barrier, &next);
                scope.spawn(move || {
                    let next = next(me);
                    barrier.wait();
                    take_all(arena, owners, next, failures)
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    granted.sort_by_key(|(_, range)| range.start);
    let base = arena.base().addr().get();
    let mut end = 0;
    for (align, range) in &granted {
        let due = (base + end).next_multiple_of(*align) - base;
        assert_eq!(
            range.start, due,
            "between allocations there is only the padding that alignment needs"
        );
        end = range.end;
    }
    assert_eq!(arena.stats().used, end, "failed requests have taken nothing");
    granted.iter().map(|(_, range)| range.len()).sum()
}

#[test]
fn no_byte_has_two_owners() {
    for seed in 0..10 {
        let sum = run(1 << 18, 50, |me| {
            let mut random = Random::new(100 * seed + me);
            move || {
                let max = if random.once_in(100) { 30_000 } else { 500 };
                let shifts = if random.once_in(50) { 15 } else { 8 };
                (1 + random.log_below(max) as usize, 1 << random.below(shifts))
            }
        });
        assert!(sum > 1 << 16, "only {sum} bytes were allocated");
    }
}

/// Every byte is allocated exactly once, although all threads compete for the last one.
#[test]
fn the_last_byte_is_handed_out_once() {
    for _ in 0..200 {
        assert_eq!(run(1000, 3, |_| || (1, 1)), 1000);
        assert_eq!(run(1000, 3, |me| move || (me as usize % 3 + 1, 1)), 1000);
    }
}

#[test]
fn written_bytes_stay() {
    let mut arena = arena(1 << 20);
    for round in 0..20u8 {
        let pieces: Vec<(u8, &mut [MaybeUninit<u8>])> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|me| {
                    let arena = &arena;
                    scope.spawn(move || {
                        let mut random = Random::new(u64::from(round) * 8 + u64::from(me));
                        let mut pieces = Vec::new();
                        while let Ok(piece) = arena
                            .allocate_uninit(1 + random.below(2000) as usize, 1 << random.below(7))
                        {
                            piece.fill(MaybeUninit::new(me ^ round));
                            pieces.push((me ^ round, piece));
                        }
                        pieces
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for (byte, piece) in pieces {
            // SAFETY: the slice was filled above.
            assert!(piece.iter().all(|cell| unsafe { cell.assume_init() } == byte));
        }
        arena.reset();
    }
}
