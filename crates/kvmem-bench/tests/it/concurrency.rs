//! The report of small concurrency runs: its JSON, its table, its progress.

use kvmem_bench::concurrency::{
    self, ConcurrencyContenderId, ConcurrencyOptions, ConcurrencyScenario,
};

use crate::concurrent_suite::{is_reported_in_full, ran};
use crate::suite::{Watch, check_names};

#[test]
fn rows_are_reported_in_full() {
    let options = ConcurrencyOptions {
        quick: true,
        reps: Some(1),
        threads: vec![1, 2, 16],
        ..ConcurrencyOptions::default()
    };
    let mut watch = Watch::default();
    let report = concurrency::run(&options, &mut watch).unwrap();
    assert_eq!(report.suite, "concurrency");
    assert_eq!(
        report.rows.len(),
        // The space with shards has one scenario.
        (ConcurrencyScenario::ALL.len() * (ConcurrencyContenderId::ALL.len() - 1) + 1) * 3
    );
    assert!(watch.steps.iter().any(|step| step == "cross-thread binned ×16"), "{:?}", watch.steps);
    let keys = ["contender", "mops", "p50_ns", "p99_ns", "scenario", "threads"];
    let parts = [
        "pair-3274752, 16 thread(s)",
        "high-water, 1 thread(s)",
        "binned",
        "mutex",
        "≥ 1.8",
        "≤ 3",
    ];
    is_reported_in_full(&report, &watch, &keys, &parts);
    for row in &report.rows {
        assert!(row.p50_ns <= row.p99_ns, "{row:?}");
    }
    // The goals for rates, where two threads have two processors, and that for impossible requests.
    assert_eq!(report.goals.len(), if report.machine.cores >= 2 { 12 } else { 1 });
}

#[test]
fn options_select_what_runs() {
    let options = ConcurrencyOptions {
        quick: true,
        reps: Some(2),
        scenarios: vec![ConcurrencyScenario::Impossible],
        contenders: vec![ConcurrencyContenderId::Mutex, ConcurrencyContenderId::Kvmem],
        threads: vec![3],
    };
    let report = concurrency::run(&options, &mut ()).unwrap();
    let expected = [ConcurrencyContenderId::Kvmem, ConcurrencyContenderId::Mutex]
        .map(|id| (ConcurrencyScenario::Impossible, id, 3));
    assert_eq!((ran(&report).as_slice(), report.details.reps), (&expected[..], 2));
}

#[test]
fn names_parse_back() {
    check_names::<ConcurrencyScenario>();
    check_names::<ConcurrencyContenderId>();
}
