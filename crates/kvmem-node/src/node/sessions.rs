//! *Sessions*: the pins and reservations of each client, from its greeting until it is gone.
//!
//! The index file has, for each entry, the sessions that use it, and for each session the position
//! of the lock that its client holds in the [session file](crate::session_file). A server that
//! recovers the file therefore knows what the clients of its predecessor have and which of them
//! live. The session of a client that lives is *orphaned* until the client returns and
//! [resumes](Node::resume) it, or the kernel has released its lock. No time ends it: an orphaned
//! client still reads and writes its blocks.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use foldhash::fast::FixedState;

use super::node::Node;
use super::{BlockHandle, Granted};
use crate::error::{CallError, NodeError, Quota, TooMany};
use crate::format::{MAX_SESSIONS, SessionRecord, State};

/// The namespace of a session that only reads and has named one that does not exist: no value is in
/// it.
pub(super) const NOWHERE: u16 = u16::MAX;

/// The place of a session in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionIndex(u8);

const _: () = assert!(MAX_SESSIONS == 1 << u8::BITS);

impl SessionIndex {
    pub(crate) fn number(self) -> usize {
        self.0.into()
    }
}

/// What a client says when it connects, and the kernel says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The inode number of the process; 0: not known.
    pub(crate) process_id: u64,
    pub(crate) namespace: u16,
    pub(crate) read_only: bool,
}

/// A block that a session has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReservationState {
    /// The client was silent for too long. The extent is not used again before the client has
    /// released the reservation or is gone: it may still write there.
    pub(super) fenced: bool,
}

/// What a session has. The server chooses the numbers of entries, so their hash needs no secret.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) token: u64,
    pub(super) pid: u32,
    process_id: u64,
    uid: u32,
    /// The position of the client's lock.
    lock_at: u64,
    pub(super) namespace: u16,
    /// The namespace that it has named and that does not exist yet.
    awaits: Option<String>,
    pub(super) read_only: bool,
    /// The client may live and has no connection: the predecessor of this server had the session,
    /// or the connection broke.
    pub(super) orphaned: bool,
    /// Names the time since the session began, was resumed or lost its pins. A release of an
    /// earlier time does not end pins of this one.
    pub(super) epoch: u64,
    /// Pinned entries, and the number of pins of each.
    pub(super) pins: HashMap<u32, u32, FixedState>,
    /// Of the pinned entries, each once.
    pub(super) pinned_bytes: u64,
    pub(super) reservations: HashMap<u32, ReservationState, FixedState>,
    pub(super) reserved_bytes: u64,
    /// Those of fenced reservations.
    pub(super) fenced_bytes: u64,
}

impl Session {
    pub(super) fn check_handles(&self, more: usize, limit: usize) -> Result<(), CallError> {
        let value = self.pins.len() + self.reservations.len() + more;
        if value <= limit {
            return Ok(());
        }
        let (value, limit) = (value as u64, limit as u64);
        Err(CallError::Quota { what: Quota::SessionHandles, value, limit })
    }
}

/// All sessions, at the places that they have in the index file.
#[derive(Debug)]
pub(super) struct Sessions(Vec<Option<Session>>);

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions((0..MAX_SESSIONS).map(|_| None).collect())
    }
}

impl Sessions {
    pub(super) fn get(&self, session: SessionIndex) -> &Session {
        self.0[session.number()].as_ref().expect("the session lives")
    }

    pub(super) fn get_mut(&mut self, session: SessionIndex) -> &mut Session {
        self.0[session.number()].as_mut().expect("the session lives")
    }

    pub(super) fn at(&self, number: usize) -> Option<&Session> {
        self.0.get(number)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, number: usize) -> Option<&mut Session> {
        self.0.get_mut(number)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (SessionIndex, &Session)> {
        let numbered = (0..=u8::MAX).zip(&self.0);
        numbered.filter_map(|(number, it)| Some((SessionIndex(number), it.as_ref()?)))
    }

    pub(super) fn add_reservation(&mut self, session: SessionIndex, slot: u32, len: u64) {
        let session = self.get_mut(session);
        session.reservations.insert(slot, ReservationState::default());
        session.reserved_bytes += len;
    }

    pub(super) fn remove_reservation(&mut self, session: SessionIndex, slot: u32, len: u64) {
        let session = self.get_mut(session);
        if let Some(ended) = session.reservations.remove(&slot) {
            session.reserved_bytes -= len;
            session.fenced_bytes -= if ended.fenced { len } else { 0 };
        }
    }

    /// Adds a session that the index file has.
    pub(super) fn add_orphan(&mut self, number: usize, record: &SessionRecord) -> SessionIndex {
        self.0[number] = Some(Session {
            token: record.token,
            pid: record.pid,
            process_id: record.process_id,
            uid: record.uid,
            lock_at: record.lock_at,
            awaits: None,
            namespace: record.namespace,
            read_only: record.read_only,
            orphaned: true,
            epoch: random_epoch(),
            pins: HashMap::default(),
            pinned_bytes: 0,
            reservations: HashMap::default(),
            reserved_bytes: 0,
            fenced_bytes: 0,
        });
        SessionIndex(number as u8)
    }
}

/// Returns a random number that is not 0, below 2^62.
fn random_epoch() -> u64 {
    let mut random = [0; 8];
    loop {
        // The call fails only for flags or sizes other than these.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let epoch = u64::from_ne_bytes(random) >> 2;
        if epoch != 0 {
            return epoch;
        }
    }
}

impl Node {
    /// Begins a session that only reads, in a namespace that exists or will exist: it makes none.
    pub(crate) fn begin_reading(
        &mut self,
        new: NewSession,
        name: &str,
    ) -> Result<(SessionIndex, u64), CallError> {
        super::namespaces::check_name(name)?;
        let found = self.find_namespace(name);
        let new = NewSession { namespace: found.unwrap_or(NOWHERE), ..new };
        let (session, token) = self.begin_session(new)?;
        self.sessions.get_mut(session).awaits = found.is_none().then(|| name.to_owned());
        Ok((session, token))
    }

    /// Gives a namespace that was just made to the sessions that wait for it.
    pub(super) fn join_namespace(&mut self, name: &str, namespace: u16) {
        for (number, session) in self.sessions.0.iter_mut().enumerate() {
            let Some(session) = session.as_mut().filter(|it| it.awaits.as_deref() == Some(name))
            else {
                continue;
            };
            (session.namespace, session.awaits) = (namespace, None);
            let cell = &self.memory.sessions()[number];
            if let Some(record) = cell.read() {
                cell.write(&SessionRecord { namespace, ..record });
            }
        }
    }

    /// Returns the user of a session.
    pub(crate) fn uid_of(&self, session: SessionIndex) -> u32 {
        self.sessions.get(session).uid
    }

    /// Returns how many sessions a user has.
    pub(crate) fn sessions_of_user(&self, uid: u32) -> usize {
        self.sessions.all().filter(|(_, it)| it.uid == uid).count()
    }

    /// Returns an error if a user would have reserved more than a part of the memory.
    pub(crate) fn check_user(&self, uid: u32, sizes: &[u64], part: u64) -> Result<(), CallError> {
        let of_user = self.sessions.all().filter(|(_, it)| it.uid == uid);
        let reserved: u64 = of_user.map(|(_, it)| it.reserved_bytes).sum();
        let value = sizes.iter().fold(reserved, |sum, size| sum.saturating_add(*size));
        let limit = self.memory.header.memory_len / part;
        if value > limit {
            return Err(CallError::Quota { what: Quota::UserReserved, value, limit });
        }
        Ok(())
    }

    /// Begins a session. Returns its place, and the token that resumes it.
    pub(crate) fn begin_session(
        &mut self,
        new: NewSession,
    ) -> Result<(SessionIndex, u64), CallError> {
        let Some(number) = self.sessions.0.iter().position(Option::is_none) else {
            return Err(CallError::TooMany { what: TooMany::Sessions, limit: MAX_SESSIONS });
        };
        let token = self.new_token();
        let lock_at = random_epoch();
        let NewSession { pid, uid, process_id, namespace, read_only } = new;
        let record = SessionRecord { token, pid, uid, lock_at, process_id, namespace, read_only };
        // A client of an earlier session at this place finds other words.
        self.memory.session_file.begin(number, random_epoch());
        self.memory.sessions()[number].write(&record);
        let session = self.sessions.add_orphan(number, &record);
        self.sessions.get_mut(session).orphaned = false;
        Ok((session, token))
    }

    /// Opens the session file for the client of a session: the server takes the client for living
    /// as long as a process maps what this returns.
    pub(crate) fn open_session_file(&self, session: SessionIndex) -> Result<OwnedFd, NodeError> {
        self.memory.session_file.open_locked(self.sessions.get(session).lock_at)
    }

    /// Returns whether the client of a session may still reach the memory: a process has the lock
    /// of the session, or the kernel cannot tell.
    pub(crate) fn may_live(&self, session: SessionIndex) -> bool {
        let lock_at = self.sessions.get(session).lock_at;
        self.memory.session_file.is_locked(lock_at).unwrap_or(true)
    }

    fn new_token(&self) -> u64 {
        let mut random = [0; 8];
        loop {
            // The call fails only for flags or sizes other than these.
            let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
            let token = u64::from_ne_bytes(random);
            if token != 0 && self.sessions.all().all(|(_, it)| it.token != token) {
                return token;
            }
        }
    }

    /// Returns the process of a session.
    pub(crate) fn pid_of(&self, session: SessionIndex) -> u32 {
        self.sessions.get(session).pid
    }

    /// Returns all sessions.
    pub(crate) fn all_sessions(&self) -> Vec<SessionIndex> {
        self.sessions.all().map(|(session, _)| session).collect()
    }

    /// Returns the sessions of a process.
    pub(crate) fn sessions_of(&self, pid: u32) -> Vec<SessionIndex> {
        self.sessions.all().filter(|(_, it)| it.pid == pid).map(|(session, _)| session).collect()
    }

    /// Returns the number of the namespace of a session.
    pub(crate) fn namespace_number(&self, session: SessionIndex) -> u16 {
        self.sessions.get(session).namespace
    }

    /// Returns the name of the namespace of a session.
    pub(crate) fn namespace_name(&self, session: SessionIndex) -> &str {
        let session = self.sessions.get(session);
        match &session.awaits {
            Some(name) => name,
            None => &self.namespaces.get(session.namespace).name,
        }
    }

    /// Returns whether a session only reads.
    pub(crate) fn is_read_only(&self, session: SessionIndex) -> bool {
        self.sessions.get(session).read_only
    }

    /// Returns the most pins and reservations that a session may have.
    pub(crate) fn max_handles(&self) -> usize {
        self.options.max_handles_per_session
    }

    /// Returns the handles of the reservations of a session.
    pub(crate) fn reservations_of(&self, session: SessionIndex) -> Vec<BlockHandle> {
        let slots = self.sessions.get(session).reservations.keys();
        let handle =
            |slot: &u32| BlockHandle { slot: *slot, generation: self.entry(*slot).generation() };
        slots.map(handle).collect()
    }

    /// Returns the sessions without a connection, with the numbers of their processes and the inode
    /// numbers of these.
    pub(crate) fn orphan_processes(&self) -> Vec<(SessionIndex, u32, u64)> {
        let orphans = self.sessions.all().filter(|(_, it)| it.orphaned);
        orphans.map(|(session, it)| (session, it.pid, it.process_id)).collect()
    }

    /// Returns the session with a token. The client may still have a connection that the server
    /// does not yet know to be broken.
    pub(crate) fn find_resumable(&self, token: u64, uid: u32) -> Option<SessionIndex> {
        let is_it = |it: &Session| it.token == token && it.uid == uid;
        self.sessions.all().find(|(_, it)| is_it(it)).map(|(session, _)| session)
    }

    /// Returns the sessions without a connection.
    pub(crate) fn orphans(&self) -> Vec<SessionIndex> {
        self.sessions.all().filter(|(_, it)| it.orphaned).map(|(session, _)| session).collect()
    }

    /// Keeps a session whose connection broke while its client may live.
    pub(crate) fn orphan(&mut self, session: SessionIndex) {
        self.sessions.get_mut(session).orphaned = true;
    }

    /// Gives an orphaned session back to its client. What the client no longer has is released:
    /// it may have ended pins while no server was there. Returns the blocks that it names and that
    /// are still its own.
    pub(crate) fn resume(
        &mut self,
        session: SessionIndex,
        pins: &[(BlockHandle, u32)],
        reservations: &[BlockHandle],
    ) -> Vec<Option<Granted>> {
        let resumed = self.sessions.get_mut(session);
        // Releases that were sent on the connection of before may come late.
        (resumed.orphaned, resumed.epoch) = (false, random_epoch());
        let mut kept = HashMap::new();
        let mut answers = Vec::with_capacity(pins.len());
        for &(handle, count) in pins {
            let own = self.live(handle).ok().map(|(slot, _)| slot);
            let own = own.filter(|slot| self.sessions.get(session).pins.contains_key(slot));
            if let Some(slot) = own.filter(|_| count > 0) {
                kept.insert(slot, count);
            }
            answers.push(own.map(|slot| self.granted(slot)));
        }
        let had: Vec<u32> = self.sessions.get(session).pins.keys().copied().collect();
        for slot in had {
            // A recovered session has one pin of each of its entries.
            self.set_pins(session, slot, kept.get(&slot).copied().unwrap_or(0));
        }
        let named: HashSet<BlockHandle> = reservations.iter().copied().collect();
        let had: Vec<u32> = self.sessions.get(session).reservations.keys().copied().collect();
        for slot in had {
            let generation = self.entry(slot).generation();
            if !named.contains(&BlockHandle { slot, generation }) {
                self.end_reservation(session, slot);
            }
        }
        answers
    }

    /// Ends a session whose client is gone, or has said that it writes no more: its pins and
    /// reservations end.
    pub(crate) fn end_session(&mut self, session: SessionIndex) {
        // First the words, then the blocks.
        self.memory.session_file.end(session.number());
        let Session { pins, reservations, .. } = self.sessions.get_mut(session);
        let pins: Vec<u32> = pins.keys().copied().collect();
        let reservations: Vec<u32> = reservations.keys().copied().collect();
        pins.into_iter().for_each(|slot| self.set_pins(session, slot, 0));
        reservations.into_iter().for_each(|slot| self.end_reservation(session, slot));
        self.memory.sessions()[session.number()].clear();
        self.sessions.0[session.number()] = None;
    }

    /// Ends the pins of a session, which keeps its reservations. For operators who know that the
    /// client does not read any more.
    pub(crate) fn reclaim_pins(&mut self, session: SessionIndex) -> usize {
        let pins: Vec<u32> = self.sessions.get(session).pins.keys().copied().collect();
        let reclaimed = pins.len();
        if reclaimed > 0 {
            // First the word, then the blocks.
            self.revoke_pins(session);
        }
        pins.into_iter().for_each(|slot| self.set_pins(session, slot, 0));
        reclaimed
    }

    /// Says that all pins that the client of a session has may have ended: their batches are no
    /// longer valid.
    pub(super) fn revoke_pins(&mut self, session: SessionIndex) {
        // The client may release the pins later, when it has others of the same entries. The word
        // rises with the epoch.
        self.sessions.get_mut(session).epoch += 1;
        let word = self.memory.session_file.pin_word(session.number());
        self.memory.session_file.set_pin_word(session.number(), word + 1);
    }

    /// Returns the value of the word of a session: it belongs to the session's epoch.
    pub(crate) fn pin_word_of(&self, session: SessionIndex) -> u64 {
        self.memory.session_file.pin_word(session.number())
    }

    /// Returns the epoch of the pins of a session.
    pub(crate) fn epoch_of(&self, session: SessionIndex) -> u64 {
        self.sessions.get(session).epoch
    }

    /// Fences the reservations of a session that was silent for too long: they can no longer be
    /// committed. Returns how many.
    pub(crate) fn fence(&mut self, session: SessionIndex) -> usize {
        let session = self.sessions.get_mut(session);
        if session.fenced_bytes == session.reserved_bytes {
            // No block is empty, so all are fenced.
            return 0;
        }
        session.fenced_bytes = session.reserved_bytes;
        let fresh = session.reservations.values_mut().filter(|it| !it.fenced);
        let fenced = fresh.map(|it| it.fenced = true).count();
        self.counters.fenced += fenced as u64;
        fenced
    }

    /// Returns the pins and the reservations of a session.
    pub(crate) fn handles_of(&self, session: SessionIndex) -> (usize, usize) {
        let session = self.sessions.get(session);
        (session.pins.len(), session.reservations.len())
    }

    /// Returns the entry of a reservation of this session, in state
    /// [`Reserved`](State::Reserved).
    pub(super) fn reservation(
        &self,
        session: SessionIndex,
        handle: BlockHandle,
    ) -> Result<u32, CallError> {
        let (slot, word) = self.live(handle)?;
        let BlockHandle { slot: _, generation } = handle;
        match self.sessions.get(session).reservations.get(&slot) {
            Some(it) if it.fenced => Err(CallError::Fenced),
            Some(_) if word.state == State::Reserved => Ok(slot),
            _ => Err(CallError::Stale { slot, generation }),
        }
    }
}
