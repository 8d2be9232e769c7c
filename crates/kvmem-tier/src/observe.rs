#![doc = include_str!("../docs/metrics.md")]

use kvmem::pool::observe::Kind;

use crate::tier::TierStats;

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TierMetric {
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
    pub value: fn(&TierStats) -> u64,
}

macro_rules! table {
    ($(
        $name:literal $kind:ident $unit:literal $([$label:literal = $of:literal])? $help:literal:
        |$stats:ident| $value:expr;
    )*) => {
        /// All metrics, in the order of the [documentation](self). Those of one name differ in
        /// their label.
        pub const METRICS: &[TierMetric] = &[$(TierMetric {
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
        "1 if the journal failed, and nothing is stored until the tier is opened again; else 0":
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

/// Returns a function that publishes the figures of a tier to the current recorder of the
/// [`metrics`](https://docs.rs/metrics) facade, under the label `tier`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also). It keeps the tier open. A call takes
/// the lock of the tier's index for some nanoseconds.
#[cfg(feature = "metrics")]
pub fn publisher<D: crate::device::Device + 'static>(
    name: &str,
    tier: &std::sync::Arc<crate::tier::DiskTier<D>>,
) -> impl Fn() + Send + Sync + 'static + use<D> {
    use metrics::{Label, Unit, counter, gauge};

    let (name, tier) = (name.to_owned(), std::sync::Arc::clone(tier));
    move || {
        let stats = tier.stats();
        for metric in METRICS {
            let unit = if metric.unit == "bytes" { Unit::Bytes } else { Unit::Count };
            let label = metric.label.map(|(key, value)| Label::new(key, value));
            let labels = [Label::new("tier", name.clone())].into_iter().chain(label);
            let (labels, value) = (labels.collect::<Vec<Label>>(), (metric.value)(&stats));
            if metric.kind == Kind::Counter {
                metrics::describe_counter!(metric.name, unit, metric.help);
                counter!(metric.name, labels).absolute(value);
            } else {
                metrics::describe_gauge!(metric.name, unit, metric.help);
                gauge!(metric.name, labels).set(value as f64);
            }
        }
    }
}
