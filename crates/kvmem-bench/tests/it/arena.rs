//! The report of small arena runs: its JSON, its table, its progress.

use kvmem_bench::arena::{self, ArenaContenderId, ArenaOptions, ArenaReport, Op, Pages};

use crate::suite::{Watch, check_names, check_rows};

fn small(ops: Vec<Op>, contenders: Vec<ArenaContenderId>) -> (ArenaReport, Watch) {
    let options =
        ArenaOptions { quick: true, reps: Some(1), ops, contenders, borrow_hugepages: false };
    let mut watch = Watch::default();
    let report = arena::run(&options, &mut watch).unwrap();
    (report, watch)
}

#[test]
fn bump_rows_are_reported_in_full() {
    let (report, watch) = small(vec![Op::Bump, Op::BumpFull], vec![]);
    // Two sizes, three numbers of threads, four contenders of which one supports one thread only;
    // failing calls on one thread.
    assert_eq!(report.rows.len(), 2 * (4 + 3 + 3) + 2 * 4);
    assert_eq!(watch.steps.len(), report.rows.len());
    assert!(watch.steps.iter().any(|step| step == "bump 64 B kvmem ×2"), "{:?}", watch.steps);
    assert!(report.skipped.is_empty());

    let keys = ["contender", "gib_per_s", "ns_per_op", "op", "pages", "size_bytes", "threads"];
    let json = check_rows(&report, &watch, &keys);
    for row in json["rows"].as_array().unwrap() {
        assert!(row["ns_per_op"].as_f64() > Some(0.0), "{row}");
        assert!(row["gib_per_s"].is_null() && row["pages"].is_null(), "{row}");
    }
    let goals: Vec<_> = report.goals.iter().map(|goal| goal.limit).collect();
    assert_eq!(goals, [0.6, 0.7, 1.0]);

    let table = report.to_string();
    for part in
        ["64 B, 8 thread(s)", "4096 B, 1 thread(s)", "published-arena", "mutex", "bumpalo", "≤ 0.6"]
    {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert!(!table.contains("populate"));
}

#[test]
fn page_rows_are_measured_or_skipped_with_a_reason() {
    use ArenaContenderId::{Kvmem, KvmemAuto, MapPopulate};
    let (report, watch) =
        small(vec![Op::Populate, Op::Discard], vec![Kvmem, KvmemAuto, MapPopulate]);
    assert_eq!(watch.planned, watch.done);
    for pages in Pages::ALL {
        let rows =
            |op| report.rows.iter().filter(move |row| row.op == op && row.pages == Some(pages));
        let absent = |op| {
            let about = |skipped: &&arena::ArenaSkipped| {
                skipped.op == op && skipped.pages.is_none_or(|p| p == pages)
            };
            report.skipped.iter().find(about).map(|skipped| skipped.reason.clone())
        };
        match absent(Op::Populate) {
            None => assert_eq!(rows(Op::Populate).count(), 5, "{pages}"),
            Some(reason) => {
                assert_eq!(rows(Op::Populate).count(), 0, "{pages}");
                println!("skipped: populate with {pages} pages: {reason}");
            }
        }
        if pages != Pages::Huge && absent(Op::Discard).is_none() {
            assert_eq!(rows(Op::Discard).count(), 1, "{pages}");
        }
    }
    for row in &report.rows {
        assert!(row.gib_per_s > Some(0.0) && row.ns_per_op.is_none() && row.threads > 0, "{row:?}");
    }
    let table = report.to_string();
    if !report.rows.is_empty() {
        for part in ["GiB/s", "kvmem 2", "kvmem-auto", "map-populate", "≥ 1"] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
    }
}

#[test]
fn a_mapping_without_memory_is_reported() {
    let (report, _) = small(vec![Op::Map], vec![]);
    match report.rows.first() {
        Some(row) => {
            assert_eq!((row.size_bytes, row.contender), (1 << 40, ArenaContenderId::Kvmem));
            assert!(row.ns_per_op > Some(0.0));
            // Checks only that the bytes were read, if the system reports them.
            let known = kvmem_bench::machine::resident_bytes().is_some();
            assert_eq!(report.details.mapped_resident_bytes.is_some(), known);
            assert_eq!(report.goals.len(), 1 + usize::from(known));
        }
        None => println!("skipped: {}", report.skipped[0].reason),
    }
}

#[test]
fn names_parse_back() {
    check_names::<Op>();
    check_names::<ArenaContenderId>();
    check_names::<Pages>();
}
