//! The report of small cache runs: its JSON, its table, its progress.

use kvmem_bench::cache::{self, CacheContenderId, CacheOptions, CacheReport, CacheScenario};

use crate::concurrent_suite::{is_reported_in_full, ran};
use crate::suite::{Watch, check_names};

#[test]
fn rows_are_reported_in_full() {
    let options =
        CacheOptions { quick: true, reps: Some(1), threads: vec![1, 2], ..CacheOptions::default() };
    let mut watch = Watch::default();
    let report = cache::run(&options, &mut watch).unwrap();
    assert_eq!(report.suite, "cache");
    // Four contenders look up, three of them insert, three others allocate blocks, and one looks up
    // above a tier.
    assert_eq!(report.rows.len(), (4 + 4 + 3 + 3 + 1) * 2);
    assert!(ran(&report).iter().all(|(scenario, contender, _)| contender.takes_part(*scenario)));
    assert!(watch.steps.iter().any(|step| step == "get-miss quick-cache ×2"), "{:?}", watch.steps);
    let parts =
        ["get-hit, 1 thread(s)", "insert-evict, 2 thread(s)", "kvmem-scan", "quick-cache", "≤ 60"];
    is_reported_in_full(
        &report,
        &watch,
        &["contender", "mops", "ns", "scenario", "threads"],
        &parts,
    );
    assert_eq!(report.goals.len(), if report.machine.cores >= 2 { 4 } else { 3 });
    // A contender that does not support a scenario has no column there.
    let table = report.to_string();
    let heads: Vec<&str> = table.lines().filter(|line| line.contains("M/s")).collect();
    assert_eq!(heads.len(), 4, "{table}");
    let has = |name: &str| heads.iter().map(|head| head.contains(name)).collect::<Vec<_>>();
    assert_eq!(has("kvmem-tier"), [true, false, false, false]);
    assert_eq!(has("floor"), [true, true, false, false]);
    assert_eq!(has("extents"), [false, false, false, true]);
}

#[test]
fn options_select_what_runs() {
    let options = CacheOptions {
        quick: true,
        reps: Some(2),
        scenarios: vec![CacheScenario::GetMiss],
        contenders: vec![
            CacheContenderId::QuickCache,
            CacheContenderId::Null,
            CacheContenderId::Kvmem,
        ],
        threads: vec![3],
    };
    let report = cache::run(&options, &mut ()).unwrap();
    let expected = [CacheContenderId::Kvmem, CacheContenderId::QuickCache]
        .map(|id| (CacheScenario::GetMiss, id, 3));
    assert_eq!((ran(&report).as_slice(), report.details.reps), (&expected[..], 2));
}

#[test]
fn names_parse_back() {
    check_names::<CacheScenario>();
    check_names::<CacheContenderId>();
}

/// Loads a record that is older than the blocks and the floor.
#[test]
fn an_old_record_still_loads() {
    let record = r#"{
        "suite": "cache", "version": "0.1.0", "quick": false, "reps": 7, "seconds": 66.8,
        "machine": {"cpu": "AMD EPYC", "cores": 2, "memory_bytes": 25276510208,
            "os": "linux x86_64", "kernel": "6.18"},
        "rows": [
            {"scenario": "get-hit", "contender": "kvmem", "threads": 1, "mops": 27.3, "ns": 36.6},
            {"scenario": "insert-evict", "contender": "quick-cache", "threads": 2,
             "mops": 5.0, "ns": 400.0}
        ],
        "goals": [{"name": "get-hit: ns on one thread", "value": 36.6, "limit": 60.0,
            "at_least": false, "at": null}]
    }"#;
    let report: CacheReport = serde_json::from_str(record).unwrap();
    assert_eq!((report.rows.len(), report.rows[0].ns), (2, 36.6));
    assert!(report.to_string().contains("insert-evict, 2 thread(s)"));
}
