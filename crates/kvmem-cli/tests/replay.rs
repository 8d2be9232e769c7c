//! `kvmem replay` as its users meet it: the built command, a small trace, exit statuses and messages.
//!
//! The expected figures of `data/small_trace.jsonl` (160 requests of made-up conversations on three system prompts)
//! come from a separate simulation of the cache's rules over a plain list.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn small_trace() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small_trace.jsonl");
    path.to_str().unwrap().to_owned()
}

/// A file of its own for each test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Replays the small trace and returns the JSON report.
fn report(args: &[&str]) -> Value {
    let trace = small_trace();
    let output = kvmem(&[&["replay", &trace, "--json", "-"], args].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs what must fail and returns the message.
fn refused(args: &[&str]) -> String {
    let output = kvmem(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is reported of what failed");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn figures_of_the_small_trace() {
    // (blocks that fit, hits, hit tokens, evictions, not cached)
    for (fit, hits, hit_tokens, evictions, not_cached) in [
        (10_000, 731, 374_272, 0, 0),
        (64, 610, 312_320, 621, 0),
        (40, 535, 273_920, 720, 0),
        (16, 337, 172_544, 912, 30),
    ] {
        for contender in ["kvmem", "binned", "best-fit"] {
            let pool = (fit * 4096).to_string();
            let one_object = ["--object-bytes", "4KiB", "--page-tokens", "512"];
            let report =
                report(&[&["--contender", contender, "--pool", &pool], one_object.as_slice()].concat());
            let label = format!("{contender}, {fit} blocks: {report:#}");
            assert_eq!(report["suite"], "replay", "{label}");
            assert_eq!(report["contender"], contender, "{label}");
            assert_eq!((&report["requests"], &report["blocks"]), (&160.into(), &1295.into()), "{label}");
            assert_eq!(report["tokens"], 623_798, "{label}");
            assert_eq!(report["hits"], hits, "{label}");
            assert_eq!(report["hit_rate_blocks"], f64::from(hits) / 1295.0, "{label}");
            assert_eq!(report["hit_rate_tokens"], f64::from(hit_tokens) / 623_798.0, "{label}");
            assert_eq!(report["evictions"], evictions, "{label}");
            assert_eq!(report["not_cached"], not_cached, "{label}");
            let held = fit.min(564);
            assert_eq!(report["blocks_held"], held, "{label}");
            assert_eq!(report["utilization_end"], f64::from(held) / f64::from(fit), "{label}");
            let least_since_full = if evictions == 0 { Value::Null } else { 1.0.into() };
            assert_eq!(report["utilization_full_min"], least_since_full, "{label}");
            assert_eq!(report["allocate_ns"]["count"].as_u64(), {
                let calls = report["allocations"].as_u64().zip(report["failed_allocations"].as_u64());
                calls.map(|(found, failed)| found + failed)
            });
            assert_eq!(report["backed"], Value::Null, "{label}");
        }
    }
}

#[test]
fn two_sizes_in_a_backed_pool_stay_intact() {
    for contender in ["kvmem", "binned", "binned-unrounded", "best-fit", "offset-allocator"] {
        let report =
            report(&["--contender", contender, "--object-bytes", "3333,517", "--pool", "1.5MiB", "--backed"]);
        let block_bytes = 8 * (3333 + 517);
        assert_eq!(report["block_bytes"], block_bytes);
        assert!(report["evictions"].as_u64() > Some(0), "the pool must fill: {report:#}");
        let hits = report["hits"].as_u64().unwrap();
        assert!(hits > 0, "{report:#}");
        assert_eq!(report["backed"]["verified_on_hits_bytes"], hits * block_bytes);
        let held = report["blocks_held"].as_u64().unwrap();
        assert_eq!(report["backed"]["verified_at_end_bytes"], held * block_bytes);
    }
}

#[test]
fn only_the_first_requests_are_replayed_when_asked() {
    let report = report(&["--requests", "10", "--pool", "64GiB"]);
    assert_eq!((&report["requests"], &report["model"]), (&10.into(), &"glm-5.1-dsa".into()));
    assert_eq!((&report["block_bytes"], &report["block_objects"]), (&31_465_472.into(), &16.into()));
}

#[test]
fn the_text_names_every_figure_and_json_goes_to_its_file() {
    let json = Scratch::new("report.json", "old content");
    let trace = small_trace();
    let output = kvmem(&["replay", &trace, "--pool", "2GiB", "--json", json.path()]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in
        ["hit rate", "blocks held", "evicted", "utilization", "p50", "p99", "p99.9", "calls/s", "glm-5.1-dsa"]
    {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json.path()).unwrap()).unwrap();
    assert_eq!(report["requests"], 160);
}

#[test]
fn a_trace_comes_through_a_pipe_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.args(["replay", "-", "--json", "-", "--pool", "64GiB"]);
    let trace = std::fs::File::open(small_trace()).unwrap();
    let output = command.stdin(Stdio::from(trace)).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["trace"]), (&160.into(), &"-".into()));
}

#[test]
fn a_malformed_line_is_named() {
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}"#;
    for bad in
        [r#"{"timestamp": 0, "input_length": 600"#, "hello", r#"{"timestamp": 0}"#, "{\"hash_ids\": [-1]}"]
    {
        let trace = Scratch::new("bad.jsonl", &format!("{good}\n{good}\n{bad}\n{good}\n"));
        let message = refused(&["replay", trace.path()]);
        assert!(message.starts_with(&format!("kvmem: {}:3: malformed line: ", trace.path())), "{message}");
    }
}

#[test]
fn a_trace_that_cannot_be_read_or_is_empty_is_refused() {
    let message = refused(&["replay", "no/such/trace.jsonl"]);
    assert!(message.contains("cannot read no/such/trace.jsonl"), "{message}");
    let message = refused(&["replay", env!("CARGO_MANIFEST_DIR")]);
    assert!(message.contains("cannot read"), "{message}");
    let empty = Scratch::new("empty.jsonl", "\n\n");
    let message = refused(&["replay", empty.path()]);
    assert!(message.contains("the trace is empty"), "{message}");
}

#[test]
fn a_pool_that_cannot_work_is_refused() {
    let trace = small_trace();
    let message = refused(&["replay", &trace, "--pool", "3274751"]);
    assert!(
        message.contains("3274751 bytes is smaller than one block: 16 objects, 31465472 bytes"),
        "{message}"
    );
    let message = refused(&["replay", &trace, "--pool", "1PiB", "--backed"]);
    assert!(message.contains("--backed fills the whole pool: 1125899906842624 bytes"), "{message}");
    let message = refused(&["replay", &trace, "--contender", "offset-allocator"]);
    assert!(message.contains("offset-allocator cannot manage 1099511627776 bytes"), "{message}");
    let message = refused(&["replay", &trace, "--contender", "null", "--backed", "--pool", "1GiB"]);
    assert!(message.contains("null hands out no places"), "{message}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let trace = small_trace();
    for (options, expected) in [
        (["--pool", "12 parsecs"], "--pool"),
        (["--pool", "99999999TiB"], "--pool"),
        (["--model", "gpt-9"], "llama-3.1-8b"),
        (["--contender", "malloc"], "best-fit"),
        (["--page-tokens", "100"], "a page of 100 tokens does not divide a block of 512 tokens"),
        (["--object-bytes", "0"], "an object of 0 bytes"),
        (["--object-bytes", "16EiB"], "--object-bytes"),
        (["--requests", "0"], "--requests"),
        (["--json", "no/such/folder/report.json"], "cannot write no/such/folder/report.json"),
    ] {
        let message = refused(&["replay", &trace, options[0], options[1]]);
        assert!(message.contains(expected), "{options:?}: {message}");
    }
    let message = refused(&["replay", &trace, "--model", "mistral-7b", "--object-bytes", "4096"]);
    assert!(message.contains("cannot be used with"), "{message}");
    refused(&["replay"]);
    refused(&[]);
}

/// The published conversation trace, where it lies beside the checkout.
#[test]
fn the_published_trace_when_it_is_at_hand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trace = root.join("../shared/traces/conversation_trace.jsonl");
    if !trace.is_file() {
        return;
    }
    let output = kvmem(&["replay", trace.to_str().unwrap(), "--pool", "1TiB", "--json", "-"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["blocks"]), (&12_031.into(), &288_500.into()));
    // 182,790 different blocks: the others are hits if nothing is ever evicted.
    assert!(report["hits"].as_u64().unwrap() <= 288_500 - 182_790);
    // 34,943 blocks would fill the pool to the last byte.
    let held = report["blocks_held"].as_u64().unwrap();
    assert!((34_000..=34_943).contains(&held), "{held}");
    assert_eq!(report["hits_behind_gap"], 0);
}
