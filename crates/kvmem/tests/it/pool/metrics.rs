//! Metrics: the published values are correct.

mod busy;
mod memory_recorder;
mod oracle;
mod setup;
mod spans;

use kvmem::pool::observe::{Exporter, METRICS};

use self::memory_recorder::MemoryRecorder;
use super::small;

/// Returns the metrics that an exporter publishes.
fn published(exporter: &Exporter) -> MemoryRecorder {
    let recorded = MemoryRecorder::default();
    metrics::with_local_recorder(&recorded, || exporter.publish());
    recorded
}

/// The table in the code and the one in the documentation are the same.
#[test]
fn the_table_matches_the_documentation() {
    let text = include_str!("../../../docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| `kvmem_"));
    let documented: Vec<Vec<String>> = rows
        .map(|row| {
            row.split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let there: Vec<Vec<String>> = METRICS
        .iter()
        .map(|what| {
            let labels =
                if what.labels.is_empty() { "–".to_owned() } else { what.labels.join(", ") };
            [what.name, &what.kind.to_string(), what.unit, &labels, what.help]
                .map(str::to_owned)
                .into()
        })
        .collect();
    assert_eq!(documented, there);
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for what in METRICS {
        assert!(
            what.name.starts_with("kvmem_pool_") || what.name.starts_with("kvmem_cache_"),
            "{what:?}"
        );
        let end = what.name.rsplit('_').next().expect("a name");
        let kind = what.kind.to_string();
        assert_eq!(end == "total", kind == "counter", "{what:?}");
        assert!(!["bytes", "seconds"].contains(&what.unit) || end == what.unit, "{what:?}");
    }
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
    for what in METRICS {
        let found = recorded.of(what.name);
        assert!(!found.is_empty(), "{} is not published", what.name);
        for labels in found {
            let kind = what.kind.to_string();
            assert_eq!(recorded.described(what.name).as_deref(), Some(what.help));
            assert_eq!(recorded.kind(what.name), kind);
            let mut keys: Vec<&str> = labels.iter().map(|(key, _)| key.as_str()).collect();
            keys.sort_unstable();
            let mut wanted = [&["pool"], what.labels].concat();
            wanted.sort_unstable();
            assert_eq!(keys, wanted, "{}", what.name);
            assert!(labels.contains(&("pool".to_owned(), "kv".to_owned())));
        }
    }
    assert_eq!(recorded.names().len(), METRICS.len(), "{:?}", recorded.names());
    assert_eq!(recorded.value("kvmem_cache_blocks", &[("cache", "prefix")]), 1.0);
    assert_eq!(recorded.of("kvmem_pool_register_seconds").len(), 2);
}
