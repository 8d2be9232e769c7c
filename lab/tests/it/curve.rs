//! The curve of hit rates of `kvmem trace`, beside replays.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kvmem_testkit::traces::{conversations, session};
use serde_json::Value;
use tempfile::TempDir;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = kvmem(&[args, &["--json", "-"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Computes a curve.
fn curve(args: &[&str]) -> Value {
    json(&[&["page", "/dev/null", "trace", "curve"], args].concat())
}

/// Runs the command, which must fail, and returns the message.
fn fails(args: &[&str]) -> String {
    let output = kvmem(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

/// A folder of its own for each test, removed at the end.
struct TraceFolder(TempDir);

impl TraceFolder {
    fn new() -> Self {
        TraceFolder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    /// Writes a file, and returns its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }
}

/// Compares the curve with a replay at each of these sizes, and returns the hit rates.
fn compare(trace: &str, options: &[&str], pools: &[u64]) -> Vec<f64> {
    let sizes = pools.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let curve = curve(&[&[trace, "--pools", &sizes], options].concat());
    let rows = curve["curve"].as_array().unwrap();
    assert_eq!(rows.len(), pools.len());
    let of = |row: &Value, pool: u64| {
        assert_eq!(row["pool_bytes"], pool);
        let pool = pool.to_string();
        let replay = json(&[&["replay", trace, "--pool", &pool], options].concat());
        let (rate, replayed) = (&row["hit_rate"], &replay["hit_rate_blocks"]);
        let (rate, replayed) = (rate.as_f64().unwrap(), replayed.as_f64().unwrap());
        assert!((rate - replayed).abs() < 0.01, "{trace}, {pool}: {rate} and {replayed}");
        rate
    };
    rows.iter().zip(pools).map(|(row, pool)| of(row, *pool)).collect()
}

#[test]
fn the_curve_is_that_of_replays() {
    let folder = TraceFolder::new();
    for seed in 0..3 {
        let trace = folder.file("conversations.jsonl", &conversations(seed, 400));
        // Pages of two objects, so that blocks are evicted in part.
        let block = ["--object-bytes", "3000,1096", "--page-tokens", "256"];
        let pools = [200, 700, 2000, 5000, 20_000].map(|kib| kib << 10);
        let rates = compare(&trace, &block, &pools);
        assert!(rates.is_sorted() && rates[0] < rates[4] - 0.2, "{rates:?}");
    }
}

#[test]
fn sessions_of_a_folder_are_replayed_as_the_curve_says() {
    let folder = TraceFolder::new();
    for seed in 0..12 {
        folder.file(&format!("session-{seed:02}.json"), &session(seed, 10 + 2 * seed));
    }
    let block = ["--object-bytes", "4KiB", "--page-tokens", "64"];
    let pools = [100, 400, 1000, 2000, 6000].map(|blocks| blocks * 4096);
    for sessions in ["1", "4", "50"] {
        let options = [&block[..], &["--sessions", sessions]].concat();
        let rates = compare(folder.path(), &options, &pools);
        assert!(rates[4] > 0.8, "{rates:?}");
        // Sessions side by side need room for all of them.
        assert!(sessions == "1" || rates[0] < rates[4] - 0.1, "{sessions}: {rates:?}");
    }
    // A replay has blocks of one length.
    folder.file("short.json", &session(99, 20).replace("\"block_size\": 64", "\"block_size\": 16"));
    let error = fails(&["replay", folder.path()]);
    assert!(error.contains("one block_size at a time"), "{error}");
    let inside = Path::new(folder.path()).join("short.json");
    let before = std::fs::read(&inside).unwrap();
    let inside = inside.to_str().unwrap();
    let error = fails(&["page", inside, "trace", "curve", folder.path()]);
    assert!(error.contains("this is a file that is read"), "{error}");
    assert_eq!(std::fs::read(inside).unwrap(), before);
}

#[test]
fn a_trace_without_hashes_has_no_hits() {
    let folder = TraceFolder::new();
    let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n".to_owned();
    for second in 0..50 {
        writeln!(text, "2026-01-01 00:00:{second:02}.1234567,{},{second}\r", 100 * second).unwrap();
    }
    let trace = folder.file("requests.csv", &text);
    let blocks: u64 = (0..50u64).map(|second| (100 * second).div_ceil(64)).sum();
    let replay = json(&["replay", &trace, "--pool", "64GiB"]);
    assert_eq!((&replay["blocks"], &replay["hits"]), (&blocks.into(), &0.into()));
    assert_eq!(replay["block_tokens"], 64);
    let replay = json(&["replay", &trace, "--pool", "64GiB", "--block-tokens", "256"]);
    assert_eq!(replay["block_tokens"], 256);
}

/// Compares the curve of the published conversation trace with replays at five sizes, if the file
/// lies beside the checkout.
#[test]
fn the_curve_of_the_published_trace_is_that_of_replays() {
    let name = "shared/traces/conversation_trace.jsonl";
    let folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = folders.map(|folder| folder.join(name)).find(|trace| trace.is_file());
    let Some(trace) = found else {
        eprintln!("skipped: no folder above this crate has {name}");
        return;
    };
    let trace = trace.to_str().unwrap();
    let info = curve(&[trace]);
    assert_eq!((&info["requests"], &info["blocks"]), (&12_031.into(), &288_500.into()));
    assert_eq!(info["distinct_blocks"], 182_790);
    let highest = info["max_hit_rate"].as_f64().unwrap();
    assert!((highest - f64::from(288_500 - 182_790) / 288_500.0).abs() < 1e-9, "{highest}");
    // Pages of a whole block: the same bytes in fewer objects, because a debug build is slow.
    let block = ["--page-tokens", "512"];
    let pools = [64, 256, 1024, 2048, 4096].map(|gib| gib << 30);
    let rates = compare(trace, &block, &pools);
    assert!(rates.is_sorted() && rates[0] > 0.05 && rates[4] < highest + 1e-9, "{rates:?}");
}
