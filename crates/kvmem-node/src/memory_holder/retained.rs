//! *Retained*: names, their descriptors, and the connections that have claimed them.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::error::MemoryHolderCallError;
use super::messages::RetainedListed;
use crate::socket::{MAX_DESCRIPTORS, now_ms};

/// The most names of one memory holder, claimed ones without descriptors included.
pub const MAX_RETAINED: usize = 64;

/// The most bytes of a name.
pub const MAX_RETAINED_NAME: usize = 64;

/// A connection, and the process at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimant {
    pub(super) connection: u64,
    pub(super) pid: u32,
}

#[derive(Debug)]
struct Retained {
    name: String,
    /// Empty: the name is only claimed.
    descriptors: Vec<OwnedFd>,
    claimed_by: Option<Claimant>,
    since_ms: u64,
}

/// All names. No name occurs twice, and each has descriptors or a claimant.
#[derive(Debug, Default)]
pub(super) struct RetainedTable(Vec<Retained>);

impl RetainedTable {
    /// Returns whether no name has descriptors.
    pub(super) fn holds_nothing(&self) -> bool {
        self.0.iter().all(|retained| retained.descriptors.is_empty())
    }

    /// Grants a connection the sole use of a name. Returns the descriptors under it.
    pub(super) fn claim(
        &mut self,
        name: &str,
        by: Claimant,
    ) -> Result<Vec<BorrowedFd<'_>>, MemoryHolderCallError> {
        let at = match self.find(name, by)? {
            Some(at) => at,
            None => self.add(name)?,
        };
        self.0[at].claimed_by = Some(by);
        Ok(borrowed(&self.0[at].descriptors))
    }

    /// Puts descriptors under a name that has none.
    pub(super) fn put(
        &mut self,
        name: &str,
        by: Claimant,
        expected: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), MemoryHolderCallError> {
        let got = descriptors.len();
        if got != expected || got == 0 {
            return Err(MemoryHolderCallError::Descriptors {
                got,
                expected,
                limit: MAX_DESCRIPTORS,
            });
        }
        let at = match self.find(name, by)? {
            Some(at) if self.0[at].descriptors.is_empty() => at,
            Some(_) => return Err(MemoryHolderCallError::NameInUse { name: name.to_owned() }),
            None => self.add(name)?,
        };
        self.0[at].descriptors = descriptors;
        self.0[at].since_ms = now_ms();
        Ok(())
    }

    /// Returns the descriptors under a name.
    pub(super) fn get(
        &self,
        name: &str,
        by: Claimant,
    ) -> Result<Vec<BorrowedFd<'_>>, MemoryHolderCallError> {
        let at = self.find_held(name, by)?;
        Ok(borrowed(&self.0[at].descriptors))
    }

    /// Closes the descriptors under a name. A claim stays.
    pub(super) fn forget(&mut self, name: &str, by: Claimant) -> Result<(), MemoryHolderCallError> {
        let at = self.find_held(name, by)?;
        self.0[at].descriptors.clear();
        self.remove_empty();
        Ok(())
    }

    /// Moves descriptors to another name, which has none. A claim stays with the first name.
    pub(super) fn rename(
        &mut self,
        from: &str,
        to: &str,
        by: Claimant,
    ) -> Result<(), MemoryHolderCallError> {
        let source = self.find_held(from, by)?;
        let target = match self.find(to, by)? {
            Some(at) if self.0[at].descriptors.is_empty() => at,
            Some(_) => return Err(MemoryHolderCallError::NameInUse { name: to.to_owned() }),
            None => self.add(to)?,
        };
        self.0[target].descriptors = std::mem::take(&mut self.0[source].descriptors);
        self.0[target].since_ms = self.0[source].since_ms;
        self.remove_empty();
        Ok(())
    }

    /// Ends the claims of a connection. Returns whether it had any.
    pub(super) fn disclaim(&mut self, connection: u64) -> bool {
        let mut had_any = false;
        for retained in &mut self.0 {
            had_any |= retained.claimed_by.take_if(|by| by.connection == connection).is_some();
        }
        self.remove_empty();
        had_any
    }

    pub(super) fn list(&self) -> Vec<RetainedListed> {
        let now = now_ms();
        let len = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64);
        let held = self.0.iter().filter(|retained| !retained.descriptors.is_empty());
        held.map(|retained| RetainedListed {
            name: retained.name.clone(),
            descriptors: retained.descriptors.len() as u32,
            bytes: retained.descriptors.iter().map(len).sum(),
            claimed_by: retained.claimed_by.map(|by| by.pid),
            retained_ms: now.saturating_sub(retained.since_ms),
        })
        .collect()
    }

    fn find(&self, name: &str, by: Claimant) -> Result<Option<usize>, MemoryHolderCallError> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > MAX_RETAINED_NAME || !name.bytes().all(is_known) {
            return Err(MemoryHolderCallError::BadName {
                len: name.len(),
                limit: MAX_RETAINED_NAME,
            });
        }
        let Some(at) = self.0.iter().position(|retained| retained.name == name) else {
            return Ok(None);
        };
        match self.0[at].claimed_by {
            Some(other) if other.connection != by.connection => {
                Err(MemoryHolderCallError::Claimed { name: name.to_owned(), pid: other.pid })
            }
            _ => Ok(Some(at)),
        }
    }

    /// Finds a name that has descriptors.
    fn find_held(&self, name: &str, by: Claimant) -> Result<usize, MemoryHolderCallError> {
        let found = self.find(name, by)?.filter(|at| !self.0[*at].descriptors.is_empty());
        found.ok_or_else(|| MemoryHolderCallError::Absent { name: name.to_owned() })
    }

    fn add(&mut self, name: &str) -> Result<usize, MemoryHolderCallError> {
        if self.0.len() >= MAX_RETAINED {
            return Err(MemoryHolderCallError::TooManyNames { limit: MAX_RETAINED });
        }
        let (name, descriptors) = (name.to_owned(), Vec::new());
        self.0.push(Retained { name, descriptors, claimed_by: None, since_ms: now_ms() });
        Ok(self.0.len() - 1)
    }

    fn remove_empty(&mut self) {
        self.0.retain(|retained| !retained.descriptors.is_empty() || retained.claimed_by.is_some());
    }
}

fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(std::os::fd::AsFd::as_fd).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Claimant = Claimant { connection: 1, pid: 10 };
    const B: Claimant = Claimant { connection: 2, pid: 20 };

    fn files(count: usize) -> Vec<OwnedFd> {
        let file = || std::fs::File::open("/dev/null").expect("it exists").into();
        (0..count).map(|_| file()).collect()
    }

    #[test]
    fn a_claim_is_of_one_connection_and_ends_with_it() {
        let mut table = RetainedTable::default();
        assert!(table.claim("node", A).expect("it is free").is_empty());
        let claimed = MemoryHolderCallError::Claimed { name: "node".to_owned(), pid: 10 };
        assert_eq!(table.claim("node", B).map(drop), Err(claimed.clone()));
        assert_eq!(table.put("node", B, 1, files(1)), Err(claimed.clone()));
        table.put("node", A, 2, files(2)).expect("it has none");
        for failed in [
            table.get("node", B).map(drop),
            table.forget("node", B),
            table.rename("node", "other", B),
        ] {
            assert_eq!(failed, Err(claimed.clone()));
        }
        assert_eq!(table.list()[0].claimed_by, Some(10));
        assert!(table.disclaim(1) && !table.disclaim(1));
        assert_eq!(table.claim("node", B).expect("the claim has ended").len(), 2);
        assert!(table.disclaim(2));
        table.forget("node", A).expect("no claim is left");
        assert!(table.holds_nothing() && table.0.is_empty());
    }

    #[test]
    fn descriptors_are_never_replaced() {
        let mut table = RetainedTable::default();
        table.put("node", A, 1, files(1)).expect("it has none");
        let in_use = |name: &str| Err(MemoryHolderCallError::NameInUse { name: name.to_owned() });
        assert_eq!(table.put("node", A, 1, files(1)), in_use("node"));
        table.rename("node", "aside", A).expect("the name is free");
        table.put("node", A, 1, files(1)).expect("it was set aside");
        assert_eq!(table.rename("node", "aside", A), in_use("aside"));
        assert_eq!(table.rename("node", "node", A), in_use("node"));
        let absent = MemoryHolderCallError::Absent { name: "none".to_owned() };
        assert_eq!(table.forget("none", A), Err(absent));
        assert_eq!(table.list().len(), 2);
    }

    #[test]
    fn names_and_numbers_have_limits() {
        let mut table = RetainedTable::default();
        for name in ["", "a/b", "a b", "é", "a\n", &"n".repeat(65)] {
            let error = MemoryHolderCallError::BadName { len: name.len(), limit: 64 };
            assert_eq!(table.claim(name, A).map(drop), Err(error), "{name:?}");
        }
        let error = MemoryHolderCallError::Descriptors { got: 1, expected: 2, limit: 4 };
        assert_eq!(table.put("node", A, 2, files(1)), Err(error));
        let error = MemoryHolderCallError::Descriptors { got: 0, expected: 0, limit: 4 };
        assert_eq!(table.put("node", A, 0, files(0)), Err(error));
        for number in 0..MAX_RETAINED {
            table.claim(&format!("n{number}"), A).expect("there is space");
        }
        let error = MemoryHolderCallError::TooManyNames { limit: MAX_RETAINED };
        assert_eq!(table.claim("one-more", A).map(drop), Err(error));
        assert!(table.disclaim(1));
        table.claim("one-more", A).expect("claims without descriptors end");
    }
}
