//! *Headroom*: how much memory can become resident before the kernel kills a process.
//!
//! When a memory cgroup or the machine is full, the kernel does not fail the allocation of a page.
//! It kills a process, probably the one with the most memory, which is this one. kvmem therefore
//! reads the limits before it makes pages resident, and again while it does: near a limit before
//! each chunk, far from it after a quarter of the remaining bytes is used (see `populate.rs`). Each
//! reading is a snapshot, and other processes may take the memory, so a margin stays free.
//!
//! Calls of this library, in any process, do not compete for the same bytes: each call first
//! reserves its bytes under all applicable limits, and counts the reservations of others as used
//! (see `reservations.rs`). If only those reservations are in the way, the call waits a little: a
//! reservation shrinks as its pages become resident, and its call may fail. Any process can make
//! one, and keep it. After the wait the call therefore fails only for those of its own user and of
//! root.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::reservations::{BytesReserved, Honoured, ReservationTable, TableLock};
use crate::arena::machine::{CgroupLevel, Cgroups, MachineFiles, meminfo};
use crate::arena::{ArenaError, Limit};
use crate::sys;
use crate::trace::event;

/// Stays free in addition to the populated bytes, for stacks, metadata and other threads. Page
/// tables are counted separately.
const MARGIN: u64 = 2 << 20;
/// Stays free in addition to all reservations, for processes that start meanwhile: this fraction of
/// the limit, at least [`MARGIN`] and at most [`SPARE_MAX`].
const SPARE_PART: u64 = 64;
const SPARE_MAX: u64 = 32 << 20;
/// The longest wait for other reservations while they change, and while they do not change.
const WAIT_MAX: Duration = Duration::from_secs(10);
const UNCHANGED_MAX: Duration = Duration::from_secs(1);
/// The pause between two checks.
const WAIT_PAUSE: Duration = Duration::from_millis(5);
/// The file that carries machine-wide reservations: all processes that see this file see them.
const MACHINE: &str = "/proc/meminfo";

/// The limit of memory that has the fewest bytes left.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLeft {
    /// The bytes that are allowed.
    pub limit: u64,
    /// The bytes that are left.
    pub left: u64,
}

/// The limits that a program watches. Those of new cgroups are missed.
#[doc(hidden)]
#[derive(Debug)]
pub struct MemoryWatch {
    groups: Vec<CgroupLevel>,
    /// Whether the memory of the machine counts.
    machine: bool,
    files: MachineFiles,
}

impl MemoryWatch {
    /// Watches the cgroup (v2) in a folder; `None`: all cgroups of this process, and the machine.
    #[must_use]
    pub fn new(folder: Option<&Path>) -> MemoryWatch {
        let files = MachineFiles::here();
        let groups = match folder {
            Some(folder) => {
                let folder = folder.to_string_lossy().into_owned();
                vec![CgroupLevel { folder, unified: true }]
            }
            None => Cgroups::visible(&files, "memory"),
        };
        MemoryWatch { groups, machine: folder.is_none(), files }
    }

    /// Returns the limit with the fewest bytes left; `None`: there is none.
    #[must_use]
    pub fn left(&self) -> Option<MemoryLeft> {
        let machine = || meminfo(&["MemTotal"]).zip(meminfo(&["MemAvailable"]));
        let machine = self.machine.then(machine).flatten();
        let groups = self.groups.iter().filter_map(|group| group.memory_limit(&self.files));
        let all = groups.map(|it| (it.limit, it.remaining())).chain(machine);
        let (limit, left) = all.min_by_key(|(_, left)| *left)?;
        Some(MemoryLeft { limit, left })
    }
}

/// Fails if fewer than `bytes` bytes can become resident.
pub(crate) fn headroom(bytes: u64) -> Result<(), ArenaError> {
    reserve(bytes).map(drop)
}

/// Reserves `bytes` bytes that will become resident soon, until the result is dropped. Fails with
/// the limit that has too little left.
pub(crate) fn reserve(bytes: u64) -> Result<Headroom, ArenaError> {
    let headroom = Headroom::find();
    headroom.reserve(bytes, &|| Ok(()))?;
    Ok(headroom)
}

/// The limits that apply to memory of this process, and this call's reservation under them.
#[derive(Debug)]
pub(crate) struct Headroom {
    limits: Vec<AppliedLimit>,
    files: MachineFiles,
    reserved: Mutex<BytesReserved>,
}

/// One applicable limit.
#[derive(Debug)]
struct AppliedLimit {
    /// The cgroup; `None` stands for the machine.
    group: Option<CgroupLevel>,
    table: ReservationTable,
}

/// A limit with too few bytes left.
struct Shortage {
    error: ArenaError,
    /// The bytes that others have reserved, if there would be enough without these reservations.
    reserved: Option<u64>,
}

impl Headroom {
    /// Finds the applicable limits.
    pub(crate) fn find() -> Headroom {
        // Groups without a limit are left out. A limit set by hand while this call populates is
        // missed.
        let files = MachineFiles::here();
        let groups = Cgroups::visible(&files, "memory")
            .into_iter()
            .filter(|group| group.memory_limit(&files).is_some());
        let of_group = |group: CgroupLevel| AppliedLimit {
            table: ReservationTable::open(&group.folder),
            group: Some(group),
        };
        let machine = AppliedLimit { table: ReservationTable::open(MACHINE), group: None };
        Headroom {
            limits: groups.map(of_group).chain([machine]).collect(),
            files: files.clone(),
            reserved: Mutex::default(),
        }
    }

    /// Reserves `bytes` bytes under all limits, plus page tables and margin. Waits at most 10 s if
    /// the missing bytes are reserved by others, and calls `go_on` meanwhile.
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`] if a limit has too little left, or the error of `go_on`.
    pub(crate) fn reserve(
        &self,
        bytes: u64,
        go_on: &dyn Fn() -> Result<(), ArenaError>,
    ) -> Result<(), ArenaError> {
        if bytes == 0 {
            return Ok(());
        }
        let wanted = with_tables(bytes);
        retry_while_reserved(go_on, |honoured| {
            let _lock = TableLock::take(self.tables());
            self.compare(wanted, true, honoured)?;
            *self.reserved() = BytesReserved::take(wanted, self.tables());
            Ok(())
        })
    }

    /// Lowers the reservation to the needs of `bytes` bytes.
    pub(crate) fn lower_to(&self, bytes: u64) {
        let wanted = if bytes == 0 { 0 } else { with_tables(bytes) };
        let mut reserved = self.reserved();
        if wanted < reserved.bytes() {
            reserved.lower_to(wanted, self.tables());
        }
    }

    /// Fails if fewer than `bytes` bytes can become resident, plus page tables and margin;
    /// otherwise returns how many more could.
    pub(crate) fn check(&self, bytes: u64) -> Result<u64, ArenaError> {
        let wanted = with_tables(bytes);
        self.compare(wanted, false, Honoured::All).map_err(|shortage| shortage.error)
    }

    /// Checks like [`check`](Headroom::check), and waits for others like
    /// [`reserve`](Headroom::reserve).
    pub(crate) fn wait(
        &self,
        bytes: u64,
        go_on: &dyn Fn() -> Result<(), ArenaError>,
    ) -> Result<u64, ArenaError> {
        let wanted = with_tables(bytes);
        retry_while_reserved(go_on, |honoured| self.compare(wanted, false, honoured))
    }

    fn tables(&self) -> impl Iterator<Item = &ReservationTable> {
        self.limits.iter().map(|limit| &limit.table)
    }

    fn reserved(&self) -> MutexGuard<'_, BytesReserved> {
        // No code panics under the lock.
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares `wanted` bytes with each limit, minus the reservations of others. Returns how many
    /// more bytes are available.
    fn compare(&self, wanted: u64, spare: bool, honoured: Honoured) -> Result<u64, Shortage> {
        let mut more = u64::MAX;
        for AppliedLimit { group, table } in &self.limits {
            // Read the reservations first: bytes that become resident in between are counted twice,
            // and never missed.
            let others = self.reserved().others_in(table, honoured);
            let found = match group {
                Some(group) => {
                    group.memory_limit(&self.files).map(|found| (found.limit, found.remaining()))
                }
                None => meminfo(&["MemTotal"]).zip(meminfo(&["MemAvailable", "SwapFree"])),
            };
            let Some((limit, remaining)) = found else {
                if group.is_none() {
                    // The available memory is unknown: check again before the next chunk.
                    more = 0;
                }
                continue;
            };
            let spare = if spare { (limit / SPARE_PART).clamp(MARGIN, SPARE_MAX) } else { 0 };
            let need = wanted.saturating_add(spare);
            let free = remaining.saturating_sub(others);
            if free < need {
                let limit = match group {
                    Some(group) => {
                        Limit::Cgroup { group: group.folder.clone(), limit, remaining: free }
                    }
                    None => Limit::Machine(free),
                };
                let error = ArenaError::NoHeadroom { need, limit };
                return Err(Shortage { error, reserved: (remaining >= need).then_some(others) });
            }
            more = more.min(free - need);
        }
        Ok(more)
    }
}

/// Repeats the check while other reservations hold the missing bytes. The last check honours those
/// of the own user and of root alone.
fn retry_while_reserved<T>(
    go_on: &dyn Fn() -> Result<(), ArenaError>,
    mut check: impl FnMut(Honoured) -> Result<T, Shortage>,
) -> Result<T, ArenaError> {
    let start = Instant::now();
    let (mut last, mut since) = (0, start);
    // Processes that wait for each other fail at different times: the first one makes room for
    // the rest.
    let unchanged_max =
        UNCHANGED_MAX + Duration::from_millis(u64::from(sys::process_id() % 16) * 50);
    loop {
        let Shortage { error, reserved } = match check(Honoured::All) {
            Ok(found) => return Ok(found),
            Err(shortage) => shortage,
        };
        let Some(reserved) = reserved else { return Err(error) };
        if reserved != last {
            (last, since) = (reserved, Instant::now());
        }
        if since.elapsed() >= unchanged_max || start.elapsed() >= WAIT_MAX {
            let found = check(Honoured::OwnAndRoot).map_err(|_| error)?;
            event!(WARN, reserved, "reservations of other users are not honoured");
            return Ok(found);
        }
        go_on()?;
        thread::sleep(WAIT_PAUSE);
    }
}

/// Returns `bytes` plus the kernel's own needs: eight bytes of page table per base page, and space
/// for the upper levels.
fn with_tables(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / (sys::page_size() as u64 / 8)).saturating_add(MARGIN)
}
