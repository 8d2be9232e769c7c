//! The cursor of a bump arena: it hands out no byte twice, adds padding only for alignment, and
//! fails no request that fits.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::arena::{BumpArena, BumpError, HeapMemory};
use crate::sync::models::spawn;

type Arena = BumpArena<HeapMemory>;
/// The alignment and the range of an allocation, or the largest size that would have fit.
type Answer = Result<(usize, std::ops::Range<usize>), usize>;

/// Makes an arena whose first byte is at a multiple of 64.
fn arena(capacity: usize) -> Arc<Arena> {
    Arc::new(BumpArena::new(HeapMemory::new(capacity, 64).expect("a little memory")))
}

fn allocate(arena: &Arena, size: usize, align: usize) -> Answer {
    match arena.allocate_bytes(size, align) {
        Ok(bytes) => {
            let start = bytes.cast::<u8>().addr().get() - arena.base().addr().get();
            Ok((align, start..start + bytes.len()))
        }
        Err(BumpError::Full { requested, remaining }) => {
            assert!(requested == size && remaining < size);
            Err(remaining)
        }
        Err(error) => panic!("{error}"),
    }
}

/// Makes each request in its own thread, the last one in this thread.
fn all_at_once(arena: &Arc<Arena>, requests: &[(usize, usize)]) -> Vec<Answer> {
    let (last, others) = requests.split_last().expect("there are some");
    let threads: Vec<_> = others
        .iter()
        .map(|&(size, align)| spawn(&arena, move |arena| allocate(&arena, size, align)))
        .collect();
    let last = allocate(arena, last.0, last.1);
    threads.into_iter().map(|thread| thread.join().unwrap()).chain([last]).collect()
}

/// Checks that the allocations are adjacent, with padding only for alignment.
fn assert_adjacent(arena: &Arena, answers: &[Answer]) {
    let mut allocated: Vec<_> = answers.iter().filter_map(|answer| answer.clone().ok()).collect();
    allocated.sort_by_key(|(_, range)| range.start);
    let end = allocated.iter().fold(0, |end: usize, (align, range)| {
        assert_eq!(range.start, end.next_multiple_of(*align), "{allocated:?}");
        range.end
    });
    assert_eq!(arena.stats().used, end);
}

#[test]
fn padding_is_exact_in_every_order() {
    loom::model(|| {
        let arena = arena(64);
        let answers = all_at_once(&arena, &[(3, 1), (8, 8), (5, 4)]);
        assert!(answers.iter().all(Result::is_ok), "there is room for all: {answers:?}");
        assert_adjacent(&arena, &answers);
    });
}

#[test]
fn the_last_bytes_go_to_one_thread() {
    loom::model(|| {
        let arena = arena(10);
        let answers = all_at_once(&arena, &[(4, 1), (4, 1), (4, 1)]);
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2, "{answers:?}");
        assert!(answers.contains(&Err(2)));
        assert_adjacent(&arena, &answers);
    });
}

/// Six and four bytes do not both fit, but two fit next to either: that request never fails because
/// of a failing one.
#[test]
fn requests_that_fit_succeed() {
    loom::model(|| {
        let arena = arena(8);
        let answers = all_at_once(&arena, &[(6, 1), (4, 1), (2, 1)]);
        assert!(answers[2].is_ok(), "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1, "{answers:?}");
        assert_adjacent(&arena, &answers);
    });
}

#[test]
fn statistics_include_published_allocations() {
    loom::model(|| {
        let arena = arena(64);
        let published = Arc::new(AtomicUsize::new(0));
        let publisher = {
            let (arena, published) = (arena.clone(), published.clone());
            thread::spawn(move || {
                allocate(&arena, 10, 1).expect("there is room");
                published.store(1, Ordering::Release);
            })
        };
        if published.load(Ordering::Acquire) == 1 {
            assert_eq!(arena.stats().used, 10);
            assert_eq!(allocate(&arena, 60, 1), Err(54));
        }
        let stats = arena.stats();
        assert!(matches!(stats.used, 0 | 10) && stats.used + stats.remaining == 64);
        publisher.join().unwrap();
    });
}
