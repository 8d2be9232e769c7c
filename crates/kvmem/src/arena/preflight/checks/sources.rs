//! *Sources*: where the claims of a check can be read.
//!
//! Paths that end with `.rst` are those of the kernel's documentation. `owner/name#N` is a report
//! or a change of that project.

/// The beginnings of check names, and the sources. The first match counts.
const SOURCES: [(&str, &str); 28] = [
    ("hugepages.idle", "proc(5); admin-guide/mm/hugetlbpage.rst"),
    ("hugepages.", "admin-guide/mm/hugetlbpage.rst"),
    ("thp.collapse", "madvise(2), MADV_COLLAPSE"),
    ("thp.shmem", "admin-guide/mm/transhuge.rst; madvise(2), MADV_COLLAPSE"),
    ("thp.", "admin-guide/mm/transhuge.rst"),
    ("memory.available", "proc(5), MemAvailable"),
    ("memory.overcommit", "mm/overcommit-accounting.rst"),
    ("memory.swap", "admin-guide/sysctl/vm.rst; admin-guide/cgroup-v2.rst"),
    ("memory.zswap", "admin-guide/mm/zswap.rst"),
    ("memory.node", "admin-guide/mm/numa_memory_policy.rst"),
    ("cgroup.", "admin-guide/cgroup-v2.rst; admin-guide/cgroup-v1/memory.rst"),
    ("rlimit.", "getrlimit(2)"),
    (
        "pin.driver",
        "NVIDIA/open-gpu-kernel-modules#1234; vllm-project/vllm#51080; LMCache/LMCache#5177",
    ),
    ("pin.kernel", "kernel commit 94efde1d1539; NVIDIA/NV-Kernels#110; NVIDIA/TensorRT-LLM#17773"),
    ("shm.free", "tmpfs.rst; docker run --shm-size"),
    ("shm.size", "NCCL, Troubleshooting, Shared Memory; docker run --shm-size"),
    ("shm.files", "vllm-project/vllm#57303; sgl-project/sglang#28089; llm-d/llm-d#352"),
    ("maps.", "admin-guide/sysctl/vm.rst, max_map_count"),
    ("numa.nodes", "cpuset(7)"),
    ("numa.", "ABI/stable/sysfs-devices-node; ABI/testing/sysfs-bus-pci, numa_node"),
    ("iommu", "ABI/testing/sysfs-kernel-iommu_groups; NVIDIA, GPUDirect RDMA, IOMMU"),
    ("cpus", "sched_setaffinity(2); admin-guide/cgroup-v2.rst"),
    ("kernel.populate", "madvise(2), MADV_POPULATE_WRITE"),
    ("kernel.io_uring", "admin-guide/sysctl/kernel.rst, io_uring_disabled"),
    ("kernel.ring_clone", "io_uring_clone_buffers(3); the kernel's io_uring/rsrc.c"),
    ("tier.io_uring", "admin-guide/sysctl/kernel.rst, io_uring_disabled"),
    ("tier.direct_io", "open(2), O_DIRECT; statx(2), STATX_DIOALIGN"),
    ("tier.", "getrlimit(2); fallocate(2); flock(2); io_uring_register(2)"),
];

/// Returns where the claims of the check of this name can be read.
pub(in crate::arena::preflight) fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, source)| *source)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_longer_name_comes_before_the_beginning_of_it() {
        for (at, (name, _)) in SOURCES.iter().enumerate() {
            let hidden = SOURCES[..at].iter().find(|(begin, _)| name.starts_with(begin));
            assert_eq!(hidden, None, "{name} is never reached");
        }
        assert_eq!(source("none"), None);
    }
}
