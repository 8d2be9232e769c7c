//! A source that tracks its rounds: whether anything is cached, and how much may be.

use std::sync::Arc;

use super::model::Worker;
use super::{
    CountingSource, FakeTopology, MagazineSettings, Magazines, RoundSource, without_kernel_faults,
};

/// A source whose callers query whether anything is cached.
struct Tracked(Arc<CountingSource>);

impl RoundSource<usize> for Tracked {
    const TRACKED: bool = true;

    fn refill(&self, class: usize, want: usize, out: &mut Vec<usize>) {
        self.0.refill(class, want, out);
    }
    fn drain(&self, class: usize, rounds: &mut Vec<usize>) {
        self.0.drain(class, rounds);
    }
    fn round_bytes(&self, class: usize) -> usize {
        self.0.round_bytes(class)
    }
}

type TrackedMagazines = Magazines<usize, Tracked>;

fn tracked(settings: MagazineSettings) -> (Arc<TrackedMagazines>, Arc<CountingSource>) {
    let source = CountingSource::new(settings.classes, 100_000);
    (Arc::new(Magazines::new(Tracked(source.clone()), settings)), source)
}

/// Returns what the three questions answer: of this thread fast, of all, and of this thread alone.
/// The first two also look at something else, which says yes.
fn empty(magazines: &TrackedMagazines) -> [bool; 3] {
    let fast = magazines.nothing_cached_fast(|| 2, || true);
    [fast, magazines.nothing_cached(|| 2, || true), magazines.is_local_empty(2)]
}

#[test]
fn it_knows_whether_anything_is_cached() {
    let _plan = without_kernel_faults();
    let (magazines, source) = tracked(MagazineSettings::new(2));
    assert_eq!(magazines.consistent_read(|| 7), Some(7));
    assert_eq!(empty(&magazines), [true; 3], "no thread has a cache");
    assert!(!magazines.nothing_cached_fast(|| 2, || false));
    assert!(!magazines.nothing_cached(|| 2, || false));
    let round = magazines.get(1).unwrap();
    assert_eq!(empty(&magazines), [false; 3], "the magazine was filled");
    // Other classes do not count.
    assert!(
        magazines.nothing_cached_fast(|| 1, || true) && magazines.nothing_cached(|| 1, || true)
    );
    assert!(magazines.is_local_empty(1));
    magazines.put(1, round);
    let mut all = Vec::new();
    while magazines.stats().cached_bytes > 0 {
        all.push(magazines.get_cached(1).unwrap());
    }
    assert_eq!(empty(&magazines), [true; 3], "this thread has an empty magazine");
    assert!(!magazines.nothing_cached_fast(|| 2, || false));
    let other = Worker::start_on(0);
    let on = magazines.clone();
    other.run(move || {
        let all: Vec<usize> =
            std::iter::from_fn(|| (on.stats().cached_bytes > 0).then(|| on.get(1))?).collect();
        assert!(all.is_empty());
        let round = on.get(1).unwrap();
        on.put(1, round);
    });
    assert_eq!(empty(&magazines), [false, false, true], "the other thread has some");
    let on = magazines.clone();
    other.run(move || while on.get_cached(1).is_some() {});
    assert_eq!(empty(&magazines), [false, true, true], "it has an empty magazine");
    magazines.trim();
    assert_eq!(empty(&magazines), [true; 3]);
    magazines.put(1, round);
    assert_eq!((empty(&magazines)[0], magazines.stats().cached_bytes), (false, 128));
    assert!(source.out() > all.len());
}

#[test]
fn puts_are_counted_from_one_trial_to_the_next() {
    let _plan = without_kernel_faults();
    let (magazines, _) = tracked(MagazineSettings::new(1));
    let round = magazines.get(0).unwrap();
    magazines.try_again();
    assert_eq!(magazines.try_again(), 0);
    for puts in [5, 2] {
        for _ in 0..puts {
            magazines.put(0, round);
            assert_eq!(magazines.get_loaded(0), Some(round));
        }
        assert_eq!(magazines.try_again(), puts);
    }
    assert!(magazines.pays_off());
}

#[test]
fn a_bound_may_change_at_any_time() {
    let _plan = without_kernel_faults();
    let settings =
        MagazineSettings { max_cached_bytes: Some(16 << 10), ..MagazineSettings::new(1) };
    let (magazines, _) = tracked(settings);
    let capacity = || magazines.stats().classes[0].capacity;
    magazines.get(0).unwrap();
    let before = capacity();
    magazines.set_max_cached_bytes(4 << 10);
    assert_eq!((magazines.max_cached_bytes(), capacity()), (4 << 10, before / 4));
    magazines.set_max_cached_bytes(16 << 10);
    assert_eq!((magazines.max_cached_bytes(), capacity()), (16 << 10, before));
}

/// The depot of one class has all of the bound. The first request of another class makes way for a
/// magazine, and so does the first put.
#[test]
fn full_magazines_make_way_for_a_thread_without_one() {
    let _plan = without_kernel_faults();
    for puts in [false, true] {
        let bound = Some(64 << 10);
        let settings = MagazineSettings { max_cached_bytes: bound, ..MagazineSettings::new(3) };
        let (magazines, source) = tracked(settings);
        // The share of this thread is what it is from now on.
        magazines.get(0).unwrap();
        magazines.trim();
        let rounds: Vec<usize> = (0..2000).map(|_| magazines.get(0).unwrap()).collect();
        let other = magazines.source().refill_one(1).unwrap();
        rounds.into_iter().for_each(|round| magazines.put(0, round));
        let stats = || magazines.stats();
        let (before, capacity) = (stats().classes[0].in_depot, stats().classes[0].capacity);
        assert!(before > 0 && stats().charged_bytes.unwrap() + 128 * capacity as u64 > 64 << 10);
        if puts {
            magazines.put(1, other);
        } else {
            magazines.get(1).unwrap();
        }
        assert_eq!(stats().classes[1].in_threads, 0, "the bound allows no magazine");
        let after = stats().classes[0].in_depot;
        assert!(after < before && before - after <= capacity, "{before} {after} of {capacity}");
        assert_eq!(source.out_of(1), 1 + usize::from(!puts) - usize::from(puts));
    }
}

#[test]
fn a_node_that_the_machine_does_not_have_counts_as_the_last_one() {
    let _plan = without_kernel_faults();
    let source = CountingSource::new(1, 1000);
    let topology = FakeTopology::new(2);
    let settings = MagazineSettings { topology, ..MagazineSettings::new(1) };
    let magazines = Arc::new(Magazines::new(source.clone(), settings));
    let worker = Worker::start_on(9);
    let on = magazines.clone();
    worker.run(move || {
        let rounds: Vec<usize> = (0..900).map(|_| on.get(0).unwrap()).collect();
        rounds.into_iter().for_each(|round| on.put(0, round));
    });
    drop(worker);
    assert_eq!(magazines.get_cached(0).is_some(), source.out() > 0);
}

/// A source that threads can use at once, or not, with magazines of few rounds.
#[test]
fn small_magazines_go_through_the_depot_unless_the_source_is_spread() {
    let _plan = without_kernel_faults();
    let settings = MagazineSettings { magazine_bytes: 4 * 8, ..MagazineSettings::new(1) };
    let (magazines, source) = tracked(settings);
    assert_eq!(magazines.stats().classes[0].capacity, 4);
    let rounds: Vec<usize> = (0..40).map(|_| magazines.get(0).unwrap()).collect();
    assert_eq!((source.calls(), magazines.stats().classes[0].refills), (10, 10));
    rounds.into_iter().for_each(|round| magazines.put(0, round));
    assert_eq!((source.out(), magazines.stats().classes[0].in_depot), (40, 32));
}
