//! *Headroom*: how much memory can still be made resident without anybody getting killed.
//!
//! When a memory cgroup is full, or the machine is, the kernel does not refuse a page: it kills a process, and
//! likely the one with the most memory, which is this one. So before pages are made resident, and again while
//! they are, the limits are asked what they have left: near a limit for each chunk, far from it when a quarter of what was left has
//! been used (see `populate.rs`). It is a snapshot, and others may take what it shows, so a margin is kept.

use super::cgroup::{Group, groups};
use super::diagnose::meminfo;
use super::{ArenaError, Limit};
use crate::sys;

/// Kept free beside what is populated: page tables are counted apart, this is for stacks, books, and other threads.
const MARGIN: u64 = 2 << 20;

/// Refuses if less than `bytes` can be made resident.
pub(crate) fn headroom(bytes: u64) -> Result<(), ArenaError> {
    Headroom::find().check(bytes).map(drop)
}

/// The limits that hold for memory of this process.
#[derive(Debug)]
pub(crate) struct Headroom {
    groups: Vec<Group>,
}

impl Headroom {
    /// Finds the limits.
    pub(crate) fn find() -> Headroom {
        // Groups without a limit stay without, but for a change by hand while we populate.
        let mut groups = groups("memory");
        groups.retain(|group| limit(group).is_some());
        Headroom { groups }
    }

    /// Refuses if less than `bytes` can be made resident, page tables and margin included; else says how much more could
    /// be.
    pub(crate) fn check(&self, bytes: u64) -> Result<u64, ArenaError> {
        if bytes == 0 {
            return Ok(0);
        }
        // Eight bytes of page table for a base page, and room for the upper levels.
        let need = bytes.saturating_add(bytes / (sys::page_size() as u64 / 8)).saturating_add(MARGIN);
        let mut more = u64::MAX;
        for group in &self.groups {
            let Some((limit, left)) = left(group) else { continue };
            if left < need {
                let limit = Limit::Cgroup { group: group.directory.clone(), limit, left };
                return Err(ArenaError::NoHeadroom { need, limit });
            }
            more = more.min(left - need);
        }
        match meminfo(&["MemAvailable:", "SwapFree:"]) {
            Some(left) if left < need => Err(ArenaError::NoHeadroom { need, limit: Limit::Machine(left) }),
            Some(left) => Ok(more.min(left - need)),
            // What is not known is asked for again.
            None => Ok(0),
        }
    }
}

fn limit(group: &Group) -> Option<u64> {
    if group.unified {
        // Above `high` nobody is killed, but everybody is slowed down until it looks like a hang.
        [group.number("memory.max"), group.number("memory.high")].into_iter().flatten().min()
    } else {
        group.number("memory.limit_in_bytes")
    }
}

/// The limit of a group and what is left of it; page cache that has not been used lately can be had back.
fn left(group: &Group) -> Option<(u64, u64)> {
    let limit = limit(group)?;
    let (usage, cache) = if group.unified {
        (group.number("memory.current")?, "inactive_file ")
    } else {
        (group.number("memory.usage_in_bytes")?, "total_inactive_file ")
    };
    let cache = group
        .text("memory.stat")
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok()));
    Some((limit, limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0)))))
}
