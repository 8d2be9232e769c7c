//! Limits of the process, and system calls that the kernel allows.

use kvmem::arena::preflight::{
    FileSystemSpace, Requirements, RequirementsError, Rlimit, Value, Verdict,
};
use kvmem::arena::{Errno, Ladder};

use super::tree::Tree;
use super::{GIB, MIB, assert_fixes, expect, requirements};

fn limit(soft: u64, hard: Option<u64>) -> Option<Rlimit> {
    Some(Rlimit { soft: Some(soft), hard })
}

#[test]
fn pinned_memory() {
    let mut tree = Tree::roomy();
    tree.system.memlock = limit(8 * MIB, Some(8 * MIB));
    tree.line("proc/self/status", "VmPin", "VmPin:\t 1024 kB");
    let memlock = |tree: &Tree, requirements: &Requirements, verdict| {
        let report = tree.machine().preflight(requirements);
        expect(&report, "rlimit.memlock", Value::Bytes(7 * MIB), verdict).clone()
    };
    let check = memlock(&tree, &requirements(64 * GIB, "2M"), Verdict::Fail);
    assert_fixes(
        &check,
        &[
            "ulimit -l unlimited, as root",
            "docker run --ulimit memlock=-1",
            "systemd: LimitMEMLOCK=infinity",
        ],
    );
    memlock(&tree, &requirements(7 * MIB, "4k"), Verdict::Ok);
    memlock(&tree, &requirements(64 * GIB, "2M").pinned(false), Verdict::Ok);
    // The process may raise this limit itself.
    tree.system.memlock = limit(8 * MIB, None);
    assert_fixes(&memlock(&tree, &requirements(GIB, "2M"), Verdict::Fail), &["ulimit -l 1049600"]);
    // A capability removes the limit, but not one that applies only inside a container.
    tree.line("proc/self/status", "CapEff", "CapEff:\t0000000000004000");
    memlock(&tree, &requirements(GIB, "2M"), Verdict::Ok);
    tree.file("proc/self/uid_map", "         0     100000      65536\n");
    memlock(&tree, &requirements(GIB, "2M"), Verdict::Fail);
    tree.without("proc/self/uid_map");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "rlimit.memlock", Value::Unknown, Verdict::Unknown);
}

#[test]
fn address_space_and_data() {
    let mut tree = Tree::roomy();
    tree.system.address_space = limit(9 * GIB, None);
    tree.system.data = limit(4 * GIB + GIB / 2, Some(5 * GIB));
    let report = tree.machine().preflight(&requirements(8 * GIB, "2M"));
    expect(&report, "rlimit.as", Value::Bytes(8 * GIB), Verdict::Ok);
    let check = expect(&report, "rlimit.data", Value::Bytes(4 * GIB), Verdict::Fail);
    assert_fixes(check, &["ulimit -d unlimited, as root", "systemd: LimitDATA=infinity"]);
    let report = tree.machine().preflight(&requirements(8 * GIB + 1, "2M").shared(true));
    let check = expect(&report, "rlimit.as", Value::Bytes(8 * GIB), Verdict::Fail);
    assert_fixes(check, &["ulimit -v 9439232"]);
    // Shared memory does not count as data.
    expect(&report, "rlimit.data", Value::Bytes(4 * GIB), Verdict::Ok);
}

#[test]
fn shared_memory_by_name() {
    let mut tree = Tree::roomy();
    tree.system.shm = Some(FileSystemSpace { total_bytes: 64 * MIB, free_bytes: 60 * MIB });
    let report = tree.machine().preflight(&requirements(8 * GIB, "2M"));
    expect(&report, "shm.free", Value::Bytes(60 * MIB), Verdict::Ok);
    let report = tree.machine().preflight(&requirements(8 * GIB, "2M").shared(true));
    let check = expect(&report, "shm.free", Value::Bytes(60 * MIB), Verdict::Warn);
    assert_fixes(check, &["docker run --shm-size=9g"]);
    tree.system.shm = Some(FileSystemSpace { total_bytes: 0, free_bytes: 0 });
    let report = tree.machine().preflight(&requirements(8 * GIB, "2M").shared(true));
    expect(&report, "shm.free", Value::Unlimited, Verdict::Ok);
}

#[test]
fn mappings() {
    let mut tree = Tree::roomy();
    for (used, verdict) in
        [(10, Verdict::Ok), (64_000, Verdict::Ok), (65_000, Verdict::Warn), (65_520, Verdict::Fail)]
    {
        tree.file("proc/self/maps", "x\n".repeat(used));
        let report = tree.machine().preflight(&requirements(GIB, "2M"));
        let check = expect(&report, "maps.left", Value::Count(65_530 - used as u64), verdict);
        if verdict != Verdict::Ok {
            assert_fixes(check, &[&format!("sysctl vm.max_map_count={}", 2 * (used + 1024))]);
        }
    }
}

#[test]
fn kernels() {
    let mut tree = Tree::roomy();
    for (release, shown, verdict) in [
        ("5.13.19", "5.13", Verdict::Warn),
        ("4.18.0-553.el8_10", "4.18", Verdict::Warn),
        ("5.14.0", "5.14", Verdict::Ok),
        ("10.0", "10.0", Verdict::Ok),
    ] {
        tree.file("proc/sys/kernel/osrelease", release);
        let report = tree.machine().preflight(&requirements(GIB, "2M"));
        expect(&report, "kernel.populate", Value::Text(shown.into()), verdict);
    }
}

#[test]
fn rings() {
    let mut tree = Tree::roomy();
    let mut denied = |setting: Option<&str>, errno, way: &str| {
        match setting {
            Some(setting) => tree.file("proc/sys/kernel/io_uring_disabled", setting),
            None => tree.without("proc/sys/kernel/io_uring_disabled"),
        };
        tree.system.io_uring = Some(Err(errno));
        let report = tree.machine().preflight(&requirements(GIB, "2M"));
        let check =
            expect(&report, "kernel.io_uring", Value::Text("not allowed".into()), Verdict::Warn);
        assert!(check.fix.as_ref().unwrap().contains(way), "{check:?}");
    };
    denied(Some("2"), Errno::EPERM, "sysctl kernel.io_uring_disabled=0");
    denied(Some("1"), Errno::EPERM, "kernel.io_uring_group");
    denied(Some("0"), Errno::EPERM, "seccomp");
    denied(None, Errno::ENOSYS, "5.1");
    // The kernel's answer counts, not the setting.
    tree.system.io_uring = Some(Ok(()));
    tree.file("proc/sys/kernel/io_uring_disabled", "1");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "kernel.io_uring", Value::Text("allowed".into()), Verdict::Ok);
}

#[test]
fn invalid_requirements() {
    let new = |size, ladder: &str| Requirements::new(size, ladder.parse::<Ladder>().unwrap());
    for requested in [0, (1 << 63) + 1, u64::MAX] {
        assert_eq!(
            new(requested, "4k"),
            Err(RequirementsError::Size { requested, limit: 1 << 63 })
        );
    }
    let page = "2M".parse().unwrap();
    assert_eq!(new(1, "2M,4k,2m"), Err(RequirementsError::Twice { page }));
    assert_eq!(Requirements::new(1, Ladder::new([])), Err(RequirementsError::NoPages));
    let strict = "2M,4k".parse::<Ladder>().unwrap().strict(true);
    assert_eq!(
        Requirements::new(1, strict).unwrap().pages(),
        [page],
        "a strict ladder has one rung"
    );
}
