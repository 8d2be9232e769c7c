//! GPUs and NICs: their nodes, and the IOMMU before them.

use kvmem::arena::preflight::{Value, Verdict};

use super::tree::Tree;
use super::{GIB, assert_fixes, expect, requirements};

const GPU: &str = "0000:3b:00.0";

/// Returns a machine with two nodes, a GPU on node 0 and a NIC on node 1.
fn two_nodes(iommu: Option<&str>) -> Tree {
    let mut tree = Tree::roomy();
    tree.file("sys/devices/system/node/online", "0-1\n")
        .line("proc/self/status", "Mems_allowed_list", "Mems_allowed_list:\t0-1")
        .file("sys/devices/system/node/node0/distance", "10 32\n")
        .file("sys/devices/system/node/node1/distance", "32 10\n")
        .pci(GPU, ["0x10de", "0x030200", "0"], iommu)
        .pci("0000:00:02.0", ["0x1af4", "0x010000", "0"], Some("DMA"))
        .file("sys/class/infiniband/mlx5_0/device/numa_node", "1\n");
    tree
}

#[test]
fn memory_is_near_a_device_or_far_from_it() {
    let mut tree = two_nodes(None);
    let names = [format!("numa.{GPU}"), "numa.mlx5_0".to_owned()];
    for (nodes, gpu, nic) in [
        (&[][..], (32, Verdict::Ok), (32, Verdict::Ok)),
        (&[0], (10, Verdict::Ok), (32, Verdict::Warn)),
        (&[1], (32, Verdict::Warn), (10, Verdict::Ok)),
        (&[0, 1], (32, Verdict::Warn), (32, Verdict::Warn)),
    ] {
        let report =
            tree.machine().preflight(&requirements(GIB, "4k").nodes(nodes.iter().copied()));
        for (name, (distance, verdict)) in names.iter().zip([gpu, nic]) {
            let check = expect(&report, name, Value::Count(distance), verdict);
            if verdict == Verdict::Warn {
                let node = if name == &names[0] { 0 } else { 1 };
                assert_fixes(check, &[&format!("docker run --cpuset-mems={node}")]);
            }
        }
    }
    // The cpuset keeps the memory away from the GPU.
    tree.line("proc/self/status", "Mems_allowed_list", "Mems_allowed_list:\t1");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, &names[0], Value::Count(32), Verdict::Warn);
    // The firmware of a virtual machine often does not report it.
    tree.file(&format!("sys/bus/pci/devices/{GPU}/numa_node"), "-1\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, &names[0], Value::Unknown, Verdict::Unknown);
    // On one node, all memory is near.
    tree.file("sys/devices/system/node/online", "0\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    assert_eq!(report.check(&names[0]), None);
}

#[test]
fn an_iommu_that_translates() {
    for (kind, word, verdict) in [
        (None, "off", Verdict::Ok),
        (Some("identity"), "identity", Verdict::Ok),
        (Some("DMA"), "DMA", Verdict::Warn),
        (Some("DMA-FQ"), "DMA-FQ", Verdict::Warn),
    ] {
        let tree = two_nodes(kind);
        let report = tree.machine().preflight(&requirements(GIB, "4k"));
        let check = expect(&report, "iommu", Value::Text(word.into()), verdict);
        if verdict == Verdict::Warn {
            assert!(check.why.contains(GPU) && !check.why.contains("0000:00:02.0"), "{check:?}");
            assert!(check.fix.as_ref().unwrap().contains("iommu=pt"), "{check:?}");
            let unpinned = tree.machine().preflight(&requirements(GIB, "4k").pinned(false));
            expect(&unpinned, "iommu", Value::Text(word.into()), Verdict::Ok);
        }
    }
    // A disk behind an IOMMU concerns nobody here.
    let mut tree = Tree::roomy();
    tree.pci("0000:00:02.0", ["0x1af4", "0x010000", "0"], Some("DMA"));
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "iommu", Value::Text("no use".into()), Verdict::Ok);
    tree.without("sys/bus");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "iommu", Value::Unknown, Verdict::Unknown);
}
