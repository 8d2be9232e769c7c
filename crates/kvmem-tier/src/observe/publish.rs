//! *Publish*: gives the figures to the current recorder of the
//! [`metrics`](https://docs.rs/metrics) facade.

use std::sync::Arc;

use kvmem::pool::observe::Kind;
use kvmem::tier::WriteBehindStats;
use metrics::{Label, Unit, counter, gauge};

use super::{METRICS, QUEUE_METRICS, TierMetric};
use crate::device::Device;
use crate::tier::DiskTier;
use crate::tier_set::TierSet;

/// Returns a function that publishes the figures of a tier, under the label `tier`: for
/// [`Exporter::also`](kvmem::pool::observe::Exporter::also). It keeps the tier open. A call takes
/// the lock of the tier's index for some nanoseconds.
pub fn publisher<D: Device + 'static>(
    name: &str,
    tier: &Arc<DiskTier<D>>,
) -> impl Fn() + Send + Sync + 'static + use<D> {
    let (labels, tier) = ([Label::new("tier", name.to_owned())], Arc::clone(tier));
    move || publish(METRICS, &tier.stats(), &labels)
}

/// Returns a function that publishes the figures of each tier of a set, under the labels `tier` and
/// `file`: for [`Exporter::also`](kvmem::pool::observe::Exporter::also). `files` names them in the
/// order of [`TierSet::in_given_order`]; a tier beyond them has its number. It keeps the set open.
/// A call takes the lock of each index for some nanoseconds.
pub fn set_publisher<D: Device + 'static>(
    name: &str,
    files: &[&str],
    set: &Arc<TierSet<D>>,
) -> impl Fn() + Send + Sync + 'static + use<D> {
    let name = Label::new("tier", name.to_owned());
    let of_file = |number: usize| {
        let file = files.get(number).map_or_else(|| number.to_string(), ToString::to_string);
        [name.clone(), Label::new("file", file)]
    };
    let labels: Vec<_> = (0..set.tiers().len()).map(of_file).collect();
    let set = Arc::clone(set);
    move || {
        for (labels, tier) in labels.iter().zip(set.in_given_order()) {
            publish(METRICS, &tier.stats(), labels);
        }
    }
}

/// Returns a function that publishes the figures of the queue between a cache and a tier, under the
/// label `tier`: for [`Exporter::also`](kvmem::pool::observe::Exporter::also). `stats` reads them,
/// as [`WriteBehind::stats`](kvmem::tier::WriteBehind::stats) does.
pub fn queue_publisher(
    name: &str,
    stats: impl Fn() -> WriteBehindStats + Send + Sync + 'static,
) -> impl Fn() + Send + Sync + 'static {
    let labels = [Label::new("tier", name.to_owned())];
    move || publish(QUEUE_METRICS, &stats(), &labels)
}

/// Publishes all metrics of a table.
fn publish<S>(table: &[TierMetric<S>], stats: &S, labels: &[Label]) {
    for metric in table {
        let unit = if metric.unit == "bytes" { Unit::Bytes } else { Unit::Count };
        let label = metric.label.map(|(key, value)| Label::new(key, value));
        let labels: Vec<Label> = labels.iter().cloned().chain(label).collect();
        let value = (metric.value)(stats);
        if metric.kind == Kind::Counter {
            metrics::describe_counter!(metric.name, unit, metric.help);
            counter!(metric.name, labels).absolute(value);
        } else {
            metrics::describe_gauge!(metric.name, unit, metric.help);
            gauge!(metric.name, labels).set(value as f64);
        }
    }
}
