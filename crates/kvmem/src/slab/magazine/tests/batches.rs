//! Batches: from the magazines first, then from the source, with as few calls as possible.

use super::{CountingSource, MagazineSettings, Magazines, TestMagazines, instance};
use std::sync::Arc;

/// Takes a batch. Returns its length, and the calls of the source that it took.
fn batch(on: &TestMagazines, source: &Arc<CountingSource>, want: usize) -> (usize, usize) {
    let (before, mut out) = (source.calls(), vec![usize::MAX]);
    on.get_batch(0, want, &mut out);
    let got = out.len() - 1;
    assert!(out[1..].iter().all(|round| *round < usize::MAX));
    // SAFETY: taking from a list does not use the instance.
    HELD.with(|held| held.borrow_mut().extend(out.drain(1..)));
    (got, source.calls() - before)
}

thread_local! {
    /// The addresses of the slabs that the batches of this thread have taken.
    static HELD: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn put_all(on: &TestMagazines) {
    let mut held = HELD.take();
    // SAFETY: taking from a list does not use the instance.
    unsafe { on.put_each(0, || held.pop()) };
}

#[test]
fn a_small_batch_fills_a_magazine_for_the_next_ones() {
    let (magazines, source) = instance(1, 100_000);
    let class = || magazines.stats().classes[0];
    let capacity = class().capacity;
    assert_eq!(batch(&magazines, &source, 0), (0, 0));
    assert_eq!(batch(&magazines, &source, 3), (3, 1));
    assert_eq!((class().in_threads, class().refills), (capacity - 3, 1));
    assert_eq!(batch(&magazines, &source, capacity - 4), (capacity - 4, 0));
    // The slab that is left in the thread, and two of a new magazine.
    assert_eq!(batch(&magazines, &source, 3), (3, 1));
    assert_eq!((class().in_threads, class().refills), (capacity - 2, 2));
    put_all(&magazines);
    magazines.trim();
    assert_eq!(source.out(), 0);
}

#[test]
fn a_large_batch_takes_what_is_cached_and_the_rest_of_the_source_at_once() {
    let (magazines, source) = instance(1, 100_000);
    let class = || magazines.stats().classes[0];
    let capacity = class().capacity;
    for want in [capacity, 3 * capacity, 5000] {
        assert_eq!(batch(&magazines, &source, want), (want, 1), "nothing is cached");
        assert_eq!((class().in_threads, class().refills), (0, 0));
        put_all(&magazines);
        // The two magazines of the thread, and those of the depot.
        let before = source.calls();
        assert_eq!((class().in_threads + class().in_depot, source.out()), (want, want));
        assert_eq!(batch(&magazines, &source, want), (want, 0));
        assert_eq!((class().in_threads + class().in_depot, source.out()), (0, want));
        put_all(&magazines);
        assert_eq!(batch(&magazines, &source, want + capacity), (want + capacity, 1));
        put_all(&magazines);
        assert_eq!(source.calls(), before + 1);
        magazines.trim();
        assert_eq!(source.out(), 0);
    }
}

#[test]
fn a_source_that_has_no_more_is_called_once_for_the_rest() {
    let source = CountingSource::new(1, 5);
    let magazines = Magazines::new(source.clone(), MagazineSettings::new(1));
    // It fills a magazine with all that there is, and has nothing for the rest of the batch.
    assert_eq!(batch(&magazines, &source, 9), (5, 2));
    assert_eq!(batch(&magazines, &source, 9), (0, 2));
    assert_eq!(batch(&magazines, &source, 5000), (0, 1));
    put_all(&magazines);
    assert_eq!(magazines.stats().classes[0].in_threads, 5);
    assert_eq!(batch(&magazines, &source, 5), (5, 0));
    put_all(&magazines);
}

#[test]
fn rounds_that_are_looked_at_are_those_that_are_cached() {
    let (magazines, source) = instance(2, 100_000);
    assert_eq!(magazines.with_all_stopped(|rounds| rounds.len()), 0);
    assert_eq!(batch(&magazines, &source, 2000), (2000, 1));
    let mut held = HELD.with(|held| held.borrow().clone());
    put_all(&magazines);
    let mut seen = magazines.with_all_stopped(<[usize]>::to_vec);
    held.sort_unstable();
    seen.sort_unstable();
    assert!(seen == held, "{} of {}", seen.len(), held.len());
    assert_eq!(batch(&magazines, &source, 2000), (2000, 0));
    assert_eq!(magazines.with_all_stopped(|rounds| rounds.len()), 0);
    put_all(&magazines);
}
