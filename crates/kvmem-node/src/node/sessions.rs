//! *Sessions*: the pins and reservations of each client, from its greeting until it is gone.
//!
//! The index file has, for each entry, the sessions that use it, and for each session the position
//! of the lock that its client holds in the [session file](crate::session_file). A server that
//! recovers the file therefore knows what the clients of its predecessor have and which of them
//! live. The session of a client that lives is *orphaned* until the client returns and
//! [resumes](Node::resume) it, or the kernel has released its lock. No time ends it: an orphaned
//! client still reads and writes its blocks.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use foldhash::fast::FixedState;

use super::BlockHandle;
use super::node::Node;
use crate::error::{CallError, NodeError, Quota, TooMany};
use crate::format::{MAX_SESSIONS, SessionRecord, State};
use crate::socket::{fill_random, now_ms};

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

/// The greeting of a client, and its identity as the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The inode number of the process; 0: not known.
    pub(crate) process_id: u64,
    pub(crate) namespace: u16,
    pub(crate) read_only: bool,
    /// Whether the [limits of a user](super::holders) hold for it.
    pub(crate) is_limited: bool,
}

/// A block that a session has reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReservationState {
    /// The client was silent for too long. The extent is not used again before the client has
    /// released the reservation or is gone: it may still write there.
    pub(super) fenced: bool,
    /// It is over, and [being released](super::ending).
    is_over: bool,
    /// The resumption of the session in which the client has named it last.
    named_in: u32,
}

/// The pins that a session has of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SessionPin {
    /// 0: they are over, and [being released](super::ending).
    pub(super) count: u32,
    /// The resumption of the session in which the client has named it last.
    named_in: u32,
}

impl SessionPin {
    pub(super) fn of(count: u32) -> SessionPin {
        SessionPin { count, named_in: 0 }
    }

    pub(super) fn is_over(&self) -> bool {
        self.count == 0
    }
}

/// Grants of a session. The server chooses the numbers of entries, so their hash needs no secret.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) token: u64,
    pub(super) pid: u32,
    process_id: u64,
    pub(super) uid: u32,
    /// Whether the [limits of a user](super::holders) hold for it.
    pub(super) is_limited: bool,
    /// The position of the client's lock.
    lock_at: u64,
    pub(super) namespace: u16,
    /// The namespace that it has named and that does not exist yet.
    awaits: Option<String>,
    pub(super) read_only: bool,
    /// Devices of the client may have the memory registered. The index file does not say it: after
    /// a restart, the client does when it returns.
    registers: bool,
    /// The client may live and has no connection: the predecessor of this server had the session,
    /// or the connection broke.
    pub(super) orphaned: bool,
    /// When it was, in milliseconds since the machine started.
    orphaned_at: u64,
    /// The client is gone. The session's blocks are [being released](super::ending).
    is_ending: bool,
    /// Counts the times that the client has returned.
    resumption: u32,
    /// Names the time since the session began, was resumed, or its pins were revoked. A release of
    /// an earlier time does not end pins of this one.
    pub(super) epoch: u64,
    /// Pinned entries.
    pub(super) pins: HashMap<u32, SessionPin, FixedState>,
    /// The memory that the pinned entries take, each counted once.
    pub(super) pinned_bytes: u64,
    pub(super) reservations: HashMap<u32, ReservationState, FixedState>,
    pub(super) reserved_bytes: u64,
    /// Bytes of fenced reservations.
    pub(super) fenced_bytes: u64,
}

impl Session {
    /// Notes that some of the pins are over, and returns their entries.
    fn end_pins(&mut self, are_over: impl Fn(&SessionPin) -> bool) -> Vec<u32> {
        let ended = self.pins.iter_mut().filter(|(_, pin)| !pin.is_over() && are_over(pin));
        let end = |(slot, pin): (&u32, &mut SessionPin)| {
            pin.count = 0;
            *slot
        };
        ended.map(end).collect()
    }

    /// Notes that some of the reservations are over, and returns their entries.
    fn end_reservations(&mut self, are_over: impl Fn(&ReservationState) -> bool) -> Vec<u32> {
        let all = self.reservations.iter_mut();
        let ended = all.filter(|(_, reservation)| !reservation.is_over && are_over(reservation));
        let end = |(slot, reservation): (&u32, &mut ReservationState)| {
            reservation.is_over = true;
            *slot
        };
        ended.map(end).collect()
    }

    /// Returns whether the session ends: its words have ended.
    pub(super) fn ends(&self) -> bool {
        self.is_ending
    }

    /// Returns whether a client has a reservation that is not over.
    pub(super) fn has_reserved(&self, slot: u32) -> bool {
        self.reservations.get(&slot).is_some_and(|it| !it.is_over)
    }

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
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(number, it)| Some((SessionIndex(number as u8), it.as_ref()?)))
    }

    /// Returns how many clients have registered the memory with devices, or may have.
    pub(super) fn may_have_registered(&self) -> usize {
        self.all().filter(|(_, it)| it.registers).count()
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

    /// Says of which users the sessions are limited.
    pub(super) fn limit_users(&mut self, is_limited: impl Fn(u32) -> bool) {
        for session in self.0.iter_mut().flatten() {
            session.is_limited = is_limited(session.uid);
        }
    }

    /// Adds a session that the index file has.
    pub(super) fn add_orphan(&mut self, number: usize, record: &SessionRecord) -> SessionIndex {
        self.0[number] = Some(Session {
            token: record.token,
            pid: record.pid,
            process_id: record.process_id,
            uid: record.uid,
            is_limited: false,
            lock_at: record.lock_at,
            awaits: None,
            namespace: record.namespace,
            read_only: record.read_only,
            registers: !record.read_only,
            orphaned: true,
            orphaned_at: now_ms(),
            is_ending: false,
            resumption: 0,
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
        let _ = fill_random(&mut random);
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

    /// Notes whether devices of a client may have the memory registered.
    pub(crate) fn set_registers(&mut self, session: SessionIndex, registers: bool) {
        self.sessions.get_mut(session).registers = registers;
    }

    /// Returns the user of a session.
    pub(crate) fn uid_of(&self, session: SessionIndex) -> u32 {
        self.sessions.get(session).uid
    }

    /// Returns how many sessions a user has.
    pub(crate) fn sessions_of_user(&self, uid: u32) -> usize {
        self.sessions.all().filter(|(_, it)| it.uid == uid).count()
    }

    /// Returns an error if a user would have reserved more than a part of the memory, or of the
    /// entries.
    pub(crate) fn check_user(&self, uid: u32, sizes: &[u64], part: u64) -> Result<(), CallError> {
        let of_user = || self.sessions.all().map(|(_, it)| it).filter(|it| it.uid == uid);
        let reserved: u64 = of_user().map(|it| it.reserved_bytes).sum();
        let space = |sum: u64, size: &u64| sum.saturating_add(self.space_for(*size));
        let value = sizes.iter().fold(reserved, space);
        let limit = self.memory.header.memory_len / part;
        if value > limit {
            return Err(CallError::Quota { what: Quota::UserReserved, value, limit });
        }
        let value = (of_user().map(|it| it.reservations.len()).sum::<usize>() + sizes.len()) as u64;
        let limit = u64::from(self.memory.header.entries) / part;
        if value > limit {
            return Err(CallError::Quota { what: Quota::UserReservations, value, limit });
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
        let NewSession { pid, uid, process_id, namespace, read_only, is_limited } = new;
        let record = SessionRecord { token, pid, uid, lock_at, process_id, namespace, read_only };
        // A client of an earlier session at this place finds other words.
        self.memory.session_file.begin(number, random_epoch());
        self.memory.sessions()[number].write(&record);
        let session = self.sessions.add_orphan(number, &record);
        let begun = self.sessions.get_mut(session);
        (begun.orphaned, begun.is_limited, begun.registers) = (false, is_limited, false);
        Ok((session, token))
    }

    /// Opens the session file for the client of a session: the server takes the client for living
    /// as long as a process maps what this returns.
    pub(crate) fn open_session_file(&self, session: SessionIndex) -> Result<OwnedFd, NodeError> {
        self.memory.session_file.open_locked(self.sessions.get(session).lock_at)
    }

    /// Returns whether the client of a session may still reach the memory: a process has the lock
    /// of the session, or the kernel does not know.
    pub(crate) fn may_live(&self, session: SessionIndex) -> bool {
        let lock_at = self.sessions.get(session).lock_at;
        self.memory.session_file.is_locked(lock_at).unwrap_or(true)
    }

    fn new_token(&self) -> u64 {
        let mut random = [0; 8];
        loop {
            // The call fails only for flags or sizes other than these.
            let _ = fill_random(&mut random);
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
        let of_process = |it: &Session| it.pid == pid && !it.is_ending;
        self.sessions.all().filter(|(_, it)| of_process(it)).map(|(session, _)| session).collect()
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

    /// Returns the sessions without a connection, with the numbers of their processes and the inode
    /// numbers of these.
    pub(crate) fn orphan_processes(&self) -> Vec<(SessionIndex, u32, u64)> {
        let orphans = self.sessions.all().filter(|(_, it)| it.orphaned);
        orphans.map(|(session, it)| (session, it.pid, it.process_id)).collect()
    }

    /// Returns the session with a token. The client may still have a connection that the server
    /// does not yet know to be broken.
    pub(crate) fn find_resumable(&self, token: u64, uid: u32) -> Option<SessionIndex> {
        let is_it = |it: &Session| it.token == token && it.uid == uid && !it.is_ending;
        self.sessions.all().find(|(_, it)| is_it(it)).map(|(session, _)| session)
    }

    /// Returns the sessions without a connection.
    pub(crate) fn orphans(&self) -> Vec<SessionIndex> {
        self.sessions.all().filter(|(_, it)| it.orphaned).map(|(session, _)| session).collect()
    }

    /// Keeps a session whose connection broke while its client may live.
    pub(crate) fn orphan(&mut self, session: SessionIndex) {
        let it = self.sessions.get_mut(session);
        (it.orphaned, it.orphaned_at) = (true, now_ms());
    }

    /// Returns whether the client of a session has neither pins nor reservations, and has not
    /// returned for some milliseconds. The session has no pins and no reservations.
    pub(crate) fn is_abandoned(&self, session: SessionIndex, after: u64, now: u64) -> bool {
        let it = self.sessions.get(session);
        let has_nothing = it.pins.is_empty() && it.reservations.is_empty();
        // Pages that a device has registered must stay, as long as the server may give some back.
        let keeps_pages = it.registers && self.is_elastic();
        it.orphaned && has_nothing && !keeps_pages && now.saturating_sub(it.orphaned_at) > after
    }

    /// Begins the return of a client, which then [names](Self::name_handles) what it has.
    pub(crate) fn begin_resuming(&mut self, session: SessionIndex) {
        self.sessions.get_mut(session).resumption += 1;
    }

    /// Takes pins and reservations that a returning client names. Returns whether all the pins are
    /// still its own.
    pub(crate) fn name_handles(
        &mut self,
        session: SessionIndex,
        pins: &[(BlockHandle, u32)],
        reservations: &[BlockHandle],
    ) -> bool {
        let mut are_own = true;
        for &(handle, count) in pins {
            let slot = self.live(handle).ok().map(|(slot, _)| slot);
            let it = self.sessions.get_mut(session);
            let (named_in, pins) = (it.resumption, &mut it.pins);
            match slot.and_then(|slot| pins.get_mut(&slot)) {
                // A recovered session has one pin of each of its entries.
                Some(pin) if count > 0 && !pin.is_over() => *pin = SessionPin { count, named_in },
                found => are_own &= found.is_some_and(|pin| !pin.is_over()),
            }
        }
        for &handle in reservations {
            let slot = self.live(handle).ok().map(|(slot, _)| slot);
            let it = self.sessions.get_mut(session);
            let (named_in, reservations) = (it.resumption, &mut it.reservations);
            if let Some(reservation) = slot.and_then(|slot| reservations.get_mut(&slot)) {
                reservation.named_in = named_in;
            }
        }
        are_own
    }

    /// Gives an orphaned session back to its client. What it has not named is released: it may have
    /// ended pins while no server was there.
    pub(crate) fn resume(&mut self, session: SessionIndex) {
        let it = self.sessions.get_mut(session);
        // Releases that were sent on the connection of before may come late.
        (it.orphaned, it.epoch) = (false, random_epoch());
        let named_in = it.resumption;
        let pins = it.end_pins(|pin| pin.named_in != named_in);
        let reservations = it.end_reservations(|it| it.named_in != named_in);
        self.end(Ended { session, pins, reservations, ends_session: false });
    }

    /// Ends a session whose client is gone, or has said that it writes no more: its pins and
    /// reservations end.
    pub(crate) fn end_session(&mut self, session: SessionIndex) {
        // First the words, then the blocks.
        self.memory.session_file.end(session.number());
        let it = self.sessions.get_mut(session);
        (it.is_ending, it.orphaned) = (true, false);
        let (pins, reservations) = (it.end_pins(|_| true), it.end_reservations(|_| true));
        self.end(Ended { session, pins, reservations, ends_session: true });
    }

    /// Frees the place of a session that has no blocks any more.
    pub(super) fn free_session(&mut self, session: SessionIndex) {
        self.note_left(self.sessions.get(session).namespace);
        self.memory.sessions()[session.number()].clear();
        self.sessions.0[session.number()] = None;
    }

    /// Ends the pins of a session, and no reservation. For operators who know that the
    /// client does not read any more.
    pub(crate) fn reclaim_pins(&mut self, session: SessionIndex) -> usize {
        let pins = self.sessions.get_mut(session).end_pins(|_| true);
        let reclaimed = pins.len();
        if reclaimed > 0 {
            // First the word, then the blocks.
            self.revoke_pins(session);
        }
        self.end(Ended { session, pins, reservations: Vec::new(), ends_session: false });
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
            Some(it) if it.fenced && !it.is_over => Err(CallError::Fenced),
            Some(it) if !it.is_over && word.state == State::Reserved => Ok(slot),
            _ => Err(CallError::Stale { slot, generation }),
        }
    }
}

/// Pins and reservations of one session that are over.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) session: SessionIndex,
    /// Entries. A pin that was made again meanwhile is no longer over.
    pub(super) pins: Vec<u32>,
    pub(super) reservations: Vec<u32>,
    /// The session ends with the last of them.
    pub(super) ends_session: bool,
}
