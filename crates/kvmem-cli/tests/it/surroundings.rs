//! The command without threads, without a place to write, or with control characters in names. It
//! ends with a message and a status of its own, never with a panic.
#![cfg(target_os = "linux")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::command::copied_to;

fn kvmem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.stdin(Stdio::null());
    command
}

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

/// The writing end of a pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn small_trace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small_trace.jsonl")
}

/// Makes a folder for one test, which other users may read.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

#[test]
fn standard_error_may_be_full_or_closed() {
    let trace = small_trace();
    let trace = trace.to_str().unwrap();
    let mount = ["mount", "--size", "1MiB", "--pages", "4k"];
    // Commands, and their exit statuses.
    let runs: [(&[&str], i32); 6] = [
        (&[&mount[..], &["-v"]].concat(), 0),
        (&[&mount[..], &["-vvv"]].concat(), 0),
        (&["trace", "curve", trace], 0),
        (&["trace", "curve", "no-such-trace"], 2),
        (&["no-such-command"], 2),
        (&["tour", "--no-figures", "--pool", "16MiB", "--seconds", "5"], 0),
    ];
    for (args, status) in runs {
        for stderr in [Stdio::from(full()), closed()] {
            let output = kvmem().args(args).stderr(stderr).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{args:?}: {:?}", output.status);
        }
        // Both outputs go to one pipe, whose reader ends after one line.
        let run = format!(
            "\"$0\" {} 2>&1 | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}",
            args.join(" ")
        );
        let output =
            Command::new("bash").args(["-c", &run, env!("CARGO_BIN_EXE_kvmem")]).output().unwrap();
        let code = String::from_utf8(output.stdout).unwrap();
        assert_eq!(code.trim(), status.to_string(), "{args:?}");
    }
}

#[test]
fn a_failed_write_to_standard_output_is_a_failure() {
    let trace = small_trace();
    let trace = trace.to_str().unwrap();
    let runs: [&[&str]; 8] = [
        &["--help"],
        &["-h"],
        &["help"],
        &["serve", "--help"],
        &["help", "mount"],
        &["--version"],
        &["trace", "info", trace],
        &["mount", "--size", "1MiB", "--json", "-"],
    ];
    for args in runs {
        let output = kvmem().args(args).stdout(full()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
        assert!(message.contains("cannot write to standard output"), "{args:?}: {message}");
        // A closed pipe is no failure: its reader has read enough.
        let output = kvmem().args(args).stdout(closed()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*message), (Some(0), ""), "{args:?}");
    }
}

/// Characters that control a terminal.
const EVIL: &str = "a\x1b[31mb\x07\rc\u{9b}2Jd\u{202e}e";

#[test]
fn control_characters_in_names_are_escaped() {
    let folder = open_folder();
    let copy = |name: &str| {
        let path = folder.path().join(name);
        fs::copy(small_trace(), &path).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let trace = copy(&format!("{EVIL}.jsonl"));
    let malformed =
        folder.path().join(format!("bad{EVIL}")).into_os_string().into_string().unwrap();
    fs::write(&malformed, format!("{{\"{EVIL}\": 1}}\n")).unwrap();
    let none = format!("none{EVIL}");
    let runs: [&[&str]; 13] = [
        &["trace", "info", &trace],
        &["trace", "info", &malformed],
        &["trace", "curve", &none],
        &["trace", "curve", &trace, "--json", &format!("{none}/r.json")],
        &["trace", "curve", &trace, "--model", &none],
        &["trace", "curve", &trace, "--object-bytes", &none],
        &["mount", "--size", "1MiB", "--devices", &none],
        &["mount", "--size", "1MiB", "--devices", &format!("verbs:{none},nixl:{none}")],
        &["mount", "--size", "1MiB", "--numa", &none, "--pages", &none],
        &["tier", "inspect", &none],
        &["tier", "verify", &trace],
        &["tour", "--pool", &none],
        &[&none, &format!("--{none}")],
    ];
    for args in runs {
        let output = kvmem().args(args).output().unwrap();
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert_eq!(text.find(obeyed), None, "{args:?}: {text:?}");
            assert!(!text.contains("panicked"), "{args:?}: {text}");
        }
    }
    let output = kvmem().arg("mount").env("KVMEM_LOG", EVIL).output().unwrap();
    assert!(!output.stderr.contains(&0x1b) && !output.stderr.is_empty());
    // On one line.
    let output = kvmem().args(["trace", "info", "no\nsuch\ntrace"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .starts_with("kvmem: cannot read no\\nsuch\\ntrace:")
    );
}

/// Runs as a user without privileges, with at most `tasks` threads and processes. Returns `None` if
/// the process cannot run commands as another user.
fn with_tasks(folder: &Path, tasks: u32, args: &[&str]) -> Option<Output> {
    // The kernel counts the processes of each user number separately.
    let user = 200_000 + std::process::id() % 100_000;
    let command = copied_to(folder);
    let mut limited = Command::new("bash");
    limited.args([
        "-c",
        &format!("ulimit -u {tasks} || exit 126; exec timeout -s KILL 600 \"$0\" \"$@\""),
    ]);
    // `timeout` counts as one of the processes.
    limited.arg(&command).args(args).current_dir("/").env("TMPDIR", folder).stdin(Stdio::null());
    match limited.uid(user).gid(65534).output() {
        Ok(output) if output.status.code() != Some(126) => Some(output),
        other => {
            println!("skipped: nothing can be run as another user from there: {other:?}");
            None
        }
    }
}

#[test]
fn without_threads_the_command_ends_with_a_message() {
    let folder = open_folder();
    let does: [&[&str]; 3] = [
        &["tour", "--no-figures", "--pool", "16MiB", "--seconds", "1"],
        &["mount", "--size", "64MiB", "--pages", "4k", "--populate", "8"],
        &["mount", "--size", "64MiB", "--pages", "4k", "--devices", "mlock", "--populate", "8"],
    ];
    for tasks in [2, 4] {
        for args in does {
            let Some(output) = with_tasks(folder.path(), tasks, args) else { return };
            let message = String::from_utf8_lossy(&output.stderr);
            let reported = format!("{tasks} tasks, {args:?}: {:?}\n{message}", output.status);
            assert!(matches!(output.status.code(), Some(0..=2)), "{reported}");
            assert!(!message.contains("panicked"), "{reported}");
        }
    }
}
