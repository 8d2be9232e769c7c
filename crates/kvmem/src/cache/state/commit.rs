//! *Commit*: puts values into a cache, and takes them out.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use super::cache_state::CacheState;
use crate::cache::index::{Charged, Pinned, Shard, ShardState, StripeState};
use crate::cache::policy::{LARGE_SLACK, slack};
use crate::sync::StripedWriteGuard;

impl<K: Hash + Eq> CacheState<K> {
    /// Inserts a charged block. Returns false in a forked child, which drops the block.
    pub(in crate::cache) fn commit(&self, hash: u64, charged: Charged<'_, K>) -> bool {
        let shard = self.shard(hash);
        let Some(state) = self.state(shard) else { return false };
        self.put(shard, state, hash, charged);
        true
    }

    /// Inserts a charged block if the lease with this number is valid; otherwise drops the block
    /// and returns the value that the key has. The lease leaves the table, and then `ended` is
    /// called.
    pub(in crate::cache) fn commit_leased<'a>(
        &'a self,
        hash: u64,
        charged: Charged<'a, K>,
        number: u64,
        ended: impl FnOnce(),
    ) -> Result<Pinned<K>, Option<Pinned<K>>> {
        let shard = self.shard(hash);
        let Some(mut state) = self.state(shard) else { return Err(None) };
        let redeemed = state.redeem(hash, &charged.held().key, number);
        ended();
        match redeemed {
            Ok(()) => {
                let pinned = Pinned(Arc::clone(charged.held()));
                self.put(shard, state, hash, charged);
                Ok(pinned)
            }
            Err(there) => {
                shard.counts.superseded.more();
                Err(there.map(Pinned))
            }
        }
    }

    /// Inserts a charged block and replaces the one under the same key, if any.
    fn put<'a>(
        &'a self,
        shard: &Shard<K>,
        mut state: StripedWriteGuard<'_, ShardState<K>, StripeState>,
        hash: u64,
        charged: Charged<'a, K>,
    ) {
        let depth = charged.held().depth();
        let (slot, old) = state.place(hash, charged, &self.usage);
        if old.is_some() {
            shard.counts.replacements.more();
        }
        let held = self.usage.blocks();
        shard.count_commit(&mut state, held);
        state.inform_placed(slot, hash, depth, old.is_some());
        // In a cache with many blocks a new one is no next victim of its shard.
        if old.is_some() || slack(held) < LARGE_SLACK {
            shard.publish(&mut state);
        }
        // The old block is freed under the lock of the shard; see `evicted`.
        drop(old);
        drop(state);
    }

    /// Removes the value under `key` and returns it.
    pub(in crate::cache) fn take_out<Q: Hash + Eq + ?Sized>(
        &self,
        shard: &Shard<K>,
        state: &mut ShardState<K>,
        hash: u64,
        key: &Q,
    ) -> Option<Pinned<K>>
    where
        K: Borrow<Q>,
    {
        let (slot, charged) = state.remove(hash, key, &self.usage)?;
        shard.counts.removals.more();
        state.inform_removed(slot);
        shard.publish(state);
        Some(Pinned(charged.uncharged())).filter(|pinned| !pinned.0.has_expired())
    }

    /// Removes all values of a shard.
    pub(in crate::cache) fn empty(&self, shard: &Shard<K>, state: &mut ShardState<K>) {
        let (slots, all) = state.drain(&self.usage);
        slots.iter().for_each(|_| shard.counts.removals.more());
        slots.into_iter().for_each(|slot| state.inform_removed(slot));
        shard.publish(state);
        // The blocks are freed under the lock of the shard; see `evicted`.
        drop(all);
    }
}
