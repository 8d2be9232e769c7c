//! `kvmem trace`, run as a command: figures, formats and messages.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kvmem_testkit::traces::{conversations, session};
use serde_json::Value;
use tempfile::TempDir;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = kvmem(&[args, &["--json", "-"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    assert_eq!(stderr, "");
    serde_json::from_slice(&output.stdout).unwrap()
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

fn small_trace() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small_trace.jsonl");
    path.to_str().unwrap().to_owned()
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

#[test]
fn the_small_trace_has_the_expected_figures() {
    let trace = small_trace();
    let block = ["--object-bytes", "4KiB", "--page-tokens", "512"];
    let info = json(&[&["trace", "info", &trace], &block[..]].concat());
    let info = &info[0];
    assert_eq!((&info["suite"], &info["format"]), (&"trace".into(), &"mooncake".into()));
    assert_eq!((&info["requests"], &info["blocks"]), (&160.into(), &1295.into()));
    assert_eq!((&info["tokens"], &info["distinct_blocks"]), (&623_798.into(), &564.into()));
    assert_eq!(info["working_set_bytes"], 564 * 4096);
    assert_eq!(info["max_hit_rate"], 731.0 / 1295.0);
    assert_eq!(info["max_hit_rate_tokens"], 374_272.0 / 623_798.0);
    assert_eq!((&info["sample_rate"], &info["max_hit_rate_error"]), (&1.0.into(), &0.0.into()));
    let marks = info["marks"].as_array().unwrap();
    assert_eq!(marks.len(), 3, "{info:#}");
    assert!(marks.is_sorted_by_key(|mark| mark["pool_bytes"].as_u64()), "{info:#}");

    // The same hits as replays of pools of 16, 40, 64 and 10,000 blocks.
    let pools = "64KiB,160KiB,256KiB,40000KiB";
    let curve = json(&[&["trace", "curve", &trace, "--pools", pools], &block[..]].concat());
    let rates = curve["curve"].as_array().unwrap().iter().map(|row| row["hit_rate"].as_f64());
    let rates: Vec<f64> = rates.map(Option::unwrap).collect();
    for (rate, hits) in rates.iter().zip([337, 535, 610, 731]) {
        assert!((rate - f64::from(hits) / 1295.0).abs() < 1e-9, "{rate}: {hits}");
    }
}

#[test]
fn sessions_of_a_folder_are_one_trace() {
    let folder = TraceFolder::new();
    for seed in 0..12 {
        folder.file(&format!("session-{seed:02}.json"), &session(seed, 10 + 2 * seed));
    }
    let info = json(&["trace", "info", folder.path(), "--model", "llama-3.1-8b"]);
    assert_eq!(info[0]["format"], "kv-cache-tester");
    let size = &info[0]["block_sizes"][0];
    assert_eq!((&size["tokens"], &size["bytes"]), (&64.into(), &(8 << 20).into()));

    // Blocks of another length are weighed by their bytes.
    let short = session(99, 20).replace("\"block_size\": 64", "\"block_size\": 16");
    folder.file("short.json", &short);
    let curve = json(&["trace", "curve", folder.path(), "--model", "llama-3.1-8b"]);
    assert_eq!(curve["block_sizes"][0]["bytes"], 2 << 20, "{curve:#}");
}

#[test]
fn a_trace_without_hashes_has_sizes_only() {
    let folder = TraceFolder::new();
    let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n".to_owned();
    for second in 0..50 {
        writeln!(text, "2026-01-01 00:00:{second:02}.1234567,{},{second}\r", 100 * second).unwrap();
    }
    let trace = folder.file("requests.csv", &text);
    let info = json(&["trace", "info", &trace, "--model", "llama-3.1-8b"]);
    let info = &info[0];
    assert_eq!((&info["format"], &info["requests"]), (&"azure".into(), &50.into()));
    let blocks: u64 = (0..50u64).map(|second| (100 * second).div_ceil(64)).sum();
    assert_eq!((&info["blocks"], &info["distinct_blocks"]), (&blocks.into(), &blocks.into()));
    assert_eq!(info["working_set_bytes"], blocks * (8 << 20));
    assert_eq!((&info["max_hit_rate"], &info["trace_span_s"]), (&0.0.into(), &49.0.into()));
    let text = String::from_utf8(kvmem(&["trace", "info", &trace]).stdout).unwrap();
    assert!(text.contains("unknown: the format has no hashes"), "{text}");
    // All uses are of blocks that were never used before, also in a sample.
    let sampled = ["trace", "curve", &trace, "--sample-rate", "0.1"];
    assert_eq!(json(&sampled)["curve"], Value::Array(Vec::new()));
    let curve = json(&[&sampled[..], &["--pools", "1TiB,1GiB"]].concat());
    let rows = curve["curve"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["pool_bytes"]), (2, &(1 << 30).into()));
    assert!(rows.iter().all(|row| row["hit_rate"] == 0.0), "{curve:#}");
}

#[test]
fn a_sample_tells_its_error_and_keeps_it() {
    let folder = TraceFolder::new();
    let trace = folder.file("long.jsonl", &conversations(5, 3000));
    let pools = ["trace", "curve", &trace, "--pools", "2GiB,8GiB,32GiB,128GiB,512GiB"];
    let exact = json(&pools);
    assert_eq!(exact["sample_rate"], 1.0);
    for sampling in [["--sample-rate", "0.2"], ["--max-blocks", "2048"]] {
        let sample = json(&[&pools[..], &sampling].concat());
        assert!(sample["sample_rate"].as_f64().unwrap() < 0.5, "{sample:#}");
        let rows = sample["curve"].as_array().unwrap().iter();
        for (row, exact) in rows.zip(exact["curve"].as_array().unwrap()) {
            let rate = |row: &Value| row["hit_rate"].as_f64().unwrap();
            let error = row["error"].as_f64().unwrap();
            let difference = (rate(row) - rate(exact)).abs();
            assert!(error > 0.0 && difference < error + 0.02, "{sampling:?}: {row} {exact}");
        }
        let text = kvmem(&[&pools[..], &sampling].concat()).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("sampled") && text.contains('±'), "{text}");
    }
}

#[test]
fn text_and_json_have_every_figure() {
    let folder = TraceFolder::new();
    let out = folder.file("curve.json", "old");
    let trace = small_trace();
    let output = kvmem(&["trace", "curve", &trace, "--json", &out]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "format mooncake",
        "working set",
        "in a pool without end",
        "for 90 % of that",
        "of possible",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let curve: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let rows = curve["curve"].as_array().unwrap();
    assert!(rows.len() > 3 && rows[0]["hit_rate"].as_f64() < Some(0.1), "{curve:#}");
    assert!(rows.last().unwrap()["of_max"].as_f64() > Some(0.999), "{curve:#}");
    // Two traces are reported separately.
    let output = kvmem(&["trace", "info", &trace, &trace]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().matches("1,295 of 512 tokens").count(), 2);
}

#[test]
fn what_is_no_trace_fails() {
    let folder = TraceFolder::new();
    // The tests of the crate `kvmem-trace` have the other faults.
    for (name, text, expected) in [
        ("words.txt", "hello\n", "is no trace of a known format, it begins with \"hello\\n\""),
        ("empty.jsonl", "\n\n", "the trace is empty"),
        ("line.jsonl", "{\"timestamp\": 1}\n", "line.jsonl:1: malformed line: missing field"),
    ] {
        let file = folder.file(name, text);
        for command in [["trace", "info"], ["trace", "curve"]] {
            let error = fails(&[&command[..], &[file.as_str()]].concat());
            assert!(error.contains(expected), "{error}");
        }
    }
    let trace = small_trace();
    for (options, expected) in [
        (["--format", "parquet"], "kv-cache-tester"),
        (["--format", "azure"], "the header has no column"),
        (["--format", "kv-cache-tester"], "missing field"),
        (["--block-tokens", "0"], "--block-tokens"),
        (["--block-tokens", "100"], "does not divide"),
        (["--sessions", "0"], "--sessions"),
        (["--sample-rate", "0"], "a share is above 0"),
        (["--sample-rate", "1.5"], "a share is above 0"),
        (["--max-blocks", "10"], "--max-blocks"),
        (["--object-bytes", "4EiB"], "more than 2^64 bytes"),
    ] {
        let page = if options[1] == "100" { &["--page-tokens", "64"][..] } else { &[] };
        let error = fails(&[&["trace", "curve", &trace], &options[..], page].concat());
        assert!(error.contains(expected), "{options:?}: {error}");
    }
    assert!(fails(&["trace", "info", "no/such/file"]).contains("cannot read no/such/file"));
    fails(&["trace", "info"]);
    fails(&["trace"]);
}
