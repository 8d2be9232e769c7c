//! *Reservations*: announce the bytes that a call will make resident to all processes under the
//! same limit.
//!
//! Several processes that start together see the same free bytes of their cgroup. If each of them
//! used those bytes, the kernel would kill some of them. A call therefore reserves its bytes before
//! it populates, and counts the reservations of others as used.
//!
//! A reservation is a read lock on a byte range of the cgroup's directory. The range is as long as
//! the number of reserved bytes:
//!
//! ```text
//!   /sys/fs/cgroup/...   ├── process A ──────┤├── process B ───┤├─ C ─┤
//!                        0                   │                 │
//!                        └ A unlocks from its end the bytes that became resident
//! ```
//!
//! - The lock needs no write permission: a read-only `/sys/fs/cgroup` and any user suffice. It
//!   belongs to the directory and not to a path, so containers and namespaces that mount the same
//!   cgroup see the same reservations.
//! - The kernel removes the lock when the open file is closed: a killed process leaves no
//!   reservation.
//! - Checking and reserving are one step under `flock` on the directory, which takes some 100 µs.
//!   Populating itself needs no lock: processes populate at the same time if there is room for all
//!   of them.
//! - A reservation shrinks after its pages are resident, and a reader adds up the reservations
//!   before it reads the usage. A page can therefore be counted twice for a moment, and is never
//!   missed.
//!
//! A lock may be that of any user, and never end. A call that only reservations keep from its bytes
//! therefore waits for some seconds, and then honours those of its own user and of root alone (see
//! `lockers.rs`).
//!
//! Every process takes the locks from the innermost group to the outermost, so no two processes
//! wait for each other, and none waits longer than [`LOCK_TIMEOUT`]. Where the file cannot be
//! opened or locked, a counter coordinates the threads of this process; other processes are not
//! seen.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::lockers::locked_by;
use crate::sys;

/// The reservations that a call honours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Honoured {
    All,
    /// The reservations of the process's own user and of root, as far as this process sees them.
    OwnAndRoot,
}

/// The longest wait for the lock under which bytes are reserved. After it the call continues
/// without the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_micros(500);
/// The largest number of reservations that are added up. No more processes than this populate at
/// once.
const RESERVATIONS_MAX: usize = 10_000;

/// The process of the thread that holds the [`TableLock`]; 0 if none does. A forked child takes the
/// lock over from a parent that held it.
static LOCK_HOLDER: AtomicU32 = AtomicU32::new(0);
/// The process that [`RESERVED_HERE`] belongs to. A forked child has no reservations of its own
/// yet.
static COUNTED_IN: AtomicU32 = AtomicU32::new(0);
/// The bytes that all calls of this process have reserved.
static RESERVED_HERE: AtomicU64 = AtomicU64::new(0);

/// The reservations under one limit: ranges of an open file.
#[derive(Debug)]
pub(super) struct ReservationTable {
    /// `None` if it cannot be opened.
    file: Option<File>,
}

impl ReservationTable {
    /// Opens the table of a limit, which is this directory or file.
    pub(super) fn open(path: &str) -> ReservationTable {
        ReservationTable { file: sys::open_to_lock(Path::new(path)).ok() }
    }

    /// Returns the bytes that other open files have reserved, and the end of the last range.
    fn others(&self) -> (u64, u64) {
        let Some(file) = &self.file else { return (0, 0) };
        let (mut bytes, mut end, mut count) = (0u64, 0, 0);
        // The kernel reports any one of the locks in a range. The others lie before and after it.
        let mut ranges = Vec::new();
        ranges.push(0..sys::LOCK_END);
        while let Some(range) = ranges.pop() {
            let Ok(Some(found)) = sys::find_lock(file, &range) else { continue };
            count += 1;
            if found.is_empty() || count > RESERVATIONS_MAX {
                break;
            }
            bytes = bytes.saturating_add(found.end - found.start);
            end = end.max(found.end);
            ranges.extend(
                [range.start..found.start, found.end..range.end]
                    .into_iter()
                    .filter(|r| !r.is_empty()),
            );
        }
        (bytes, end)
    }
}

/// The reservation of one call, the same number of bytes in each table. Dropping it returns all of
/// it back.
#[derive(Debug, Default)]
pub(super) struct BytesReserved {
    bytes: u64,
    /// The start of its range in each table; `None` where the lock failed.
    starts: Vec<Option<u64>>,
    /// The process that made it: a forked child has a copy and returns nothing.
    process: u32,
}

impl BytesReserved {
    /// Returns the reserved bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes that other processes, and other calls of this one, reserved in a table.
    pub(super) fn others_in(&self, table: &ReservationTable, honoured: Honoured) -> u64 {
        // Relaxed: a count that guards nothing by itself; the table lock orders it.
        let counted = COUNTED_IN.load(Ordering::Relaxed) == sys::process_id();
        // Relaxed: the table lock orders it.
        let here = if counted { RESERVED_HERE.load(Ordering::Relaxed) } else { 0 };
        let own = if self.process == sys::process_id() { self.bytes } else { 0 };
        let locked = match (honoured, &table.file) {
            (Honoured::OwnAndRoot, Some(file)) => locked_by(file, &[sys::user_id(), 0]),
            _ => table.others().0,
        };
        // Where locks work, they include those of this process.
        locked.max(here.saturating_sub(own))
    }

    /// Reserves bytes in all tables. The caller holds the [`TableLock`] and has found enough bytes.
    pub(super) fn take<'a>(
        bytes: u64,
        tables: impl Iterator<Item = &'a ReservationTable>,
    ) -> BytesReserved {
        let lock = |table: &ReservationTable| {
            let (file, start) = (table.file.as_ref()?, table.others().1);
            let end = start.checked_add(bytes).filter(|end| *end <= sys::LOCK_END)?;
            sys::lock_range(file, &(start..end)).ok().map(|()| start)
        };
        let process = sys::process_id();
        // Relaxed: only the thread that holds the table lock starts the count of a process.
        if COUNTED_IN.load(Ordering::Relaxed) != process {
            // Relaxed: the table lock orders it.
            RESERVED_HERE.store(0, Ordering::Relaxed);
            // Relaxed: the table lock orders it.
            COUNTED_IN.store(process, Ordering::Relaxed);
        }
        // Relaxed: the table lock orders it with the next thread's check.
        RESERVED_HERE.fetch_add(bytes, Ordering::Relaxed);
        BytesReserved { bytes, starts: tables.map(lock).collect(), process }
    }

    /// Lowers the reservation to at most `bytes`. `tables` are those that it was made in.
    pub(super) fn lower_to<'a>(
        &mut self,
        bytes: u64,
        tables: impl Iterator<Item = &'a ReservationTable>,
    ) {
        if bytes >= self.bytes || self.process != sys::process_id() {
            return;
        }
        for (table, start) in tables.zip(&self.starts) {
            if let (Some(file), Some(start)) = (&table.file, start) {
                // A range that stays locked makes others wait; closing the file unlocks it.
                let _ = sys::unlock_range(file, &(start + bytes..start + self.bytes));
            }
        }
        self.give_back_here(self.bytes - bytes);
        self.bytes = bytes;
    }

    fn give_back_here(&self, bytes: u64) {
        // Relaxed: see `others_in`. A call that reads the higher count waits once more.
        if COUNTED_IN.load(Ordering::Relaxed) == self.process {
            // Relaxed: the table lock orders it.
            RESERVED_HERE.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for BytesReserved {
    fn drop(&mut self) {
        if self.bytes > 0 && self.process == sys::process_id() {
            self.give_back_here(self.bytes);
        }
    }
}

/// The exclusive right to check tables and reserve in them, until it is dropped.
pub(super) struct TableLock<'a> {
    locked: Vec<&'a File>,
    here: bool,
}

/// Repeats `done` until it returns a result or the deadline passes.
fn until(deadline: Instant, mut done: impl FnMut() -> Option<bool>) -> bool {
    loop {
        match done() {
            Some(done) => return done,
            None if Instant::now() >= deadline => return false,
            None => thread::sleep(LOCK_PAUSE),
        }
    }
}

impl<'a> TableLock<'a> {
    /// Takes the lock; waits at most [`LOCK_TIMEOUT`]. A process that holds it longer does not
    /// belong to kvmem.
    pub(super) fn take(tables: impl Iterator<Item = &'a ReservationTable>) -> TableLock<'a> {
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let process = sys::process_id();
        let here = until(deadline, || {
            // Relaxed: the exchange decides.
            let holder = LOCK_HOLDER.load(Ordering::Relaxed);
            // A holder in another process was a thread of the parent that does not exist after the
            // fork.
            let free = holder != process;
            // Acquire pairs with the Release in `drop`: this thread sees the counts of the previous
            // holder.
            let taken = free
                && LOCK_HOLDER
                    .compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            taken.then_some(true)
        });
        let mut table_lock = TableLock { locked: Vec::new(), here };
        for file in tables.filter_map(|table| table.file.as_ref()) {
            let locked = until(deadline, || match sys::try_lock(file) {
                Ok(true) => Some(true),
                Ok(false) => None,
                Err(_) => Some(false),
            });
            if locked {
                table_lock.locked.push(file);
            }
        }
        table_lock
    }
}

impl Drop for TableLock<'_> {
    fn drop(&mut self) {
        for file in &self.locked {
            // Closing the file also unlocks it.
            let _ = sys::unlock(file);
        }
        if self.here {
            // Release pairs with the Acquire in `take`.
            LOCK_HOLDER.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn table_in(folder: &TempDir) -> ReservationTable {
        ReservationTable::open(folder.path().to_str().expect("a plain path"))
    }

    #[test]
    fn reservations_add_up_shrink_and_end() {
        let folder = tempfile::tempdir().expect("a new directory");
        let tables: Vec<ReservationTable> = (0..20).map(|_| table_in(&folder)).collect();
        let sum = || table_in(&folder).others().0;
        let mut all: Vec<BytesReserved> = Vec::new();
        for (n, table) in tables.iter().enumerate() {
            let _lock = TableLock::take([table].into_iter());
            all.push(BytesReserved::take(n as u64 + 1, [table].into_iter()));
        }
        assert_eq!(sum(), 210);
        // One shrinks, one cannot grow, one ends with its open file.
        all[19].lower_to(5, [&tables[19]].into_iter());
        all[0].lower_to(7, [&tables[0]].into_iter());
        assert_eq!((sum(), all[19].bytes(), all[0].bytes()), (195, 5, 1));
        // A new one lies after the last.
        let table = table_in(&folder);
        let more = BytesReserved::take(1000, [&table].into_iter());
        assert_eq!(sum(), 1195);
        let others = |honoured| more.others_in(&table, honoured);
        assert!(others(Honoured::All) >= 195 && others(Honoured::OwnAndRoot) >= 195);
        all[18].lower_to(0, [&tables[18]].into_iter());
        assert_eq!(sum(), 1176);
        drop((tables, table));
        assert_eq!(sum(), 0);
    }

    #[test]
    fn without_file_locks_threads_see_each_other() {
        let table = || ReservationTable::open("/no/such/directory");
        let (one, two) = (table(), table());
        let first = BytesReserved::take(1 << 40, [&one].into_iter());
        let mut second = BytesReserved::take(1 << 41, [&two].into_iter());
        let others =
            |of: &BytesReserved, table: &ReservationTable| of.others_in(table, Honoured::All);
        // Other tests reserve some MiB meanwhile.
        assert!(others(&first, &one) >= 1 << 41 && others(&second, &two) >= 1 << 40);
        second.lower_to(1 << 30, [&two].into_iter());
        assert!((1 << 30..1 << 41).contains(&others(&first, &one)));
        drop(second);
        assert!(others(&first, &one) < 1 << 30);
    }

    #[test]
    fn waiting_for_a_locked_file_ends() {
        let folder = tempfile::tempdir().expect("a new directory");
        let (theirs, ours) = (table_in(&folder), table_in(&folder));
        assert!(sys::try_lock(theirs.file.as_ref().expect("opened")).expect("no error"));
        let start = Instant::now();
        let table_lock = TableLock::take([&ours].into_iter());
        assert!(table_lock.locked.is_empty() && start.elapsed() >= LOCK_TIMEOUT);
        assert!(start.elapsed() < 20 * LOCK_TIMEOUT);
        drop(table_lock);
        drop(theirs);
        assert_eq!(TableLock::take([&ours].into_iter()).locked.len(), 1);
    }
}
