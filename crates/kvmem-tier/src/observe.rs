#![doc = include_str!("../docs/metrics.md")]

use kvmem::pool::observe::Kind;
use kvmem::tier::WriteBehindStats;

use crate::tier::TierStats;

/// The description of a metric: of a tier, or of the queue above one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TierMetric<S = TierStats> {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// `bytes`, or the things that the metric counts.
    pub unit: &'static str,
    /// The label beside `tier` with its value, if the metric has one.
    pub label: Option<(&'static str, &'static str)>,
    /// One sentence on the meaning.
    pub help: &'static str,
    /// Reads it from the statistics.
    pub value: fn(&S) -> u64,
}

macro_rules! table {
    ($(#[$about:meta])* $table:ident: $of_stats:ty; $(
        $name:literal $kind:ident $unit:literal $([$label:literal = $of:literal])? $help:literal:
        |$stats:ident| $value:expr;
    )*) => {
        $(#[$about])*
        pub const $table: &[TierMetric<$of_stats>] = &[$(TierMetric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            label: table!(@label $($label = $of)?),
            help: $help,
            value: |$stats| $value,
        }),*];
    };
    (@label) => { None };
    (@label $label:literal = $of:literal) => { Some(($label, $of)) };
}

table! {
    /// All metrics of a tier, in the order of the [documentation](self). Those of one name differ
    /// in their label.
    METRICS: TierStats;
    "kvmem_tier_entries" Gauge "values"
        "Number of values held": |stats| stats.entries;
    "kvmem_tier_scattered_entries" Gauge "values"
        "Number of values held in several ranges of the file": |stats| stats.scattered;
    "kvmem_tier_bytes" Gauge "bytes"
        "Bytes of all values held, without padding": |stats| stats.bytes;
    "kvmem_tier_capacity_bytes" Gauge "bytes"
        "Bytes of the file for values": |stats| stats.capacity;
    "kvmem_tier_used_bytes" Gauge "bytes"
        "Bytes of the file that values use, padding included": |stats| stats.used;
    "kvmem_tier_quarantined_bytes" Gauge "bytes"
        "Bytes of the file that lost what was written and are not used any more":
        |stats| stats.quarantined;
    "kvmem_tier_unverified_entries" Gauge "values"
        "Number of values held that a power cut may have taken, and that were not read since":
        |stats| stats.unverified_values;
    "kvmem_tier_index_bytes" Gauge "bytes"
        "Memory that the index takes": |stats| stats.index_bytes;
    "kvmem_tier_read_only" Gauge "tiers"
        "1 if the journal failed, and nothing is stored until it is begun anew; else 0":
        |stats| u64::from(stats.read_only);
    "kvmem_tier_hits_total" Counter "values"
        "Number of values fetched": |stats| stats.hits;
    "kvmem_tier_misses_total" Counter "values" ["kind" = "absent"]
        "Number of fetches that returned no value": |stats| stats.misses;
    "kvmem_tier_misses_total" Counter "values" ["kind" = "checksum"]
        "Number of fetches that returned no value": |stats| stats.checksum_misses;
    "kvmem_tier_misses_total" Counter "values" ["kind" = "lost"]
        "Number of fetches that returned no value": |stats| stats.lost_misses;
    "kvmem_tier_misses_total" Counter "values" ["kind" = "io"]
        "Number of fetches that returned no value": |stats| stats.io_misses;
    "kvmem_tier_misses_total" Counter "values" ["kind" = "short"]
        "Number of fetches that returned no value": |stats| stats.short_misses;
    "kvmem_tier_stored_total" Counter "values"
        "Number of values stored": |stats| stats.stored;
    "kvmem_tier_not_admitted_total" Counter "values"
        "Number of values that a cache evicted and that were not written, by admission or the rate":
        |stats| stats.not_admitted;
    "kvmem_tier_unchanged_total" Counter "values"
        "Number of values that a cache evicted as it had fetched them, and that were not written":
        |stats| stats.unchanged;
    "kvmem_tier_evictions_total" Counter "values"
        "Number of values evicted from the tier": |stats| stats.evictions;
    "kvmem_tier_expired_total" Counter "values"
        "Number of values evicted since their time was over": |stats| stats.expired;
    "kvmem_tier_superblock_failures_total" Counter "superblocks"
        "Number of copies of the superblock that could not be written; the other copy was":
        |stats| stats.superblock_failures;
    "kvmem_tier_written_bytes_total" Counter "bytes" ["kind" = "data"]
        "Bytes written to the drive": |stats| stats.written_bytes;
    "kvmem_tier_written_bytes_total" Counter "bytes" ["kind" = "metadata"]
        "Bytes written to the drive": |stats| stats.metadata_bytes;
    "kvmem_tier_lifetime_bytes" Gauge "bytes"
        "Bytes written to the file over its life": |stats| stats.lifetime_bytes;
    "kvmem_tier_bytes_per_day" Gauge "bytes"
        "Bytes written to the file in a day of its life, on average": |stats| stats.bytes_per_day;
    "kvmem_tier_checkpoints_total" Counter "checkpoints"
        "Number of checkpoints of the index written": |stats| stats.checkpoints;
}

table! {
    /// All metrics of the queue between a cache and a tier, in the order of the
    /// [documentation](self). Those of one name differ in their label.
    QUEUE_METRICS: WriteBehindStats;
    "kvmem_tier_queue_values" Gauge "values"
        "Number of values in the queue, those being written included": |stats| stats.values;
    "kvmem_tier_queue_bytes" Gauge "bytes"
        "Bytes of the values in the queue": |stats| stats.bytes;
    "kvmem_tier_queue_max_bytes" Gauge "bytes"
        "The most bytes that were in the queue at once": |stats| stats.max_bytes;
    "kvmem_tier_queue_removals" Gauge "removals"
        "Number of removals in the queue": |stats| stats.removals;
    "kvmem_tier_queue_untrusted_keys" Gauge "keys"
        "Number of keys that are not fetched, since the tier failed to remove an older value":
        |stats| stats.untrusted;
    "kvmem_tier_queue_evicted_total" Counter "values"
        "Number of values that the cache evicted": |stats| stats.evicted;
    "kvmem_tier_queue_written_total" Counter "values"
        "Number of values that the tier took": |stats| stats.written;
    "kvmem_tier_queue_written_bytes_total" Counter "bytes"
        "Bytes of the values that the tier took": |stats| stats.written_bytes;
    "kvmem_tier_queue_batches_total" Counter "batches"
        "Number of batches that were given to the tier": |stats| stats.batches;
    "kvmem_tier_queue_unwritten_total" Counter "values" ["reason" = "replaced"]
        "Number of evicted values that were not written": |stats| stats.replaced;
    "kvmem_tier_queue_unwritten_total" Counter "values" ["reason" = "full"]
        "Number of evicted values that were not written": |stats| stats.dropped;
    "kvmem_tier_queue_unwritten_total" Counter "values" ["reason" = "failed"]
        "Number of evicted values that were not written": |stats| stats.failed;
    "kvmem_tier_queue_unwritten_total" Counter "values" ["reason" = "rejected"]
        "Number of evicted values that were not written": |stats| stats.rejected;
    "kvmem_tier_queue_waits_total" Counter "waits"
        "Number of waits of threads for room in the queue": |stats| stats.waits;
    "kvmem_tier_queue_hits_total" Counter "values"
        "Number of values that were fetched out of the queue": |stats| stats.hits;
    "kvmem_tier_queue_panics_total" Counter "panics"
        "Number of calls of the tier that panicked": |stats| stats.panics;
}

#[cfg(feature = "metrics")]
mod publish;

#[cfg(feature = "metrics")]
pub use self::publish::{publisher, queue_publisher, set_publisher};
