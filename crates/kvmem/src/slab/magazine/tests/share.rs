//! Several threads under a bound, and rounds that go from one thread to another.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};

use super::{CountingSource, MagazineSettings, Magazines, TestMagazines, without_kernel_faults};

const THREADS: usize = 8;
/// Two magazines of the first size of each class need 144 KiB.
const BOUND: u64 = 64 << 10;

fn bounded() -> (TestMagazines, Arc<CountingSource>) {
    let source = CountingSource::new(2, 1_000_000);
    let settings = MagazineSettings { max_cached_bytes: Some(BOUND), ..MagazineSettings::new(2) };
    (Magazines::new(source.clone(), settings), source)
}

/// One thread has taken all of the bound and pauses. Eight others still have magazines.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_thread_that_pauses_leaves_others_their_share() {
    let _plan = without_kernel_faults();
    let (magazines, source) = bounded();
    let held: Vec<usize> = (0..2000).map(|_| magazines.get(0).unwrap()).collect();
    held.into_iter().for_each(|round| magazines.put(0, round));
    let capacity = magazines.stats().classes[0].capacity;
    let work = |barrier: &Barrier| {
        // All threads have joined before the first one caches much.
        let first = magazines.get(1).unwrap();
        barrier.wait();
        magazines.put(1, first);
        for i in 0..2000 {
            let held: Vec<_> = (0..=i % 4).map(|_| magazines.get(i % 2).unwrap()).collect();
            held.into_iter().for_each(|round| magazines.put(i % 2, round));
        }
    };
    let before = source.calls();
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| work(&barrier));
        }
    });
    let calls = source.calls() - before;
    assert!(calls < THREADS * 100, "{calls} calls of the source in {} steps", THREADS * 2000);
    // The caches of the threads end with the threads, some time after the scope.
    while magazines.stats().threads > 1 {
        std::thread::yield_now();
    }
    let stats = magazines.stats();
    assert!(stats.charged_bytes.unwrap() <= BOUND && stats.cached_bytes <= BOUND);
    assert_eq!(stats.classes[0].capacity, capacity, "the threads have ended");
    magazines.trim();
    assert_eq!((source.out(), magazines.stats().charged_bytes), (0, Some(0)));
}

/// A thread allocates what another one frees: full magazines go through the depot whole.
#[test]
#[cfg_attr(miri, ignore = "long")]
fn rounds_go_from_thread_to_thread_in_magazines() {
    const ROUNDS: usize = 100_000;
    let _plan = without_kernel_faults();
    let source = CountingSource::new(1, 1_000_000);
    let magazines = Magazines::new(source.clone(), MagazineSettings::new(1));
    let capacity = magazines.stats().classes[0].capacity;
    let (sender, receiver) = sync_channel::<Vec<usize>>(8);
    std::thread::scope(|scope| {
        let magazines = &magazines;
        scope.spawn(move || {
            for _ in 0..ROUNDS / 32 {
                let batch = (0..32).map(|_| magazines.get(0).unwrap()).collect();
                sender.send(batch).unwrap();
            }
        });
        receiver.into_iter().flatten().for_each(|round| magazines.put(0, round));
    });
    let exchanges = magazines.stats().classes[0].exchanges as usize;
    assert!(exchanges <= 2 * (ROUNDS / capacity + 1), "{exchanges} exchanges of {capacity} rounds");
    // The allocating thread is ahead by what is in transit and in the magazines of both.
    assert!(source.calls() <= 8 * 32 / capacity + 8, "{} calls of the source", source.calls());
}
