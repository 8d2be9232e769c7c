//! `--html` as its users meet it: each page is written by the built command and opened by a real
//! browser.
//!
//! The browser is Chromium, headless; where there is none that works the pages are still written
//! and looked at as text, and the test says that it did not open them.

mod browser;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use self::browser::browse;

/// Where the pages of a test go, and are left to be looked at.
fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"))
}

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs the command with `--html`, opens the page, and returns it. `plots`: the least number of
/// plots that are on it.
fn drawn(name: &str, args: &[&str], plots: usize) -> String {
    let file = page(name);
    let output = kvmem(&[args, &["--html", file.to_str().unwrap()]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    assert!(!output.stdout.is_empty(), "{name}: the text is printed all the same");
    browser::opened(&file, plots)
}

fn record(ending: &str) -> String {
    format!("{}/../../bench/record/2026-11-21-amd-epyc-2c{ending}.json", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_console_error_would_be_seen() {
    let file = page("broken");
    std::fs::write(&file, "<!doctype html><title>x</title><script>console.error('wrong')</script>")
        .unwrap();
    match browse(&file) {
        None => println!("skipped: there is no Chromium here that works"),
        Some((_, log)) => assert!(log.lines().any(|line| line.contains(":CONSOLE")), "{log}"),
    }
}

#[test]
fn a_browser_that_hangs_is_killed_with_all_that_it_started() {
    // The second sleep belongs to the group of the first.
    let script = "sleep 600 & echo $! && sleep 600";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    assert!(browser::ended(child, Duration::from_millis(100)).unwrap().is_none());
    let state =
        || std::fs::read_to_string(format!("/proc/{}/stat", line.trim())).unwrap_or_default();
    // Gone, or dead and not yet waited for by the process that inherits it.
    let gone = || state().is_empty() || state().contains(") Z ");
    for _ in 0..500 {
        if gone() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a child of the browser lives on: {}", state());
}

#[test]
fn benchmarks_that_were_recorded() {
    let files = [record("-arena"), record("-register"), record("")].join(",");
    let html = drawn("recorded", &["bench", "--from", &files], 20);
    for suite in ["<h2>arena</h2>", "<h2>register</h2>", "<h2>offset</h2>"] {
        assert!(html.contains(suite), "{suite}");
    }
}

#[test]
fn a_benchmark_of_arenas() {
    drawn("arena", &["bench", "arena", "--quick", "--reps", "1", "--op", "bump,bump-full"], 2);
}

#[test]
fn a_benchmark_of_registering() {
    let args =
        ["bench", "register", "--quick", "--reps", "1", "--backend", "simulated-parallel-wins"];
    drawn("register", &args, 1);
}

#[test]
fn a_benchmark_of_offsets() {
    let args = [
        "bench",
        "offset",
        "--quick",
        "--workload",
        "random,paired",
        "--contender",
        "kvmem,binned",
    ];
    let html = drawn("offset", &args, 4);
    assert!(html.contains("binned, published"));
}

#[test]
fn a_benchmark_of_slabs() {
    let args = ["bench", "slab", "--quick", "--reps", "1", "--pattern", "fixed", "--threads", "1"];
    drawn("slab", &[&args[..], &["--contender", "kvmem,malloc"]].concat(), 1);
}

#[test]
fn a_benchmark_of_threads() {
    let args = [
        "bench",
        "concurrency",
        "--quick",
        "--reps",
        "1",
        "--scenario",
        "pair-4k",
        "--threads",
        "1,2",
    ];
    drawn("concurrency", &args, 2);
}

#[test]
fn a_mount() {
    let html = drawn("mount", &["mount", "--size", "96MiB", "--pages", "4k", "--populate", "2"], 1);
    for part in ["Time line", "thread 0", "Receipt", "0x0..0x6000000"] {
        assert!(html.contains(part), "{part}");
    }
    let html = drawn(
        "mount-mlock",
        &["mount", "--size", "4MiB", "--pages", "4k", "--devices", "mlock"],
        2,
    );
    for part in ["mlock", "register", "unregister", "4194304"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn a_plan_is_a_page_without_plots() {
    let args = ["mount", "--size", "4MiB", "--pages", "4k", "--devices", "mlock", "--plan"];
    assert!(drawn_without_plots("plan", &args).contains("Receipt"));
}

/// As [`drawn`], but nothing was measured.
fn drawn_without_plots(name: &str, args: &[&str]) -> String {
    let file = page(name);
    let output = kvmem(&[args, &["--html", file.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(!html.contains("<svg"), "{html}");
    html
}

#[test]
fn a_replay() {
    let trace = format!("{}/tests/data/small_trace.jsonl", env!("CARGO_MANIFEST_DIR"));
    for (contender, plots) in [("kvmem", 5), ("binned", 5), ("null", 1)] {
        let args = [
            "replay",
            &trace,
            "--object-bytes",
            "4KiB,700",
            "--pool",
            "900KiB",
            "--page-tokens",
            "128",
        ];
        let html = drawn(
            &format!("replay-{contender}"),
            &[&args[..], &["--contender", contender]].concat(),
            plots,
        );
        assert!(html.contains("hit rate so far") && html.contains("44.3"), "{contender}");
    }
}

#[test]
fn what_cannot_be_written_or_read_is_told_before_anything_is_done() {
    let fails = |args: &[&str]| {
        let output = kvmem(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
        stderr
    };
    let nowhere = "/no/such/folder/page.html";
    let trace = format!("{}/tests/data/small_trace.jsonl", env!("CARGO_MANIFEST_DIR"));
    for args in [
        &["bench", "--html", nowhere][..],
        &["bench", "offset", "--html", nowhere],
        &["mount", "--size", "1GiB", "--html", nowhere],
        &["replay", &trace, "--html", nowhere],
    ] {
        assert!(fails(args).contains("cannot write /no/such/folder/page.html"), "{args:?}");
    }
    assert!(
        fails(&["bench", "--from", "/no/such/rows.json"])
            .contains("cannot show /no/such/rows.json")
    );
    assert!(fails(&["bench", "--from", &trace]).contains("cannot show"));
}
