//! *Diagnosis*: finds the limit behind a failed system call. The kernel says ENOMEM for half a
//! dozen limits.

use std::ops::Range;

use super::arena_error::ArenaError;
use super::limit::Limit;
use crate::arena::machine::{
    MachineFiles, commit_limit, hugetlb, longest_free, mappings, memory_use,
};
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
            let used = memory_use().unwrap_or_default();
            let exceeds = |used: u64| move |max: &u64| used.saturating_add(bytes) > *max;
            let address_space = || limit(Resource::AddressSpace).filter(exceeds(used.total));
            let data = || limit(Resource::Data).filter(exceeds(used.data));
            address_space()
                .map(Limit::AddressSpace)
                .or_else(|| longest_free().filter(|free| bytes > *free).map(Limit::Addresses))
                .or_else(|| data().map(Limit::Data))
                .or_else(|| commit_limit().map(Limit::Commit))
                .or_else(map_limit)
        }
        _ => None,
    }
}

/// Returns the limit on mappings, if the process is about to reach it.
fn map_limit() -> Option<Limit> {
    let (max, now) = mappings(&MachineFiles::here()).ok()?;
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
