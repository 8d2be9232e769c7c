#![doc = include_str!("../docs/metrics.md")]

use kvmem::pool::observe::Kind;

use crate::stats::ClusterStats;

/// The description of a metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ClusterMetric {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// `bytes`, or the things that the metric counts.
    pub unit: &'static str,
    /// One sentence on the meaning.
    pub help: &'static str,
    /// Reads it from the statistics.
    pub value: fn(&ClusterStats) -> u64,
}

macro_rules! table {
    ($($name:literal $kind:ident $unit:literal $help:literal: |$it:ident| $value:expr;)*) => {
        /// All metrics of a cluster, in the order of the [documentation](self).
        pub const METRICS: &[ClusterMetric] = &[$(ClusterMetric {
            name: $name,
            kind: Kind::$kind,
            unit: $unit,
            help: $help,
            value: |$it| $value,
        }),*];
    };
}

table! {
    "kvmem_cluster_state" Gauge "state"
        "Whether the cluster works: 1 it works, 3 it is away": |stats| stats.state as u64;
    "kvmem_cluster_stored_total" Counter "values"
        "Number of values that the cluster has stored": |stats| stats.stored;
    "kvmem_cluster_stored_bytes_total" Counter "bytes"
        "Bytes of values that the cluster has stored": |stats| stats.stored_bytes;
    "kvmem_cluster_fetched_total" Counter "values"
        "Number of values that were fetched from the cluster": |stats| stats.fetched;
    "kvmem_cluster_fetched_bytes_total" Counter "bytes"
        "Bytes of values that were fetched from the cluster": |stats| stats.fetched_bytes;
    "kvmem_cluster_absent_total" Counter "keys"
        "Number of keys that were looked up and that the cluster does not have":
        |stats| stats.absent;
    "kvmem_cluster_skipped_total" Counter "keys"
        "Number of keys that were not looked up because the cluster was away":
        |stats| stats.skipped;
    "kvmem_cluster_dropped_total" Counter "values"
        "Number of values that were not stored: the cluster was away, or there was no room":
        |stats| stats.dropped;
    "kvmem_cluster_failed_total" Counter "values"
        "Number of stores and fetches that the cluster failed": |stats| stats.failed;
    "kvmem_cluster_corrupt_total" Counter "values"
        "Number of fetched values whose bytes were not those that were stored":
        |stats| stats.corrupt;
    "kvmem_cluster_stale_keys" Gauge "keys"
        "Number of keys that were removed and that the cluster may still have":
        |stats| stats.stale;
    "kvmem_cluster_queued_bytes" Gauge "bytes"
        "Bytes of values that wait for the cluster": |stats| stats.queued_bytes;
    "kvmem_cluster_starts_total" Counter "processes"
        "Number of helpers that were started": |stats| stats.starts;
    "kvmem_cluster_hangs_total" Counter "processes"
        "Number of helpers that were killed because they did not answer": |stats| stats.hangs;
    "kvmem_cluster_violations_total" Counter "processes"
        "Number of helpers that were killed because an answer was none to a call":
        |stats| stats.violations;
}

/// Returns a function that publishes the figures of a cluster below a node to the current recorder
/// of the [`metrics`](https://docs.rs/metrics) facade, under the label `node`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also).
#[cfg(feature = "metrics")]
pub fn publisher(
    name: &str,
    cluster: &std::sync::Arc<crate::ClusterTier>,
) -> impl Fn() + Send + Sync + 'static {
    use metrics::{Label, Unit, counter, gauge};

    let (name, cluster) = (name.to_owned(), std::sync::Arc::clone(cluster));
    move || {
        let stats = cluster.stats();
        for metric in METRICS {
            let labels = vec![Label::new("node", name.clone())];
            let unit = if metric.unit == "bytes" { Unit::Bytes } else { Unit::Count };
            let value = (metric.value)(&stats);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_metrics_in_their_order() {
        let row = |metric: &ClusterMetric| {
            let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
            format!("| `{}` | {kind} | {} | {} |", metric.name, metric.unit, metric.help)
        };
        let page = include_str!("../docs/metrics.md");
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(shown, METRICS.iter().map(row).collect::<Vec<_>>());
    }

    #[test]
    fn names_follow_the_conventions() {
        for ClusterMetric { name, kind, unit, .. } in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            let name = name.trim_end_matches("_total");
            assert_eq!(name.ends_with("_bytes"), *unit == "bytes", "{name}");
        }
    }
}
