//! *Headroom*: how much memory can still be made resident without anybody getting killed.
//!
//! When a memory cgroup is full, or the machine is, the kernel does not refuse a page: it kills a
//! process, and likely the one with the most memory, which is this one. So before pages are made
//! resident, and again while they are, the limits are asked what they have left: near a limit for
//! each chunk, far from it when a quarter of what was left has been used (see `populate.rs`). It is
//! a snapshot, and others may take what it shows, so a margin is kept.
//!
//! Others that use this library do not take it: each call reserves its bytes first, in all limits
//! that hold, and counts the reservations of others as taken (see `reservations.rs`). If only those
//! are in the way, the call waits a little: a reservation is lowered as its pages become resident,
//! and the call behind it may fail.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::cgroup::{Group, groups};
use super::diagnose::meminfo;
use super::reservations::{ReservationTable, Reserved, Turn};
use super::{ArenaError, Limit};
use crate::sys;

/// Kept free beside what is populated: page tables are counted apart, this is for stacks, books,
/// and other threads.
const MARGIN: u64 = 2 << 20;
/// Kept free beside all reservations, for processes that start meanwhile: this part of the limit,
/// but no more than [`SPARE_MAX`].
const SPARE_PART: u64 = 64;
const SPARE_MAX: u64 = 32 << 20;
/// The longest wait for others while their reservations change, and while they do not.
const WAIT_MAX: Duration = Duration::from_secs(10);
const STILL_MAX: Duration = Duration::from_secs(1);
/// Between two looks.
const WAIT_PAUSE: Duration = Duration::from_millis(5);
/// Where machine-wide reservations stand: processes that see the same file see them.
const MACHINE: &str = "/proc/meminfo";

/// Refuses if less than `bytes` can be made resident.
pub(crate) fn headroom(bytes: u64) -> Result<(), ArenaError> {
    reserve(bytes).map(drop)
}

/// Reserves `bytes` that are about to be made resident, until the result is dropped, or says which
/// limit lacks them.
pub(crate) fn reserve(bytes: u64) -> Result<Headroom, ArenaError> {
    let headroom = Headroom::find();
    headroom.reserve(bytes, &|| Ok(()))?;
    Ok(headroom)
}

/// The limits that hold for memory of this process, and what this call has reserved in them.
#[derive(Debug)]
pub(crate) struct Headroom {
    limits: Vec<Holding>,
    reserved: Mutex<Reserved>,
}

/// A limit that holds.
#[derive(Debug)]
struct Holding {
    /// The cgroup; `None`: the machine.
    group: Option<Group>,
    table: ReservationTable,
}

/// A limit that has too little left.
struct Short {
    error: ArenaError,
    /// The bytes that others have reserved, if there would be enough without those.
    reserved: Option<u64>,
}

impl Headroom {
    /// Finds the limits.
    pub(crate) fn find() -> Headroom {
        // Groups without a limit stay without, but for a change by hand while we populate.
        let groups = groups("memory").into_iter().filter(|group| limit(group).is_some());
        let of_group = |group: Group| Holding {
            table: ReservationTable::open(&group.directory),
            group: Some(group),
        };
        let machine = Holding { table: ReservationTable::open(MACHINE), group: None };
        Headroom {
            limits: groups.map(of_group).chain([machine]).collect(),
            reserved: Mutex::default(),
        }
    }

    /// Reserves `bytes`, page tables and margin included, in all limits. Waits for others that have
    /// reserved what is missing, for at most 10 s, and asks `go_on` meanwhile.
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`], or what `go_on` says.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        go_on: &dyn Fn() -> Result<(), ArenaError>,
    ) -> Result<(), ArenaError> {
        if bytes == 0 {
            return Ok(());
        }
        let wanted = with_tables(bytes);
        patiently(go_on, || {
            let _turn = Turn::take(self.tables());
            self.look(wanted, true)?;
            *self.reserved() = Reserved::take(wanted, self.tables());
            Ok(())
        })
    }

    /// Lowers what is reserved to what `bytes` need.
    pub(crate) fn lower_to(&self, bytes: u64) {
        let wanted = if bytes == 0 { 0 } else { with_tables(bytes) };
        let mut reserved = self.reserved();
        if wanted < reserved.bytes() {
            reserved.lower_to(wanted, self.tables());
        }
    }

    /// Refuses if less than `bytes` of what was reserved can be made resident, page tables and
    /// margin included; else says how much more could be.
    pub(crate) fn check(&self, bytes: u64) -> Result<u64, ArenaError> {
        self.look(with_tables(bytes), false).map_err(|short| short.error)
    }

    /// As [`check`](Headroom::check), but waits for others as [`reserve`](Headroom::reserve) does.
    pub(crate) fn wait(
        &self,
        bytes: u64,
        go_on: &dyn Fn() -> Result<(), ArenaError>,
    ) -> Result<u64, ArenaError> {
        patiently(go_on, || self.look(with_tables(bytes), false))
    }

    fn tables(&self) -> impl Iterator<Item = &ReservationTable> {
        self.limits.iter().map(|limit| &limit.table)
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        // Nothing panics under the lock.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds `wanted` bytes against each limit, less what others have reserved. Says how many more
    /// there are.
    fn look(&self, wanted: u64, spare: bool) -> Result<u64, Short> {
        let mut more = u64::MAX;
        for Holding { group, table } in &self.limits {
            // The reservations first: what becomes resident meanwhile is counted twice, and not
            // missed.
            let others = self.reserved().others_in(table);
            let found = match group {
                Some(group) => left(group),
                None => meminfo(&["MemTotal:"]).zip(meminfo(&["MemAvailable:", "SwapFree:"])),
            };
            let Some((limit, left)) = found else {
                if group.is_none() {
                    // What is not known is asked for again.
                    more = 0;
                }
                continue;
            };
            let spare = if spare { (limit / SPARE_PART).clamp(MARGIN, SPARE_MAX) } else { 0 };
            let need = wanted.saturating_add(spare);
            let free = left.saturating_sub(others);
            if free < need {
                let limit = match group {
                    Some(group) => {
                        Limit::Cgroup { group: group.directory.clone(), limit, left: free }
                    }
                    None => Limit::Machine(free),
                };
                let error = ArenaError::NoHeadroom { need, limit };
                return Err(Short { error, reserved: (left >= need).then_some(others) });
            }
            more = more.min(free - need);
        }
        Ok(more)
    }
}

/// Looks again, as long as others have reserved what is missing.
fn patiently<T>(
    go_on: &dyn Fn() -> Result<(), ArenaError>,
    mut look: impl FnMut() -> Result<T, Short>,
) -> Result<T, ArenaError> {
    let start = Instant::now();
    let (mut last, mut since) = (0, start);
    // Processes that wait for each other do not give up at the same time: the first one makes room
    // for the rest.
    let still_max = STILL_MAX + Duration::from_millis(u64::from(sys::process_id() % 16) * 50);
    loop {
        let Short { error, reserved } = match look() {
            Ok(found) => return Ok(found),
            Err(short) => short,
        };
        let Some(reserved) = reserved else { return Err(error) };
        if reserved != last {
            (last, since) = (reserved, Instant::now());
        }
        if since.elapsed() >= still_max || start.elapsed() >= WAIT_MAX {
            return Err(error);
        }
        go_on()?;
        thread::sleep(WAIT_PAUSE);
    }
}

/// `bytes` with what the kernel needs beside them: eight bytes of page table for a base page, and
/// room for the upper levels.
fn with_tables(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / (sys::page_size() as u64 / 8)).saturating_add(MARGIN)
}

fn limit(group: &Group) -> Option<u64> {
    if group.unified {
        // Above `high` nobody is killed, but everybody is slowed down until it looks like a hang.
        [group.number("memory.max"), group.number("memory.high")].into_iter().flatten().min()
    } else {
        group.number("memory.limit_in_bytes")
    }
}

/// The limit of a group and what is left of it; page cache that has not been used lately can be had
/// back.
fn left(group: &Group) -> Option<(u64, u64)> {
    let limit = limit(group)?;
    let (usage, cache) = if group.unified {
        (group.number("memory.current")?, "inactive_file ")
    } else {
        (group.number("memory.usage_in_bytes")?, "total_inactive_file ")
    };
    let cache = group.text("memory.stat").and_then(|text| {
        text.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok())
    });
    Some((limit, limit.saturating_sub(usage.saturating_sub(cache.unwrap_or(0)))))
}
