//! The cursor of a bump arena: no byte twice, no padding but for alignment, no refusal of what
//! fits.

use kvmem::arena::{BumpArena, BumpError, HeapMemory};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

type Arena = BumpArena<HeapMemory>;
/// Alignment and place of what was granted, or how much was left.
type Answer = Result<(usize, std::ops::Range<usize>), usize>;

/// An arena whose first byte is at a multiple of 64.
fn arena(capacity: usize) -> Arc<Arena> {
    Arc::new(BumpArena::new(HeapMemory::new(capacity, 64).expect("a little memory")))
}

fn ask(arena: &Arena, size: usize, align: usize) -> Answer {
    match arena.alloc_bytes(size, align) {
        Ok(bytes) => {
            let start = bytes.cast::<u8>().addr().get() - arena.base().addr().get();
            Ok((align, start..start + bytes.len()))
        }
        Err(BumpError::Full { requested, left }) => {
            assert!(requested == size && left < size);
            Err(left)
        }
        Err(error) => panic!("{error}"),
    }
}

/// Each request in a thread of its own, the last one in this.
fn all_at_once(arena: &Arc<Arena>, requests: &[(usize, usize)]) -> Vec<Answer> {
    let (last, others) = requests.split_last().expect("there are some");
    let threads: Vec<_> = others
        .iter()
        .map(|&(size, align)| {
            let arena = arena.clone();
            thread::spawn(move || ask(&arena, size, align))
        })
        .collect();
    let mine = ask(arena, last.0, last.1);
    threads.into_iter().map(|thread| thread.join().unwrap()).chain([mine]).collect()
}

/// The grants lie side by side, with padding only where an alignment needs it.
fn side_by_side(arena: &Arena, answers: &[Answer]) {
    let mut granted: Vec<_> = answers.iter().filter_map(|answer| answer.clone().ok()).collect();
    granted.sort_by_key(|(_, range)| range.start);
    let end = granted.iter().fold(0, |end: usize, (align, range)| {
        assert_eq!(range.start, end.next_multiple_of(*align), "{granted:?}");
        range.end
    });
    assert_eq!(arena.stats().used, end);
}

#[test]
fn padding_is_what_alignment_needs_whoever_comes_first() {
    loom::model(|| {
        let arena = arena(64);
        let answers = all_at_once(&arena, &[(3, 1), (8, 8), (5, 4)]);
        assert!(answers.iter().all(Result::is_ok), "there is room for all: {answers:?}");
        side_by_side(&arena, &answers);
    });
}

#[test]
fn the_last_bytes_go_to_one() {
    loom::model(|| {
        let arena = arena(10);
        let answers = all_at_once(&arena, &[(4, 1), (4, 1), (4, 1)]);
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 2, "{answers:?}");
        assert!(answers.contains(&Err(2)));
        side_by_side(&arena, &answers);
    });
}

/// Six and four do not fit both, but two fits beside either: it is never refused on account of a
/// request that is.
#[test]
fn what_fits_is_not_refused() {
    loom::model(|| {
        let arena = arena(8);
        let answers = all_at_once(&arena, &[(6, 1), (4, 1), (2, 1)]);
        assert!(answers[2].is_ok(), "{answers:?}");
        assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1, "{answers:?}");
        side_by_side(&arena, &answers);
    });
}

#[test]
fn what_one_was_told_of_is_in_the_figures() {
    loom::model(|| {
        let arena = arena(64);
        let told = Arc::new(AtomicUsize::new(0));
        let telling = {
            let (arena, told) = (arena.clone(), told.clone());
            thread::spawn(move || {
                ask(&arena, 10, 1).expect("there is room");
                told.store(1, Ordering::Release);
            })
        };
        if told.load(Ordering::Acquire) == 1 {
            assert_eq!(arena.stats().used, 10);
            assert_eq!(ask(&arena, 60, 1), Err(54));
        }
        let stats = arena.stats();
        assert!(matches!(stats.used, 0 | 10) && stats.used + stats.left == 64);
        telling.join().unwrap();
    });
}
