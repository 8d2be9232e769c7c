//! *Trim*: returns all cached rounds to the source.
//!
//! A trim stops all owners at once, takes their magazines and the depot's, resumes the owners, and
//! only then calls the source. Rounds in flight at that moment are in none of these places; see
//! [transfers](super::transfers).
//!
//! Two smaller ones drain depots alone: the tick of the working set, and one that makes way for a
//! thread that the bound allows no magazine.

use super::super::depot::Depot;
use super::super::magazine::MagazineChain;
use super::super::source::RoundSource;
use super::super::thread_cache::CacheAccess;
use super::state::{MagazineCore, Trims};

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
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
        self.trim_locked(&self.trims.lock(), change);
    }

    /// Trims under the lock that serializes trims.
    fn trim_locked(&self, _: &Trims, change: impl FnOnce(&Self)) {
        let _move = self.moves.begin(S::TRACKED);
        let mut chain = MagazineChain::new();
        let mut gone = 0;
        let epoch = {
            let mut caches = self.caches.lock();
            let stopped = caches.stop();
            for access in stopped.accesses() {
                self.strip(&access, &mut chain);
                gone += usize::from(access.set_has_magazines(false));
            }
            gone += self.depots.iter().map(|depot| depot.take_all(&mut chain)).sum::<usize>();
            change(self);
            self.share_bound(stopped.caches());
            self.record_level();
            self.transfers.next_epoch()
        };
        self.transfers.wait(epoch);
        self.give_back(chain);
        self.holders.remove(gone);
    }

    /// Takes all magazines out of a cache and moves those with rounds to the chain.
    fn strip(&self, access: &CacheAccess<'_, R>, chain: &mut MagazineChain<R>) {
        for slot in access.classes() {
            for magazine in [slot.loaded.take(), slot.previous.take()].into_iter().flatten() {
                if magazine.count() > 0 {
                    chain.push(magazine);
                } else {
                    self.bound.uncharge(magazine.charge());
                }
            }
        }
    }

    /// Drains magazines into the source and frees them.
    fn give_back(&self, mut chain: MagazineChain<R>) {
        let mut rounds = Vec::new();
        while let Some(mut magazine) = chain.pop() {
            if magazine.count() > 0 {
                let depot = &self.depots[magazine.class()];
                rounds.clear();
                magazine.empty_into(&mut rounds);
                self.source.drain(depot.class(), &mut rounds);
                self.bound.uncharge(magazine.charge());
            }
        }
    }

    /// Drains idle full magazines into the source if the interval of the working set has passed.
    pub(crate) fn tick(&self) {
        let Some(mut trims) = self.trims.try_lock() else { return };
        let now = self.clock.now();
        if now.saturating_sub(trims.last_tick) < self.working_set {
            return;
        }
        trims.last_tick = now;
        let _move = self.moves.begin(S::TRACKED);
        let mut chain = MagazineChain::new();
        let gone = self.depots.iter().map(|depot| depot.take_idle(&mut chain)).sum();
        self.give_back(chain);
        self.holders.remove(gone);
    }

    /// Drains one magazine of the depot with the most bytes into the source, because the bound
    /// allows a thread no magazine. Threads go before depots: each has its share of the bound, and
    /// the depots have what the threads do not use. Trims instead if magazines that are too large
    /// may be in the way.
    pub(super) fn make_way(&self) {
        let bytes = |depot: &&Depot<R>| depot.counts().rounds as u64 * depot.round_bytes();
        let most = self.depots.iter().max_by_key(bytes).filter(|most| bytes(most) > 0);
        if most.is_none() && !self.has_halved() {
            return;
        }
        let Some(trims) = self.trims.try_lock() else { return };
        if self.has_halved() {
            return self.trim_locked(&trims, |_| ());
        }
        let Some(most) = most else { return };
        let _move = self.moves.begin(S::TRACKED);
        if let Some((full, gone)) = most.take_one_full() {
            let mut chain = MagazineChain::new();
            chain.push(full);
            self.give_back(chain);
            self.holders.remove(gone);
        }
    }

    /// Returns all rounds to the source and frees all caches.
    ///
    /// # Safety
    ///
    /// No thread uses a cache of this instance any more.
    pub(crate) unsafe fn close(&mut self) {
        let mut chain = MagazineChain::new();
        {
            let mut caches = self.caches.lock();
            let all = caches.iter().map(|cache| cache.as_ptr()).collect::<Vec<_>>();
            for cache in caches.iter() {
                // SAFETY: the caller promises that no other thread uses the cache.
                self.strip(&unsafe { CacheAccess::new(cache) }, &mut chain);
            }
            for block in all {
                // SAFETY: the cache is in the list, and the caller promises that it is not used.
                drop(unsafe { caches.remove(block) });
            }
            for depot in &self.depots {
                depot.take_all(&mut chain);
            }
        }
        self.give_back(chain);
    }
}
