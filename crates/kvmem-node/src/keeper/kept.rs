//! *Kept*: names, their descriptors, and the connections that have claimed them.

use std::os::fd::{BorrowedFd, OwnedFd};

use super::error::KeeperCallError;
use super::messages::KeptListed;
use crate::socket::{MAX_DESCRIPTORS, now_ms};

/// The most names of one keeper, claimed ones without descriptors included.
pub const MAX_KEPT: usize = 64;

/// The most bytes of a name.
pub const MAX_KEPT_NAME: usize = 64;

/// A connection, and the process at its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claimant {
    pub(super) connection: u64,
    pub(super) pid: u32,
}

#[derive(Debug)]
struct Kept {
    name: String,
    /// Empty: the name is only claimed.
    descriptors: Vec<OwnedFd>,
    claimed_by: Option<Claimant>,
    since_ms: u64,
}

/// All names. No name occurs twice, and each has descriptors or a claimant.
#[derive(Debug, Default)]
pub(super) struct KeptTable(Vec<Kept>);

impl KeptTable {
    /// Returns whether no name has descriptors.
    pub(super) fn holds_nothing(&self) -> bool {
        self.0.iter().all(|kept| kept.descriptors.is_empty())
    }

    /// Gives a connection the sole use of a name. Returns the descriptors under it.
    pub(super) fn claim(
        &mut self,
        name: &str,
        by: Claimant,
    ) -> Result<Vec<BorrowedFd<'_>>, KeeperCallError> {
        let at = match self.find(name, by)? {
            Some(at) => at,
            None => self.add(name)?,
        };
        self.0[at].claimed_by = Some(by);
        Ok(borrowed(&self.0[at].descriptors))
    }

    /// Keeps descriptors under a name that has none.
    pub(super) fn put(
        &mut self,
        name: &str,
        by: Claimant,
        expected: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), KeeperCallError> {
        let got = descriptors.len();
        if got != expected || got == 0 {
            return Err(KeeperCallError::Descriptors { got, expected, limit: MAX_DESCRIPTORS });
        }
        let at = match self.find(name, by)? {
            Some(at) if self.0[at].descriptors.is_empty() => at,
            Some(_) => return Err(KeeperCallError::NameInUse { name: name.to_owned() }),
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
    ) -> Result<Vec<BorrowedFd<'_>>, KeeperCallError> {
        let at = self.find_held(name, by)?;
        Ok(borrowed(&self.0[at].descriptors))
    }

    /// Closes the descriptors under a name. A claim stays.
    pub(super) fn forget(&mut self, name: &str, by: Claimant) -> Result<(), KeeperCallError> {
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
    ) -> Result<(), KeeperCallError> {
        let source = self.find_held(from, by)?;
        let target = match self.find(to, by)? {
            Some(at) if self.0[at].descriptors.is_empty() => at,
            Some(_) => return Err(KeeperCallError::NameInUse { name: to.to_owned() }),
            None => self.add(to)?,
        };
        self.0[target].descriptors = std::mem::take(&mut self.0[source].descriptors);
        self.0[target].since_ms = self.0[source].since_ms;
        self.remove_empty();
        Ok(())
    }

    /// Ends the claims of a connection.
    pub(super) fn disclaim(&mut self, connection: u64) {
        for kept in &mut self.0 {
            kept.claimed_by.take_if(|by| by.connection == connection);
        }
        self.remove_empty();
    }

    pub(super) fn list(&self) -> Vec<KeptListed> {
        let now = now_ms();
        let len = |fd: &OwnedFd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64);
        let held = self.0.iter().filter(|kept| !kept.descriptors.is_empty());
        held.map(|kept| KeptListed {
            name: kept.name.clone(),
            descriptors: kept.descriptors.len() as u32,
            bytes: kept.descriptors.iter().map(len).sum(),
            claimed_by: kept.claimed_by.map(|by| by.pid),
            kept_ms: now.saturating_sub(kept.since_ms),
        })
        .collect()
    }

    fn find(&self, name: &str, by: Claimant) -> Result<Option<usize>, KeeperCallError> {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > MAX_KEPT_NAME || !name.bytes().all(is_known) {
            return Err(KeeperCallError::BadName { len: name.len(), limit: MAX_KEPT_NAME });
        }
        let Some(at) = self.0.iter().position(|kept| kept.name == name) else { return Ok(None) };
        match self.0[at].claimed_by {
            Some(other) if other.connection != by.connection => {
                Err(KeeperCallError::Claimed { name: name.to_owned(), pid: other.pid })
            }
            _ => Ok(Some(at)),
        }
    }

    /// Finds a name that has descriptors.
    fn find_held(&self, name: &str, by: Claimant) -> Result<usize, KeeperCallError> {
        let found = self.find(name, by)?.filter(|at| !self.0[*at].descriptors.is_empty());
        found.ok_or_else(|| KeeperCallError::Absent { name: name.to_owned() })
    }

    fn add(&mut self, name: &str) -> Result<usize, KeeperCallError> {
        if self.0.len() >= MAX_KEPT {
            return Err(KeeperCallError::TooManyNames { limit: MAX_KEPT });
        }
        let (name, descriptors) = (name.to_owned(), Vec::new());
        self.0.push(Kept { name, descriptors, claimed_by: None, since_ms: now_ms() });
        Ok(self.0.len() - 1)
    }

    fn remove_empty(&mut self) {
        self.0.retain(|kept| !kept.descriptors.is_empty() || kept.claimed_by.is_some());
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
        let mut table = KeptTable::default();
        assert!(table.claim("node", A).expect("it is free").is_empty());
        let claimed = KeeperCallError::Claimed { name: "node".to_owned(), pid: 10 };
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
        table.disclaim(1);
        assert_eq!(table.claim("node", B).expect("the claim has ended").len(), 2);
        table.disclaim(2);
        table.forget("node", A).expect("no claim is left");
        assert!(table.holds_nothing() && table.0.is_empty());
    }

    #[test]
    fn descriptors_are_never_replaced() {
        let mut table = KeptTable::default();
        table.put("node", A, 1, files(1)).expect("it has none");
        let in_use = |name: &str| Err(KeeperCallError::NameInUse { name: name.to_owned() });
        assert_eq!(table.put("node", A, 1, files(1)), in_use("node"));
        table.rename("node", "aside", A).expect("the name is free");
        table.put("node", A, 1, files(1)).expect("it was set aside");
        assert_eq!(table.rename("node", "aside", A), in_use("aside"));
        assert_eq!(table.rename("node", "node", A), in_use("node"));
        let absent = KeeperCallError::Absent { name: "none".to_owned() };
        assert_eq!(table.forget("none", A), Err(absent));
        assert_eq!(table.list().len(), 2);
    }

    #[test]
    fn names_and_numbers_have_limits() {
        let mut table = KeptTable::default();
        for name in ["", "a/b", "a b", "é", "a\n", &"n".repeat(65)] {
            let error = KeeperCallError::BadName { len: name.len(), limit: 64 };
            assert_eq!(table.claim(name, A).map(drop), Err(error), "{name:?}");
        }
        let error = KeeperCallError::Descriptors { got: 1, expected: 2, limit: 4 };
        assert_eq!(table.put("node", A, 2, files(1)), Err(error));
        let error = KeeperCallError::Descriptors { got: 0, expected: 0, limit: 4 };
        assert_eq!(table.put("node", A, 0, files(0)), Err(error));
        for number in 0..MAX_KEPT {
            table.claim(&format!("n{number}"), A).expect("there is space");
        }
        let error = KeeperCallError::TooManyNames { limit: MAX_KEPT };
        assert_eq!(table.claim("one-more", A).map(drop), Err(error));
        table.disclaim(1);
        table.claim("one-more", A).expect("claims without descriptors end");
    }
}
