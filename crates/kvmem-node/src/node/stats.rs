//! *Statistics* of a node.

use kvmem::tier::TierState;
use serde::{Deserialize, Serialize};

use super::miss_reason::{MissCounts, MissReason};
use super::node::Node;
use crate::format::State;

/// Counts of what was done since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counters {
    pub(super) hits: u64,
    pub(super) misses: MissCounts,
    pub(super) evicted_unused: u64,
    pub(super) reserved: u64,
    pub(super) committed: u64,
    pub(super) removed: u64,
    pub(super) evicted: u64,
    pub(super) expired: u64,
    pub(super) fenced: u64,
    pub(super) out_of_space: u64,
    pub(super) scrubbed: u64,
    pub(super) damaged: u64,
    pub(super) pressure: u64,
    pub(super) given_back: u64,
    pub(super) tier_stored: u64,
    pub(super) tier_not_stored: u64,
    pub(super) tier_fetched: u64,
    pub(super) tier_failed: u64,
}

kvmem::stats! {
    /// Figures of a node, for all its clients and namespaces. Counts begin when its server starts.
    /// Sizes are in bytes.
    pub struct NodeStats: Clone Debug Default PartialEq Eq Serialize Deserialize {
        /// Bytes of the memory that values and reservations can use now.
        capacity: u64 [Gauge "kvmem_node_capacity_bytes" "bytes"],
        /// Bytes that the memory is to have, and has soon unless blocks behind its end are in use.
        wanted_capacity: u64 [Gauge "kvmem_node_wanted_capacity_bytes" "bytes"],
        /// The least capacity under memory pressure.
        min_capacity: u64 [Gauge "kvmem_node_min_capacity_bytes" "bytes"],
        /// The largest capacity that the memory can have while its clients have it mapped.
        max_capacity: u64 [Gauge "kvmem_node_max_capacity_bytes" "bytes"],
        /// Bytes that values and reservations use: each takes whole units of the alignment.
        used: u64 [Gauge "kvmem_node_used_bytes" "bytes"],
        /// Bytes of the largest free range.
        largest_free: u64 [Gauge "kvmem_node_largest_free_bytes" "bytes"],
        /// Values that can be found.
        values: u64 [Gauge "kvmem_node_values" "values"],
        /// The most values and reservations that there can be.
        max_blocks: u64 [Gauge "kvmem_node_max_blocks" "blocks"],
        /// Clients that are connected, or whose process lives.
        sessions: u64 [Gauge "kvmem_node_sessions" "sessions"],
        /// Sessions whose client has not returned since the server restarted.
        orphaned_sessions: u64 [Gauge "kvmem_node_orphaned_sessions" "sessions"],
        /// Values that are pinned.
        pinned: u64 [Gauge "kvmem_node_pinned_values" "values"],
        /// Bytes of values that are pinned.
        pinned_bytes: u64 [Gauge "kvmem_node_pinned_bytes" "bytes"],
        /// Reservations.
        reservations: u64 [Gauge "kvmem_node_reservations" "reservations"],
        /// Bytes of reservations.
        reserved_bytes: u64 [Gauge "kvmem_node_reserved_bytes" "bytes"],
        /// Bytes of reservations whose client was silent for longer than its lease, and of blocks
        /// into which a device may still read for an earlier server.
        fenced_bytes: u64 [Gauge "kvmem_node_fenced_bytes" "bytes"],
        /// Bytes of values whose parent is neither in memory nor in the tier: no look-up from the
        /// start of a prefix on finds them.
        dead_bytes: u64 [Gauge "kvmem_node_dead_bytes" "bytes"],
        /// Keys that were acquired and had a value.
        hits: u64 [Counter "kvmem_node_hits_total" "keys"],
        /// Keys that were acquired and had none.
        misses: u64,
        /// Misses whose key has had no value that the server remembers.
        never_stored_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "never-stored" "Keys that were acquired and had no value."],
        /// Misses whose value was evicted for others.
        evicted_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "evicted" "Keys that were acquired and had no value."],
        /// Misses whose value's time was over.
        expired_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "expired" "Keys that were acquired and had no value."],
        /// Misses whose value was removed.
        removed_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "removed" "Keys that were acquired and had no value."],
        /// Misses whose value's bytes did not have their checksum.
        damaged_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "damaged" "Keys that were acquired and had no value."],
        /// Misses whose value was evicted to the tier, which does not work now.
        tier_away_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "tier-away" "Keys that were acquired and had no value."],
        /// Misses whose value was evicted to the tier, which has let it go since.
        tier_lost_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "tier-lost" "Keys that were acquired and had no value."],
        /// Misses whose value the tier has and could not bring.
        not_fetched_misses: u64 [Counter "kvmem_node_misses_total" "keys"
            "reason" = "not-fetched" "Keys that were acquired and had no value."],
        /// Blocks that were reserved.
        reserved_total: u64 [Counter "kvmem_node_reserved_total" "blocks"],
        /// Values that were committed.
        committed_total: u64 [Counter "kvmem_node_committed_total" "values"],
        /// Values that were removed.
        removed_total: u64 [Counter "kvmem_node_removed_total" "values"],
        /// Values that were evicted for others.
        evicted_total: u64 [Counter "kvmem_node_evictions_total" "values"],
        /// Values that were evicted, or whose time was over, before anybody acquired them.
        evicted_unused_total: u64 [Counter "kvmem_node_evicted_unused_total" "values"],
        /// Values whose time was over.
        expired_total: u64 [Counter "kvmem_node_expired_total" "values"],
        /// Reservations that were fenced: their client was silent for longer than its lease.
        fenced_total: u64 [Counter "kvmem_node_fenced_total" "reservations"],
        /// Reservations that failed because nothing could be evicted.
        out_of_space_total: u64 [Counter "kvmem_node_out_of_space_total" "calls"],
        /// Times that the server has given memory back because the machine or its cgroup was short
        /// of it.
        pressure_total: u64 [Counter "kvmem_node_pressure_total" "times"],
        /// Bytes that were given back to the kernel.
        given_back_bytes_total: u64 [Counter "kvmem_node_given_back_bytes_total" "bytes"],
        /// Values that the server has verified in the background.
        scrubbed_total: u64 [Counter "kvmem_node_scrubbed_total" "values"],
        /// Values that were removed because their bytes did not have their checksum.
        damaged_total: u64 [Counter "kvmem_node_damaged_total" "values"],
        /// Values that the tier has stored.
        tier_stored_total: u64 [Counter "kvmem_node_tier_stored_total" "values"],
        /// Values that the tier was to store and did not: it failed, was away, had no room or did
        /// not want them.
        tier_not_stored_total: u64 [Counter "kvmem_node_tier_not_stored_total" "values"],
        /// Values that were fetched from the tier.
        tier_fetched_total: u64 [Counter "kvmem_node_tier_fetched_total" "values"],
        /// Values that the tier could not fetch or remove.
        tier_failed_total: u64 [Counter "kvmem_node_tier_failed_total" "values"],
        /// Whether the tier works: 0 there is none, 1 it works, 2 it stores nothing because its
        /// device failed, 3 it is away and may work later.
        tier_state: TierState [Gauge "kvmem_node_tier_state" "state"],
        /// Calls that were served within 4.1 µs.
        calls_within_4us: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.000004096" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 16.4 µs.
        calls_within_16us: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.000016384" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 65.5 µs.
        calls_within_64us: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.000065536" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 262 µs.
        calls_within_256us: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.000262144" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 1.05 ms.
        calls_within_1ms: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.001048576" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 4.2 ms.
        calls_within_4ms: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.004194304" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 16.8 ms.
        calls_within_16ms: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.016777216" "Calls that were served in at most `le` seconds."],
        /// Calls that were served within 67.1 ms.
        calls_within_64ms: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "0.067108864" "Calls that were served in at most `le` seconds."],
        /// Calls that were served.
        calls: u64 [Counter "kvmem_node_calls_total" "calls"
            "le" = "+Inf" "Calls that were served in at most `le` seconds."],
        /// Subscribers to the KV events.
        kv_event_subscribers: u64 [Gauge "kvmem_node_kv_event_subscribers" "subscribers"],
        /// Milliseconds for which changes have waited for the publisher of KV events.
        kv_event_wait_ms: u64 [Gauge "kvmem_node_kv_event_wait_ms" "milliseconds"],
        /// Batches of KV events that were published to all.
        kv_event_batches_total: u64 [Counter "kvmem_node_kv_event_batches_total" "batches"],
        /// KV events that were published to all.
        kv_events_total: u64 [Counter "kvmem_node_kv_events_total" "events"],
        /// Batches that were sent to subscribers that requested a replay.
        kv_event_replayed_total: u64 [Counter "kvmem_node_kv_event_replayed_total" "batches"],
        /// Times that changes were lost, so that the publisher got a list of all values instead.
        kv_event_lists_total: u64 [Counter "kvmem_node_kv_event_lists_total" "times"],
        /// Subscribers that were disconnected because they read too slowly or broke the protocol.
        kv_event_disconnected_total: u64 [Counter "kvmem_node_kv_event_disconnected_total"
            "subscribers"],
        /// All namespaces. The number of a namespace is its index. One that the client may not use
        /// has no name, a share of 0, and no figures.
        namespaces: Vec<NamespaceStats>,
    }
}

kvmem::stats! {
    /// Figures of a namespace of a node. Sizes are in bytes.
    pub struct NamespaceStats: Clone Debug Default PartialEq Eq Serialize Deserialize {
        /// The name.
        name: String,
        /// Bytes of values and reservations of the namespace: each takes whole units of the
        /// alignment.
        bytes: u64 [Gauge "kvmem_node_namespace_bytes" "bytes"],
        /// The most bytes that it may use.
        max_bytes: u64,
        /// Values of the namespace that are pinned.
        pinned: u64 [Gauge "kvmem_node_namespace_pinned_values" "values"],
        /// Bytes of values of the namespace that are pinned.
        pinned_bytes: u64 [Gauge "kvmem_node_namespace_pinned_bytes" "bytes"],
        /// Share of the memory, compared with those of the other namespaces.
        share: u32 [Gauge "kvmem_node_namespace_share" "shares"],
        /// Keys of the namespace that were acquired and had a value.
        hits: u64 [Counter "kvmem_node_namespace_hits_total" "keys"],
        /// Keys that were acquired and had none.
        misses: u64,
        /// Misses whose key has had no value that the server remembers.
        never_stored_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "never-stored" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value was evicted for others.
        evicted_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "evicted" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value's time was over.
        expired_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "expired" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value was removed.
        removed_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "removed" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value's bytes did not have their checksum.
        damaged_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "damaged" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value was evicted to the tier, which does not work now.
        tier_away_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "tier-away" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value was evicted to the tier, which has let it go since.
        tier_lost_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "tier-lost" "Keys of the namespace that were acquired and had no value."],
        /// Misses whose value the tier has and could not bring.
        not_fetched_misses: u64 [Counter "kvmem_node_namespace_misses_total" "keys"
            "reason" = "not-fetched" "Keys of the namespace that were acquired and had no value."],
        /// Values that were evicted, or whose time was over, before anybody acquired them.
        evicted_unused_total: u64 [Counter "kvmem_node_namespace_evicted_unused_total" "values"],
        /// Bytes that the namespace can have without taking any from others: those that it has and
        /// those that are free, at most its limit.
        memory: u64 [Gauge "kvmem_node_namespace_memory_bytes" "bytes"],
        /// Keys of all acquisitions in the namespace, those behind the first miss of a prefix too.
        keys: u64 [Counter "kvmem_node_namespace_keys_total" "keys"],
        /// Keys that would have had a value with half of its memory.
        hits_at_half: u64 [Counter "kvmem_node_namespace_hits_at_total" "keys"
            "factor" = "0.5" "Keys that would have had a value with this multiple of its memory."],
        /// Keys that would have had a value with twice its memory.
        hits_at_2: u64 [Counter "kvmem_node_namespace_hits_at_total" "keys"
            "factor" = "2" "Keys that would have had a value with this multiple of its memory."],
        /// Keys that would have had a value with four times its memory.
        hits_at_4: u64 [Counter "kvmem_node_namespace_hits_at_total" "keys"
            "factor" = "4" "Keys that would have had a value with this multiple of its memory."],
        /// Keys that would have had a value with eight times its memory.
        hits_at_8: u64 [Counter "kvmem_node_namespace_hits_at_total" "keys"
            "factor" = "8" "Keys that would have had a value with this multiple of its memory."],
    }
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
        let namespaces = (0..).zip(self.namespaces.all()).map(|(number, it)| NamespaceStats {
            name: it.name.clone(),
            bytes: it.bytes,
            max_bytes: it.limits.max_bytes,
            pinned: it.pinned,
            pinned_bytes: it.pinned_bytes,
            share: it.limits.share,
            hits: it.hits,
            misses: it.misses.all(),
            never_stored_misses: it.misses.of(MissReason::NeverStored),
            evicted_misses: it.misses.of(MissReason::Evicted),
            expired_misses: it.misses.of(MissReason::Expired),
            removed_misses: it.misses.of(MissReason::Removed),
            damaged_misses: it.misses.of(MissReason::Damaged),
            tier_away_misses: it.misses.of(MissReason::TierAway),
            tier_lost_misses: it.misses.of(MissReason::TierLost),
            not_fetched_misses: it.misses.of(MissReason::NotFetched),
            evicted_unused_total: it.evicted_unused,
            memory: self.memory_of(number, metrics.free),
            keys: it.curve.keys,
            hits_at_half: it.hits - it.curve.old_hits,
            hits_at_2: it.curve.hits(it.hits, 0),
            hits_at_4: it.curve.hits(it.hits, 1),
            hits_at_8: it.curve.hits(it.hits, 2),
        });
        NodeStats {
            capacity: self.size(),
            wanted_capacity: self.wanted_size(),
            min_capacity: self.options.min_size.min(self.wanted_size()),
            max_capacity: self.memory.header.memory_len,
            used: self.used(),
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
            misses: counters.misses.all(),
            never_stored_misses: counters.misses.of(MissReason::NeverStored),
            evicted_misses: counters.misses.of(MissReason::Evicted),
            expired_misses: counters.misses.of(MissReason::Expired),
            removed_misses: counters.misses.of(MissReason::Removed),
            damaged_misses: counters.misses.of(MissReason::Damaged),
            tier_away_misses: counters.misses.of(MissReason::TierAway),
            tier_lost_misses: counters.misses.of(MissReason::TierLost),
            not_fetched_misses: counters.misses.of(MissReason::NotFetched),
            reserved_total: counters.reserved,
            committed_total: counters.committed,
            removed_total: counters.removed,
            evicted_total: counters.evicted,
            evicted_unused_total: counters.evicted_unused,
            expired_total: counters.expired,
            fenced_total: counters.fenced,
            out_of_space_total: counters.out_of_space,
            pressure_total: counters.pressure,
            given_back_bytes_total: counters.given_back,
            scrubbed_total: counters.scrubbed,
            damaged_total: counters.damaged,
            tier_stored_total: counters.tier_stored,
            tier_not_stored_total: counters.tier_not_stored,
            tier_fetched_total: counters.tier_fetched,
            tier_failed_total: counters.tier_failed,
            tier_state: self.tier_state(),
            namespaces: namespaces.collect(),
            // The server has the others.
            ..NodeStats::default()
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

/// A value in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The name of the namespace.
    pub namespace: String,
    /// The key.
    pub key: Vec<u8>,
    /// Bytes of the value.
    pub len: u64,
    /// Clients that have it pinned, and the server itself.
    pub pins: u32,
    /// Its priority; values of priority 0 are evicted first.
    pub priority: u8,
    /// Milliseconds since it was last acquired or stored.
    pub idle_ms: u64,
}
