//! *Ledger*: who has borrowed how many hugepages, in a file that outlives every run.
//!
//! The file is locked while it is read or changed, and exists only while something is borrowed.
//! Each change is written *before* the pool is resized upwards, so that a run which is killed in
//! between has left a line. The content is padded to one page and written by one call: a kill
//! leaves the old content or the new.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Restored;
use super::pool::Pool;

/// Where the ledger is. Only root writes here, as only root resizes the pool.
pub(super) const PLACE: &str = "/run/kvmem-hugepages-2048kB.lock";

/// Bytes of the file, and so the most that it says.
const BYTES: usize = 4096;

/// One loan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Borrower {
    /// The process.
    pub(super) process: u32,
    /// When it started, in the kernel's ticks since the machine did: numbers of processes come
    /// again.
    pub(super) start: u64,
    /// Tells the loans of a process apart.
    pub(super) loan: u32,
    /// Pages.
    pub(super) pages: u64,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ledger {
    /// The start of the machine that it is about.
    boot: String,
    /// Pages of the pool before the first loan.
    before: u64,
    /// Those of them that were free then.
    spare: u64,
    /// Pages of the pool that were last asked for.
    goal: u64,
    borrowers: Vec<Borrower>,
}

impl Ledger {
    fn parse(text: &str) -> Option<Ledger> {
        let mut ledger = Ledger::default();
        for line in text.trim_end().lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            if name == "boot" {
                words.next()?.clone_into(&mut ledger.boot);
                continue;
            }
            let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
            match (name, numbers.as_slice()) {
                ("before", [pages]) => ledger.before = *pages,
                ("spare", [pages]) => ledger.spare = *pages,
                ("goal", [pages]) => ledger.goal = *pages,
                ("borrower", &[process, start, loan, pages]) => ledger.borrowers.push(Borrower {
                    process: process.try_into().ok()?,
                    start,
                    loan: loan.try_into().ok()?,
                    pages,
                }),
                _ => return None,
            }
        }
        (!ledger.boot.is_empty()).then_some(ledger)
    }

    fn text(&self) -> String {
        let Ledger { boot, before, spare, goal, borrowers } = self;
        let mut text = format!(
            "# Hugepages of 2 MiB borrowed by kvmem bench; its next run settles this.\nboot {boot}\n\
             before {before}\nspare {spare}\ngoal {goal}\n"
        );
        for Borrower { process, start, loan, pages } in borrowers {
            // A string takes everything.
            let _ = writeln!(text, "borrower {process} {start} {loan} {pages}");
        }
        text
    }

    /// Pages that the pool must have for all loans.
    fn wanted(&self) -> u64 {
        let pages: u64 =
            self.borrowers.iter().map(|borrower| borrower.pages).fold(0, u64::saturating_add);
        self.before.saturating_add(pages.saturating_sub(self.spare))
    }

    /// Whether loans explain this size of the pool; otherwise somebody has set it meanwhile.
    fn explains(&self, total: u64) -> bool {
        (self.before..=self.goal).contains(&total)
    }
}

/// The ledger, locked.
pub(super) struct Locked {
    file: File,
    path: PathBuf,
    /// `None` where nothing is borrowed.
    ledger: Option<Ledger>,
}

impl Locked {
    /// Locks the ledger and reads it, if need be after others are done with it.
    pub(super) fn open(path: &Path, create: bool) -> Result<Locked, String> {
        let failed = |error| format!("{} cannot be used: {error}; run it as root", path.display());
        loop {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(create)
                .mode(0o644)
                .custom_flags(libc::O_NOFOLLOW);
            let mut file = match options.open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound && !create => {
                    // Nothing is borrowed, and nothing will be written.
                    let file = File::open("/dev/null").map_err(failed)?;
                    return Ok(Locked { file, path: path.to_owned(), ledger: None });
                }
                file => file.map_err(failed)?,
            };
            file.lock().map_err(failed)?;
            // The previous holder of the lock may have removed the file.
            let same = |other: fs::Metadata, own: fs::Metadata| {
                (other.dev(), other.ino()) == (own.dev(), own.ino())
            };
            let is_there = fs::symlink_metadata(path).ok().zip(file.metadata().ok());
            if !is_there.is_some_and(|(other, own)| same(other, own)) {
                continue;
            }
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(failed)?;
            let ledger = match text.trim_end() {
                "" => None,
                // Of before the machine was started anew, and its pool with it.
                text => match Ledger::parse(text) {
                    Some(ledger) => Some(ledger).filter(|ledger| ledger.boot == boot()),
                    None => {
                        return Err(format!(
                            "{} is damaged: look at vm.nr_hugepages and remove it",
                            path.display()
                        ));
                    }
                },
            };
            return Ok(Locked { file, path: path.to_owned(), ledger });
        }
    }

    /// Adds a loan, and enlarges the pool by what is lacking, but by no more than `most` pages.
    pub(super) fn borrow(
        mut self,
        pool: &impl Pool,
        loan: &Borrower,
        most: u64,
    ) -> Result<(), String> {
        self.drop_dead(pool)?;
        let total = pool.total()?;
        let mut ledger = match self.ledger.take() {
            Some(ledger) => ledger,
            None => {
                let spare = pool.free()?;
                Ledger { boot: boot(), before: total, spare, goal: total, borrowers: Vec::new() }
            }
        };
        ledger.borrowers.push(loan.clone());
        let wanted = ledger.wanted();
        let lacking = wanted.saturating_sub(total);
        // The kernel would try: it would push everything else out of memory to get them.
        let goal = ledger.goal.max(wanted);
        let ledger = self.ledger.insert(ledger);
        let refused = if lacking > most {
            Some(format!(
                "{lacking} hugepages of 2 MiB are lacking, more than half of the memory that is available"
            ))
        } else {
            ledger.goal = goal;
            self.write().and_then(|()| self.enlarge(pool, loan, wanted, lacking)).err()
        };
        match refused {
            None => Ok(()),
            Some(reason) => {
                self.settle(pool, |other| other == loan)?;
                self.close()?;
                Err(reason)
            }
        }
    }

    fn enlarge(
        &self,
        pool: &impl Pool,
        loan: &Borrower,
        wanted: u64,
        lacking: u64,
    ) -> Result<(), String> {
        if lacking > 0 {
            pool.resize(wanted)
                .map_err(|error| format!("{lacking} hugepages of 2 MiB are lacking: {error}"))?;
        }
        let (total, free) = (pool.total()?, pool.free()?);
        if total < wanted || free < loan.pages {
            let found = free.min((loan.pages + total).saturating_sub(wanted));
            return Err(format!(
                "the system could free only {found} of {} hugepages of 2 MiB",
                loan.pages
            ));
        }
        Ok(())
    }

    /// Ends the loans that `ends` names, and those of processes that are no more.
    pub(super) fn give_back(
        mut self,
        pool: &impl Pool,
        ends: impl Fn(&Borrower) -> bool,
    ) -> Result<Option<Restored>, String> {
        let dead = self.drop_dead(pool)?;
        self.settle(pool, ends)?;
        self.close()?;
        Ok(dead)
    }

    /// Ends the loans of processes that are no more.
    fn drop_dead(&mut self, pool: &impl Pool) -> Result<Option<Restored>, String> {
        let is_dead = |loan: &Borrower| start_of(loan.process) != Some(loan.start);
        let Some(ledger) = &self.ledger else { return Ok(None) };
        let mut left_by: Vec<u32> =
            ledger.borrowers.iter().filter(|loan| is_dead(loan)).map(|loan| loan.process).collect();
        left_by.dedup();
        if left_by.is_empty() && !ledger.borrowers.is_empty() {
            return Ok(None);
        }
        let found = pool.total()?;
        self.settle(pool, is_dead)?;
        let pages = pool.total()?;
        Ok((pages != found).then_some(Restored { found, pages, left_by }))
    }

    /// Removes loans, and gives the pool the size that the others need.
    fn settle(&mut self, pool: &impl Pool, ends: impl Fn(&Borrower) -> bool) -> Result<(), String> {
        if let Some(ledger) = &mut self.ledger {
            ledger.borrowers.retain(|loan| !ends(loan));
            let (total, wanted) = (pool.total()?, ledger.wanted());
            if ledger.explains(total) && wanted < total {
                pool.resize(wanted)?;
                ledger.goal = wanted;
            }
            if !ledger.borrowers.is_empty() {
                return self.write();
            }
            self.ledger = None;
        }
        Ok(())
    }

    /// Removes the file where nothing is borrowed. A lock on it is worth nothing from then on.
    fn close(self) -> Result<(), String> {
        if self.ledger.is_some() {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("{} cannot be removed: {error}", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn write(&self) -> Result<(), String> {
        let text = self.ledger.as_ref().map(Ledger::text).unwrap_or_default();
        if text.len() > BYTES {
            return Err(format!(
                "too many runs borrow hugepages at once: {} has no room",
                self.path.display()
            ));
        }
        self.file
            .write_all_at(format!("{text:<BYTES$}").as_bytes(), 0)
            .map_err(|error| format!("{} cannot be written: {error}", self.path.display()))
    }
}

/// Pages by which loans of runs that still go on have enlarged the pool.
pub(super) fn lent(path: &Path) -> u64 {
    let ledger = fs::read_to_string(path).ok().and_then(|text| Ledger::parse(&text));
    let ledger = ledger.filter(|ledger| ledger.boot == boot());
    ledger.map_or(0, |ledger| ledger.goal.saturating_sub(ledger.before))
}

/// When a process started, in ticks since the machine did; `None` if it has ended.
pub(super) fn start_of(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may have spaces.
    let (_, after) = stat.rsplit_once(')')?;
    let mut words = after.split_whitespace();
    // It has ended, and its parent has not looked yet.
    words.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    words.nth(18)?.parse().ok()
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests;
