//! *Deferred* calls: those that wait for the tier, while others are served. An acquisition waits
//! for values, a removal until they cannot come back, and a reservation for space.
//!
//! Calls that are much work wait, too, without a tier as well: each iteration of the event loop
//! does a part of it, which takes about a millisecond. These are reservations and acquisitions
//! that must evict many values, and evictions and removals of many values by operators.

use std::time::Duration;

use super::connection::AcceptedConnection;
use super::quantum::USER_RESERVED;
use super::server::NodeServer;
use crate::error::{CallError, Quota};
use crate::node::{
    Clearing, Evicted, Granted, MAX_BATCH, Node, ResizeStep, SessionIndex, Slice, Waiting,
};
use crate::protocol::{Answer, NO_ANSWER};

/// The most calls of one connection that wait. Further ones find only what is in memory.
pub(super) const MAX_DEFERRED: usize = 64;

/// The most values that are evicted for one call, and for all calls that wait together, before
/// others are served. The call waits, and goes on in the next iteration of the event loop. Some
/// hundred evictions take less than a millisecond.
pub(super) const MAX_EVICTIONS: u32 = 512;

/// The time for work that goes on in each iteration of the event loop, all of it together: removals
/// and evictions by operators, changes of the size, and the emptying of a namespace. Tests count
/// steps, and no step of theirs ends by the clock.
const LONG_WORK: Duration = Duration::from_millis(if cfg!(test) { 1 << 20 } else { 1 });

/// The most pins and reservations that are over and are released in one iteration of the event
/// loop.
const MAX_RELEASED: usize = 2048;

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

/// A call that waits for space.
#[derive(Debug)]
pub(super) struct WaitingForSpace {
    connection: u32,
    session: SessionIndex,
    id: u32,
    what: Wanted,
}

/// The purpose of the space.
#[derive(Debug)]
enum Wanted {
    /// A reservation.
    Sizes(Vec<u64>),
    /// A deferred acquisition, from this position of its keys on.
    Keys(Waiting, usize),
}

#[cfg(all(test, not(loom)))]
impl WaitingForSpace {
    /// Returns a reservation whose client has gone.
    pub(super) fn of_nobody(session: SessionIndex) -> WaitingForSpace {
        WaitingForSpace { connection: u32::MAX, session, id: 1, what: Wanted::Sizes(vec![1]) }
    }
}

/// An eviction by an operator that goes on in the next iteration of the event loop.
#[derive(Debug)]
pub(super) struct Evicting {
    connection: u32,
    session: SessionIndex,
    id: u32,
    /// `None`: all namespaces.
    namespace: Option<String>,
    bytes_left: u64,
    evicted: u64,
    next: Evicted,
}

/// A removal of all values, which goes on in the next iteration of the event loop.
#[derive(Debug)]
pub(super) struct ClearingFor {
    connection: u32,
    session: SessionIndex,
    id: u32,
    /// `None`: all namespaces.
    namespace: Option<String>,
    clearing: Clearing,
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
        self.waiting_for_size.retain(|it| !it.is_of(connection));
        // A removal of all values that has begun goes on.
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
        let waiting = self.next_waiting;
        let limit = MAX_EVICTIONS;
        let ((positions, goes_on), _) = self.with_evictions(limit, |node| {
            node.fetch_from_tier(session, keys, prefix_only, Some(waiting), 0)
        });
        // The position to go on from counts as a key.
        let keys_left = positions.len() + usize::from(goes_on.is_some());
        if keys_left == 0 {
            return false;
        }
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.defer(connection, id, session, keys_left, Then::Acquire { keys, prefix_only });
        if let Some(from) = goes_on {
            let (connection, what) = (connection.key, Wanted::Keys(waiting, from));
            self.waiting_for_space.push_back(WaitingForSpace { connection, session, id, what });
            self.evictions_ended = true;
        }
        true
    }

    /// Does what may evict up to `limit` values. Returns also how many it has evicted.
    pub(super) fn with_evictions<R>(
        &mut self,
        limit: u32,
        change: impl FnOnce(&mut Node) -> R,
    ) -> (R, u32) {
        self.node.evictions_left = limit;
        let result = change(&mut self.node);
        let evicted = limit - std::mem::replace(&mut self.node.evictions_left, u32::MAX);
        self.quantum.spend(evicted as usize);
        (result, evicted)
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
        let keys_left = self.node.look_up_in_tier(session, keys, self.next_waiting);
        if keys_left == 0 {
            return false;
        }
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        self.defer(connection, id, session, keys_left, Then::Lookup { keys });
        true
    }

    /// Removes keys from the tier, too. Returns the answer, unless the call waits.
    pub(super) fn remove_from_tier(
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
        let (more, keys_left) = self.node.remove_only_in_tier(session, keys, waiting);
        let count = (removed + more) as u64;
        if keys_left == 0 || !may_defer {
            return Some(Answer::Count(count));
        }
        self.defer(connection, id, session, keys_left, Then::Count(count));
        None
    }

    /// Reserves blocks. If there is no space yet and the call may `wait`, it waits until the tier
    /// has done what prevents values from being evicted. `None`: it waits.
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
        let (connection, what) = (connection.key, Wanted::Sizes(sizes.to_vec()));
        self.waiting_for_space.push_back(WaitingForSpace { connection, session, id, what });
        Ok(None)
    }

    /// Returns whether a reservation that failed may succeed later: in the next iteration of the
    /// event loop, which evicts more values, or when the tier has done its jobs.
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
        let (result, evicted) =
            self.with_evictions(max_evictions, |node| node.reserve(session, sizes));
        self.evictions_ended = result.is_err() && evicted == max_evictions;
        (result, evicted)
    }

    /// Evicts values for an operator. `None`: the call goes on in the next iteration of the event
    /// loop.
    pub(super) fn evict(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        namespace: Option<&str>,
        bytes: u64,
    ) -> Option<Answer> {
        let (evicted, next) = self.evict_some(namespace, bytes, Slice::of(LONG_WORK));
        if next == Evicted::Enough || id == NO_ANSWER || connection.deferred >= MAX_DEFERRED {
            return Some(Answer::Count(evicted));
        }
        connection.deferred += 1;
        let (connection, namespace) = (connection.key, namespace.map(str::to_owned));
        let bytes_left = bytes - evicted;
        let evicting = Evicting { connection, session, id, namespace, bytes_left, evicted, next };
        self.evicting.push_back(evicting);
        None
    }

    /// Evicts values of some bytes, as many as one quantum or a slice of time has. Returns the
    /// bytes, and how it goes on.
    fn evict_some(&mut self, namespace: Option<&str>, bytes: u64, slice: Slice) -> (u64, Evicted) {
        let named = self.namespace_named(namespace);
        let Some(namespace) = named else { return (0, Evicted::Enough) };
        self.with_evictions(MAX_EVICTIONS, |node| node.evict_some(namespace, bytes, slice)).0
    }

    /// Goes on with the first eviction by an operator.
    fn evict_waiting(&mut self, slice: Slice) {
        let Some(mut first) = self.evicting.pop_front() else { return };
        let (evicted, next) = self.evict_some(first.namespace.as_deref(), first.bytes_left, slice);
        first.evicted += evicted;
        first.bytes_left = first.bytes_left.saturating_sub(evicted);
        first.next = next;
        if next == Evicted::Enough {
            self.answer_evicting(first);
            // What the next one waits for may be over, and the tier wakes the server no more.
            if let Some(next) = self.evicting.front_mut() {
                next.next = Evicted::More;
            }
        } else {
            self.evicting.push_front(first);
        }
    }

    fn answer_evicting(&mut self, evicting: Evicting) {
        let Evicting { connection, session, id, evicted, .. } = evicting;
        self.answer_later(connection, session, id, Answer::Count(evicted));
    }

    /// Answers a call that has waited, if its client has not gone.
    pub(super) fn answer_later(
        &mut self,
        connection: u32,
        session: SessionIndex,
        id: u32,
        answer: Answer,
    ) {
        let connection = self.connections.get_mut(&connection);
        if let Some(connection) = connection.filter(|it| it.session() == Some(session)) {
            connection.deferred -= 1;
            if id != NO_ANSWER {
                connection.late.push((id, Ok(answer)));
            }
        }
    }

    /// Removes all values of a namespace, or of all, for an operator, from the tier, too. `None`:
    /// the call goes on in the next iteration of the event loop.
    pub(super) fn clear(
        &mut self,
        connection: &mut AcceptedConnection,
        id: u32,
        session: SessionIndex,
        namespace: Option<&str>,
    ) -> Option<Answer> {
        let Some(number) = self.namespace_named(namespace) else { return Some(Answer::Count(0)) };
        self.node.clear_tier(number);
        let mut clearing = self.node.begin_clearing(number);
        let slice = Slice::of(LONG_WORK);
        let is_over = self.node.clear_some(&mut clearing, slice) && !self.node.is_clearing_tier();
        if is_over {
            return Some(Answer::Count(clearing.removed));
        }
        connection.deferred += 1;
        let (connection, namespace) = (connection.key, namespace.map(str::to_owned));
        self.clearing.push_back(ClearingFor { connection, session, id, namespace, clearing });
        None
    }

    /// Goes on with the first removal of all values, which also waits for the tier.
    fn clear_waiting(&mut self, slice: Slice) {
        let Some(mut first) = self.clearing.pop_front() else { return };
        // Another namespace may have the number by now.
        let is_there = self.namespace_named(first.namespace.as_deref()).is_some();
        let is_over = !is_there || self.node.clear_some(&mut first.clearing, slice);
        if is_over && !self.node.is_clearing_tier() {
            self.answer_clearing(first);
        } else {
            self.clearing.push_front(first);
        }
    }

    fn answer_clearing(&mut self, first: ClearingFor) {
        let ClearingFor { connection, session, id, clearing, .. } = first;
        self.answer_later(connection, session, id, Answer::Count(clearing.removed));
    }

    /// Goes on with the calls that wait for evictions: the others in their order, as far as there
    /// is space.
    fn reserve_waiting(&mut self, now: u64) {
        self.node.release_ended(MAX_RELEASED);
        let slice = Slice::of(LONG_WORK);
        self.clear_waiting(slice);
        self.evict_waiting(slice);
        self.resize_some(slice);
        (self.emptying, _) = self.with_evictions(MAX_EVICTIONS, |node| node.empty_namespace(slice));
        let (ended, _) = self.with_evictions(MAX_EVICTIONS, Node::fetch_found);
        ended.into_iter().for_each(|waiting| self.key_done(waiting, now));
        let (mut evictions, mut sizes) = (MAX_EVICTIONS, MAX_BATCH);
        while let Some(first) = self.waiting_for_space.pop_front() {
            if evictions == 0 || sizes == 0 {
                // The rest is done after others were served.
                self.waiting_for_space.push_front(first);
                self.evictions_ended = true;
                break;
            }
            let connection = self.connections.get(&first.connection);
            // The client may have gone.
            if connection.is_none_or(|it| it.session() != Some(first.session)) {
                continue;
            }
            let wanted = match &first.what {
                Wanted::Sizes(wanted) => wanted,
                Wanted::Keys(waiting, from) => {
                    let (waiting, from) = (*waiting, *from);
                    let (goes_on, evicted) = self.fetch_more(waiting, from, evictions, now);
                    evictions -= evicted;
                    sizes = sizes.saturating_sub(MAX_BATCH / 4);
                    if let Some(from) = goes_on {
                        let what = Wanted::Keys(waiting, from);
                        self.waiting_for_space.push_front(WaitingForSpace { what, ..first });
                        self.evictions_ended = true;
                        break;
                    }
                    continue;
                }
            };
            let (result, evicted) = self.reserve_now(first.session, wanted, evictions);
            evictions -= evicted;
            sizes = sizes.saturating_sub(wanted.len());
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

    /// Goes on with an acquisition that fetches more than one quantum can make space for. Returns
    /// the position to go on from, and how many values were evicted.
    fn fetch_more(
        &mut self,
        waiting: Waiting,
        from: usize,
        evictions: u32,
        now: u64,
    ) -> (Option<usize>, u32) {
        let Some(mut deferred) = self.deferred.remove(&waiting) else { return (None, 0) };
        let Then::Acquire { keys, prefix_only } = &deferred.then else {
            unreachable!("only acquisitions fetch")
        };
        let (session, prefix_only) = (deferred.session, *prefix_only);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let ((positions, goes_on), evicted) = self.with_evictions(evictions, |node| {
            node.fetch_from_tier(session, &keys, prefix_only, Some(waiting), from)
        });
        deferred.keys_left += positions.len();
        self.deferred.insert(waiting, deferred);
        if goes_on.is_none() {
            self.key_done(waiting, now);
        }
        (goes_on, evicted)
    }

    /// Returns whether there is work for the next iteration of the event loop: calls that wait and
    /// go on, or jobs of a tick or of the scrubber, which come after the tier was served.
    pub(super) fn has_work(&self) -> bool {
        let evicting = self.evictions_ended && !self.waiting_for_space.is_empty();
        let clearing = !self.clearing.is_empty() && !self.node.is_clearing_tier();
        let operator = self.evicting.front().is_some_and(|it| it.next == Evicted::More);
        let emptying = self.emptying == Evicted::More || self.resizing == ResizeStep::More;
        let node = self.node.is_ending() || self.node.has_found();
        let tier = self.tier.is_some() && self.node.has_jobs();
        evicting || clearing || operator || emptying || node || tier
    }

    /// Takes what the threads of the tier have done, and gives them more.
    pub(super) fn serve_tier(&mut self, now: u64) {
        let Some(threads) = &self.tier else { return self.reserve_waiting(now) };
        for done in threads.take_done() {
            for waiting in self.node.tier_done(done, now) {
                self.key_done(waiting, now);
            }
        }
        self.reserve_waiting(now);
        self.store_in_tier();
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
        while self.node.is_ending() {
            self.node.release_ended(MAX_RELEASED);
        }
        while let Some(mut first) = self.clearing.pop_front() {
            while !self.node.clear_some(&mut first.clearing, Slice::of(LONG_WORK)) {}
            self.answer_clearing(first);
        }
        while let Some(evicting) = self.evicting.pop_front() {
            self.answer_evicting(evicting);
        }
        self.answer_resized();
        // Those that still have no space fail with the error that says so.
        while let Some(waiting) = self.waiting_for_space.pop_front() {
            let WaitingForSpace { connection, session, id, what } = waiting;
            let has_session = |it: &AcceptedConnection| it.session() == Some(session);
            if !self.connections.get(&connection).is_some_and(has_session) {
                continue;
            }
            let sizes = match what {
                Wanted::Sizes(sizes) => sizes,
                Wanted::Keys(waiting, _) => {
                    // It finds what is there.
                    self.key_done(waiting, now);
                    continue;
                }
            };
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
