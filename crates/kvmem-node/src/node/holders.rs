//! *Holders*: users and readers, who may pin a part of the memory and no more.
//!
//! A pinned value cannot be evicted, so a client that pins everything prevents all others from
//! storing. The server's own user and operators may do so. All sessions of another user together
//! pin at most one in [`PART_PINNED`] of the bytes and of the entries, and so do all sessions
//! together that only read. A value that several sessions of one holder have pinned counts once.

use std::collections::HashSet;

use super::SessionIndex;
use super::node::Node;
use super::sessions::Session;
use crate::error::{CallError, Quota};

/// A holder pins at most one in this number of the bytes and of the entries.
const PART_PINNED: u64 = 2;

/// Sessions that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// The sessions of a user that is neither the server's own nor an operator.
    User(u32),
    /// The sessions that only read, of all users.
    Readers,
}

/// The values that a holder has pinned, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) values: u64,
    pub(super) bytes: u64,
}

/// Holders that have pinned something.
#[derive(Debug, Default)]
pub(super) struct Holders(Vec<(Holder, Holding)>);

impl Holders {
    pub(super) fn of(&self, holder: Holder) -> Holding {
        let found = self.0.iter().find(|(of, _)| *of == holder);
        found.map_or_else(Holding::default, |(_, holding)| *holding)
    }

    fn add(&mut self, holder: Holder, bytes: u64) {
        let at = self.0.iter().position(|(of, _)| *of == holder).unwrap_or_else(|| {
            self.0.push((holder, Holding::default()));
            self.0.len() - 1
        });
        let holding = &mut self.0[at].1;
        (holding.values, holding.bytes) = (holding.values + 1, holding.bytes + bytes);
    }

    fn remove(&mut self, holder: Holder, bytes: u64) {
        let at = self.0.iter().position(|(of, _)| *of == holder).expect("it has pinned the value");
        let holding = &mut self.0[at].1;
        (holding.values, holding.bytes) = (holding.values - 1, holding.bytes - bytes);
        if holding.values == 0 {
            self.0.swap_remove(at);
        }
    }
}

impl Session {
    /// Returns the holders that the session is one of.
    pub(super) fn holders(&self) -> impl Iterator<Item = Holder> + use<> {
        let user = self.is_limited.then_some(Holder::User(self.uid));
        let readers = self.read_only.then_some(Holder::Readers);
        user.into_iter().chain(readers)
    }
}

impl Node {
    /// Returns whether a session of a holder has pinned an entry.
    fn has_pinned(&self, holder: Holder, slot: u32) -> bool {
        let mut users = self.entry(slot).users().filter_map(|number| self.sessions.at(number));
        users.any(|session| session.holders().any(|of| of == holder))
    }

    /// Counts the pin of an entry that a session had not pinned. The entry does not name the
    /// session.
    pub(super) fn hold(&mut self, session: SessionIndex, slot: u32) {
        for holder in self.sessions.get(session).holders() {
            if !self.has_pinned(holder, slot) {
                let bytes = self.space_of(slot);
                self.holders.add(holder, bytes);
            }
        }
    }

    /// Ends the count of a pin. The entry does not name the session any more.
    pub(super) fn end_hold(&mut self, session: SessionIndex, slot: u32) {
        for holder in self.sessions.get(session).holders() {
            if !self.has_pinned(holder, slot) {
                let bytes = self.space_of(slot);
                self.holders.remove(holder, bytes);
            }
        }
    }

    /// Returns an error if the pin of an entry that a session has not pinned exceeds a limit.
    pub(super) fn check_holders(&self, session: SessionIndex, slot: u32) -> Result<(), CallError> {
        for holder in self.sessions.get(session).holders() {
            if self.has_pinned(holder, slot) {
                continue;
            }
            let (values, bytes) = match holder {
                Holder::User(_) => (Quota::UserPins, Quota::UserPinnedBytes),
                Holder::Readers => (Quota::ReaderPins, Quota::ReaderPinnedBytes),
            };
            let header = &self.memory.header;
            let had = self.holders.of(holder);
            let (value, limit) = (had.values + 1, u64::from(header.entries) / PART_PINNED);
            if value > limit {
                return Err(CallError::Quota { what: values, value, limit });
            }
            let (value, limit) = (had.bytes + self.space_of(slot), header.memory_len / PART_PINNED);
            if value > limit {
                return Err(CallError::Quota { what: bytes, value, limit });
            }
        }
        Ok(())
    }

    /// Says which users have limits: a recovery does not know. O(entries).
    pub(crate) fn limit_users(&mut self, is_limited: impl Fn(u32) -> bool) {
        self.sessions.limit_users(is_limited);
        self.count_holders();
    }

    /// Counts what holders have pinned. O(entries).
    pub(super) fn count_holders(&mut self) {
        self.holders = Holders::default();
        for slot in 0..self.locals.len() as u32 {
            let sessions = self.entry(slot).users().filter_map(|number| self.sessions.at(number));
            let pinning = sessions.filter(|session| session.pins.contains_key(&slot));
            let mut holders: Vec<Holder> = Vec::new();
            for holder in pinning.flat_map(Session::holders) {
                if !holders.contains(&holder) {
                    holders.push(holder);
                }
            }
            let bytes = if holders.is_empty() { 0 } else { self.space_of(slot) };
            holders.into_iter().for_each(|holder| self.holders.add(holder, bytes));
        }
    }

    /// Returns an error if the sums of the holders are not those of their pins.
    pub(super) fn check_holdings(&self) -> Result<(), String> {
        let (mut counted, mut held) = (Holders::default(), HashSet::new());
        for (_, it) in self.sessions.all() {
            let pins = |holder| it.pins.keys().map(move |slot| (holder, *slot));
            for (holder, slot) in it.holders().flat_map(pins).filter(|it| held.insert(*it)) {
                counted.add(holder, self.space_of(slot));
            }
        }
        let is_same = |one: &Holders, other: &Holders| {
            one.0.iter().all(|(holder, holding)| other.of(*holder) == *holding)
        };
        if is_same(&counted, &self.holders) && is_same(&self.holders, &counted) {
            Ok(())
        } else {
            Err(format!("5: holders have {counted:?}, counted are {:?}", self.holders))
        }
    }
}
