//! The report of small register runs: its JSON, its table, its progress.

use kvmem_bench::arena::Pages;
use kvmem_bench::register::{
    self, Backend, RegisterContenderId, RegisterOptions, RegisterReport, RegisterRow,
};

use crate::suite::{Watch, check_names, check_rows};

fn small(backends: Vec<Backend>, contexts: Vec<u32>) -> (RegisterReport, Watch) {
    let options = RegisterOptions {
        reps: Some(1),
        backends,
        contexts,
        region_bytes: vec![16 << 20],
        ..RegisterOptions::default()
    };
    let mut watch = Watch::default();
    let report = register::run(&options, &mut watch).unwrap();
    assert_eq!((watch.planned, watch.rows), (watch.done, report.rows.len()));
    (report, watch)
}

#[test]
fn rings_are_measured_or_skipped_with_a_reason() {
    let (report, watch) = small(vec![Backend::IoUring], vec![1, 2]);
    for pages in Pages::PRIVATE {
        let rows = report.rows.iter().filter(|row| row.pages == Some(pages)).count();
        let absent =
            report.skipped.iter().find(|skip| skip.pages.is_none_or(|these| these == pages));
        match absent {
            Some(skipped) => println!("skipped: {pages}: {}", skipped.reason),
            // Two numbers of contexts, resident and not.
            None => assert_eq!(rows, 2 * 2 * RegisterContenderId::ALL.len(), "{pages}"),
        }
    }
    for row in &report.rows {
        assert_eq!((row.backend, row.region_bytes, row.runs), (Backend::IoUring, 16 << 20, 1));
        assert!(row.register_s > 0.0 && row.unregister_s > 0.0, "{row:?}");
        let parts = row.populate_s + row.register_s + row.unregister_s;
        assert!((row.total_s - parts).abs() < 1e-9, "{row:?}");
        let published =
            matches!(row.policy, RegisterContenderId::Sequential | RegisterContenderId::Parallel);
        let populates =
            !row.resident && !published && row.policy != RegisterContenderId::KvmemSequential;
        assert_eq!(row.populate_s > 0.0, populates, "{row:?}");
        if published {
            assert_eq!(row.chosen, row.policy.name(), "{row:?}");
            assert_eq!(row.calibration_sequential_gib_per_s, None, "{row:?}");
        }
    }
    let table = report.to_string();
    if !report.rows.is_empty() {
        let step = "io_uring, 16 MiB base, not resident, 2 contexts: kvmem-parallel";
        assert!(watch.steps.iter().any(|other| other == step), "{:?}", watch.steps);
        for part in ["16 MiB base, resident, 1 context ", "kvmem-sequential", "chosen", "≤ 1.1"] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
    }
    assert!(table.ends_with('\n') && !table.contains("simulated"), "{table}");
}

#[test]
fn simulated_machines_reproduce_the_published_ratios() {
    let (report, watch) = small(vec![Backend::ParallelWins, Backend::ParallelLoses], vec![8]);
    assert!(report.skipped.is_empty());
    assert_eq!(report.rows.len(), 2 * 2 * RegisterContenderId::ALL.len());
    let total = |backend, resident, policy| {
        let same = |row: &&RegisterRow| {
            row.backend == backend && row.resident == resident && row.policy == policy
        };
        report.rows.iter().find(same).unwrap().total_s
    };
    let parallel_over_sequential = |backend, resident| {
        total(backend, resident, RegisterContenderId::Parallel)
            / total(backend, resident, RegisterContenderId::Sequential)
    };
    assert!(parallel_over_sequential(Backend::ParallelWins, true) < 0.4);
    assert!(parallel_over_sequential(Backend::ParallelWins, false) > 3.0);
    assert!(parallel_over_sequential(Backend::ParallelLoses, true) > 2.0);
    assert!(parallel_over_sequential(Backend::ParallelLoses, false) > 3.0);
    let met: Vec<_> = report.goals.iter().map(|goal| (goal.name.as_str(), goal.met())).collect();
    assert!(
        met.iter().filter(|(name, _)| name.contains("simulated")).all(|(_, met)| *met),
        "{met:?}"
    );

    let keys = [
        "backend",
        "region_bytes",
        "contexts",
        "pages",
        "resident",
        "policy",
        "chosen",
        "populate_s",
        "register_s",
        "unregister_s",
        "total_s",
        "calibration_sequential_gib_per_s",
        "calibration_parallel_gib_per_s",
        "runs",
    ];
    let json = check_rows(&report, &watch, &keys);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["pages"].is_null(), "{row}");
    }
}

#[test]
fn simulated_time_is_the_same_each_time() {
    let figures = || {
        let (report, _) = small(vec![Backend::ParallelWins], vec![4]);
        report.rows.iter().map(|row| (row.policy, row.total_s)).collect::<Vec<_>>()
    };
    let first = figures();
    assert!(first.iter().all(|(_, total)| *total > 0.0));
    assert_eq!(first, figures());
}

#[test]
fn planning_is_timed() {
    let options = RegisterOptions {
        backends: vec![Backend::ParallelWins],
        reps: Some(1),
        ..RegisterOptions::default()
    };
    let report = register::run(&options, &mut ()).unwrap();
    match report.details.plan_ms {
        Some(ms) => {
            assert!(ms > 0.0);
            assert!(
                report.goals.iter().any(|goal| goal.name.starts_with("plan: ") && goal.value == ms)
            );
        }
        None => println!("skipped: there are no addresses for 1 TiB"),
    }
}

#[test]
fn names_parse_back() {
    check_names::<Backend>();
    check_names::<RegisterContenderId>();
}
