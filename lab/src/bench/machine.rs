//! The machine of a report.

use std::{fmt, fs};

/// The machine, as far as the system describes it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Bytes of memory; 0 when unknown.
    pub memory_bytes: u64,
    /// Operating system and architecture.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
}

impl Machine {
    /// Describes this machine. Unknown fields are "unknown".
    pub fn here() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kib| kib << 10),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| unknown(), |text| text.trim().to_owned()),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · {} cores · {} {}", self.cpu, self.cores, self.os, self.kernel)
    }
}

/// Returns the first value of `key` in a file of `key : value` lines.
fn field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
}

/// Returns the resident bytes of this process, if the system reports them.
pub fn resident_bytes() -> Option<u64> {
    // The status file's counters may lag by some pages per thread; the rollup walks the page
    // tables.
    let kib =
        field("/proc/self/smaps_rollup", "Rss").or_else(|| field("/proc/self/status", "VmRSS"))?;
    kib.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}
