//! Figures: what is published is what is so.

mod book;
mod busy;
mod oracle;
mod setup;
mod spans;

use kvmem::pool::observe::{Exporter, METRICS};

use self::book::Book;
use super::small;

/// What an exporter publishes.
fn published(exporter: &Exporter) -> Book {
    let book = Book::default();
    metrics::with_local_recorder(&book, || exporter.publish());
    book
}

/// One table says what there is, to programs and to people.
#[test]
fn the_table_is_what_is_documented() {
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
fn names_are_as_prometheus_wants_them() {
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

/// What is published is in the table, with its kind and its labels, and all of the table is
/// published.
#[test]
fn all_that_is_published_is_described() {
    let fakes = crate::register::fake::Fake::some(2, 1 << 20);
    let registrars = crate::register::fake::registrars(&fakes);
    let built = small(1 << 20).name("kv").measure_latency(1).registrars(registrars).build();
    let (pool, _) = built.expect("little memory");
    let cache = kvmem::pool::KvCache::<u64>::new(&pool);
    cache.insert(1, &[1; 100]).expect("room");
    let book = published(&Exporter::new().pool(&pool).cache_called("prefix", &cache));
    for what in METRICS {
        let found = book.of(what.name);
        assert!(!found.is_empty(), "{} is not published", what.name);
        for labels in found {
            let kind = what.kind.to_string();
            assert_eq!(book.described(what.name).as_deref(), Some(what.help));
            assert_eq!(book.kind(what.name), kind);
            let mut keys: Vec<&str> = labels.iter().map(|(key, _)| key.as_str()).collect();
            keys.sort_unstable();
            let mut wanted = [&["pool"], what.labels].concat();
            wanted.sort_unstable();
            assert_eq!(keys, wanted, "{}", what.name);
            assert!(labels.contains(&("pool".to_owned(), "kv".to_owned())));
        }
    }
    assert_eq!(book.names().len(), METRICS.len(), "{:?}", book.names());
    assert_eq!(book.value("kvmem_cache_blocks", &[("cache", "prefix")]), 1.0);
    assert_eq!(book.of("kvmem_pool_register_seconds").len(), 2);
}
