//! *Victim*: the search for a block to evict, over all shards.

use std::hash::Hash;
use std::sync::Arc;

use super::cache_state::CacheState;
use super::sink::HandOverGuard;
use crate::cache::index::{CacheEntry, Charged, Pinned, Shard, ShardState, StripeState};
use crate::cache::policy::{Across, Candidates, NONE, ORDERS, Rank};
use crate::sync::StripedWriteGuard;

/// The progress of an insertion in its search for a block to evict.
#[derive(Debug, Default)]
pub(in crate::cache) struct VictimSearch {
    /// The shard that evicts the next block.
    pub(super) next: usize,
    /// Whether the search has already tried the value under the insertion's own key.
    pub(super) begun: bool,
}

/// A shard, and the ranks that it had published.
type Seen = (usize, [Rank; ORDERS]);

/// The shard that evicts the next block, and the ranks that decided it.
#[derive(Debug)]
struct VictimShard {
    shard: usize,
    /// The ranks that the shard had published.
    ranks: [Rank; ORDERS],
    /// The worth of LRU's candidate among all shards, for a scan-resistant cache.
    other: Option<f32>,
}

/// Number of shards that an eviction compares; the next eviction compares the next ones.
const COMPARED: usize = 8;
/// After this many attempts the chosen shard evicts a block, whatever was used meanwhile.
const ATTEMPTS: usize = 8;

impl<K: Hash + Eq> CacheState<K> {
    /// Evicts one block. It tries the block under the insertion's own key, then the best victim of
    /// several shards, then a block of each shard in turn. Returns false if a whole round over the
    /// shards found no block that can be evicted.
    pub(in crate::cache) fn evict(
        &self,
        search: &mut VictimSearch,
        own: Option<(u64, &K)>,
    ) -> bool {
        if let Some((hash, key)) = own.filter(|_| !search.begun) {
            search.begun = true;
            let shard = self.shard(hash);
            let Some(mut state) = self.state(shard) else { return false };
            if let Some((slot, charged)) = state.remove_unpinned(hash, key, &self.usage) {
                shard.counts.evictions.more();
                state.inform_removed(slot);
                self.evicted(shard, state, charged);
                return true;
            }
            // In a cache of one shard the victim is here, too, under the same lock.
            if self.shards.len() == 1 {
                return self.evict_from(shard, state, None);
            }
        }
        for attempt in 1..=ATTEMPTS {
            let Some(choice) = self.choose(search) else { break };
            let shard = &self.shards[choice.shard];
            let Some(state) = self.state(shard) else { return false };
            // A use meanwhile, or one that the policy learned of only now, may have made a block of
            // another shard the victim.
            if attempt < ATTEMPTS && shard.oldest.ranks() != choice.ranks {
                continue;
            }
            if self.evict_from(shard, state, choice.other) {
                return true;
            }
            break;
        }
        for _ in 0..self.shards.len() {
            let shard = &self.shards[search.next & (self.shards.len() - 1)];
            search.next = search.next.wrapping_add(1);
            let Some(state) = self.state(shard) else { return false };
            if self.evict_from(shard, state, None) {
                return true;
            }
        }
        false
    }

    /// Evicts the next victim of a shard whose state is locked. Returns false if it has none that
    /// can be evicted. `other` is the worth of LRU's candidate among all shards.
    #[inline]
    fn evict_from(
        &self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        other: Option<f32>,
    ) -> bool {
        let Some(charged) = state.evict(other, &self.usage) else { return false };
        shard.counts.evictions.more();
        self.evicted(shard, state, charged);
        true
    }

    /// Chooses the shard that evicts the next block, of the [`COMPARED`] next ones. Returns `None`
    /// if there is nothing to compare.
    fn choose(&self, search: &mut VictimSearch) -> Option<VictimShard> {
        let mask = self.shards.len() - 1;
        let looked_at = self.shards.len().min(COMPARED);
        let first = search.next;
        if mask >= COMPARED {
            search.next = first.wrapping_add(COMPARED);
        }
        let all = (0..looked_at).map(|further| first.wrapping_add(further) & mask);
        match &self.across {
            _ if mask == 0 => None,
            Across::RoundRobin => None,
            Across::Age => {
                let aged = all.map(|shard| (shard, self.shards[shard].oldest.ranks()));
                let (shard, ranks) =
                    aged.filter(|(_, ranks)| ranks[0] != NONE).min_by_key(|(_, ranks)| ranks[0])?;
                Some(VictimShard { shard, ranks, other: None })
            }
            Across::Worth(reuse) => {
                let now = self.usage.commits.now();
                let mut best: Option<(Candidates, [Seen; 2])> = None;
                for shard in all {
                    let ranks = self.shards[shard].oldest.ranks();
                    let Some(found) = Candidates::of(reuse, now, ranks) else { continue };
                    best = Some(match best {
                        None => (found, [(shard, ranks); 2]),
                        Some((so_far, mut at)) => {
                            let both = so_far.and(found);
                            if both.oldest != so_far.oldest {
                                at[0] = (shard, ranks);
                            }
                            if both.least != so_far.least {
                                at[1] = (shard, ranks);
                            }
                            (both, at)
                        }
                    });
                }
                let (candidates, [oldest, least]) = best?;
                let choice = candidates.trusted_choice(reuse, None);
                let (shard, ranks) = if choice == candidates.oldest { oldest } else { least };
                Some(VictimShard { shard, ranks, other: Some(candidates.oldest.worth) })
            }
        }
    }

    /// Evicts a block whose time to live has passed, pinned or not.
    #[cold]
    pub(in crate::cache) fn evict_expired(
        &self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        hash: u64,
        held: &Arc<CacheEntry<K>>,
    ) {
        if let Some((slot, charged)) = state.remove_entry(hash, held, &self.usage) {
            shard.counts.evictions.more();
            state.inform_removed(slot);
            self.evicted(shard, state, charged);
        }
    }

    /// Frees an evicted block, or passes it to the eviction sink. Without a sink the block is freed
    /// under the lock of its shard: a thread that takes the lock afterwards finds the bytes free,
    /// unless they are pinned. A sink is called without the lock, and the key is not leased until
    /// the sink has returned.
    fn evicted(
        &self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        charged: Charged<'_, K>,
    ) {
        shard.publish(&mut state);
        let Some(sink) = &self.sink else { return drop(charged) };
        let number = state.hand_over(charged.held());
        let held = charged.uncharged();
        drop(state);
        let mut in_flight = HandOverGuard::new(self.process, shard, number);
        in_flight.taken = sink(Pinned(held));
    }
}
