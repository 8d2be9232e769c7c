//! The laboratory, run as its users run it: each suite measures something, and replays of a small
//! trace have the figures of a separate simulation, and of the curve of `kvmem trace`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::Parser;
use kvmem_testkit::traces::{conversations, session};
use serde_json::Value;

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = lab(&[args, &["--json", "-"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs the command, which must fail, and returns the message.
fn fails(args: &[&str]) -> String {
    let output = lab(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is reported of what failed");
    stderr
}

/// Runs a suite once, and checks that each of these tables has positive figures of each of these
/// contenders.
fn measures(suite: &[&str], tables: &[&str], contenders: &[&str]) -> Value {
    let report = json(&[&["bench"], suite, &["--quick", "--reps", "1"]].concat());
    let rows = report["rows"].as_array().unwrap();
    for (key, names) in [("table", tables), ("contender", contenders)] {
        for name in names {
            let mut of = rows.iter().filter(|row| row[key] == *name);
            let has = |row: &Value| {
                let figures = row["figures"].as_object().unwrap();
                figures.values().all(|figure| figure.as_f64() >= Some(0.0)) && !figures.is_empty()
            };
            assert!(of.any(has), "{key} {name}: {report:#}");
        }
    }
    assert!(!report["goals"].as_array().unwrap().is_empty(), "{report:#}");
    report
}

#[test]
fn arena() {
    measures(&["arena"], &["bump", "bump-full"], &["kvmem", "published-arena", "bumpalo"]);
}

#[test]
fn codec() {
    let mut contenders = vec!["kvmem", "kvmem-portable", "memcpy"];
    if cfg!(feature = "compressors") {
        contenders.extend(["zstd-1", "lz4", "zipnn-model"]);
    }
    let report = measures(&["codec"], &["codec"], &contenders);
    for row in report["rows"].as_array().unwrap() {
        let figure = |name: &str| row["figures"][name].as_f64().unwrap();
        if row["contender"].as_str().unwrap().starts_with("kvmem") {
            let (size, best) = (figure("size"), figure("at best"));
            assert!((best - 0.005..best + 0.03).contains(&size), "{row:#}");
        }
    }
    let missing = fails(&["bench", "codec", "--values", "no-such-file"]);
    assert!(missing.contains("cannot read no-such-file"), "{missing}");
}

#[test]
fn register() {
    let report = measures(
        &["register"],
        &["simulated-parallel-wins", "simulated-parallel-loses"],
        &["auto", "sequential", "parallel"],
    );
    // Simulated time is the same everywhere: the published machine with 500 GB and 8 NICs.
    let rows = report["rows"].as_array().unwrap();
    let total = |contender: &str| {
        let row = rows.iter().find(|row| {
            row["table"] == "simulated-parallel-wins"
                && row["line"] == "500 GiB, resident, 8 context(s)"
                && row["contender"] == contender
        });
        row.unwrap()["figures"]["s"].as_f64().unwrap()
    };
    assert!((total("sequential") - 60.8).abs() < 1.0, "{}", total("sequential"));
    assert!((total("parallel") - 13.1).abs() < 0.5, "{}", total("parallel"));
}

#[test]
fn offset() {
    let tables = ["metadata", "uniform", "random", "paired", "rl", "shift", "mix", "scatter"];
    let report = measures(
        &["offset"],
        &[&tables[..], &["shards", "aging", "short"]].concat(),
        &["kvmem", "kvmem-cached", "binned", "offset-allocator", "best-fit", "binned, published"],
    );
    let rows = report["rows"].as_array().unwrap();
    let full = rows.iter().filter(|row| row["table"] == "aging").map(|row| &row["figures"]);
    assert!(
        full.clone().count() == 11 && full.into_iter().all(|of| of["to 100"].as_f64() > Some(0.7))
    );
    // One size: all that the bound allows, whatever the length of the run.
    let uniform = "uniform: least utilization below the bound";
    let goals = report["goals"].as_array().unwrap();
    let met = goals.iter().find(|goal| goal["name"] == uniform).unwrap();
    assert_eq!(met["value"], 0.0, "{report:#}");
}

#[test]
fn slab() {
    measures(&["slab"], &["random", "fixed", "producer-consumer"], &["kvmem", "malloc"]);
}

#[test]
fn concurrency() {
    let tables = ["pair-4k", "high-water", "impossible", "fragmented", "cross-thread"];
    measures(&["concurrency"], &tables, &["kvmem", "binned", "mutex", "kvmem-shards-8"]);
}

#[test]
fn cache() {
    let tables = ["get-hit", "get-miss", "insert-evict", "block-pair"];
    measures(&["cache"], &tables, &["kvmem", "kvmem-scan", "kvmem-tier", "quick-cache", "floor"]);
    let report = json(&["bench", "cache", "--policy", "--quick", "--contender", "lru,optimum"]);
    assert_eq!(report["rows"].as_array().unwrap().len(), 4 * 6 * 2);
}

#[test]
fn tier() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path().to_str().unwrap();
    let suite = ["tier", "--dir", dir, "--value-bytes", "64KiB"];
    let here = ["kvmem", "kvmem-codec", "kvmem-keys", "kvmem-codec-keys", "plain", "files"];
    let contenders = [&here[..], &["files-direct"]].concat();
    let report = measures(&suite, &["store", "fetch", "size", "index"], &contenders);
    let sizes = report["rows"].as_array().unwrap().iter().filter(|row| row["table"] == "size");
    let sizes: Vec<f64> = sizes.map(|row| row["figures"]["of plain"].as_f64().unwrap()).collect();
    // A form has a header before the 16 blocks, or is compressed to 11 or 12 of them.
    let [plain, codec, keys, both] = sizes[..] else { panic!("{report:#}") };
    assert_eq!((plain, keys), (1.0, 17.0 / 16.0), "{report:#}");
    assert!([codec, both].into_iter().all(|size| (0.65..0.76).contains(&size)), "{report:#}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "its files are removed");
}

#[test]
fn node() {
    let tables = ["calls", "values", "lookup", "restart", "events", "announce", "resize"];
    measures(&["node"], &tables, &["ring", "socket", "memcpy"]);
}

#[test]
fn a_program_beside_takes_part() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = dir.path().join("program");
    let code = "#!/bin/sh\nwhile read -r call; do\n  \
                echo '{\"seconds\": 0.5, \"cpu_seconds\": 0.25}'\ndone\n";
    std::fs::write(&program, code).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, executable).unwrap();
    let beside = format!("fio={}", program.display());
    let suite = ["tier", "--dir", dir.path().to_str().unwrap(), "--value-bytes", "64KiB"];
    let only = ["--contender", "kvmem,fio", "--table", "store", "--beside", &beside];
    let report = measures(&[&suite[..], &only].concat(), &["store"], &["kvmem", "fio"]);
    assert_eq!(report["rows"].as_array().unwrap().len(), 2, "{report:#}");
    let taken = ["bench", "tier", "--beside", &format!("plain={}", program.display())];
    assert!(fails(&taken).contains("plain: this is a contender in this program"));
}

#[test]
fn gpu_says_why_it_measured_nothing() {
    let report = json(&["bench", "gpu", "--quick", "--table", "register"]);
    assert!(!report["rows"].as_array().unwrap().is_empty() || !report["skipped"][0].is_null());
}

#[test]
fn names_that_select_nothing_are_an_error() {
    let error = fails(&["bench", "slab", "--quick", "--contender", "no-such-heap"]);
    assert!(error.contains("no-such-heap"), "{error}");
}

fn small_trace() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/kvmem-cli/tests/data/small_trace.jsonl");
    path.to_str().unwrap().to_owned()
}

/// Replays the small trace.
fn replayed(args: &[&str]) -> Value {
    json(&[&["replay", &small_trace()], args].concat())
}

#[test]
fn the_small_trace_has_the_expected_figures() {
    // 160 requests of made-up conversations on three system prompts. The figures come from a
    // separate simulation of the cache's rules over a plain list.
    // (blocks that fit, hits, hit tokens, evictions, not cached)
    for (fit, hits, hit_tokens, evictions, not_cached) in [
        (10_000, 731, 374_272, 0, 0),
        (64, 610, 312_320, 621, 0),
        (40, 535, 273_920, 720, 0),
        (16, 337, 172_544, 912, 30),
    ] {
        let pool = (fit * 4096).to_string();
        let args = ["--pool", &pool, "--object-bytes", "4KiB", "--page-tokens", "512"];
        let report = replayed(&args);
        assert_eq!((&report["requests"], &report["blocks"]), (&160.into(), &1295.into()));
        assert_eq!(report["hits"], hits, "{report:#}");
        assert_eq!(report["hit_rate_tokens"], f64::from(hit_tokens) / 623_798.0, "{report:#}");
        assert_eq!(report["evictions"], evictions, "{report:#}");
        assert_eq!(report["not_cached"], not_cached, "{report:#}");
        let held = fit.min(564);
        assert_eq!(report["blocks_held"], held, "{report:#}");
        assert_eq!(report["utilization_end"], f64::from(held) / f64::from(fit), "{report:#}");
    }
}

#[test]
fn threads_share_a_backed_pool_and_lose_nothing() {
    for (policy, threads) in [("lru", "1"), ("lru", "3"), ("scan-resistant", "3")] {
        let pool = ["--backed", "--object-bytes", "3333,517", "--pool", "1.5MiB"];
        let more = ["--page-tokens", "64", "--threads", threads, "--policy", policy];
        let report = replayed(&[&pool[..], &more].concat());
        let count = |name: &str| report[name].as_u64().unwrap();
        assert!(count("hits") > 0 && count("evictions") > 0, "{report:#}");
        let backed = &report["backed"];
        // Also blocks that are found behind a gap are verified.
        let hits = count("hits") * 8 * (3333 + 517);
        assert!(backed["verified_on_hits_bytes"].as_u64() >= Some(hits), "{report:#}");
        assert_eq!(backed["verified_at_end_bytes"], report["held_bytes"], "{report:#}");
        assert!(backed["of_plain"].as_f64() > Some(0.0), "{report:#}");
        let each = report["threads"].as_array().unwrap();
        let sum: u64 = each.iter().map(|thread| thread["blocks"].as_u64().unwrap()).sum();
        assert_eq!(sum, 1295, "{report:#}");
    }
}

#[test]
fn a_tier_gives_back_what_memory_has_evicted_also_to_the_next_replay() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pool = (128 * 8192).to_string();
    let backed = ["--backed", "--pool", &pool, "--object-bytes", "5000,3000"];
    let path = file.path().to_str().unwrap();
    let with_tier = ["--page-tokens", "512", "--tier", path, "--tier-size", "16MiB"];
    let first = replayed(&[&backed[..], &with_tier].concat());
    // As many hits as in a pool that holds everything, of which few are in memory.
    assert_eq!(first["hits"], 731, "{first:#}");
    let tier = &first["tier"];
    let of_tier = first["tier_hits"].as_u64().unwrap();
    assert!((50..400).contains(&of_tier), "{first:#}");
    assert_eq!((&tier["objects_before"], &tier["damaged_objects"]), (&0.into(), &0.into()));
    // The file is found again, and serves what the first replay had to compute.
    let second = replayed(&[&backed[..], &with_tier].concat());
    assert!(second["tier"]["objects_before"].as_u64() > Some(900), "{second:#}");
    assert!(second["hits"].as_u64() > Some(1200), "{second:#}");

    std::fs::write(file.path(), "no tier").unwrap();
    let trace = small_trace();
    let error = fails(&[&["replay", &trace], &backed[..], &with_tier].concat());
    assert!(error.contains("not a tier"), "{error}");
}

#[test]
fn what_cannot_be_replayed_fails() {
    let (trace, folder) = (small_trace(), tempfile::tempdir().unwrap());
    assert!(fails(&["replay", &trace, "--pool", "4KiB"]).contains("smaller than one block"));
    assert!(fails(&["replay", &trace, "--json", &trace]).contains("the trace that is replayed"));
    assert!(fails(&["replay", &trace, "--pool", "4EiB", "--backed"]).contains("available"));
    for (name, blocks) in [("a.json", "64"), ("b.json", "16")] {
        let text =
            session(9, 20).replace("\"block_size\": 64", &format!("\"block_size\": {blocks}"));
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let error = fails(&["replay", folder.path().to_str().unwrap()]);
    assert!(error.contains("one block_size at a time"), "{error}");
}

/// Compares the curve of `kvmem trace` with a replay at each of these sizes.
fn compare(trace: &Path, options: &[&str], pools: &[u64]) -> Vec<f64> {
    let trace = trace.to_str().unwrap();
    let sizes = pools.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let file = tempfile::NamedTempFile::new().unwrap();
    let into = file.path().to_str().unwrap();
    let args = ["kvmem", "trace", "curve", trace, "--pools", &sizes, "--json", into];
    let args = kvmem_cli::args::Args::try_parse_from(args.iter().chain(options)).unwrap();
    kvmem_cli::run(args).map_err(|failure| failure.to_string()).unwrap();
    let curve: Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    let rows = curve["curve"].as_array().unwrap();
    assert_eq!(rows.len(), pools.len());
    let of = |row: &Value, pool: &u64| {
        let replay = json(&[&["replay", trace, "--pool", &pool.to_string()], options].concat());
        let [rate, replayed] = [&row["hit_rate"], &replay["hit_rate_blocks"]];
        let (rate, replayed) = (rate.as_f64().unwrap(), replayed.as_f64().unwrap());
        assert!((rate - replayed).abs() < 0.01, "{trace}, {pool}: {rate} and {replayed}");
        rate
    };
    rows.iter().zip(pools).map(|(row, pool)| of(row, pool)).collect()
}

#[test]
fn the_curve_is_that_of_replays() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("conversations.jsonl");
    std::fs::write(&trace, conversations(1, 400)).unwrap();
    // Pages of two objects, so that blocks are evicted in part.
    let block = ["--object-bytes", "3000,1096", "--page-tokens", "256"];
    let rates = compare(&trace, &block, &[200, 700, 2000, 5000, 20_000].map(|kib| kib << 10));
    assert!(rates.is_sorted() && rates[0] < rates[4] - 0.2, "{rates:?}");
    std::fs::remove_file(trace).unwrap();
    for seed in 0..12 {
        let file = folder.path().join(format!("session-{seed:02}.json"));
        std::fs::write(file, session(seed, 10 + 2 * seed)).unwrap();
    }
    let block = ["--object-bytes", "4KiB", "--page-tokens", "64", "--sessions", "4"];
    let rates = compare(folder.path(), &block, &[100, 1000, 6000].map(|blocks| blocks * 4096));
    assert!(rates[2] > 0.8, "{rates:?}");
}
