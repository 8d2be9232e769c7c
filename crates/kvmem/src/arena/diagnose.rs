//! *Diagnosis*: which limit was behind a refusal. The kernel says ENOMEM for half a dozen of them.

use super::{ArenaError, Call, Errno, Limit};
use crate::sys::{self, Resource};

/// The error of a call that was refused while mapping, with the limit that was hit.
pub(crate) fn refused(call: Call, bytes: usize, errno: Errno) -> ArenaError {
    ArenaError::Refused { call, bytes, errno, limit: limit_behind(errno, bytes as u64) }
}

/// The limit that a call for so many bytes more has hit, as far as it shows.
pub(crate) fn limit_behind(errno: Errno, bytes: u64) -> Option<Limit> {
    let limit = |resource| sys::resource_limit(resource).ok().flatten();
    match errno {
        Errno::EAGAIN => limit(Resource::Locked).map(Limit::Locked),
        Errno::EFBIG => limit(Resource::FileSize).map(Limit::FileSize),
        Errno::ENOMEM => {
            let used = used().unwrap_or_default();
            let exceeds = |used: u64| move |most: &u64| used.saturating_add(bytes) > *most;
            let address_space = || limit(Resource::AddressSpace).filter(exceeds(used.total));
            let data = || limit(Resource::Data).filter(exceeds(used.data));
            address_space()
                .map(Limit::AddressSpace)
                .or_else(|| data().map(Limit::Data))
                .or_else(commit_limit)
                .or_else(map_limit)
        }
        _ => None,
    }
}

#[derive(Default)]
struct Used {
    total: u64,
    data: u64,
}

/// What the process has of addresses, and of private writable memory, in bytes.
fn used() -> Option<Used> {
    let text = sys::read_text("/proc/self/statm").ok()?;
    let pages: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |field: usize| Some(pages.get(field)?.saturating_mul(sys::page_size() as u64));
    Some(Used { total: bytes(0)?, data: bytes(5)? })
}

fn commit_limit() -> Option<Limit> {
    let mode = sys::read_text("/proc/sys/vm/overcommit_memory").ok()?;
    (mode.trim() == "2").then_some(())?;
    meminfo(&["CommitLimit:"]).map(Limit::Commit)
}

fn map_limit() -> Option<Limit> {
    let most: u64 = sys::read_text("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()?;
    let now = sys::read_text("/proc/self/maps").ok()?.lines().count() as u64;
    // One call can need two mappings more than there are.
    (now + 3 > most).then_some(Limit::Maps(most))
}

/// The sum of some lines of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(lines: &[&str]) -> Option<u64> {
    let text = sys::read_text("/proc/meminfo").ok()?;
    let mut sum = 0;
    for wanted in lines {
        let line = text.lines().find_map(|line| line.strip_prefix(wanted))?;
        sum += line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    }
    Some(sum)
}
