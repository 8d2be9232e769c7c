//! Pages: the command writes each, and a real browser opens it.
//!
//! The browser is headless Chromium. Without a working one the tests write the pages, check them as
//! text, and print that they did not open them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kvmem_tier::{DiskTier, DiskTierOptions};

use crate::browser::{self, browse};

/// Returns the path of a page. The pages stay there for inspection.
fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.html"))
}

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs a command of `kvmem`, and draws what it finds.
fn found(file: &Path, args: &[&str]) -> Output {
    kvmem(&[&["page", file.to_str().unwrap()], args].concat())
}

/// The same for a page of at least `plots` plots, which is opened, and returned.
fn found_and_drawn(name: &str, args: &[&str], plots: usize) -> String {
    let file = page(name);
    let output = found(&file, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    assert!(!output.stdout.is_empty(), "{name}: the text is printed all the same");
    browser::opened(&file, plots)
}

/// Runs the command with `--html`, opens the page, and returns it. The page must have at least
/// `plots` plots.
fn drawn(name: &str, args: &[&str], plots: usize) -> String {
    let file = page(name);
    let output = kvmem(&[args, &["--html", file.to_str().unwrap()]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {stderr}");
    assert!(!output.stdout.is_empty(), "{name}: the text is printed all the same");
    browser::opened(&file, plots)
}

fn record(ending: &str) -> String {
    format!("{}/../bench/record/2026-11-21-amd-epyc-2c{ending}.json", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_console_error_is_detected() {
    let file = page("broken");
    std::fs::write(&file, "<!doctype html><title>x</title><script>console.error('wrong')</script>")
        .unwrap();
    match browse(&file) {
        None => println!("skipped: there is no Chromium here that works"),
        Some((_, log)) => assert!(log.lines().any(|line| line.contains(":CONSOLE")), "{log}"),
    }
}

#[test]
fn a_hanging_browser_is_killed_with_its_children() {
    // Both sleeps are in one process group.
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
    // The process is gone, or a zombie that its new parent has not waited for.
    let gone = || state().is_empty() || state().contains(") Z ");
    for _ in 0..12_000 {
        if gone() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a child of the browser lives on: {}", state());
}

#[test]
fn page_of_recorded_benchmarks() {
    let files = [record("-arena"), record("-register"), record("")].join(",");
    let html = drawn("recorded", &["bench", "--from", &files], 20);
    for suite in ["<h2>arena</h2>", "<h2>register</h2>", "<h2>offset</h2>"] {
        assert!(html.contains(suite), "{suite}");
    }
}

#[test]
fn page_of_the_arena_suite() {
    drawn("arena", &["bench", "arena", "--quick", "--reps", "1", "--op", "bump,bump-full"], 2);
}

#[test]
fn page_of_the_register_suite() {
    let args =
        ["bench", "register", "--quick", "--reps", "1", "--backend", "simulated-parallel-wins"];
    drawn("register", &args, 1);
}

#[test]
fn page_of_the_offset_suite() {
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
fn page_of_the_slab_suite() {
    let args = ["bench", "slab", "--quick", "--reps", "1", "--pattern", "fixed", "--threads", "1"];
    drawn("slab", &[&args[..], &["--contender", "kvmem,malloc"]].concat(), 1);
}

#[test]
fn page_of_the_node_suite() {
    // The calls have two plots, the values and the look-ups one each.
    let html = drawn("node", &["bench", "node", "--quick", "--reps", "1"], 4);
    assert!(html.contains("4 client(s)"), "{html}");
}

#[test]
fn page_of_the_concurrency_suite() {
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

/// Makes a tier with values of several lengths.
fn disk_tier(name: &str) -> PathBuf {
    let file = page(name).with_extension("disk");
    let _ = std::fs::remove_file(&file);
    let options = DiskTierOptions { bytes: Some(8 << 20), ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::open(&file, &options).unwrap();
    for number in 1..60_u32 {
        let value = number.to_le_bytes().repeat(50 * number as usize);
        tier.store(&[(&number.to_le_bytes(), &value)]).remove(0).unwrap();
    }
    file
}

#[test]
fn page_of_an_inspected_tier() {
    let file = disk_tier("tier-inspect");
    let html = found_and_drawn("tier-inspect", &["tier", "inspect", file.to_str().unwrap()], 3);
    for words in ["What the file is used for", "up to 16.00 KiB", "59 values", "checkpoint 1"] {
        assert!(html.contains(words), "{words}: {html}");
    }
    // A tier that cannot be opened has a page with the reason.
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(4 << 20).unwrap();
    let out = page("tier-cut");
    let output = found(&out, &["tier", "inspect", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let html = browser::opened(&out, 0);
    assert!(html.contains("it was cut off") && !html.contains("Where the values lie"), "{html}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn page_of_a_verified_tier() {
    let file = disk_tier("tier-verify");
    let html = found_and_drawn("tier-verify", &["tier", "verify", file.to_str().unwrap()], 1);
    assert!(html.contains("59 values") && !html.contains("<h3>Damaged values</h3>"), "{html}");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = 59_u32.to_le_bytes().repeat(1000);
    let at = bytes.windows(last.len()).position(|part| part == last).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let out = page("tier-damaged");
    let output = found(&out, &["tier", "verify", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let html = browser::opened(&out, 2);
    assert!(html.contains("its checksum is wrong") && html.contains(&at.to_string()), "{html}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn page_of_a_disk_tier() {
    let file = page("tier").with_extension("disk");
    let bench = &["tier", file.to_str().unwrap(), "--size", "16MiB", "--depth", "4"][..];
    let short = ["--value-bytes", "64KiB", "--seconds", "1"];
    let html = drawn("tier", &[bench, &short].concat(), 2);
    for part in ["store, 64 KiB", "fetch, 64 KiB", "Processor time"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn page_of_a_mount() {
    let html = found_and_drawn(
        "mount",
        &["mount", "--size", "96MiB", "--pages", "4k", "--populate", "2"],
        1,
    );
    for part in ["Time line", "thread 0", "Receipt", "0x0..0x6000000"] {
        assert!(html.contains(part), "{part}");
    }
    let html = found_and_drawn(
        "mount-mlock",
        &["mount", "--size", "4MiB", "--pages", "4k", "--devices", "mlock"],
        2,
    );
    for part in ["mlock", "register", "unregister", "4194304"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn page_of_a_plan_has_no_plots() {
    let args = ["mount", "--size", "4MiB", "--pages", "4k", "--devices", "mlock", "--plan"];
    assert!(drawn_without_plots("plan", &args).contains("Receipt"));
}

/// Draws what a command of `kvmem` finds, and returns the page, which must have no plots.
fn drawn_without_plots(name: &str, args: &[&str]) -> String {
    let file = page(name);
    let output = found(&file, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&file).unwrap();
    assert!(!html.contains("<svg"), "{html}");
    html
}

#[test]
fn page_of_a_replay() {
    let trace =
        format!("{}/../crates/kvmem-cli/tests/data/small_trace.jsonl", env!("CARGO_MANIFEST_DIR"));
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
fn page_of_a_curve() {
    let trace =
        format!("{}/../crates/kvmem-cli/tests/data/small_trace.jsonl", env!("CARGO_MANIFEST_DIR"));
    for (name, sampling) in [("exact", &[][..]), ("sampled", &["--sample-rate", "0.3"])] {
        let args = [&["trace", "curve", &trace], sampling].concat();
        let html = found_and_drawn(&format!("curve-{name}"), &args, 1);
        assert!(html.contains("How much memory to buy") && html.contains("99 % of possible"));
        assert_eq!(html.contains("at least"), name == "sampled");
    }
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-reuse.csv");
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n1,100,1\n2,100,1\n";
    std::fs::write(&empty, text).unwrap();
    let html = found_and_drawn("curve-none", &["trace", "curve", empty.to_str().unwrap()], 0);
    assert!(html.contains("No block is requested twice"), "{html}");
}

#[test]
fn unreadable_inputs_and_unwritable_pages_fail_before_any_work() {
    let fails = |args: &[&str]| {
        let output = kvmem(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
        stderr
    };
    let nowhere = "/no/such/folder/page.html";
    let trace =
        format!("{}/../crates/kvmem-cli/tests/data/small_trace.jsonl", env!("CARGO_MANIFEST_DIR"));
    for args in [
        &["bench", "--html", nowhere][..],
        &["bench", "offset", "--html", nowhere],
        &["page", nowhere, "mount", "--size", "1GiB"],
        &["replay", &trace, "--html", nowhere],
        &["page", nowhere, "trace", "curve", &trace],
    ] {
        assert!(fails(args).contains("cannot write /no/such/folder/page.html"), "{args:?}");
    }
    assert!(
        fails(&["bench", "--from", "/no/such/rows.json"])
            .contains("cannot show /no/such/rows.json")
    );
    assert!(fails(&["bench", "--from", &trace]).contains("cannot show"));
    assert!(fails(&["page", nowhere, "doctor"]).contains("doctor has no page: name mount"));
    assert!(fails(&["page", nowhere, "trace", "curve", "--nothing"]).contains("--nothing"));
    let message = fails(&["page", &trace, "trace", "curve", &trace]);
    assert!(message.contains("this is a file that is read"), "{message}");
}
