//! *Process*: what this process has mapped, and the limits that mapping more can reach.

use super::files::MachineFiles;
use super::files::Read;
use super::meminfo::meminfo;
use super::parse;
use crate::sys;

/// The memory that the process uses.
#[derive(Default)]
pub(crate) struct MemoryUse {
    /// Bytes of addresses.
    pub(crate) total: u64,
    /// Bytes of private writable memory.
    pub(crate) data: u64,
}

/// Returns the memory that the process uses.
pub(crate) fn memory_use() -> Option<MemoryUse> {
    let text = MachineFiles::here().text("/proc/self/statm").ok()?;
    let pages: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |field: usize| Some(pages.get(field)?.saturating_mul(sys::page_size() as u64));
    Some(MemoryUse { total: bytes(0)?, data: bytes(5)? })
}

/// Returns the length in bytes of the longest free address range of the process.
pub(crate) fn longest_free() -> Option<u64> {
    longest_gap(&MachineFiles::here().text("/proc/self/maps").ok()?)
}

/// Returns the length of the longest gap in the text of `/proc/PID/maps`. The stack is mapped at
/// the upper end of the address space, which is a power of two.
fn longest_gap(maps: &str) -> Option<u64> {
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    let (mut longest, mut end) = (0, 0);
    // On some machines the text lists a mapping in the kernel's half.
    for (from, to) in maps.lines().filter_map(range).filter(|(_, to)| *to < 1 << 63) {
        longest = longest.max(from.saturating_sub(end));
        end = end.max(to);
    }
    (end > 0).then(|| longest.max(end.next_power_of_two() - end))
}

/// Returns the kernel's commit limit in bytes, if it is in force.
pub(crate) fn commit_limit() -> Option<u64> {
    let mode = MachineFiles::here().value("/proc/sys/vm/overcommit_memory", parse::number).ok()?;
    if mode == 2 { meminfo(&["CommitLimit"]) } else { None }
}

/// Returns the largest number of mappings, and the number of those that the process has.
pub(crate) fn mappings(files: &MachineFiles) -> Read<(u64, u64)> {
    let max = files.value("/proc/sys/vm/max_map_count", parse::number)?;
    Ok((max, files.lines("/proc/self/maps")?))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_longest_free_range_lies_between_mappings_or_at_an_end() {
        let maps = "10000-11000 r-xp 0 0:0 1 a\n\
                    21000-22000 rw-p 0 0:0 0\n\
                    ffffffffff600000-ffffffffff601000 --xp 0 0:0 0 [vsyscall]\n";
        assert_eq!(longest_gap(maps), Some(0x40000 - 0x22000));
        assert_eq!(
            longest_gap("10000-11000 r-xp 0 0:0 1 a\n3f000-40000 rw-p 0 0:0 0\n"),
            Some(0x3f000 - 0x11000)
        );
        assert_eq!(longest_gap("7f000-80000 rw-p 0 0:0 0"), Some(0x7f000));
        assert_eq!(longest_gap(""), None);
        assert!(longest_free().is_none_or(|free| free > 1 << 40 && free < 1 << 63));
    }
}
