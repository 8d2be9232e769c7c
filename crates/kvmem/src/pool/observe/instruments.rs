//! *Instruments*: the gauges and counters of the `metrics` facade, by the [table](super::names).

use metrics::{Counter, Gauge, Label, counter, gauge};

use super::names::{self, Described};

/// Returns the label that names a pool.
pub(crate) fn pool_label(name: &str) -> Label {
    Label::new("pool", name.to_owned())
}

/// Returns the gauge of a metric.
pub(crate) fn the_gauge(what: Described, labels: &[Label]) -> Gauge {
    gauge!(what.name, labels.iter())
}

/// Returns the counter of a metric.
pub(crate) fn the_counter(what: Described, labels: &[Label]) -> Counter {
    counter!(what.name, labels.iter())
}

/// Returns the labels and one more.
pub(crate) fn with_label(labels: &[Label], key: &'static str, value: &str) -> Vec<Label> {
    labels.iter().cloned().chain([Label::new(key, value.to_owned())]).collect()
}

/// Counts a failure to populate.
pub(super) fn populate_failed(pool: &str) {
    the_counter(names::POPULATE_FAILURES, &[pool_label(pool)]).increment(1);
}

/// Counts a failure to register with a registrar; empty: no single registrar caused it.
pub(super) fn registration_failed(pool: &str, registrar: &str) {
    let labels = with_label(&[pool_label(pool)], "registrar", registrar);
    the_counter(names::REGISTRATION_FAILURES, &labels).increment(1);
}
