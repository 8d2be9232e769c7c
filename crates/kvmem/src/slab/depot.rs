//! *Depot*: full and empty magazines of one class, and how large a new one is.
//!
//! Threads come with a whole magazine and go with a whole magazine. What comes from a thread that
//! has ended may be partly filled, and stands among the full ones.
//!
//! *Nodes*: on a machine with several memory nodes there are lists for each, and a thread comes to
//! those of its own, so that magazines, and the objects that they tell of, stay where they were
//! last used. Who finds no full one there takes one from another node before he goes to the source,
//! and leaves his empty one in exchange: so what one node frees and another allocates goes round,
//! and neither piles up.
//!
//! *Working set*: the least number of full magazines that were in the lists at once since the last
//! look was wanted by nobody; so many go back to the source, and likewise for empty ones.
//!
//! *Size*: the more often a thread finds the lock taken, the larger new magazines get, so that
//! threads come less often; a whole interval without that lets them shrink.

use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

use super::magazine::{Chain, Magazine};

/// So many times the lock must have been found taken before magazines grow.
const CONTENTION_TO_GROW: u32 = 8;
/// Every how-manieth exchange looks at the clock.
const EXCHANGES_PER_CLOCK_READ: u64 = 16;

/// What a class has beside the threads' magazines.
pub(crate) struct Depot<R> {
    nodes: Box<[DepotNode<R>]>,
    class: usize,
    /// The least and the most rounds of a magazine.
    min: AtomicUsize,
    max: AtomicUsize,
    /// Rounds of a new magazine.
    capacity: AtomicUsize,
    round_bytes: AtomicU64,
    contention: AtomicU64,
    pub(crate) refills: AtomicU64,
    /// Times that another node than the own one gave something.
    remote: AtomicU64,
}

/// What is on one memory node. Lines of its own, with their neighbours, which processors fetch
/// together.
#[repr(align(128))]
struct DepotNode<R> {
    lists: Mutex<Lists<R>>,
    /// How many full ones there are: for threads of other nodes, and for who counts.
    full: AtomicUsize,
    /// For who counts: the rounds in them, and exchanges so far.
    rounds: AtomicUsize,
    exchanges: AtomicU64,
}

/// What is in a depot, of about one moment, and has been done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DepotCounts {
    /// Full magazines.
    pub(crate) full: usize,
    /// The rounds in them.
    pub(crate) rounds: usize,
    /// Magazines that went between threads and depot.
    pub(crate) exchanges: u64,
}

/// Under the lock.
pub(crate) struct Lists<R> {
    full: Chain<R>,
    empty: Chain<R>,
    full_min: usize,
    empty_min: usize,
    exchanges: u64,
    /// Since magazines last grew.
    contended: u32,
    /// Since the last look.
    contended_lately: bool,
}

impl<R: Copy + Send> Depot<R> {
    /// With lists for so many memory nodes, one at least.
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
            round_bytes: AtomicU64::new(round_bytes as u64),
            contention: AtomicU64::new(0),
            refills: AtomicU64::new(0),
            remote: AtomicU64::new(0),
        }
    }

    pub(crate) fn class(&self) -> usize {
        self.class
    }

    /// Other rounds from now on. While nobody has a magazine of this class.
    pub(crate) fn reshape(&self, round_bytes: u64, min: usize, max: usize) {
        // Relaxed, here and where they are read: ordered by the owners' locks, see `MagazineCore::rebind`.
        self.round_bytes.store(round_bytes, Ordering::Relaxed);
        self.min.store(min, Ordering::Relaxed);
        self.max.store(max, Ordering::Relaxed);
        self.capacity.store(min, Ordering::Relaxed);
    }

    /// Bytes that a round strands.
    pub(crate) fn round_bytes(&self) -> u64 {
        // Relaxed: see `reshape`.
        self.round_bytes.load(Ordering::Relaxed)
    }

    /// Rounds of a new magazine.
    pub(crate) fn capacity(&self) -> usize {
        // Relaxed: a hint.
        self.capacity.load(Ordering::Relaxed)
    }

    pub(crate) fn contention(&self) -> u64 {
        // Relaxed: a count.
        self.contention.load(Ordering::Relaxed)
    }

    pub(crate) fn remote(&self) -> u64 {
        // Relaxed: a count.
        self.remote.load(Ordering::Relaxed)
    }

    /// Runs under the lock of a node.
    #[inline(always)]
    fn with<T>(&self, node: &DepotNode<R>, run: impl FnOnce(&mut Lists<R>) -> T) -> T {
        let (mut lists, waited) = match node.lists.try_lock() {
            Some(lists) => (lists, false),
            None => (node.lists.lock(), true),
        };
        if waited {
            // Relaxed: counts and hints.
            self.contention.fetch_add(1, Ordering::Relaxed);
            lists.contended_lately = true;
            lists.contended += 1;
            if lists.contended >= CONTENTION_TO_GROW {
                lists.contended = 0;
                let capacity = self.capacity();
                // Relaxed: hints. If two nodes change it at once, one of the changes is lost.
                let max = self.max.load(Ordering::Relaxed);
                self.capacity.store((capacity + capacity / 2 + 1).min(max), Ordering::Relaxed);
            }
        }
        let done = run(&mut lists);
        // Relaxed, all: stored under the lock; see `find_remote`, and `counts`.
        node.full.store(lists.full.len(), Ordering::Relaxed);
        node.rounds.store(lists.full.rounds(), Ordering::Relaxed);
        node.exchanges.store(lists.exchanges, Ordering::Relaxed);
        done
    }

    /// Runs under the lock of a node, and if that gives nothing, of the others one by one.
    #[inline(always)]
    fn find<T>(&self, node: usize, mut run: impl FnMut(&mut Lists<R>) -> Option<T>) -> Option<T> {
        let found = self.with(&self.nodes[node], &mut run);
        if found.is_some() || self.nodes.len() == 1 { found } else { self.find_remote(node, run) }
    }

    /// On the nodes that follow. Locks those only that have full magazines.
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
            // Relaxed: who has heard of a magazine that came here sees it counted, or that it has
            // been taken since.
            if other.full.load(Ordering::Relaxed) == 0 { None } else { self.with(other, &mut run) }
        });
        if found.is_some() {
            // Relaxed: a count.
            self.remote.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// A full one, for an empty one; and whether it is time to look at the clock. `empty` is called
    /// once at most.
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

    /// Takes a full one, if there is one, and gives an empty one, if there is one of this size.
    pub(crate) fn take_empty(
        &self,
        node: usize,
        full: Option<Magazine<R>>,
        capacity: usize,
    ) -> (Option<Magazine<R>>, bool) {
        self.with(&self.nodes[node], |lists| {
            if let Some(full) = full {
                lists.full.push(full);
            }
            let mut empty = lists.empty.pop();
            while empty.as_ref().is_some_and(|empty| empty.capacity() != capacity) {
                empty = lists.empty.pop();
            }
            lists.empty_min = lists.empty_min.min(lists.empty.len());
            (empty, lists.count_exchange())
        })
    }

    /// A single round, and if one full magazine less is here now, what was charged for it.
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

    /// Keeps one that holds rounds.
    pub(crate) fn give_full(&self, node: usize, full: Magazine<R>) {
        self.with(&self.nodes[node], |lists| lists.full.push(full));
    }

    /// Keeps one without rounds.
    pub(crate) fn give_empty(&self, node: usize, empty: Magazine<R>) {
        self.with(&self.nodes[node], |lists| self.keep_empty(lists, empty));
    }

    fn keep_empty(&self, lists: &mut Lists<R>, empty: Magazine<R>) {
        if empty.capacity() == self.capacity() {
            lists.empty.push(empty);
        }
    }

    /// Everything of all nodes, full and empty, onto `out`; returns how many full ones.
    pub(crate) fn take_all(&self, out: &mut Chain<R>) -> usize {
        let mut take = |lists: &mut Lists<R>| {
            let full = lists.full.len();
            while let Some(magazine) = lists.full.pop().or_else(|| lists.empty.pop()) {
                out.push(magazine);
            }
            (lists.full_min, lists.empty_min) = (0, 0);
            full
        };
        self.nodes.iter().map(|node| self.with(node, &mut take)).sum()
    }

    /// What nobody came for since the last look: full ones onto `out`, empty ones are freed.
    /// Returns how many full ones.
    pub(crate) fn take_idle(&self, out: &mut Chain<R>) -> usize {
        let mut contended = false;
        let mut take = |lists: &mut Lists<R>| {
            let idle = lists.full_min.min(lists.full.len());
            pop_up_to(&mut lists.full, idle, |magazine| out.push(magazine));
            let unused = lists.empty_min.min(lists.empty.len());
            pop_up_to(&mut lists.empty, unused, drop);
            lists.full_min = lists.full.len();
            lists.empty_min = lists.empty.len();
            contended |= std::mem::take(&mut lists.contended_lately);
            idle
        };
        let idle = self.nodes.iter().map(|node| self.with(node, &mut take)).sum();
        if !contended {
            let capacity = self.capacity();
            // Relaxed: a hint. If one grows at once, one of the changes is lost.
            let min = self.min.load(Ordering::Relaxed);
            self.capacity.store((capacity - capacity / 4).max(min), Ordering::Relaxed);
        }
        idle
    }

    /// The rounds that are here, onto `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        self.nodes.iter().for_each(|node| node.lists.lock().full.copy_into(out));
    }

    /// Whether as many full magazines as this are on a node.
    pub(crate) fn is_at_limit(&self, node: usize, max_full: usize) -> bool {
        max_full != usize::MAX && self.nodes[node].lists.lock().full.len() >= max_full
    }

    /// Whether no magazine with rounds is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|node| node.lists.lock().full.len() == 0)
    }

    /// Takes no lock.
    pub(crate) fn counts(&self) -> DepotCounts {
        self.nodes.iter().fold(DepotCounts::default(), |sum, node| DepotCounts {
            // Relaxed, all: counts.
            full: sum.full + node.full.load(Ordering::Relaxed),
            rounds: sum.rounds + node.rounds.load(Ordering::Relaxed),
            exchanges: sum.exchanges + node.exchanges.load(Ordering::Relaxed),
        })
    }

    /// Takes the locks of all nodes and keeps them. Nobody else has two of them at once.
    #[cfg(not(loom))]
    pub(crate) fn prefork(&self) {
        self.nodes.iter().for_each(|node| std::mem::forget(node.lists.lock()));
    }

    /// Lets go of them.
    ///
    /// # Safety
    ///
    /// This thread, or the one that forked it, has taken them by `prefork`.
    #[cfg(not(loom))]
    pub(crate) unsafe fn postfork(&self) {
        // SAFETY: the caller's promise.
        self.nodes.iter().for_each(|node| unsafe { node.lists.force_unlock() });
    }
}

fn pop_up_to<R>(chain: &mut Chain<R>, count: usize, mut to: impl FnMut(Magazine<R>)) {
    for magazine in std::iter::from_fn(|| chain.pop()).take(count) {
        to(magazine);
    }
}

impl<R> DepotNode<R> {
    fn new() -> Self {
        let lists = Lists {
            full: Chain::new(),
            empty: Chain::new(),
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
    fn count_exchange(&mut self) -> bool {
        self.exchanges += 1;
        self.exchanges.is_multiple_of(EXCHANGES_PER_CLOCK_READ)
    }
}
