//! *Tiers*: the files of disk tiers that are damaged, cut off, unreadable or no files, and
//! `kvmem tier` without space, output or time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::attack::FAILS;
use super::context::Chaos;

/// Length of the small tiers.
const BYTES: &str = "32MiB";

/// A replay that stores what a small pool evicts in a tier.
fn replay(file: &str) -> [&str; 12] {
    [
        "replay",
        "trace.jsonl",
        "--backed",
        "--pool=1MiB",
        "--object-bytes",
        "4KiB",
        "--page-tokens",
        "512",
        "--tier-size",
        BYTES,
        "--tier",
        file,
    ]
}

/// Makes a file with a tier.
fn tier(chaos: &Chaos, name: &str) -> Result<PathBuf> {
    chaos.lab(replay(name)).within(180).ends(&[0]).run()?;
    Ok(chaos.folder.join(name))
}

/// Everything about the files and the surroundings of `kvmem tier`.
pub(super) fn tiers(chaos: &Chaos) -> Result<()> {
    chaos.trace("trace.jsonl")?;
    options(chaos)?;
    let good = tier(chaos, "good.tier")?;
    for command in ["inspect", "verify"] {
        chaos.kvmem(["tier", command, "good.tier"]).ends(&[0]).run()?;
        // Little memory, whatever the file holds.
        let small = "ulimit -v 1000000";
        chaos.kvmem(["tier", command, "good.tier"]).under(small).ends(&[0]).run()?;
    }
    outputs(chaos)?;
    damaged(chaos, &fs::read(&good)?)?;
    no_files(chaos, &good)?;
    space(chaos)?;
    ends(chaos)
}

/// Values that make no sense.
fn options(chaos: &Chaos) -> Result<()> {
    for size in ["0", "1", "4095", "9223372036854775808", "9EiB", "-1", "much", "", "1e9"] {
        let size_of = ["--tier-size", size, "--tier", "new.tier"];
        let words = replay("new.tier");
        chaos.lab(words[..8].iter().chain(&size_of)).run()?;
        remove(chaos, "new.tier")?;
        let doctor = ["doctor", "--size", "4096", "--tier", "new.tier", "--tier-size", size];
        chaos.kvmem(doctor).run()?;
    }
    for arguments in [&["tier", "inspect"][..], &["tier", "no-such-command"]] {
        chaos.kvmem(arguments).ends(FAILS).run()?;
    }
    Ok(())
}

fn remove(chaos: &Chaos, name: &str) -> Result<()> {
    let path = chaos.folder.join(name);
    if path.exists() {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Standard streams that are closed, full or left.
fn outputs(chaos: &Chaos) -> Result<()> {
    for arguments in [
        &["tier", "inspect", "good.tier"][..],
        &["tier", "inspect", "good.tier", "--json", "-"],
        &["tier", "verify", "good.tier"],
        &["doctor", "--size", "4096", "--no-pin", "--tier", "good.tier", "--tier-size", "4096"],
    ] {
        chaos.kvmem(arguments).redirect(">/dev/full").ends(FAILS).run()?;
        for redirect in [">&-", "2>&-", ">&- 2>&-", "<&-"] {
            chaos.kvmem(arguments).redirect(redirect).run()?;
        }
        chaos.kvmem(arguments).redirect("2>/dev/full").ends(&[0]).run()?;
    }
    // The input is not destroyed by an output of its name.
    let before = fs::read(chaos.folder.join("good.tier"))?;
    chaos.kvmem(["tier", "inspect", "good.tier", "--json", "good.tier"]).run()?;
    if fs::read(chaos.folder.join("good.tier"))? != before {
        chaos.complain("kvmem tier inspect --json has destroyed its input");
        fs::write(chaos.folder.join("good.tier"), before)?;
    }
    Ok(())
}

/// Files with garbage: wrong bytes in any part of a tier, and lengths that are cut off.
fn damaged(chaos: &Chaos, good: &[u8]) -> Result<()> {
    let mut cases: Vec<(String, Vec<u8>)> = vec![
        ("empty".into(), Vec::new()),
        ("zeros".into(), vec![0; 1 << 20]),
        ("ones".into(), vec![255; 1 << 20]),
        ("text".into(), b"KvmemDsk".repeat(1000)),
        ("superblocks".into(), good[..8192].to_vec()),
    ];
    for n in 0..if chaos.quick { 6 } else { 40 } {
        let mut bytes = good.to_vec();
        // Most of it in the metadata, at the begin of the file.
        let part = [8192, 1 << 20, bytes.len() as u64][n % 3];
        for _ in 0..=chaos.random(4) {
            let at = chaos.random(part) as usize;
            let len = (1 << chaos.random(13) as usize).min(bytes.len() - at);
            bytes[at..at + len].fill_with(|| chaos.random(256) as u8);
        }
        cases.push((format!("changed-{n}"), bytes));
        let len = chaos.random(good.len() as u64) as usize;
        cases.push((format!("cut-{n}"), good[..len].to_vec()));
    }
    for (name, bytes) in cases {
        let file = chaos.file(&name, bytes)?;
        for command in ["inspect", "verify"] {
            chaos.kvmem(["tier", command, &name]).under("ulimit -v 1000000").run()?;
        }
        fs::remove_file(&file)?;
    }
    Ok(())
}

/// Paths that are no files, or that this user may not read.
fn no_files(chaos: &Chaos, good: &Path) -> Result<()> {
    fs::create_dir(chaos.folder.join("tier-folder"))?;
    std::os::unix::fs::symlink("tier-loop", chaos.folder.join("tier-loop"))?;
    let fifo = chaos.folder.join("tier-fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().context("mkfifo")?;
    let mut paths = vec![
        "tier-folder",
        "tier-loop",
        "no-such-file",
        "no\u{1b}[2Jsuch\u{7}file",
        "/dev/null",
        "/dev/zero",
        "/dev/null/x",
        "/proc/self/mem",
        "",
    ];
    if made.success() {
        paths.push("tier-fifo");
    }
    for path in paths {
        for command in ["inspect", "verify"] {
            chaos.kvmem(["tier", command, path]).ends(FAILS).run()?;
        }
        let doctor = ["doctor", "--size", "4096", "--no-pin", "--tier", path];
        chaos.kvmem(doctor).run()?;
        if !path.contains("no") {
            chaos.lab(replay(path)).ends(FAILS).run()?;
        }
    }
    fs::set_permissions(good, fs::Permissions::from_mode(0o000))?;
    for arguments in [
        &["tier", "inspect", "good.tier"][..],
        &["tier", "verify", "good.tier"],
        &["doctor", "--size", "4096", "--no-pin", "--tier", "good.tier"],
    ] {
        chaos.kvmem(arguments).by_nobody().ends(FAILS).run()?;
    }
    fs::set_permissions(good, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

/// A file that may not become as long, few descriptors, no address space, no rings.
fn space(chaos: &Chaos) -> Result<()> {
    for blocks in [0, 1, 1000] {
        // More than that is SIGXFSZ for a program that does not ignore it.
        let attack = chaos.lab(replay("new.tier")).under(format!("ulimit -f {blocks}"));
        let attack = attack.ends(FAILS);
        // Its message goes to a file, too: of that, not even the first byte may be written.
        let attack = if blocks == 0 { attack.or_signal(libc::SIGXFSZ) } else { attack };
        attack.run()?;
        remove(chaos, "new.tier")?;
    }
    for limit in ["ulimit -n 4", "ulimit -n 8", "ulimit -v 100000", "ulimit -l 0"] {
        for command in ["inspect", "verify"] {
            chaos.kvmem(["tier", command, "good.tier"]).under(limit).run()?;
        }
        chaos.lab(replay("new.tier")).under(limit).within(180).run()?;
        remove(chaos, "new.tier")?;
    }
    Ok(())
}

/// Runs that end in the middle, by a signal or because another has the file.
fn ends(chaos: &Chaos) -> Result<()> {
    for round in 0..if chaos.quick { 4 } else { 24 } {
        let (signal, number) =
            [("INT", libc::SIGINT), ("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)]
                [chaos.random(3) as usize];
        // One that holds values, or a new one.
        let file = if round % 2 == 0 { "good.tier" } else { "new.tier" };
        let running = chaos.lab(replay(file)).within(180);
        let running = running.ends(&[0, 1, 2]).or_signal(number).start()?;
        thread::sleep(Duration::from_millis(50 + chaos.random(500)));
        if chaos.random(2) == 0 {
            // The file is in use, or the other has just ended.
            chaos.kvmem(["tier", "inspect", file]).run()?;
        }
        running.send(signal)?;
        running.wait()?;
        // A tier, or the error that says why not.
        chaos.kvmem(["tier", "verify", file]).run()?;
        remove(chaos, "new.tier")?;
    }
    Ok(())
}
