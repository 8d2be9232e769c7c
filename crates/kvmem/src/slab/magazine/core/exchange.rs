//! *Exchange*: what a thread does when its loaded magazine is empty, or full.
//!
//! This is the algorithm of *Magazines and Vmem* (2001), section 3. A thread whose loaded magazine
//! cannot serve it
//!
//! 1. exchanges the loaded and the previous magazine, if the previous one can;
//! 2. otherwise puts the previous magazine into the depot, makes the loaded one the previous one,
//!    and loads a full (or empty) one of the depot;
//! 3. and if the depot has none, refills a magazine from the source (or allocates an empty one).
//!
//! Where the source is [spread](RoundSource::is_spread) and magazines are small, the thread takes
//! or returns a single round of the source instead of 2 and 3: the depot's lines, and the counters
//! of charges and moves, would serve one thread after the other.
//!
//! A thread without a cache, or one that is on a slow path already, takes single rounds from the
//! depot, and returns them to the source.

use super::super::depot::Depot;
use super::super::magazine::Magazine;
use super::super::source::RoundSource;
use super::super::thread_cache::{OwnCache, OwnerAccess, SlowPath};
use super::state::MagazineCore;
use super::transfers::InFlight;
use crate::sync::Ordering;

/// Rounds of magazines that threads exchange so often that they would wait for the depot.
const DIRECT_ROUNDS: usize = 8;

/// The first part of a get, which happens under the owner's lock.
enum GetOutcome<'a, R> {
    /// The request is served.
    Done(Option<R>),
    /// The same, and it is time to read the clock.
    DoneCheckClock(Option<R>),
    /// A single round of the source serves it.
    TakeOne,
    /// The same, and the bound allows no magazine.
    TakeOneMakeWay,
    /// The loaded magazine is empty and has room for this many rounds of the source.
    Refill(usize, InFlight<'a>),
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Takes a round when the loaded magazine is empty or the thread has no cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn get(
        &self,
        own: Option<&mut OwnCache<'_, R>>,
        class: usize,
        refill: bool,
    ) -> Option<R> {
        let depot = &self.depots[class];
        match own.and_then(OwnCache::enter_slow_path) {
            Some(slow_path) => self.get_with(slow_path, depot, refill),
            None => self.get_directly(depot, refill),
        }
    }

    fn get_directly(&self, depot: &Depot<R>, refill: bool) -> Option<R> {
        if let Some((round, emptied)) = depot.pop_one(self.current_node()) {
            if let Some(charge) = emptied {
                self.bound.uncharge(charge);
            }
            return Some(round);
        }
        if refill { self.source.refill_one(depot.class()) } else { None }
    }

    fn get_with(
        &self,
        mut slow_path: SlowPath<'_, '_, R>,
        depot: &Depot<R>,
        refill: bool,
    ) -> Option<R> {
        self.count_slow(slow_path.cache());
        let node = self.node(slow_path.cache());
        let outcome = self.exchange_for_full(&slow_path.cache().enter(), depot, node, refill);
        match outcome {
            GetOutcome::Done(round) => round,
            GetOutcome::DoneCheckClock(round) => {
                self.tick();
                round
            }
            GetOutcome::TakeOne => self.source.refill_one(depot.class()),
            GetOutcome::TakeOneMakeWay => {
                let round = self.source.refill_one(depot.class());
                self.make_way();
                round
            }
            GetOutcome::Refill(want, in_flight) => self.refill(slow_path, depot, want, in_flight),
        }
    }

    /// Takes a round from either magazine, or exchanges an empty one for a full one.
    fn exchange_for_full(
        &self,
        access: &OwnerAccess<'_, R>,
        depot: &Depot<R>,
        node: usize,
        refill: bool,
    ) -> GetOutcome<'_, R> {
        let slot = access.class(depot.class());
        if slot.loaded.count() == 0 && slot.previous.count() > 0 {
            if S::TRACKED {
                access.count_put();
            }
            slot.swap();
        }
        if let Some(round) = slot.loaded.pop() {
            return GetOutcome::Done(Some(round));
        }
        let capacity = depot.capacity();
        if capacity == 0 && refill && slot.loaded.capacity() == 0 {
            // No magazine is worth the way to the depot.
            return GetOutcome::TakeOne;
        }
        let is_direct = refill && self.is_direct(capacity);
        let mut spare = None;
        let empty = || {
            // Before another thread can find the depot empty.
            self.holders.add_cache(access);
            if S::TRACKED {
                access.count_put();
            }
            let empty = slot.previous.take()?;
            spare = Some(empty.charge());
            Some(empty)
        };
        let (full, check_clock) =
            if is_direct { (None, false) } else { depot.take_full(node, empty) };
        if let Some(charge) = spare {
            self.bound.uncharge(charge);
        }
        if let Some(full) = full {
            slot.previous.set(slot.loaded.take());
            slot.loaded.set(Some(full));
            let round = slot.loaded.pop();
            let done = if check_clock { GetOutcome::DoneCheckClock } else { GetOutcome::Done };
            return done(round);
        }
        if !refill {
            return GetOutcome::Done(None);
        }
        if S::TRACKED && self.bypass.is_active() {
            return GetOutcome::TakeOne;
        }
        // Both are empty.
        for magazine in [&slot.loaded, &slot.previous] {
            if magazine.capacity() > capacity
                && let Some(large) = magazine.take()
            {
                self.bound.uncharge(large.charge());
            }
        }
        if slot.loaded.capacity() == 0 {
            slot.loaded.set(self.new_magazine(depot, capacity));
            if slot.loaded.capacity() == 0 {
                let makes_way = capacity > 0;
                return if makes_way { GetOutcome::TakeOneMakeWay } else { GetOutcome::TakeOne };
            }
            self.holders.add_cache(access);
        }
        if is_direct {
            return GetOutcome::TakeOne;
        }
        GetOutcome::Refill(slot.loaded.capacity(), self.transfers.begin())
    }

    /// Returns whether a thread calls the source and not the depot when magazines of `capacity`
    /// rounds cannot serve it.
    fn is_direct(&self, capacity: usize) -> bool {
        capacity <= DIRECT_ROUNDS && self.source.is_spread()
    }

    /// Fills the loaded magazine from the source; returns one of the rounds.
    fn refill(
        &self,
        mut slow_path: SlowPath<'_, '_, R>,
        depot: &Depot<R>,
        want: usize,
        in_flight: InFlight<'_>,
    ) -> Option<R> {
        // Relaxed: a statistic.
        depot.refills.fetch_add(1, Ordering::Relaxed);
        let _move = self.moves.begin(S::TRACKED);
        let (own, rounds) = slow_path.cache_and_buffer();
        self.source.refill(depot.class(), want, rounds);
        let first = {
            let access = own.enter();
            let slot = access.class(depot.class());
            if !self.transfers.was_trimmed(&in_flight) {
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
        if capacity == 0 {
            return None;
        }
        let charge = self.bound.charge(capacity, depot.round_bytes())?;
        let mut magazine = Magazine::new(depot.class(), capacity);
        match &mut magazine {
            Some(magazine) => magazine.set_charge(charge),
            None => self.bound.uncharge(charge),
        }
        magazine
    }

    /// Puts a round when the loaded magazine is full or the thread has no cache.
    #[cold]
    #[inline(never)]
    pub(crate) fn put(&self, own: Option<&mut OwnCache<'_, R>>, class: usize, round: R) {
        let depot = &self.depots[class];
        match own.and_then(OwnCache::enter_slow_path) {
            Some(slow_path) => self.put_with(slow_path, depot, round),
            None => self.source.drain_one(class, round),
        }
    }

    fn put_with(&self, mut slow_path: SlowPath<'_, '_, R>, depot: &Depot<R>, round: R) {
        self.count_slow(slow_path.cache());
        let node = self.node(slow_path.cache());
        let access = slow_path.cache().enter();
        if S::TRACKED && (!self.source.keeps(depot.class(), &round) || self.bypass.is_active()) {
            drop(access);
            return self.source.drain_one(depot.class(), round);
        }
        let slot = access.class(depot.class());
        if S::TRACKED {
            access.count_put();
        }
        if !slot.loaded.has_room() && slot.previous.has_room() {
            slot.swap();
        }
        if slot.loaded.push(round) {
            return;
        }
        let capacity = depot.capacity();
        let (has_full, is_direct) = (slot.previous.capacity() > 0, self.is_direct(capacity));
        if capacity == 0 || has_full && is_direct {
            drop(access);
            return self.source.drain_one(depot.class(), round);
        }
        let is_at_limit = has_full && depot.is_at_limit(node, self.max_full_magazines);
        let charge = || self.bound.charge(capacity, depot.round_bytes());
        let Some(charge) = (!is_at_limit).then(charge).flatten() else {
            if is_direct {
                drop(access);
                self.source.drain_one(depot.class(), round);
            } else {
                let _move = self.moves.begin(S::TRACKED);
                let full = slot.loaded.take();
                slot.loaded.set(slot.previous.take());
                let in_flight = self.transfers.begin();
                drop(access);
                self.make_room(slow_path, depot, full, in_flight, round);
            }
            if !has_full {
                self.make_way();
            }
            return;
        };
        // A cache without a magazine is no holder: see `nothing_cached_fast`.
        let first = S::TRACKED && !access.has_magazines();
        let _move = self.moves.begin(first);
        let full = slot.previous.take();
        let (empty, check_clock) = depot.take_empty(node, full, capacity, &self.holders);
        match empty.or_else(|| Magazine::new(depot.class(), capacity)) {
            Some(mut empty) => {
                self.holders.add_cache(&access);
                empty.set_charge(charge);
                slot.previous.set(slot.loaded.take());
                slot.loaded.set(Some(empty));
                slot.loaded.push(round);
                drop(access);
            }
            None => {
                self.bound.uncharge(charge);
                drop(access);
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
        mut slow_path: SlowPath<'_, '_, R>,
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
        let (own, rounds) = slow_path.cache_and_buffer();
        magazine.empty_into(rounds);
        self.source.drain(class, rounds);
        let access = own.enter();
        if self.transfers.was_trimmed(&in_flight) {
            drop(access);
            self.bound.uncharge(magazine.charge());
            self.source.drain_one(class, round);
        } else {
            // While the owner is on a slow path, only a trim changes which magazines its slots
            // have.
            let slot = access.class(class);
            slot.previous.set(slot.loaded.take());
            let capacity = depot.capacity();
            if magazine.capacity() <= capacity {
                slot.loaded.set(Some(magazine));
            } else {
                self.bound.uncharge(magazine.charge());
                slot.loaded.set(self.new_magazine(depot, capacity));
            }
            if !slot.loaded.push(round) {
                drop(access);
                self.source.drain_one(class, round);
            }
        }
    }
}
