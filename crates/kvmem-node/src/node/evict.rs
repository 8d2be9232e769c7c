//! *Evicting*: values go because the memory is needed, or because their time is over.

use kvmem::tier::TierState;

use super::node::Node;
use super::{EventKind, Slice};

/// How an eviction of many values goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// There is no more to evict, or enough was.
    Enough,
    /// The next step evicts more.
    More,
    /// The next step evicts more when the tier has stored what it is storing.
    WhenStored,
}

impl Node {
    /// Evicts a value that is in a list.
    pub(super) fn evict(&mut self, slot: u32) {
        self.counters.evicted += 1;
        self.evictions_left = self.evictions_left.saturating_sub(1);
        self.withdraw(slot, EventKind::Evicted);
    }

    /// Returns the value to evict first, of a namespace or of all. Values that the tier lacks and
    /// whose ends it has are stored, and others go first.
    pub(super) fn victim(&mut self, namespace: Option<u16>) -> Option<u32> {
        self.history.iter_mut().for_each(|history| history.learn());
        loop {
            let (locals, history) = (&mut self.locals, self.history.as_deref());
            let victim = match namespace {
                Some(namespace) => self.namespaces.at(namespace).victim(locals, history),
                None => self.namespaces.victim(locals, history),
            };
            if !self.store_first(victim?) {
                return victim;
            }
        }
    }

    /// Evicts values, in the usual order, until at least `bytes` more are free, and up to
    /// `evictions_left` of them, in a slice of time. With a namespace, only its values. Those that
    /// the tier takes and lacks are stored first. Returns the bytes that the values took, and what
    /// is to be done next.
    pub(crate) fn evict_some(
        &mut self,
        namespace: Option<u16>,
        bytes: u64,
        slice: Slice,
    ) -> (u64, Evicted) {
        let (mut evicted, mut storing, mut storing_bytes) = (0, Vec::new(), 0);
        let stores = self.tier_state() == TierState::Working;
        let next = loop {
            if evicted >= bytes {
                break Evicted::Enough;
            }
            if self.evictions_left == 0 || (evicted > 0 && slice.is_over()) {
                break Evicted::More;
            }
            let Some(victim) = self.victim(namespace) else {
                let waits = self.is_storing() || !storing.is_empty();
                break if waits { Evicted::WhenStored } else { Evicted::Enough };
            };
            if stores && self.is_to_store(victim) && !self.locals[victim as usize].store_failed {
                if !self.may_store() || self.is_full_job(storing_bytes, storing.len()) {
                    break Evicted::WhenStored;
                }
                storing_bytes += self.len_of(victim);
                storing.push(self.storing(victim));
                self.locals[victim as usize].storing = true;
                continue;
            }
            evicted += self.space_of(victim);
            self.evict(victim);
        };
        if !storing.is_empty() {
            self.begin_storing(storing);
        }
        (evicted, next)
    }

    /// [Evicts](Self::evict_some) without a limit of time.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn evict_bytes(&mut self, namespace: Option<u16>, bytes: u64) -> (u64, Evicted) {
        self.evict_some(namespace, bytes, Slice::endless())
    }

    /// Withdraws the values that have outlived their time, of at most `max` entries from `from` on.
    /// Returns the entry to go on with.
    pub(crate) fn expire(&mut self, from: u32, max: u32, now: u64) -> u32 {
        let all = self.locals.len() as u32;
        let end = from.saturating_add(max).min(all);
        for slot in from..end {
            let committed = self.word(slot).state == crate::format::State::Committed;
            if committed && self.is_expired(slot, now) {
                self.counters.expired += 1;
                self.withdraw(slot, EventKind::Evicted);
            }
        }
        if end == all { 0 } else { end }
    }
}
