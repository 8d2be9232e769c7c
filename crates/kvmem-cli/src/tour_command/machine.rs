//! *Machine*: what the tour says about it in one line.

use std::fs::read_to_string;

/// Returns the processor, the number of processors that this process may use, and the kernel.
pub(super) fn line() -> String {
    let unknown = || "unknown".to_owned();
    let name = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor = read_to_string("/proc/cpuinfo").ok().and_then(name).unwrap_or_else(unknown);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown());
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{processor} · {processors} cores · {os} {arch} {}", kernel.trim())
}
