//! The script with the remedies: it parses, it changes what it says, and a second run nothing more.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kvmem::arena::preflight::{FileSystemSpace, Rlimit};

use super::tree::Tree;
use super::{GIB, MIB, requirements};

/// Returns the commands of a script; `None` if a line is neither a comment nor one of the known
/// commands with plain words.
pub(super) fn commands(script: &str) -> Option<Vec<&str>> {
    let (_, body) = script.split_once("\n    run rm -f -- \"$1\"\n}\n")?;
    let body = body.strip_suffix("\nexit \"$failed\"\n")?;
    let lines: Vec<&str> =
        body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let plain = |line: &&str| {
        let known = ["run sysctl -q -w ", "run mount -o remount,size=", "run swapoff -a"];
        let known = known.iter().chain(&["set_file ", "set_file_on_nodes ", "remove_unused "]);
        let chars = |c: char| c.is_ascii_alphanumeric() || " /._-:@+=,".contains(c);
        known.clone().any(|begin| line.starts_with(begin)) && line.chars().all(chars)
    };
    lines.iter().all(plain).then_some(lines)
}

/// Returns a machine with much to repair.
fn poor() -> Tree {
    let mut tree = Tree::roomy();
    tree.system.memlock = Some(Rlimit { soft: Some(8 * MIB), hard: Some(8 * MIB) });
    tree.system.shm = Some(FileSystemSpace { total_bytes: 64 * MIB, free_bytes: MIB });
    tree.pool("sys/kernel/mm/hugepages", 2 << 20, 100, 100)
        .pool("sys/kernel/mm/hugepages", 1 << 30, 0, 0)
        .file("proc/self/maps", "x\n".repeat(65_000))
        .file("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
        .file("dev/shm/vllm_offload_e1.mmap", "1")
        .link("proc/self/ns/pid", "pid:[4026531836]")
        .unified(
            "/kv",
            "/",
            &[("/", &[]), ("/kv", &[("memory.max", "1048576"), ("memory.current", "4096")])],
        );
    tree
}

fn sh(arguments: &[&str], path: &str) -> (bool, String) {
    let output = Command::new("sh").args(arguments).env("PATH", path).output().expect("a shell");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder");
    fs::write(path, text).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its owner");
}

#[test]
fn every_shell_can_parse_the_script() {
    let mut tree = poor();
    tree.unified(
        "/a; sysctl kernel.panic=1; $(reboot)\n'\"",
        "/",
        &[("/", &[]), ("/a; sysctl kernel.panic=1; $(reboot)", &[])],
    );
    let path = std::env::var("PATH").unwrap_or_default();
    for tree in [poor(), tree, Tree::roomy(), Tree::empty()] {
        for ladder in ["1G,2M,thp,4k", "2M", "thp"] {
            let report = tree.machine().preflight(&requirements(64 * GIB, ladder).shared(true));
            let script = report.fix_script();
            assert!(commands(&script).is_some(), "{script}");
            assert!(
                !script.lines().any(|line| line.contains("kernel.panic") && !line.starts_with('#'))
            );
            let file = tree.root().join("fix.sh");
            fs::write(&file, &script).expect("a file");
            let (parsed, said) = sh(&["-n", file.to_str().expect("UTF-8")], &path);
            assert!(parsed, "{said}\n{script}");
        }
    }
}

#[test]
fn a_machine_without_faults_has_an_empty_script() {
    let report = Tree::roomy().machine().preflight(&requirements(64 * GIB, "2M,thp,4k"));
    let script = report.fix_script();
    assert_eq!(commands(&script), Some(Vec::new()));
    assert!(script.contains("there is nothing to do"), "{script}");
}

#[test]
fn a_second_run_changes_nothing_more() {
    let tree = poor();
    let report = tree.machine().preflight(&requirements(GIB, "2M,thp,4k").shared(true));
    let script = report.fix_script();
    let lines = commands(&script).expect("known commands");
    for line in [
        "run sysctl -q -w vm.nr_hugepages=512",
        "run sysctl -q -w vm.max_map_count=132048",
        "run mount -o remount,size=2g /dev/shm",
        "set_file 864030720 /sys/fs/cgroup/kv/memory.max",
        "remove_unused /dev/shm/vllm_offload_e1.mmap",
    ] {
        assert!(lines.contains(&line), "no {line} in {lines:#?}");
    }
    // Two checks have the same remedy.
    assert_eq!(lines.iter().filter(|line| line.contains("mount")).count(), 1, "{lines:#?}");
    assert!(script.contains("\n# The command above does it.\n"), "{script}");
    // The paths of the machine become those of its tree, and programs only write down their calls.
    let root = tree.root().to_str().expect("UTF-8");
    let mut here = script.clone();
    for folder in ["/sys/", "/dev/shm", "/proc/["] {
        here = here.replace(&format!(" {folder}"), &format!(" {root}{folder}"));
    }
    let log = tree.root().join("log");
    for name in ["sysctl", "mount"] {
        let text = format!("#!/bin/sh\necho \"{name} $*\" >> {}\n", log.display());
        program(&tree.root().join("bin").join(name), &text);
    }
    let file = tree.root().join("fix.sh");
    fs::write(&file, here).expect("a file");
    let path = format!("{root}/bin:{}", std::env::var("PATH").unwrap_or_default());
    let run = || sh(&[file.to_str().expect("UTF-8")], &path);
    let read = |path: &str| fs::read_to_string(tree.root().join(path)).expect("a file");

    let (done, said) = run();
    assert!(done, "{said}");
    assert_eq!(read("sys/fs/cgroup/kv/memory.max"), "864030720\n", "{said}");
    assert!(!tree.root().join("dev/shm/vllm_offload_e1.mmap").exists(), "{said}");
    let first = read("log");
    assert!(first.contains("sysctl -q -w vm.nr_hugepages=512\n"), "{first}");
    let (done, again) = run();
    assert!(done, "{again}");
    // Only the commands that set absolute values are repeated.
    assert!(!again.contains("memory.max") && !again.contains("rm -f"), "{again}");
    assert_eq!(read("log"), first.repeat(2));
    assert_eq!(read("sys/fs/cgroup/kv/memory.max"), "864030720\n");
}

#[test]
fn a_file_in_use_is_not_removed() {
    let tree = poor();
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    let script = report.fix_script();
    assert!(script.contains("\nremove_unused /dev/shm/vllm_offload_e1.mmap\n"), "{script}");
    // Keeps the functions and this one command.
    let (functions, _) = script.split_once("\n# fail: ").expect("a section");
    let used = tree.root().join("dev/shm/vllm_offload_e1.mmap");
    let command = format!("{functions}\nremove_unused {}\n", used.display());
    let file = tree.root().join("remove.sh");
    fs::write(&file, command).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    // This process has it open.
    let open = fs::File::open(&used).expect("a file");
    let (_, said) = sh(&[file.to_str().expect("UTF-8")], &path);
    assert!(used.exists() && said.contains("is in use"), "{said}");
    drop(open);
    let (_, said) = sh(&[file.to_str().expect("UTF-8")], &path);
    assert!(!used.exists(), "{said}");
}
