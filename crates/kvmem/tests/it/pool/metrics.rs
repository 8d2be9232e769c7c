//! Metrics: the published values are correct.

mod busy;
mod memory_recorder;
mod oracle;
mod setup;
mod spans;

use kvmem::cache::KvCacheStats;
use kvmem::pool::observe::{Described, Exporter, Kind, METRICS, Stats, rows};

use self::memory_recorder::MemoryRecorder;
use super::small;

/// Returns the metrics that an exporter publishes.
fn published(exporter: &Exporter) -> MemoryRecorder {
    let recorded = MemoryRecorder::default();
    metrics::with_local_recorder(&recorded, || exporter.publish());
    recorded
}

/// Returns the rows of the documentation for pools and caches.
fn all_rows() -> Vec<String> {
    let row = |what: &Described| {
        let end = what.name.rsplit('_').next().expect("a name");
        assert!(what.name.starts_with("kvmem_pool_"), "{what:?}");
        assert_eq!(end == "total", what.kind == Kind::Counter, "{what:?}");
        assert!(!["bytes", "seconds"].contains(&what.unit) || end == what.unit, "{what:?}");
        let labels = what.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        let Described { name, kind, unit, help, .. } = what;
        format!("| `{name}` | {kind} | {unit} | {labels} | {help} |")
    };
    METRICS.iter().map(row).chain(rows::<KvCacheStats>("`cache`")).collect()
}

/// The tables in the code and the one in the documentation are the same.
#[test]
fn the_tables_match_the_documentation() {
    let text = include_str!("../../../docs/metrics.md");
    let documented: Vec<&str> = text.lines().filter(|line| line.starts_with("| `kvmem_")).collect();
    assert_eq!(documented, all_rows());
}

/// Every published metric is in the table, with its kind and its labels, and every metric of the
/// table is published.
#[test]
fn every_published_metric_is_described() {
    let fakes = crate::register::fake::Fake::some(2, 1 << 20);
    let registrars = crate::register::fake::registrars(&fakes);
    let built = small(1 << 20).name("kv").measure_latency(1).registrars(registrars).build();
    let pool = built.expect("little memory");
    let cache = kvmem::cache::KvCache::<u64>::new(&pool);
    cache.insert(1, &[1; 100]).expect("room");
    let recorded = published(&Exporter::new().pool(&pool).cache_called("prefix", &cache));
    let of_pool = METRICS.iter().map(|it| (it.name, it.kind, it.help, it.labels));
    let cache: &[&str] = &["cache"];
    let of_cache = KvCacheStats::metrics().map(|it| (it.name, it.kind, it.help, cache));
    for (name, kind, help, labels) in of_pool.chain(of_cache) {
        let found = recorded.of(name);
        assert!(!found.is_empty(), "{name} is not published");
        assert_eq!(recorded.described(name).as_deref(), Some(help));
        assert_eq!(recorded.kind(name), kind.to_string());
        let mut wanted = [&["pool"], labels].concat();
        wanted.sort_unstable();
        for labels in found {
            let mut keys: Vec<&str> = labels.iter().map(|(key, _)| key.as_str()).collect();
            keys.sort_unstable();
            assert_eq!(keys, wanted, "{name}");
            assert!(labels.contains(&("pool".to_owned(), "kv".to_owned())));
        }
    }
    assert_eq!(recorded.names().len(), all_rows().len(), "{:?}", recorded.names());
    assert_eq!(recorded.value("kvmem_cache_blocks", &[("cache", "prefix")]), 1.0);
    assert_eq!(recorded.of("kvmem_pool_register_seconds").len(), 2);
}
