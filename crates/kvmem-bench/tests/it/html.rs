//! Reports as pages: every figure of every row is shown, and every suite has its plots.

use kvmem_bench::machine::Machine;
use kvmem_bench::suite::{Draw, Goal, Repetitions, SeededRepetitions};
use kvmem_bench::{arena, cache, concurrency, offset, register, slab};
use kvmem_report::Page;
use serde::de::DeserializeOwned;

/// Loads a recorded report.
fn recorded<R: DeserializeOwned>(name: &str) -> R {
    let path = format!(
        "{}/../../bench/record/2026-11-21-amd-epyc-2c{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_str(&std::fs::read_to_string(path).expect("the record is in the repository"))
        .expect("rows")
}

fn page(report: &impl Draw) -> String {
    Page::new("test").chapter(report.chapter()).to_string()
}

fn count(html: &str, what: &str) -> usize {
    html.matches(what).count()
}

fn goal() -> Goal {
    let name = "ns <of> \"all\"".to_owned();
    Goal { name, value: 2.5, limit: 2.0, at_least: false, at: Some("kvmem & others".to_owned()) }
}

#[test]
fn the_offset_report_has_every_row_and_the_published_figures() {
    let report: offset::OffsetReport = recorded("");
    let html = page(&report);
    assert!(count(&html, "<svg role=\"img\"") >= 12, "{}", count(&html, "<svg"));
    for row in &report.rows {
        // Uniform rows show the means of the other contenders.
        if let Some(util) = row.util_avg.filter(|_| row.size_bytes.is_none()) {
            assert!(html.contains(&format!(">{util:.4}<")), "{row:?}");
        }
        if let Some(share) = row.live_fraction {
            assert!(html.contains(&format!(">{share:.2}<")), "{row:?}");
        }
        if let Some(ns) = row.ns_per_op {
            assert!(html.contains(&format!(">{ns:.0}<")), "{row:?}");
        }
        if let Some(ns) = row.published_ns {
            assert!(html.contains(&format!("{ns:.0})<")), "{row:?}");
        }
    }
    assert!(html.contains("binned, published") && html.contains("bound"));
    assert_eq!(
        count(&html, "<li class=\"met\">") + count(&html, "<li class=\"missed\">"),
        report.goals.len()
    );
}

#[test]
fn the_arena_report_has_every_row() {
    let report: arena::ArenaReport = recorded("-arena");
    let published = arena::ArenaContenderId::PublishedArena;
    assert!(report.rows.iter().any(|row| row.contender == published), "the record says `seed`");
    let html = page(&report);
    assert_eq!(count(&html, "<svg role=\"img\""), 4);
    for row in &report.rows {
        let shown = match (row.gib_per_s, row.ns_per_op) {
            (Some(rate), _) => format!(">{rate:.2}"),
            (None, Some(ns)) if row.op == arena::Op::Map => format!(">{:.3}<", ns / 1e6),
            (None, Some(ns)) => format!(">{ns:.1}<"),
            (None, None) => panic!("{row:?}"),
        };
        assert!(html.contains(&shown), "{row:?}: {shown}");
    }
}

#[test]
fn the_register_report_has_every_row() {
    let report: register::RegisterReport = recorded("-register");
    // The record is older than the names of these keys.
    assert!(report.rows.iter().any(|row| row.calibration_sequential_gib_per_s.is_some()));
    assert!(report.rows.iter().any(|row| row.calibration_parallel_gib_per_s.is_some()));
    let html = page(&report);
    assert!(count(&html, "<svg role=\"img\"") >= 4);
    for row in &report.rows {
        let shown = match row.total_s {
            seconds if seconds < 1.0 => format!(">{seconds:.5}<"),
            seconds if seconds < 10.0 => format!(">{seconds:.3}<"),
            seconds => format!(">{seconds:.1}<"),
        };
        assert!(html.contains(&shown), "{row:?}: {shown}");
    }
    assert!(html.contains("Planning 1 TiB"));
}

#[test]
fn the_slab_report_has_every_row_and_the_absent_contenders() {
    let row = |threads, contender, ns_per_pair, rss_bytes| slab::SlabRow {
        pattern: slab::Pattern::Random,
        max_block_bytes: 512,
        threads,
        contender,
        ns_per_pair,
        rss_bytes,
    };
    let report = slab::SlabReport {
        suite: "slab".to_owned(),
        version: "0.1.0".to_owned(),
        quick: true,
        details: SeededRepetitions { seed: 1, reps: 3 },
        machine: Machine::here(),
        seconds: 1.0,
        rows: vec![
            row(1, slab::SlabContenderId::Kvmem, 4.5, Some(3 << 20)),
            row(1, slab::SlabContenderId::Malloc, 17.25, None),
            row(2, slab::SlabContenderId::Kvmem, 4.75, Some(5 << 20)),
        ],
        skipped: vec![slab::SlabSkipped {
            contender: slab::SlabContenderId::GSlice,
            reason: "no <libglib>".to_owned(),
        }],
        goals: vec![goal()],
    };
    let html = page(&report);
    assert_eq!(count(&html, "<svg role=\"img\""), 2, "time and memory");
    for shown in ["4.5<", "17.2<", "4.8<", "3.00<", "5.00<", "g-slice: no &lt;libglib&gt;"] {
        assert!(html.contains(shown), "{shown}");
    }
    assert!(html.contains(
        "<li class=\"missed\"><b>MISSED</b> ns &lt;of&gt; &quot;all&quot;: 2.5, limit ≤ 2"
    ));
}

#[test]
fn the_concurrency_report_has_every_row() {
    let row = |threads, contender, mops| concurrency::ConcurrencyRow {
        scenario: concurrency::ConcurrencyScenario::Pair4K,
        contender,
        threads,
        mops,
        p50_ns: 21.0,
        p99_ns: 345.0,
    };
    let report = concurrency::ConcurrencyReport {
        suite: "concurrency".to_owned(),
        version: "0.1.0".to_owned(),
        quick: false,
        details: Repetitions { reps: 7 },
        machine: Machine::here(),
        seconds: 1.0,
        rows: vec![
            row(1, concurrency::ConcurrencyContenderId::Kvmem, 45.5),
            row(16, concurrency::ConcurrencyContenderId::KvmemCached, 180.125),
        ],
        skipped: vec![],
        goals: vec![goal()],
    };
    let html = page(&report);
    assert_eq!(count(&html, "<svg role=\"img\""), 2, "rate and latency");
    for shown in ["45.50<", "180.12<", "21 / 345<", "16 thread(s)", "kvmem-cached"] {
        assert!(html.contains(shown), "{shown}");
    }
}

#[test]
fn the_cache_report_has_look_ups_and_blocks() {
    let row = |scenario, contender, ns| cache::CacheRow {
        scenario,
        contender,
        threads: 1,
        mops: 1e3 / ns,
        ns,
    };
    let report = cache::CacheReport {
        suite: "cache".to_owned(),
        version: "0.1.0".to_owned(),
        quick: false,
        details: Repetitions { reps: 7 },
        machine: Machine::here(),
        seconds: 1.0,
        rows: vec![
            row(cache::CacheScenario::GetHit, cache::CacheContenderId::Floor, 12.5),
            row(cache::CacheScenario::BlockPair, cache::CacheContenderId::Pool, 8.25),
        ],
        skipped: vec![],
        goals: vec![goal()],
    };
    let html = page(&report);
    assert_eq!(count(&html, "<svg role=\"img\""), 2, "one for each scenario");
    for shown in
        ["12.5<", "8.2<", "1 thread(s)", "block-pair: nanoseconds of a call", "floor", "pool"]
    {
        assert!(html.contains(shown), "{shown}");
    }
}

#[test]
fn a_report_without_rows_is_a_page() {
    let mut report: arena::ArenaReport = recorded("-arena");
    report.rows.clear();
    report.goals.clear();
    let html = page(&report);
    assert_eq!(count(&html, "<svg"), 0);
    assert!(html.contains("kvmem 0.1.0") && html.trim_end().ends_with("</html>"));
}
