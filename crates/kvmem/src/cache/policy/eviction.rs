//! [`Eviction`]: the choice of a policy, and the policy that a shard then has.

use std::fmt;
use std::sync::Arc;

use super::candidates::First;
use super::clock::{NONE, Oldest, Time};
use super::eviction_policy::{EvictionPolicy, Slot};
use super::lru::Lru;
use super::reuse::Reuse;
use super::scan_resistant::ScanResistant;

/// The eviction policies.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Eviction {
    /// Evicts the least recently used block. A pinned block on the way counts as used then. Within
    /// a shard the order is exact for blocks used between different changes. Blocks used since
    /// the latest change are in the order of their first use since, thread by thread.
    #[default]
    Lru,
    /// Evicts the block that is worth least, by its number of uses and the time since the last one.
    /// The cache learns from other blocks what these say of further uses. A long run of blocks that
    /// are used once does not evict those that are used again and again, and the end of a prefix is
    /// evicted before its start. Until the cache has learned enough, and while LRU finds more, it
    /// evicts as LRU does.
    ScanResistant,
    /// A policy of the caller: the function makes the policy of one shard.
    Custom(Arc<dyn Fn() -> Box<dyn EvictionPolicy> + Send + Sync>),
}

impl Eviction {
    /// Returns the name: `lru`, `scan-resistant` or `custom`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Eviction::Lru => "lru",
            Eviction::ScanResistant => "scan-resistant",
            Eviction::Custom(_) => "custom",
        }
    }

    /// Returns how blocks of several shards are compared.
    pub(in crate::cache) fn across(&self) -> Across {
        match self {
            Eviction::Lru => Across::Age,
            Eviction::ScanResistant => Across::Worth(Arc::default()),
            Eviction::Custom(_) => Across::RoundRobin,
        }
    }

    /// Makes the policy of one shard.
    pub(in crate::cache) fn make(&self, across: &Across) -> ActivePolicy {
        match (self, across) {
            (Eviction::Custom(make), _) => {
                let (hashes, calling) = (Vec::new(), false);
                ActivePolicy::Own(Own { policy: make(), hashes, calling, instead: None })
            }
            (_, Across::Worth(reuse)) => {
                ActivePolicy::Scan(Box::new(ScanResistant::new(Arc::clone(reuse))))
            }
            _ => ActivePolicy::Lru(Lru::default()),
        }
    }
}

/// How the shard that evicts the next block is chosen.
#[derive(Debug)]
pub(in crate::cache) enum Across {
    /// One shard after the other: the order of the policy is unknown.
    RoundRobin,
    /// The shard with the least recently used block.
    Age,
    /// By age and worth; see [`super::scan_resistant`].
    Worth(Arc<Reuse>),
}

impl fmt::Debug for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A policy. Calls of the built-in ones need no virtual dispatch.
pub(in crate::cache) enum ActivePolicy {
    Lru(Lru),
    Scan(Box<ScanResistant>),
    /// A policy of the caller.
    Own(Own),
}

/// A policy of the caller, which may panic. Its state is unknown afterwards, so it is not called
/// again.
pub(in crate::cache) struct Own {
    policy: Box<dyn EvictionPolicy>,
    /// The hash of the block that is or was last at each slot.
    hashes: Vec<u64>,
    /// A call began and has not ended. A thread that sees this under the lock of the shard knows
    /// that the call panicked.
    calling: bool,
    /// Takes its place after a panic.
    instead: Option<Lru>,
}

impl Own {
    fn call<R>(&mut self, call: impl FnOnce(&mut dyn EvictionPolicy, &[u64]) -> R) -> R {
        match &mut self.instead {
            Some(lru) => call(lru, &self.hashes),
            None => {
                self.calling = true;
                let answer = call(&mut *self.policy, &self.hashes);
                self.calling = false;
                answer
            }
        }
    }

    /// Calls the policy for a new block.
    fn insert(&mut self, slot: Slot, hash: u64, call: impl FnOnce(&mut dyn EvictionPolicy)) {
        if self.hashes.len() <= slot as usize {
            self.hashes.resize(slot as usize + 1, 0);
        }
        self.hashes[slot as usize] = hash;
        self.call(|policy, _| call(policy));
    }
}

impl ActivePolicy {
    /// Sets the time of the next calls.
    #[inline]
    pub(in crate::cache) fn set_now(&mut self, now: Time) {
        match self {
            ActivePolicy::Lru(lru) => lru.now = now,
            ActivePolicy::Scan(scan) => scan.set_now(now),
            ActivePolicy::Own(_) => {}
        }
    }

    /// Sets the worth of LRU's candidate among all shards, for the next victim.
    #[inline]
    pub(in crate::cache) fn set_other(&mut self, other: Option<f32>) {
        if let ActivePolicy::Scan(scan) = self {
            scan.other = other;
        }
    }

    /// Sets the next victim, which the caller has chosen of this policy's candidates.
    #[inline]
    pub(in crate::cache) fn set_choice(&mut self, choice: First) {
        if let ActivePolicy::Scan(scan) = self {
            scan.chosen = Some(choice.ring);
        }
    }

    /// Makes the next victim one of the same order as the last one.
    #[inline]
    pub(in crate::cache) fn repeat_choice(&mut self) {
        if let ActivePolicy::Scan(scan) = self {
            scan.repeat_choice();
        }
    }

    /// Publishes the rank of the first block of each order.
    #[inline]
    pub(in crate::cache) fn publish(&self, shown: &Oldest) {
        match self {
            ActivePolicy::Lru(lru) => shown.publish(&[lru.oldest().unwrap_or(NONE)]),
            ActivePolicy::Scan(scan) => shown.publish(&scan.oldest()),
            ActivePolicy::Own(_) => {}
        }
    }

    /// Returns the slots that are probably the next victims, in order, as far as the policy knows.
    #[inline]
    pub(in crate::cache) fn upcoming<const N: usize>(&self) -> [Option<Slot>; N] {
        fn first<const N: usize>(mut slots: impl Iterator<Item = Slot>) -> [Option<Slot>; N] {
            std::array::from_fn(|_| slots.next())
        }
        match self {
            ActivePolicy::Lru(lru) => first(lru.upcoming()),
            ActivePolicy::Scan(scan) => first(scan.upcoming()),
            ActivePolicy::Own(_) => [None; N],
        }
    }

    /// Returns the hash of the key of the block at a slot; of a free slot, that of the last block
    /// there.
    #[inline]
    pub(in crate::cache) fn hash_of(&self, slot: Slot) -> Option<u64> {
        match self {
            ActivePolicy::Lru(lru) => lru.hash_of(slot),
            ActivePolicy::Scan(scan) => scan.hash_of(slot),
            ActivePolicy::Own(own) => own.hashes.get(slot as usize).copied(),
        }
    }

    /// Starts to fetch what the eviction of a block reads here. `hash` is that of its key.
    #[inline]
    pub(in crate::cache) fn prefetch(&self, slot: Slot, hash: u64) {
        match self {
            ActivePolicy::Lru(lru) => lru.prefetch(slot),
            ActivePolicy::Scan(scan) => scan.prefetch(slot, hash),
            ActivePolicy::Own(_) => {}
        }
    }

    /// Returns the block to evict, and removes it; see [`EvictionPolicy::victim`]. `may_go` gets
    /// the hash of the block's key, too.
    #[inline]
    pub(in crate::cache) fn next_victim(
        &mut self,
        may_go: &mut impl FnMut(Slot, u64) -> bool,
    ) -> Option<Slot> {
        match self {
            ActivePolicy::Lru(lru) => lru.next_victim(may_go),
            ActivePolicy::Scan(scan) => scan.next_victim(may_go),
            ActivePolicy::Own(own) => own.call(|policy, hashes| {
                let hash = |slot: Slot| hashes.get(slot as usize).copied();
                policy.victim(&mut |slot| hash(slot).is_some_and(|hash| may_go(slot, hash)))
            }),
        }
    }

    /// Returns whether the policy has panicked and was not yet replaced.
    #[inline]
    pub(in crate::cache) fn has_panicked(&self) -> bool {
        matches!(self, ActivePolicy::Own(own) if own.calling)
    }

    /// Replaces a policy that panicked with an LRU that knows the blocks at these slots. The old
    /// policy is dropped with the cache, since its `Drop` may panic, too.
    pub(in crate::cache) fn replace_panicked(&mut self, slots: impl Iterator<Item = Slot>) {
        if let ActivePolicy::Own(own) = self {
            let mut lru = Lru::default();
            slots.for_each(|slot| lru.insert(slot, 0));
            own.instead = Some(lru);
            own.calling = false;
        }
    }
}

impl EvictionPolicy for ActivePolicy {
    fn insert(&mut self, slot: Slot, hash: u64) {
        match self {
            ActivePolicy::Lru(policy) => policy.insert(slot, hash),
            ActivePolicy::Scan(policy) => policy.insert(slot, hash),
            ActivePolicy::Own(own) => own.insert(slot, hash, |policy| policy.insert(slot, hash)),
        }
    }

    fn insert_at_depth(&mut self, slot: Slot, hash: u64, depth: u32) {
        match self {
            ActivePolicy::Lru(policy) => policy.insert_at_depth(slot, hash, depth),
            ActivePolicy::Scan(policy) => policy.insert_at_depth(slot, hash, depth),
            ActivePolicy::Own(own) => {
                own.insert(slot, hash, |policy| policy.insert_at_depth(slot, hash, depth));
            }
        }
    }

    #[inline]
    fn touch(&mut self, slot: Slot) {
        match self {
            ActivePolicy::Lru(policy) => policy.touch(slot),
            ActivePolicy::Scan(policy) => policy.touch(slot),
            ActivePolicy::Own(own) => own.call(|policy, _| policy.touch(slot)),
        }
    }

    fn remove(&mut self, slot: Slot) {
        match self {
            ActivePolicy::Lru(policy) => policy.remove(slot),
            ActivePolicy::Scan(policy) => policy.remove(slot),
            ActivePolicy::Own(own) => own.call(|policy, _| policy.remove(slot)),
        }
    }

    fn victim(&mut self, may_go: &mut dyn FnMut(Slot) -> bool) -> Option<Slot> {
        self.next_victim(&mut |slot, _| may_go(slot))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::candidates::Candidates;
    use super::super::clock::{ORDERS, time_of};
    use super::*;

    /// Returns the last uses of the first blocks that a policy publishes.
    fn published(policy: &ActivePolicy) -> [Option<Time>; ORDERS] {
        let oldest = Oldest::default();
        policy.publish(&oldest);
        oldest.ranks().map(|rank| (rank != NONE).then(|| time_of(rank)))
    }

    /// Returns the other victims in order.
    fn victims(policy: &mut ActivePolicy) -> Vec<Slot> {
        std::iter::from_fn(|| policy.victim(&mut |_| true)).collect()
    }

    #[test]
    fn each_policy_gets_the_calls_of_its_shard() {
        for eviction in [Eviction::Lru, Eviction::ScanResistant] {
            let mut policy = eviction.make(&eviction.across());
            for slot in 0..5 {
                policy.set_now(10 + Time::from(slot));
                policy.insert(slot, 100 + u64::from(slot));
            }
            policy.set_now(20);
            policy.insert_at_depth(5, 105, 3);
            assert_eq!((policy.hash_of(3), policy.hash_of(6)), (Some(103), None));
            let upcoming = policy.upcoming();
            assert_eq!(upcoming, [0, 1, 2, 3, 4, 5].map(Some), "{eviction:?}");
            assert_eq!(policy.upcoming(), [Some(0)]);
            assert_eq!(published(&policy), [Some(10), None, None, None, None]);
            policy.touch(1);
            policy.remove(2);
            assert_eq!(policy.victim(&mut |slot| slot != 0), Some(3));
            assert_eq!(victims(&mut policy).len(), 4);
            assert_eq!((published(&policy), policy.upcoming()), ([None; ORDERS], [None]));
            assert!(!policy.has_panicked());
        }
    }

    #[test]
    fn a_scan_resistant_shard_takes_the_choice_of_the_caller() {
        let across = Eviction::ScanResistant.across();
        let mut policy = Eviction::ScanResistant.make(&across);
        let Across::Worth(reuse) = &across else { panic!("{across:?}") };
        for slot in 0..6 {
            policy.set_now(10 + Time::from(slot));
            policy.insert(slot, u64::from(slot));
        }
        policy.set_now(100);
        [0, 1].iter().for_each(|&slot| policy.touch(slot));
        // Of the order of those that were used once.
        let oldest = Oldest::default();
        policy.publish(&oldest);
        let [_, once, ..] = oldest.ranks();
        let choice = Candidates::of(reuse, 100, [NONE, once, NONE, NONE, NONE]).unwrap().oldest;
        policy.set_choice(choice);
        assert_eq!(policy.victim(&mut |_| true), Some(0));
        policy.repeat_choice();
        assert_eq!(policy.victim(&mut |_| true), Some(1));
        policy.set_other(Some(0.5));
        assert!(matches!(&policy, ActivePolicy::Scan(scan) if scan.other == Some(0.5)));
        assert_eq!(victims(&mut policy), [2, 3, 4, 5]);
    }

    /// The choice between policies: what the shards share decides.
    #[test]
    fn policies_have_names_and_compare_shards_by_age_by_worth_or_not() {
        let own = Eviction::Custom(Arc::new(|| Box::new(Lru::default())));
        for (eviction, name) in
            [(Eviction::Lru, "lru"), (Eviction::ScanResistant, "scan-resistant"), (own, "custom")]
        {
            let across = eviction.across();
            let made = match (eviction.make(&across), &across) {
                (ActivePolicy::Lru(_), Across::Age) => "lru",
                (ActivePolicy::Scan(_), Across::Worth(_)) => "scan-resistant",
                (ActivePolicy::Own(_), Across::RoundRobin) => "custom",
                _ => "another",
            };
            assert_eq!((eviction.name(), made), (name, name));
        }
    }
}
