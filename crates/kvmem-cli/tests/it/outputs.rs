//! Files that options name. The command replaces a file when its new content is complete, or not at
//! all. An input is never an output. Devices, FIFOs and descriptors are written directly.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const GOOD: &str = "earlier good output\n";

fn curve(trace: &str, json: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.args(["trace", "curve", trace, "--object-bytes", "4KiB", "--page-tokens", "512"]);
    command.args(["--json", json]).stdin(Stdio::null());
    command
}

/// A folder of its own for each test, removed at the end.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// The small trace.
    fn trace(&self) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/small_trace.jsonl");
        self.file("t.jsonl", &fs::read_to_string(path).unwrap())
    }

    /// Lists the files in the folder, in order.
    fn names(&self) -> Vec<String> {
        let list = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            list.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Checks that a run has failed, and returns the message.
#[track_caller]
fn failed(output: Output) -> String {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{message}");
    message
}

#[test]
fn an_input_is_never_an_output() {
    let folder = Folder::new();
    let trace = folder.trace();
    let before = fs::read(&trace).unwrap();
    let (soft, hard) = (folder.path("soft"), folder.path("hard"));
    symlink("t.jsonl", &soft).unwrap();
    fs::hard_link(&trace, &hard).unwrap();
    for output in [&trace, &soft, &hard] {
        let message = failed(curve(&trace, output).output().unwrap());
        assert!(message.contains("--json") && message.contains("name another file"), "{message}");
        // The link may name the input, too.
        failed(curve(output, &trace).output().unwrap());
    }
    // From standard input.
    failed(curve("-", &trace).stdin(File::open(&trace).unwrap()).output().unwrap());
    // To standard output, which the shell has opened.
    let append = fs::OpenOptions::new().append(true).open(&trace).unwrap();
    for json in ["-", "/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
        let run = curve(&trace, json).stdout(append.try_clone().unwrap()).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{json}: {}", String::from_utf8_lossy(&run.stderr));
    }
    assert_eq!(fs::read(&trace).unwrap(), before);
}

#[test]
fn a_failed_run_leaves_existing_files_unchanged_and_makes_none() {
    let folder = Folder::new();
    let trace = folder.file("bad.jsonl", "{\"timestamp\": 0}\n");
    let json = folder.file("r.json", GOOD);
    failed(curve(&trace, &json).output().unwrap());
    failed(curve(&folder.path("none"), &json).output().unwrap());
    failed(curve(&trace, &folder.path("new.json")).output().unwrap());
    assert_eq!(fs::read_to_string(json).unwrap(), GOOD);
    assert_eq!(folder.names(), ["bad.jsonl", "r.json"], "and nothing else");
}

/// A run whose standard input does not end, and which has opened its output.
fn endless(folder: &Folder, lines: usize) -> Child {
    let mut child = curve("-", &folder.path("r.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for id in 0..lines {
        let _ = writeln!(
            stdin,
            "{{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": \
             [{id}]}}"
        );
    }
    child.stdin = Some(stdin);
    let fds = format!("/proc/{}/fd", child.id());
    let start = Instant::now();
    let is_open = || {
        let list = fs::read_dir(&fds).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        list.into_iter().any(|file| file.starts_with(folder.0.path()))
    };
    while !is_open() {
        assert!(start.elapsed() < Duration::from_secs(120), "it does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn an_interrupted_run_leaves_existing_files_unchanged() {
    for (signal, number) in [("INT", 2), ("TERM", 15), ("KILL", 9)] {
        for (lines, exists) in [(0, true), (1000, false), (1000, true)] {
            let folder = Folder::new();
            let before = exists.then(|| folder.file("r.json", GOOD));
            let mut child = endless(&folder, lines);
            let killed =
                Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
            assert!(killed.unwrap().success());
            assert_eq!(child.wait().unwrap().signal(), Some(number));
            assert_eq!(folder.names().len(), usize::from(exists), "{signal} after {lines} lines");
            if let Some(file) = before {
                assert_eq!(fs::read_to_string(&file).unwrap(), GOOD, "{signal}: {lines} lines");
            }
        }
    }
    // A run that is not interrupted puts the file in place.
    let folder = Folder::new();
    let old = folder.file("r.json", GOOD);
    let mut child = endless(&folder, 10);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(fs::read_to_string(old).unwrap().starts_with('{'));
    assert_eq!(folder.names().len(), 1);
}

#[test]
fn a_replaced_file_keeps_its_mode_and_owner() {
    let folder = Folder::new();
    let (trace, target) = (folder.trace(), folder.file("real.json", GOOD));
    let link = folder.path("link.json");
    symlink("real.json", &link).unwrap();
    for mode in [0o600, 0o664] {
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        assert!(curve(&trace, &link).output().unwrap().status.success());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, mode);
        assert!(fs::read_to_string(&target).unwrap().starts_with('{'));
    }
    // A file that did not exist has the usual mode of new files.
    let (other, new) = (folder.file("other", ""), folder.path("new.json"));
    assert!(curve(&trace, &new).output().unwrap().status.success());
    assert_eq!(fs::metadata(&new).unwrap().mode(), fs::metadata(&other).unwrap().mode());
    // So has a file at the end of a dangling link.
    symlink("sub", folder.path("nowhere")).unwrap();
    assert!(curve(&trace, &folder.path("nowhere")).output().unwrap().status.success());
    assert!(folder.names().contains(&"sub".to_owned()));
    // The owner of a file of another user stays, if this process may set it.
    if std::os::unix::fs::chown(&target, Some(12345), Some(54321)).is_ok() {
        assert!(curve(&trace, &target).output().unwrap().status.success());
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12345, 54321));
    } else {
        println!("skipped: only root gives files away");
    }
}

#[test]
fn devices_fifos_and_descriptors_are_written_directly() {
    let folder = Folder::new();
    let trace = folder.trace();
    for json in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        // A file that the shell opened, with earlier content.
        let path = folder.file("redirected", "before\n");
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let id = file.metadata().unwrap().ino();
        assert!(curve(&trace, json).stdout(file).output().unwrap().status.success(), "{json}");
        assert!(fs::read_to_string(&path).unwrap().starts_with("before\n{"), "{json}");
        assert_eq!(fs::metadata(&path).unwrap().ino(), id, "{json}: not replaced");
    }
    assert!(curve(&trace, "/dev/null").output().unwrap().status.success());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let run = curve(&trace, "/dev/full").output().unwrap();
    let message = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{message}");
    assert!(message.contains("--json: cannot write /dev/full"), "{message}");

    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let child = curve(&trace, &fifo).stdout(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    File::open(&fifo).unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(text.starts_with('{') && text.trim_end().ends_with('}'), "{text}");
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn unwritable_outputs_fail_before_any_work() {
    let folder = Folder::new();
    let trace = folder.trace();
    fs::create_dir(folder.path("sub")).unwrap();
    for path in ["sub", "sub/", "none/r.json", "t.jsonl/r.json", "sub/.."] {
        let message = failed(curve(&trace, &folder.path(path)).output().unwrap());
        assert!(message.contains("--json: cannot write"), "{message}");
    }
    assert_eq!(folder.names(), ["sub", "t.jsonl"]);
}
