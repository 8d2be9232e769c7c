//! Limits that surprise: calls that pin too much at once, files that engines leave behind, idle
//! hugepages, and faults of kernels.

use kvmem::arena::Errno;
use kvmem::arena::preflight::{FileSystemSpace, Value, Verdict};

use super::tree::Tree;
use super::{GIB, MIB, assert_fixes, expect, requirements};

fn text(word: &str) -> Value {
    Value::Text(word.into())
}

#[test]
fn drivers_pin_less_than_512_gib_with_one_call() {
    let mut tree = Tree::roomy();
    let report = tree.machine().preflight(&requirements(600 * GIB, "4k"));
    expect(&report, "pin.driver", text("none"), Verdict::Ok);
    for (version, size, pinned, verdict) in [
        ("575.57.08", 600, true, Verdict::Ok),
        ("580.65.06", 511, true, Verdict::Ok),
        ("580.65.06", 512, true, Verdict::Warn),
        ("595.12", 600, true, Verdict::Warn),
        ("595.12", 600, false, Verdict::Ok),
    ] {
        tree.file("sys/module/nvidia/version", format!("{version}\n"));
        let report = tree.machine().preflight(&requirements(size * GIB, "4k").pinned(pinned));
        let check = expect(&report, "pin.driver", text(version), verdict);
        if verdict == Verdict::Warn {
            assert!(check.why.contains("pieces of 1 GiB"), "{check:?}");
            assert_fixes(check, &["register the memory with the device `cuda`"]);
            assert!(check.source.as_ref().is_some_and(|source| source.contains('#')), "{check:?}");
        }
    }
    tree.file("sys/module/nvidia/version", "unknown\n");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "pin.driver", Value::Unknown, Verdict::Unknown);
}

#[test]
fn some_kernels_pin_two_gib_with_one_call_of_a_driver() {
    let mut tree = Tree::roomy();
    tree.file("sys/module/nvidia/version", "570.1\n");
    for (release, size, verdict) in [
        ("6.10.0", 3 * GIB, Verdict::Ok),
        ("6.11.0-26-generic", 2 * GIB, Verdict::Ok),
        ("6.11.0-26-generic", 2 * GIB + MIB, Verdict::Warn),
        ("6.13.2", 3 * GIB, Verdict::Warn),
        ("6.14.1", 3 * GIB, Verdict::Ok),
    ] {
        tree.file("proc/sys/kernel/osrelease", release);
        let report = tree.machine().preflight(&requirements(size, "4k"));
        expect(&report, "pin.kernel", text(&release[..4]), verdict);
    }
    // Nothing pins so much at once without a driver for GPUs.
    tree.file("proc/sys/kernel/osrelease", "6.12.1\n").without("sys/module/nvidia");
    let report = tree.machine().preflight(&requirements(3 * GIB, "4k"));
    expect(&report, "pin.kernel", text("6.12"), Verdict::Ok);
}

#[test]
fn files_that_engines_leave_behind() {
    let mut tree = Tree::roomy();
    let files = |tree: &Tree, bytes, verdict| {
        let report = tree.machine().preflight(&requirements(GIB, "2M"));
        expect(&report, "shm.files", Value::Bytes(bytes), verdict).clone()
    };
    files(&tree, 0, Verdict::Ok);
    tree.file("dev/shm/vllm_offload_e1.mmap", vec![1; 8 << 10])
        .file("dev/shm/psm_1", vec![1; 4 << 10])
        .file("dev/shm/of another program", vec![1; 4 << 10])
        .file("proc/5/maps", "1000-2000 rw-s 00000000 00:1a 9    /dev/shm/psm_1\n")
        .folder("proc/5/fd")
        .link("proc/self/ns/pid", "pid:[4026531836]");
    let check = files(&tree, 8 << 10, Verdict::Warn);
    // SAFETY: the call takes no argument and cannot fail.
    let user = unsafe { libc::getuid() };
    let named = format!("vllm_offload_e1.mmap (vLLM, 8 KiB, user {user})");
    assert!(check.why.contains(&named), "{check:?}");
    assert_fixes(&check, &["rm -f /dev/shm/vllm_offload_e1.mmap"]);
    // It is in use while a process has it open.
    tree.link("proc/5/fd/7", "/dev/shm/vllm_offload_e1.mmap");
    let check = files(&tree, 12 << 10, Verdict::Ok);
    assert!(check.why.contains("process 5"), "{check:?}");
    // A process whose maps cannot be read may have a file open.
    tree.file("dev/shm/sglang_host_pool_d.mmap", vec![1; 4 << 10]);
    let check = files(&tree, 4 << 10, Verdict::Warn);
    assert!(check.why.contains("sglang_host_pool_d.mmap (SGLang, 4 KiB"), "{check:?}");
    tree.folder("proc/9/maps");
    let check = files(&tree, 4 << 10, Verdict::Warn);
    assert!(check.why.contains("may be in use"), "{check:?}");
    tree.without("proc/9").without("dev/shm/sglang_host_pool_d.mmap");
    // In a container, a process cannot see the others.
    tree.without("proc/5").without("proc/self/ns").link("proc/self/ns/pid", "pid:[4026532001]");
    let check = files(&tree, 12 << 10, Verdict::Warn);
    assert!(check.why.contains("may be in use"), "{check:?}");
    assert!(!check.fix.as_ref().unwrap().contains("rm "), "{check:?}");
    // A name that a shell does not take literally is in no command.
    tree.without("proc/self/ns").link("proc/self/ns/pid", "pid:[4026531836]");
    tree.without("dev/shm").file("dev/shm/vllm_offload_$(reboot); x", vec![1; 4096]);
    let check = files(&tree, 4096, Verdict::Warn);
    assert_fixes(&check, &["remove the files with these names in /dev/shm"]);
}

#[test]
fn idle_hugepages() {
    let mut tree = Tree::roomy();
    let idle = |tree: &Tree, size, ladder: &str, bytes, verdict| {
        let report = tree.machine().preflight(&requirements(size, ladder));
        expect(&report, "hugepages.idle", Value::Bytes(bytes), verdict).clone()
    };
    idle(&tree, 64 * GIB, "2M", 0, Verdict::Ok);
    // A twentieth of 128 GiB may stay idle.
    idle(&tree, 58 * GIB, "2M", 6 * GIB, Verdict::Ok);
    let check = idle(&tree, 32 * GIB, "2M,4k", 32 * GIB, Verdict::Warn);
    assert_fixes(&check, &["request more memory in them"]);
    let check = idle(&tree, 32 * GIB, "thp,4k", 64 * GIB, Verdict::Warn);
    assert_fixes(
        &check,
        &[
            "request 2M pages first: --pages 2M,thp,4k",
            "or give them back, if no other program will use them: sysctl vm.nr_hugepages=0",
        ],
    );
    tree.pool("sys/kernel/mm/hugepages", 1 << 30, 20, 16);
    let check = idle(&tree, 64 * GIB, "2M", 16 * GIB, Verdict::Warn);
    assert!(
        check
            .fix
            .as_ref()
            .unwrap()
            .ends_with("echo 4 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")
    );
}

#[test]
fn shared_memory_is_collapsed_as_a_trial() {
    let mut tree = Tree::roomy();
    let thp = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let collapse = |tree: &Tree, ladder: &str, shared, word: &str, verdict| {
        let report = tree.machine().preflight(&requirements(GIB, ladder).shared(shared));
        expect(&report, "thp.collapse", text(word), verdict);
    };
    collapse(&tree, "thp,4k", true, "works", Verdict::Ok);
    tree.system.collapse = Some(Err(Errno::EINVAL));
    collapse(&tree, "thp,4k", true, "fails", Verdict::Ok);
    tree.file(thp, "always within_size advise [never] deny force\n");
    collapse(&tree, "thp,4k", false, "fails", Verdict::Ok);
    collapse(&tree, "thp,4k", true, "fails", Verdict::Warn);
    collapse(&tree, "thp", true, "fails", Verdict::Fail);
    tree.system.collapse = None;
    let report = tree.machine().preflight(&requirements(GIB, "thp").shared(true));
    expect(&report, "thp.collapse", Value::Unknown, Verdict::Unknown);
}

#[test]
fn the_default_size_of_dev_shm_in_containers() {
    let mut tree = Tree::roomy();
    for (total_bytes, verdict) in [(64 * MIB, Verdict::Warn), (65 * MIB, Verdict::Ok)] {
        tree.system.shm = Some(FileSystemSpace { total_bytes, free_bytes: total_bytes });
        let report = tree.machine().preflight(&requirements(GIB, "2M"));
        let check = expect(&report, "shm.size", Value::Bytes(total_bytes), verdict);
        if verdict == Verdict::Warn {
            assert_fixes(check, &["docker run --shm-size=1g"]);
        }
    }
    tree.system.shm = Some(FileSystemSpace { total_bytes: 0, free_bytes: 0 });
    let report = tree.machine().preflight(&requirements(GIB, "2M"));
    expect(&report, "shm.size", Value::Unlimited, Verdict::Ok);
}

#[test]
fn zswap_matters_only_for_memory_that_is_swapped() {
    let mut tree = Tree::roomy();
    let zswap = |tree: &Tree, pinned, word: &str, verdict| {
        let report = tree.machine().preflight(&requirements(GIB, "4k").pinned(pinned));
        expect(&report, "memory.zswap", text(word), verdict).clone()
    };
    zswap(&tree, false, "off", Verdict::Ok);
    let setting = "sys/module/zswap/parameters/enabled";
    tree.file(setting, "Y\n");
    zswap(&tree, false, "on", Verdict::Ok);
    tree.line("proc/meminfo", "SwapTotal", "SwapTotal:  8388608 kB");
    let check = zswap(&tree, false, "on", Verdict::Warn);
    assert_fixes(&check, &["echo N > /sys/module/zswap/parameters/enabled"]);
    zswap(&tree, true, "on", Verdict::Ok);
    tree.without("sys/module/zswap");
    zswap(&tree, false, "none", Verdict::Ok);
    tree.without("sys/module");
    let report = tree.machine().preflight(&requirements(GIB, "4k"));
    expect(&report, "memory.zswap", Value::Unknown, Verdict::Unknown);
}

#[test]
fn clones_of_fixed_buffers() {
    let mut tree = Tree::roomy();
    for (release, size, pinned, verdict, word) in [
        ("6.8.0", 64 * GIB, true, Verdict::Ok, "own table"),
        ("6.8.0", 256 * GIB, true, Verdict::Warn, "about 49 s"),
        ("6.8.0", 256 * GIB, false, Verdict::Ok, "own table"),
        ("6.13.0", 256 * GIB, true, Verdict::Ok, "only behind the last"),
        ("6.18.44", 256 * GIB, true, Verdict::Ok, "only behind the last"),
        ("6.19.0", 256 * GIB, true, Verdict::Ok, "no fault"),
    ] {
        tree.file("proc/sys/kernel/osrelease", release);
        let report = tree.machine().preflight(&requirements(size, "thp,4k").pinned(pinned));
        let version = release.rsplit_once('.').expect("three numbers").0;
        let check = expect(&report, "kernel.ring_clone", text(version), verdict);
        assert!(check.why.contains(word), "{check:?}");
    }
}
