//! *Batches*: many rounds of one class under one lock.

use super::super::source::RoundSource;
use super::super::thread_cache::OwnCache;
use super::state::MagazineCore;

/// Rounds that a batch moves at once.
const BATCH: usize = 1024;

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Appends up to `want` rounds to `out`; fewer only if the source has no more.
    pub(crate) fn get_batch(
        &self,
        mut own: Option<OwnCache<'_, R>>,
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
            if let Some(own) = &mut own {
                let access = own.enter();
                let slot = access.class(class);
                got = slot.loaded.pop_many(some, out);
                got += slot.previous.pop_many(some - got, out);
            }
            if got == 0 {
                // Fewer rounds than a magazine holds: refill one, so the next batch finds the
                // remainder. Only once, because there may be a bound.
                let refill = !refilled && own.is_some() && remaining < depot.capacity();
                refilled |= refill;
                let Some(round) = self.get(own.as_mut(), class, refill) else { break };
                out.push(round);
                got = 1;
            }
            remaining -= got;
        }
        if remaining > 0 {
            self.source.refill(class, remaining, out);
        }
    }

    /// Puts each round that `next` returns.
    ///
    /// # Safety
    ///
    /// `next` does not use this instance: it is called under the owner's lock.
    pub(crate) unsafe fn put_each(
        &self,
        mut own: Option<OwnCache<'_, R>>,
        class: usize,
        mut next: impl FnMut() -> Option<R>,
    ) {
        let _move = self.moves.begin(S::TRACKED);
        let mut waiting = next();
        while waiting.is_some() {
            if let Some(own) = &mut own {
                let access = own.enter();
                let slot = access.class(class);
                if S::TRACKED {
                    access.count_put();
                }
                while waiting.is_some_and(|round| slot.loaded.push(round)) {
                    waiting = next();
                }
            }
            if let Some(round) = waiting {
                self.put(own.as_mut(), class, round);
                waiting = next();
            }
        }
    }
}
