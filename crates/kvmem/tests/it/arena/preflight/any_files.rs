//! Any file contents: nothing panics, and no unread limit is `ok`.

use kvmem::arena::preflight::{Value, Verdict};
use proptest::prelude::*;

use super::tree::Tree;
use super::{GIB, requirements};

/// The files that preflight reads on a machine with two nodes and both versions of cgroups.
const FILES: [&str; 42] = [
    "proc/meminfo",
    "proc/self/status",
    "proc/self/uid_map",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/maps",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/io_uring_disabled",
    "proc/sys/vm/max_map_count",
    "proc/sys/vm/overcommit_memory",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/defrag",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages",
    "sys/devices/system/node/online",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
    "sys/devices/system/node/node1/meminfo",
    "sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages",
    "sys/fs/cgroup/a/memory.max",
    "sys/fs/cgroup/a/memory.high",
    "sys/fs/cgroup/a/memory.current",
    "sys/fs/cgroup/a/memory.stat",
    "sys/fs/cgroup/a/memory.swap.max",
    "sys/fs/cgroup/a/cpu.max",
    "sys/fs/cgroup/a/hugetlb.2MB.max",
    "sys/fs/cgroup/a/hugetlb.2MB.current",
    "sys/fs/cgroup/a/cgroup.type",
    "sys/module/nvidia/version",
    "sys/module/zswap/parameters/enabled",
    "sys/bus/pci/devices/0000:01:00.0/vendor",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "sys/bus/pci/devices/0000:01:00.0/numa_node",
    "sys/bus/pci/devices/0000:01:00.0/iommu_group/type",
    "sys/class/infiniband/mlx5_0/device/numa_node",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node1/distance",
];

fn machine_with_everything() -> Tree {
    let mut tree = Tree::roomy();
    tree.file("sys/devices/system/node/online", "0-1\n");
    tree.line("proc/self/status", "Mems_allowed_list", "Mems_allowed_list:\t0-1");
    tree.line("proc/meminfo", "SwapTotal", "SwapTotal: 4 kB");
    for node in ["node0", "node1"] {
        let folder = format!("sys/devices/system/node/{node}");
        tree.pool(&format!("{folder}/hugepages"), 2 << 20, 9, 9).file(
            &format!("{folder}/meminfo"),
            format!("Node {node} MemFree: 4 kB\nNode {node} Inactive(file): 4 kB\n"),
        );
        tree.file(&format!("{folder}/distance"), "10 21\n");
    }
    tree.unified("/a", "/", &[("/", &[]), ("/a", &[("cgroup.type", "domain")])]);
    for (file, text) in [
        ("memory.max", "8192"),
        ("memory.high", "max"),
        ("memory.current", "4096"),
        ("memory.stat", "inactive_file 1"),
        ("memory.swap.max", "max"),
        ("cpu.max", "max 100000"),
        ("hugetlb.2MB.max", "4194304"),
        ("hugetlb.2MB.current", "0"),
    ] {
        tree.file(&format!("sys/fs/cgroup/a/{file}"), text);
    }
    tree.file(
        "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
        "always [inherit] never\n",
    );
    tree.pci("0000:01:00.0", ["0x10de", "0x030200", "0"], Some("DMA-FQ"));
    tree.file("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    tree.file("sys/module/nvidia/version", "580.65.06\n");
    tree
}

/// Generates arbitrary bytes, and text similar to the kernel's.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    let nearly = "([0-9]{1,20}|max|kB|Node|MemFree|cgroup2|memory|[-:,./ \\[\\]\\\\\n]){0,12}";
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        nearly.prop_map(String::into_bytes),
        Just(u64::MAX.to_string().into_bytes()),
        Just(b"0".to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_file_panics(
        changes in proptest::collection::vec((0..FILES.len(), contents()), 1..8),
        size in prop_oneof![1..u64::MAX >> 1, Just(1 << 63), Just(GIB)],
        ladder in prop_oneof![Just("1G,2M,thp,4k"), Just("2M"), Just("4k"), Just("thp,2M")],
        shared in any::<bool>(),
        pinned in any::<bool>(),
        node in proptest::option::of(0u32..3),
    ) {
        let mut tree = machine_with_everything();
        for (file, text) in changes {
            tree.file(FILES[file], text);
        }
        let requirements = requirements(size, ladder).shared(shared).pinned(pinned).nodes(node);
        let report = tree.machine().preflight(&requirements);
        // Displaying the report does not panic either.
        prop_assert!(report.to_string().contains(&report.tally().to_string()));
        prop_assert!(serde_json::to_string(&report).is_ok());
        for check in &report.checks {
            let unread = check.value == Value::Unknown;
            prop_assert!(!unread || check.verdict == Verdict::Unknown, "{:?}", check);
            let to_fix = matches!(check.verdict, Verdict::Warn | Verdict::Fail);
            prop_assert_eq!(check.fix.is_some(), to_fix, "{:?}", check);
            prop_assert!(check.source.is_some(), "{:?}", check);
        }
        let script = report.fix_script();
        let commands = super::fix_script::commands(&script);
        prop_assert!(commands.is_some(), "{}", script);
    }
}

#[test]
fn unreadable_limits_are_never_ok() {
    let tree = Tree::empty();
    for ladder in ["1G,2M,thp,4k", "thp", "2M"] {
        for shared in [false, true] {
            let report =
                tree.machine().preflight(&requirements(GIB, ladder).shared(shared).nodes([0]));
            assert_eq!(report.tally().unknown, report.checks.len(), "{report}");
            assert_eq!(report.verdict, Verdict::Unknown);
            assert!(
                report
                    .checks
                    .iter()
                    .all(|check| check.value == Value::Unknown && !check.why.is_empty())
            );
        }
    }
}

#[test]
fn each_missing_file_makes_a_check_unknown() {
    let count = |tree: &Tree| {
        let report =
            tree.machine().preflight(&requirements(GIB, "2M,thp,4k").pinned(false).nodes([0, 1]));
        report.tally().unknown
    };
    let whole = machine_with_everything();
    assert_eq!(count(&whole), 0, "{}", whole.machine().preflight(&requirements(GIB, "2M,thp,4k")));
    // These files only make a reason more exact; for the last one, a folder in its place is as good
    // as the file.
    let minor = [
        "uid_map",
        "io_uring_disabled",
        "nr_hugepages",
        "memory.stat",
        "surplus_hugepages",
        "nr_overcommit_hugepages",
        "cgroup.type",
        // Without them the device is no GPU.
        "vendor",
        "class",
    ];
    for file in FILES.iter().filter(|file| !minor.iter().any(|minor| file.ends_with(minor))) {
        let mut tree = machine_with_everything();
        tree.unreadable(file);
        assert!(count(&tree) > 0, "{file} is missing and no check became unknown");
    }
}
