//! *Files*: traces with garbage, inputs that are no files, and names that control terminals.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::attack::FAILS;
use super::context::Chaos;

/// Traces with garbage, huge lines, zero bytes; and folders, pipes, devices.
pub(super) fn traces(chaos: &Chaos) -> Result<()> {
    let good = fs::read(chaos.root.join("crates/kvmem-cli/tests/data/small_trace.jsonl"))?;
    let line = good.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
    let with = |hash_ids: &str| {
        format!(
            "{{\"timestamp\": 1, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": \
             [{hash_ids}]}}\n"
        )
    };
    let mut bad: Vec<(String, Vec<u8>)> = vec![
        ("zeros".into(), vec![0; 100_000]),
        ("zeros-behind".into(), [&good[..], &[0; 10]].concat()),
        ("escapes".into(), b"\x1b[2J\x1b]0;title\x07\n".to_vec()),
        ("half".into(), line[..line.len() / 2].to_vec()),
        ("nested".into(), "[".repeat(200_000).into_bytes()),
        ("no-utf8".into(), b"{\"timestamp\": \xff\xfe}\n".to_vec()),
        ("negative".into(), with("-1").into_bytes()),
        ("overflow".into(), with("99999999999999999999999").into_bytes()),
        ("text".into(), with("\"1\"").into_bytes()),
        ("float".into(), with("1.5").into_bytes()),
        (
            "backwards".into(),
            b"{\"timestamp\": 9e999, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": \
              []}\n"
                .to_vec(),
        ),
    ];
    // One line of 32 MiB.
    bad.push((
        "long-line".into(),
        [b"{\"timestamp\": \"", &vec![b'x'; 32 << 20][..], b"\"}\n"].concat(),
    ));
    for n in 0..if chaos.quick { 4 } else { 16 } {
        let len = chaos.random(10_000) as usize + 1;
        bad.push((format!("random-{n}"), (0..len).map(|_| chaos.random(256) as u8).collect()));
        // A valid trace with a few changed bytes may still be valid.
        let mut changed = good.clone();
        for _ in 0..=chaos.random(4) {
            let at = chaos.random(changed.len() as u64) as usize;
            changed[at] = chaos.random(256) as u8;
        }
        let changed = chaos.file("changed.jsonl", changed)?;
        chaos.kvmem([Path::new("replay"), &changed]).run()?;
        chaos.kvmem([Path::new("trace"), Path::new("info"), &changed]).run()?;
    }
    for (name, bytes) in bad {
        let file = chaos.file(&name, bytes)?;
        let replay = chaos.kvmem([Path::new("replay"), &file]).ends(FAILS).says([&*name]);
        replay.run()?;
        let info = [Path::new("trace"), Path::new("info"), &file];
        chaos.kvmem(info).ends(FAILS).says([&*name]).run()?;
        for format in ["azure", "kv-cache-tester", "mooncake"] {
            let format = format!("--format={format}");
            chaos.kvmem([Path::new("replay"), &file, Path::new(&format)]).ends(FAILS).run()?;
        }
        let input = format!("<{}", file.display());
        chaos.kvmem(["replay", "-"]).redirect(&input).ends(FAILS).run()?;
        fs::remove_file(&file)?;
    }
    // Large numbers in valid syntax: accepted or an error, not allocated blindly.
    for (name, text) in [
        ("large-ids", with("18446744073709551615, 18446744073709551614")),
        ("large-input", with("1").replace("512", "18446744073709551615")),
        (
            "large-output",
            with("1").replace("\"output_length\": 1", "\"output_length\": 18446744073709551615"),
        ),
        ("empty", String::new()),
        ("blank", "\n\n \n".to_owned()),
    ] {
        let file = chaos.file(name, text)?;
        chaos.kvmem([Path::new("replay"), &file]).under("ulimit -v 4000000").run()?;
        let curve = [Path::new("trace"), Path::new("curve"), &file];
        chaos.kvmem(curve).under("ulimit -v 4000000").run()?;
    }
    no_files(chaos)
}

/// Inputs that are no files.
fn no_files(chaos: &Chaos) -> Result<()> {
    let folder = chaos.folder.join("folder");
    fs::create_dir(&folder)?;
    std::os::unix::fs::symlink("loop", chaos.folder.join("loop"))?;
    let fifo = chaos.folder.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().context("mkfifo")?;
    for path in ["folder", "loop", "no-such-file", "/dev/null/x", "/proc/self/mem", "", "/dev/shm"]
    {
        for arguments in [&["replay", path][..], &["trace", "info", path]] {
            chaos.kvmem(arguments).ends(FAILS).run()?;
        }
    }
    // Without an end and without a line: the memory must stay bounded.
    for path in ["/dev/zero", "/dev/urandom"] {
        chaos.kvmem(["replay", path]).under("ulimit -v 4000000").ends(FAILS).run()?;
        for format in ["azure", "kv-cache-tester", "mooncake"] {
            let curve = ["trace", "curve", path, "--format", format];
            chaos.kvmem(curve).under("ulimit -v 4000000").ends(FAILS).run()?;
        }
    }
    if made.success() {
        // A pipe whose writer closes it in the middle of a line.
        let write = "head -c 50 \"$0\" > fifo & exec \"$@\"";
        let trace = chaos.trace("trace.jsonl")?;
        let by = ["sh", "-c", write, trace.to_str().unwrap_or_default()];
        chaos.kvmem(["replay", "fifo"]).by(&by).ends(FAILS).run()?;
        let write = "cat \"$0\" > fifo & exec \"$@\"";
        let by = ["sh", "-c", write, trace.to_str().unwrap_or_default()];
        chaos.kvmem(["replay", "fifo"]).by(&by).ends(&[0]).run()?;
    }
    Ok(())
}

/// Names with control characters, names that are no UTF-8, and names that look like options.
pub(super) fn names(chaos: &Chaos) -> Result<()> {
    let names: [&[u8]; 6] = [
        b"\x1b[31mred\x1b[0m",
        b"\x1b]0;title\x07",
        b"two\nlines\rone",
        b"no\xff\xfeutf8",
        b"\xc2\x9b31m",
        b"\xe2\x80\xaetxt.exe",
    ];
    for name in names {
        let name = std::ffi::OsStr::from_bytes(name);
        let word = std::ffi::OsStr::new;
        for arguments in [
            // Missing.
            vec![word("replay"), name],
            vec![word("replay"), name, word("--json"), name],
            // Invalid.
            vec![name],
            vec![word("mount"), name],
            vec![word("mount"), word("--size"), name],
            vec![word("mount"), word("--size=1MiB"), word("--devices"), name],
            vec![word("replay"), word("trace"), word("--model"), name],
        ] {
            chaos.kvmem(arguments).ends(FAILS).run()?;
        }
        // Present, with garbage in it.
        chaos.file(name, "garbage\n")?;
        chaos.kvmem([word("replay"), name]).ends(FAILS).run()?;
        // Written, and named in the output.
        let trace = chaos.trace("trace.jsonl")?;
        chaos.kvmem([word("replay"), trace.as_os_str(), word("--json"), name]).run()?;
    }
    Ok(())
}
