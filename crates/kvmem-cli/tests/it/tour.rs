//! `kvmem tour` on small pools, and with restricted rights and limits.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::command::copied_to;
use crate::seccomp::forbid_rings;

/// A tour of some seconds.
const SHORT: [&str; 6] = ["tour", "--no-figures", "--seconds", "2", "--pool", "16MiB"];
/// Columns of a line.
const WIDTH: usize = 100;

fn kvmem() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.stdin(Stdio::null());
    command
}

/// Makes an empty folder for one test, which all users may write to.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// Returns the printed text. The command must have succeeded.
#[track_caller]
fn reported(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Checks that `text` has all of `words` in this order, ignoring line breaks.
#[track_caller]
fn says(text: &str, words: &[&str]) {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut from = 0;
    for word in words {
        match one_line[from..].find(word) {
            Some(at) => from += at + word.len(),
            None => panic!("no {word:?} from there on in\n{text}"),
        }
    }
}

#[test]
fn each_step_is_printed() {
    let args = ["tour", "--seconds", "2", "--pool", "16MiB"];
    let text = reported(&kvmem().args(args).output().unwrap());
    says(
        &text,
        &[
            "a tour in 6 steps",
            "1/6 Doctor",
            "checks",
            "2/6 Pool",
            "16 MiB: requested",
            "populated 16 MiB",
            "3/6 KV workload",
            "requests for pages of 1 token(s)",
            "no mismatch",
            "4/6 Disk",
            "evicted",
            "every byte verified",
            "opened again in",
            "192 values",
            "no mismatch",
            "5/6 Figures",
            "one mutex",
            "malloc",
            "plain copy",
            "6/6 Node",
            "by an engine in a node of",
            "the engine in the middle of a write",
            "64 of 64 in all",
            "no call failed, no mismatch",
            "done",
        ],
    );
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{line:?}");
    }
}

#[test]
fn the_command_without_arguments_runs_the_tour() {
    let folder = folder();
    let mut child = kvmem()
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let seen: Vec<String> = lines.map(Result::unwrap).take(4).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen[0].contains("a tour in 6 steps"), "{seen:?}");
    assert!(seen.iter().any(|line| line.starts_with("1/6 Doctor")), "{seen:?}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "a tour that is killed leaves no file");
}

/// Runs a tour as a user without privileges, with a limit of `memlock` KiB of locked memory. Only
/// the folder for temporary files can be written. Returns `None` if this is not possible here.
fn as_nobody(memlock: &str) -> Option<(Output, TempDir)> {
    let folder = folder();
    let command = copied_to(folder.path());
    let limited = format!(r#"ulimit -l {memlock} || exit 126; exec "$0" {}"#, SHORT.join(" "));
    let mut nobody = Command::new("sh");
    nobody
        .args(["-c", &limited])
        .arg(&command)
        .current_dir("/")
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null());
    match nobody.uid(65534).gid(65534).output() {
        Ok(output) if output.status.code() != Some(126) => Some((output, folder)),
        other => {
            println!("skipped: nothing can be run as another user from there: {other:?}");
            None
        }
    }
}

#[test]
fn with_too_little_locked_memory_nothing_is_registered() {
    for (kib, limit, remedy) in [("8192", "8 MiB", "ulimit -l 33792 in the shell"), ("0", "0", "")]
    {
        let Some((output, folder)) = as_nobody(kib) else { return };
        let text = reported(&output);
        // The limit concerns the rings or the memory to pin, unless rings fail for another reason.
        if text.contains("    registrars") {
            let limit = format!("missing locked memory: RLIMIT_MEMLOCK is {limit}");
            says(&text, &[&limit, "2 rings pin 32 MiB", "stays unregistered", "remedy", remedy]);
        } else {
            says(&text, &["missing io_uring:", "remedy"]);
        }
        assert!(!text.contains("    registered"), "{text}");
        // The current folder cannot be written to, so the file of the disk tier is in another.
        let folder = folder.path().to_str().unwrap();
        says(&text, &["3/5 KV workload", "no mismatch", "4/5 Disk", "evicted", folder]);
    }
}

#[test]
fn without_io_uring_the_tour_continues() {
    let mut command = kvmem();
    command.args(SHORT);
    // SAFETY: the function makes two system calls, allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| forbid_rings(libc::EPERM)) };
    let text = match command.output() {
        Ok(output) => reported(&output),
        Err(error) => return println!("skipped: no filter can be set here: {error}"),
    };
    says(
        &text,
        &["missing io_uring:", "io_uring_setup", "remedy", "2/5 Pool", "populated", "no mismatch"],
    );
    assert!(!text.contains("    registered"), "{text}");
}

#[test]
fn the_pool_fits_the_limit_of_address_space() {
    let tour = |kib: u32| {
        let limited = format!(r#"ulimit -v {kib} && exec "$0" tour --no-figures --seconds 2"#);
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, env!("CARGO_BIN_EXE_kvmem")]).stdin(Stdio::null());
        reported(&shell.output().unwrap())
    };
    let text = tour(800 << 10);
    says(&text, &["a quarter of what rlimit.as leaves", "populated", "no mismatch"]);
    let text = tour(70 << 10);
    says(
        &text,
        &[
            "missing memory: rlimit.as leaves",
            "remedy",
            "kvmem tour --pool 16MiB",
            "left out",
            "done",
        ],
    );
}

#[test]
fn without_a_folder_for_files_there_is_neither_disk_nor_node() {
    let output =
        kvmem().args(SHORT).current_dir("/proc").env("TMPDIR", "/no/such/folder").output().unwrap();
    says(
        &reported(&output),
        &["no mismatch", "4/5 Disk", "missing a disk tier", "missing a node", "done"],
    );
}

#[test]
fn impossible_requests_fail() {
    let failed = |args: &[&str], status| {
        let output = kvmem().arg("tour").args(args).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
        stderr
    };
    let stderr = failed(&["--pool", "512TiB"], 1);
    assert!(stderr.starts_with("kvmem: there is no such pool:"), "{stderr}");
    assert!(failed(&["--pool", "1MiB"], 2).contains("16 MiB at least"));
    assert!(failed(&["--seconds", "0"], 2).contains("--seconds"));
}
