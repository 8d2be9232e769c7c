//! Published figures, spans and events.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, LazyLock, Mutex};

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::pool::observe::{Exporter, Stats, rows};
use kvmem::tier::{TierRead, WriteBehind, WriteBehindStats};
use kvmem_tier::device::MemoryDevice;
use kvmem_tier::observe::{publisher, queue_publisher, set_publisher};
use kvmem_tier::{DiskTier, DiskTierOptions, TierSet, TierStats};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString,
    Unit,
};
use tracing::Dispatch;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::files::temp_path;
use crate::simulated::Disk;

/// Keeps what is published, by name and labels.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeMap<String, f64>>>);

/// One metric of a recorder.
struct Cell(Kept, String);

impl Cell {
    fn put(&self, value: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, _: u64) {
        unreachable!("counters are set");
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn decrement(&self, _: f64) {
        unreachable!("gauges are set");
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl Kept {
    fn cell(&self, kind: &str, key: &Key) -> Arc<Cell> {
        let mut name = format!("{kind} {}", key.name());
        for label in key.labels() {
            write!(name, " {}={}", label.key(), label.value()).unwrap();
        }
        Arc::new(Cell(self.clone(), name))
    }

    fn describe(&self, name: &KeyName, help: &str) {
        self.0.lock().unwrap().insert(format!("help {} {help}", name.as_str()), 0.0);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.describe(&name, &help);
    }

    // The exporter describes those of pools.
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell("counter", key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell("gauge", key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        unreachable!("a tier has no histogram");
    }
}

#[test]
fn every_figure_is_published_with_its_kind_and_labels() {
    let disk = Disk::new(4 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    let tier = Arc::new(tier);
    for key in 0..20_u8 {
        tier.store(&[(&[key], &[key; 5000])]).remove(0).unwrap();
    }
    let mut into = vec![0; 5000];
    let _ = tier.fetch(&mut [TierRead { key: &[3], into: &mut into }]);
    let _ = tier.fetch(&mut [TierRead { key: b"none", into: &mut into }]);
    disk.fail_once_in(1);
    let _ = tier.fetch(&mut [TierRead { key: &[4], into: &mut into }]);
    assert!(tier.checkpoint().is_err());
    disk.fail_once_in(0);
    let (held, stats) = (Kept::default(), tier.stats());
    assert!(stats.read_only && stats.io_misses == 1, "{stats:?}");
    metrics::with_local_recorder(&held, || {
        Exporter::new().also(publisher("kv", &tier)).publish();
    });
    let held = held.0.lock().unwrap();
    for metric in TierStats::metrics() {
        let label = metric.label.map_or(String::new(), |(key, value)| format!(" {key}={value}"));
        let name = format!("{} {} tier=kv{label}", metric.kind, metric.name);
        assert_eq!(held.get(&name), Some(&((metric.value)(&stats) as f64)), "{name} in {held:?}");
        assert!(held.contains_key(&format!("help {} {}", metric.name, metric.help)), "{name}");
    }
    let figures = held.keys().filter(|name| !name.starts_with("help")).count();
    assert_eq!(figures, TierStats::metrics().count(), "{held:?}");
    let value = |name: &str| held[name];
    assert_eq!(value("gauge kvmem_tier_read_only tier=kv"), 1.0);
    assert_eq!(value("counter kvmem_tier_misses_total tier=kv kind=io"), 1.0);
    assert_eq!(value("gauge kvmem_tier_entries tier=kv"), 19.0);
}

#[test]
fn each_file_of_a_set_has_its_own_figures() {
    let tier = |len| {
        let options = DiskTierOptions::default();
        DiskTier::on(MemoryDevice::new(len), &options).unwrap().0
    };
    let set = Arc::new(TierSet::new(vec![tier(4 << 20), tier(8 << 20), tier(16 << 20)]).unwrap());
    for key in 0..90_u8 {
        set.store(&[(&[key], &[key; 5000])]).remove(0).unwrap();
    }
    let held = Kept::default();
    metrics::with_local_recorder(&held, || {
        let files = ["/mnt/nvme0/kv", "/mnt/nvme1/kv"];
        Exporter::new().also(set_publisher("kv", &files, &set)).publish();
    });
    let held = held.0.lock().unwrap();
    let files = ["/mnt/nvme0/kv", "/mnt/nvme1/kv", "2"];
    let mut entries = 0.0;
    for (file, tier) in files.into_iter().zip(set.in_path_order()) {
        let stats = tier.stats();
        for metric in TierStats::metrics() {
            let label = metric.label.map_or(String::new(), |(key, name)| format!(" {key}={name}"));
            let name = format!("{} {} tier=kv file={file}{label}", metric.kind, metric.name);
            assert_eq!(held.get(&name), Some(&((metric.value)(&stats) as f64)), "{name}");
        }
        let held = held[&format!("gauge kvmem_tier_entries tier=kv file={file}")];
        assert!(held > 0.0, "{file}");
        entries += held;
    }
    assert_eq!(entries, 90.0);
    let figures = held.keys().filter(|name| !name.starts_with("help")).count();
    assert_eq!(figures, 3 * TierStats::metrics().count());
}

#[test]
fn the_figures_of_a_queue_are_published() {
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let options = DiskTierOptions::default();
    let (tier, _) = DiskTier::on(MemoryDevice::new(8 << 20), &options).unwrap();
    let behind = WriteBehind::builder(&pool, Arc::new(tier)).max_bytes(64 << 10).build().unwrap();
    let behind = Arc::new(behind);
    let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(behind.clone()).build().unwrap();
    for key in 0..100_u64 {
        cache.insert(key, &[key as u8; 20_000]).unwrap();
    }
    behind.flush();
    let (held, stats) = (Kept::default(), behind.stats());
    metrics::with_local_recorder(&held, || {
        let behind = Arc::clone(&behind);
        Exporter::new().also(queue_publisher("kv", move || behind.stats())).publish();
    });
    let held = held.0.lock().unwrap();
    for metric in WriteBehindStats::metrics() {
        let label = metric.label.map_or(String::new(), |(key, name)| format!(" {key}={name}"));
        let name = format!("{} {} tier=kv{label}", metric.kind, metric.name);
        assert_eq!(held.get(&name), Some(&((metric.value)(&stats) as f64)), "{name}");
    }
    assert!(held["counter kvmem_tier_queue_written_total tier=kv"] > 40.0, "{held:?}");
    assert!(held["gauge kvmem_tier_queue_max_bytes tier=kv"] >= 20_000.0, "{held:?}");
    assert_eq!(held["gauge kvmem_tier_queue_values tier=kv"], 0.0);
}

/// The tables in the code and those in the documentation are the same.
#[test]
fn the_tables_match_the_documentation() {
    let text = include_str!("../../docs/metrics.md");
    let documented: Vec<&str> = text.lines().filter(|line| line.starts_with("| `kvmem_")).collect();
    assert_eq!(documented, [rows::<TierStats>("–"), rows::<WriteBehindStats>("–")].concat());
}

/// Keeps the names of spans and the texts of events.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<String>>);

impl tracing::field::Visit for Lines {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{field}: {value:?}").unwrap();
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: Context<'_, S>,
    ) {
        writeln!(self.0.lock().unwrap(), "span {}", attributes.metadata().name()).unwrap();
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

/// Further subscribers. If the process has only one, the first thread that reaches an event decides
/// for all threads whether it is enabled. That thread may belong to another test.
static OTHERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [(); 2].map(|()| Dispatch::new(tracing_subscriber::registry())));

#[test]
fn what_costs_values_is_an_event() {
    LazyLock::force(&OTHERS);
    let lines = Lines::default();
    let subscriber = tracing_subscriber::registry().with(lines.clone());
    let file = temp_path("events");
    tracing::subscriber::with_default(subscriber, || {
        let options = DiskTierOptions { bytes: Some(1 << 20), ..DiskTierOptions::default() };
        drop(DiskTier::open(&file, &options).unwrap());
        let disk = Disk::new(1 << 20, 1);
        let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
        tier.store(&[(b"key", &[1; 5000])]).remove(0).unwrap();
        disk.fail_once_in(1);
        let _ = tier.fetch(&mut [TierRead { key: b"key", into: &mut [0; 5000] }]);
        assert!(tier.checkpoint().is_err());
    });
    let said = lines.0.lock().unwrap();
    for words in ["span open_tier", "a damaged value is quarantined", "the journal failed"] {
        assert!(said.contains(words), "{words} in {said}");
    }
}
