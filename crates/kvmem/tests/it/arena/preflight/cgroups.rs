//! Cgroups v1 and v2: nested, partly visible, or absent.

use kvmem::arena::preflight::{Value, Verdict};

use super::tree::Tree;
use super::{GIB, MIB, assert_fixes, expect, requirements};

const NONE: &str = "9223372036854771712";

#[test]
fn the_tightest_level_counts() {
    let mut tree = Tree::roomy();
    tree.unified(
        "/kubepods/pod1/c1",
        "/",
        &[
            ("/", &[("cgroup.controllers", "memory")]),
            (
                "/kubepods",
                &[("cgroup.type", "domain"), ("memory.max", "max"), ("memory.high", "max")],
            ),
            (
                "/kubepods/pod1",
                &[
                    ("memory.max", "34359738368"),
                    ("memory.high", "17179869184"),
                    ("memory.current", "8589934592"),
                    ("memory.stat", "anon 1\ninactive_file 4294967296\nactive_file 7"),
                ],
            ),
            (
                "/kubepods/pod1/c1",
                &[("memory.max", "51539607552"), ("memory.high", "max"), ("memory.current", "0")],
            ),
        ],
    );
    // The limit is 32 GiB; 8 GiB are used, 4 GiB of which are reclaimable.
    let report = tree.machine().preflight(&requirements(28 * GIB, "4k"));
    expect(&report, "cgroup.memory.max", Value::Bytes(28 * GIB), Verdict::Ok);
    let check = expect(&report, "cgroup.memory.high", Value::Bytes(12 * GIB), Verdict::Warn);
    assert_fixes(
        check,
        &["echo 34359738368 > /sys/fs/cgroup/kubepods/pod1/memory.high", "systemd: MemoryHigh=32G"],
    );
    let report = tree.machine().preflight(&requirements(28 * GIB + 1, "4k"));
    let check = expect(&report, "cgroup.memory.max", Value::Bytes(28 * GIB), Verdict::Fail);
    assert!(check.why.contains("/kubepods/pod1/memory.max is 32 GiB"), "{check:?}");
    assert_fixes(
        check,
        &[
            "docker run --memory=33g",
            "Kubernetes: resources.limits memory: 33Gi",
            "systemd: MemoryMax=33G",
        ],
    );
    // Hugetlb pages do not count as the cgroup's memory...
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M"));
    expect(&report, "cgroup.memory.max", Value::Bytes(28 * GIB), Verdict::Ok);
    // ... unless a mount option says so.
    let mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,memory_hugetlb_accounting\n";
    tree.file("proc/self/mountinfo", mount);
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M"));
    expect(&report, "cgroup.memory.max", Value::Bytes(28 * GIB), Verdict::Fail);
}

#[test]
fn a_container_sees_only_its_own_levels() {
    let mut tree = Tree::roomy();
    let limited: &[(&str, &str)] = &[
        ("cgroup.type", "domain"),
        ("memory.max", "2147483648"),
        ("memory.high", "max"),
        ("memory.current", "1048576"),
    ];
    tree.unified("/", "/", &[("/", limited)]);
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    let check = expect(&report, "cgroup.memory.max", Value::Bytes(2 * GIB - MIB), Verdict::Ok);
    assert!(check.why.contains("above"), "{check:?}");
    // Without a visible limit, levels above may still have one.
    expect(&report, "cgroup.memory.high", Value::Unknown, Verdict::Unknown);
    // The same with the paths of the host; the container's own part is mounted.
    tree.unified("/docker/abc", "/docker/abc", &[("/", limited)]);
    let report = tree.machine().preflight(&requirements(4 * GIB, "4k"));
    let check = expect(&report, "cgroup.memory.max", Value::Bytes(2 * GIB - MIB), Verdict::Fail);
    assert!(check.fix.as_ref().unwrap().contains("> /sys/fs/cgroup/memory.max"), "{check:?}");
}

#[test]
fn version_1() {
    let mut tree = Tree::roomy();
    let stat = "inactive_file 0\ntotal_inactive_file 1073741824";
    tree.legacy(
        "/docker/abc",
        "/",
        &[
            (
                "/",
                &[
                    ("release_agent", ""),
                    ("memory.limit_in_bytes", NONE),
                    ("memory.usage_in_bytes", "1"),
                ],
            ),
            (
                "/docker",
                &[
                    ("memory.limit_in_bytes", NONE),
                    ("hugetlb.2MB.limit_in_bytes", NONE),
                    ("cpu.cfs_quota_us", "-1"),
                ],
            ),
            (
                "/docker/abc",
                &[
                    ("memory.limit_in_bytes", "8589934592"),
                    ("memory.usage_in_bytes", "3221225472"),
                    ("memory.stat", stat),
                    ("hugetlb.2MB.limit_in_bytes", "4294967296"),
                    ("hugetlb.2MB.usage_in_bytes", "1073741824"),
                    ("cpu.cfs_quota_us", "150000"),
                    ("cpu.cfs_period_us", "100000"),
                ],
            ),
        ],
    );
    let report = tree.machine().preflight(&requirements(6 * GIB, "4k"));
    expect(&report, "cgroup.memory.max", Value::Bytes(6 * GIB), Verdict::Ok);
    expect(&report, "cgroup.memory.high", Value::Unlimited, Verdict::Ok);
    expect(&report, "cpus", Value::Count(2), Verdict::Ok);
    let report = tree.machine().preflight(&requirements(7 * GIB, "4k"));
    let check = expect(&report, "cgroup.memory.max", Value::Bytes(6 * GIB), Verdict::Fail);
    assert_fixes(
        check,
        &["echo 9663676416 > /sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes"],
    );
    // 3 GiB of hugepages remain; the rest is ordinary memory.
    let report = tree.machine().preflight(&requirements(4 * GIB, "2M,4k"));
    let check = expect(&report, "cgroup.hugetlb.2M", Value::Bytes(3 * GIB), Verdict::Warn);
    assert_fixes(check, &["Kubernetes: resources.limits hugepages-2Mi: 4Gi"]);
    assert_eq!(report.check("memory.available").unwrap().need, Some(Value::Bytes(GIB)));
    let report = tree.machine().preflight(&requirements(4 * GIB, "2M"));
    expect(&report, "cgroup.hugetlb.2M", Value::Bytes(3 * GIB), Verdict::Fail);
}

#[test]
fn both_versions_at_once() {
    let mut tree = Tree::roomy();
    // Memory is in v1; hugetlb is in no v1 hierarchy, therefore in v2.
    tree.legacy(
        "/a",
        "/",
        &[
            ("/", &[("release_agent", "")]),
            ("/a", &[("memory.limit_in_bytes", "1073741824"), ("memory.usage_in_bytes", "0")]),
        ],
    );
    tree.file("proc/self/cgroup", "4:memory:/a\n0::/b\n");
    tree.file(
        "proc/self/mountinfo",
        "31 1 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
         32 1 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );
    tree.file("sys/fs/cgroup/unified/b/hugetlb.2MB.max", "max\n");
    tree.file("sys/fs/cgroup/unified/b/hugetlb.2MB.rsvd.max", "536870912\n");
    tree.file("sys/fs/cgroup/unified/b/hugetlb.2MB.rsvd.current", "0\n");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "cgroup.memory.max", Value::Bytes(GIB), Verdict::Ok);
    let check = expect(&report, "cgroup.hugetlb.2M", Value::Bytes(GIB / 2), Verdict::Fail);
    assert!(check.why.contains("/unified/b/hugetlb.2MB.rsvd.max"), "{check:?}");
}

#[test]
fn processors() {
    let mut tree = Tree::roomy();
    tree.unified(
        "/a",
        "/",
        &[("/", &[]), ("/a", &[("cgroup.type", "domain"), ("cpu.max", "250000 100000")])],
    );
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "cpus", Value::Count(3), Verdict::Ok);
    tree.file("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    let check = expect(&report, "cpus", Value::Count(1), Verdict::Warn);
    assert!(check.why.contains("0.500"), "{check:?}");
    tree.file("sys/fs/cgroup/a/cpu.max", "max 100000\n");
    tree.system.cpus = Some(1);
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "cpus", Value::Count(1), Verdict::Warn);
    // Without an answer, as on machines with very many processors, the mask is read from the file.
    tree.system.cpus = None;
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "cpus", Value::Count(8), Verdict::Ok);
    tree.file("sys/fs/cgroup/a/cpu.max", "soon\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "cpus", Value::Unknown, Verdict::Unknown);
}

#[test]
fn none_at_all() {
    let mut tree = Tree::roomy();
    // A kernel without cgroups.
    tree.without("proc/self/cgroup").without("sys/fs/cgroup");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "cgroup.memory.max", Value::Unlimited, Verdict::Ok);
    expect(&report, "cgroup.hugetlb.2M", Value::Unlimited, Verdict::Ok);
    // A kernel that does not show its cgroups.
    tree.file("proc/self/cgroup", "0::/user.slice\n")
        .file("proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n");
    unknown(&tree);
    tree.unified("/../other", "/", &[("/", &[])]);
    unknown(&tree);
    for path in ["/elsewhere", "/docker/abcd"] {
        tree.unified(path, "/docker/abc", &[("/", &[])]);
        unknown(&tree);
    }
    tree.unified("/gone", "/", &[("/", &[])]);
    unknown(&tree);
    tree.unified("/", "/", &[("/", &[])]).file("proc/self/cgroup", "nonsense\n");
    unknown(&tree);
    tree.unified("/", "/", &[("/", &[])]).unreadable("proc/self/cgroup");
    unknown(&tree);
}

#[test]
fn files_that_cannot_be_read() {
    for file in ["memory.max", "memory.current"] {
        let mut tree = Tree::roomy();
        let files: &[(&str, &str)] =
            &[("cgroup.type", "domain"), ("memory.max", "10737418240"), ("memory.current", "0")];
        tree.unified("/a", "/", &[("/", &[]), ("/a", files)])
            .unreadable(&format!("sys/fs/cgroup/a/{file}"));
        let report = tree.machine().preflight(&requirements(GIB, "4k"));
        let check = expect(&report, "cgroup.memory.max", Value::Unknown, Verdict::Unknown);
        assert!(check.why.contains(file), "{check:?}");
    }
    // A readable level that is too low fails, even if another level is unreadable.
    let mut tree = Tree::roomy();
    let small: &[(&str, &str)] = &[("memory.max", "4096"), ("memory.current", "0")];
    tree.unified("/a/b", "/", &[("/", &[]), ("/a", small), ("/a/b", small)]);
    tree.unreadable("sys/fs/cgroup/a/memory.max");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "cgroup.memory.max", Value::Bytes(4096), Verdict::Fail);
}

#[track_caller]
fn unknown(tree: &Tree) {
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    for name in ["cgroup.memory.max", "cgroup.memory.high", "cgroup.hugetlb.2M", "cpus"] {
        expect(&report, name, Value::Unknown, Verdict::Unknown);
    }
}
