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
const ONE_SIZE: [&str; 6] = ["--object-bytes", "4KiB", "--page-tokens", "512", "--pool", "1MiB"];

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A folder of its own for each test, removed at the end.
struct Folder(TempDir);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(TempDir::with_prefix_in(name, env!("CARGO_TARGET_TMPDIR")).unwrap())
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
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/kvmem-cli/tests/data/small_trace.jsonl");
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

/// Runs the command, which must fail, and returns the message.
#[track_caller]
fn fails(args: &[&str]) -> String {
    let output = kvmem(args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{args:?}");
    message
}

#[test]
fn an_input_is_never_an_output() {
    let folder = Folder::new("input");
    let trace = folder.trace();
    let before = fs::read(&trace).unwrap();
    let (soft, hard, chain) = (folder.path("soft"), folder.path("hard"), folder.path("chain"));
    symlink("t.jsonl", &soft).unwrap();
    fs::hard_link(&trace, &hard).unwrap();
    symlink(
        "./../".to_owned() + folder.0.path().file_name().unwrap().to_str().unwrap() + "/soft",
        &chain,
    )
    .unwrap();
    for output in [&trace, &soft, &hard, &chain] {
        for option in ["--html", "--json", "--record"] {
            let message = fails(&[&["replay", &trace, option, output], &ONE_SIZE[..]].concat());
            assert!(message.contains(option) && message.contains("this is the trace"), "{message}");
            assert!(message.contains("name another file"), "{message}");
        }
        // The link may name the input, too.
        fails(&[&["replay", output, "--html", &trace], &ONE_SIZE[..]].concat());
    }
    // From standard input.
    let run = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"))
        .args(["replay", "-", "--html", &trace])
        .stdin(File::open(&trace).unwrap())
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2), "{}", String::from_utf8_lossy(&run.stderr));
    // To standard output, which the shell has opened.
    let append = fs::OpenOptions::new().append(true).open(&trace).unwrap();
    for json in ["-", "/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
        let run = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"))
            .args([&["replay", &trace, "--json", json], &ONE_SIZE[..]].concat())
            .stdout(append.try_clone().unwrap())
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{json}: {}", String::from_utf8_lossy(&run.stderr));
    }
    assert_eq!(fs::read(&trace).unwrap(), before);

    let ops = folder.path("calls.ops");
    assert!(
        kvmem(&[&["replay", &trace, "--record", &ops], &ONE_SIZE[..]].concat()).status.success()
    );
    let before = fs::read(&ops).unwrap();
    let message = fails(&["replay", "--ops", &ops, "--json", &ops]);
    assert!(message.contains("this is the recording"), "{message}");
    assert_eq!(fs::read(&ops).unwrap(), before);

    let rows = folder.path("rows.json");
    let bench =
        ["bench", "concurrency", "--quick", "--scenario", "impossible", "--contender", "kvmem"];
    let run = kvmem(&[&bench[..], &["--threads", "1", "--reps", "1", "--json", &rows]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let before = fs::read(&rows).unwrap();
    let message = fails(&["bench", "--from", &rows, "--html", &rows]);
    assert!(message.contains("--from"), "{message}");
    assert_eq!(fs::read(&rows).unwrap(), before);
}

#[test]
fn two_options_do_not_share_a_file() {
    let folder = Folder::new("twice");
    let (trace, good) = (folder.trace(), folder.file("good", GOOD));
    symlink("good", folder.path("link")).unwrap();
    for (one, two) in [("good", "good"), ("good", "link"), ("new", "new"), ("new", "./new")] {
        let (one, two) = (folder.path(one), folder.path(two));
        for args in [
            ["replay", &trace, "--json", &one, "--html", &two],
            ["replay", &trace, "--record", &one, "--json", &two],
        ] {
            let message = fails(&args);
            assert!(message.contains("name two files"), "{args:?}: {message}");
        }
    }
    assert_eq!(fs::read_to_string(good).unwrap(), GOOD);
    assert_eq!(folder.names(), ["good", "link", "t.jsonl"]);
}

#[test]
fn a_failed_run_leaves_existing_files_unchanged() {
    let folder = Folder::new("failing");
    let trace = folder.file("bad.jsonl", "{\"timestamp\": 0}\n");
    let (html, json, ops) =
        (folder.file("p.html", GOOD), folder.file("r.json", GOOD), folder.file("c.ops", GOOD));
    let outputs = ["--html", &html, "--json", &json, "--record", &ops];
    fails(&[&["replay", &trace], &outputs[..], &ONE_SIZE].concat());
    fails(&[&["replay", &folder.path("none")], &outputs[..], &ONE_SIZE].concat());
    fails(&["replay", "--ops", &trace, "--json", &json]);
    fails(&["bench", "--from", &trace, "--html", &html]);
    // More memory than the machine has.
    let output = kvmem(&["page", &html, "mount", "--size=1PiB", "--json", &json]);
    assert!(!output.status.success());
    for file in [&html, &json, &ops] {
        assert_eq!(fs::read_to_string(file).unwrap(), GOOD, "{file}");
    }
    assert_eq!(folder.names(), ["bad.jsonl", "c.ops", "p.html", "r.json"], "and nothing else");
}

/// A failed replay leaves no file that did not exist before.
#[test]
fn a_failed_replay_leaves_no_empty_file() {
    let folder = Folder::new("failing-replay");
    let trace = folder.trace();
    let outputs = ["r.json", "p.html", "c.ops"].map(|name| folder.path(name));
    let outputs = ["--json", &outputs[0], "--html", &outputs[1], "--record", &outputs[2]];
    for args in [
        &["--pool", "1KiB"][..],
        &["--contender", "offset-allocator", "--pool", "1TiB"],
        &["--contender", "null"],
        &["--contender", "binned", "--threads", "2"],
        &["--metrics", "192.0.2.1:1"],
        &["--backed", "--pool", "1PiB"],
    ] {
        fails(&[&["replay", &trace], &outputs[..], args].concat());
        assert_eq!(folder.names(), ["t.jsonl"], "{args:?}");
    }
}

/// A replay whose standard input does not end.
fn endless(folder: &Folder, lines: usize) -> Child {
    let outputs = ["r.json", "p.html", "c.ops"].map(|name| folder.path(name));
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"))
        .args([
            "replay",
            "-",
            "--json",
            &outputs[0],
            "--html",
            &outputs[1],
            "--record",
            &outputs[2],
        ])
        .args(ONE_SIZE)
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
    // Waits until the replay has all three files open.
    let fds = format!("/proc/{}/fd", child.id());
    let start = Instant::now();
    let open = || {
        let list = fs::read_dir(&fds).unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        list.filter(|file| file.starts_with(folder.0.path())).count()
    };
    while open() < 3 {
        assert!(start.elapsed() < Duration::from_secs(120), "it does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn an_interrupted_run_leaves_existing_files_unchanged() {
    const ENDS: [(&str, i32); 3] = [("INT", 2), ("TERM", 15), ("KILL", 9)];
    for (signal, number) in ENDS {
        for lines in [0, 1, 1000, 20_000] {
            for exist in [false, true] {
                let folder = Folder::new(&format!("interrupted-{signal}-{lines}-{exist}"));
                let mut before = Vec::new();
                if exist {
                    before =
                        ["c.ops", "p.html", "r.json"].map(|name| folder.file(name, GOOD)).to_vec();
                }
                let mut child = endless(&folder, lines);
                let killed =
                    Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
                assert!(killed.unwrap().success());
                assert_eq!(child.wait().unwrap().signal(), Some(number));
                let names = folder.names();
                assert_eq!(names.len(), before.len(), "{signal} after {lines} lines: {names:?}");
                for file in before {
                    assert_eq!(
                        fs::read_to_string(&file).unwrap(),
                        GOOD,
                        "{signal} after {lines} lines: {file}"
                    );
                }
            }
        }
    }
    // A run that is not interrupted puts all files in place.
    let folder = Folder::new("not-interrupted");
    let old = ["c.ops", "p.html", "r.json"].map(|name| folder.file(name, GOOD));
    let mut child = endless(&folder, 10);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let new = old.map(|file| fs::read(file).unwrap());
    assert!(new.iter().all(|content| content != GOOD.as_bytes() && !content.is_empty()));
    assert!(new[1].starts_with(b"<!doctype html>") && new[2].starts_with(b"{"));
    assert_eq!(folder.names().len(), 3);
}

#[test]
fn a_replaced_file_keeps_its_mode_and_owner() {
    let folder = Folder::new("like");
    let (trace, target) = (folder.trace(), folder.file("real.json", GOOD));
    let link = folder.path("link.json");
    symlink("real.json", &link).unwrap();
    for mode in [0o600, 0o640, 0o664, 0o777] {
        fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
        let run = kvmem(&[&["replay", &trace, "--json", &link], &ONE_SIZE[..]].concat());
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, mode);
        assert!(fs::read_to_string(&target).unwrap().starts_with('{'));
    }
    // A file that did not exist has the usual mode of new files.
    let other = folder.file("other", "");
    let new = folder.path("new.json");
    kvmem(&[&["replay", &trace, "--json", &new], &ONE_SIZE[..]].concat());
    assert_eq!(fs::metadata(&new).unwrap().mode(), fs::metadata(&other).unwrap().mode());
    // So has a file at the end of a dangling link.
    symlink("sub", folder.path("nowhere")).unwrap();
    let run =
        kvmem(&[&["replay", &trace, "--json", &folder.path("nowhere")], &ONE_SIZE[..]].concat());
    assert!(run.status.success() && folder.names().contains(&"sub".to_owned()));
    // A file of another user keeps its owner, if this process may set it.
    if std::os::unix::fs::chown(&target, Some(12345), Some(54321)).is_ok() {
        kvmem(&[&["replay", &trace, "--json", &target], &ONE_SIZE[..]].concat());
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12345, 54321));
    } else {
        println!("skipped: only root gives files away");
    }
}

#[test]
fn devices_fifos_and_descriptors_are_written_directly() {
    let folder = Folder::new("direct");
    let trace = folder.trace();
    let replay = |json: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem-lab"));
        command
            .args([&["replay", &trace, "--json", json], &ONE_SIZE[..]].concat())
            .stdin(Stdio::null());
        command
    };
    for json in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        // A file that the shell opened, with earlier content.
        let path = folder.file("redirected", "before\n");
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        let id = file.metadata().unwrap().ino();
        let run = replay(json).stdout(file).output().unwrap();
        assert!(run.status.success(), "{json}: {}", String::from_utf8_lossy(&run.stderr));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("before\n{") && text.contains("160 requests"), "{json}: {text}");
        assert_eq!(fs::metadata(&path).unwrap().ino(), id, "{json}: not replaced");
        // A pipe.
        let run = replay(json).output().unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        assert!(run.status.success() && text.starts_with('{'), "{json}: {text}");
    }
    assert!(replay("/dev/null").output().unwrap().status.success());
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let run = replay("/dev/full").output().unwrap();
    let message = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{message}");
    assert!(message.contains("--json: cannot write /dev/full"), "{message}");

    let fifo = folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let child = replay(&fifo).stdout(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    File::open(&fifo).unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(text.starts_with('{') && text.trim_end().ends_with('}'), "{text}");
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
}

#[test]
fn unwritable_outputs_fail_before_any_work() {
    let folder = Folder::new("cannot");
    let trace = folder.trace();
    fs::create_dir(folder.path("sub")).unwrap();
    for path in ["sub", "sub/", "none/r.json", "t.jsonl/r.json", "sub/.."] {
        let json = folder.path(path);
        let message = fails(&[&["replay", &trace, "--json", &json], &ONE_SIZE[..]].concat());
        assert!(
            message.contains("--json: cannot write") && message.contains("name a file"),
            "{message}"
        );
    }
    let (one, two) = (folder.path("one"), folder.path("two"));
    symlink("two", &one).unwrap();
    symlink("one", &two).unwrap();
    let message = fails(&["replay", &trace, "--json", &one]);
    assert!(message.contains("cannot write"), "{message}");
    assert_eq!(folder.names(), ["one", "sub", "t.jsonl", "two"]);
}

/// Runs `setup` with the folder as `$1`, then a replay into its file `target`, both in a mount
/// namespace of their own. Returns `None` if the process cannot make one.
fn replayed_in_a_namespace(folder: &Folder, setup: &str) -> Option<()> {
    let run = format!(
        "mount --make-rprivate / && {setup} && exec \"$0\" replay \"$1/t.jsonl\" --json \
         \"$1/target\""
    );
    let shell = [
        "--mount",
        "sh",
        "-c",
        &run,
        env!("CARGO_BIN_EXE_kvmem-lab"),
        folder.0.path().to_str().unwrap(),
    ];
    let output = Command::new("unshare").args(shell).output().ok()?;
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!message.contains("kvmem:"), "{message}");
    if !output.status.success() {
        println!("skipped: nothing can be mounted here: {message}");
        return None;
    }
    assert!(folder.names().iter().all(|name| !name.starts_with('.')), "{:?}", folder.names());
    Some(())
}

fn is_report(path: &str) -> bool {
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    report["suite"] == "replay"
}

#[test]
fn a_file_that_cannot_be_replaced_is_overwritten() {
    // A file that is mounted into a container cannot be renamed over. In a read-only folder no file
    // can be made beside it.
    let mount = "mount --bind \"$1/backing\" \"$1/target\"";
    let read_only = "mount --rbind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\"";
    for setup in [mount.to_owned(), format!("{mount} && {read_only}")] {
        let folder = Folder::new("mounted");
        folder.trace();
        let [target, backing] =
            ["target", "backing"].map(|name| folder.file(name, &GOOD.repeat(10_000)));
        if replayed_in_a_namespace(&folder, &setup).is_some() {
            assert!(is_report(&backing), "{setup}");
            assert_eq!(
                fs::read_to_string(&target).unwrap(),
                GOOD.repeat(10_000),
                "below the mount"
            );
        }
    }
}

#[test]
fn without_unnamed_files_the_command_uses_named_ones() {
    // Unnamed files get their names through /proc.
    let folder = Folder::new("named");
    folder.trace();
    let target = folder.file("target", &GOOD.repeat(10_000));
    if replayed_in_a_namespace(&folder, "umount -l /proc").is_some() {
        assert!(is_report(&target));
        assert_eq!(folder.names(), ["t.jsonl", "target"]);
    }
}
