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

/// A short measurement in a file.
fn bench(file: &str) -> [&str; 8] {
    ["tier", file, "--size", BYTES, "--value-bytes", "64KiB", "--seconds", "1"]
}

/// Makes a file with a tier: a benchmark in a file that exists already leaves its own there.
fn tier(chaos: &Chaos, name: &str) -> Result<PathBuf> {
    let path = chaos.file(name, vec![0; 32 << 20])?;
    let made = chaos.lab(bench(name).into_iter().chain(["--format"])).within(180).ends(&[0]);
    made.run()?;
    Ok(path)
}

/// Everything about the files and the surroundings of `kvmem tier`.
pub(super) fn tiers(chaos: &Chaos) -> Result<()> {
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
        let bench = ["tier", "new.tier", "--seconds", "1"];
        chaos.lab(bench.iter().chain(&["--size", size])).ends(FAILS).run()?;
        // Short values are possible.
        chaos.lab(bench.iter().chain(&["--size", BYTES, "--value-bytes", size])).run()?;
        gone(chaos, "new.tier")?;
        let doctor = ["doctor", "--size", "4096", "--tier", "new.tier", "--tier-size", size];
        chaos.kvmem(doctor).run()?;
    }
    for (option, value) in [
        ("--depth", "0"),
        ("--depth", "4294967296"),
        ("--seconds", "0"),
        ("--seconds", "-1"),
        ("--json", "/no/such/folder/tier.json"),
        ("--html", "/no/such/folder/tier.html"),
    ] {
        chaos.lab(["tier", "new.tier", option, value]).ends(FAILS).run()?;
        gone(chaos, "new.tier")?;
    }
    for arguments in [&["tier", "inspect"][..], &["tier", "no-such-command"]] {
        chaos.kvmem(arguments).ends(FAILS).run()?;
    }
    Ok(())
}

/// Complains of a file that a run left behind.
fn gone(chaos: &Chaos, name: &str) -> Result<()> {
    let path = chaos.folder.join(name);
    if path.exists() {
        chaos.complain(format!("kvmem-lab tier has left {name}"));
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
            chaos.lab(bench(path)).ends(FAILS).run()?;
            chaos.lab(bench(path).into_iter().chain(["--format"])).ends(FAILS).run()?;
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
        let attack = chaos.lab(bench("new.tier")).under(format!("ulimit -f {blocks}"));
        let attack = attack.ends(FAILS);
        // Its message goes to a file, too: of that, not even the first byte may be written.
        let attack = if blocks == 0 { attack.or_signal(libc::SIGXFSZ) } else { attack };
        attack.run()?;
        gone(chaos, "new.tier")?;
    }
    chaos.lab(["tier", "new.tier", "--size", "4EiB"]).ends(FAILS).run()?;
    gone(chaos, "new.tier")?;
    for limit in ["ulimit -n 4", "ulimit -n 8", "ulimit -v 100000", "ulimit -l 0"] {
        for command in ["inspect", "verify"] {
            chaos.kvmem(["tier", command, "good.tier"]).under(limit).run()?;
        }
        chaos.lab(bench("new.tier")).under(limit).within(180).run()?;
        gone(chaos, "new.tier")?;
    }
    Ok(())
}

/// Runs that end in the middle, by a signal or because another has the file.
fn ends(chaos: &Chaos) -> Result<()> {
    for round in 0..if chaos.quick { 4 } else { 24 } {
        let (signal, number) =
            [("INT", libc::SIGINT), ("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL)]
                [chaos.random(3) as usize];
        let formats = round % 2 == 0;
        let file = if formats { "good.tier" } else { "new.tier" };
        let format = if formats { &["--format"][..] } else { &[] };
        let running = chaos.lab(bench(file).iter().chain(format)).within(180);
        let running = running.ends(&[0, 1, 2]).or_signal(number).start()?;
        thread::sleep(Duration::from_millis(50 + chaos.random(1500)));
        if formats && chaos.random(2) == 0 {
            // The file is in use, or the other has just ended.
            chaos.kvmem(["tier", "inspect", file]).run()?;
        }
        running.send(signal)?;
        running.wait()?;
        if formats {
            // A tier, or the error that says why not.
            chaos.kvmem(["tier", "verify", file]).run()?;
        } else {
            gone(chaos, file)?;
        }
    }
    Ok(())
}
