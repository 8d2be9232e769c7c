//! A recorder of the `metrics` crate that keeps all values in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

pub(super) type Labels = Vec<(String, String)>;

#[derive(Clone, Default)]
pub(super) struct MemoryRecorder(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    helps: BTreeMap<String, String>,
    entries: BTreeMap<(String, Labels), Entry>,
}

#[derive(Clone)]
enum Entry {
    Counter(Arc<Count>),
    Gauge(Arc<Level>),
    Histogram(Arc<Values>),
}

#[derive(Default)]
struct Count(AtomicU64);

#[derive(Default)]
struct Level(Mutex<f64>);

#[derive(Default)]
struct Values(Mutex<Vec<f64>>);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        *self.0.lock().expect("no panic") += value;
    }

    fn decrement(&self, value: f64) {
        *self.0.lock().expect("no panic") -= value;
    }

    fn set(&self, value: f64) {
        *self.0.lock().expect("no panic") = value;
    }
}

impl HistogramFn for Values {
    fn record(&self, value: f64) {
        self.0.lock().expect("no panic").push(value);
    }
}

impl MemoryRecorder {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("no panic")
    }

    fn entry(&self, key: &Key, new: impl FnOnce() -> Entry) -> Entry {
        let labels =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        self.pages().entries.entry((key.name().to_owned(), labels)).or_insert_with(new).clone()
    }

    fn describe(&self, key: KeyName, help: SharedString) {
        self.pages().helps.insert(key.as_str().to_owned(), help.to_string());
    }

    /// Returns the names of all metrics.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.pages().entries.keys().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the sets of labels of a metric.
    pub(super) fn of(&self, name: &str) -> Vec<Labels> {
        let pages = self.pages();
        pages
            .entries
            .keys()
            .filter(|(other, _)| other == name)
            .map(|(_, labels)| labels.clone())
            .collect()
    }

    /// Returns the description of a metric.
    pub(super) fn described(&self, name: &str) -> Option<String> {
        self.pages().helps.get(name).cloned()
    }

    /// Returns the kind of a metric.
    pub(super) fn kind(&self, name: &str) -> &'static str {
        match self.find(name, &[]) {
            Entry::Counter(_) => "counter",
            Entry::Gauge(_) => "gauge",
            Entry::Histogram(_) => "histogram",
        }
    }

    fn find(&self, name: &str, labels: &[(&str, &str)]) -> Entry {
        let wanted = |found: &Labels| {
            labels.iter().all(|(key, value)| found.iter().any(|(k, v)| k == key && v == value))
        };
        let pages = self.pages();
        let found =
            pages.entries.iter().find(|((other, labels), _)| other == name && wanted(labels));
        found.unwrap_or_else(|| panic!("no {name} with {labels:?}")).1.clone()
    }

    /// Returns the value of a counter or gauge that has at least these labels.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        match self.find(name, labels) {
            Entry::Counter(count) => count.0.load(Ordering::Relaxed) as f64,
            Entry::Gauge(level) => *level.0.lock().expect("no panic"),
            Entry::Histogram(_) => panic!("{name} is a histogram"),
        }
    }

    /// Returns the values of a histogram.
    pub(super) fn values(&self, name: &str) -> Vec<f64> {
        match self.find(name, &[]) {
            Entry::Histogram(values) => values.0.lock().expect("no panic").clone(),
            _ => panic!("{name} is no histogram"),
        }
    }

    /// Returns whether nothing was recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.pages().entries.is_empty()
    }
}

impl Recorder for MemoryRecorder {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key, help);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key, help);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(key, help);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match self.entry(key, || Entry::Counter(Arc::default())) {
            Entry::Counter(count) => Counter::from_arc(count),
            _ => panic!("{key} is of two kinds"),
        }
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match self.entry(key, || Entry::Gauge(Arc::default())) {
            Entry::Gauge(level) => Gauge::from_arc(level),
            _ => panic!("{key} is of two kinds"),
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match self.entry(key, || Entry::Histogram(Arc::default())) {
            Entry::Histogram(values) => Histogram::from_arc(values),
            _ => panic!("{key} is of two kinds"),
        }
    }
}
