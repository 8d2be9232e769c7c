//! `kvmem-lab bench`, run as a command. The crate `kvmem-bench` tests the meaning of the figures.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::Parser as _;
use kvmem_lab::args::{self, Args, BenchSuite};
use serde_json::Value;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_offset_suite_prints_a_table_and_json() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-rows.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = ["--workload", "paired", "--contender", "kvmem,null", "--seed", "7"];
    let output = kvmem(&[&["bench", "offset", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["paired", "kvmem", "null", "0.9523"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }

    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((&report["suite"], &report["seed"]), (&"offset".into(), &7.into()));
    let rows = report["rows"].as_array().unwrap();
    let contenders: Vec<_> = rows.iter().map(|row| row["contender"].as_str().unwrap()).collect();
    assert_eq!(contenders, ["kvmem", "null"]);
    for row in rows {
        assert_eq!(
            (&row["workload"], &row["pool_bytes"]),
            (&"paired".into(), &(1u64 << 40).into())
        );
        assert_eq!(row["published_util_avg"], 0.952343);
        assert!(row["ns_per_op"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn the_offset_suite_runs_beside_a_neighbour_where_there_is_a_processor_for_it() {
    let chosen = ["--workload", "pair", "--contender", "null", "--reps", "1", "--neighbour"];
    let json = ["bench", "offset", "--quick", "--json", "-"];
    let output = kvmem(&[&json[..], &chosen].concat());
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("a neighbour needs a processor of its own"), "{stderr}");
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let neighbour = &report["neighbour"];
    assert!(neighbour["bytes_per_second"].as_f64() > Some(0.0), "{report}");
    assert!(neighbour["processor"].is_u64(), "{report}");

    let output = kvmem(&[&["bench", "offset", "--quick"][..], &chosen].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("beside a process that streams through 64 MiB"), "{table}");
}

#[test]
fn the_arena_suite_prints_a_table_and_json() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-arena.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = ["--op", "bump,bump-full", "--contender", "kvmem,published-arena", "--reps", "1"];
    let output = kvmem(&[&["bench", "arena", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["bump-full", "64 B, 8 thread(s)", "kvmem", "published-arena", "Goals"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["suite"], "arena");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 2 + 2 * 2);
    assert_eq!(rows[0]["op"], "bump");
    assert_eq!(report["goals"].as_array().map(Vec::len), Some(3));

    for (arguments, expected) in [
        (&["--op", "nosuch"][..], "bump-full"),
        (&["--contender", "binned"], "map-populate"),
        (&["--reps", "0"], "--reps"),
        (&["--seed", "1"], "--seed"),
    ] {
        let output = kvmem(&[&["bench", "arena"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_register_suite_prints_a_table_and_json() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-register.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = [
        "--backend",
        "simulated-parallel-loses",
        "--policy",
        "sequential,parallel,auto",
        "--reps",
        "1",
    ];
    let output = kvmem(
        &[&["bench", "register", "--quick", "--contexts", "8", "--json", json], &chosen[..]]
            .concat(),
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["simulated-parallel-loses", "not resident, 8 contexts", "auto", "Goals"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["suite"], "register");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3);
    assert_eq!((&rows[0]["policy"], &rows[0]["contexts"]), (&"sequential".into(), &8.into()));

    for (arguments, expected) in [
        (&["--backend", "nosuch"][..], "simulated-parallel-wins"),
        (&["--policy", "nosuch"], "kvmem-parallel"),
        (&["--contexts", "0"], "--contexts"),
        (&["--size", "much"], "such as 64GiB"),
        (&["--reps", "0"], "--reps"),
    ] {
        let output = kvmem(&[&["bench", "register"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_slab_suite_prints_a_table_and_json() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-slab.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = ["--pattern", "random", "--contender", "malloc", "--threads", "2", "--reps", "1"];
    let output = kvmem(&[&["bench", "slab", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in [
        "random",
        "512 B, 2 thread(s)",
        "1024 B, 2 thread(s)",
        "malloc",
        "MiB that became resident",
    ] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!((&report["suite"], &report["seed"]), (&"slab".into(), &123_456_789.into()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["contender"], &row["threads"]), (&"malloc".into(), &2.into()));
        assert!(
            row["ns_per_pair"].as_f64() > Some(0.0) && row["rss_bytes"].as_u64() > Some(4 << 20),
            "{row}"
        );
    }

    for (arguments, expected) in [
        (&["--pattern", "nosuch"][..], "producer-consumer"),
        (&["--contender", "binned"], "g-slice"),
        (&["--threads", "0"], "--threads"),
        (&["--reps", "0"], "--reps"),
        (&["--alone", "random 512"], "random 512 2 mimalloc 50"),
    ] {
        let output = kvmem(&[&["bench", "slab"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_concurrency_suite_prints_a_table_and_json() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-concurrency.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = [
        "--scenario",
        "pair-2m,impossible",
        "--contender",
        "kvmem,kvmem-cached,binned",
        "--threads",
        "1,2",
    ];
    let output =
        kvmem(&[&["bench", "concurrency", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["pair-2m, 1 thread(s)", "impossible, 2 thread(s)", "kvmem", "binned", "Goals"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["suite"], "concurrency");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3 * 2);
    assert!(rows.iter().all(|row| row["mops"].as_f64() > Some(0.0)), "{rows:?}");

    for (arguments, expected) in [
        (&["--scenario", "nosuch"][..], "high-water"),
        (&["--contender", "nosuch"], "mutex"),
        (&["--threads", "1000"], "--threads"),
        (&["--reps", "0"], "--reps"),
    ] {
        let output = kvmem(&[&["bench", "concurrency"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_simulation_prints_a_table_and_json() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}-simulate.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = ["--way", "combining,shards-2", "--threads", "1,2,64", "--line-ns", "45,300"];
    let output = kvmem(&[&["bench", "simulate", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["high-water, 300 ns a transfer", "M/s ×64", "p50/p99 ×1", "combining"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["suite"], "simulate");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2 * 3 * 2);
    assert!(rows.iter().all(|row| row["mops"].as_f64() > Some(0.0)), "{rows:?}");
    let shown = kvmem(&["bench", "--from", json]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), table);
    std::fs::remove_file(&file).unwrap();

    for (arguments, expected) in [
        (&["--scenario", "pair-4k"][..], "fragmented"),
        (&["--way", "nosuch"], "queue-lock"),
        (&["--threads", "0"], "--threads"),
        (&["--line-ns", "x"], "--line-ns"),
        (&["--call-ns", "0"], "--call-ns"),
    ] {
        let output = kvmem(&[&["bench", "simulate"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn the_cache_suite_prints_a_table_and_json() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-cache.json", std::process::id()));
    let json = file.to_str().unwrap();
    let chosen = [
        "--scenario",
        "get-hit,insert-evict",
        "--contender",
        "kvmem",
        "--threads",
        "1,2",
        "--reps",
        "1",
    ];
    let output = kvmem(&[&["bench", "cache", "--quick", "--json", json], &chosen[..]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["get-hit, 1 thread(s)", "insert-evict, 2 thread(s)", "kvmem", "Goals"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report["suite"], "cache");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2);
    assert!(rows.iter().all(|row| row["ns"].as_f64() > Some(0.0)), "{rows:?}");

    for (arguments, expected) in [
        (&["--scenario", "nosuch"][..], "get-miss"),
        (&["--contender", "nosuch"], "quick-cache"),
        (&["--threads", "1000"], "--threads"),
    ] {
        let output = kvmem(&[&["bench", "cache"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

/// A limit of the machine removes rows, and the table says so. The run goes on.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_address_space_drops_the_rows_beyond_it() {
    let run = "ulimit -v 390000 && exec \"$0\" bench arena --quick --reps 1 --op bump,map \
               --contender kvmem,mutex";
    let output =
        Command::new("sh").args(["-c", run, env!("CARGO_BIN_EXE_kvmem-lab")]).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    // The small arenas fit. The arena of 4 KiB blocks for eight threads and the mapping of 1 TiB
    // do not.
    for part in
        ["64 B, 8 thread(s)", "Not measured", "bump: 4096 B kvmem ×8: ", "map, thp: kvmem ×1: "]
    {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

/// If the process cannot make a ring, the suite measures the simulated machines only.
#[cfg(target_os = "linux")]
#[test]
fn without_descriptors_the_simulated_machines_remain() {
    let run = "ulimit -n 8 && exec \"$0\" bench register --quick --reps 1 --size 16MiB --contexts \
               8 --policy sequential,auto";
    let output =
        Command::new("sh").args(["-c", run, env!("CARGO_BIN_EXE_kvmem-lab")]).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["Not measured", "io_uring is not available", "simulated-parallel-wins", "met"] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

#[test]
fn the_suite_of_gpus_says_why_it_measured_nothing() {
    let output = kvmem(&["bench", "gpu", "--quick", "--reps", "1", "--size", "2MiB"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    // A machine with a GPU has figures instead.
    let why = ["skipped: no library: ", "skipped: no GPU: "].iter().any(|why| text.contains(why));
    assert!(why || text.contains("copies to the GPU"), "{text}");
}

#[test]
fn the_node_suite_starts_its_processes_and_its_json_is_shown_again() {
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-node.json", std::process::id()));
    let json = file.to_str().unwrap();
    let output = kvmem(&["bench", "node", "--quick", "--reps", "1", "--json", json]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in ["4 client(s)", "memcpy", "look-ups", "killed and started again", "Goals"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let shown = kvmem(&["bench", "--from", json]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), table);
    // Two contenders with one and with four clients; three store and read; two look up.
    assert_eq!(report["rows"].as_array().unwrap().len(), 2 * 2 + 2 * 3 + 2);
    assert_eq!(report["goals"].as_array().unwrap().len(), 7);
    for (arguments, expected) in [
        (&["--contender", "nosuch"][..], "memcpy"),
        (&["--beside", "ring=/bin/true"], "NAME=PROGRAM"),
        (&["--role", "server"], "is no role"),
    ] {
        let output = kvmem(&[&["bench", "node"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn contradictory_options_fail() {
    for (arguments, expected) in [
        (&["--workload", "nosuch"][..], "uniform"),
        (&["--contender", "nosuch"], "binned-unrounded"),
        (&["--seed", "x"], "--seed"),
        (&["--reps", "0"], "--reps"),
        (
            &["--json", "no/such/folder/rows.json", "--quick"],
            "cannot write no/such/folder/rows.json",
        ),
    ] {
        let output = kvmem(&[&["bench", "offset"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
    assert_eq!(kvmem(&["bench", "nosuch"]).status.code(), Some(2));
    assert_eq!(
        kvmem(&["bench", "--seed", "1"]).status.code(),
        Some(2),
        "not an option of all suites"
    );
}

/// `kvmem-lab bench` without a suite runs all suites. This test only parses the options: the tests
/// above run each suite, and together they take a minute.
#[test]
fn without_a_suite_all_are_selected() {
    let parsed =
        |arguments: &[&str]| Args::try_parse_from(arguments).expect("good arguments").command;
    let bench = |arguments: &[&str]| match parsed(arguments) {
        args::Command::Bench(bench) => bench,
        other => panic!("{other:?}"),
    };
    let all = bench(&["kvmem-lab", "bench"]);
    assert!(!all.quick && all.suite.is_none());
    let quick = bench(&["kvmem-lab", "bench", "--quick"]);
    assert!(quick.quick && quick.suite.is_none());
    assert!(matches!(
        bench(&["kvmem-lab", "bench", "register", "--quick"]).suite,
        Some(BenchSuite::Register(register)) if register.run.quick
    ));
    assert!(matches!(
        bench(&["kvmem-lab", "bench", "offset", "--quick"]).suite,
        Some(BenchSuite::Offset(offset)) if offset.run.quick
    ));
}
