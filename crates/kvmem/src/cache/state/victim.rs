//! *Victim*: the search for a block to evict, over all shards.

use std::hash::Hash;
use std::sync::Arc;

use super::cache_state::CacheState;
use super::sink::HandOverGuard;
use crate::cache::index::{CacheEntry, Charged, Pinned, Shard, ShardState, StripeState};
use crate::cache::policy::{
    Across, Candidates, LARGE_SLACK, NONE, ORDERS, Rank, is_clearly_less, run, slack,
};
use crate::sync::StripedWriteGuard;

/// The progress of an insertion in its search for a block to evict.
#[derive(Debug, Default)]
pub(in crate::cache) struct VictimSearch {
    /// The shard that evicts the next block.
    pub(super) next: usize,
    /// Whether the search has already tried the value under the insertion's own key.
    pub(super) begun: bool,
    /// The length of the block that the insertion takes over from a victim; 0: of none.
    pub(super) wanted: u64,
    /// The number of commits before the last round over all shards.
    pub(super) commits: u64,
}

/// The block of a victim after the eviction.
pub(in crate::cache) enum Evicted<'a, K> {
    /// It is free, pinned by others, or in the hands of the sink.
    Freed,
    /// It has the wanted length, and is still charged.
    Recycled(Charged<'a, K>),
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
    /// Evicts one block. It tries the block under the insertion's own key; then the next victim of
    /// the key's shard, if other shards have none that is clearly older or worth less; then the
    /// best victim of several shards; then a block of each shard in turn. Returns `None` if a whole
    /// round over the shards found no block that can be evicted.
    pub(in crate::cache) fn evict(
        &self,
        search: &mut VictimSearch,
        own: Option<(u64, &K)>,
    ) -> Option<Evicted<'_, K>> {
        let wanted = search.wanted;
        if let Some((hash, key)) = own.filter(|_| !search.begun) {
            search.begun = true;
            let shard = self.shard(hash);
            let mut state = self.state(shard)?;
            if let Some((slot, charged)) = state.remove_unpinned(hash, key, &self.usage) {
                shard.changes.evictions.more();
                state.inform_removed(slot);
                return Some(self.evicted(shard, state, charged, wanted));
            }
            // Most victims are here, under the same lock.
            if let Some(other) = self.other_if_near(shard, &mut state)
                && let Some(evicted) = self.evict_from(shard, state, other, wanted)
            {
                return Some(evicted);
            }
        }
        for attempt in 1..=ATTEMPTS {
            let Some(choice) = self.choose(search) else { break };
            let shard = &self.shards[choice.shard];
            let mut state = self.state(shard)?;
            // A use meanwhile, or one that the policy learned of only now, may have made a block of
            // another shard the victim.
            if attempt < ATTEMPTS && shard.changes.oldest.ranks() != choice.ranks {
                continue;
            }
            state.set_compared();
            match self.evict_from(shard, state, choice.other, wanted) {
                None => break,
                evicted => return evicted,
            }
        }
        if own.is_some() {
            search.commits = self.commits();
        }
        for _ in 0..self.shards.len() {
            let shard = &self.shards[search.next & (self.shards.len() - 1)];
            search.next = search.next.wrapping_add(1);
            if let evicted @ Some(_) = self.evict_from(shard, self.state(shard)?, None, wanted) {
                return evicted;
            }
        }
        None
    }

    /// Evicts the next victim of a shard whose state is locked. Returns `None` if it has none that
    /// can be evicted. `other` is the worth of LRU's candidate among all shards.
    #[inline]
    fn evict_from(
        &self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        other: Option<f32>,
        wanted: u64,
    ) -> Option<Evicted<'_, K>> {
        let charged = state.evict(other, &self.usage)?;
        shard.changes.evictions.more();
        Some(self.evicted(shard, state, charged, wanted))
    }

    /// Returns what [`ShardState::evict`] needs, if the shard may evict its own next victim without
    /// a comparison with other shards: see [`Frontier`](crate::cache::policy::Frontier).
    #[inline]
    fn other_if_near(&self, shard: &Shard<K>, state: &mut ShardState<K>) -> Option<Option<f32>> {
        if state.begin_allowed() {
            return Some(Some(self.frontier.worths().0));
        }
        let slack = slack(self.usage.blocks());
        let run = run(slack, self.shards.len());
        match &self.across {
            _ if self.shards.len() == 1 => {
                state.allow(run);
                Some(None)
            }
            // One shard is as good as another, and the shards of several keys take turns.
            Across::RoundRobin => Some(None),
            Across::Age => {
                let ranks = shard.changes.oldest.ranks();
                self.frontier.has_reached(ranks[0], slack).then(|| {
                    state.allow(run);
                    None
                })
            }
            Across::Worth(reuse) => {
                if slack < LARGE_SLACK || state.must_compare() {
                    state.set_compared();
                    return None;
                }
                let ranks = shard.changes.oldest.ranks();
                let (oldest_worth, worth) = self.frontier.worths();
                let own = Candidates::of(reuse, self.usage.clock.now(), ranks)?;
                let choice = own.trusted_choice(reuse, Some(oldest_worth));
                let is_near = if choice == own.oldest {
                    self.frontier.has_reached(choice.rank(), slack)
                } else {
                    !is_clearly_less(worth, choice.worth)
                };
                is_near.then(|| {
                    state.set_choice(choice);
                    state.allow(run);
                    Some(oldest_worth)
                })
            }
        }
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
                let aged = all.map(|shard| (shard, self.shards[shard].changes.oldest.ranks()));
                let (shard, ranks) =
                    aged.filter(|(_, ranks)| ranks[0] != NONE).min_by_key(|(_, ranks)| ranks[0])?;
                self.frontier.move_to(ranks[0], slack(self.usage.blocks()));
                Some(VictimShard { shard, ranks, other: None })
            }
            Across::Worth(reuse) => {
                let now = self.usage.clock.now();
                let mut best: Option<(Candidates, [Seen; 2])> = None;
                for shard in all {
                    let ranks = self.shards[shard].changes.oldest.ranks();
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
                self.frontier.move_to(candidates.oldest.rank(), slack(self.usage.blocks()));
                self.frontier.set_worths(candidates.oldest.worth, choice.worth);
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
            shard.changes.evictions.more();
            state.inform_removed(slot);
            self.evicted(shard, state, charged, 0);
        }
    }

    /// Frees an evicted block, passes it to the eviction sink, or returns it for an insertion that
    /// wants a block of its length. Without a sink the block is freed under the lock of its shard:
    /// a thread that takes the lock afterwards finds the bytes free, unless they are pinned or
    /// another insertion has taken them over. A sink is called without the lock, and the key is not
    /// leased until the sink has returned.
    #[inline]
    fn evicted<'a>(
        &'a self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        charged: Charged<'a, K>,
        wanted: u64,
    ) -> Evicted<'a, K> {
        if !state.is_allowed() {
            shard.publish(&mut state);
        }
        let Some(sink) = &self.sink else {
            if charged.held().charge() == wanted {
                return Evicted::Recycled(charged);
            }
            drop(charged);
            return Evicted::Freed;
        };
        let number = state.hand_over(charged.held());
        let held = charged.uncharged();
        drop(state);
        let mut in_flight = HandOverGuard::new(self.process, shard, number);
        in_flight.taken = sink(Pinned(held));
        Evicted::Freed
    }
}
