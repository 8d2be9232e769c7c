//! *System*: what the machine has to give for the page rows, and the hugepages that a run may borrow from it.

use std::fs;
use std::path::{Path, PathBuf};

const HUGE_PAGE: u64 = 2 << 20;
const HUGE_POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const THP_MODE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Whether the system backs memory with transparent hugepages unasked.
pub(crate) fn thp_always() -> bool {
    fs::read_to_string(THP_MODE).is_ok_and(|modes| modes.contains("[always]"))
}

/// Why there can be no transparent hugepages here, if there can be none.
pub(crate) fn thp_missing() -> Option<String> {
    match fs::read_to_string(THP_MODE) {
        Ok(modes) if modes.contains("[never]") => {
            Some(format!("transparent hugepages are off: echo madvise > {THP_MODE}"))
        }
        Ok(_) => None,
        Err(error) => Some(format!("{THP_MODE} cannot be read: {error}")),
    }
}

/// Bytes that can be made resident now without pushing anything out: what the machine has available, or less where a
/// control group allows less. `None` when the machine does not tell.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let rooms = groups.lines().filter_map(room_in_group);
    Some(rooms.fold(machine, u64::min))
}

/// The least room left in the memory group of a line of `/proc/self/cgroup` and in those above it.
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
    // Inside a container the path may be that of the host, which is not there: the mount's own root then is the group.
    let folders = leaf.ancestors().take_while(|folder| folder.starts_with(root));
    folders
        .filter_map(|folder| Some(number(folder.join(limit))?.saturating_sub(number(folder.join(usage))?)))
        .min()
}

fn number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Hugepages of 2 MiB that are there for as long as this lives. The pool has its former size again afterwards.
#[derive(Debug)]
pub(crate) struct Hugepages {
    restore: Option<u64>,
}

impl Hugepages {
    /// Sees to it that `bytes` of hugepages are free.
    ///
    /// # Errors
    /// Why there are not enough, in words.
    pub(crate) fn borrow(bytes: u64) -> Result<Self, String> {
        let of = |name: &str| {
            let path = Path::new(HUGE_POOL).join(name);
            number(path.clone()).ok_or_else(|| format!("{} cannot be read", path.display()))
        };
        let needed = bytes.div_ceil(HUGE_PAGE);
        let free = || Ok::<u64, String>(of("free_hugepages")?.saturating_sub(of("resv_hugepages")?));
        let lacking = needed.saturating_sub(free()?);
        if lacking == 0 {
            return Ok(Self { restore: None });
        }
        // The kernel would try: it would push everything else out of memory to get them.
        let available = available_bytes().unwrap_or(0) / 2;
        if lacking.saturating_mul(HUGE_PAGE) > available {
            return Err(format!(
                "{lacking} hugepages of 2 MiB are lacking, more than half of the memory that is available"
            ));
        }
        let pool = of("nr_hugepages")?;
        resize(pool + lacking).map_err(|error| {
            format!(
                "{lacking} hugepages of 2 MiB are lacking and {HUGE_POOL}/nr_hugepages cannot be written: {error}"
            )
        })?;
        // From here on the pool is put back, also when it did not grow as far as was asked.
        let borrowed = Self { restore: Some(pool) };
        let found = free()?;
        if found < needed {
            return Err(format!("the system could free only {found} of {needed} hugepages of 2 MiB"));
        }
        Ok(borrowed)
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if let Some(pages) = self.restore {
            // What was writable a moment ago still is; if not, there is nobody here who could do anything about it.
            let _ = resize(pages);
        }
    }
}

fn resize(pages: u64) -> std::io::Result<()> {
    fs::write(Path::new(HUGE_POOL).join("nr_hugepages"), pages.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_of_hugepages_is_left_as_it_was() {
        let pool = || number(Path::new(HUGE_POOL).join("nr_hugepages"));
        let before = pool();
        match Hugepages::borrow(4 * HUGE_PAGE) {
            Ok(borrowed) => {
                assert!(pool() >= before);
                drop(borrowed);
            }
            Err(reason) => {
                assert!(reason.contains("hugepages"), "{reason}");
                println!("skipped: {reason}");
            }
        }
        assert_eq!(pool(), before);
        let reason = Hugepages::borrow(1 << 60).unwrap_err();
        assert!(reason.contains("hugepages"), "{reason}");
        assert_eq!(pool(), before);
    }

    #[test]
    fn available_memory_is_no_more_than_the_machine_has() {
        let all = crate::machine::Machine::here().memory_bytes;
        assert!(available_bytes().is_none_or(|bytes| bytes <= all));
    }
}
