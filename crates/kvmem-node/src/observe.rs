#![doc = include_str!("../docs/metrics.md")]

use kvmem::pool::observe::Kind;

use crate::node::{NamespaceStats, NodeStats};

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NodeMetric<S: 'static = NodeStats> {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// `bytes`, or the things that the metric counts.
    pub unit: &'static str,
    /// One sentence on the meaning.
    pub help: &'static str,
    /// Reads it from the statistics.
    pub value: fn(&S) -> u64,
}

macro_rules! table {
    ($(#[$doc:meta])* $table:ident of $stats:ty;
     $($name:literal $kind:ident $unit:literal $help:literal: |$it:ident| $value:expr;)*) => {
        $(#[$doc])*
        pub const $table: &[NodeMetric<$stats>] = &[$(NodeMetric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            help: $help,
            value: |$it| $value,
        }),*];
    };
}

table! {
    /// All metrics of a node, in the order of the [documentation](self).
    METRICS of NodeStats;
    "kvmem_node_capacity_bytes" Gauge "bytes"
        "Bytes of the memory": |stats| stats.capacity;
    "kvmem_node_used_bytes" Gauge "bytes"
        "Bytes that values and reservations use": |stats| stats.used;
    "kvmem_node_largest_free_bytes" Gauge "bytes"
        "Bytes of the largest free range": |stats| stats.largest_free;
    "kvmem_node_values" Gauge "values"
        "Number of values that can be found": |stats| stats.values;
    "kvmem_node_max_blocks" Gauge "blocks"
        "Number of blocks that there can be": |stats| stats.max_blocks;
    "kvmem_node_sessions" Gauge "sessions"
        "Number of clients that are connected, or whose process lives": |stats| stats.sessions;
    "kvmem_node_orphaned_sessions" Gauge "sessions"
        "Number of sessions whose client has not returned since the server restarted":
        |stats| stats.orphaned_sessions;
    "kvmem_node_pinned_values" Gauge "values"
        "Number of values that are pinned": |stats| stats.pinned;
    "kvmem_node_pinned_bytes" Gauge "bytes"
        "Bytes of values that are pinned": |stats| stats.pinned_bytes;
    "kvmem_node_reservations" Gauge "reservations"
        "Number of reservations": |stats| stats.reservations;
    "kvmem_node_reserved_bytes" Gauge "bytes"
        "Bytes of reservations": |stats| stats.reserved_bytes;
    "kvmem_node_fenced_bytes" Gauge "bytes"
        "Bytes of reservations whose client was silent for longer than its lease":
        |stats| stats.fenced_bytes;
    "kvmem_node_dead_bytes" Gauge "bytes"
        "Bytes of values whose parent is neither in memory nor in the tier":
        |stats| stats.dead_bytes;
    "kvmem_node_hits_total" Counter "keys"
        "Number of keys that were acquired and had a value": |stats| stats.hits;
    "kvmem_node_misses_total" Counter "keys"
        "Number of keys that were acquired and had none": |stats| stats.misses;
    "kvmem_node_reserved_total" Counter "blocks"
        "Number of blocks that were reserved": |stats| stats.reserved_total;
    "kvmem_node_committed_total" Counter "values"
        "Number of values that were committed": |stats| stats.committed_total;
    "kvmem_node_removed_total" Counter "values"
        "Number of values that were removed": |stats| stats.removed_total;
    "kvmem_node_evictions_total" Counter "values"
        "Number of values that were evicted for others": |stats| stats.evicted_total;
    "kvmem_node_expired_total" Counter "values"
        "Number of values whose time was over": |stats| stats.expired_total;
    "kvmem_node_fenced_total" Counter "reservations"
        "Number of reservations that were fenced": |stats| stats.fenced_total;
    "kvmem_node_out_of_space_total" Counter "calls"
        "Number of reservations that failed because nothing could be evicted":
        |stats| stats.out_of_space_total;
    "kvmem_node_scrubbed_total" Counter "values"
        "Number of values that were verified in the background": |stats| stats.scrubbed_total;
    "kvmem_node_damaged_total" Counter "values"
        "Number of values that were removed because their bytes did not have their checksum":
        |stats| stats.damaged_total;
    "kvmem_node_tier_stored_total" Counter "values"
        "Number of values that the tier has stored": |stats| stats.tier_stored_total;
    "kvmem_node_tier_fetched_total" Counter "values"
        "Number of values that were fetched from the tier": |stats| stats.tier_fetched_total;
    "kvmem_node_tier_failed_total" Counter "values"
        "Number of values that the tier could not fetch or remove":
        |stats| stats.tier_failed_total;
    "kvmem_node_tier_state" Gauge "state"
        "Whether the tier works: 0 there is none, 1 it works, 2 it stores nothing, 3 it is away":
        |stats| stats.tier_state as u64;
}

table! {
    /// All metrics of a namespace, in the order of the [documentation](self).
    NAMESPACE_METRICS of NamespaceStats;
    "kvmem_node_namespace_bytes" Gauge "bytes"
        "Bytes of values and reservations of the namespace": |stats| stats.bytes;
    "kvmem_node_namespace_pinned_values" Gauge "values"
        "Number of values of the namespace that are pinned": |stats| stats.pinned;
    "kvmem_node_namespace_pinned_bytes" Gauge "bytes"
        "Bytes of values of the namespace that are pinned": |stats| stats.pinned_bytes;
    "kvmem_node_namespace_share" Gauge "shares"
        "Share of the memory, beside those of the other namespaces":
        |stats| u64::from(stats.share);
}

/// Returns a function that publishes the figures of a node to the current recorder of the
/// [`metrics`](https://docs.rs/metrics) facade, under the label `node`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also).
#[cfg(feature = "metrics")]
pub fn publisher(
    name: &str,
    observer: crate::server::NodeObserver,
) -> impl Fn() + Send + Sync + 'static {
    use metrics::Label;

    let name = name.to_owned();
    move || {
        let stats = observer.stats();
        for metric in METRICS {
            publish(metric, vec![Label::new("node", name.clone())], &stats);
        }
        for namespace in &stats.namespaces {
            for metric in NAMESPACE_METRICS {
                let of = Label::new("namespace", namespace.name.clone());
                publish(metric, vec![Label::new("node", name.clone()), of], namespace);
            }
        }
    }
}

#[cfg(feature = "metrics")]
fn publish<S>(metric: &NodeMetric<S>, labels: Vec<metrics::Label>, stats: &S) {
    use metrics::{Unit, counter, gauge};

    let unit = if metric.unit == "bytes" { Unit::Bytes } else { Unit::Count };
    let value = (metric.value)(stats);
    if metric.kind == Kind::Counter {
        metrics::describe_counter!(metric.name, unit, metric.help);
        counter!(metric.name, labels).absolute(value);
    } else {
        metrics::describe_gauge!(metric.name, unit, metric.help);
        gauge!(metric.name, labels).set(value as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<S>(metric: &NodeMetric<S>) -> String {
        let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
        let NodeMetric { name, unit, help, .. } = metric;
        format!("| `{name}` | {kind} | {unit} | {help} |")
    }

    #[test]
    fn the_page_has_all_metrics_in_their_order() {
        let page = include_str!("../docs/metrics.md");
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let all = METRICS.iter().map(row).chain(NAMESPACE_METRICS.iter().map(row));
        assert_eq!(shown, all.collect::<Vec<_>>());
    }

    #[test]
    fn names_follow_the_conventions() {
        let of_node = METRICS.iter().map(|it| (it.name, it.kind, it.unit));
        let of_namespace = NAMESPACE_METRICS.iter().map(|it| (it.name, it.kind, it.unit));
        for (name, kind, unit) in of_node.chain(of_namespace) {
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            let name = name.trim_end_matches("_total");
            assert_eq!(name.ends_with("_bytes"), unit == "bytes", "{name}");
        }
    }
}
