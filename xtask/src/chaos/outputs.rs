//! *Outputs*: standard streams that are closed, full or left, and files that are inputs or cannot
//! be written.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

use super::attack::FAILS;
use super::context::Chaos;

/// The shortest of the benchmarks.
const BENCH: [&str; 7] =
    ["bench", "cache", "--quick", "--table=block-pair", "--contender=null", "--reps", "1"];

/// Standard output and standard error that fail.
pub(super) fn streams(chaos: &Chaos) -> Result<()> {
    let trace = chaos.trace("trace.jsonl")?;
    let trace = trace.to_str().unwrap_or_default();
    let work: [&[&str]; 10] = [
        &["--help"],
        &["--version"],
        &["mount", "--help"],
        &["doctor"],
        &["doctor", "--json"],
        &["doctor", "--fix"],
        &["mount", "--size", "1MiB", "--pages", "4k"],
        &["mount", "--size", "1MiB", "--pages", "4k", "--json", "-"],
        &["replay", trace],
        &BENCH,
    ];
    for arguments in work {
        for redirect in [">/dev/full", ">/dev/full 2>/dev/full"] {
            // What could not be written is a failure.
            chaos.kvmem(arguments).redirect(redirect).ends(FAILS).run()?;
        }
        for redirect in [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"] {
            chaos.kvmem(arguments).redirect(redirect).run()?;
        }
        // Notes and progress are no result: without a reader the work is done all the same.
        chaos.kvmem(arguments).redirect("2>/dev/full").ends(&[0]).run()?;
    }
    for arguments in [work[5], work[7]] {
        let arguments = arguments.iter().chain(&["-vv"]);
        chaos.kvmem(arguments.clone()).redirect("2>/dev/full").ends(&[0]).run()?;
        chaos.kvmem(arguments).redirect(">/dev/full 2>/dev/full").ends(FAILS).run()?;
    }
    // An error that no process reads still sets the status.
    for arguments in
        [&["mount", "--size", "1PiB"][..], &["replay", "/no/such/file"], &["no-such-command"]]
    {
        for redirect in ["2>/dev/full", "2>&-", ">/dev/full 2>/dev/full"] {
            chaos.kvmem(arguments).redirect(redirect).ends(FAILS).run()?;
        }
    }
    // A reader that goes away: `kvmem … 2>&1 | true`. The status is that of the command.
    for arguments in work {
        for verbose in [&[][..], &["-v"]] {
            let is_help = arguments
                .iter()
                .any(|word| word.starts_with("--help") || word.starts_with("--version"));
            if is_help && !verbose.is_empty() {
                continue;
            }
            let script =
                "{ \"$@\" 2>&1; echo $? > status; } | true; sleep 0.02; exit $(cat status)";
            let attack =
                chaos.kvmem(arguments.iter().chain(verbose)).by(&["sh", "-c", script, "sh"]);
            // The error goes the same way, so there is none to be read.
            attack.or_signal(libc::SIGPIPE).ends(&[0, 1, 2]).run()?;
        }
    }
    Ok(())
}

/// Options that name a file to be written, with a run that would write it.
fn writers(trace: &str) -> Vec<Vec<String>> {
    let replay = |option: &str| ["replay", trace, option].map(str::to_owned).to_vec();
    let bench = |option: &str| BENCH.iter().copied().chain([option]).map(str::to_owned).collect();
    vec![
        replay("--json"),
        ["mount", "--size=1MiB", "--pages=4k", "--json"].map(str::to_owned).to_vec(),
        bench("--json"),
        ["doctor", "--json"].map(str::to_owned).to_vec(),
    ]
}

/// Files that outputs are written to.
pub(super) fn written(chaos: &Chaos) -> Result<()> {
    let trace = chaos.trace("trace.jsonl")?;
    let text = fs::read(&trace)?;
    let trace = trace.to_str().unwrap_or_default().to_owned();
    let unharmed = |told: &str| -> Result<()> {
        if fs::read(&trace)? != text {
            chaos.complain(format!("{told}: has destroyed its input"));
            fs::write(&trace, &text)?;
        }
        Ok(())
    };
    // The input by its own name, and by others.
    let linked = chaos.folder.join("linked.jsonl");
    symlink(&trace, &linked)?;
    let hard = chaos.folder.join("hard.jsonl");
    fs::hard_link(&trace, &hard)?;
    let dotted = chaos.folder.join(".").join("trace.jsonl");
    for option in ["--json"] {
        for output in [Path::new(&trace), &dotted, Path::new("trace.jsonl")] {
            let replay = chaos.kvmem(["replay", &trace, option, &output.to_string_lossy()]);
            unharmed(&replay.ends(FAILS).says(["trace.jsonl"]).run()?.told)?;
        }
        // A link may be replaced by the output, or be an error.
        for output in [&linked, &hard] {
            let replay = chaos.kvmem(["replay", &trace, option, &output.to_string_lossy()]);
            unharmed(&replay.run()?.told)?;
        }
    }
    // It may have been replaced.
    let _ = fs::remove_file(&linked);
    fs::remove_file(&hard)?;
    // What is there stays when a run fails.
    let bad = chaos.file("bad.jsonl", "{\"timestamp\": 1}\n")?;
    let bad = bad.to_str().unwrap_or_default().to_owned();
    for option in ["--json"] {
        let good = chaos.file("good", "earlier output")?;
        let outcome = chaos.kvmem(["replay", &bad, option, "good"]).ends(FAILS).run()?;
        if fs::read(&good)? != b"earlier output" {
            chaos.complain(format!("{}: has destroyed an earlier output", outcome.told));
        }
        fs::remove_file(&good)?;
        chaos.kvmem(["replay", &bad, option, "good"]).ends(FAILS).run()?;
        if good.exists() {
            chaos.complain(format!("{}: has left an output without a result", outcome.told));
        }
    }
    // What cannot be written.
    fs::create_dir(chaos.folder.join("folder"))?;
    symlink("nowhere/at/all", chaos.folder.join("dangling"))?;
    symlink("loop", chaos.folder.join("loop"))?;
    for writer in writers(&trace) {
        for output in [
            "folder",
            "no/such/folder/file",
            "dangling",
            "loop",
            "/dev/full",
            "/proc/version",
            "",
            "x\x1b[2Jy/z",
        ] {
            let outcome = chaos.kvmem(writer.iter().map(String::as_str).chain([output])).run()?;
            if outcome.status.success() {
                chaos.complain(format!("{}: ends well without having written", outcome.told));
            }
        }
        // A device that takes everything is no file to be renamed over.
        chaos.kvmem(writer.iter().map(String::as_str).chain(["/dev/null"])).ends(&[0]).run()?;
    }
    unharmed("an output in another folder")?;
    Ok(())
}
