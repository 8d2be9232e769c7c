//! The machine's resources for the page rows.

use std::fs;
use std::path::{Path, PathBuf};

const THP_MODE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Returns whether the system backs memory with transparent hugepages by default.
pub(crate) fn thp_always() -> bool {
    fs::read_to_string(THP_MODE).is_ok_and(|modes| modes.contains("[always]"))
}

/// Returns why transparent hugepages are unavailable, if they are.
pub(crate) fn thp_missing() -> Option<String> {
    match fs::read_to_string(THP_MODE) {
        Ok(modes) if modes.contains("[never]") => {
            Some(format!("transparent hugepages are off: echo madvise > {THP_MODE}"))
        }
        Ok(_) => None,
        Err(error) => Some(format!("cannot read {THP_MODE}: {error}")),
    }
}

/// Returns the bytes that can be made resident now without evicting anything: the machine's
/// available memory, or less if a control group allows less. `None` if the machine does not report
/// it.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let rooms = groups.lines().filter_map(room_in_group);
    Some(rooms.fold(machine, u64::min))
}

/// Returns the smallest headroom among the memory group in a line of `/proc/self/cgroup` and its
/// parents.
fn room_in_group(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (root, limit, usage) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
        list if list.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        }
        _ => return None,
    };
    let leaf = Path::new(root).join(path.trim_start_matches('/'));
    // In a container the path may be the host's and not exist; then the mount's own root is the
    // group.
    let folders = leaf.ancestors().take_while(|folder| folder.starts_with(root));
    folders
        .filter_map(|folder| {
            Some(number(folder.join(limit))?.saturating_sub(number(folder.join(usage))?))
        })
        .min()
}

fn number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_no_more_than_the_machine_has() {
        let all = crate::machine::Machine::here().memory_bytes;
        assert!(available_bytes().is_none_or(|bytes| bytes <= all));
    }
}
