//! Several simulated memory nodes: rounds that stay on their node, and rounds that move to another
//! one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::model::Worker;
use super::{
    CountingSource, Depot, FakeTopology, HERE, Holders, Magazine, MagazineChain, MagazineSettings,
    Magazines, ManualClock, TestMagazines, without_kernel_faults,
};
use crate::sys::forked;

struct NodesFixture {
    magazines: Arc<TestMagazines>,
    source: Arc<CountingSource>,
    topology: Arc<FakeTopology>,
    clock: Arc<ManualClock>,
}

/// Makes an instance of one class on `nodes` nodes.
fn fixture(nodes: usize) -> NodesFixture {
    let (source, clock) = (CountingSource::new(1, 1_000_000), Arc::new(ManualClock::default()));
    let topology = FakeTopology::new(nodes);
    let settings = MagazineSettings {
        clock: clock.clone(),
        topology: topology.clone(),
        ..MagazineSettings::new(1)
    };
    NodesFixture {
        magazines: Arc::new(Magazines::new(source.clone(), settings)),
        source,
        topology,
        clock,
    }
}

impl NodesFixture {
    fn get(&self, on: &Worker, count: usize) -> Vec<usize> {
        let magazines = self.magazines.clone();
        on.run(move || (0..count).map(|_| magazines.get(0).expect("a million")).collect())
    }

    fn put(&self, on: &Worker, rounds: Vec<usize>) {
        let magazines = self.magazines.clone();
        on.run(move || rounds.into_iter().for_each(|round| magazines.put(0, round)));
    }

    /// Takes `count` rounds from the source for each worker, and puts them back.
    fn fill(&self, workers: &[Worker], count: usize) -> Vec<Vec<usize>> {
        let all: Vec<_> = workers.iter().map(|worker| self.get(worker, count)).collect();
        workers.iter().zip(&all).for_each(|(worker, rounds)| self.put(worker, rounds.clone()));
        all
    }

    fn refills_and_remote(&self) -> (u64, u64) {
        let class = self.magazines.stats().classes[0];
        (class.refills, class.remote)
    }

    fn in_depot(&self) -> usize {
        self.magazines.stats().classes[0].in_depot
    }

    fn trim(&self) {
        self.magazines.trim();
        assert_eq!((self.source.out(), self.in_depot()), (0, 0));
        assert!(!self.magazines.may_hold());
    }
}

/// Starts one worker on each node.
fn workers(nodes: usize) -> Vec<Worker> {
    (0..nodes).map(Worker::start_on).collect()
}

#[test]
fn rounds_stay_on_their_node() {
    let _plan = without_kernel_faults();
    let fixture = fixture(2);
    let workers = workers(2);
    let mine = fixture.fill(&workers, 5000);
    let (refills, remote) = fixture.refills_and_remote();
    assert!(refills > 0 && remote == 0);
    // The surplus of a refill is in the thread's magazines, too.
    for (worker, mine) in workers.iter().zip(&mine) {
        let mine: BTreeSet<_> = mine.iter().collect();
        let again = fixture.get(worker, 4000);
        let strangers = again.iter().filter(|round| !mine.contains(round)).count();
        assert!(strangers <= 384, "{strangers} of 4000");
        fixture.put(worker, again);
    }
    assert_eq!(fixture.refills_and_remote(), (refills, 0));
    fixture.trim();
}

/// One node allocates and the other one frees: after the first rounds the source is not used.
#[test]
fn one_node_allocates_what_the_other_frees() {
    let _plan = without_kernel_faults();
    let fixture = fixture(2);
    let workers = workers(2);
    for round in 0..100 {
        let rounds = fixture.get(&workers[0], 1000);
        fixture.put(&workers[1], rounds);
        assert!(
            fixture.source.out() <= 1000 + 5 * 384,
            "{} in round {round}",
            fixture.source.out()
        );
    }
    let (refills, remote) = fixture.refills_and_remote();
    assert!(refills <= 8 && remote > 100, "{refills} refills, {remote} from the other node");
    fixture.trim();
}

/// The empty magazine stays where the full one was: neither kind piles up.
#[test]
fn magazines_circulate() {
    let depot = Depot::<usize>::new(0, (4, 4), 64, 3);
    let holders = Holders::new();
    let new = || Magazine::new(0, 4).expect("little memory");
    let (mut made, mut spare) = (1, Some(new()));
    for _ in 0..100 {
        let empty = depot.take_empty(0, spare.take(), 4, &holders).0.unwrap_or_else(|| {
            made += 1;
            new()
        });
        let mut empty = Some(empty);
        let full = depot.take_full(2, || empty.take()).0.expect("one was given");
        assert!(empty.is_none());
        spare = Some(full);
    }
    // The counters are read while all locks are held: taking a lock would deadlock.
    depot.prefork();
    assert_eq!((made, depot.remote(), depot.counts().exchanges), (2, 100, 200));
    depot.postfork();
    let mut all = MagazineChain::new();
    // The node of the full magazines stays a holder until a thread looks.
    assert_eq!((holders.count(), depot.take_all(&mut all), all.len()), (1, 1, 1));
}

#[test]
fn the_working_set_of_every_node_is_trimmed() {
    let _plan = without_kernel_faults();
    let fixture = fixture(3);
    let workers = workers(3);
    fixture.fill(&workers, 5000);
    let before = fixture.in_depot();
    assert!(before > 3 * 4000);
    fixture.clock.advance(Duration::from_secs(15));
    fixture.magazines.tick();
    // One node uses its magazines in this interval.
    let rounds = fixture.get(&workers[0], 5000);
    fixture.put(&workers[0], rounds);
    fixture.clock.advance(Duration::from_secs(15));
    fixture.magazines.tick();
    let used = fixture.in_depot();
    assert!(used > 0 && used < before / 2, "{used} of {before}");
    for _ in 0..2 {
        fixture.clock.advance(Duration::from_secs(15));
        fixture.magazines.tick();
    }
    assert_eq!(fixture.in_depot(), 0);
    assert_eq!(fixture.source.out(), fixture.magazines.stats().classes[0].in_threads);
    assert!(fixture.magazines.may_hold());
    fixture.trim();
}

#[test]
fn a_thread_that_ends_leaves_its_rounds_on_its_node() {
    let _plan = without_kernel_faults();
    let fixture = fixture(2);
    // So few that they reach the depot only at the end of the thread.
    fixture.fill(&workers(2), 10);
    assert_eq!(fixture.magazines.stats().threads, 0);
    let (remaining, refills) = (fixture.in_depot(), fixture.refills_and_remote().0);
    assert!(remaining >= 20 && fixture.source.out() == remaining && fixture.magazines.may_hold());
    let workers = workers(2);
    for worker in &workers {
        let rounds = fixture.get(worker, 10);
        assert_eq!(fixture.refills_and_remote(), (refills, 0));
        fixture.put(worker, rounds);
    }
    drop(workers);
    // One thread finds all of them on any node; then no thread may hold any.
    let last = Worker::start_on(1);
    let magazines = fixture.magazines.clone();
    let (mut all, none) = last.run(move || {
        let all: Vec<usize> = std::iter::from_fn(|| magazines.get_cached(0)).collect();
        (all, magazines.get_cached(0))
    });
    assert_eq!((all.len(), none), (remaining, None));
    assert_eq!((fixture.refills_and_remote().0, fixture.in_depot()), (refills, 0));
    assert!(fixture.refills_and_remote().1 > 0);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), remaining);
    fixture.put(&last, all);
    drop(last);
    fixture.trim();
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_moved_thread_is_noticed_with_few_lookups() {
    let _plan = without_kernel_faults();
    let fixture = fixture(2);
    let worker = Worker::start_on(0);
    let (from, to) = (fixture.get(&worker, 40_000), Worker::start_on(1));
    worker.run(|| HERE.set(1));
    fixture.put(&worker, from);
    let exchanges = fixture.magazines.stats().classes[0].exchanges;
    let lookups = fixture.topology.lookups.load(Ordering::Relaxed) as u64;
    // The visits to the depot: exchanges, and those that found nothing before a refill.
    let visits = exchanges + fixture.refills_and_remote().0;
    assert!(exchanges > 50 && lookups * 10 < visits, "{lookups} lookups, {visits} visits");
    // Nearly all of them are on the node that the thread moved to.
    let rounds = fixture.get(&to, 20_000);
    assert_eq!(fixture.refills_and_remote().1, 0);
    fixture.put(&to, rounds);
    fixture.trim();
}

#[test]
fn one_node_is_never_looked_up() {
    let fixture = fixture(1);
    HERE.set(7);
    let rounds: Vec<_> = (0..5000).map(|_| fixture.magazines.get(0).expect("a million")).collect();
    rounds.into_iter().for_each(|round| fixture.magazines.put(0, round));
    fixture.trim();
    assert_eq!(fixture.topology.lookups.load(Ordering::Relaxed), 0);
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_keeps_the_rounds_of_every_node() {
    let _plan = without_kernel_faults();
    let fixture = fixture(2);
    let workers = workers(2);
    fixture.fill(&workers, 5000);
    let out = fixture.source.out();
    let status = forked(|| {
        let stats = fixture.magazines.stats();
        if stats.threads != 0 || stats.classes[0].in_depot != out {
            return 1;
        }
        for _ in 0..out {
            if fixture.magazines.get_cached(0).is_none() {
                return 2;
            }
        }
        i32::from(fixture.magazines.get_cached(0).is_some() || fixture.in_depot() != 0) * 3
    });
    assert_eq!(status, 0);
    drop(workers);
    fixture.trim();
}
