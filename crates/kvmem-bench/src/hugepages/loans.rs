//! The file of loans: the hugepages that each running benchmark has borrowed.
//!
//! The file is locked while it is read or changed, and exists only while pages are borrowed. Each
//! change is written *before* the pool grows, so a run that is killed in between has left a line.
//! The content is padded to one page and written by one call: a kill leaves the old content or the
//! new one.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::Restored;
use super::pool::HugepagePool;

/// The path of the file. Only root can write there, as only root can resize the pool.
pub(super) const LOAN_FILE: &str = "/run/kvmem-hugepages-2048kB.lock";

/// The size of the file, and the limit of its content.
const BYTES: usize = 4096;

/// The loan of one benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loan {
    /// The process.
    pub(super) process: u32,
    /// The start time of the process, in the kernel's ticks since boot: process numbers are
    /// reused.
    pub(super) start: u64,
    /// Distinguishes the loans of a process.
    pub(super) number: u32,
    /// Pages.
    pub(super) pages: u64,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loans {
    /// The boot during which the loans were made.
    boot: String,
    /// Pages of the pool before the first loan.
    before: u64,
    /// Free pages of the pool before the first loan.
    spare: u64,
    /// The size of the pool that was last requested, in pages.
    goal: u64,
    loans: Vec<Loan>,
}

impl Loans {
    fn parse(text: &str) -> Option<Loans> {
        let mut file = Loans::default();
        for line in text.trim_end().lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            if name == "boot" {
                words.next()?.clone_into(&mut file.boot);
                continue;
            }
            let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
            match (name, numbers.as_slice()) {
                ("before", [pages]) => file.before = *pages,
                ("spare", [pages]) => file.spare = *pages,
                ("goal", [pages]) => file.goal = *pages,
                ("borrower", &[process, start, number, pages]) => file.loans.push(Loan {
                    process: process.try_into().ok()?,
                    start,
                    number: number.try_into().ok()?,
                    pages,
                }),
                _ => return None,
            }
        }
        (!file.boot.is_empty()).then_some(file)
    }

    fn text(&self) -> String {
        let Loans { boot, before, spare, goal, loans } = self;
        let mut text = format!(
            "# Hugepages of 2 MiB borrowed by kvmem-lab bench; its next run returns them.\n\
             boot {boot}\nbefore {before}\nspare {spare}\ngoal {goal}\n"
        );
        for Loan { process, start, number, pages } in loans {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "borrower {process} {start} {number} {pages}");
        }
        text
    }

    /// Returns the pool size that all loans need, in pages.
    fn wanted(&self) -> u64 {
        let pages: u64 = self.loans.iter().map(|loan| loan.pages).fold(0, u64::saturating_add);
        self.before.saturating_add(pages.saturating_sub(self.spare))
    }

    /// Returns whether the loans explain this pool size; otherwise another process has set it.
    fn explain(&self, total: u64) -> bool {
        (self.before..=self.goal).contains(&total)
    }
}

/// The loan file, locked.
pub(super) struct LockedLoans {
    file: File,
    path: PathBuf,
    /// `None` if nothing is borrowed.
    loans: Option<Loans>,
}

impl LockedLoans {
    /// Locks the file, waiting for other processes, and reads it.
    pub(super) fn open(path: &Path, create: bool) -> Result<LockedLoans, String> {
        let failed = |error| format!("cannot use {}: {error}; run as root", path.display());
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
                    // Nothing is borrowed and nothing will be written.
                    let file = File::open("/dev/null").map_err(failed)?;
                    return Ok(LockedLoans { file, path: path.to_owned(), loans: None });
                }
                file => file.map_err(failed)?,
            };
            file.lock().map_err(failed)?;
            // The previous lock holder may have removed the file.
            let same = |other: fs::Metadata, own: fs::Metadata| {
                (other.dev(), other.ino()) == (own.dev(), own.ino())
            };
            let is_there = fs::symlink_metadata(path).ok().zip(file.metadata().ok());
            if !is_there.is_some_and(|(other, own)| same(other, own)) {
                continue;
            }
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(failed)?;
            let loans = match text.trim_end() {
                "" => None,
                // A reboot has reset the pool, so loans of an earlier boot have ended.
                text => match Loans::parse(text) {
                    Some(loans) => Some(loans).filter(|loans| loans.boot == boot()),
                    None => {
                        return Err(format!(
                            "{} is damaged: check vm.nr_hugepages and remove the file",
                            path.display()
                        ));
                    }
                },
            };
            return Ok(LockedLoans { file, path: path.to_owned(), loans });
        }
    }

    /// Adds a loan and enlarges the pool by the missing pages, at most `max_pages`.
    pub(super) fn borrow(
        mut self,
        pool: &impl HugepagePool,
        loan: &Loan,
        max_pages: u64,
    ) -> Result<(), String> {
        self.drop_dead(pool)?;
        let total = pool.total()?;
        let mut loans = match self.loans.take() {
            Some(loans) => loans,
            None => {
                let spare = pool.free()?;
                Loans { boot: boot(), before: total, spare, goal: total, loans: Vec::new() }
            }
        };
        loans.loans.push(loan.clone());
        let wanted = loans.wanted();
        let missing = wanted.saturating_sub(total);
        let goal = loans.goal.max(wanted);
        let loans = self.loans.insert(loans);
        // Beyond the limit the kernel would evict everything else from memory to find the pages.
        let failed = if missing > max_pages {
            Some(format!(
                "{missing} hugepages of 2 MiB are missing, more than half of the available memory"
            ))
        } else {
            loans.goal = goal;
            self.write().and_then(|()| self.enlarge(pool, loan, wanted, missing)).err()
        };
        match failed {
            None => Ok(()),
            Some(reason) => {
                self.end_loans(pool, |other| other == loan)?;
                self.close()?;
                Err(reason)
            }
        }
    }

    fn enlarge(
        &self,
        pool: &impl HugepagePool,
        loan: &Loan,
        wanted: u64,
        missing: u64,
    ) -> Result<(), String> {
        if missing > 0 {
            pool.resize(wanted)
                .map_err(|error| format!("{missing} hugepages of 2 MiB are missing: {error}"))?;
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

    /// Ends the loans that `ends` selects, and those of dead processes.
    pub(super) fn give_back(
        mut self,
        pool: &impl HugepagePool,
        ends: impl Fn(&Loan) -> bool,
    ) -> Result<Option<Restored>, String> {
        let dead = self.drop_dead(pool)?;
        self.end_loans(pool, ends)?;
        self.close()?;
        Ok(dead)
    }

    /// Ends the loans of dead processes.
    fn drop_dead(&mut self, pool: &impl HugepagePool) -> Result<Option<Restored>, String> {
        let is_dead = |loan: &Loan| start_of(loan.process) != Some(loan.start);
        let Some(file) = &self.loans else { return Ok(None) };
        let mut left_by: Vec<u32> =
            file.loans.iter().filter(|loan| is_dead(loan)).map(|loan| loan.process).collect();
        left_by.dedup();
        if left_by.is_empty() && !file.loans.is_empty() {
            return Ok(None);
        }
        let found = pool.total()?;
        self.end_loans(pool, is_dead)?;
        let pages = pool.total()?;
        Ok((pages != found).then_some(Restored { found, pages, left_by }))
    }

    /// Removes the loans that `ends` selects, and shrinks the pool to the size that the others
    /// need.
    fn end_loans(
        &mut self,
        pool: &impl HugepagePool,
        ends: impl Fn(&Loan) -> bool,
    ) -> Result<(), String> {
        if let Some(file) = &mut self.loans {
            file.loans.retain(|loan| !ends(loan));
            let (total, wanted) = (pool.total()?, file.wanted());
            if file.explain(total) && wanted < total {
                pool.resize(wanted)?;
                file.goal = wanted;
            }
            if !file.loans.is_empty() {
                return self.write();
            }
            self.loans = None;
        }
        Ok(())
    }

    /// Removes the file if nothing is borrowed. The lock protects nothing from then on.
    fn close(self) -> Result<(), String> {
        if self.loans.is_some() {
            return Ok(());
        }
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", self.path.display()))
            }
            _ => Ok(()),
        }
    }

    fn write(&self) -> Result<(), String> {
        let text = self.loans.as_ref().map(Loans::text).unwrap_or_default();
        if text.len() > BYTES {
            return Err(format!(
                "too many runs borrow hugepages at once: {} is limited to {BYTES} bytes",
                self.path.display()
            ));
        }
        self.file
            .write_all_at(format!("{text:<BYTES$}").as_bytes(), 0)
            .map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }
}

/// Returns the pages by which the loans of running benchmarks have enlarged the pool.
pub(super) fn lent_pages(path: &Path) -> u64 {
    let loans = fs::read_to_string(path).ok().and_then(|text| Loans::parse(&text));
    let loans = loans.filter(|loans| loans.boot == boot());
    loans.map_or(0, |loans| loans.goal.saturating_sub(loans.before))
}

/// Returns the start time of a process, in ticks since boot; `None` if it has ended.
pub(super) fn start_of(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may contain spaces.
    let (_, after) = stat.rsplit_once(')')?;
    let mut words = after.split_whitespace();
    // A zombie has ended, but its parent has not waited for it.
    words.next().filter(|state| !matches!(*state, "Z" | "X"))?;
    words.nth(18)?.parse().ok()
}

fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests;
