//! Hugepages, transparent hugepages, memory and nodes.

use kvmem::arena::preflight::{Value, Verdict};

use super::tree::Tree;
use super::{GIB, assert_fixes, expect, requirements};

const POOLS: &str = "sys/kernel/mm/hugepages";
const NODE0: &str = "sys/devices/system/node/node0/hugepages";

#[test]
fn a_large_machine_passes_every_check() {
    let tree = Tree::roomy();
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M,thp,4k"));
    assert_eq!(report.tally().ok, report.checks.len(), "{report}");
    assert!(report.passes() && report.verdict == Verdict::Ok);
    let check = expect(&report, "hugepages.2M", Value::Count(32_768), Verdict::Ok);
    assert_eq!(check.need, Some(Value::Count(32_768)));
    // Hugetlb pages need no ordinary memory.
    assert_eq!(report.check("memory.available").unwrap().need, Some(Value::Bytes(0)));
}

#[test]
fn a_partial_pool_steps_down_or_fails() {
    let mut tree = Tree::roomy();
    tree.pool(POOLS, 2 << 20, 20_000, 8192).pool(NODE0, 2 << 20, 20_000, 8192);
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M,thp,4k"));
    let check = expect(&report, "hugepages.2M", Value::Count(8192), Verdict::Warn);
    // 20,000 pages are free, 24,576 are missing.
    assert_fixes(
        check,
        &[
            "sysctl vm.nr_hugepages=44576",
            "Kubernetes, once the node has them: resources.limits hugepages-2Mi: 64Gi",
        ],
    );
    assert_eq!(report.check("memory.available").unwrap().need, Some(Value::Bytes(48 * GIB)));
    assert!(report.passes(), "{report}");

    let report = tree.machine().preflight(&requirements(64 * GIB, "2M"));
    let check = expect(&report, "hugepages.2M", Value::Count(8192), Verdict::Fail);
    assert!(check.why.contains("48 GiB"), "{check:?}");
    assert!(!report.passes());
    // Pages reserved by other processes are not free.
    tree.file("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "8000\n");
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M,4k"));
    expect(&report, "hugepages.2M", Value::Count(192), Verdict::Warn);
}

#[test]
fn each_rung_takes_the_rest() {
    let mut tree = Tree::roomy();
    tree.pool(POOLS, 1 << 30, 10, 10).pool(NODE0, 1 << 30, 10, 10);
    tree.pool(POOLS, 2 << 20, 512, 512).pool(NODE0, 2 << 20, 512, 512);
    let report = tree.machine().preflight(&requirements(64 * GIB, "1G,2M,thp"));
    let check = expect(&report, "hugepages.1G", Value::Count(10), Verdict::Warn);
    assert_eq!(check.need, Some(Value::Count(64)));
    assert_fixes(check, &["echo 64 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"]);
    let check = expect(&report, "hugepages.2M", Value::Count(512), Verdict::Warn);
    assert_eq!(check.need, Some(Value::Count(54 * 512)));
    assert_eq!(report.check("memory.available").unwrap().need, Some(Value::Bytes(53 * GIB)));
}

#[test]
fn an_empty_pool_and_surplus() {
    let mut tree = Tree::roomy();
    tree.pool(POOLS, 2 << 20, 0, 0).pool(NODE0, 2 << 20, 0, 0);
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "hugepages.2M", Value::Count(0), Verdict::Fail);
    tree.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "512\n");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    let check = expect(&report, "hugepages.2M", Value::Count(0), Verdict::Warn);
    assert!(check.why.contains("surplus"), "{check:?}");
    // If the surplus is unknown, the verdict is unknown.
    tree.unreadable("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "hugepages.2M", Value::Unknown, Verdict::Unknown);
    let report = tree.machine().preflight(&requirements(GIB, "2M,4k"));
    expect(&report, "hugepages.2M", Value::Count(0), Verdict::Warn);
    tree.file("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "512\n");
    // If base pages are not 4 KiB, the plain setting applies to hugepages of another size.
    tree.line("proc/meminfo", "Hugepagesize", "Hugepagesize:   524288 kB");
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    let check = expect(&report, "hugepages.2M", Value::Count(0), Verdict::Warn);
    assert_fixes(check, &["echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"]);
}

#[test]
fn sizes_are_rounded_up() {
    let tree = Tree::roomy();
    let need = |size, ladder: &str, name: &str| {
        tree.machine().preflight(&requirements(size, ladder)).check(name).unwrap().need.clone()
    };
    assert_eq!(need(1, "2M", "hugepages.2M"), Some(Value::Count(1)));
    assert_eq!(need(1, "2M", "rlimit.as"), Some(Value::Bytes(2 << 20)));
    assert_eq!(need(1, "4k", "memory.available"), Some(Value::Bytes(4096)));
    assert_eq!(need(1 << 63, "1G", "hugepages.1G"), Some(Value::Count(1 << 33)));
    assert_eq!(need((1 << 63) - 1, "4k", "rlimit.as"), Some(Value::Bytes(1 << 63)));
}

#[test]
fn transparent_hugepages() {
    let (never, file) = ("always madvise [never]\n", "sys/kernel/mm/transparent_hugepage/enabled");
    let mut tree = Tree::roomy();
    tree.file(file, never);
    let word = || Value::Text("never".into());
    let check = |tree: &Tree, ladder: &str, verdict| {
        let report = tree.machine().preflight(&requirements(GIB, ladder));
        expect(&report, "thp.enabled", word(), verdict).clone()
    };
    // With enough hugetlb pages the next rung is not reached.
    check(&tree, "2M,4k", Verdict::Ok);
    assert_fixes(
        &check(&tree, "thp,4k", Verdict::Warn),
        &["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"],
    );
    check(&tree, "thp", Verdict::Fail);
    check(&tree, "4k", Verdict::Ok);

    // Newer kernels have a setting for each size, which may refer to the common one.
    let own = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    tree.file(own, "always [inherit] madvise never\n");
    check(&tree, "thp", Verdict::Fail);
    tree.file(own, "always inherit [madvise] never\n");
    let report = tree.machine().preflight(&requirements(GIB, "thp"));
    expect(&report, "thp.enabled", Value::Text("madvise".into()), Verdict::Ok);
    tree.line("proc/self/status", "THP_enabled", "THP_enabled:\t0");
    let report = tree.machine().preflight(&requirements(GIB, "thp"));
    expect(&report, "thp.enabled", Value::Text("madvise".into()), Verdict::Fail);

    tree.file(
        "sys/kernel/mm/transparent_hugepage/defrag",
        "always defer defer+madvise madvise [never]\n",
    );
    let report = tree.machine().preflight(&requirements(GIB, "thp"));
    expect(&report, "thp.defrag", Value::Text("never".into()), Verdict::Warn);
}

#[test]
fn transparent_hugepages_of_shared_memory() {
    let mut tree = Tree::roomy();
    let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    tree.file(file, "always within_size advise [never] deny force\n");
    let report = tree.machine().preflight(&requirements(GIB, "thp"));
    expect(&report, "thp.shmem", Value::Text("never".into()), Verdict::Ok);
    // Populating collects pages into hugepages if the kernel can.
    let report = tree.machine().preflight(&requirements(GIB, "thp,4k").shared(true));
    expect(&report, "thp.shmem", Value::Text("never".into()), Verdict::Ok);
    for (setting, word, release) in
        [("[never] deny", "never", "5.15.0-91-generic"), ("never [deny]", "deny", "6.8.0")]
    {
        tree.file(file, format!("always within_size advise {setting} force\n"));
        tree.file("proc/sys/kernel/osrelease", release);
        let report = tree.machine().preflight(&requirements(GIB, "thp,4k").shared(true));
        let check = expect(&report, "thp.shmem", Value::Text(word.into()), Verdict::Warn);
        assert_fixes(check, &["echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"]);
        // The setting for private memory does not matter then.
        assert_eq!(report.check("thp.enabled").unwrap().need, None);
    }
    tree.file(file, "whatever [new] word\n");
    let report = tree.machine().preflight(&requirements(GIB, "thp").shared(true));
    expect(&report, "thp.shmem", Value::Text("new".into()), Verdict::Unknown);
}

#[test]
fn too_little_memory() {
    let tree = Tree::roomy();
    let verdict = |size| {
        let report = tree.machine().preflight(&requirements(size, "thp,4k"));
        expect(
            &report,
            "memory.available",
            Value::Bytes(100 * GIB),
            report.check("memory.available").unwrap().verdict,
        )
        .clone()
    };
    assert_eq!(verdict(90 * GIB).verdict, Verdict::Ok);
    assert_eq!(verdict(97 * GIB).verdict, Verdict::Warn, "less than a twentieth would stay");
    let check = verdict(101 * GIB);
    assert_eq!(check.verdict, Verdict::Fail);
    assert_fixes(&check, &["request at most 95 GiB"]);
}

#[test]
fn overcommit() {
    let mut tree = Tree::roomy();
    let report = tree.machine().preflight(&requirements(200 * GIB, "4k"));
    expect(&report, "memory.overcommit", Value::Bytes(128 * GIB), Verdict::Warn);
    tree.file("proc/sys/vm/overcommit_memory", "2\n");
    let report = tree.machine().preflight(&requirements(63 * GIB, "4k"));
    expect(&report, "memory.overcommit", Value::Bytes(63 * GIB), Verdict::Ok);
    let report = tree.machine().preflight(&requirements(64 * GIB, "4k"));
    let check = expect(&report, "memory.overcommit", Value::Bytes(63 * GIB), Verdict::Fail);
    assert_fixes(check, &["sysctl vm.overcommit_kbytes=68157440"]);
    tree.file("proc/sys/vm/overcommit_memory", "1\n");
    let report = tree.machine().preflight(&requirements(1 << 50, "4k"));
    expect(&report, "memory.overcommit", Value::Unlimited, Verdict::Ok);
    tree.file("proc/sys/vm/overcommit_memory", "3\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "memory.overcommit", Value::Text("mode 3".into()), Verdict::Unknown);
}

#[test]
fn swap_matters_only_for_unpinned_memory() {
    let mut tree = Tree::roomy();
    tree.line("proc/meminfo", "SwapTotal", "SwapTotal:  8388608 kB");
    let swap = |tree: &Tree, ladder: &str, pinned, verdict| {
        let report = tree.machine().preflight(&requirements(GIB, ladder).pinned(pinned));
        expect(&report, "memory.swap", Value::Bytes(8 * GIB), verdict);
    };
    swap(&tree, "4k", true, Verdict::Ok);
    swap(&tree, "2M", false, Verdict::Ok);
    swap(&tree, "4k", false, Verdict::Warn);
    tree.unified(
        "/a",
        "/",
        &[("/", &[]), ("/a", &[("memory.swap.max", "0"), ("cgroup.type", "domain")])],
    );
    swap(&tree, "4k", false, Verdict::Ok);
}

/// Returns a machine with four nodes, two of which are allowed.
fn numa() -> Tree {
    let mut tree = Tree::roomy();
    tree.file("sys/devices/system/node/online", "0-3\n");
    tree.line("proc/self/status", "Mems_allowed_list", "Mems_allowed_list:\t1-2");
    for (node, hugepages, free_gib) in [(0, 16_384, 30), (1, 12_288, 30), (2, 4096, 5), (3, 0, 30)]
    {
        let folder = format!("sys/devices/system/node/node{node}");
        let kib = free_gib << 20;
        tree.pool(&format!("{folder}/hugepages"), 2 << 20, hugepages, hugepages)
            .pool(&format!("{folder}/hugepages"), 1 << 30, 0, 0)
            .file(
                &format!("{folder}/meminfo"),
                format!(
                    "Node {node} MemTotal: 33554432 kB\n\
                     Node {node} MemFree: {kib} kB\n\
                     Node {node} Inactive(file): 1048576 kB\n"
                ),
            );
    }
    tree
}

#[test]
fn allowed_nodes() {
    let tree = numa();
    let report = tree.machine().preflight(&requirements(64 * GIB, "2M,4k"));
    expect(&report, "numa.nodes", Value::Text("1-2".into()), Verdict::Ok);
    // The pool has 32,768 free pages, but half of them are on other nodes.
    let check = expect(&report, "hugepages.2M", Value::Count(16_384), Verdict::Warn);
    let command = "numactl -m 1-2 sh -c \
        'echo 49152 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages_mempolicy'";
    assert_fixes(check, &[command]);
    expect(&report, "hugepages.2M.node1", Value::Count(12_288), Verdict::Warn);
    expect(&report, "hugepages.2M.node2", Value::Count(4096), Verdict::Warn);
    assert!(report.check("hugepages.2M.node0").is_none());
    // 32 GiB of ordinary memory, half of it from each node.
    expect(&report, "memory.node1", Value::Bytes(31 * GIB), Verdict::Ok);
    let check = expect(&report, "memory.node2", Value::Bytes(6 * GIB), Verdict::Warn);
    assert_eq!(check.need, Some(Value::Bytes(16 * GIB)));
}

#[test]
fn required_nodes() {
    let tree = numa();
    let report = tree.machine().preflight(&requirements(24 * GIB, "2M").nodes([1]));
    expect(&report, "hugepages.2M", Value::Count(12_288), Verdict::Ok);
    expect(&report, "hugepages.2M.node1", Value::Count(12_288), Verdict::Ok);
    assert!(report.check("hugepages.2M.node2").is_none());
    assert!(report.passes(), "{report}");
    let report = tree.machine().preflight(&requirements(GIB, "2M").nodes([3, 1]));
    let check = expect(&report, "numa.nodes", Value::Text("1-2".into()), Verdict::Fail);
    assert_fixes(check, &["docker run --cpuset-mems=1,3"]);
    let report = tree.machine().preflight(&requirements(GIB, "2M").nodes([9]));
    let check = expect(&report, "numa.nodes", Value::Text("1-2".into()), Verdict::Fail);
    assert!(check.why.contains("no node 9"), "{check:?}");
    // No node can provide memory.
    expect(&report, "hugepages.2M", Value::Count(0), Verdict::Fail);
}
