//! The suite of memory for GPUs, on a stand-in for the driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmem_bench::gpu::{
    self, CopyOrder, GpuMeasureError, GpuMemory, GpuOptions, GpuPolicy, GpuScenario,
};

use crate::suite::{Watch, check_names, check_rows};

/// A compiled stand-in, in a file of its own: a library has only one state.
struct Driver(PathBuf);

impl Driver {
    /// Compiles it with these macros.
    fn new(name: &str, macros: &[&str]) -> Driver {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("gpu-{name}-{}.so", std::process::id()));
        let code = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gpu_driver.c");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-O1", "-Wall", "-fPIC", "-shared", "-pthread"]);
        cc.args(["-fvisibility=hidden", "-o"]).arg(&path).arg(&code);
        cc.args(macros.iter().map(|name| format!("-D{name}")));
        let output = cc.output().expect("a C compiler: Rust has it for a linker");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Driver(path)
    }

    fn options(&self) -> GpuOptions {
        let library = Some(OsString::from(&self.0));
        GpuOptions { quick: true, reps: Some(1), library, ..GpuOptions::default() }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const KEYS: [&str; 13] = [
    "scenario",
    "memory",
    "resident",
    "policy",
    "piece_bytes",
    "threads",
    "contexts",
    "ready_s_per_gib",
    "back_s_per_gib",
    "block_bytes",
    "order",
    "gb_per_s",
    "failed",
];

#[test]
fn each_kind_of_memory_is_registered_and_copied() {
    let driver = Driver::new("all", &[]);
    let mut watch = Watch::default();
    // SAFETY: the stand-in behaves like the driver.
    let report = unsafe { gpu::run(&driver.options(), &mut watch) }.unwrap();
    check_rows(&report, &watch, &KEYS);
    assert_eq!(report.details.model, "Stand-in 0");
    // Hugepages of the pool may be missing, and nothing else.
    let absent = |memory| report.skipped.iter().any(|skipped| skipped.memory == Some(memory));
    assert!(report.skipped.iter().all(|skipped| skipped.memory == Some(GpuMemory::Huge)));
    let has = |scenario, memory, policy| {
        let row = report.rows.iter().find(|row| {
            (row.scenario, row.memory, row.policy) == (scenario, memory, policy)
                && row.failed.is_none()
        });
        assert!(row.is_some() || absent(memory), "{scenario} {memory} {policy:?}");
    };
    for memory in [GpuMemory::Base, GpuMemory::Thp, GpuMemory::Huge] {
        has(GpuScenario::Register, memory, Some(GpuPolicy::Fixed));
        has(GpuScenario::Register, memory, Some(GpuPolicy::Auto));
    }
    for memory in [GpuMemory::Driver, GpuMemory::Node] {
        has(GpuScenario::Register, memory, Some(GpuPolicy::Allocated));
    }
    for memory in GpuMemory::ALL {
        has(GpuScenario::ToDevice, memory, None);
        has(GpuScenario::FromDevice, memory, None);
    }
    for row in &report.rows {
        assert_eq!(row.failed, None, "{row:?}");
        let registers = row.scenario == GpuScenario::Register;
        assert_eq!(row.ready_s_per_gib.is_some_and(|figure| figure > 0.0), registers, "{row:?}");
        assert_eq!(row.gb_per_s.is_some_and(|figure| figure > 0.0), !registers, "{row:?}");
    }
    let own = report.rows.iter().filter(|row| row.contexts == Some(4));
    assert!(own.count() >= 4, "threads with contexts of their own");
    let text = report.to_string();
    for part in ["thp, resident: 4 MiB × 2", "copies to the GPU", "pageable", "auto"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn without_a_driver_the_report_says_why() {
    let library = Some("/nonexistent/libcuda.so.1".into());
    let options = GpuOptions { quick: true, library, ..GpuOptions::default() };
    // SAFETY: there is no such library.
    let report = unsafe { gpu::run(&options, &mut Watch::default()) }.unwrap();
    assert!(report.rows.is_empty() && report.goals.is_empty());
    let text = report.to_string();
    assert!(text.contains("skipped: no library: "), "{text}");
}

#[test]
fn an_old_driver_has_no_memory_of_numa_nodes() {
    let driver = Driver::new("old", &["cuMemCreate=another_function"]);
    // SAFETY: the stand-in behaves like a driver before CUDA 12.
    let report = unsafe { gpu::run(&driver.options(), &mut Watch::default()) }.unwrap();
    let row = report.rows.iter().find(|row| row.memory == GpuMemory::Node).unwrap();
    assert!(row.failed.as_deref().is_some_and(|reason| reason.contains("cuMemCreate")), "{row:?}");
    assert!(report.to_string().contains("this driver has no cuMemCreate"), "{report}");
}

#[test]
fn a_copy_that_loses_bytes_ends_the_run() {
    let driver = Driver::new("broken", &["BROKEN"]);
    // SAFETY: the stand-in behaves like a driver whose GPU copies nothing.
    let error = unsafe { gpu::run(&driver.options(), &mut Watch::default()) }.unwrap_err();
    assert!(matches!(error.error, GpuMeasureError::Wrong(_)), "{error}");
}

#[test]
fn names_are_those_of_the_command_line() {
    check_names::<GpuScenario>();
    check_names::<GpuMemory>();
    check_names::<GpuPolicy>();
    check_names::<CopyOrder>();
}
