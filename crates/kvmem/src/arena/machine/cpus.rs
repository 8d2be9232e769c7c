//! *Cores*: how many threads of this process can run at once.

use std::sync::OnceLock;

use super::groups::{Group, groups};
use crate::sys;

/// Returns the number of cores that the process may use: those of its affinity mask, or fewer if a
/// cgroup's CPU quota is smaller. At least 1.
pub(crate) fn usable_cores() -> usize {
    let cores = sys::affinity().unwrap_or(1);
    quota().map_or(cores, |quota| cores.min(quota)).max(1)
}

/// Returns the tightest quota in whole cores. The kernel would throttle more threads than that in
/// turn.
fn quota() -> Option<usize> {
    static GROUPS: OnceLock<Vec<Group>> = OnceLock::new();
    let read = |group: &Group| -> Option<usize> {
        let (quota, period) = if group.unified {
            let text = group.text("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
        } else {
            (group.number("cpu.cfs_quota_us")?, group.number("cpu.cfs_period_us")?)
        };
        usize::try_from(quota.checked_div(period)?).ok()
    };
    GROUPS.get_or_init(|| groups("cpu")).iter().filter_map(read).min()
}
