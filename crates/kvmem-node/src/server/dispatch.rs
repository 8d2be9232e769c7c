//! *Dispatch*: one request becomes one answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::connection::{AcceptedConnection, MAX_WAITING, Stage, WaitingForEvents};
use super::quantum::OWN_PLACES;
use super::server::NodeServer;
use crate::error::{CallError, NodeError, Quota, TooMany};
use crate::format::{MAX_NAMESPACES, MAX_SESSIONS};
use crate::node::{CommitItem, MAX_BATCH, NamespaceStats, NewSession, NodeStats, SessionIndex};
use crate::protocol::{
    Answer, Call, Commit, Key, NO_ANSWER, PROTOCOL_VERSION, Request, SessionListed, Welcome,
    decode_request, version_of_greeting,
};
use crate::socket::{Peer, now_ms};

/// The most values or events of one answer.
const MAX_LISTED: u32 = 512;

impl NodeServer {
    /// Serves one message. The error says that the connection must be closed.
    pub(super) fn serve(
        &mut self,
        connection: &mut AcceptedConnection,
        message: &[u8],
        now: u64,
    ) -> Result<(), rustix::io::Errno> {
        let mut buffer = std::mem::take(&mut self.answer_buffer);
        let mut runs_only = false;
        self.latency.served += 1;
        let sent = match decode_request(message) {
            None => {
                // A greeting of another version may have other fields.
                let other = version_of_greeting(message)
                    .filter(|(_, version)| *version != PROTOCOL_VERSION)
                    .filter(|_| matches!(connection.stage, Stage::New));
                let (id, error) = match other {
                    Some((id, version)) => {
                        (id, CallError::Version { version, known: PROTOCOL_VERSION })
                    }
                    None => (NO_ANSWER, CallError::Undecodable { len: message.len() }),
                };
                connection.answer(id, Err(error), &[], &mut buffer)
            }
            Some(Request { id, call }) => {
                runs_only = matches!(call, Call::KeepPins);
                connection.knows_session |= connection.session().is_some();
                self.quantum.spend(elements_of(&call));
                let result = self.call(connection, id, call, now);
                let descriptors = std::mem::take(&mut self.descriptors);
                let unreleased = self.unreleased.take();
                let sent = match result.transpose() {
                    Some(result) if id != NO_ANSWER => {
                        let descriptors: Vec<BorrowedFd<'_>> =
                            descriptors.iter().map(AsFd::as_fd).collect();
                        connection.answer(id, result, &descriptors, &mut buffer)
                    }
                    _ => Ok(()),
                };
                if let Some((session, epoch, handles)) = unreleased {
                    // The server releases the others also if a handle among them is stale.
                    let _ = self.node.release_of(session, epoch, &handles);
                }
                sent
            }
        };
        self.answer_buffer = buffer;
        if connection.session().is_some() {
            connection.ran_at = now;
            if !runs_only {
                connection.heard_at = now;
            }
        }
        sent
    }

    /// Does what a client requests. `None`: the answer comes later.
    fn call(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        call: Call<'_>,
        now: u64,
    ) -> Result<Option<Answer>, CallError> {
        if let Call::Hello { version, namespace, read_only, token } = call {
            return self.greet(connection, version, namespace, read_only, token).map(Some);
        }
        let session = match (&mut connection.stage, &call) {
            (Stage::New, _) => return Err(CallError::Greeting),
            (Stage::Open(session), _) => *session,
            (
                Stage::Resuming { session, named, pins_resumed, .. },
                Call::Resume { pins, reservations },
            ) => {
                *named += pins.len() + reservations.len();
                // A commit whose answer was lost may leave a block among the reservations that the
                // client names, which it has pinned since.
                let (value, limit) = (*named, self.node.max_handles().saturating_mul(2));
                if value > limit {
                    let (value, limit) = (value as u64, limit as u64);
                    return Err(CallError::Quota { what: Quota::SessionHandles, value, limit });
                }
                *pins_resumed &= self.node.name_handles(*session, pins, reservations);
                return Ok(Some(Answer::Done));
            }
            (Stage::Resuming { registers, .. }, Call::Registers) => {
                *registers = true;
                return Ok(Some(Answer::Done));
            }
            (
                Stage::Resuming { session, pins_resumed, pin_word, registers, .. },
                Call::ResumeEnd,
            ) => {
                let session = *session;
                let pins_resumed = *pins_resumed && *pin_word == self.node.pin_word_of(session);
                self.node.set_registers(session, *registers);
                connection.stage = Stage::Open(session);
                self.node.resume(session);
                if !pins_resumed {
                    // They were reclaimed before. The client does not know which of its batches
                    // have them, so it has none.
                    self.node.reclaim_pins(session);
                }
                let epoch = self.node.epoch_of(session);
                let pin_word = self.node.pin_word_of(session);
                return Ok(Some(Answer::Resumed { epoch, pins_resumed, pin_word }));
            }
            (Stage::Resuming { .. }, _) => return Err(CallError::Greeting),
        };
        match call {
            Call::Hello { .. } | Call::Resume { .. } | Call::ResumeEnd => Err(CallError::Greeting),
            Call::Lookup { keys } => {
                let keys = bytes_of(&keys)?;
                if self.look_up_first(connection, id, session, &keys) {
                    return Ok(None);
                }
                let count = self.node.lookup(session, &keys, now);
                Ok(Some(Answer::Count(count as u64)))
            }
            Call::Acquire { epoch, release, keys, prefix_only, wait } => {
                check_batch(release.len())?;
                if let Ok(keys) = bytes_of(&keys)
                    && (!self.node.has_tier() || self.node.has_all(session, &keys, now))
                {
                    let earlier = (epoch, &release[..]);
                    let (blocks, is_left) =
                        self.node.exchange(session, earlier, &keys, prefix_only, now);
                    self.unreleased = is_left.then_some((session, epoch, release));
                    let epoch = self.node.epoch_of(session);
                    return Ok(Some(Answer::Pinned {
                        epoch,
                        blocks: blocks?,
                        pending: Vec::new(),
                    }));
                }
                // The server releases the others also if a handle among them is stale.
                let _ = self.node.release_of(session, epoch, &release);
                let keys = bytes_of(&keys)?;
                if wait && self.fetch_first(connection, id, session, &keys, prefix_only) {
                    return Ok(None);
                }
                let (blocks, pending) = if wait {
                    (self.node.acquire(session, &keys, prefix_only, now)?, Vec::new())
                } else {
                    self.node.try_acquire(session, &keys, prefix_only, now)?
                };
                let epoch = self.node.epoch_of(session);
                Ok(Some(Answer::Pinned { epoch, blocks, pending }))
            }
            Call::Reserve { sizes, wait } => {
                check_batch(sizes.len())?;
                self.reserve(connection, id, session, &sizes, wait)
            }
            Call::Commit { items } => {
                check_batch(items.len())?;
                let items: Vec<CommitItem<'_>> = items.iter().map(item_of).collect();
                self.node.commit(session, &items, now)?;
                Ok(Some(Answer::Done))
            }
            Call::Release { epoch, handles } => {
                check_batch(handles.len())?;
                self.node.release_of(session, epoch, &handles)?;
                Ok(Some(Answer::Done))
            }
            Call::Remove { keys } => {
                let keys = bytes_of(&keys)?;
                let removed = self.node.remove(session, &keys)?;
                Ok(self.remove_from_tier(connection, id, session, &keys, removed))
            }
            Call::Touch { keys } => {
                let touched = self.node.touch(session, &bytes_of(&keys)?, now);
                Ok(Some(Answer::Count(touched as u64)))
            }
            Call::Rings => {
                self.descriptors = self.give_rings(connection)?.into();
                Ok(Some(Answer::Rings))
            }
            Call::Registers => {
                self.node.set_registers(session, true);
                Ok(Some(Answer::Done))
            }
            Call::Damaged { handles } => {
                check_batch(handles.len())?;
                let withdrawn = self.node.report_damage(session, &handles)?;
                Ok(Some(Answer::Count(withdrawn as u64)))
            }
            Call::KeepAlive | Call::KeepPins => Ok(Some(Answer::Done)),
            Call::Stats => Ok(Some(Answer::Stats(Box::new(self.stats_for(connection))))),
            Call::Events { from, max, wait_ms } => {
                let max = max.min(MAX_LISTED);
                let Peer { uid, groups, .. } = &connection.peer;
                let sees = |name: Option<&str>| self.access.sees(*uid, groups, name);
                let found = self.node.events_since(from, max as usize, sees);
                let waits = wait_ms > 0 && max > 0 && id != NO_ANSWER;
                if self.node.is_waited_for(&found)
                    && waits
                    && connection.waiting.len() < MAX_WAITING
                {
                    // The number 0 and those behind the end become that of the next event.
                    let from = found.next;
                    // The time of this quantum may be past, and is rounded down.
                    let until = now_ms().saturating_add(u64::from(wait_ms) + 1);
                    connection.waiting.push(WaitingForEvents { id, from, max, until });
                    return Ok(None);
                }
                Ok(Some(Answer::Events(found)))
            }
            Call::Goodbye => {
                connection.goodbye = true;
                Ok(Some(Answer::Done))
            }
            Call::List { from, max } => {
                self.check_operator(connection)?;
                let (values, next) = self.node.list(None, from, max.min(MAX_LISTED), now);
                Ok(Some(Answer::Listed { values, next }))
            }
            Call::Locate { keys } => {
                let keys = bytes_of(&keys)?;
                Ok(Some(Answer::Located(self.node.locate(session, &keys, now)?)))
            }
            Call::ListNamespace { from, max } => {
                let namespace = self.node.namespace_number(session);
                let (values, next) =
                    self.node.list(Some(namespace), from, max.min(MAX_LISTED), now);
                Ok(Some(Answer::Listed { values, next }))
            }
            Call::Misses { all, max } => {
                if all {
                    self.check_operator(connection)?;
                }
                let namespace = (!all).then(|| self.node.namespace_number(session));
                let max = max.min(MAX_LISTED) as usize;
                Ok(Some(Answer::Misses(self.node.misses(namespace, max, now))))
            }
            Call::Sessions => {
                self.check_operator(connection)?;
                Ok(Some(Answer::Sessions(self.list_sessions(connection, session, now))))
            }
            Call::Evict { namespace, bytes } => {
                self.check_may_empty(connection, session, namespace)?;
                Ok(self.evict(connection, id, session, namespace, bytes))
            }
            Call::Clear { namespace } => {
                self.check_may_empty(connection, session, namespace)?;
                let forgets = !self.node.has_tier() || self.node.tier_forgets_namespaces();
                if namespace.is_some() && !forgets {
                    return Err(CallError::NamespaceInTier);
                }
                Ok(self.clear(connection, id, session, namespace))
            }
            Call::Resize { size } => {
                self.check_operator(connection)?;
                self.resize(connection, id, session, size)
            }
            Call::ReclaimPins { pid } => {
                self.check_operator(connection)?;
                let sessions = self.node.sessions_of(pid);
                let reclaimed = sessions.into_iter().map(|it| self.node.reclaim_pins(it));
                Ok(Some(Answer::Count(reclaimed.sum::<usize>() as u64)))
            }
        }
    }

    /// Begins or resumes a session.
    fn greet(
        &mut self,
        connection: &mut AcceptedConnection,
        version: u32,
        namespace: &str,
        read_only: bool,
        token: u64,
    ) -> Result<Answer, CallError> {
        if version != PROTOCOL_VERSION {
            return Err(CallError::Version { version, known: PROTOCOL_VERSION });
        }
        if connection.session().is_some() {
            return Err(CallError::Greeting);
        }
        let Peer { pid, uid, process_id, ref groups, .. } = connection.peer;
        let found = self.node.find_resumable(token, uid).filter(|_| token != 0);
        match found {
            // The server may have other rules than the one that began the session.
            Some(session) => {
                let name = self.node.namespace_name(session);
                self.access.check(uid, groups, name, self.node.is_read_only(session))?;
            }
            None => self.access.check(uid, groups, namespace, read_only)?,
        }
        let (session, token, resumed) = match found {
            Some(session) => {
                // The client has abandoned its earlier connection, known to be broken or not.
                self.disconnect(session);
                self.node.begin_resuming(session);
                connection.stage = Stage::Resuming {
                    session,
                    named: 0,
                    pins_resumed: true,
                    pin_word: self.node.pin_word_of(session),
                    registers: false,
                };
                (session, token, true)
            }
            None => {
                let limit = MAX_SESSIONS - MAX_SESSIONS / OWN_PLACES;
                if !self.access.is_operator(uid) && self.node.all_sessions().len() >= limit {
                    return Err(CallError::TooMany { what: TooMany::Sessions, limit });
                }
                let limit = self.access.positions_of(uid, MAX_SESSIONS);
                if self.node.sessions_of_user(uid) >= limit {
                    return Err(CallError::TooMany { what: TooMany::Sessions, limit });
                }
                let is_limited = !self.access.is_operator(uid);
                let new = NewSession { pid, uid, process_id, namespace: 0, read_only, is_limited };
                let (session, token) = if read_only {
                    self.node.begin_reading(new, namespace)?
                } else {
                    let most = self.access.positions_of(uid, MAX_NAMESPACES);
                    let namespace = self.node.namespace(namespace, uid, most)?;
                    self.node.begin_session(NewSession { namespace, ..new })?
                };
                connection.stage = Stage::Open(session);
                (session, token, false)
            }
        };
        // One that returns has had it before.
        connection.knows_session = resumed;
        let watched = self.watch_process(session, connection);
        self.descriptors = match watched.and_then(|()| self.files_for(connection, session)) {
            Ok(files) => files.into(),
            Err(why) => {
                connection.stage = Stage::New;
                if resumed {
                    self.node.orphan(session);
                } else {
                    self.unwatch(session);
                    self.node.end_session(session);
                }
                return Err(CallError::Unwatched { why: why.to_string() });
            }
        };
        let header = self.node.memory.header;
        Ok(Answer::Welcome(Welcome {
            version: PROTOCOL_VERSION,
            node_id: header.node_id,
            memory_len: header.memory_len,
            size: self.node.size(),
            is_elastic: self.node.is_elastic(),
            align: header.align,
            boundary: header.boundary,
            token,
            lease_ms: self.options.lease.as_millis() as u64,
            epoch: self.node.epoch_of(session),
            session: session.number() as u16,
            pin_word: self.node.pin_word_of(session),
            resumed,
        }))
    }

    /// Returns descriptors of the memory file, with the access that the client has, and of the
    /// session file, with the lock of the session.
    fn files_for(
        &self,
        connection: &AcceptedConnection,
        session: SessionIndex,
    ) -> Result<[OwnedFd; 2], NodeError> {
        let bytes = &self.node.memory.bytes;
        let read_only = connection.session().is_some_and(|it| self.node.is_read_only(it));
        let shared = if read_only { bytes.share_read_only() } else { bytes.share() };
        let memory = shared?.expect("the memory of a node is shared");
        Ok([memory, self.node.open_session_file(session)?])
    }

    fn check_operator(&self, connection: &AcceptedConnection) -> Result<(), CallError> {
        let is_operator = self.access.is_operator(connection.peer.uid);
        if is_operator { Ok(()) } else { Err(CallError::NotOperator) }
    }

    /// Returns an error unless the client may evict and remove all values of a namespace: an
    /// operator may, and a client that writes to it may in its own.
    fn check_may_empty(
        &self,
        connection: &AcceptedConnection,
        session: SessionIndex,
        namespace: Option<&str>,
    ) -> Result<(), CallError> {
        let is_own = namespace == Some(self.node.namespace_name(session));
        match is_own && self.node.is_read_only(session) {
            true => Err(CallError::ReadOnly),
            false if is_own => Ok(()),
            false => self.check_operator(connection),
        }
    }

    /// Returns the statistics of the node and of the server.
    pub(super) fn stats(&self) -> NodeStats {
        let mut stats = self.node.stats();
        self.latency.fill(&mut stats);
        self.publishing.iter().for_each(|it| it.fill(&mut stats, now_ms()));
        stats
    }

    /// Returns the statistics, without the names and figures of namespaces that the client may not
    /// use. The position of each is its number.
    fn stats_for(&self, connection: &AcceptedConnection) -> NodeStats {
        let Peer { uid, groups, .. } = &connection.peer;
        let mut stats = self.stats();
        for namespace in &mut stats.namespaces {
            if !self.access.sees(*uid, groups, Some(&namespace.name)) {
                *namespace = NamespaceStats::default();
            }
        }
        stats
    }

    /// Returns the namespace that an operator names: the inner `None` for all, the outer for one
    /// that does not exist.
    pub(super) fn namespace_named(&self, name: Option<&str>) -> Option<Option<u16>> {
        match name {
            None => Some(None),
            Some(name) => self.node.find_namespace(name).map(Some),
        }
    }

    fn list_sessions(
        &self,
        own: &AcceptedConnection,
        own_session: SessionIndex,
        now: u64,
    ) -> Vec<SessionListed> {
        let heard = |session| {
            if session == own_session {
                return Some(own.heard_at);
            }
            let mut connections = self.connections.values();
            connections.find(|it| it.session() == Some(session)).map(|it| it.heard_at)
        };
        let all = self.node.all_sessions().into_iter().take(MAX_SESSIONS);
        all.map(|session| {
            let (pins, reservations) = self.node.handles_of(session);
            let heard_at = heard(session);
            SessionListed {
                pid: self.node.pid_of(session),
                namespace: self.node.namespace_name(session).to_owned(),
                pins: pins as u64,
                reservations: reservations as u64,
                connected: heard_at.is_some(),
                silent_ms: heard_at.map_or(0, |heard_at| now.saturating_sub(heard_at)),
            }
        })
        .collect()
    }
}

/// Returns the keys, sizes, handles, values or events that a call is about: its work.
fn elements_of(call: &Call<'_>) -> usize {
    match call {
        Call::Resume { pins, reservations } => pins.len() + reservations.len(),
        Call::Lookup { keys }
        | Call::Remove { keys }
        | Call::Touch { keys }
        | Call::Locate { keys } => keys.len(),
        Call::Acquire { release, keys, .. } => release.len() + keys.len(),
        Call::Reserve { sizes, .. } => sizes.len(),
        Call::Commit { items } => items.len(),
        Call::Release { handles, .. } => handles.len(),
        Call::Damaged { handles } => handles.len(),
        Call::Events { max, .. } | Call::List { max, .. } | Call::Misses { max, .. } => {
            (*max).min(MAX_LISTED) as usize
        }
        // These look at all sessions, values or namespaces.
        Call::ListNamespace { .. }
        | Call::Sessions
        | Call::Stats
        | Call::Evict { .. }
        | Call::Resize { .. }
        | Call::Clear { .. } => MAX_BATCH,
        Call::Hello { .. } | Call::Rings | Call::ResumeEnd => MAX_BATCH / 16,
        Call::KeepAlive
        | Call::KeepPins
        | Call::Registers
        | Call::Goodbye
        | Call::ReclaimPins { .. } => 1,
    }
}

fn check_batch(len: usize) -> Result<(), CallError> {
    if len > MAX_BATCH {
        return Err(CallError::BatchTooLong { len, limit: MAX_BATCH });
    }
    Ok(())
}

fn bytes_of<'a>(keys: &[Key<'a>]) -> Result<Vec<&'a [u8]>, CallError> {
    check_batch(keys.len())?;
    Ok(keys.iter().map(|key| key.0).collect())
}

fn item_of<'a>(item: &Commit<'a>) -> CommitItem<'a> {
    let Commit { handle, key, parent, checksum, priority, data_type, ttl_ms } = *item;
    let (key, parent) = (key.0, parent.map(|it| it.0));
    let data_type = crate::format::data_type(data_type);
    CommitItem { handle, key, parent, checksum, priority, data_type, ttl_ms }
}
