//! *Deferred* calls: those that wait for the tier, while others are served. An acquisition waits
//! for values, a removal until they cannot come back, and a reservation for space. A reservation
//! that must evict many values waits, too, without a tier as well.

use super::connection::AcceptedConnection;
use super::server::NodeServer;
use super::turn::USER_RESERVED;
use crate::error::{CallError, Quota};
use crate::node::{Granted, MAX_BATCH, SessionIndex, Waiting};
use crate::protocol::{Answer, NO_ANSWER};

/// The most calls of one connection that wait. Further ones find only what is in memory.
const MAX_DEFERRED: usize = 64;

/// The most values that are evicted for one call, and for all calls that wait together, before
/// others are served. The call waits, and goes on in the next turn of the loop. Some hundred
/// evictions take less than a millisecond.
const MAX_EVICTIONS: u32 = 512;

/// The work for the moment when the tier is ready.
#[derive(Debug)]
enum Then {
    Acquire { keys: Vec<Vec<u8>>, prefix_only: bool },
    Lookup { keys: Vec<Vec<u8>> },
    Count(u64),
}

/// A call that waits.
#[derive(Debug)]
pub(super) struct Deferred {
    connection: u32,
    session: SessionIndex,
    id: u32,
    /// Keys that the tier still reads or removes for it.
    keys_left: usize,
    then: Then,
}

/// A reservation that waits for space.
#[derive(Debug)]
pub(super) struct WaitingForSpace {
    connection: u32,
    session: SessionIndex,
    id: u32,
    sizes: Vec<u64>,
}

#[cfg(all(test, not(loom)))]
impl WaitingForSpace {
    /// Returns a reservation whose client has gone.
    pub(super) fn of_nobody(session: SessionIndex) -> WaitingForSpace {
        WaitingForSpace { connection: u32::MAX, session, id: 1, sizes: vec![1] }
    }
}

/// An eviction by an operator that goes on in the next turn of the loop.
#[derive(Debug)]
pub(super) struct Evicting {
    connection: u32,
    session: SessionIndex,
    id: u32,
    /// `None`: all namespaces.
    namespace: Option<String>,
    bytes_left: u64,
    evicted: u64,
}

impl NodeServer {
    fn may_defer(&self, connection: &AcceptedConnection, id: u32) -> bool {
        self.tier.is_some() && id != NO_ANSWER && connection.deferred < MAX_DEFERRED
    }

    fn defer(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        keys_left: usize,
        then: Then,
    ) {
        connection.deferred += 1;
        let deferred = Deferred { connection: connection.key, session, id, keys_left, then };
        self.deferred.insert(self.next_waiting, deferred);
        self.next_waiting += 1;
    }

    /// Forgets the calls of a connection that ends.
    pub(super) fn end_deferred(&mut self, connection: u32) {
        self.deferred.retain(|_, it| it.connection != connection);
        self.waiting_for_space.retain(|it| it.connection != connection);
        self.evicting.retain(|it| it.connection != connection);
    }

    /// Fetches the keys that only the tier has. Returns whether the acquisition waits for them.
    pub(super) fn fetch_first(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        keys: &[&[u8]],
        prefix_only: bool,
    ) -> bool {
        if !self.may_defer(connection, id) {
            return false;
        }
        let waiting = Some(self.next_waiting);
        let keys_left = self.node.fetch_below(session, keys, prefix_only, waiting).len();
        if keys_left == 0 {
            return false;
        }
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.defer(connection, id, session, keys_left, Then::Acquire { keys, prefix_only });
        true
    }

    /// Asks a tier that does not know all its values for keys that memory lacks. Returns whether
    /// the look-up waits for it.
    pub(super) fn look_up_first(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        keys: &[&[u8]],
    ) -> bool {
        if !self.may_defer(connection, id) {
            return false;
        }
        let keys_left = self.node.look_up_below(session, keys, self.next_waiting);
        if keys_left == 0 {
            return false;
        }
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.defer(connection, id, session, keys_left, Then::Lookup { keys });
        true
    }

    /// Removes keys from the tier, too. Returns the answer, unless the call waits.
    pub(super) fn remove_below(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        keys: &[&[u8]],
        removed: usize,
    ) -> Option<Answer> {
        if self.tier.is_none() {
            return Some(Answer::Count(removed as u64));
        }
        let may_defer = self.may_defer(connection, id);
        let waiting = may_defer.then_some(self.next_waiting);
        let (more, keys_left) = self.node.remove_only_below(session, keys, waiting);
        let count = (removed + more) as u64;
        if keys_left == 0 || !may_defer {
            return Some(Answer::Count(count));
        }
        self.defer(connection, id, session, keys_left, Then::Count(count));
        None
    }

    /// Reserves blocks. If there is no space yet and the call may `wait`, it waits until the tier
    /// has done what keeps values from being evicted. `None`: it waits.
    pub(super) fn reserve(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        sizes: &[u64],
        wait: bool,
    ) -> Result<Option<Answer>, CallError> {
        let may_wait = wait && id != NO_ANSWER && connection.deferred < MAX_DEFERRED;
        // Those that wait come first.
        if self.waiting_for_space.is_empty() || !may_wait {
            match self.reserve_now(session, sizes, MAX_EVICTIONS).0 {
                Err(error) if may_wait && self.space_will_come(session, &error) => {}
                outcome => return outcome.map(|blocks| Some(Answer::Reserved(blocks))),
            }
        }
        connection.deferred += 1;
        let (connection, sizes) = (connection.key, sizes.to_vec());
        self.waiting_for_space.push_back(WaitingForSpace { connection, session, id, sizes });
        Ok(None)
    }

    /// Returns whether a reservation that failed may succeed later: in the next turn of the loop,
    /// which evicts more values, or when the tier has done its jobs.
    fn space_will_come(&self, session: SessionIndex, error: &CallError) -> bool {
        match error {
            _ if self.evictions_ended => true,
            CallError::OutOfSpace { .. } => self.node.space_will_come(),
            CallError::Quota { what: Quota::NamespaceBytes, .. } => {
                self.node.namespace_space_will_come(session)
            }
            _ => false,
        }
    }

    /// Reserves blocks, if the user may have them, with at most `max_evictions`. Returns also how
    /// many there were.
    fn reserve_now(
        &mut self,
        session: SessionIndex,
        sizes: &[u64],
        max_evictions: u32,
    ) -> (Result<Vec<Granted>, CallError>, u32) {
        let uid = self.node.uid_of(session);
        self.evictions_ended = false;
        if !self.access.is_operator(uid)
            && let Err(error) = self.node.check_user(uid, sizes, USER_RESERVED)
        {
            return (Err(error), 0);
        }
        self.node.evictions_left = max_evictions;
        let result = self.node.reserve(session, sizes);
        let evictions = max_evictions - self.node.evictions_left;
        self.turn.spend(evictions as usize);
        self.evictions_ended = result.is_err() && self.node.evictions_left == 0;
        self.node.evictions_left = u32::MAX;
        (result, evictions)
    }

    /// Evicts values for an operator. `None`: the call goes on in the next turn of the loop.
    pub(super) fn evict(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        namespace: Option<&str>,
        bytes: u64,
    ) -> Option<Answer> {
        let (evicted, more) = self.evict_some(namespace, bytes);
        if !more || id == NO_ANSWER || connection.deferred >= MAX_DEFERRED {
            return Some(Answer::Count(evicted));
        }
        connection.deferred += 1;
        let (connection, namespace) = (connection.key, namespace.map(str::to_owned));
        let bytes_left = bytes - evicted;
        let evicting = Evicting { connection, session, id, namespace, bytes_left, evicted };
        self.evicting.push_back(evicting);
        None
    }

    /// Evicts values of some bytes, as many as one turn has. Returns the bytes, and whether there
    /// may be more to evict.
    fn evict_some(&mut self, namespace: Option<&str>, bytes: u64) -> (u64, bool) {
        let Some(namespace) = self.namespace_named(namespace) else { return (0, false) };
        self.node.evictions_left = MAX_EVICTIONS;
        let evicted = self.node.evict_bytes(namespace, bytes);
        let more = self.node.evictions_left == 0 && evicted < bytes;
        self.node.evictions_left = u32::MAX;
        (evicted, more)
    }

    /// Goes on with the first eviction by an operator.
    fn evict_waiting(&mut self) {
        let Some(mut first) = self.evicting.pop_front() else { return };
        let (evicted, more) = self.evict_some(first.namespace.as_deref(), first.bytes_left);
        first.evicted += evicted;
        first.bytes_left = first.bytes_left.saturating_sub(evicted);
        if more {
            self.evicting.push_front(first);
        } else {
            self.answer_evicting(first);
        }
    }

    fn answer_evicting(&mut self, evicting: Evicting) {
        let Evicting { connection, session, id, evicted, .. } = evicting;
        // The client may have gone.
        let connection = self.connections.get_mut(&connection);
        if let Some(connection) = connection.filter(|it| it.session() == Some(session)) {
            connection.deferred -= 1;
            connection.late.push((id, Ok(Answer::Count(evicted))));
        }
    }

    /// Goes on with the calls that wait for evictions: the reservations in their order, as far as
    /// there is space.
    fn reserve_waiting(&mut self) {
        self.evict_waiting();
        let (mut evictions, mut sizes) = (MAX_EVICTIONS, MAX_BATCH);
        while let Some(first) = self.waiting_for_space.pop_front() {
            if evictions == 0 || sizes == 0 {
                // The rest has its turn when others have had theirs.
                self.waiting_for_space.push_front(first);
                self.evictions_ended = true;
                break;
            }
            let connection = self.connections.get(&first.connection);
            // The client may have gone.
            if connection.is_none_or(|it| it.session() != Some(first.session)) {
                continue;
            }
            let (result, evicted) = self.reserve_now(first.session, &first.sizes, evictions);
            evictions -= evicted;
            sizes = sizes.saturating_sub(first.sizes.len());
            let will_come = |error| self.space_will_come(first.session, error);
            if result.as_ref().is_err_and(will_come) {
                self.waiting_for_space.push_front(first);
                break;
            }
            let Some(connection) = self.connections.get_mut(&first.connection) else { continue };
            connection.deferred -= 1;
            connection.late.push((first.id, result.map(Answer::Reserved)));
        }
    }

    /// Takes what the threads of the tier have done, and gives them more.
    pub(super) fn serve_tier(&mut self, now: u64) {
        let Some(threads) = &self.tier else { return self.reserve_waiting() };
        for done in threads.take_done() {
            for waiting in self.node.tier_done(done, now) {
                self.key_done(waiting, now);
            }
        }
        self.reserve_waiting();
        self.store_below();
        let jobs = self.node.take_jobs();
        if let Some(threads) = &self.tier {
            jobs.into_iter().for_each(|job| threads.send(job));
        }
    }

    /// Ends the threads of the tier, after the jobs that they have, and takes what they have done.
    pub(super) fn finish_tier(&mut self, now: u64) {
        if let Some(threads) = self.tier.take() {
            self.node.take_jobs().into_iter().for_each(|job| threads.send(job));
            for done in threads.finish() {
                for waiting in self.node.tier_done(done, now) {
                    self.key_done(waiting, now);
                }
            }
        }
        while let Some(evicting) = self.evicting.pop_front() {
            self.answer_evicting(evicting);
        }
        // Those that still have no space fail with the error that says so.
        while let Some(waiting) = self.waiting_for_space.pop_front() {
            let WaitingForSpace { connection, session, id, sizes } = waiting;
            let has_session = |it: &AcceptedConnection| it.session() == Some(session);
            if !self.connections.get(&connection).is_some_and(has_session) {
                continue;
            }
            let mut result = self.reserve_now(session, &sizes, MAX_EVICTIONS).0;
            while self.evictions_ended {
                result = self.reserve_now(session, &sizes, MAX_EVICTIONS).0;
            }
            if let Some(connection) = self.connections.get_mut(&connection) {
                connection.late.push((id, result.map(Answer::Reserved)));
            }
        }
    }

    /// The tier is done with a key that a call waits for.
    fn key_done(&mut self, waiting: Waiting, now: u64) {
        let Some(deferred) = self.deferred.get_mut(&waiting) else { return };
        deferred.keys_left -= 1;
        if deferred.keys_left > 0 {
            return;
        }
        let deferred = self.deferred.remove(&waiting).expect("it was just there");
        let Deferred { connection, session, id, then, .. } = deferred;
        // The client may have gone.
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        if connection.session() != Some(session) {
            return;
        }
        connection.deferred -= 1;
        let result = match then {
            Then::Count(count) => Ok(Answer::Count(count)),
            Then::Lookup { keys } => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                Ok(Answer::Count(self.node.lookup(session, &keys, now) as u64))
            }
            Then::Acquire { keys, prefix_only } => {
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let blocks = self.node.acquire(session, &keys, prefix_only, now);
                let epoch = self.node.epoch_of(session);
                blocks.map(|blocks| Answer::Pinned { epoch, blocks, pending: Vec::new() })
            }
        };
        connection.late.push((id, result));
    }
}
