//! The report of small slab runs: its JSON, its table, its progress, and the processes that
//! measure.

use std::process::Command;

use kvmem_bench::slab::{
    self, Pattern, SlabContenderId, SlabMeasureError, SlabOptions, SlabReport, SlabTask,
};

use crate::suite::{Watch, check_names, check_rows};

const TASK: &str = "KVMEM_BENCH_TEST_TASK";

fn small(options: SlabOptions) -> (SlabReport, Watch) {
    let options = SlabOptions { quick: true, reps: Some(1), ..options };
    let mut watch = Watch::default();
    let report = slab::run(&options, &mut watch).unwrap();
    (report, watch)
}

/// Returns the command that runs only [`measure_the_task`] of this program.
fn child(task: &SlabTask) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "slab::measure_the_task", "--nocapture"]).env(TASK, task.to_string());
    command
}

/// Runs the task of a child process. In any other process it runs a task of its own.
#[test]
fn measure_the_task() {
    let task = std::env::var(TASK).unwrap_or_else(|_| "fixed 64 1 malloc 1".to_owned());
    let seen = slab::measure(&task.parse().unwrap()).unwrap();
    assert!(seen.ns_per_pair > 0.0);
    println!("{seen}");
}

#[test]
fn rows_are_reported_in_full() {
    let (report, watch) = small(SlabOptions { child: Some(child), ..SlabOptions::default() });
    let present = SlabContenderId::ALL.len() - report.skipped.len();
    // Two sizes and one size with four numbers of threads each, and pairs of threads with two.
    assert_eq!(report.rows.len(), present * (2 * 4 + 4 + 2));
    assert_eq!(watch.steps.len(), report.rows.len());
    assert!(watch.steps.iter().any(|step| step == "random ≤ 512 B malloc ×3"), "{:?}", watch.steps);
    for skipped in &report.skipped {
        println!("skipped: {}: {}", skipped.contender, skipped.reason);
        assert!(!skipped.reason.is_empty() && skipped.contender != SlabContenderId::Malloc);
    }

    let keys = ["contender", "max_block_bytes", "ns_per_pair", "pattern", "rss_bytes", "threads"];
    let json = check_rows(&report, &watch, &keys);
    assert_eq!(json["seed"], 123_456_789);
    let known = kvmem_bench::machine::resident_bytes().is_some();
    for row in json["rows"].as_array().unwrap() {
        assert!(row["ns_per_pair"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["rss_bytes"].is_number(), known, "{row}");
        if known && row["pattern"] == "random" {
            // Each thread has 10,000 blocks, and every byte of them was written.
            let live = 10_000 * row["max_block_bytes"].as_u64().unwrap() / 2
                * row["threads"].as_u64().unwrap();
            let rss = row["rss_bytes"].as_u64().unwrap();
            assert!((live * 9 / 10..live * 4 + (64 << 20)).contains(&rss), "{row}");
        }
    }

    let table = report.to_string();
    for part in [
        "512 B, 1 thread(s)",
        "1024 B, 4 thread(s)",
        "64 B, 3 thread(s)",
        "producer-consumer",
        "malloc",
    ] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    assert_eq!(table.contains("Not measured"), !report.skipped.is_empty());
}

#[test]
fn without_child_processes_no_memory_is_reported() {
    let (report, _) = small(SlabOptions {
        patterns: vec![Pattern::Fixed],
        contenders: vec![SlabContenderId::Malloc],
        threads: vec![2],
        ..SlabOptions::default()
    });
    assert_eq!(report.rows.len(), 1);
    assert_eq!((report.rows[0].threads, report.rows[0].rss_bytes), (2, None));
    assert!(report.goals.is_empty() && !report.to_string().contains("MiB"));
}

#[test]
fn a_failing_child_is_an_error_with_its_message() {
    let run = |child: slab::ChildCommand| {
        let options = SlabOptions {
            quick: true,
            patterns: vec![Pattern::Fixed],
            contenders: vec![SlabContenderId::Malloc],
            threads: vec![1],
            child: Some(child),
            ..SlabOptions::default()
        };
        slab::run(&options, &mut ()).unwrap_err()
    };
    let complain = |_: &SlabTask| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out of luck >&2; exit 3"]);
        command
    };
    let error = run(complain);
    assert!(
        matches!(&error.error, SlabMeasureError::Child(said) if said.contains("out of luck")),
        "{error}"
    );
    assert!(error.to_string().starts_with("fixed ≤ 64 B malloc ×1: "), "{error}");
    let missing = run(|_| Command::new("/no/such/program"));
    assert!(matches!(missing.error, SlabMeasureError::Child(_)));
}

#[test]
fn names_parse_back() {
    check_names::<Pattern>();
    check_names::<SlabContenderId>();
}
