//! The cursor of a bump arena: it hands out no byte twice, adds padding only for alignment, and
//! fails no request that fits. Its lanes: they hand out no byte twice and lose none.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::cursor::Cursor;
use super::lanes::BumpLanes;
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

/// The lanes and the cursor of an arena of eight chunks of 16 bytes.
struct Chunked {
    cursor: Cursor,
    lanes: BumpLanes,
}

const START: usize = 160;
const LIMIT: usize = START + 128;

impl Chunked {
    fn with_cursor_at(at: usize) -> Arc<Self> {
        let lanes = BumpLanes::new(LIMIT - START, LIMIT);
        assert!(lanes.exist());
        Arc::new(Chunked { cursor: Cursor::new(at), lanes })
    }

    /// Takes `size` bytes, aligned to it, as thread `number`.
    fn take(&self, number: usize, size: usize) -> Result<std::ops::Range<usize>, usize> {
        let start = self.lanes.take_in(number, &self.cursor, size, size - 1)?;
        assert_eq!(start % size, 0);
        Ok(start..start + size)
    }

    fn remaining(&self) -> usize {
        let rests = self.lanes.rests().map(|rest| rest.len()).sum::<usize>();
        rests + LIMIT - self.cursor.at()
    }

    /// Takes all bytes that remain, and checks that each byte from `at` on was taken once.
    fn assert_nothing_is_lost(&self, at: usize, mut taken: Vec<std::ops::Range<usize>>) {
        let remaining = self.remaining();
        let rest: Vec<_> = std::iter::from_fn(|| self.take(0, 1).ok()).collect();
        assert_eq!((rest.len(), self.remaining()), (remaining, 0));
        taken.extend(rest);
        taken.sort_by_key(|range| range.start);
        let end = taken.iter().fold(at, |end, range| {
            assert_eq!(range.start, end, "{taken:?}");
            range.end
        });
        assert_eq!(end, LIMIT);
    }
}

/// Makes the requests of each thread, `(number, sizes)`, the last ones in this thread.
fn take_all(
    chunked: &Arc<Chunked>,
    threads: &[(usize, &'static [usize])],
) -> Vec<std::ops::Range<usize>> {
    let take = |chunked: &Chunked, (number, sizes): (usize, &[usize])| -> Vec<_> {
        sizes.iter().filter_map(|size| chunked.take(number, *size).ok()).collect()
    };
    let (last, others) = threads.split_last().expect("there are some");
    let handles: Vec<_> =
        others.iter().map(|&thread| spawn(chunked, move |chunked| take(chunked, thread))).collect();
    let last = take(chunked, *last);
    handles.into_iter().flat_map(|thread| thread.join().unwrap()).chain(last).collect()
}

/// Two threads of one lane take chunks at once: the second one gets no chunk that it has no place
/// for.
#[test]
fn a_shared_lane_loses_no_chunk() {
    loom::model(|| {
        let at = LIMIT - 64;
        let chunked = Chunked::with_cursor_at(at);
        let taken = take_all(&chunked, &[(0, &[4, 4]), (2, &[4, 4])]);
        assert_eq!(taken.len(), 4);
        chunked.assert_nothing_is_lost(at, taken);
    });
}

/// The cursor is near the end: one lane gets the last chunk, and threads of the other lane use it.
#[test]
fn the_last_chunk_serves_all_lanes() {
    loom::model(|| {
        let at = LIMIT - 16;
        let chunked = Chunked::with_cursor_at(at);
        let taken = take_all(&chunked, &[(0, &[2, 2]), (1, &[2, 2])]);
        assert!(taken.len() >= 2, "a thread that took the chunk was not served");
        chunked.assert_nothing_is_lost(at, taken);
    });
}

/// A reader never finds more bytes than there are, and finds what was published as used.
#[test]
fn rests_and_cursor_add_up_to_no_more_than_the_arena() {
    loom::model(|| {
        let at = LIMIT - 48;
        let chunked = Chunked::with_cursor_at(at);
        let thread = spawn(&chunked, |chunked| {
            (0..5).for_each(|_| drop(chunked.take(0, 4).expect("there is room")));
        });
        let remaining = chunked.remaining();
        assert!(remaining <= 48, "{remaining}");
        thread.join().unwrap();
        assert_eq!(chunked.remaining(), 28);
    });
}
