//! *Depot*: the full and empty magazines of one class, and the size of new ones.
//!
//! Threads exchange whole magazines with the depot. A magazine of a thread that has ended may be
//! partly filled; it is kept among the full ones.
//!
//! *Memory nodes*: on a machine with several memory nodes the depot has lists for each node, and a
//! thread uses those of its own node. So magazines, and the objects they point to, stay where they
//! were last used. A thread that finds no full magazine on its node takes one from another node
//! before it calls the source, and leaves its empty magazine there in exchange. If one node frees
//! and another allocates, magazines therefore circulate and neither kind piles up.
//!
//! *Working set*: the smallest number of full magazines that were in the lists at any time during
//! an interval is the number that no thread needed in it. That many are returned to the source when
//! the interval ends. Empty magazines are trimmed likewise.
//!
//! *Magazine size*: the more often a thread finds the lock taken, the larger new magazines become,
//! so threads visit the depot less often. They shrink after an interval without contention. If
//! there is a bound of cached bytes, they are no longer than the threads' [share](super::core)
//! allows.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, hold_over_fork, release_over_fork};

use super::holders::Holders;
use super::magazine::{Magazine, MagazineChain};

/// The lock must be found taken this many times before magazines grow.
const CONTENTION_TO_GROW: u32 = 8;
/// The clock is read once every this many exchanges.
const EXCHANGES_PER_CLOCK_READ: u64 = 16;

/// The part of a class that all threads share.
pub(crate) struct Depot<R> {
    nodes: Box<[DepotNode<R>]>,
    class: usize,
    /// The bounds of a magazine's size, in rounds.
    min: AtomicUsize,
    max: AtomicUsize,
    /// The size of a new magazine, in rounds, if the share of a thread allows it.
    capacity: AtomicUsize,
    /// The most rounds that the share of a thread allows a magazine.
    share: AtomicUsize,
    round_bytes: AtomicU64,
    contention: AtomicU64,
    pub(crate) refills: AtomicU64,
    /// Times that a magazine came from another node than the thread's own.
    remote: AtomicU64,
}

/// The magazines of one memory node. Aligned to two cache lines, because processors fetch lines in
/// pairs.
#[repr(align(128))]
struct DepotNode<R> {
    lists: Mutex<Lists<R>>,
    /// The number of full magazines, for threads of other nodes and for statistics.
    full: AtomicUsize,
    /// For statistics: the rounds in the full magazines, and the exchanges so far.
    rounds: AtomicUsize,
    exchanges: AtomicU64,
}

/// The contents and counters of a depot, all read at about the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DepotCounts {
    /// The number of full magazines.
    pub(crate) full: usize,
    /// The number of rounds in them.
    pub(crate) rounds: usize,
    /// Magazines exchanged between threads and depot.
    pub(crate) exchanges: u64,
}

/// The lists of one node, under its lock.
pub(crate) struct Lists<R> {
    full: MagazineChain<R>,
    empty: MagazineChain<R>,
    /// The node is counted as a holder of rounds. If false, it has no full magazine.
    counted: bool,
    full_min: usize,
    empty_min: usize,
    exchanges: u64,
    /// Times the lock was found taken since magazines last grew.
    contended: u32,
    /// Whether the lock was found taken since the working set was last trimmed.
    contended_lately: bool,
}

impl<R: Copy + Send> Depot<R> {
    /// Makes a depot with lists for `nodes` memory nodes; one at least.
    pub(crate) fn new(
        class: usize,
        (min, max): (usize, usize),
        round_bytes: usize,
        nodes: usize,
    ) -> Self {
        Depot {
            nodes: (0..nodes.max(1)).map(|_| DepotNode::new()).collect(),
            class,
            min: AtomicUsize::new(min),
            max: AtomicUsize::new(max),
            capacity: AtomicUsize::new(min),
            share: AtomicUsize::new(usize::MAX),
            round_bytes: AtomicU64::new(round_bytes as u64),
            contention: AtomicU64::new(0),
            refills: AtomicU64::new(0),
            remote: AtomicU64::new(0),
        }
    }

    pub(crate) fn class(&self) -> usize {
        self.class
    }

    /// Changes the size of the rounds and of the magazines. No thread may have a magazine of this
    /// class.
    pub(crate) fn reshape(&self, round_bytes: u64, min: usize, max: usize) {
        // Relaxed, here and where they are read: ordered by the owners' locks, see
        // `MagazineCore::rebind`.
        self.round_bytes.store(round_bytes, Ordering::Relaxed);
        self.min.store(min, Ordering::Relaxed);
        self.max.store(max, Ordering::Relaxed);
        self.capacity.store(min, Ordering::Relaxed);
    }

    /// Returns the bytes that one cached round keeps from other uses.
    pub(crate) fn round_bytes(&self) -> u64 {
        // Relaxed: see `reshape`.
        self.round_bytes.load(Ordering::Relaxed)
    }

    /// Returns the size of a new magazine, in rounds.
    pub(crate) fn capacity(&self) -> usize {
        // Relaxed, both: hints.
        self.capacity.load(Ordering::Relaxed).min(self.share.load(Ordering::Relaxed))
    }

    /// Returns the most bytes that a magazine needs.
    pub(crate) fn max_magazine_bytes(&self) -> u64 {
        // Relaxed: see `reshape`.
        self.round_bytes().saturating_mul(self.max.load(Ordering::Relaxed) as u64)
    }

    /// Limits new magazines to about `bytes`, rounded to whole rounds. If that is less than two
    /// rounds, few threads have magazines of one, and many have none.
    pub(crate) fn set_max_magazine_bytes(&self, bytes: u64, few: bool) {
        let round = self.round_bytes().max(1);
        let rounds = usize::try_from(bytes.saturating_add(round / 2) / round).unwrap_or(usize::MAX);
        let rounds = if rounds < 2 { usize::from(few) } else { rounds };
        // Relaxed: a hint.
        self.share.store(rounds, Ordering::Relaxed);
    }

    pub(crate) fn contention(&self) -> u64 {
        // Relaxed: a statistic.
        self.contention.load(Ordering::Relaxed)
    }

    pub(crate) fn remote(&self) -> u64 {
        // Relaxed: a statistic.
        self.remote.load(Ordering::Relaxed)
    }

    /// Runs `run` under the lock of one node.
    #[inline(always)]
    fn with<T>(&self, node: &DepotNode<R>, run: impl FnOnce(&mut Lists<R>) -> T) -> T {
        let (mut lists, waited) = match node.lists.try_lock() {
            Some(lists) => (lists, false),
            None => (node.lists.lock(), true),
        };
        if waited {
            // Relaxed: a statistic.
            self.contention.fetch_add(1, Ordering::Relaxed);
            lists.contended_lately = true;
            lists.contended += 1;
            if lists.contended >= CONTENTION_TO_GROW {
                lists.contended = 0;
                // Relaxed, all: hints. If two nodes change the size at once, one of the changes is
                // lost.
                let capacity = self.capacity.load(Ordering::Relaxed);
                let max = self.max.load(Ordering::Relaxed);
                self.capacity.store((capacity + capacity / 2 + 1).min(max), Ordering::Relaxed);
            }
        }
        let done = run(&mut lists);
        // Relaxed, all: stored under the lock; see `find_remote` and `counts`.
        node.full.store(lists.full.len(), Ordering::Relaxed);
        node.rounds.store(lists.full.rounds(), Ordering::Relaxed);
        node.exchanges.store(lists.exchanges, Ordering::Relaxed);
        done
    }

    /// Runs `run` under the lock of a node and, until it returns a result, under the locks of the
    /// others in turn.
    #[inline(always)]
    fn find<T>(&self, node: usize, mut run: impl FnMut(&mut Lists<R>) -> Option<T>) -> Option<T> {
        let found = self.with(&self.nodes[node], &mut run);
        if found.is_some() || self.nodes.len() == 1 { found } else { self.find_remote(node, run) }
    }

    /// Runs `run` under the locks of the nodes that follow. Locks only nodes that have full
    /// magazines.
    #[cold]
    #[inline(never)]
    fn find_remote<T>(
        &self,
        node: usize,
        mut run: impl FnMut(&mut Lists<R>) -> Option<T>,
    ) -> Option<T> {
        let (before, own_and_after) = self.nodes.split_at(node);
        let mut others = own_and_after.iter().skip(1).chain(before);
        let found = others.find_map(|other| {
            // Relaxed: a thread that knows of a magazine that was put here sees it counted,
            // unless it was taken meanwhile.
            if other.full.load(Ordering::Relaxed) == 0 { None } else { self.with(other, &mut run) }
        });
        if found.is_some() {
            // Relaxed: a statistic.
            self.remote.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Takes a full magazine in exchange for an empty one; also returns whether it is time to read
    /// the clock. `empty` is called if there is a full magazine, before another thread can find
    /// that it is gone.
    pub(crate) fn take_full(
        &self,
        node: usize,
        mut empty: impl FnMut() -> Option<Magazine<R>>,
    ) -> (Option<Magazine<R>>, bool) {
        let found = self.find(node, |lists| {
            let full = lists.full.pop()?;
            lists.full_min = lists.full_min.min(lists.full.len());
            if let Some(empty) = empty() {
                self.keep_empty(lists, empty);
            }
            Some((full, lists.count_exchange()))
        });
        found.map_or((None, false), |(full, check_clock)| (Some(full), check_clock))
    }

    /// Gives a full magazine, if there is one, and takes an empty one of this capacity, if there is
    /// one. Also returns whether it is time to read the clock.
    pub(crate) fn take_empty(
        &self,
        node: usize,
        full: Option<Magazine<R>>,
        capacity: usize,
        holders: &Holders,
    ) -> (Option<Magazine<R>>, bool) {
        self.with(&self.nodes[node], |lists| {
            if let Some(full) = full {
                lists.keep_full(full, holders);
            }
            let mut empty = lists.empty.pop();
            while empty.as_ref().is_some_and(|empty| empty.capacity() != capacity) {
                empty = lists.empty.pop();
            }
            lists.empty_min = lists.empty_min.min(lists.empty.len());
            (empty, lists.count_exchange())
        })
    }

    /// Takes a single round. If that emptied a full magazine, also returns the magazine's charge.
    pub(crate) fn pop_one(&self, node: usize) -> Option<(R, Option<u64>)> {
        self.find(node, |lists| {
            let mut full = lists.full.pop()?;
            let round = full.pop();
            let emptied = if full.count() == 0 {
                let charge = full.charge();
                self.keep_empty(lists, full);
                lists.full_min = lists.full_min.min(lists.full.len());
                Some(charge)
            } else {
                lists.full.push(full);
                None
            };
            round.map(|round| (round, emptied))
        })
    }

    /// Keeps a magazine that holds rounds.
    pub(crate) fn give_full(&self, node: usize, full: Magazine<R>, holders: &Holders) {
        self.with(&self.nodes[node], |lists| lists.keep_full(full, holders));
    }

    /// Keeps a magazine without rounds.
    pub(crate) fn give_empty(&self, node: usize, empty: Magazine<R>) {
        self.with(&self.nodes[node], |lists| self.keep_empty(lists, empty));
    }

    fn keep_empty(&self, lists: &mut Lists<R>, empty: Magazine<R>) {
        if empty.capacity() == self.capacity() {
            lists.empty.push(empty);
        }
    }

    /// Moves all magazines of all nodes to `out`; returns the number of holders that they were.
    pub(crate) fn take_all(&self, out: &mut MagazineChain<R>) -> usize {
        let mut take = |lists: &mut Lists<R>| {
            while let Some(magazine) = lists.full.pop().or_else(|| lists.empty.pop()) {
                out.push(magazine);
            }
            (lists.full_min, lists.empty_min) = (0, 0);
            lists.uncount()
        };
        self.nodes.iter().map(|node| self.with(node, &mut take)).sum()
    }

    /// Trims the working set: moves the full magazines that no thread needed since the last call to
    /// `out`, and frees such empty ones. Returns the number of nodes that are no holders any more.
    pub(crate) fn take_idle(&self, out: &mut MagazineChain<R>) -> usize {
        let mut contended = false;
        let mut take = |lists: &mut Lists<R>| {
            let idle = lists.full_min.min(lists.full.len());
            pop_up_to(&mut lists.full, idle, |magazine| out.push(magazine));
            let unused = lists.empty_min.min(lists.empty.len());
            pop_up_to(&mut lists.empty, unused, drop);
            lists.full_min = lists.full.len();
            lists.empty_min = lists.empty.len();
            contended |= std::mem::take(&mut lists.contended_lately);
            lists.uncount()
        };
        let gone = self.nodes.iter().map(|node| self.with(node, &mut take)).sum();
        if !contended {
            // Relaxed, all: hints. If another node grows it at once, one of the changes is lost.
            let capacity = self.capacity.load(Ordering::Relaxed);
            let min = self.min.load(Ordering::Relaxed);
            self.capacity.store((capacity - capacity / 4).max(min), Ordering::Relaxed);
        }
        gone
    }

    /// Appends a copy of all rounds to `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        self.nodes.iter().for_each(|node| node.lists.lock().full.copy_into(out));
    }

    /// Takes a full magazine, if there is any. Also returns the number of nodes that are no holders
    /// any more.
    pub(crate) fn take_one_full(&self) -> Option<(Magazine<R>, usize)> {
        self.find(0, |lists| {
            let full = lists.full.pop()?;
            lists.full_min = lists.full_min.min(lists.full.len());
            Some((full, lists.uncount()))
        })
    }

    /// Returns whether a node has the rounds of at least `max_full` full magazines of their first
    /// size.
    pub(crate) fn is_at_limit(&self, node: usize, max_full: usize) -> bool {
        // Relaxed, both: threads at once may exceed the limit by one magazine each.
        let max = max_full.saturating_mul(self.min.load(Ordering::Relaxed));
        self.nodes[node].rounds.load(Ordering::Relaxed) >= max
    }

    /// Returns whether the depot holds no round. Nodes without a full magazine are no holders any
    /// more.
    pub(crate) fn is_empty(&self, holders: &Holders) -> bool {
        self.nodes.iter().all(|node| {
            let mut lists = node.lists.lock();
            holders.remove(lists.uncount());
            lists.full.len() == 0
        })
    }

    /// Returns the number of nodes that are counted as holders.
    pub(crate) fn holders(&self) -> usize {
        self.nodes.iter().filter(|node| node.lists.lock().counted).count()
    }

    /// Reads the counters without a lock.
    pub(crate) fn counts(&self) -> DepotCounts {
        self.nodes.iter().fold(DepotCounts::default(), |sum, node| DepotCounts {
            // Relaxed, all: statistics.
            full: sum.full + node.full.load(Ordering::Relaxed),
            rounds: sum.rounds + node.rounds.load(Ordering::Relaxed),
            exchanges: sum.exchanges + node.exchanges.load(Ordering::Relaxed),
        })
    }

    /// Locks all nodes before a fork and keeps the locks. No other code holds two of them at once.
    pub(crate) fn prefork(&self) {
        self.nodes.iter().for_each(|node| hold_over_fork(&node.lists));
    }

    /// Unlocks the nodes that [`prefork`](Self::prefork) locked, in the parent and in the child.
    pub(crate) fn postfork(&self) {
        self.nodes.iter().for_each(|node| release_over_fork(&node.lists));
    }
}

fn pop_up_to<R>(chain: &mut MagazineChain<R>, count: usize, mut to: impl FnMut(Magazine<R>)) {
    for magazine in std::iter::from_fn(|| chain.pop()).take(count) {
        to(magazine);
    }
}

impl<R> DepotNode<R> {
    fn new() -> Self {
        let lists = Lists {
            full: MagazineChain::new(),
            empty: MagazineChain::new(),
            counted: false,
            full_min: 0,
            empty_min: 0,
            exchanges: 0,
            contended: 0,
            contended_lately: false,
        };
        DepotNode {
            lists: Mutex::new(lists),
            full: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            exchanges: AtomicU64::new(0),
        }
    }
}

impl<R> Lists<R> {
    /// Keeps a magazine that holds rounds.
    fn keep_full(&mut self, full: Magazine<R>, holders: &Holders) {
        if !self.counted {
            self.counted = true;
            holders.add();
        }
        self.full.push(full);
    }

    /// Ends the node's being a holder if it has no full magazine; returns the number of holders to
    /// remove from the count: 1 or 0.
    fn uncount(&mut self) -> usize {
        usize::from(self.full.len() == 0 && std::mem::take(&mut self.counted))
    }

    fn count_exchange(&mut self) -> bool {
        self.exchanges += 1;
        self.exchanges.is_multiple_of(EXCHANGES_PER_CLOCK_READ)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns a magazine of eight places that has this many rounds.
    fn magazine(rounds: u32) -> Magazine<u32> {
        let empty = Magazine::<u32>::new(0, 8).expect("there is memory");
        let head = empty.into_raw();
        let places = Magazine::<u32>::rounds(head.as_ptr());
        // SAFETY: the magazine has eight places, and no other owner since it was given up.
        unsafe {
            (0..rounds).for_each(|at| places.add(at as usize).write(at));
            Magazine::from_raw(head, rounds)
        }
    }

    #[test]
    fn magazines_shrink_by_a_quarter_after_an_interval_without_contention() {
        let depot = Depot::<u32>::new(0, (8, 100), 64, 1);
        depot.capacity.store(41, Ordering::Relaxed);
        let mut out = MagazineChain::new();
        let sizes: [usize; 7] = std::array::from_fn(|_| {
            depot.take_idle(&mut out);
            depot.capacity()
        });
        assert_eq!(sizes, [31, 24, 18, 14, 11, 9, 8]);
    }

    #[test]
    fn a_lock_that_is_found_taken_now_and_then_leaves_the_size_as_it_is() {
        let depot = Depot::<u32>::new(0, (8, 100), 64, 1);
        while depot.contention() == 0 {
            depot.prefork();
            std::thread::scope(|scope| {
                let other = scope.spawn(|| depot.give_empty(0, magazine(0)));
                // Another turn if the thread was too slow to find the lock taken.
                std::thread::sleep(std::time::Duration::from_millis(1));
                depot.postfork();
                other.join().expect("no panic");
            });
        }
        assert_eq!(depot.capacity(), 8);
    }

    #[test]
    fn nodes_are_holders_while_they_have_full_magazines() {
        let (depot, holders) = (Depot::<u32>::new(0, (8, 8), 64, 2), Holders::new());
        assert_eq!((depot.holders(), depot.is_empty(&holders)), (0, true));
        assert!(depot.take_one_full().is_none());
        depot.give_full(1, magazine(5), &holders);
        depot.give_full(1, magazine(3), &holders);
        assert_eq!((depot.holders(), holders.count()), (1, 1));
        depot.give_full(0, magazine(8), &holders);
        assert_eq!((depot.holders(), holders.count()), (2, 2));
        assert_eq!(depot.counts(), DepotCounts { full: 3, rounds: 16, exchanges: 0 });
        // A node may have no, one or two magazines of eight rounds.
        let limits = |node| [0, 1, 2].map(|max| depot.is_at_limit(node, max));
        assert_eq!((limits(0), limits(1)), ([true, true, false], [true, true, false]));
        let (full, gone) = depot.take_one_full().expect("there are three");
        assert_eq!((full.count(), gone), (8, 1), "the first node goes first");
        assert_eq!((limits(0), depot.holders()), ([true, false, false], 1));
        let taken = [depot.take_one_full(), depot.take_one_full()].map(Option::unwrap);
        assert_eq!(taken.map(|(full, gone)| (full.count(), gone)), [(3, 0), (5, 1)]);
        assert!(depot.take_one_full().is_none() && depot.is_empty(&holders));
    }
}
