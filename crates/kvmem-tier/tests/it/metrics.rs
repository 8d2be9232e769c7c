//! Published figures, spans and events.

#[path = "../../../kvmem/tests/it/pool/metrics/memory_recorder.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod memory_recorder;

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
use tracing::Dispatch;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use self::memory_recorder::MemoryRecorder;
use crate::files::temp_path;
use crate::simulated::Disk;

/// Compares what was published under these labels with statistics.
fn check<S: Stats>(published: &MemoryRecorder, stats: &S, labels: &[(&str, &str)]) {
    for metric in S::metrics() {
        let labels: Vec<(&str, &str)> = labels.iter().copied().chain(metric.label).collect();
        let value = published.value(metric.name, &labels);
        assert_eq!(value, (metric.value)(stats) as f64, "{} {labels:?}", metric.name);
        assert_eq!(published.kind(metric.name), metric.kind.to_string(), "{}", metric.name);
        assert_eq!(published.described(metric.name).as_deref(), Some(metric.help));
    }
}

/// Returns the number of series that were published.
fn series(published: &MemoryRecorder) -> usize {
    published.names().iter().map(|name| published.of(name).len()).sum()
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
    let (held, stats) = (MemoryRecorder::default(), tier.stats());
    assert!(stats.read_only && stats.io_misses == 1, "{stats:?}");
    metrics::with_local_recorder(&held, || {
        Exporter::new().also(publisher("kv", &tier)).publish();
    });
    check(&held, &stats, &[("tier", "kv")]);
    assert_eq!(series(&held), TierStats::metrics().count());
    let value = |name, labels| held.value(name, labels);
    assert_eq!(value("kvmem_tier_read_only", &[]), 1.0);
    assert_eq!(value("kvmem_tier_misses_total", &[("kind", "io")]), 1.0);
    assert_eq!(value("kvmem_tier_entries", &[]), 20.0);
    assert_eq!(value("kvmem_tier_suspect_entries", &[]), 1.0);
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
    let held = MemoryRecorder::default();
    metrics::with_local_recorder(&held, || {
        let files = ["/mnt/nvme0/kv", "/mnt/nvme1/kv"];
        Exporter::new().also(set_publisher("kv", &files, &set)).publish();
    });
    let files = ["/mnt/nvme0/kv", "/mnt/nvme1/kv", "2"];
    let mut entries = 0.0;
    for (file, tier) in files.into_iter().zip(set.in_path_order()) {
        let labels = [("tier", "kv"), ("file", file)];
        check(&held, &tier.stats(), &labels);
        let of_file = held.value("kvmem_tier_entries", &labels);
        assert!(of_file > 0.0, "{file}");
        entries += of_file;
    }
    assert_eq!(entries, 90.0);
    assert_eq!(series(&held), 3 * TierStats::metrics().count());
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
    let (held, stats) = (MemoryRecorder::default(), behind.stats());
    metrics::with_local_recorder(&held, || {
        let behind = Arc::clone(&behind);
        Exporter::new().also(queue_publisher("kv", move || behind.stats())).publish();
    });
    check(&held, &stats, &[("tier", "kv")]);
    let value = |name: &str| held.value(&format!("kvmem_tier_queue_{name}"), &[]);
    assert!(value("written_total") > 40.0 && value("max_bytes") >= 20_000.0);
    assert_eq!(value("values"), 0.0);
}

/// The tables in the code and those in the documentation are the same.
#[test]
fn the_tables_match_the_documentation() {
    let text = include_str!("../../docs/metrics.md");
    let documented: Vec<&str> = text.lines().filter(|line| line.starts_with("| `kvmem_")).collect();
    assert_eq!(documented, [rows::<TierStats>("–"), rows::<WriteBehindStats>("–")].concat());
}

/// Collects the names of spans and the texts of events.
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
    for words in ["span open_tier", "a value cannot be read", "the journal failed"] {
        assert!(said.contains(words), "{words} in {said}");
    }
}
