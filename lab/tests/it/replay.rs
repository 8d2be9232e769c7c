//! `kvmem-lab replay`, run as a command on a small trace: figures, exit statuses and messages.
//!
//! The expected figures of `data/small_trace.jsonl` (160 requests of made-up conversations on three
//! system prompts) come from a separate simulation of the cache's rules over a plain list.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempPath;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn small_trace() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/kvmem-cli/tests/data/small_trace.jsonl");
    path.to_str().unwrap().to_owned()
}

/// A file of its own for each test, removed at the end.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let mut builder = tempfile::Builder::new();
        let file = builder.suffix(name).tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(&file, text).unwrap();
        Scratch(file.into_temp_path())
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
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

/// Runs the command, which must fail, and returns the message.
fn fails(args: &[&str]) -> String {
    let output = kvmem(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is reported of what failed");
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

#[test]
fn the_small_trace_has_the_expected_figures() {
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
            let report = report(
                &[&["--contender", contender, "--pool", &pool], one_object.as_slice()].concat(),
            );
            let label = format!("{contender}, {fit} blocks: {report:#}");
            assert_eq!(report["suite"], "replay", "{label}");
            assert_eq!(report["contender"], contender, "{label}");
            assert_eq!(
                (&report["requests"], &report["blocks"]),
                (&160.into(), &1295.into()),
                "{label}"
            );
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
                let calls =
                    report["allocations"].as_u64().zip(report["failed_allocations"].as_u64());
                calls.map(|(found, failed)| found + failed)
            });
            assert_eq!(report["backed"], Value::Null, "{label}");
        }
    }
}

#[test]
fn two_sizes_in_a_backed_pool_stay_intact() {
    for contender in ["kvmem", "binned", "binned-unrounded", "best-fit", "offset-allocator"] {
        let report = report(&[
            "--contender",
            contender,
            "--object-bytes",
            "3333,517",
            "--pool",
            "1.5MiB",
            "--backed",
        ]);
        let block_bytes = 8 * (3333 + 517);
        assert_eq!(report["block_bytes"], block_bytes);
        assert!(report["evictions"].as_u64() > Some(0), "the pool must fill: {report:#}");
        let hits = report["hits"].as_u64().unwrap();
        assert!(hits > 0, "{report:#}");
        assert_eq!(report["backed"]["verified_on_hits_bytes"], hits * block_bytes);
        assert_eq!(report["backed"]["verified_at_end_bytes"], report["held_bytes"]);
        let held = report["blocks_held"].as_u64().unwrap();
        // At most one block is held in part: the block that is being evicted.
        let part = report["held_bytes"].as_u64().unwrap() - held * block_bytes;
        assert!(part < block_bytes, "{contender}: {part} bytes beside {held} blocks");
        // Inserted and hit bytes are the moved bytes.
        let written = report["backed"]["written_bytes"].as_u64().unwrap();
        assert!(written >= (1295 - hits) * block_bytes / 2, "{contender}: {written}");
        let of_plain = report["backed"]["of_plain"].as_f64().unwrap();
        assert!(of_plain > 0.0 && of_plain.is_finite(), "{contender}: {of_plain}");
    }
}

#[test]
fn a_tier_gives_back_what_memory_has_evicted_also_to_the_next_replay() {
    let file = Scratch::new("replay-tier", "");
    let pool = (128 * 8192).to_string();
    let backed = ["--backed", "--pool", &pool, "--object-bytes", "5000,3000"];
    let with_tier = ["--page-tokens", "512", "--tier", file.path(), "--tier-size", "16MiB"];
    let first = report(&[backed.as_slice(), &with_tier].concat());
    // As many hits as in a pool that holds everything, of which few are in memory.
    assert_eq!(first["hits"], 731, "{first:#}");
    let tier = &first["tier"];
    let of_tier = first["tier_hits"].as_u64().unwrap();
    assert!((50..400).contains(&of_tier), "{first:#}");
    assert_eq!((&tier["objects_before"], &tier["damaged_objects"]), (&0.into(), &0.into()));
    assert!(tier["fetched_objects"].as_u64() >= Some(of_tier), "{first:#}");
    assert!(tier["first_block_ns"]["p50"].as_u64() > Some(0), "{first:#}");

    // The file is found again, and serves what the first replay had to compute.
    let trace = small_trace();
    let output = kvmem(&[&["replay", &trace], backed.as_slice(), &with_tier].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("tier ") && text.contains("first block"), "{text}");
    let second = report(&[backed.as_slice(), &with_tier].concat());
    assert!(second["tier"]["objects_before"].as_u64() > Some(900), "{second:#}");
    assert!(second["hits"].as_u64() > Some(1200), "{second:#}");
}

#[test]
fn a_tier_needs_a_cache_with_memory_and_a_file_that_is_one() {
    let (trace, file) = (small_trace(), Scratch::new("no-tier", "no tier"));
    let sizes = ["--pool", "1MiB", "--object-bytes", "4KiB", "--page-tokens", "512"];
    let replay = [["replay", &trace, "--tier", file.path()].as_slice(), &sizes].concat();
    let other = [replay.as_slice(), &["--backed", "--contender", "binned"]].concat();
    assert!(fails(&other).contains("--tier needs a cache"));
    assert!(fails(&replay).contains("--backed"));
    let foreign = [replay.as_slice(), &["--backed"]].concat();
    let error = fails(&foreign);
    assert!(error.contains("no-tier") && error.contains("not a tier"), "{error}");
    assert_eq!(std::fs::read_to_string(file.path()).unwrap().get(..7), Some("no tier"));
}

#[test]
fn threads_share_the_pool_and_lose_nothing() {
    for contender in ["kvmem", "kvmem-cached"] {
        for policy in ["lru", "scan-resistant"] {
            let pool = ["--contender", contender, "--object-bytes", "3333,517", "--pool", "768KiB"];
            let report = report(
                &[
                    &pool[..],
                    &["--page-tokens", "128", "--backed", "--threads", "3", "--policy", policy],
                ]
                .concat(),
            );
            let label = format!("{contender}, {policy}: {report:#}");
            assert_eq!(
                (&report["requests"], &report["blocks"]),
                (&160.into(), &1295.into()),
                "{label}"
            );
            assert_eq!(report["policy"], policy, "{label}");
            let threads = report["threads"].as_array().unwrap();
            assert_eq!(threads.len(), 3, "{label}");
            for (part, whole) in [("requests", 160), ("blocks", 1295)] {
                let sum: u64 = threads.iter().map(|thread| thread[part].as_u64().unwrap()).sum();
                assert_eq!(sum, whole, "{label}");
            }
            assert!(report["blocks_per_s"].as_f64() > Some(0.0), "{label}");
            assert!(
                report["hits"].as_u64() > Some(0) && report["evictions"].as_u64() > Some(0),
                "{label}"
            );
            assert_eq!(report["backed"]["verified_at_end_bytes"], report["held_bytes"], "{label}");
            let calls = report["allocations"].as_u64().unwrap() - report["frees"].as_u64().unwrap();
            assert!(calls > 0, "{label}");
        }
    }
}

#[test]
fn policies_differ_if_many_blocks_are_used_once() {
    // 16 blocks are used repeatedly, twice each time, among many blocks that are used once.
    let mut trace = String::new();
    for round in 0..400 {
        let cold = (0..8).map(|number| 1000 + 8 * round + number);
        for id in [round % 16; 2].into_iter().chain(cold) {
            trace += &format!(
                "{{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": \
                 [{id}]}}\n"
            );
        }
    }
    let trace = Scratch::new("scan.jsonl", &trace);
    let hits = |policy| {
        let args = [
            "replay",
            trace.path(),
            "--object-bytes",
            "4KiB",
            "--page-tokens",
            "512",
            "--pool",
            "256KiB",
        ];
        let output = kvmem(&[&args[..], &["--policy", policy, "--json", "-"]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["hits"].as_u64().unwrap()
    };
    let (lru, scan_resistant) = (hits("lru"), hits("scan-resistant"));
    assert_eq!(lru, 400, "144 blocks come before one comes again, and there is room for 64");
    assert!(scan_resistant > 600, "{scan_resistant} of 784");
}

/// Replays the small trace and writes its calls to a file.
fn recorded(name: &str, args: &[&str]) -> (Scratch, Value) {
    let file = Scratch::new(name, "old content");
    let report = report(&[args, &["--record", file.path()]].concat());
    let calls =
        ["allocations", "failed_allocations", "frees"].map(|calls| report[calls].as_u64().unwrap());
    assert_eq!(report["recorded"]["calls"], calls.iter().sum::<u64>(), "{report:#}");
    (file, report)
}

fn ops(file: &Scratch, args: &[&str]) -> Value {
    let output = kvmem(&[&["replay", "--ops", file.path(), "--json", "-"], args].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_recording_is_replayed_with_the_same_decisions() {
    let two_sizes = ["--object-bytes", "3333,517", "--pool", "768KiB", "--page-tokens", "128"];
    for contender in ["kvmem", "kvmem-cached", "binned", "best-fit", "offset-allocator"] {
        for policy in ["lru", "scan-resistant"] {
            let name = format!("{contender}-{policy}.ops");
            let args = [&two_sizes[..], &["--contender", contender, "--policy", policy]].concat();
            let (file, replay) = recorded(&name, &args);
            let report = ops(&file, &["--contender", contender, "--verify"]);
            let label = format!("{contender}, {policy}: {report:#}");
            assert_eq!(report["suite"], "ops", "{label}");
            assert_eq!(
                (&report["recorded_on"], &report["threads"]),
                (&contender.into(), &1.into()),
                "{label}"
            );
            assert_eq!(report["capacity_bytes"], replay["pool_bytes"], "{label}");
            assert_eq!(report["allocations"], replay["allocations"], "{label}");
            assert_eq!(report["failures"], replay["failed_allocations"], "{label}");
            assert_eq!(report["frees"], replay["frees"], "{label}");
            assert!(report["failures"].as_u64() > Some(0), "the pool must fill: {label}");
            let row = &report["rows"][0];
            assert_eq!(row["same_decisions"], true, "{label}");
            assert_eq!(row["same_place"], replay["allocations"], "{label}");
            assert_eq!((&row["failures"], &row["found_room"]), (&0.into(), &0.into()), "{label}");
            assert_eq!(row["utilization_end"], replay["utilization_end"], "{label}");
        }
    }
}

#[test]
fn recorded_calls_run_on_all_contenders() {
    let (file, replay) = recorded("all.ops", &["--object-bytes", "3333,517", "--pool", "1.5MiB"]);
    let report = ops(&file, &["--contender", "all"]);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["contender"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "kvmem",
            "kvmem-cached",
            "binned",
            "binned-unrounded",
            "offset-allocator",
            "best-fit",
            "null"
        ]
    );
    for row in rows {
        let requested = row["served"].as_u64().unwrap() + row["failures"].as_u64().unwrap();
        assert_eq!(Value::from(requested), replay["allocations"], "{row:#}");
        assert!(row["ns_per_call"].as_f64() > Some(0.0), "{row:#}");
        let utilization = row["utilization_full_mean"].as_f64().unwrap();
        assert!(utilization > 0.5 && utilization <= 1.0, "{row:#}");
    }
    let row = |name| &rows[names.iter().position(|other| *other == name).unwrap()];
    assert_eq!(row("kvmem")["same_decisions"], true);
    // An allocator that rounds sizes up cannot hold blocks that fitted exactly.
    assert!(row("binned")["failures"].as_u64() > Some(0), "{:#}", row("binned"));

    // Verifying another allocator fails, because its decisions differ.
    let output = kvmem(&["replay", "--ops", file.path(), "--contender", "binned", "--verify"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("binned does not decide as kvmem did"), "{message}");
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["allocator", "utilization", "ns/call", "failed", "binned"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }

    // If the space is too large for one contender, the others still run.
    let (file, _) = recorded("large.ops", &["--pool", "1TiB", "--requests", "20"]);
    let report = ops(&file, &["--contender", "all"]);
    assert_eq!(report["rows"].as_array().unwrap().len(), 6);
    assert!(report["not_run"][0].as_str().unwrap().contains("offset-allocator cannot manage"));
    assert_eq!(report["rows"][0]["utilization_full_mean"], Value::Null, "never full");
    let message = fails(&["replay", "--ops", file.path(), "--contender", "offset-allocator"]);
    assert!(message.contains("offset-allocator cannot manage 1099511627776 bytes"), "{message}");
}

#[test]
fn recorded_calls_of_threads_have_a_possible_order() {
    use kvmem_lab::ops::format::{Call, Recording};

    for round in 0..4 {
        let args = [
            "--object-bytes",
            "3333,517",
            "--pool",
            "768KiB",
            "--page-tokens",
            "128",
            "--threads",
            "4",
            "--contender",
            "kvmem-cached",
        ];
        let (file, _) = recorded(&format!("threads-{round}.ops"), &args);
        let recording = Recording::read(Path::new(file.path())).unwrap();
        assert_eq!(recording.header.threads, 4);
        let mut live = std::collections::BTreeMap::new();
        let mut places = vec![0; recording.places as usize];
        let mut offsets = recording.offsets.iter();
        for call in &recording.calls {
            match *call {
                Call::Served { size, place } => {
                    let start = *offsets.next().unwrap();
                    let before: Option<(&u64, &u64)> = live.range(..start + size).next_back();
                    assert!(before.is_none_or(|(_, end)| *end <= start), "{start} is taken");
                    live.insert(start, start + size);
                    places[place as usize] = start;
                }
                Call::Freed { place } => assert!(live.remove(&places[place as usize]).is_some()),
                Call::Failed { .. } => {}
            }
        }
        // Every allocator can serve the calls.
        assert_eq!(ops(&file, &["--contender", "best-fit"])["threads"], 4);
    }
}

#[test]
fn files_without_a_recording_fail() {
    let (good, _) = recorded("good.ops", &["--pool", "1TiB", "--requests", "20"]);
    let bytes = std::fs::read(good.path()).unwrap();
    let message = |bytes: &[u8]| {
        let file = Scratch::new("bad.ops", "");
        std::fs::write(file.path(), bytes).unwrap();
        let message = fails(&["replay", "--ops", file.path()]);
        assert!(message.contains(file.path()), "{message}");
        message
    };
    let cut = message(&bytes[..bytes.len() / 2]);
    assert!(
        cut.contains(&format!("ends at byte {}", bytes.len() / 2))
            && cut.contains("record it again"),
        "{cut}"
    );
    let mut newer = bytes.clone();
    newer[8] = 9;
    let newer = message(&newer);
    assert!(newer.contains("version 9") && newer.contains("reads version 1 only"), "{newer}");
    let garbage = message(b"{\"timestamp\": 0}");
    assert!(
        garbage.contains("begins with \"{\\\"timest") && garbage.contains("--record FILE"),
        "{garbage}"
    );
    let mut flipped = bytes.clone();
    let last = flipped.len() - 5;
    flipped[last] ^= 1;
    let flipped = message(&flipped);
    assert!(flipped.contains("calls are announced"), "{flipped}");
    assert!(message(b"").contains("not a recording"));
    let nowhere = fails(&["replay", "--ops", "no/such/calls.ops"]);
    assert!(nowhere.contains("cannot read no/such/calls.ops"), "{nowhere}");
}

#[test]
fn an_option_limits_the_number_of_requests() {
    let report = report(&["--requests", "10", "--pool", "64GiB"]);
    assert_eq!((&report["requests"], &report["model"]), (&10.into(), &"glm-5.1-dsa".into()));
    assert_eq!(
        (&report["block_bytes"], &report["block_objects"]),
        (&31_465_472.into(), &16.into())
    );
}

#[test]
fn text_has_every_figure_and_json_goes_to_a_file() {
    let json = Scratch::new("report.json", "old content");
    let trace = small_trace();
    let output = kvmem(&["replay", &trace, "--pool", "2GiB", "--json", json.path()]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in [
        "hit rate",
        "blocks held",
        "evicted",
        "utilization",
        "p50",
        "p99",
        "p99.9",
        "calls/s",
        "glm-5.1-dsa",
    ] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(json.path()).unwrap()).unwrap();
    assert_eq!(report["requests"], 160);
}

#[test]
fn a_trace_can_come_through_a_pipe() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"));
    command.args(["replay", "-", "--json", "-", "--pool", "64GiB"]);
    let trace = std::fs::File::open(small_trace()).unwrap();
    let output = command.stdin(Stdio::from(trace)).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["trace"]), (&160.into(), &"-".into()));
}

#[test]
fn a_malformed_line_is_reported_by_number() {
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}"#;
    for bad in [
        r#"{"timestamp": 0, "input_length": 600"#,
        "hello",
        r#"{"timestamp": 0}"#,
        "{\"hash_ids\": [-1]}",
    ] {
        let trace = Scratch::new("bad.jsonl", &format!("{good}\n{good}\n{bad}\n{good}\n"));
        let message = fails(&["replay", trace.path()]);
        assert!(
            message.starts_with(&format!("kvmem-lab: {}:3: malformed line: ", trace.path())),
            "{message}"
        );
    }
}

#[test]
fn unreadable_and_empty_traces_fail() {
    let message = fails(&["replay", "no/such/trace.jsonl"]);
    assert!(message.contains("cannot read no/such/trace.jsonl"), "{message}");
    let message = fails(&["replay", env!("CARGO_MANIFEST_DIR")]);
    assert!(message.contains("a folder is read as sessions"), "{message}");
    let empty = Scratch::new("empty.jsonl", "\n\n");
    let message = fails(&["replay", empty.path()]);
    assert!(message.contains("the trace is empty"), "{message}");
}

#[test]
fn an_impossible_pool_fails() {
    let trace = small_trace();
    let message = fails(&["replay", &trace, "--pool", "3274751"]);
    assert!(
        message.contains("3274751 bytes is smaller than one block: 16 objects, 31465472 bytes"),
        "{message}"
    );
    let message = fails(&["replay", &trace, "--pool", "1PiB", "--backed"]);
    assert!(message.contains("--backed fills the whole pool: 1125899906842624 bytes"), "{message}");
    let message = fails(&["replay", &trace, "--contender", "offset-allocator"]);
    assert!(message.contains("offset-allocator cannot manage 1099511627776 bytes"), "{message}");
    for option in [&["--backed"][..], &["--record", "no/such/calls.ops"]] {
        let args = ["replay", &trace, "--contender", "null", "--pool", "1GiB"];
        let message = fails(&[&args[..], option].concat());
        assert!(message.contains("null returns no offsets: --"), "{message}");
    }
    let message = fails(&["replay", &trace, "--contender", "best-fit", "--threads", "2"]);
    assert!(
        message.contains("--threads 2") && message.contains("choose --contender kvmem"),
        "{message}"
    );
    let message = fails(&["replay", &trace, "--pool", "4EiB"]);
    assert!(message.contains("cannot make a pool of 4611686018427387904 bytes"), "{message}");
}

#[test]
fn contradictory_options_fail() {
    let trace = small_trace();
    for (options, expected) in [
        (["--pool", "12 parsecs"], "--pool"),
        (["--pool", "99999999TiB"], "--pool"),
        (["--model", "gpt-9"], "llama-3.1-8b"),
        (["--contender", "malloc"], "best-fit"),
        (["--page-tokens", "100"], "a page of 100 tokens does not divide a block of 512 tokens"),
        (["--object-bytes", "0"], "it comes to 0 bytes"),
        (["--object-bytes", "16EiB"], "--object-bytes"),
        (["--requests", "0"], "--requests"),
        (["--json", "no/such/folder/report.json"], "cannot write no/such/folder/report.json"),
        (["--record", "no/such/folder/calls.ops"], "cannot write no/such/folder/calls.ops"),
        (["--policy", "random"], "scan-resistant"),
        (["--threads", "0"], "--threads"),
        (["--threads", "257"], "--threads"),
        (["--contender", "all"], "--contender all needs --ops FILE"),
        (["--ops", "calls.ops"], "cannot be used with"),
    ] {
        let message = fails(&["replay", &trace, options[0], options[1]]);
        assert!(message.contains(expected), "{options:?}: {message}");
    }
    let message = fails(&["replay", &trace, "--model", "mistral-7b", "--object-bytes", "4096"]);
    assert!(message.contains("cannot be used with"), "{message}");
    fails(&["replay"]);
    for option in [&["--pool", "1GiB"][..], &["--backed"], &["--threads", "2"], &["--record", "x"]]
    {
        let message = fails(&[&["replay", "--ops", "calls.ops"], option].concat());
        assert!(message.contains("cannot be used with"), "{option:?}: {message}");
    }
    assert!(fails(&["replay", &trace, "--verify"]).contains("--ops"));
}

/// Replays the published conversation trace, if the file lies beside the checkout.
#[test]
fn the_published_trace_has_the_expected_figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trace = root.join("../shared/traces/conversation_trace.jsonl");
    if !trace.is_file() {
        return;
    }
    // Pages of a whole block: the same bytes in fewer objects, because a debug build is slow.
    let pages = ["--page-tokens", "512", "--pool", "1TiB"];
    let output = kvmem(&[&["replay", trace.to_str().unwrap(), "--json", "-"], &pages[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["requests"], &report["blocks"]), (&12_031.into(), &288_500.into()));
    // The trace has 182,790 different blocks. Without evictions all other look-ups are hits.
    assert!(report["hits"].as_u64().unwrap() <= 288_500 - 182_790);
    // 34,943 blocks would fill the pool to the last byte.
    let held = report["blocks_held"].as_u64().unwrap();
    assert!((34_000..=34_943).contains(&held), "{held}");
    assert_eq!(report["hits_behind_gap"], 0);
}
