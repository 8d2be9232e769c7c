//! *Core*: one instance of the magazine layer. It does not know which thread runs.
//!
//! Every function is given the cache of the calling thread, or `None`.
//!
//! ## Counting the holders of rounds
//!
//! `holders` counts the caches that have any magazine, plus the full magazines in the depot. A
//! magazine that moves is counted at its new place before it is uncounted at the old one. Rounds
//! that return to the source stay counted until the source has them. So the count is 0 only when
//! nothing is cached. A thread counts its cache when the cache gets its first magazine, and not
//! again until a trim has taken all magazines: the fast path does not count.
//!
//! ## Trims
//!
//! A trim stops all owners at once, takes their magazines and the depot's, resumes the owners, and
//! only then calls the source. Rounds that other threads are moving between source and cache at
//! that moment, *in flight*, are in none of these places. A thread that starts such a transfer
//! counts itself in one of two counters, chosen by the parity of the number of trims so far; the
//! trim waits until the transfers that started before it are finished. A transfer that finds that a
//! trim has intervened returns its rounds to the source, except the one that was requested.
//!
//! ## Lock order
//!
//! trims → (registry of threads) → list of caches → owners → depots. No code allocates from the
//! global allocator under the last four, and no code calls the source under them.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Backoff, Mutex, Ordering, fence};
#[cfg(not(loom))]
use crate::sys;

use super::super::clock::Clock;
use super::super::depot::Depot;
use super::super::magazine::{Chain, Magazine};
use super::super::settings::{MagazineSettings, capacity_bounds};
use super::super::source::RoundSource;
use super::super::stats::{ClassStats, MagazineStats};
use super::super::thread_cache::{CacheList, CacheRef, Caches, ClassSlot};
use super::super::topology::Topology;
use super::moves::Moves;
use super::reclaim::Bypass;

/// The value of [`MagazineCore::bound`] for no bound.
const NO_BOUND: u64 = u64::MAX;
/// Attempts to read the charged bytes consistently.
const CONSISTENT_READ_TRIES: usize = 16;
/// Rounds that a batch moves at once.
const BATCH: usize = 1024;

/// A thread looks up its memory node once every this many visits to the depot.
const VISITS_PER_NODE_LOOKUP: u32 = 16;

/// One instance of the magazine layer.
pub(crate) struct MagazineCore<R: Copy + Send + 'static, S: RoundSource<R>> {
    pub(crate) source: S,
    pub(crate) depots: Box<[Depot<R>]>,
    pub(crate) caches: Mutex<Caches<R>>,
    /// The list in `caches`, for statistics, which do not take the lock.
    list: Arc<CacheList<R>>,
    trims: Mutex<Trims>,
    pub(crate) holders: AtomicUsize,
    pub(crate) moves: Moves,
    pub(crate) uncharges: Moves,
    pub(crate) bypass: Bypass,
    /// The number of trims so far.
    epoch: AtomicUsize,
    /// Transfers in flight that began in even and in odd epochs.
    in_flight: [AtomicUsize; 2],
    pub(crate) bound: AtomicU64,
    /// The most full magazines that a depot keeps for each class and memory node.
    max_full_magazines: usize,
    /// The bytes that all magazines in caches, and all magazines with rounds in the depot, could
    /// hold if they were full. Maintained only if there is a bound.
    charged: AtomicU64,
    /// Owners have to make fences.
    fenced: AtomicBool,
    clock: Arc<dyn Clock>,
    working_set: Duration,
    topology: Arc<dyn Topology>,
    /// The number of memory nodes that `topology` reports.
    nodes: usize,
}

/// The state under the lock that serializes trims.
struct Trims {
    last_tick: Duration,
}

/// Counts a transfer in flight while it lives; the second field is the epoch in which it began.
struct InFlight<'a>(&'a AtomicUsize, usize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `wait_for_in_flight`: rounds that were returned to the
        // source are there.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Marks the owner as being on a slow path while it lives.
struct SlowPath<'a>(&'a Cell<bool>);

impl Drop for SlowPath<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    pub(crate) fn new(source: S, settings: MagazineSettings) -> Self {
        let nodes = settings.topology.nodes().max(1);
        let depots = (0..settings.classes).map(|class| {
            let bytes = source.round_bytes(class);
            let bounds = capacity_bounds(settings.magazine_bytes, size_of::<R>(), bytes);
            Depot::new(class, bounds, bytes, nodes)
        });
        let caches = Caches::new();
        MagazineCore {
            depots: depots.collect(),
            source,
            list: caches.list(),
            caches: Mutex::new(caches),
            trims: Mutex::new(Trims { last_tick: settings.clock.now() }),
            holders: AtomicUsize::new(0),
            moves: Moves::new(),
            uncharges: Moves::new(),
            bypass: Bypass::new(),
            epoch: AtomicUsize::new(0),
            in_flight: [AtomicUsize::new(0), AtomicUsize::new(0)],
            bound: AtomicU64::new(settings.max_cached_bytes.unwrap_or(NO_BOUND)),
            max_full_magazines: settings.max_full_magazines,
            charged: AtomicU64::new(0),
            fenced: AtomicBool::new(barrier_fails()),
            clock: settings.clock,
            working_set: settings.working_set,
            topology: settings.topology,
            nodes,
        }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    pub(crate) fn classes(&self) -> usize {
        self.depots.len()
    }

    /// Makes a cache for a thread; `None` if the system has no memory.
    pub(crate) fn join(&self, thread: *const ()) -> Option<CacheRef<R>> {
        let mut caches = self.caches.lock();
        // Relaxed: changed under this lock only.
        let local = CacheRef::create(self.classes(), self.fenced.load(Ordering::Relaxed), thread)?;
        caches.add(local);
        Some(local)
    }

    /// Ends a cache: moves its magazines to the depot and frees its memory.
    ///
    /// # Safety
    ///
    /// The cache belongs to this instance, and its thread no longer uses it.
    pub(crate) unsafe fn retire(&self, local: CacheRef<R>) {
        let _move = self.moves.begin(S::TRACKED);
        let mut caches = self.caches.lock();
        local.touch();
        let node = local.cache().node.get();
        for (slot, depot) in local.slots().zip(&self.depots) {
            for magazine in [slot.loaded.take(), slot.previous.take()].into_iter().flatten() {
                if magazine.count() > 0 {
                    self.add_holder();
                    depot.give_full(node, magazine);
                } else {
                    self.uncharge(magazine.charge());
                    depot.give_empty(node, magazine);
                }
            }
        }
        if local.cache().set_has_magazines(false) {
            self.remove_holders(1);
        }
        // SAFETY: the caller's promise.
        let gone = unsafe { caches.remove(local) };
        drop(caches);
        drop(gone);
    }

    /// Counts one more holder of rounds.
    fn add_holder(&self) {
        // Relaxed: the count is a single variable, and a thread that sees the round has seen this
        // before.
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    fn remove_holders(&self, count: usize) {
        // Release pairs with the Acquire in `may_hold`: a thread that reads 0 finds in the source
        // what was cached.
        self.holders.fetch_sub(count, Ordering::Release);
    }

    /// Counts a cache before one of its slots gets a magazine. Called under the owner's lock.
    fn mark_has_magazines(&self, local: CacheRef<R>) {
        if !local.cache().set_has_magazines(true) {
            self.add_holder();
        }
    }

    pub(crate) fn may_hold(&self) -> bool {
        // Acquire pairs with the Release in `remove_holders`.
        self.holders.load(Ordering::Acquire) != 0
    }

    fn bound(&self) -> Option<u64> {
        // Relaxed: see `set_max_cached_bytes`.
        Some(self.bound.load(Ordering::Relaxed)).filter(|bound| *bound != NO_BOUND)
    }

    pub(crate) fn max_cached_bytes(&self) -> u64 {
        self.bound().unwrap_or(NO_BOUND)
    }

    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        // Relaxed: a thread that sees the new bound late may exceed it by one magazine.
        self.bound.store(bytes, Ordering::Relaxed);
    }

    /// Charges a magazine against the bound. Returns its charge, or `None` if the bound allows no
    /// more.
    fn charge(&self, depot: &Depot<R>, capacity: usize) -> Option<u64> {
        let Some(bound) = self.bound() else { return Some(0) };
        let bytes = (capacity as u64).saturating_mul(depot.round_bytes());
        // Relaxed: a counter.
        let charge = |charged: u64| charged.checked_add(bytes).filter(|sum| *sum <= bound);
        self.charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge).ok().map(|_| bytes)
    }

    fn uncharge(&self, charge: u64) {
        if charge > 0 {
            let _move = self.uncharges.begin(S::TRACKED);
            // Relaxed: a counter.
            self.charged.fetch_sub(charge, Ordering::Relaxed);
        }
    }

    /// Returns an upper bound of the bytes of all cached rounds. Only with a bound on them.
    pub(crate) fn charged(&self) -> u64 {
        // Relaxed: a counter.
        self.charged.load(Ordering::Relaxed)
    }

    /// Returns an upper bound of the bytes that were free in the source, as `free` reports, and in
    /// all caches together at the moment that `free` read them. Only with a bound on cached bytes.
    /// Returns `None` if other threads keep the readings from being consistent.
    #[inline]
    pub(crate) fn max_free(&self, free: impl Fn() -> u64) -> Option<u64> {
        // A magazine is charged before its rounds leave the source and uncharged after they are
        // back. So a charge between the two readings does no harm, and the uncharges are watched.
        let read = || self.uncharges.consistent_read(|| free().saturating_add(self.charged()));
        read().or_else(|| (0..CONSISTENT_READ_TRIES).find_map(|_| read()))
    }

    /// Begins a transfer in flight. Called under the owner's lock, so either a trim sees it or it
    /// sees the trim.
    fn begin_in_flight(&self) -> InFlight<'_> {
        // Relaxed, both: ordered by the owner's lock.
        let epoch = self.epoch.load(Ordering::Relaxed);
        let in_flight = &self.in_flight[epoch % 2];
        in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(in_flight, epoch)
    }

    /// Returns whether a trim has intervened. Called under the owner's lock.
    fn was_trimmed(&self, in_flight: &InFlight<'_>) -> bool {
        // Relaxed: ordered by the owner's lock.
        self.epoch.load(Ordering::Relaxed) != in_flight.1
    }

    /// Returns the memory node that the calling thread runs on.
    fn current_node(&self) -> usize {
        if self.nodes == 1 { 0 } else { self.topology.here().min(self.nodes - 1) }
    }

    /// Returns the memory node of the owner's thread, looked up once every
    /// [`VISITS_PER_NODE_LOOKUP`] calls. Called before the owner's lock is taken.
    fn node(&self, local: CacheRef<R>) -> usize {
        if self.nodes == 1 {
            return 0;
        }
        let cache = local.cache();
        match cache.node_visits_remaining.get().checked_sub(1) {
            Some(remaining) => cache.node_visits_remaining.set(remaining),
            None => {
                cache.node.set(self.current_node());
                cache.node_visits_remaining.set(VISITS_PER_NODE_LOOKUP - 1);
            }
        }
        cache.node.get()
    }

    /// Returns the slot of a class.
    fn slot<'a>(local: CacheRef<R>, depot: &Depot<R>) -> &'a ClassSlot<R> {
        // SAFETY: a cache has a slot for each depot.
        unsafe { local.slot(depot.class()) }
    }

    /// Enters a slow path with the caller's cache, unless the thread is on one already.
    fn enter_slow_path<'a>(local: Option<CacheRef<R>>) -> Option<(CacheRef<R>, SlowPath<'a>)> {
        let local = local?;
        let in_slow_path = &local.cache().in_slow_path;
        (!in_slow_path.replace(true)).then_some((local, SlowPath(in_slow_path)))
    }

    /// Takes a round when the loaded magazine is empty or the thread has no cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn get(&self, local: Option<CacheRef<R>>, class: usize, refill: bool) -> Option<R> {
        let depot = &self.depots[class];
        let _move = self.moves.begin(S::TRACKED);
        match Self::enter_slow_path(local) {
            Some((local, _slow_path)) => self.get_with(local, depot, refill),
            None => self.get_directly(depot, refill),
        }
    }

    fn get_directly(&self, depot: &Depot<R>, refill: bool) -> Option<R> {
        if let Some((round, emptied)) = depot.pop_one(self.current_node()) {
            if let Some(charge) = emptied {
                self.uncharge(charge);
                self.remove_holders(1);
            }
            return Some(round);
        }
        if refill { self.source.refill_one(depot.class()) } else { None }
    }

    fn get_with(&self, local: CacheRef<R>, depot: &Depot<R>, refill: bool) -> Option<R> {
        let slot = Self::slot(local, depot);
        let node = self.node(local);
        let (want, in_flight) = {
            let guard = local.enter();
            if slot.loaded.count() == 0 && slot.previous.count() > 0 {
                slot.swap();
            }
            if let Some(round) = slot.loaded.pop() {
                return Some(round);
            }
            let mut spare = None;
            let (full, check_clock) = depot.take_full(node, || {
                let empty = slot.previous.take()?;
                spare = Some(empty.charge());
                Some(empty)
            });
            if let Some(charge) = spare {
                self.uncharge(charge);
            }
            if let Some(full) = full {
                self.mark_has_magazines(local);
                slot.previous.set(slot.loaded.take());
                slot.loaded.set(Some(full));
                self.remove_holders(1);
                let round = slot.loaded.pop();
                drop(guard);
                if check_clock {
                    self.tick();
                }
                return round;
            }
            if !refill {
                return None;
            }
            if S::TRACKED && self.bypass.is_active() {
                drop(guard);
                return self.source.refill_one(depot.class());
            }
            if slot.loaded.capacity() == 0 {
                slot.loaded.set(self.new_magazine(depot, depot.capacity()));
                if slot.loaded.capacity() == 0 {
                    drop(guard);
                    return self.source.refill_one(depot.class());
                }
                self.mark_has_magazines(local);
            }
            (slot.loaded.capacity(), self.begin_in_flight())
        };
        // Relaxed: a statistic.
        depot.refills.fetch_add(1, Ordering::Relaxed);
        // SAFETY: only the owner's slow paths use the buffer, and they do not nest.
        let rounds = unsafe { &mut *local.cache().scratch.get() };
        rounds.clear();
        self.source.refill(depot.class(), want, rounds);
        let first = {
            let _guard = local.enter();
            if !self.was_trimmed(&in_flight) {
                // Puts them in reverse, so the source's first round is taken first. The source
                // itself may have put rounds into the magazine meanwhile.
                while rounds.len() > 1
                    && rounds.last().is_some_and(|round| slot.loaded.push(*round))
                {
                    rounds.pop();
                }
            }
            rounds.pop()
        };
        if !rounds.is_empty() {
            self.source.drain(depot.class(), rounds);
        }
        drop(in_flight);
        first
    }

    /// Makes an empty magazine, if the bound and the memory allow one.
    fn new_magazine(&self, depot: &Depot<R>, capacity: usize) -> Option<Magazine<R>> {
        let charge = self.charge(depot, capacity)?;
        let mut magazine = Magazine::new(depot.class(), capacity);
        match &mut magazine {
            Some(magazine) => magazine.set_charge(charge),
            None => self.uncharge(charge),
        }
        magazine
    }

    /// Puts a round when the loaded magazine is full or the thread has no cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn put(&self, local: Option<CacheRef<R>>, class: usize, round: R) {
        let depot = &self.depots[class];
        let _move = self.moves.begin(S::TRACKED);
        match Self::enter_slow_path(local) {
            Some((local, _slow_path)) => self.put_with(local, depot, round),
            None => self.source.drain_one(class, round),
        }
    }

    fn put_with(&self, local: CacheRef<R>, depot: &Depot<R>, round: R) {
        let slot = Self::slot(local, depot);
        let node = self.node(local);
        let guard = local.enter();
        if S::TRACKED && (!self.source.keeps(depot.class(), &round) || self.bypass.takes_put()) {
            drop(guard);
            return self.source.drain_one(depot.class(), round);
        }
        if !slot.loaded.has_room() && slot.previous.has_room() {
            slot.swap();
        }
        if S::TRACKED {
            local.count_put();
        }
        if slot.loaded.push(round) {
            return;
        }
        let capacity = depot.capacity();
        let charge = if depot.is_at_limit(node, self.max_full_magazines) {
            None
        } else {
            self.charge(depot, capacity)
        };
        let Some(charge) = charge else {
            let full = slot.loaded.take();
            slot.loaded.set(slot.previous.take());
            let in_flight = self.begin_in_flight();
            drop(guard);
            return self.make_room(local, depot, full, in_flight, round);
        };
        let full = slot.previous.take();
        if full.is_some() {
            self.add_holder();
        }
        let (empty, check_clock) = depot.take_empty(node, full, capacity);
        match empty.or_else(|| Magazine::new(depot.class(), capacity)) {
            Some(mut empty) => {
                self.mark_has_magazines(local);
                empty.set_charge(charge);
                slot.previous.set(slot.loaded.take());
                slot.loaded.set(Some(empty));
                slot.loaded.push(round);
                drop(guard);
            }
            None => {
                self.uncharge(charge);
                drop(guard);
                self.source.drain_one(depot.class(), round);
            }
        }
        if check_clock {
            self.tick();
        }
    }

    /// Makes room when the bound allows no more magazines: drains a full magazine into the source
    /// and puts the round into it.
    fn make_room(
        &self,
        local: CacheRef<R>,
        depot: &Depot<R>,
        full: Option<Magazine<R>>,
        in_flight: InFlight<'_>,
        round: R,
    ) {
        let class = depot.class();
        let Some(mut magazine) = full else {
            drop(in_flight);
            return self.source.drain_one(class, round);
        };
        // SAFETY: only the owner's slow paths use the buffer, and they do not nest.
        let rounds = unsafe { &mut *local.cache().scratch.get() };
        rounds.clear();
        magazine.empty_into(rounds);
        self.source.drain(class, rounds);
        let slot = Self::slot(local, depot);
        let guard = local.enter();
        if self.was_trimmed(&in_flight) {
            drop(guard);
            self.uncharge(magazine.charge());
            self.source.drain_one(class, round);
        } else {
            // While the owner is on a slow path, only a trim changes which magazines its slots
            // have.
            slot.previous.set(slot.loaded.take());
            slot.loaded.set(Some(magazine));
            slot.loaded.push(round);
        }
    }

    pub(crate) fn get_batch(
        &self,
        local: Option<CacheRef<R>>,
        class: usize,
        want: usize,
        out: &mut Vec<R>,
    ) {
        let depot = &self.depots[class];
        let _move = self.moves.begin(S::TRACKED);
        let (mut remaining, mut refilled) = (want, false);
        while remaining > 0 {
            let some = remaining.min(BATCH);
            // Before the lock is taken: nothing is allocated under it.
            out.reserve(some);
            let mut got = 0;
            if let Some(local) = local {
                let slot = Self::slot(local, depot);
                let _guard = local.enter();
                got = slot.loaded.pop_many(some, out);
                got += slot.previous.pop_many(some - got, out);
            }
            if got == 0 {
                // Fewer rounds than a magazine holds: refill one, so the next batch finds the
                // remainder. Only once, because there may be a bound.
                let refill = !refilled && local.is_some() && remaining < depot.capacity();
                refilled |= refill;
                let Some(round) = self.get(local, class, refill) else { break };
                out.push(round);
                got = 1;
            }
            remaining -= got;
        }
        if remaining > 0 {
            self.source.refill(class, remaining, out);
        }
    }

    /// Puts each round that `next` returns. `next` is called under the owner's lock, so it must not
    /// use this instance.
    pub(crate) fn put_each(
        &self,
        local: Option<CacheRef<R>>,
        class: usize,
        mut next: impl FnMut() -> Option<R>,
    ) {
        let depot = &self.depots[class];
        let _move = self.moves.begin(S::TRACKED);
        let mut waiting = next();
        while waiting.is_some() {
            if let Some(local) = local {
                let slot = Self::slot(local, depot);
                let _guard = local.enter();
                if S::TRACKED {
                    local.count_put();
                }
                while waiting.is_some_and(|round| slot.loaded.push(round)) {
                    waiting = next();
                }
            }
            if let Some(round) = waiting {
                self.put(local, class, round);
                waiting = next();
            }
        }
    }

    /// Makes every thread run a barrier and returns true, or makes the owners use fences from now
    /// on and returns false.
    fn barrier(&self, caches: &Caches<R>) -> bool {
        // Relaxed: changed under the list's lock only.
        let reached = !self.fenced.load(Ordering::Relaxed) && barrier_on_all();
        if !reached {
            self.fenced.store(true, Ordering::Relaxed);
            caches.iter().for_each(|local| local.cache().owner.make_fenced());
        }
        // SeqCst pairs with the fence in `enter_slow`: the stops come before the loads that follow.
        fence(Ordering::SeqCst);
        reached
    }

    /// Stops all owners, and sets `stopped` in the caches of those that could be stopped.
    pub(crate) fn stop(&self, caches: &Caches<R>) {
        caches.iter().for_each(|local| local.cache().owner.stop());
        let reached = self.barrier(caches);
        for local in caches.iter() {
            let stopped = local.cache().owner.wait_until_out(reached);
            local.cache().stopped.set(stopped);
            if stopped {
                local.touch();
            }
        }
    }

    pub(crate) fn resume(caches: &Caches<R>) {
        for local in caches.iter().filter(|local| local.cache().stopped.replace(false)) {
            local.cache().owner.resume();
        }
    }

    pub(crate) fn trim(&self) {
        self.trim_and(|_| ());
    }

    /// Lets classes stand for other rounds. All cached rounds return to the source. `change` runs
    /// while nothing is cached, and no thread is about to cache anything without asking
    /// [`RoundSource::keeps`] again. `change` may call [`reshape`](Self::reshape); it must neither
    /// use the source nor allocate.
    pub(crate) fn rebind(&self, change: impl FnOnce(&Self)) {
        self.trim_and(change);
    }

    /// Sets the bytes of a class's rounds and the bounds of its magazines' size, in rounds.
    pub(crate) fn reshape(&self, class: usize, round_bytes: u64, (min, max): (usize, usize)) {
        self.depots[class].reshape(round_bytes, min, max);
    }

    fn trim_and(&self, change: impl FnOnce(&Self)) {
        let _move = self.moves.begin(S::TRACKED);
        let _trims = self.trims.lock();
        let mut chain = Chain::new();
        let mut gone = 0;
        let epoch = {
            let caches = self.caches.lock();
            self.stop(&caches);
            for local in caches.iter().filter(|local| local.cache().stopped.get()) {
                self.strip(local, &mut chain);
                gone += usize::from(local.cache().set_has_magazines(false));
            }
            gone += self.depots.iter().map(|depot| depot.take_all(&mut chain)).sum::<usize>();
            change(self);
            // Relaxed: ordered by the owners' locks.
            let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
            Self::resume(&caches);
            epoch
        };
        self.wait_for_in_flight(epoch);
        self.give_back(chain);
        self.remove_holders(gone);
    }

    /// Takes all magazines out of a cache and moves those with rounds to the chain. Called under
    /// the owner's lock.
    fn strip(&self, local: CacheRef<R>, chain: &mut Chain<R>) {
        for slot in local.slots() {
            for magazine in [slot.loaded.take(), slot.previous.take()].into_iter().flatten() {
                if magazine.count() > 0 {
                    chain.push(magazine);
                } else {
                    self.uncharge(magazine.charge());
                }
            }
        }
    }

    /// Waits until the transfers that began in this epoch are finished.
    fn wait_for_in_flight(&self, epoch: usize) {
        let mut backoff = Backoff::default();
        // Acquire pairs with the Release in `InFlight::drop`.
        while self.in_flight[epoch % 2].load(Ordering::Acquire) != 0 {
            backoff.pause();
        }
    }

    /// Drains magazines into the source and frees them.
    fn give_back(&self, mut chain: Chain<R>) {
        let mut rounds = Vec::new();
        while let Some(mut magazine) = chain.pop() {
            if magazine.count() > 0 {
                let depot = &self.depots[magazine.class()];
                rounds.clear();
                magazine.empty_into(&mut rounds);
                self.source.drain(depot.class(), &mut rounds);
                self.uncharge(magazine.charge());
            }
        }
    }

    pub(crate) fn tick(&self) {
        let Some(mut trims) = self.trims.try_lock() else { return };
        let now = self.clock.now();
        if now.saturating_sub(trims.last_tick) < self.working_set {
            return;
        }
        trims.last_tick = now;
        let _move = self.moves.begin(S::TRACKED);
        let mut chain = Chain::new();
        let gone = self.depots.iter().map(|depot| depot.take_idle(&mut chain)).sum();
        self.give_back(chain);
        self.remove_holders(gone);
    }

    /// Returns all rounds to the source and frees all caches.
    pub(crate) fn close(&mut self) {
        let mut chain = Chain::new();
        {
            let mut caches = self.caches.lock();
            let all = caches.iter().collect::<Vec<_>>();
            for local in all {
                self.strip(local, &mut chain);
                // SAFETY: the exclusive reference shows that no other thread uses the instance.
                drop(unsafe { caches.remove(local) });
            }
            for depot in &self.depots {
                depot.take_all(&mut chain);
            }
        }
        self.give_back(chain);
    }

    /// Reads the counters without a lock, so no thread ever waits for statistics.
    pub(crate) fn stats(&self) -> MagazineStats {
        let mut classes = vec![ClassStats::default(); self.classes()];
        let threads = self.list.read_unlocked(|caches| {
            let mut threads = 0;
            for local in caches {
                threads += 1;
                for (slot, stats) in local.slots().zip(&mut classes) {
                    stats.in_threads += slot.count();
                }
            }
            threads
        });
        for (depot, stats) in self.depots.iter().zip(&mut classes) {
            let counts = depot.counts();
            *stats = ClassStats {
                in_threads: stats.in_threads,
                in_depot: counts.rounds,
                capacity: depot.capacity(),
                round_bytes: depot.round_bytes() as usize,
                exchanges: counts.exchanges,
                remote: depot.remote(),
                // Relaxed: a statistic.
                refills: depot.refills.load(Ordering::Relaxed),
                contention: depot.contention(),
            };
        }
        let cached_bytes_of =
            |stats: &ClassStats| ((stats.in_threads + stats.in_depot) * stats.round_bytes) as u64;
        MagazineStats {
            cached_bytes: classes.iter().map(cached_bytes_of).sum(),
            classes,
            // Relaxed, below: a statistic.
            charged_bytes: self.bound().map(|_| self.charged()),
            max_cached_bytes: self.bound(),
            threads,
            trims: self.epoch.load(Ordering::Relaxed) as u64,
        }
    }
}

/// The functions for forks and for the ends of threads, called under the registry's lock.
#[cfg(not(loom))]
impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Calls `run` with each thread that has a cache.
    pub(crate) fn each_thread(&self, mut run: impl FnMut(*const ())) {
        self.caches.lock().iter().for_each(|local| run(local.cache().thread));
    }

    /// Takes every lock that a fork must not find held, including the owners'.
    pub(crate) fn prefork(&self) {
        let caches = self.caches.lock();
        self.stop(&caches);
        std::mem::forget(caches);
        self.depots.iter().for_each(Depot::prefork);
        self.source.prefork();
    }

    /// Releases the locks after a fork, in the parent and in the child.
    ///
    /// # Safety
    ///
    /// This thread, or the thread that forked it, has called `prefork`.
    pub(crate) unsafe fn postfork(&self) {
        self.source.postfork();
        // SAFETY: the caller's promise, here and below.
        self.depots.iter().for_each(|depot| unsafe { depot.postfork() });
        // SAFETY: the caller's promise; this thread alone holds the list's lock.
        Self::resume(unsafe { &*self.caches.data_ptr() });
        // SAFETY: the caller's promise.
        unsafe { self.caches.force_unlock() };
    }

    /// Repairs the instance in the child, after `postfork`. Only `thread` exists in the child: the
    /// rounds in the other threads' caches move to the depot, and the rounds they had in flight are
    /// lost.
    ///
    /// # Safety
    ///
    /// The process has only this thread.
    pub(crate) unsafe fn postfork_child(&self, thread: *const ()) {
        // SAFETY: a thread that was trimming does not exist in the child; unlocking a free lock
        // does nothing.
        unsafe { self.trims.force_unlock() };
        let mut gone =
            self.caches.lock().iter().find(|local| !ptr::eq(local.cache().thread, thread));
        while let Some(local) = gone {
            // SAFETY: the cache's thread does not exist in the child.
            unsafe { self.retire(local) };
            gone = self.caches.lock().iter().find(|local| !ptr::eq(local.cache().thread, thread));
        }
        // Relaxed: the process has one thread.
        self.in_flight.iter().for_each(|in_flight| in_flight.store(0, Ordering::Relaxed));
        self.list.reset_in_child();
        self.moves.reset_in_child();
        self.uncharges.reset_in_child();
        self.bypass.reset_in_child();
        // SAFETY: the caller's promise.
        unsafe { self.source.postfork_child() };
        let with_magazines =
            self.caches.lock().iter().filter(|local| local.cache().has_magazines()).count();
        let full = self.depots.iter().map(|depot| depot.counts().full).sum::<usize>();
        self.holders.store(with_magazines + full, Ordering::Relaxed);
    }
}

// SAFETY: everything shared is atomic or under a lock; caches are used as described at `Caches`.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Sync for MagazineCore<R, S> {}

#[cfg(not(loom))]
fn barrier_fails() -> bool {
    sys::register_barrier().is_err()
}

#[cfg(not(loom))]
fn barrier_on_all() -> bool {
    sys::barrier().is_ok()
}

/// In the model both sides make fences, and no barrier fails: otherwise the model would check only
/// the fallback.
#[cfg(loom)]
fn barrier_fails() -> bool {
    false
}

#[cfg(loom)]
fn barrier_on_all() -> bool {
    true
}
