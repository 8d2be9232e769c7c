//! *Diagnosis*: finds the limit behind a failed system call. The kernel says ENOMEM for half a
//! dozen limits.

use std::ops::Range;

use super::arena_error::ArenaError;
use super::limit::Limit;
use crate::arena::machine::{hugetlb, meminfo};
use crate::arena::{Call, Errno, Fallback, PageSize};
use crate::sys::{self, Resource};

/// Returns the error for a call that failed while mapping, with the limit that was reached.
pub(crate) fn call_failed(call: Call, bytes: usize, errno: Errno) -> ArenaError {
    ArenaError::CallFailed { call, bytes, errno, limit: limit_behind(errno, bytes as u64) }
}

/// Returns the limit that a call for `bytes` more bytes has reached, if it can be found.
pub(crate) fn limit_behind(errno: Errno, bytes: u64) -> Option<Limit> {
    let limit = |resource| sys::resource_limit(resource).ok().flatten();
    match errno {
        Errno::EAGAIN => limit(Resource::Locked).map(Limit::Locked),
        Errno::EFBIG => limit(Resource::FileSize).map(Limit::FileSize),
        Errno::ENOMEM => {
            let used = used().unwrap_or_default();
            let exceeds = |used: u64| move |max: &u64| used.saturating_add(bytes) > *max;
            let address_space = || limit(Resource::AddressSpace).filter(exceeds(used.total));
            let data = || limit(Resource::Data).filter(exceeds(used.data));
            address_space()
                .map(Limit::AddressSpace)
                .or_else(|| longest_free().filter(|free| bytes > *free).map(Limit::Addresses))
                .or_else(|| data().map(Limit::Data))
                .or_else(commit_limit)
                .or_else(map_limit)
        }
        _ => None,
    }
}

/// Returns the length in bytes of the longest free address range of the process.
fn longest_free() -> Option<u64> {
    longest_gap(&sys::read_text("/proc/self/maps").ok()?)
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

#[derive(Default)]
struct MemoryUse {
    total: u64,
    data: u64,
}

/// Returns the bytes of addresses, and of private writable memory, that the process uses.
fn used() -> Option<MemoryUse> {
    let text = sys::read_text("/proc/self/statm").ok()?;
    let pages: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |field: usize| Some(pages.get(field)?.saturating_mul(sys::page_size() as u64));
    Some(MemoryUse { total: bytes(0)?, data: bytes(5)? })
}

fn commit_limit() -> Option<Limit> {
    let mode = sys::read_text("/proc/sys/vm/overcommit_memory").ok()?;
    (mode.trim() == "2").then_some(())?;
    meminfo(&["CommitLimit:"]).map(Limit::Commit)
}

fn map_limit() -> Option<Limit> {
    let max: u64 = sys::read_text("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let now = sys::read_text("/proc/self/maps").ok()?.lines().count() as u64;
    // One call can need two more mappings.
    (now + 3 > max).then_some(Limit::Maps(max))
}

/// Returns the error for a range that no rung of the ladder could take; `page` is the last one.
pub(crate) fn no_pages(range: Range<usize>, page: PageSize, reason: Fallback) -> ArenaError {
    let limit = match reason {
        Fallback::PoolShort { page, .. } | Fallback::PoolFailed { page, .. } => {
            hugetlb::free(page).map(|free| Limit::Pool { page, free })
        }
        _ => None,
    };
    ArenaError::NoPages { range, page, reason, limit }
}

#[cfg(test)]
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
