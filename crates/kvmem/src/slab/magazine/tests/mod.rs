//! The whole layer above a source that tracks its rounds.

mod batches;
mod ends;
mod model;
mod nodes;
mod share;
mod tracked;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::clock::ManualClock;
use super::depot::Depot;
use super::holders::Holders;
use super::magazine::{Magazine, MagazineChain};
use super::magazines::Magazines;
use super::settings::MagazineSettings;
use super::source::RoundSource;
use super::topology::Topology;

type TestMagazines = Magazines<usize, Arc<CountingSource>>;

/// Hands out numbers below a limit for each class and records which are in use. It detects a number
/// that it hands out twice or gets back twice.
struct CountingSource {
    classes: Vec<Mutex<ClassNumbers>>,
    limit: usize,
    /// Refills and drains so far.
    calls: AtomicUsize,
    /// Calls of `prefork`, and of `postfork`.
    forks: [AtomicUsize; 2],
}

#[derive(Default)]
struct ClassNumbers {
    out: BTreeSet<usize>,
    free: Vec<usize>,
    next: usize,
}

impl CountingSource {
    fn new(classes: usize, limit: usize) -> Arc<Self> {
        Arc::new(CountingSource {
            classes: (0..classes).map(|_| Mutex::default()).collect(),
            limit,
            calls: AtomicUsize::new(0),
            forks: Default::default(),
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns how many numbers of a class are in use.
    fn out_of(&self, class: usize) -> usize {
        self.classes[class].lock().unwrap().out.len()
    }

    fn out(&self) -> usize {
        self.classes.iter().map(|class| class.lock().unwrap().out.len()).sum()
    }
}

impl RoundSource<usize> for Arc<CountingSource> {
    fn refill(&self, class: usize, want: usize, out: &mut Vec<usize>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut numbers = self.classes[class].lock().unwrap();
        for _ in 0..want {
            let number = match numbers.free.pop() {
                Some(number) => number,
                None if numbers.next < self.limit => {
                    numbers.next += 1;
                    numbers.next - 1
                }
                None => return,
            };
            assert!(numbers.out.insert(number), "{number} is out");
            out.push(number);
        }
    }

    fn drain(&self, class: usize, rounds: &mut Vec<usize>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut numbers = self.classes[class].lock().unwrap();
        for number in rounds.drain(..) {
            assert!(numbers.out.remove(&number), "{number} is not out");
            numbers.free.push(number);
        }
    }

    fn round_bytes(&self, class: usize) -> usize {
        64 << class
    }

    fn prefork(&self) {
        self.forks[0].fetch_add(1, Ordering::Relaxed);
    }

    fn postfork(&self) {
        self.forks[1].fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    /// The memory node that this thread pretends to run on.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Memory nodes that do not exist.
#[derive(Debug)]
struct FakeTopology {
    nodes: usize,
    lookups: AtomicUsize,
}

impl FakeTopology {
    fn new(nodes: usize) -> Arc<Self> {
        Arc::new(FakeTopology { nodes, lookups: AtomicUsize::new(0) })
    }
}

impl Topology for FakeTopology {
    fn nodes(&self) -> usize {
        self.nodes
    }

    fn here(&self) -> usize {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        HERE.get()
    }
}

/// Keeps concurrent tests from making system calls fail while the guard lives: trims would skip the
/// threads that they cannot stop.
#[cfg(feature = "fault-injection")]
fn without_kernel_faults() -> crate::sys::fault::FaultGuard {
    crate::sys::fault::count()
}

#[cfg(not(feature = "fault-injection"))]
fn without_kernel_faults() -> impl Sized {}

fn instance(classes: usize, limit: usize) -> (TestMagazines, Arc<CountingSource>) {
    let source = CountingSource::new(classes, limit);
    (Magazines::new(source.clone(), MagazineSettings::new(classes)), source)
}

#[test]
fn rounds_are_taken_last_in_first_out() {
    let _plan = without_kernel_faults();
    let (magazines, source) = instance(2, 1000);
    let (a, b) = (magazines.get(0).unwrap(), magazines.get(0).unwrap());
    assert_ne!(a, b);
    magazines.put(0, a);
    magazines.put(0, b);
    assert_eq!(magazines.get(0), Some(b));
    assert_eq!(magazines.get(0), Some(a));
    magazines.put(0, a);
    magazines.put(0, b);
    assert!(magazines.may_hold());
    assert_eq!(magazines.get_cached(1), None);
    magazines.trim();
    assert_eq!(source.out(), 0);
    assert!(!magazines.may_hold());
    assert_eq!(magazines.get_cached(0), None);
    assert_eq!(magazines.stats().cached_bytes, 0);
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_trim_reaches_every_thread() {
    let _plan = without_kernel_faults();
    let (magazines, source) = instance(3, 100_000);
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (magazines, stop, rounds) = (&magazines, &stop, &rounds);
            scope.spawn(move || {
                let mut held = Vec::new();
                let mut state = thread as u64 + 1;
                while !stop.load(Ordering::Relaxed) {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let class = (state >> 33) as usize % 3;
                    if (state >> 40).is_multiple_of(2) {
                        held.push((class, magazines.get(class).unwrap()));
                    } else if let Some((class, round)) = held.pop() {
                        magazines.put(class, round);
                    }
                    if held.len() > 1000 {
                        held.drain(..).for_each(|(class, round)| magazines.put(class, round));
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                held.drain(..).for_each(|(class, round)| magazines.put(class, round));
            });
        }
        let mut trims = 0;
        while trims < 200 || rounds.load(Ordering::Relaxed) < 100_000 {
            magazines.trim();
            trims += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    magazines.trim();
    assert_eq!(source.out(), 0);
}

#[test]
fn a_thread_that_ends_gives_its_rounds_to_the_depot() {
    let (magazines, source) = instance(1, 1000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let round = magazines.get(0).unwrap();
            magazines.put(0, round);
        });
    });
    // Scoped threads may still be ending.
    while magazines.stats().threads > 0 {
        std::thread::yield_now();
    }
    assert!(magazines.stats().classes[0].in_depot > 0);
    assert!(magazines.get_cached(0).map(|round| magazines.put(0, round)).is_some());
    drop(magazines);
    assert_eq!(source.out(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn the_depot_keeps_the_working_set() {
    let clock = Arc::new(ManualClock::default());
    let source = CountingSource::new(1, 100_000);
    let settings = MagazineSettings { clock: clock.clone(), ..MagazineSettings::new(1) };
    let magazines = Magazines::new(source.clone(), settings);
    let mut held = Vec::new();
    magazines.get_batch(0, 5000, &mut held);
    assert_eq!(held.len(), 5000);
    // SAFETY: taking from a list does not use the instance.
    unsafe { magazines.put_each(0, || held.pop()) };
    assert!(held.is_empty());
    let before = magazines.stats().classes[0];
    assert!(before.in_depot > 4000, "{before:?}");
    magazines.tick();
    assert_eq!(magazines.stats().classes[0].in_depot, before.in_depot);
    // The first tick begins the interval, the second one ends it.
    clock.advance(Duration::from_secs(15));
    magazines.tick();
    clock.advance(Duration::from_secs(14));
    magazines.tick();
    assert_eq!(magazines.stats().classes[0].in_depot, before.in_depot);
    clock.advance(Duration::from_secs(1));
    magazines.tick();
    let after = magazines.stats().classes[0];
    assert_eq!(after.in_depot, 0);
    assert_eq!(source.out(), after.in_threads);
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn magazines_grow_under_contention_and_shrink_without() {
    let depot = Depot::<usize>::new(0, (4, 32), 64, 1);
    let mut sizes = vec![depot.capacity()];
    while *sizes.last().unwrap() < 32 {
        let before = depot.contention();
        depot.prefork();
        std::thread::scope(|scope| {
            let other =
                scope.spawn(|| depot.give_empty(0, Magazine::new(0, 4).expect("little memory")));
            // Long enough to find the lock taken; a thread that is too slow for that gets another
            // turn.
            std::thread::sleep(Duration::from_millis(1));
            depot.postfork();
            other.join().unwrap();
        });
        let contended = usize::from(depot.contention() > before);
        assert!(
            depot.contention() <= before + 1
                && (contended == 1 || depot.capacity() == *sizes.last().unwrap())
        );
        if depot.capacity() != *sizes.last().unwrap() {
            sizes.push(depot.capacity());
        }
    }
    assert_eq!(sizes, [4, 7, 11, 17, 26, 32]);
    let mut out = MagazineChain::new();
    assert_eq!(depot.take_idle(&mut out), 0);
    assert_eq!(depot.capacity(), 32, "the lock was contended in this interval");
    while depot.capacity() > 4 {
        let before = depot.capacity();
        depot.take_idle(&mut out);
        assert!(depot.capacity() < before);
        if before < 8 {
            break;
        }
    }
    assert!(depot.capacity() >= 4 && out.len() == 0);
}
