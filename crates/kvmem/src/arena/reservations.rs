//! *Reservations*: bytes that a call is about to make resident, told to all processes under the
//! same limit.
//!
//! Several processes that start together each see the same free bytes of their cgroup. If each of
//! them took those bytes for its own, the kernel would kill some of them. So a call reserves its
//! bytes before it populates, and counts what others have reserved as taken.
//!
//! A reservation is a read lock on a range of the cgroup's directory, as long as the bytes it
//! stands for:
//!
//! ```text
//!   /sys/fs/cgroup/...   ├── process A ──────┤├── process B ───┤├─ C ─┤
//!                        0                   │                 │
//!                        └ A unlocks from its end what has become resident
//! ```
//!
//! - The lock needs no right to write, so a read-only `/sys/fs/cgroup` and any user will do. It
//!   belongs to the directory and not to a path, so containers and namespaces that mount the same
//!   cgroup see the same reservations.
//! - The kernel removes the lock when the open file is closed: a killed process leaves no
//!   reservation.
//! - Looking and reserving are one step under `flock` on the directory, which takes some 100 µs.
//!   Populating itself is under no lock: processes populate at the same time if there is room for
//!   all.
//! - A reservation is lowered after its pages are resident, and a reader adds up the reservations
//!   before it reads the usage. So a page can be counted twice for a moment, and is never missed.
//!
//! Locks are taken from the innermost group to the outermost, in every process, so no two processes
//! wait for each other; and none waits for longer than [`TURN_MAX`]. Where the file cannot be
//! opened or locked, one counter keeps the threads of this process apart, and other processes are
//! not seen.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::sys;

/// The longest time to wait for the lock under which bytes are reserved. Then the call goes on
/// without it.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Between two attempts to lock.
const TURN_PAUSE: Duration = Duration::from_micros(500);
/// The most reservations that are added up. More than this many processes do not populate at once.
const RESERVATIONS_MAX: usize = 10_000;

/// The thread that looks and reserves is of this process; 0: none does. A forked child takes the
/// turn from a parent that held it.
static TURN_OF: AtomicU32 = AtomicU32::new(0);
/// The process that [`RESERVED_HERE`] is about. A forked child has no reservations of its own yet.
static COUNTED_IN: AtomicU32 = AtomicU32::new(0);
/// Bytes that all calls of this process have reserved.
static RESERVED_HERE: AtomicU64 = AtomicU64::new(0);

/// The reservations under one limit: ranges of an open file.
#[derive(Debug)]
pub(super) struct ReservationTable {
    /// `None`: it cannot be opened here.
    file: Option<File>,
}

impl ReservationTable {
    /// The table of a limit that stands in this directory or file.
    pub(super) fn open(path: &str) -> ReservationTable {
        ReservationTable { file: sys::open_to_lock(Path::new(path)).ok() }
    }

    /// Bytes that other open files have reserved, and the end of the last range.
    fn others(&self) -> (u64, u64) {
        let Some(file) = &self.file else { return (0, 0) };
        let (mut bytes, mut end, mut count) = (0u64, 0, 0);
        // The kernel names any one of the locks in a range. The rest lie before it and behind it.
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

/// What one call has reserved, the same number of bytes in each table. All of it is given back when
/// this is dropped.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    bytes: u64,
    /// Where its range begins in each table; `None` where it could not be locked.
    starts: Vec<Option<u64>>,
    /// The process that made it: a forked child has a copy, and nothing to give back.
    process: u32,
}

impl Reserved {
    /// Bytes reserved now.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that others have reserved in a table: other processes, and other calls of this one.
    pub(super) fn others_in(&self, table: &ReservationTable) -> u64 {
        // Relaxed: a count that guards nothing by itself; under a turn the turn orders it.
        let counted = COUNTED_IN.load(Ordering::Relaxed) == sys::process_id();
        // Relaxed: as above.
        let here = if counted { RESERVED_HERE.load(Ordering::Relaxed) } else { 0 };
        let own = if self.process == sys::process_id() { self.bytes } else { 0 };
        // The locks include those of this process, where locks work.
        table.others().0.max(here.saturating_sub(own))
    }

    /// Reserves bytes in all tables. The caller has the [`Turn`] and has found room.
    pub(super) fn take<'a>(
        bytes: u64,
        tables: impl Iterator<Item = &'a ReservationTable>,
    ) -> Reserved {
        let lock = |table: &ReservationTable| {
            let (file, start) = (table.file.as_ref()?, table.others().1);
            let end = start.checked_add(bytes).filter(|end| *end <= sys::LOCK_END)?;
            sys::lock_range(file, &(start..end)).ok().map(|()| start)
        };
        let process = sys::process_id();
        // Relaxed: only the thread that has the turn starts the count of a process.
        if COUNTED_IN.load(Ordering::Relaxed) != process {
            // Relaxed: as above.
            RESERVED_HERE.store(0, Ordering::Relaxed);
            // Relaxed: as above.
            COUNTED_IN.store(process, Ordering::Relaxed);
        }
        // Relaxed: the turn orders it with the next thread's look.
        RESERVED_HERE.fetch_add(bytes, Ordering::Relaxed);
        Reserved { bytes, starts: tables.map(lock).collect(), process }
    }

    /// Lowers the reservation, whose tables these are, to at most `bytes`.
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
                // What stays locked makes others wait, and goes when the file is closed.
                let _ = sys::unlock_range(file, &(start + bytes..start + self.bytes));
            }
        }
        self.give_back_here(self.bytes - bytes);
        self.bytes = bytes;
    }

    fn give_back_here(&self, bytes: u64) {
        // Relaxed: see `others_in`. A call that reads the higher count waits once more.
        if COUNTED_IN.load(Ordering::Relaxed) == self.process {
            // Relaxed: as above.
            RESERVED_HERE.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.bytes > 0 && self.process == sys::process_id() {
            self.give_back_here(self.bytes);
        }
    }
}

/// The right to look at tables and reserve in them, until this is dropped.
pub(super) struct Turn<'a> {
    locked: Vec<&'a File>,
    here: bool,
}

/// Tries until it is known how it went, or the deadline has passed.
fn until(deadline: Instant, mut done: impl FnMut() -> Option<bool>) -> bool {
    loop {
        match done() {
            Some(done) => return done,
            None if Instant::now() >= deadline => return false,
            None => thread::sleep(TURN_PAUSE),
        }
    }
}

impl<'a> Turn<'a> {
    /// Waits for the turn, at most [`TURN_MAX`]: a process that holds it for longer is none of
    /// kvmem's.
    pub(super) fn take(tables: impl Iterator<Item = &'a ReservationTable>) -> Turn<'a> {
        let deadline = Instant::now() + TURN_MAX;
        let process = sys::process_id();
        let here = until(deadline, || {
            // Relaxed: the exchange decides.
            let holder = TURN_OF.load(Ordering::Relaxed);
            // A thread of another process is a thread of the parent, which a fork has left behind.
            let free = holder != process;
            // Acquire pairs with the Release in `drop`: the counts of the last turn are seen.
            let taken = free
                && TURN_OF
                    .compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            taken.then_some(true)
        });
        let mut turn = Turn { locked: Vec::new(), here };
        for file in tables.filter_map(|table| table.file.as_ref()) {
            let locked = until(deadline, || match sys::try_lock(file) {
                Ok(true) => Some(true),
                Ok(false) => None,
                Err(_) => Some(false),
            });
            if locked {
                turn.locked.push(file);
            }
        }
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        for file in &self.locked {
            // Closing the file unlocks it, too.
            let _ = sys::unlock(file);
        }
        if self.here {
            // Release pairs with the Acquire in `take`.
            TURN_OF.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::fs;

    use super::*;

    /// A directory of its own.
    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("kvmem-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a new directory");
            Folder(path)
        }

        fn table(&self) -> ReservationTable {
            ReservationTable::open(self.0.to_str().expect("a plain path"))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn reservations_add_up_shrink_and_go() {
        let folder = Folder::new("reservations");
        let tables: Vec<ReservationTable> = (0..20).map(|_| folder.table()).collect();
        let look = || folder.table().others().0;
        let mut all: Vec<Reserved> = Vec::new();
        for (n, table) in tables.iter().enumerate() {
            let _turn = Turn::take([table].into_iter());
            all.push(Reserved::take(n as u64 + 1, [table].into_iter()));
        }
        assert_eq!(look(), 210);
        // One lowers, one is refused to rise, one goes with its open file.
        all[19].lower_to(5, [&tables[19]].into_iter());
        all[0].lower_to(7, [&tables[0]].into_iter());
        assert_eq!((look(), all[19].bytes(), all[0].bytes()), (195, 5, 1));
        // A new one lies behind the last.
        let table = folder.table();
        let more = Reserved::take(1000, [&table].into_iter());
        assert_eq!(look(), 1195);
        assert!(more.others_in(&table) >= 195);
        all[18].lower_to(0, [&tables[18]].into_iter());
        assert_eq!(look(), 1176);
        drop((tables, table));
        assert_eq!(look(), 0);
    }

    #[test]
    fn where_files_cannot_be_locked_threads_see_each_other() {
        let table = || ReservationTable::open("/no/such/directory");
        let (one, two) = (table(), table());
        let first = Reserved::take(1 << 40, [&one].into_iter());
        let mut second = Reserved::take(1 << 41, [&two].into_iter());
        // Other tests reserve some MiB meanwhile.
        assert!(first.others_in(&one) >= 1 << 41 && second.others_in(&two) >= 1 << 40);
        second.lower_to(1 << 30, [&two].into_iter());
        assert!((1 << 30..1 << 41).contains(&first.others_in(&one)));
        drop(second);
        assert!(first.others_in(&one) < 1 << 30);
    }

    #[test]
    fn a_file_that_somebody_else_keeps_locked_is_waited_for_but_not_for_ever() {
        let folder = Folder::new("turn");
        let (theirs, ours) = (folder.table(), folder.table());
        assert!(sys::try_lock(theirs.file.as_ref().expect("opened")).expect("no error"));
        let start = Instant::now();
        let turn = Turn::take([&ours].into_iter());
        assert!(turn.locked.is_empty() && start.elapsed() >= TURN_MAX);
        assert!(start.elapsed() < 20 * TURN_MAX);
        drop(turn);
        drop(theirs);
        assert_eq!(Turn::take([&ours].into_iter()).locked.len(), 1);
    }
}
