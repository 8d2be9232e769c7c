//! Threads that collide divide the arena in chunks.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;

use kvmem::arena::{BumpArena, BumpError};
use kvmem_testkit::random::Random;

use super::{Reservation, figures};

const THREADS: usize = 8;
/// A chunk of such an arena has 64 KiB.
const LEN: usize = 256 << 20;
const CHUNK: usize = 64 << 10;
/// The longest request that chunks serve, padding included.
const LONGEST: usize = CHUNK / 16;

/// Allocates in all threads, until the arena is full or each thread has served `max` requests.
fn fill(
    arena: &BumpArena<Reservation>,
    max: usize,
    next: impl Fn(&mut Random) -> (usize, usize) + Sync,
) -> Vec<Range<usize>> {
    let barrier = Barrier::new(THREADS);
    let work = |me: usize| {
        let (mut random, mut taken) = (Random::new(me as u64), Vec::new());
        barrier.wait();
        while taken.len() < max {
            let (size, align) = next(&mut random);
            match arena.allocate_bytes(size, align) {
                Ok(bytes) => {
                    let start = bytes.cast::<u8>().addr().get();
                    assert_eq!((start % align, bytes.len()), (0, size));
                    taken.push(start..start + size);
                }
                Err(BumpError::Full { requested, remaining }) => {
                    assert!(requested == size && remaining < size);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let stats = arena.stats();
        assert_eq!(stats.used + stats.remaining, stats.capacity);
        taken
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                let work = &work;
                scope.spawn(move || work(me))
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns whether the threads of an arena use chunks: then addresses are not handed out in order.
fn is_chunked(arena: &BumpArena<Reservation>) -> bool {
    let stats = arena.stats();
    let next = arena.base().addr().get() + stats.used;
    let at = arena.allocate_bytes(1, 1).unwrap().cast::<u8>().addr().get();
    at != next
}

/// Makes threads collide until they use chunks. Returns what they allocated.
fn collide(arena: &BumpArena<Reservation>) -> Vec<Range<usize>> {
    let mut taken = Vec::new();
    for _ in 0..1000 {
        taken.extend(fill(arena, 2000, |_| (64, 64)));
        if is_chunked(arena) {
            return taken;
        }
    }
    panic!("the threads never collided");
}

fn assert_disjoint(arena: &BumpArena<Reservation>, mut taken: Vec<Range<usize>>) -> usize {
    taken.sort_by_key(|range| range.start);
    let end = taken.iter().fold(arena.base().addr().get(), |end, range| {
        assert!(range.start >= end, "{range:?} overlaps what ends at {end}");
        range.end
    });
    assert!(end <= arena.base().addr().get() + LEN);
    taken.iter().map(Range::len).sum()
}

/// Requests of one power of two use every byte, whichever thread holds it.
#[test]
fn equal_requests_use_the_last_byte() {
    let mut arena = BumpArena::new(Reservation::new(LEN, 0));
    collide(&arena);
    // The byte that `is_chunked` took is in the way otherwise.
    for _ in 0..2 {
        let taken = fill(&arena, usize::MAX, |_| (256, 64));
        assert!(!taken.is_empty());
        let one = arena.allocate_bytes(256, 64);
        assert!(matches!(one, Err(BumpError::Full { .. })), "{one:?}");
        let (_, _, remaining) = figures(arena.stats());
        // The smallest requests use what is left.
        let rest = fill(&arena, usize::MAX, |_| (1, 1));
        assert_eq!((rest.len(), arena.stats().remaining), (remaining, 0));
        assert_disjoint(&arena, taken.into_iter().chain(rest).collect());
        arena.reset();
        assert_eq!(figures(arena.stats()), (LEN, 0, LEN));
        collide(&arena);
    }
}

/// Of each chunk less than the longest request from chunks is skipped, and nothing else is lost.
#[test]
fn random_requests_lose_little() {
    for seed in 0..5 {
        let arena = BumpArena::new(Reservation::new(LEN, seed * 100));
        let before = collide(&arena);
        let next = |random: &mut Random| match random.once_in(50) {
            // Longer than a chunk serves.
            true => (LONGEST + random.below(4 * CHUNK as u64) as usize, 64),
            false => (1 + random.below(2000) as usize, 1 << random.below(8)),
        };
        let mut taken = fill(&arena, usize::MAX, next);
        taken.extend(before);
        taken.extend(fill(&arena, usize::MAX, |_| (1, 1)));
        assert_eq!(arena.stats().remaining, 0);
        let sum = assert_disjoint(&arena, taken);
        let lost = LEN - sum;
        // Requests are aligned to up to 128 bytes, in pieces of 1,000 on average.
        assert!(lost < LEN / 16 + LEN / 10, "{lost} bytes are lost");
    }
}

/// One thread, and threads that do not collide, allocate from the first byte to the last.
#[test]
fn a_thread_alone_has_no_chunk() {
    let arena = BumpArena::new(Reservation::new(LEN, 0));
    let base = arena.base().addr().get();
    for i in 0..100_000 {
        let bytes = arena.allocate_bytes(64, 64).unwrap();
        assert_eq!(bytes.cast::<u8>().addr().get(), base + 64 * i);
    }
    assert!(!is_chunked(&arena));
}

#[test]
fn a_reset_ends_the_chunks() {
    let mut arena = BumpArena::new(Reservation::new(LEN, 0));
    collide(&arena);
    arena.reset();
    assert!(!is_chunked(&arena));
}
