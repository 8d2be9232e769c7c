//! *Statistics* of a node.

use kvmem::tier::TierState;
use serde::{Deserialize, Serialize};

use super::node::Node;
use crate::format::State;
use crate::protocol::Listed;

/// Counts of what was done since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counters {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) reserved: u64,
    pub(super) committed: u64,
    pub(super) removed: u64,
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) fenced: u64,
    pub(super) out_of_space: u64,
    pub(super) scrubbed: u64,
    pub(super) damaged: u64,
    pub(super) tier_stored: u64,
    pub(super) tier_fetched: u64,
    pub(super) tier_failed: u64,
}

/// Statistics of a node. Counts begin when the server starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStats {
    /// Bytes of the memory.
    pub capacity: u64,
    /// Bytes that values and reservations take: each takes whole units of the alignment.
    pub used: u64,
    /// Bytes of the largest free range.
    pub largest_free: u64,
    /// Values that can be found.
    pub values: u64,
    /// Blocks that there can be.
    pub max_blocks: u64,
    /// Clients that are connected, or whose process lives.
    pub sessions: u64,
    /// Sessions whose client has not returned since the server restarted.
    pub orphaned_sessions: u64,
    /// Values that are pinned.
    pub pinned: u64,
    /// Bytes that pinned values take.
    pub pinned_bytes: u64,
    /// Reservations.
    pub reservations: u64,
    /// Bytes that reservations take.
    pub reserved_bytes: u64,
    /// Bytes that fenced reservations take, whose client was silent for too long, and blocks into
    /// which a device may still read for an earlier server.
    pub fenced_bytes: u64,
    /// Bytes of values whose [parent](crate::ValueOptions::parent) is neither in memory nor in the
    /// tier: no look-up from the start of a prefix on finds them.
    pub dead_bytes: u64,
    /// Keys that were acquired and had a value.
    pub hits: u64,
    /// Keys that were acquired and had none.
    pub misses: u64,
    /// Blocks that were reserved.
    pub reserved_total: u64,
    /// Values that were committed.
    pub committed_total: u64,
    /// Values that were removed.
    pub removed_total: u64,
    /// Values that were evicted for others.
    pub evicted_total: u64,
    /// Values whose time was over.
    pub expired_total: u64,
    /// Reservations that were fenced.
    pub fenced_total: u64,
    /// Reservations that failed because nothing could be evicted.
    pub out_of_space_total: u64,
    /// Values that the scrubber has verified.
    pub scrubbed_total: u64,
    /// Values that were removed because their bytes did not have their checksum.
    pub damaged_total: u64,
    /// Values that the tier has stored.
    pub tier_stored_total: u64,
    /// Values that were fetched from the tier.
    pub tier_fetched_total: u64,
    /// Values that the tier could not fetch or remove.
    pub tier_failed_total: u64,
    /// Whether the tier works.
    pub tier_state: TierState,
    /// All namespaces. The number of a namespace is its index. One that the client may not use has
    /// no name, a share of 0, and no figures.
    pub namespaces: Vec<NamespaceStats>,
}

/// Statistics of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceStats {
    /// The name.
    pub name: String,
    /// Bytes that its values and reservations take: each takes whole units of the alignment.
    pub bytes: u64,
    /// The most bytes that it may use.
    pub max_bytes: u64,
    /// Values that are pinned.
    pub pinned: u64,
    /// Bytes that pinned values take.
    pub pinned_bytes: u64,
    /// Its share of the memory, beside those of the others.
    pub share: u32,
}

/// Entries that a call of a client looks at for the values of its namespace.
const MAX_LOOKED_AT: u32 = 1 << 15;

/// Names of values in the tier that such a call looks at. Each is looked up there.
const MAX_NAMES_LOOKED_AT: u32 = 1 << 11;

/// Entries from this one on are values in the tier.
const BELOW: u32 = 1 << 31;

impl Node {
    /// Returns the statistics. O(sessions + namespaces + reservations).
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let metrics = self.space.metrics();
        let counters = self.counters;
        let sessions = || self.sessions.all().map(|(_, session)| session);
        let namespaces = self.namespaces.all().iter().map(|it| NamespaceStats {
            name: it.name.clone(),
            bytes: it.bytes,
            max_bytes: it.limits.max_bytes,
            pinned: it.pinned,
            pinned_bytes: it.pinned_bytes,
            share: it.limits.share,
        });
        NodeStats {
            capacity: metrics.capacity,
            used: metrics.allocated,
            largest_free: metrics.largest_free,
            values: self.len() as u64,
            max_blocks: self.memory.header.entries.into(),
            sessions: sessions().count() as u64,
            orphaned_sessions: sessions().filter(|it| it.orphaned).count() as u64,
            pinned: self.namespaces.all().iter().map(|it| it.pinned).sum(),
            pinned_bytes: self.namespaces.all().iter().map(|it| it.pinned_bytes).sum(),
            reservations: sessions().map(|it| it.reservations.len() as u64).sum(),
            reserved_bytes: sessions().map(|it| it.reserved_bytes).sum(),
            fenced_bytes: sessions().map(|it| it.fenced_bytes).sum::<u64>()
                + self.unfinished_reads.iter().map(|slot| self.space_of(*slot)).sum::<u64>(),
            dead_bytes: self.chains.dead_bytes(),
            hits: counters.hits,
            misses: counters.misses,
            reserved_total: counters.reserved,
            committed_total: counters.committed,
            removed_total: counters.removed,
            evicted_total: counters.evicted,
            expired_total: counters.expired,
            fenced_total: counters.fenced,
            out_of_space_total: counters.out_of_space,
            scrubbed_total: counters.scrubbed,
            damaged_total: counters.damaged,
            tier_stored_total: counters.tier_stored,
            tier_fetched_total: counters.tier_fetched,
            tier_failed_total: counters.tier_failed,
            tier_state: self.tier_state(),
            namespaces: namespaces.collect(),
        }
    }

    /// Returns at most `max` values from entry `from` on, of a namespace or of all, and the entry
    /// to go on with. A call for one namespace looks at a limited number of entries.
    pub(crate) fn list(
        &self,
        namespace: Option<u16>,
        from: u32,
        max: u32,
        now: u64,
    ) -> (Vec<Listed>, Option<u32>) {
        let mut values = Vec::new();
        if from >= BELOW {
            return self.list_tier(namespace, from - BELOW, max);
        }
        for slot in from..self.locals.len() as u32 {
            if namespace.is_some() && slot - from == MAX_LOOKED_AT {
                return (values, Some(slot));
            }
            let word = self.word(slot);
            if word.state != State::Committed
                || namespace.is_some_and(|it| self.entry(slot).namespace() != it)
            {
                continue;
            }
            if values.len() == max as usize {
                return (values, Some(slot));
            }
            let entry = self.entry(slot);
            values.push(Listed {
                namespace: self.namespaces.get(entry.namespace()).name.clone(),
                key: entry.key()[..word.key_len.into()].to_vec(),
                len: self.len_of(slot),
                pins: self.locals[slot as usize].pins,
                priority: entry.priority(),
                idle_ms: now.saturating_sub(entry.used_at()),
            });
        }
        // Those in the tier come next, from the last one on.
        let names = self.tier_names() as u32;
        (values, namespace.filter(|_| names > 0).map(|_| BELOW + names))
    }

    /// Lists values that only the tier has: of the first `names` ones the last `max`. A name that
    /// is removed meanwhile is replaced by the last one, so none is left out.
    fn list_tier(
        &self,
        namespace: Option<u16>,
        names: u32,
        max: u32,
    ) -> (Vec<Listed>, Option<u32>) {
        let mut values = Vec::new();
        let Some(namespace) = namespace else { return (values, None) };
        let mut left = names.min(self.tier_names() as u32);
        let end = left.saturating_sub(MAX_NAMES_LOOKED_AT);
        while left > end && values.len() < max as usize {
            left -= 1;
            let Some((key, len)) = self.tier_name_at(left as usize, namespace) else { continue };
            values.push(Listed {
                namespace: self.namespaces.get(namespace).name.clone(),
                key: key.to_vec(),
                len,
                pins: 0,
                priority: 0,
                idle_ms: 0,
            });
        }
        (values, (left > 0).then_some(BELOW + left))
    }

    /// Returns the entries of all values that can be found, in no order.
    pub(crate) fn committed_slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.locals.len() as u32).filter(|slot| self.word(*slot).state == State::Committed)
    }
}
