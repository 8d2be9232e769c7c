//! *Processors*: how many threads of this process can run at once.

use std::sync::OnceLock;

use super::cgroup_level::CgroupLevel;
use super::cgroups::Cgroups;
use super::files::MachineFiles;
use crate::sys;

/// Returns the number of cores that the process may use: those of its affinity mask, or fewer if a
/// cgroup's CPU quota is smaller. At least 1.
pub(crate) fn usable_cores() -> usize {
    static LEVELS: OnceLock<Vec<CgroupLevel>> = OnceLock::new();
    let files = MachineFiles::here();
    let levels = LEVELS.get_or_init(|| cpu_levels(&files));
    let mask = sys::affinity().unwrap_or(1);
    let cores = within_quota(mask as u64, tightest_quota(&files, levels));
    usize::try_from(cores).unwrap_or(mask)
}

/// Finds the levels of cgroups that may limit processors.
pub(crate) fn cpu_levels(files: &MachineFiles) -> Vec<CgroupLevel> {
    Cgroups::visible(files, "cpu")
}

/// Returns the smallest CPU quota of these levels in thousandths of a processor; a level that
/// cannot be read counts as one without a quota.
pub(crate) fn tightest_quota(files: &MachineFiles, levels: &[CgroupLevel]) -> Option<u64> {
    levels.iter().filter_map(|level| level.cpu_quota(files).ok().flatten()).min()
}

/// Returns how many of `cores` can run at once under a quota in thousandths of a processor.
///
/// Rounds up: a part of a processor is worth one more thread. Under a quota of 1.5 processors one
/// thread uses only 1. Two threads use all of 1.5: in each period of 100 ms they run 75 ms together
/// and are throttled 25 ms, so the same work ends in two thirds of the time. The threads are never
/// slower than one fewer, because the quota bounds the time of all of them together. Where the
/// number of threads is measured, a number that gains nothing is not kept.
pub(crate) fn within_quota(cores: u64, quota: Option<u64>) -> u64 {
    quota.map_or(cores, |quota| cores.min(quota.div_ceil(1000))).max(1)
}
