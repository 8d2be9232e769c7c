//! The report of small offset runs: its JSON, its table, its progress.

use kvmem_bench::contender::ContenderId;
use kvmem_bench::offset::{self, OffsetOptions, OffsetReport, OffsetRow, WorkloadId};

use crate::suite::{Watch, check_names, check_rows};

/// The keys of a row.
const KEYS: [&str; 25] = [
    "workload",
    "contender",
    "variant",
    "size_bytes",
    "pool_bytes",
    "util_min",
    "util_p99",
    "util_p90",
    "util_p50",
    "util_max",
    "util_avg",
    "util_bound",
    "util_during",
    "util_late",
    "live_fraction",
    "live_fraction_no_failure",
    "fail_rate",
    "ns_per_op",
    "live",
    "samples",
    "metadata_bytes_per_live",
    "resident_bytes",
    "published_util_min",
    "published_util_avg",
    "published_ns",
];

fn small() -> (OffsetReport, Watch) {
    let options = OffsetOptions {
        quick: true,
        contenders: vec![ContenderId::Binned, ContenderId::Null],
        workloads: vec![WorkloadId::Shift],
        ..OffsetOptions::default()
    };
    let mut watch = Watch::default();
    let report = offset::run(&options, &mut watch).unwrap();
    (report, watch)
}

#[test]
fn a_run_is_reported_in_full() {
    let (report, watch) = small();
    assert_eq!(report.rows.len(), 10);
    assert_eq!(watch.steps.len(), 10);
    assert!(watch.steps.iter().all(|step| step.starts_with("shift B/A=")), "{:?}", watch.steps);

    let json = check_rows(&report, &watch, &KEYS);
    for key in ["suite", "version", "seed", "quick", "machine", "seconds", "rows", "goals"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    let row = &json["rows"][0];
    assert_eq!(row["workload"], "shift");
    assert_eq!(row["contender"], "binned");
    for key in [
        "size_bytes",
        "util_p99",
        "util_p90",
        "util_p50",
        "util_max",
        "util_bound",
        "ns_per_op",
        "live",
        "published_util_avg",
        "published_ns",
    ] {
        assert!(row.get(key).is_some_and(serde_json::Value::is_null), "{key}");
    }
    for key in ["pool_bytes", "util_min", "util_avg"] {
        assert!(row[key].is_number(), "{key}");
    }

    let table = report.to_string();
    for part in ["shift: ", "B/A=0.3", "B/A=2.3", "binned", "null"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert!(!table.contains("uniform"));
}

#[test]
fn loops_without_utilization_have_times_and_tables() {
    let workloads = [WorkloadId::Churn, WorkloadId::Pair, WorkloadId::Impossible];
    let options = OffsetOptions {
        quick: true,
        contenders: vec![ContenderId::Kvmem, ContenderId::Binned],
        workloads: workloads.into(),
        ..OffsetOptions::default()
    };
    let report = offset::run(&options, &mut Watch::default()).unwrap();
    let found: Vec<_> = report.rows.iter().map(|row| (row.workload, row.live)).collect();
    let live = [1000, 0, 1];
    let expected: Vec<_> =
        workloads.into_iter().zip(live.map(Some)).flat_map(|row| [row; 2]).collect();
    assert_eq!(found, expected);
    assert!(report.rows.iter().all(|row| row.ns_per_op.is_some_and(|ns| ns > 0.0)));
    let table = report.to_string();
    for part in ["churn: ", "pair: ", "impossible: ", "ns per exchange"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
}

#[test]
fn rows_with_shards_stand_beside_one_without() {
    let workloads = vec![WorkloadId::Shards];
    let options = OffsetOptions { quick: true, workloads, ..OffsetOptions::default() };
    let report = offset::run(&options, &mut Watch::default()).unwrap();
    let variants: Vec<_> = report.rows.iter().filter_map(|row| row.variant.as_deref()).collect();
    let of = |name| [1, 2, 8, 32].map(|shards| format!("{name} n={shards}"));
    assert_eq!(variants, [of("random"), of("paired")].concat());
    for rows in report.rows.chunks(4) {
        let mean: Vec<f64> = rows.iter().filter_map(|row| row.util_avg).collect();
        assert!(mean.len() == 4 && mean.iter().all(|&mean| mean > 0.7), "{mean:?}");
    }
    // Requests of `random` are long beside a shard of 32.
    assert!(report.rows[3].util_avg < report.rows[0].util_avg, "{report}");
    assert!(report.goals.is_empty() && report.to_string().contains("paired n=32"));
}

#[test]
fn a_neighbour_that_does_not_stream_ends_the_run() {
    let options = OffsetOptions {
        quick: true,
        workloads: vec![WorkloadId::Pair],
        neighbour: Some(|_| std::process::Command::new("/bin/true")),
        ..OffsetOptions::default()
    };
    let error = offset::run(&options, &mut Watch::default()).unwrap_err().to_string();
    assert!(error.starts_with("the neighbour: "), "{error}");
    let reasons = ["does not stream: it ended", "needs a processor of its own"];
    assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
}

#[test]
fn published_figures_are_in_the_table() {
    let mut row = OffsetRow::new(WorkloadId::Uniform, ContenderId::Binned);
    row.size_bytes = Some(33_554_449);
    row.util_avg = Some(0.87654);
    row.ns_per_op = Some(77.2);
    row.published_util_avg = Some(0.875);
    row.published_ns = Some(100.0);
    let mut ours = OffsetRow::new(WorkloadId::Uniform, ContenderId::Kvmem);
    ours.size_bytes = row.size_bytes;
    ours.util_min = Some(0.984_375);
    let (mut report, _) = small();
    report.rows = vec![ours, row];
    let table = report.to_string();
    let line = table.lines().find(|line| line.contains("33,554,449")).unwrap();
    for part in ["0.984375", "0.8765", "77", "(0.8750", "100)"] {
        assert!(line.contains(part), "{part} in\n{table}");
    }
}

#[test]
fn names_parse_back() {
    check_names::<WorkloadId>();
    check_names::<ContenderId>();
}
